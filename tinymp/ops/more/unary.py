"""Functions of one tensor, element by element, beyond those of ops/activation.py and ops/unary.py."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from ...arguments import axis, called, choice, constant, floating, number, tensor
from ...autograd import Array, Op
from ...backend.devices import Device
from ...dtypes import float32, float64
from ...tensor import Tensor
from ..pointwise import mul, numeric
from ..unary import Unary, sigmoid, sigmoid_of, unary
from .compare import gt, le, logical_and, lt
from .pointwise import clamp, where
from .views import chunk

__all__ = ["acos", "asin", "atan", "ceil", "celu", "cosh", "elu", "erf", "erfinv", "expm1", "floor", "gelu", "glu"]
__all__ += ["hardsigmoid", "hardswish", "hardtanh", "log1p", "log2", "log10", "logsigmoid", "mish", "relu6"]
__all__ += ["round", "selu", "sign", "silu", "sinh", "softplus", "softsign", "tan", "threshold", "trunc"]


Made = Callable[[Tensor], Tensor]


def softplus_of(op: Op, x: Array) -> Array:
    """ln(1 + e^x) in x's dtype, as max(x, 0) + ln(1 + e^-|x|), which does not overflow."""
    return op.xp.clip(x, 0, op.xp.inf) + op.xp.log1p(op.xp.exp(-op.xp.abs(x)))


# e^(z^2) erfc(z) for z in [0, 10.2] as a polynomial in u = (z - 3.5) / (z + 3.5), which is in [-1, 0.5): the smallest
# largest relative error is 2e-8 (least squares, reweighted until the errors' peaks are level).
_ERFCX = (
    *(1.55293656e-01, -2.89265001e-01, 2.33130346e-01, -1.61340147e-01, 9.44304396e-02, -4.54192152e-02),
    *(1.69663955e-02, -4.32073485e-03, 2.49108402e-04, 4.15023763e-04),
)
_erfc64 = np.frompyfunc(math.erfc, 1, 1)


def erfc(device: Device, x: Array) -> Array:
    """1 - erf(x), also where it is tiny: in FP32 within 7 units in the last place.

    z^2 is split, as its rounding would be magnified by the exponential: the square of z's first 12 bits is exact.
    """
    xp = device.xp
    if x.dtype == float64:
        # rounds: FP64 for FP64
        return device.asarray(np.asarray(_erfc64(device.to_numpy(x)), x.dtype)) if device.has_values else x
    z = xp.clip(xp.abs(x), 0, 16)  # beyond 10.1 it is 0 in FP32
    u = (z - 3.5) / (z + 3.5)
    y = xp.full_like(z, _ERFCX[-1])
    for coefficient in _ERFCX[-2::-1]:
        y *= u
        y += coefficient
    head = (z.view(np.uint32) & np.uint32(0xFFFFF000)).view(z.dtype)
    y *= xp.exp(-head * head)
    y *= xp.exp((head - z) * (head + z))
    two = xp.signbit(x) * float32.type(2)
    return two + (1 - two) * y  # erfc(x) = 2 - erfc(-x)


class GELU(Unary):
    """y = x Phi(x), Phi the normal distribution function (Hendrycks & Gimpel, 2016);  y' = Phi(x) + x phi(x)."""

    def f(self, x: Array) -> Array:
        return x * self._phi(x)

    def df(self, x: Array) -> Array:
        return self._phi(x) + x * self.xp.exp(-0.5 * x * x) * (1 / math.sqrt(2 * math.pi))

    def _phi(self, x: Array) -> Array:
        """Phi; erfc, not 1 + erf: no cancellation in the left tail."""
        return 0.5 * erfc(self.device, x * -math.sqrt(0.5))


