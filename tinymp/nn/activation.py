"""More activations: PReLU, which learns its slope, and modules that call the ops of rectifiers.py."""

from __future__ import annotations

from dataclasses import dataclass

from .. import ops
from ..arguments import integers, number
from ..parameter import parameter
from ..tensor import Tensor
from . import init as initialise
from .functions import Function
from .module import Module, refuse_placement


@dataclass(eq=False, repr=False)
class ReLU6(Function):
    """x limited to [0, 6]. See `ops.relu6`."""

    op = "relu6"
    inplace: bool = False


@dataclass(eq=False, repr=False)
class Hardswish(Function):
    """x min(max(x + 3, 0), 6) / 6. See `ops.hardswish`."""

    op = "hardswish"
    inplace: bool = False


@dataclass(eq=False, repr=False)
class Mish(Function):
    """x tanh(ln(1 + e^x)). See `ops.mish`."""

    op = "mish"
    inplace: bool = False


@dataclass(eq=False, repr=False)
class GLU(Function):
    """a sigmoid(b) for the halves a, b of x along dim. See `ops.glu`."""

    op = "glu"
    dim: int = -1


class PReLU(Module):
    """x where positive, else weight x. weight: (num_parameters,), one for all or one per channel, from `init` on.

    See `ops.prelu`.
    """

    def __init__(self, num_parameters: int = 1, init: float = 0.25, device: None = None, dtype: None = None) -> None:
        super().__init__()
        refuse_placement("PReLU", device, dtype)
        (self.num_parameters,) = integers("PReLU", "num_parameters", num_parameters, 1, 1)
        self.init = number("PReLU", "init", init)
        self.weight = parameter(self.num_parameters)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """weight `init`."""
        initialise.constant_(self.weight, self.init)

    def forward(self, input: Tensor) -> Tensor:
        return ops.prelu(input, self.weight)

    def extra_repr(self) -> str:
        return f"num_parameters={self.num_parameters}"
