"""Activations: read storage, compute in FP32, round once (MPT section 3.3, point-wise operations)."""

from __future__ import annotations

from ..arguments import floating, number
from ..autograd import Array, Op
from ..precision import POINTWISE, widen
from ..tensor import Tensor
from .unary import Unary


class ReLU(Op):
    """y = x where x > 0, else 0, nan stays nan;  dx = dy where y > 0, else 0 (also at 0). Nothing is rounded."""

    kind = POINTWISE
    name = "relu"

    def forward(self, x: Array) -> Array:
        y = self.device.map(lambda x: self.device.select(~(widen(x) <= 0), x), x)
        self.save(y)
        return y

    def backward(self, dy: Array) -> Array:
        # y >= 0: its bits are 0 only where y is
        return self.device.map(lambda dy, y: self.device.select(self.device.bits(y) != 0, dy), dy, *self.saved)


class LeakyReLU(Unary):
    """y = x where x > 0, else slope x."""

    name = "leaky_relu"

    def f(self, x: Array, *, slope: float, convex: bool) -> Array:
        # convex: 0 < slope <= 1. The same, twice as fast; not for slope 0, where inf * 0 is nan
        return self.xp.maximum(x, slope * x) if convex else self.device.where(x > 0, x, slope * x)

    def df(self, x: Array, *, slope: float, convex: bool) -> Array:
        one = x.dtype.type(1)
        return self.device.where(x > 0, one, slope * one)


# ---------------------------------------------------------------------------------------------------------- functions


def relu(input: Tensor) -> Tensor:
    """max(input, 0); its gradient at 0 is 0."""
    return ReLU.apply(floating("relu", "input", input))


def leaky_relu(input: Tensor, negative_slope: float = 0.01) -> Tensor:
    """input where positive, else negative_slope * input."""
    slope = number("leaky_relu", "negative_slope", negative_slope)
    return LeakyReLU.apply(floating("leaky_relu", "input", input), slope=slope, convex=0 < slope <= 1)
