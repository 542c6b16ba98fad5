"""Modules without parameters: each calls the op of its name with what its constructor was given.

One dataclass each, so that the constructor is the list of fields. The mathematics and the checks are the op's.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from .. import ops
from ..arguments import axis, flag, number, refuse, sizes
from ..tensor import Tensor
from .module import Module

_REFUSED = ("inplace", "size_average", "reduce")  # documented by PyTorch; refused when the module is built


class Function(Module):
    """forward(input, ...) is ops.<op>(input, ..., **fields); a subclass is a dataclass that names its op."""

    op: str

    def __new__(cls, *args: Any, **options: Any) -> Any:
        module = super().__new__(cls)
        Module.__init__(module)  # a dataclass assigns its fields at once
        return module

    def __post_init__(self) -> None:
        name = type(self).__name__
        refuse(name, **{field: getattr(self, field) for field in _REFUSED if hasattr(self, field)})
        for f in fields(self):  # type: ignore[arg-type]
            if f.type == "bool":
                flag(name, f.name, getattr(self, f.name))

    def _options(self) -> dict[str, Any]:
        return {f.name: getattr(self, f.name) for f in fields(self) if f.name not in _REFUSED}  # type: ignore[arg-type]

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return getattr(ops, self.op)(*args, **kwargs, **self._options())

    def extra_repr(self) -> str:
        options, defaults = self._options(), {f.name: f.default for f in fields(self)}  # type: ignore[arg-type]
        shown = {k: f"a tensor {v.shape}" if isinstance(v, Tensor) else v for k, v in options.items()}
        return ", ".join(f"{k}={v!r}" for k, v in shown.items() if v != defaults[k])


# -------------------------------------------------------------------------------------------------------- activations


@dataclass(eq=False, repr=False)
class ReLU(Function):
    """max(x, 0). See `ops.relu`."""

    op = "relu"
    inplace: bool = False


@dataclass(eq=False, repr=False)
class LeakyReLU(Function):
    """x where positive, else negative_slope * x. See `ops.leaky_relu`."""

    op = "leaky_relu"
    negative_slope: float = 0.01
    inplace: bool = False


@dataclass(eq=False, repr=False)
class Sigmoid(Function):
    """1 / (1 + exp(-x)). See `ops.sigmoid`."""

    op = "sigmoid"


@dataclass(eq=False, repr=False)
class Tanh(Function):
    """The hyperbolic tangent. See `ops.tanh`."""

    op = "tanh"


@dataclass(eq=False, repr=False)
class Hardtanh(Function):
    """x limited to [min_val, max_val]. See `ops.hardtanh`."""

    op = "hardtanh"
    min_val: float = -1.0
    max_val: float = 1.0
    inplace: bool = False


@dataclass(eq=False, repr=False)
class ELU(Function):
    """x where positive, else alpha * (exp(x) - 1). See `ops.elu`."""

    op = "elu"
    alpha: float = 1.0
    inplace: bool = False


@dataclass(eq=False, repr=False)
class GELU(Function):
    """x times the normal distribution function of x; approximate="tanh" for the tanh form. See `ops.gelu`."""

    op = "gelu"
    approximate: str = "none"


@dataclass(eq=False, repr=False)
class SiLU(Function):
    """x * sigmoid(x). See `ops.silu`."""

    op = "silu"
    inplace: bool = False


@dataclass(eq=False, repr=False)
class Softplus(Function):
    """ln(1 + exp(beta x)) / beta; x itself where beta x > threshold. See `ops.softplus`."""

    op = "softplus"
    beta: float = 1.0
    threshold: float = 20.0


@dataclass(eq=False, repr=False)
class LogSigmoid(Function):
    """ln sigmoid(x). See `ops.logsigmoid`."""

    op = "logsigmoid"


@dataclass(eq=False, repr=False)
class Softmax(Function):
    """exp(x), divided by its sum along dim. See `ops.softmax`, which refuses dim=None."""

    op = "softmax"
    dim: int | None = None


@dataclass(eq=False, repr=False)
class LogSoftmax(Function):
    """ln softmax(x) along dim. See `ops.log_softmax`, which refuses dim=None."""

    op = "log_softmax"
    dim: int | None = None


class Identity(Module):
    """Its input; whatever the constructor is given is ignored, so that it can stand in for any layer."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__()

    def forward(self, input: Any) -> Any:
        return input


