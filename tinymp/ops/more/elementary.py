"""Functions of one tensor, element by element, beyond those of ops/unary.py: one Op of its table each."""

# mypy: disable-error-code="empty-body"

from __future__ import annotations

import math
from collections.abc import Callable
from functools import wraps
from typing import Any

from ...arguments import floating, name_all, number, tensor
from ...autograd import Array, Op
from ...tensor import Tensor
from ..pointwise import numeric
from ..unary import Unary, unary

__all__ = ["acos", "asin", "atan", "ceil", "celu", "cosh", "erf", "expm1", "floor", "hardsigmoid", "log1p", "log10"]
__all__ += ["log2", "round", "selu", "sinh", "softsign", "tan", "trunc"]

# erf x = 2 / sqrt pi (x - x^3 / 3 + x^5 / 10 - ...); from the 13th on, terms at 1/2 are below FP64's rounding
_ERF = [2 / math.sqrt(math.pi) * (-1) ** n / (math.factorial(n) * (2 * n + 1)) for n in range(13)]
# Klambauer et al., 2017: the fixed point of mean 0 and variance 1
_ALPHA, _SCALE = 1.6732632423543772848170429916717, 1.0507009873554804934193349852946


def _erf(op: Op, x: Array) -> Array:
    """The series within 1/2, where 1 - erfc would cancel."""
    size, y = op.xp.abs(x), 0.0
    inside = op.xp.minimum(size, 0.5)
    for c in _ERF[::-1]:
        y = y * (inside * inside) + c
    return op.xp.copysign(op.device.where(size < 0.5, inside * y, 1 - op.device.erfc(size)), x)


class CELU(Unary):
    """y = x where x > 0, else alpha (e^(x / alpha) - 1) (Barron, 2017)."""

    name = "celu"

    def f(self, x: Array, *, alpha: float) -> Array:
        return self.xp.maximum(x, 0) + alpha * self.xp.expm1(self.xp.minimum(x, 0) / alpha)  # one of them is 0

    def df(self, x: Array, *, alpha: float) -> Array:
        return self.device.where(x > 0, x.dtype.type(1), self.xp.exp(self.xp.minimum(x, 0) / alpha))


def _selu(op: Op, x: Array) -> Array:
    return op.xp.maximum(x, 0) * _SCALE + op.xp.expm1(op.xp.minimum(x, 0)) * (_ALPHA * _SCALE)  # one of them is 0


def _slope_of_selu(op: Op, x: Array) -> Array:
    return op.device.where(x > 0, x.dtype.type(_SCALE), op.xp.exp(op.xp.minimum(x, 0)) * (_ALPHA * _SCALE))


def _slope_of_softsign(op: Op, x: Array) -> Array:
    return 1 / op.xp.square(1 + op.xp.abs(x))


def _steps(name: str) -> Callable:
    """Make y = NumPy's function of x, whose gradient is 0; integers come back in a copy, as in PyTorch."""
    formula = f"y = {name} x, as NumPy calls it;  dx = 0."
    make = unary(formula, lambda op, x: getattr(op.xp, name)(x), lambda op, x: op.xp.zeros_like(x))

    def of(function: Any) -> Any:
        made = make(function)

        @wraps(function)
        def call(input: Tensor) -> Tensor:
            x = numeric(function.__name__, tensor(function.__name__, "input", input))
            return x.clone() if x.dtype.kind in "iu" else made(x)

        return call

    return of


# ---------------------------------------------------------------------------------------------------------- functions


@unary("y = erf x;  y' = 2 / sqrt(pi) e^(-x^2).", _erf, lambda op, x: op.xp.exp(-x * x) * (2 / math.sqrt(math.pi)))
def erf(input: Tensor) -> Tensor:
    """The error function, 2 / sqrt(pi) times the integral of exp(-t^2) from 0 to input."""


@unary("y = ln(1 + x);  y' = 1 / (1 + x).", lambda op, x: op.xp.log1p(x), lambda op, x: 1 / (1 + x))
def log1p(input: Tensor) -> Tensor:
    """ln(1 + input), exact near 0; -inf at -1, nan below."""


@unary("y = e^x - 1;  y' = e^x.", lambda op, x: op.xp.expm1(x), lambda op, x: op.xp.exp(x))
def expm1(input: Tensor) -> Tensor:
    """exp(input) - 1, exact near 0."""


