"""Activations: read storage, compute in FP32, round once (MPT section 3.3, point-wise operations)."""

from __future__ import annotations

import math

from ..arguments import choice, floating, number
from ..autograd import Array, Op
from ..precision import POINTWISE, widen
from ..tensor import Tensor
from .unary import Unary


class ReLU(Op):
    """y = x where x > 0, else 0, nan stays nan;  dx = dy where y > 0, else 0 (also at 0). Nothing is rounded."""

    kind = POINTWISE
    name = "relu"

    def forward(self, x: Array) -> Array:
        y = self.device.select(~(widen(x) <= 0), x)
        self.save(y)
        return y

    def backward(self, dy: Array) -> Array:
        (y,) = self.saved  # y >= 0: its bits are 0 only where y is
        return self.device.select(self.device.bits(y) != 0, dy)


class LeakyReLU(Unary):
    """y = x where x > 0, else slope x."""

    name = "leaky_relu"

    def f(self, x: Array, *, slope: float) -> Array:
        if 0 < slope <= 1:
            return self.xp.maximum(x, slope * x)  # the same, twice as fast; not for slope 0, where inf * 0 is nan
        return self.device.where(x > 0, x, slope * x)

    def df(self, x: Array, *, slope: float) -> Array:
        return self.device.where(x > 0, x.dtype.type(1), x.dtype.type(slope))


class GELU(Unary):
    """y = x Phi(x), Phi the normal distribution function (Hendrycks & Gimpel, 2016);  y' = Phi(x) + x phi(x)."""

    def f(self, x: Array) -> Array:
        return x * self._phi(x)

    def df(self, x: Array) -> Array:
        return self._phi(x) + x * self.xp.exp(-0.5 * x * x) * (1 / math.sqrt(2 * math.pi))

    def _phi(self, x: Array) -> Array:
        """Phi; erfc, not 1 + erf: no cancellation in the left tail."""
        return 0.5 * self.device.erfc(x * -math.sqrt(0.5))


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


# ---------------------------------------------------------------------------------------------------------- functions


def relu(input: Tensor) -> Tensor:
    """max(input, 0); its gradient at 0 is 0."""
    return ReLU.apply(floating("relu", "input", input))


def leaky_relu(input: Tensor, negative_slope: float = 0.01) -> Tensor:
    """input where positive, else negative_slope * input."""
    slope = number("leaky_relu", "negative_slope", negative_slope)
    return LeakyReLU.apply(floating("leaky_relu", "input", input), slope=slope)


def gelu(input: Tensor, approximate: str = "none") -> Tensor:
    """input times the normal distribution function of input; approximate="tanh" for the tanh form."""
    op = GELU if choice("gelu", "approximate", approximate, ("none", "tanh")) == "none" else TanhGELU
    return op.apply(floating("gelu", "input", input))
