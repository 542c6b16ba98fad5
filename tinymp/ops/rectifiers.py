"""relu6, hardswish, mish, prelu, glu: activations, computed in FP32 like those of activation.py (MPT section 3.3)."""

from __future__ import annotations

from ..arguments import axis, floating, refuse
from ..autograd import Array
from ..backend.kernels import Kernels
from ..tensor import Tensor
from .activation import hardtanh, relu, sigmoid, sigmoid_of
from .pointwise import FromInput, add, clamp, mul
from .shape import chunk, reshape

KERNELS = Kernels(__file__)


class Hardswish(FromInput):
    """y = x min(max(x + 3, 0), 6) / 6 (Howard et al., 2019);  y' = 0 up to -3, 1 from 3 on, x / 3 + 1 / 2 between."""

    cuda = KERNELS, "hardswish"

    def f(self, x: Array) -> Array:
        return self.xp.clip(x, -3, self.xp.inf) * (self.xp.clip(x + 3, 0, 6) / 6)  # -3, not -inf, times 0

    def df(self, x: Array) -> Array:
        inside, half = self.xp.clip(x, -3, 3), x.dtype.type(0.5)
        return (inside / 3 + half) * (inside > -3) - half * (inside >= 3)  # 3/2 - 1/2 from 3 on


class Mish(FromInput):
    """y = x tanh(s) with s = ln(1 + e^x) (Misra, 2019);  y' = tanh s + x sigmoid(x) (1 - tanh^2 s)."""

    cuda = KERNELS, "mish"

    def f(self, x: Array) -> Array:
        return x * self._gate(x)

    def df(self, x: Array) -> Array:
        gate = self._gate(x)
        return gate + x * sigmoid_of(self, x) * (1 - gate * gate)

    def _gate(self, x: Array) -> Array:
        """tanh ln(1 + e^x) = (n - 1) / (n + 1) with n = (1 + e^x)^2; from x = 20 on it is 1 in FP32."""
        e = self.xp.exp(self.xp.minimum(x, 20))
        n = e * (e + 2)
        return n / (n + 2)


# ---------------------------------------------------------------------------------------------------------- functions


def relu6(input: Tensor, inplace: bool = False) -> Tensor:
    """input limited to [0, 6]; its gradient at 0 and 6 is 0."""
    refuse("relu6", inplace=inplace)
    return hardtanh(floating("relu6", "input", input), 0.0, 6.0)


def hardswish(input: Tensor, inplace: bool = False) -> Tensor:
    """input * relu6(input + 3) / 6."""
    refuse("hardswish", inplace=inplace)
    return Hardswish.apply(floating("hardswish", "input", input))


def mish(input: Tensor, inplace: bool = False) -> Tensor:
    """input * tanh(softplus(input))."""
    refuse("mish", inplace=inplace)
    return Mish.apply(floating("mish", "input", input))


def prelu(input: Tensor, weight: Tensor) -> Tensor:
    """input where positive, else weight * input: one weight, or one for each channel (axis 1).

    ValueError for other numbers of weights.
    """
    x, w = floating("prelu", "input", input), floating("prelu", "weight", weight)
    channels = x.shape[1] if x.ndim > 1 else 1
    if w.ndim > 1 or w.numel() not in (1, channels):
        raise ValueError(f"prelu: expected `weight` to have 1 element or {channels}, got shape {w.shape}")
    w = reshape(w, (1, -1, *[1] * (x.ndim - 2)) if w.numel() > 1 else ())
    return add(relu(x), mul(w, clamp(x, max=0)))  # one of the two is 0, so the sum rounds nothing


def glu(input: Tensor, dim: int = -1) -> Tensor:
    """a * sigmoid(b) for the halves a, b of input along dim (Dauphin et al., 2017). ValueError for an odd length."""
    x = floating("glu", "input", input)
    d = axis("glu", dim, x.ndim)
    if x.shape[d] % 2:
        raise ValueError(f"glu: expected an even length along axis {d}, got input of shape {x.shape}")
    a, b = chunk(x, 2, d)
    return mul(a, sigmoid(b))