class TanhGELU(Unary):
    """y = x (1 + tanh u) / 2 with u = sqrt(2 / pi) (x + 0.044715 x^3), the approximation of GELU.

    (1 + tanh u) / 2 = 1 / (1 + e^-2u) keeps its digits in the left tail.
    """

    name = "gelu"
    C = 2 * math.sqrt(2 / math.pi)

    def f(self, x: Array) -> Array:
        return x / self._denominator(x)

    def df(self, x: Array) -> Array:
        gate = 1 / self._denominator(x)
        return ((x * x * (3 * 0.044715 * self.C) + self.C) * x * (1 - gate) + 1) * gate

    def _denominator(self, x: Array) -> Array:
        """1 + e^-2u; it may overflow to inf, of which 1 / inf is the right 0."""
        return self.xp.exp((x * x * (-0.044715 * self.C) - self.C) * x) + 1


class ELU(Unary):
    """y = scale x where x > 0, else scale alpha (e^(x / beta) - 1) (Clevert et al., 2016)."""

    name = "elu"

    def f(self, x: Array, *, alpha: float, beta: float = 1.0, scale: float = 1.0) -> Array:
        low, inf = self.xp.expm1(self.xp.clip(x, -self.xp.inf, 0) / beta), self.xp.inf
        return self.xp.clip(x, 0, inf) * scale + low * (alpha * scale)  # one of them is 0

    def df(self, x: Array, *, alpha: float, beta: float = 1.0, scale: float = 1.0) -> Array:
        e = self.xp.exp(self.xp.clip(x, -self.xp.inf, 0) / beta) * (alpha / beta * scale)
        return self.device.where(x > 0, e.dtype.type(scale), e)


class Softplus(Unary):
    """y = ln(1 + e^(beta x)) / beta, and x itself where beta x > threshold;  y' = sigmoid(beta x), or 1."""

    def f(self, x: Array, *, beta: float, threshold: float) -> Array:
        return self.device.where(beta * x > threshold, x, softplus_of(self, beta * x) / beta)

    def df(self, x: Array, *, beta: float, threshold: float) -> Array:
        return self.device.where(beta * x > threshold, x.dtype.type(1), sigmoid_of(self, beta * x))


def _hardswish(op: Op, x: Array) -> Array:
    return op.xp.clip(x, -3, op.xp.inf) * (op.xp.clip(x + 3, 0, 6) / 6)  # -3, not -inf, times 0


def _slope_of_hardswish(op: Op, x: Array) -> Array:
    inside, half = op.xp.clip(x, -3, 3), x.dtype.type(0.5)
    return (inside / 3 + half) * (inside > -3) - half * (inside >= 3)  # 3/2 - 1/2 from 3 on


def _gate_of_mish(op: Op, x: Array) -> Array:
    """tanh ln(1 + e^x) = (n - 1) / (n + 1) with n = (1 + e^x)^2; from x = 20 on it is 1 in FP32."""
    e = op.xp.exp(op.xp.minimum(x, 20))
    n = e * (e + 2)
    return n / (n + 2)


def _slope_of_mish(op: Op, x: Array) -> Array:
    gate = _gate_of_mish(op, x)
    return gate + x * sigmoid_of(op, x) * (1 - gate * gate)


def gelu(input: Tensor, approximate: str = "none") -> Tensor:
    """input times the normal distribution function of input; approximate="tanh" for the tanh form."""
    op = GELU if choice("gelu", "approximate", approximate, ("none", "tanh")) == "none" else TanhGELU
    return op.apply(floating("gelu", "input", input))


def hardtanh(input: Tensor, min_val: Any = -1.0, max_val: Any = 1.0) -> Tensor:
    """input limited to [min_val, max_val]. ValueError unless min_val <= max_val, or if a bound does not fit FP16."""
    x = floating("hardtanh", "input", input)
    low, high = (constant("hardtanh", *bound, x.dtype) for bound in (("min_val", min_val), ("max_val", max_val)))
    if not low <= high:
        raise ValueError(f"hardtanh: expected min_val <= max_val, got {min_val!r} and {max_val!r}")
    inside = logical_and(gt(x, low), lt(x, high))  # at the bounds the gradient is 0
    return where(inside, x, clamp(x.detach(), low, high))


