"""Signed errors, which the audit computes beside the training. Of large arrays a sample is looked at."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ..backend import of, to_cpu

Array = Any
SAMPLE = 1 << 15  # of a larger array, about so many numbers are looked at: evenly spaced runs of
RUN = 32  # neighbours, as many as share a scale in a block of MXFP8
FEW = 1 << 13  # for errors, that all roundings are looked at for: so many


def sample(x: Array, most: int = SAMPLE) -> Array:
    """x, or evenly spaced runs of neighbours: the same places for every array of this size."""
    if x.size <= most:
        return x
    flat = x.reshape(-1)
    rows = flat[: flat.size // RUN * RUN].reshape(-1, RUN)
    return rows[:: -(-len(rows) // (most // RUN))]


def errors(x: Array, y: Array) -> tuple[float, float, float]:
    """Of a sample of x and what it was rounded to: the sums of y - x, |y - x| and |x|, where both are finite."""
    xp = of(x).xp
    before, after = (some.astype(np.float64) for some in _same_places(x, y))  # rounds: an estimate, in FP64
    with np.errstate(invalid="ignore"):
        error = after - before
    error = xp.where(abs(error) < math.inf, error, 0.0)
    sizes = xp.where(abs(before) < math.inf, abs(before), 0.0)
    # rounds: an estimate of the audit, in FP64
    return tuple(to_cpu(xp.stack([error.sum(), abs(error).sum(), sizes.sum()])).tolist())


def _same_places(x: Array, y: Array) -> tuple[Array, Array]:
    if x.size <= FEW:
        return x, y
    if x.flags.c_contiguous and y.flags.c_contiguous:
        return sample(x, FEW), sample(y, FEW)
    axis = x.shape.index(max(x.shape))  # the numbers' order in memory may differ, and to change it takes longer
    at = (*[slice(None)] * axis, slice(None, None, -(-x.size // FEW)))
    return x[at], y[at]
