"""sin, cos and sign: read storage, compute in FP32, round once (MPT section 3.3, point-wise operations)."""

from __future__ import annotations

from ..arguments import floating, refuse, tensor
from ..autograd import Array
from ..backend.kernels import Kernels
from ..tensor import Tensor
from .pointwise import FromInput, numeric

KERNELS = Kernels(__file__)


class Sin(FromInput):
    """y = sin x;  dx = cos x dy."""

    cuda = KERNELS, "sin"

    def f(self, x: Array) -> Array:
        return self.xp.sin(x)

    def df(self, x: Array) -> Array:
        return self.xp.cos(x)


class Cos(FromInput):
    """y = cos x;  dx = -sin x dy."""

    cuda = KERNELS, "cos"

    def f(self, x: Array) -> Array:
        return self.xp.cos(x)

    def df(self, x: Array) -> Array:
        return -self.xp.sin(x)


class Sign(FromInput):
    """y = -1, 0 or 1 as x is negative, 0 (or nan) or positive;  dx = 0."""

    cuda = KERNELS, "sign"

    def f(self, x: Array) -> Array:
        return self.device.select(self.xp.equal(x, x), self.xp.sign(x))

    def df(self, x: Array) -> Array:
        return self.xp.zeros_like(x)


# ---------------------------------------------------------------------------------------------------------- functions


def sin(input: Tensor, *, out: None = None) -> Tensor:
    """The sine of an angle in radians."""
    refuse("sin", out=out)
    return Sin.apply(floating("sin", "input", input))


def cos(input: Tensor, *, out: None = None) -> Tensor:
    """The cosine of an angle in radians."""
    refuse("cos", out=out)
    return Cos.apply(floating("cos", "input", input))


def sign(input: Tensor, *, out: None = None) -> Tensor:
    """-1, 0 or 1 as input is negative, 0 or positive; 0 for nan, as in PyTorch. Its gradient is 0 everywhere."""
    refuse("sign", out=out)
    return Sign.apply(numeric("sign", tensor("sign", "input", input)))