def threshold(input: Tensor, threshold: float, value: float) -> Tensor:
    """value where input is at most threshold, else input. ValueError for a value that input's dtype cannot hold."""
    x, least = floating("threshold", "input", input), number("threshold", "threshold", threshold)
    return where(le(x, least), constant("threshold", "value", value, x.dtype), x)


def elu(input: Tensor, alpha: float = 1.0) -> Tensor:
    """input where positive, else alpha * (exp(input) - 1)."""
    return ELU.apply(floating("elu", "input", input), alpha=number("elu", "alpha", alpha))


def softplus(input: Tensor, beta: float = 1.0, threshold: float = 20.0) -> Tensor:
    """ln(1 + exp(beta * input)) / beta; input itself where beta * input > threshold. ValueError unless beta > 0."""
    b = number("softplus", "beta", beta, 0, above=True)
    x, most = floating("softplus", "input", input), number("softplus", "threshold", threshold)
    return Softplus.apply(x, beta=b, threshold=most)


def relu6(input: Tensor) -> Tensor:
    """input limited to [0, 6]; its gradient at 0 and 6 is 0."""
    return hardtanh(floating("relu6", "input", input), 0.0, 6.0)


def glu(input: Tensor, dim: int = -1) -> Tensor:
    """a * sigmoid(b) for the halves a, b of input along dim (Dauphin et al., 2017). ValueError for an odd length."""
    x = floating("glu", "input", input)
    d = axis("glu", dim, x.ndim)
    if x.shape[d] % 2:
        raise ValueError(f"glu: expected an even length along axis {d}, got input of shape {x.shape}")
    a, b = chunk(x, 2, d)
    return mul(a, sigmoid(b))


# erf x = 2 / sqrt pi (x - x^3 / 3 + x^5 / 10 - ...); from the 13th on, terms at 1/2 are below FP64's rounding
_ERF = [2 / math.sqrt(math.pi) * (-1) ** n / (math.factorial(n) * (2 * n + 1)) for n in range(13)]


def _erf(op: Op, x: Array) -> Array:
    """The series within 1/2, where 1 - erfc would cancel."""
    size, y = op.xp.abs(x), 0.0
    inside = op.xp.minimum(size, 0.5)
    for c in _ERF[::-1]:
        y = y * (inside * inside) + c
    return op.xp.copysign(op.device.where(size < 0.5, inside * y, 1 - erfc(op.device, size)), x)


def _slope_of_softsign(op: Op, x: Array) -> Array:
    return 1 / op.xp.square(1 + op.xp.abs(x))


def _steps(name: str, ufunc: str, says: str) -> Callable[[Tensor], Tensor]:
    """y = NumPy's function of x, whose gradient is 0; integers come back in a copy, as in PyTorch."""
    df = lambda op, x: op.xp.zeros_like(x)  # noqa: E731
    made = unary(name, says, f"y = {ufunc} x, as NumPy calls it;  dx = 0.", lambda op, x: getattr(op.xp, ufunc)(x), df)

    def function(input: Tensor) -> Tensor:
        x = numeric(name, tensor(name, "input", input))
        return x.clone() if x.dtype.kind in "iu" else made(x)

    return called(function, name, says, __name__)


def _numbers(op: str, name: str, x: Any) -> Tensor:
    """x; TypeError if it is no Tensor, or holds truths."""
    return numeric(op, tensor(op, name, x))


# Rational approximations of erf^-1: x P(x^2) / Q(x^2) up to 0.7; beyond, of sqrt(-ln((1 - x) / 2)). Both within 1e-3.
_NEAR = (
    (-0.140543331, 0.914624893, -1.645349621, 0.886226899),
    (0.012229801, -0.329097515, 1.442710462, -2.118377725, 1),
)
_FAR = (1.641345311, 3.429567803, -1.624906493, -1.970840454), (1.637067800, 3.543889200, 1)


