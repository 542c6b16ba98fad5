"""Initialisers by fan_in and fan_out (Glorot and Bengio, He et al.), truncated normal, identities, orthogonal matrices.

fan_in and fan_out of a weight of shape (out, in, *kernel) are in * prod(kernel) and out * prod(kernel).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from ...arguments import called, choice, constant, floating, number
from ...dtypes import float64
from ...tensor import Tensor
from ..init import T, normal_, random_of, uniform_, write

__all__ = ["calculate_gain", "kaiming_normal_", "kaiming_uniform_", "orthogonal_", "trunc_normal_"]
__all__ += ["xavier_normal_", "xavier_uniform_"]


def check(op: str, tensor: Any, least: int = 0) -> tuple[int, ...]:
    """The shape of a floating Tensor with at least `least` axes."""
    if floating(op, "tensor", tensor).ndim < least:
        raise ValueError(f"{op}: expected `tensor` to have at least {least} axes, got shape {tensor.shape}")
    return tensor.shape


def _fans(op: str, tensor: Tensor) -> tuple[int, int]:
    rows, columns, *kernel = check(op, tensor, least=2)
    return columns * math.prod(kernel), rows * math.prod(kernel)


def xavier_uniform_(tensor: T, gain: float = 1.0, generator: np.random.Generator | None = None) -> T:
    """Uniform on [-r, r) with r = gain sqrt(6 / (fan_in + fan_out)) (Glorot and Bengio, 2010)."""
    gain = number("xavier_uniform_", "gain", gain)
    r = gain * math.sqrt(6 / max(1, sum(_fans("xavier_uniform_", tensor))))
    return uniform_(tensor, -r, r, generator)


def xavier_normal_(tensor: T, gain: float = 1.0, generator: np.random.Generator | None = None) -> T:
    """Normal with standard deviation gain sqrt(2 / (fan_in + fan_out)) (Glorot and Bengio, 2010)."""
    gain = number("xavier_normal_", "gain", gain, 0)
    return normal_(tensor, 0.0, gain * math.sqrt(2 / max(1, sum(_fans("xavier_normal_", tensor)))), generator)


def _kaiming(name: str, says: str, draw: Callable) -> Callable:
    def function(
        tensor: T, a: float = 0, mode: str = "fan_in", nonlinearity: str = "leaky_relu", generator: Any = None
    ) -> T:
        return draw(tensor, _kaiming_std(name, tensor, a, mode, nonlinearity), generator)

    return called(function, name, f"{says} (He et al., 2015). a: the slope of a leaky_relu.", __name__)


def _uniform(tensor: T, std: float, generator: Any) -> T:
    return uniform_(tensor, -math.sqrt(3) * std, math.sqrt(3) * std, generator)


kaiming_uniform_ = _kaiming("kaiming_uniform_", "Uniform on [-r, r) with r = gain sqrt(3 / fan)", _uniform)
kaiming_normal_ = _kaiming(
    "kaiming_normal_",
    "Normal with standard deviation gain / sqrt(fan)",
    lambda tensor, std, generator: normal_(tensor, 0.0, std, generator),
)


def _kaiming_std(op: str, tensor: Tensor, a: float, mode: str, nonlinearity: str) -> float:
    fan_in, fan_out = _fans(op, tensor)
    number(op, "a", a)
    choice(op, "mode", mode, ("fan_in", "fan_out"))
    return calculate_gain(nonlinearity, a) / math.sqrt(max(1, fan_in if mode == "fan_in" else fan_out))


_GAINS = {"tanh": 5 / 3, "relu": math.sqrt(2), "selu": 3 / 4, "sigmoid": 1.0, "linear": 1.0} | {
    f"conv{kind}{n}d": 1.0 for kind in ("", "_transpose") for n in (1, 2, 3)
}


def calculate_gain(nonlinearity: str, param: float | None = None) -> float:
    """The gain that keeps the variance through a nonlinearity, as in PyTorch. param: the slope of a leaky_relu.

    ValueError for an unknown name.
    """
    slope = number("calculate_gain", "param", 0.01 if param is None else param)
    name = choice("calculate_gain", "nonlinearity", nonlinearity, (*_GAINS, "leaky_relu"))
    return math.sqrt(2 / (1 + slope * slope)) if name == "leaky_relu" else _GAINS[name]


def trunc_normal_(
    tensor: T,
    mean: float = 0.0,
    std: float = 1.0,
    a: float = -2.0,
    b: float = 2.0,
    generator: np.random.Generator | None = None,
) -> T:
    """Normal(mean, std), conditioned on a <= value <= b, also far from the mean. ValueError unless std > 0 and a < b.

    Rejection from a uniform proposal: z is kept with probability exp((p^2 - z^2) / 2), p the point of [a, b] closest to
    the mean, in units of std. The proposal ends where that is below e^-37 < 2^-53: one in 37 or more is kept.
    """
    shape, random = check("trunc_normal_", tensor), random_of("trunc_normal_", generator)
    mean, std = number("trunc_normal_", "mean", mean), number("trunc_normal_", "std", std, 0, above=True)
    a, b = (constant("trunc_normal_", name, v, float64) for name, v in (("a", a), ("b", b)))
    if not a < b:
        raise ValueError(f"trunc_normal_: expected a < b, got {a} and {b}")
    low, high = (a - mean) / std, (b - mean) / std
    p = min(max(low, 0.0), high)
    if not p * p < math.inf:
        raise ValueError(f"trunc_normal_: [{a}, {b}] is too far from mean={mean} in units of std={std}")
    reach = 74 / (abs(p) + math.sqrt(p * p + 74))  # the z > 0 with (p + z)^2 - p^2 = 74
    low, high = max(low, p - reach), min(high, p + reach)
    size, found, kept = math.prod(shape), 0, [np.empty(0)]
    while found < size:
        z = random.uniform(low, high, size)
        z = z[random.random(size) < np.exp((p - z) * (p + z) / 2)]
        kept.append(z)
        found += len(z)
    return write("trunc_normal_", tensor, np.clip(mean + std * np.concatenate(kept)[:size].reshape(shape), a, b))


def orthogonal_(tensor: T, gain: float = 1, generator: np.random.Generator | None = None) -> T:
    """A (semi-)orthogonal matrix times gain, uniformly distributed; axes after the first count as columns.

    The Q of a QR decomposition of a normal matrix, with the signs that make R's diagonal positive (Saxe et al., 2013).
    """
    shape, random = check("orthogonal_", tensor, least=2), random_of("orthogonal_", generator)
    gain = number("orthogonal_", "gain", gain)
    rows, columns = shape[0], math.prod(shape[1:])
    normal = random.standard_normal((rows, columns))
    q, r = np.linalg.qr(normal.T if rows < columns else normal)
    q = q * np.copysign(1.0, np.diagonal(r))
    return write("orthogonal_", tensor, gain * (q.T if rows < columns else q).reshape(shape))
