"""Functions of one tensor, element by element: read storage, compute in FP32, round once (MPT section 3.3)."""

# mypy: disable-error-code="empty-body"

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from ..arguments import floating, tensor
from ..autograd import Array, Op
from ..precision import POINTWISE, store, widen
from ..tensor import Tensor
from .pointwise import numeric

__all__ = ["abs", "cos", "exp", "log", "reciprocal", "rsqrt", "sigmoid"]
__all__ += ["sign", "silu", "sin", "sqrt", "square", "tanh"]


class Unary(Op):
    """y = f(x);  dx = f'(x) dy. Subclasses give f and df as functions of FP32 values: df of x, or of the stored y."""

    kind = POINTWISE
    of = "x"  # which of the two df reads, and backward keeps
    f: Any
    df: Any

    def forward(self, x: Array, **options: Any) -> Array:
        y = self.device.map(lambda x, **o: store(self.f(widen(x), **o), like=x), x, **options)
        self.save(x if self.of == "x" else y)
        return y

    def backward(self, dy: Array) -> Array:
        slope = lambda dy, v, **o: store(widen(dy) * self.df(widen(v), **o), like=dy)  # noqa: E731
        return self.device.map(slope, dy, *self.saved, **self.options)


OPS: dict[str, type[Op]] = {}  # by their names


def promoted(op: str, name: str, x: Any) -> Tensor:
    """x, in float32 if it holds integers or truths, as in PyTorch; TypeError if it is no Tensor."""
    return x.float() if tensor(op, name, x).array.dtype.kind in "iub" else x


def unary(formula: str, f: Callable, df: Callable, of: str = "x", check: Callable = promoted) -> Callable:
    """Make y = f(op, x), with y' = df(op, v) of the x or y that `of` names, an op and the function decorated."""

    def make(function: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
        name = function.__name__
        op: Any = type(name.title(), (Unary,), {"__doc__": formula, "name": name, "f": f, "df": df, "of": of})

        @wraps(function)
        def call(input: Tensor) -> Tensor:
            return op.apply(check(name, "input", input))

        OPS[name] = op
        return call

    return make


def sigmoid_of(op: Op, x: Array) -> Array:
    """1 / (1 + e^-x) in x's dtype; e^-x may overflow to inf, and 1 / inf is the right 0."""
    return 1 / (1 + op.xp.exp(-x))


def _silu_slope(op: Op, x: Array) -> Array:
    s = sigmoid_of(op, x)
    return s * (1 + x * (1 - s))


# ---------------------------------------------------------------------------------------------------------- functions


@unary("y = |x|;  dx = sign(x) dy, 0 at 0.", lambda op, x: op.xp.abs(x), lambda op, x: op.xp.sign(x), check=tensor)
def abs(input: Tensor) -> Tensor:
    """|input|; its gradient at 0 is 0."""


@unary("y = e^x;  dx = y dy.", lambda op, x: op.xp.exp(x), lambda op, y: y, "y")
def exp(input: Tensor) -> Tensor:
    """e to the power of input; infinite in FP16 from 11.09 on."""


@unary("y = ln x;  dx = dy / x.", lambda op, x: op.xp.log(x), lambda op, x: 1 / x)
def log(input: Tensor) -> Tensor:
    """The natural logarithm; -inf at 0, nan below."""


@unary("y = sqrt x;  dx = dy / 2y.", lambda op, x: op.xp.sqrt(x), lambda op, y: 0.5 / y, "y")
def sqrt(input: Tensor) -> Tensor:
    """The square root; nan below 0."""


@unary(
    "y = 1 / sqrt x;  dx = -dy / 2 x^(3/2).", lambda op, x: 1 / op.xp.sqrt(x), lambda op, x: -0.5 / (x * op.xp.sqrt(x))
)
def rsqrt(input: Tensor) -> Tensor:
    """1 / sqrt(input)."""


@unary("y = x^2;  dx = 2x dy.", lambda op, x: x * x, lambda op, x: 2 * x, check=tensor)
def square(input: Tensor) -> Tensor:
    """input * input; infinite in FP16 from 256 on."""


@unary("y = 1 / x;  dx = -dy / x^2.", lambda op, x: 1 / x, lambda op, x: -1 / (x * x))
def reciprocal(input: Tensor) -> Tensor:
    """1 / input."""


@unary("y = sin x;  dx = cos x dy.", lambda op, x: op.xp.sin(x), lambda op, x: op.xp.cos(x))
def sin(input: Tensor) -> Tensor:
    """The sine of an angle in radians."""


@unary("y = cos x;  dx = -sin x dy.", lambda op, x: op.xp.cos(x), lambda op, x: -op.xp.sin(x))
def cos(input: Tensor) -> Tensor:
    """The cosine of an angle in radians."""


@unary(
    "y = -1, 0 or 1 as x is negative, 0 (or nan) or positive;  dx = 0.",
    lambda op, x: op.device.select(op.xp.equal(x, x), op.xp.sign(x)),
    lambda op, x: op.xp.zeros_like(x),
    check=lambda op, name, x: numeric(op, tensor(op, name, x)),
)
def sign(input: Tensor) -> Tensor:
    """-1, 0 or 1 as input is negative, 0 or positive; 0 for nan, as in PyTorch. Its gradient is 0 everywhere."""


@unary("y = 1 / (1 + e^-x);  dx = y (1 - y) dy.", sigmoid_of, lambda op, y: y * (1 - y), "y")
def sigmoid(input: Tensor) -> Tensor:
    """1 / (1 + exp(-input))."""


@unary("y = tanh x;  dx = (1 - y^2) dy.", lambda op, x: op.xp.tanh(x), lambda op, y: 1 - y * y, "y")
def tanh(input: Tensor) -> Tensor:
    """The hyperbolic tangent."""


@unary("y = x s, s = sigmoid(x);  y' = s + y (1 - s).", lambda op, x: x * sigmoid_of(op, x), _silu_slope, "x", floating)
def silu(input: Tensor) -> Tensor:
    """input * sigmoid(input)."""