def _erfinv(op: Op, v: Array) -> Array:
    """By two of Newton's steps from an approximation."""
    xp = op.xp

    def polynomial(coefficients: tuple, z: Array) -> Array:
        y = z * 0
        for coefficient in coefficients:
            y = y * z + coefficient
        return y

    z = xp.sqrt(-xp.log((1 - xp.abs(v)) / 2))
    near, far = (polynomial(p, z) / polynomial(q, z) for (p, q), z in ((_NEAR, v * v), (_FAR, z)))
    y = op.device.where(xp.abs(v) <= 0.7, v * near, xp.copysign(far, v))
    for _ in range(2):
        y = y - (_erf(op, y) - v) * xp.exp(y * y) * (math.sqrt(math.pi) / 2)
    return op.device.where(xp.abs(v) == 1, v * math.inf, y)


def _other_leg(op: Op, x: Array) -> Array:
    return op.xp.sqrt((1 - x) * (1 + x))


def celu(input: Tensor, alpha: float = 1.0) -> Tensor:
    """input where positive, else alpha * (exp(input / alpha) - 1). ValueError for alpha 0."""
    if not (a := number("celu", "alpha", alpha)):
        raise ValueError("celu: expected `alpha` not to be 0")
    return ELU.apply(floating("celu", "input", input), alpha=a, beta=a)


def selu(input: Tensor) -> Tensor:
    """1.0507 input where positive, else 1.7581 (exp(input) - 1): means come near 0, variances 1.

    (Klambauer et al., 2017: the fixed point of mean 0 and variance 1.)
    """
    alpha, scale = 1.6732632423543772848170429916717, 1.0507009873554804934193349852946
    return ELU.apply(floating("selu", "input", input), alpha=alpha, scale=scale)


def _silu_slope(op: Op, x: Array) -> Array:
    s = sigmoid_of(op, x)
    return s * (1 + x * (1 - s))


# fmt: off
hardswish: Made = unary("hardswish", "input * relu6(input + 3) / 6.",
    "y = x min(max(x + 3, 0), 6) / 6 (Howard et al., 2019);  y' = 0 up to -3, 1 from 3 on, x / 3 + 1 / 2 between.",
    _hardswish, _slope_of_hardswish, check=floating)
mish: Made = unary("mish", "input * tanh(softplus(input)).",
    "y = x tanh(s) with s = ln(1 + e^x) (Misra, 2019);  y' = tanh s + x sigmoid(x) (1 - tanh^2 s).",
    lambda op, x: x * _gate_of_mish(op, x), _slope_of_mish, check=floating)
logsigmoid: Made = unary("logsigmoid", "ln sigmoid(input), without overflow.",
    "y = -ln(1 + e^-x);  y' = sigmoid(-x).",
    lambda op, x: -softplus_of(op, -x), lambda op, x: sigmoid_of(op, -x), check=floating)
erf: Made = unary("erf", "The error function, 2 / sqrt(pi) times the integral of exp(-t^2) from 0 to input.",
    "y = erf x;  y' = 2 / sqrt(pi) e^(-x^2).", _erf, lambda op, x: op.xp.exp(-x * x) * (2 / math.sqrt(math.pi)))
erfinv: Made = unary("erfinv", "The number whose `erf` input is; infinite at -1 and 1, nan beyond.",
    "y = erf^-1 x;  y' = sqrt(pi) / 2 e^(y^2).",
    _erfinv, lambda op, x: op.xp.exp(_erfinv(op, x) ** 2) * (math.sqrt(math.pi) / 2))
log1p: Made = unary("log1p", "ln(1 + input), exact near 0; -inf at -1, nan below.",
    "y = ln(1 + x);  y' = 1 / (1 + x).", lambda op, x: op.xp.log1p(x), lambda op, x: 1 / (1 + x))
expm1: Made = unary("expm1", "exp(input) - 1, exact near 0.",
    "y = e^x - 1;  y' = e^x.", lambda op, x: op.xp.expm1(x), lambda op, x: op.xp.exp(x))