@dataclass(eq=False, repr=False)
class Dropout(Function):
    """In training, zeros with probability p and x / (1 - p) else; in evaluation, x. See `ops.dropout`."""

    op = "dropout"
    p: float = 0.5
    inplace: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        self.p = number("Dropout", "p", self.p, 0, 1)

    def forward(self, input: Tensor) -> Tensor:
        return ops.dropout(input, self.p, self.training)


# ----------------------------------------------------------------------------------------- pooling, normalising, shape


@dataclass(eq=False, repr=False)
class MaxPool2d(Function):
    """The maximum of every window; stride None means kernel_size. See `ops.max_pool2d`."""

    op = "max_pool2d"
    kernel_size: Any
    stride: Any = None
    padding: Any = 0
    dilation: Any = 1
    return_indices: bool = False
    ceil_mode: bool = False


@dataclass(eq=False, repr=False)
class AvgPool2d(Function):
    """The mean of every window; stride None means kernel_size. See `ops.avg_pool2d`."""

    op = "avg_pool2d"
    kernel_size: Any
    stride: Any = None
    padding: Any = 0
    ceil_mode: bool = False
    count_include_pad: bool = True
    divisor_override: int | None = None


@dataclass(eq=False, repr=False)
class AdaptiveAvgPool2d(Function):
    """Means over a grid of output_size cells. See `ops.adaptive_avg_pool2d`."""

    op = "adaptive_avg_pool2d"
    output_size: Any


@dataclass(eq=False, repr=False)
class LocalResponseNorm(Function):
    """x_c (k + alpha / size * sum of x^2 over `size` channels around c)^-beta. See `ops.local_response_norm`."""

    op = "local_response_norm"
    size: int
    alpha: float = 1e-4
    beta: float = 0.75
    k: float = 1.0


@dataclass(eq=False, repr=False)
class Upsample(Function):
    """Resize images to `size` or by `scale_factor`. See `ops.interpolate`."""

    op = "interpolate"
    size: Any = None
    scale_factor: Any = None
    mode: str = "nearest"
    align_corners: bool | None = None
    recompute_scale_factor: bool | None = None


@dataclass(eq=False, repr=False)
class PixelShuffle(Function):
    """(N, C r^2, H, W) to (N, C, H r, W r) for r = upscale_factor. See `ops.pixel_shuffle`."""

    op = "pixel_shuffle"
    upscale_factor: int


@dataclass(eq=False, repr=False)
class Flatten(Function):
    """Merge the axes from start_dim to end_dim into one. See `ops.flatten`."""

    op = "flatten"
    start_dim: int = 1
    end_dim: int = -1


@dataclass(eq=False, repr=False)
class Unflatten(Function):
    """Split axis dim into axes of lengths unflattened_size (one may be -1). See `ops.reshape`."""

    op = "reshape"
    dim: int
    unflattened_size: Any

    def forward(self, input: Tensor) -> Tensor:
        d = axis("Unflatten", self.dim, input.ndim)
        lengths = sizes("Unflatten", "unflattened_size", (self.unflattened_size,), {})
        return ops.reshape(input, (*input.shape[:d], *lengths, *input.shape[d + 1 :]))


@dataclass(eq=False, repr=False)
class ZeroPad2d(Function):
    """Zeros around images: padding is an integer or (left, right, top, bottom). See `ops.pad`."""

    op = "pad"
    padding: Any

    def forward(self, input: Tensor) -> Tensor:
        return ops.pad(input, (self.padding,) * 4 if isinstance(self.padding, int) else self.padding)