@unary("y = ln x / ln 2;  y' = 1 / (x ln 2).", lambda op, x: op.xp.log2(x), lambda op, x: 1 / (x * math.log(2)))
def log2(input: Tensor) -> Tensor:
    """The logarithm to the base 2; -inf at 0, nan below."""


@unary("y = ln x / ln 10;  y' = 1 / (x ln 10).", lambda op, x: op.xp.log10(x), lambda op, x: 1 / (x * math.log(10)))
def log10(input: Tensor) -> Tensor:
    """The logarithm to the base 10; -inf at 0, nan below."""


@unary("y = tan x;  y' = 1 / cos^2 x.", lambda op, x: op.xp.tan(x), lambda op, x: 1 / op.xp.square(op.xp.cos(x)))
def tan(input: Tensor) -> Tensor:
    """The tangent of an angle in radians."""


@unary("y = atan x;  y' = 1 / (1 + x^2).", lambda op, x: op.xp.arctan(x), lambda op, x: 1 / (1 + x * x))
def atan(input: Tensor) -> Tensor:
    """The angle, within pi / 2 of 0, whose tangent is input."""


@unary("y = asin x;  y' = 1 / sqrt(1 - x^2).", lambda op, x: op.xp.arcsin(x), lambda op, x: 1 / _other_leg(op, x))
def asin(input: Tensor) -> Tensor:
    """The angle, within pi / 2 of 0, whose sine is input; nan beyond 1."""


@unary("y = acos x;  y' = -1 / sqrt(1 - x^2).", lambda op, x: op.xp.arccos(x), lambda op, x: -1 / _other_leg(op, x))
def acos(input: Tensor) -> Tensor:
    """The angle, from 0 to pi, whose cosine is input; nan beyond 1."""


def _other_leg(op: Op, x: Array) -> Array:
    return op.xp.sqrt((1 - x) * (1 + x))


@unary("y = sinh x;  y' = cosh x.", lambda op, x: op.xp.sinh(x), lambda op, x: op.xp.cosh(x))
def sinh(input: Tensor) -> Tensor:
    """The hyperbolic sine; infinite in FP16 from 11.79 on."""


@unary("y = cosh x;  y' = sinh x.", lambda op, x: op.xp.cosh(x), lambda op, x: op.xp.sinh(x))
def cosh(input: Tensor) -> Tensor:
    """The hyperbolic cosine; infinite in FP16 from 11.79 on."""


@unary("y = x / d, d = 1 + |x|;  y' = 1 / d^2.", lambda op, x: x / (1 + abs(x)), _slope_of_softsign)
def softsign(input: Tensor) -> Tensor:
    """input / (1 + |input|); nan at infinities, as in PyTorch."""


@unary("y = c x where x > 0, else c a (e^x - 1) (Klambauer et al., 2017).", _selu, _slope_of_selu, check=floating)
def selu(input: Tensor) -> Tensor:
    """1.0507 input where positive, else 1.7581 (exp(input) - 1): the layers' outputs approach mean 0 and variance 1."""


def celu(input: Tensor, alpha: float = 1.0) -> Tensor:
    """input where positive, else alpha * (exp(input / alpha) - 1). ValueError for alpha 0."""
    if not (a := number("celu", "alpha", alpha)):
        raise ValueError("celu: expected `alpha` not to be 0")
    return CELU.apply(floating("celu", "input", input), alpha=a)


@unary(
    "y = min(max(x + 3, 0), 6) / 6;  y' = 1 / 6 strictly within 3 of 0, else 0.",
    lambda op, x: op.xp.clip(x + 3, 0, 6) / 6,
    lambda op, x: (op.xp.abs(x) < 3) * x.dtype.type(1 / 6),
    check=floating,
)
def hardsigmoid(input: Tensor) -> Tensor:
    """relu6(input + 3) / 6."""


@_steps("floor")
def floor(input: Tensor) -> Tensor:
    """The largest whole number up to input. Its gradient is 0."""


@_steps("ceil")
def ceil(input: Tensor) -> Tensor:
    """The smallest whole number from input on. Its gradient is 0."""


@_steps("rint")
def round(input: Tensor) -> Tensor:
    """The whole number next to input, an even one if two are as near. Its gradient is 0."""


@_steps("trunc")
def trunc(input: Tensor) -> Tensor:
    """input without what is behind the point. Its gradient is 0."""


name_all(globals())