log2: Made = unary("log2", "The logarithm to the base 2; -inf at 0, nan below.",
    "y = ln x / ln 2;  y' = 1 / (x ln 2).", lambda op, x: op.xp.log2(x), lambda op, x: 1 / (x * math.log(2)))
log10: Made = unary("log10", "The logarithm to the base 10; -inf at 0, nan below.",
    "y = ln x / ln 10;  y' = 1 / (x ln 10).", lambda op, x: op.xp.log10(x), lambda op, x: 1 / (x * math.log(10)))
tan: Made = unary("tan", "The tangent of an angle in radians.",
    "y = tan x;  y' = 1 / cos^2 x.", lambda op, x: op.xp.tan(x), lambda op, x: 1 / op.xp.square(op.xp.cos(x)))
atan: Made = unary("atan", "The angle, within pi / 2 of 0, whose tangent is input.",
    "y = atan x;  y' = 1 / (1 + x^2).", lambda op, x: op.xp.arctan(x), lambda op, x: 1 / (1 + x * x))
asin: Made = unary("asin", "The angle, within pi / 2 of 0, whose sine is input; nan beyond 1.",
    "y = asin x;  y' = 1 / sqrt(1 - x^2).", lambda op, x: op.xp.arcsin(x), lambda op, x: 1 / _other_leg(op, x))
acos: Made = unary("acos", "The angle, from 0 to pi, whose cosine is input; nan beyond 1.",
    "y = acos x;  y' = -1 / sqrt(1 - x^2).", lambda op, x: op.xp.arccos(x), lambda op, x: -1 / _other_leg(op, x))
sinh: Made = unary("sinh", "The hyperbolic sine; infinite in FP16 from 11.79 on.",
    "y = sinh x;  y' = cosh x.", lambda op, x: op.xp.sinh(x), lambda op, x: op.xp.cosh(x))
cosh: Made = unary("cosh", "The hyperbolic cosine; infinite in FP16 from 11.79 on.",
    "y = cosh x;  y' = sinh x.", lambda op, x: op.xp.cosh(x), lambda op, x: op.xp.sinh(x))
softsign: Made = unary("softsign", "input / (1 + |input|); nan at infinities, as in PyTorch.",
    "y = x / d, d = 1 + |x|;  y' = 1 / d^2.", lambda op, x: x / (1 + abs(x)), _slope_of_softsign)
hardsigmoid: Made = unary("hardsigmoid", "relu6(input + 3) / 6.",
    "y = min(max(x + 3, 0), 6) / 6;  y' = 1 / 6 strictly within 3 of 0, else 0.",
    lambda op, x: op.xp.clip(x + 3, 0, 6) / 6, lambda op, x: (op.xp.abs(x) < 3) * x.dtype.type(1 / 6), check=floating)
floor: Made = _steps("floor", "floor", "The largest whole number up to input. Its gradient is 0.")
ceil: Made = _steps("ceil", "ceil", "The smallest whole number from input on. Its gradient is 0.")
round: Made = _steps("round", "rint", "The whole number next to input, even if two are as near. Its gradient is 0.")
trunc: Made = _steps("trunc", "trunc", "input without what is behind the point. Its gradient is 0.")
silu: Made = unary("silu", "input * sigmoid(input).",
    "y = x s, s = sigmoid(x);  y' = s + y (1 - s).", lambda op, x: x * sigmoid_of(op, x), _silu_slope, check=floating)
sign: Made = unary("sign", "-1, 0 or 1 as input is negative, 0 or positive; 0 for nan. Its gradient is 0.",
    "y = -1, 0 or 1 as x is negative, 0 (or nan) or positive;  dx = 0.",
    lambda op, x: op.device.select(op.xp.equal(x, x), op.xp.sign(x)), lambda op, x: op.xp.zeros_like(x), check=_numbers)
# fmt: on
