"""torch.autograd: Variable, which is a Tensor, and gradients of the first order."""

from __future__ import annotations

from typing import Any

from ..tensor import Tensor
from .space import fill, names


def Variable(data: Tensor, requires_grad: bool | None = None, volatile: bool = False) -> Tensor:
    """data, which needs no wrapper. requires_grad: set it."""
    return data if requires_grad is None else data.detach().requires_grad_(requires_grad)


class set_detect_anomaly:
    """Accepted and without effect; `tinymp.audit` tells where a gradient stops being finite."""

    def __init__(self, mode: bool = True, check_nan: bool = True) -> None:
        pass

    def __enter__(self) -> None:
        pass

    def __exit__(self, *error: Any) -> None:
        pass


detect_anomaly = set_detect_anomaly
_TABLE = names("ops.more.autograd", "Function backward grad") | names("torch", "enable_grad no_grad")
fill(globals(), "torch.autograd", _TABLE)
