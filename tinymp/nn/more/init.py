"""Initialisers that fewer networks need: truncated normal, identities, orthogonal matrices."""

from __future__ import annotations

import math

import numpy as np

from ...arguments import constant, count, name_all, number
from ...dtypes import float64
from ..init import T, check, random_of, write

__all__ = ["dirac_", "eye_", "orthogonal_", "trunc_normal_"]


def trunc_normal_(
    tensor: T,
    mean: float = 0.0,
    std: float = 1.0,
    a: float = -2.0,
    b: float = 2.0,
    generator: np.random.Generator | None = None,
) -> T:
    """Normal(mean, std), conditioned on a <= value <= b, also far from the mean. ValueError unless std > 0 and a < b.

    Rejection from a uniform proposal: z is kept with probability exp((p^2 - z^2) / 2), where p is the point of
    [a, b] closest to the mean, all in units of std. The proposal ends where that is below e^-37 < 2^-53: one in 37 or
    more is kept.
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


def eye_(tensor: T) -> T:
    """The identity matrix. ValueError unless the tensor is a matrix."""
    shape = check("eye_", tensor)
    if len(shape) != 2:
        raise ValueError(f"eye_: expected a matrix, got shape {shape}")
    return write("eye_", tensor, np.eye(*shape))


def dirac_(tensor: T, groups: int = 1) -> T:
    """A convolution weight (out, in, *kernel) that passes channel i of each group on to output i of the group.

    ValueError unless the tensor has 3, 4 or 5 axes and `groups` divides out.
    """
    shape = check("dirac_", tensor, least=3)
    groups = count("dirac_", "groups", groups)
    if len(shape) > 5 or shape[0] % groups:
        raise ValueError(f"dirac_: expected 3 to 5 axes and groups that divide {shape[0]}, got {shape} and {groups}")
    value, per_group, centre = np.zeros(shape), shape[0] // groups, [k // 2 for k in shape[2:]]
    for row in range(shape[0] if value.size else 0):
        if row % per_group < shape[1]:
            at = (row, row % per_group, *centre)
            value[at] = 1
    return write("dirac_", tensor, value)


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


name_all(globals())
