"""Functions of one tensor, element by element: read storage, compute in FP32, round once (MPT section 3.3)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..arguments import called, tensor
from ..autograd import Array, Op
from ..precision import POINTWISE, store, widen
from ..tensor import Tensor

__all__ = ["abs", "cos", "exp", "log", "reciprocal", "rsqrt", "sigmoid", "sin", "sqrt", "square", "tanh"]


class Unary(Op):
    """y = f(x);  dx = f'(x) dy. Subclasses give f and df as functions of FP32 values: df of x, or of the stored y."""

    kind = POINTWISE
    of = "x"  # or "y": the argument of df, which backward keeps
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
    """x, in float32 if it holds integers or booleans, as in PyTorch; TypeError if it is no Tensor."""
    return x.float() if tensor(op, name, x).array.dtype.kind in "iub" else x


def unary(
    name: str, says: str, formula: str, f: Callable, df: Callable, of: str = "x", check: Callable = promoted
) -> Callable[[Tensor], Tensor]:
    """Make the function y = f(op, x), and its op with the derivative df(op, v), where v is x or y, as `of` says."""
    op: Any = type(name.title(), (Unary,), {"__doc__": formula, "name": name, "f": f, "df": df, "of": of})
    OPS[name] = op

    def function(input: Tensor) -> Tensor:
        return op.apply(check(name, "input", input))

    return called(function, name, says, df.__module__)


def sigmoid_of(op: Op, x: Array) -> Array:
    """1 / (1 + e^-x) in x's dtype; e^-x may overflow to inf, and 1 / inf is the right 0."""
    return 1 / (1 + op.xp.exp(-x))


# ---------------------------------------------------------------------------------------------------------- functions

# fmt: off
abs = unary("abs", "|input|; its gradient at 0 is 0.",
    "y = |x|;  dx = sign(x) dy, 0 at 0.", lambda op, x: op.xp.abs(x), lambda op, x: op.xp.sign(x), check=tensor)
exp = unary("exp", "e to the power of input; infinite in FP16 from 11.09 on.",
    "y = e^x;  dx = y dy.", lambda op, x: op.xp.exp(x), lambda op, y: y, "y")
log = unary("log", "The natural logarithm; -inf at 0, nan below.",
    "y = ln x;  dx = dy / x.", lambda op, x: op.xp.log(x), lambda op, x: 1 / x)
sqrt = unary("sqrt", "The square root; nan below 0.",
    "y = sqrt x;  dx = dy / 2y.", lambda op, x: op.xp.sqrt(x), lambda op, y: 0.5 / y, "y")
rsqrt = unary("rsqrt", "1 / sqrt(input).",
    "y = 1 / sqrt x;  dx = -dy / 2 x^(3/2).", lambda op, x: 1 / op.xp.sqrt(x), lambda op, x: -0.5 / (x * op.xp.sqrt(x)))
square = unary("square", "input * input; infinite in FP16 from 256 on.",
    "y = x^2;  dx = 2x dy.", lambda op, x: x * x, lambda op, x: 2 * x, check=tensor)
reciprocal = unary("reciprocal", "1 / input.",
    "y = 1 / x;  dx = -dy / x^2.", lambda op, x: 1 / x, lambda op, x: -1 / (x * x))
sin = unary("sin", "The sine of an angle in radians.",
    "y = sin x;  dx = cos x dy.", lambda op, x: op.xp.sin(x), lambda op, x: op.xp.cos(x))
cos = unary("cos", "The cosine of an angle in radians.",
    "y = cos x;  dx = -sin x dy.", lambda op, x: op.xp.cos(x), lambda op, x: -op.xp.sin(x))
sigmoid = unary("sigmoid", "1 / (1 + exp(-input)).",
    "y = 1 / (1 + e^-x);  dx = y (1 - y) dy.", sigmoid_of, lambda op, y: y * (1 - y), "y")
tanh = unary("tanh", "The hyperbolic tangent.",
    "y = tanh x;  dx = (1 - y^2) dy.", lambda op, x: op.xp.tanh(x), lambda op, y: 1 - y * y, "y")
# fmt: on
