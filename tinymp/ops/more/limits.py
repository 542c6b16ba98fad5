"""The ranges of floating dtypes, and the bits of their numbers; the ranges of integers."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from ... import backend
from ...events import quietly


def _info(dtype: np.dtype) -> Any:
    if dtype.kind == "f":
        return np.finfo(dtype)
    import ml_dtypes

    return ml_dtypes.finfo(dtype)


def limits(dtype: np.dtype) -> tuple[float, float]:
    """The smallest normal number of a floating dtype, and its largest."""
    info = _info(dtype)
    return float(info.smallest_normal), float(info.max)


@cache
def patterns(dtype: np.dtype) -> tuple[int, int, int]:
    """Bits of a floating dtype's magnitudes, as integers in the order of their values: the mask that cuts the sign off,
    the smallest normal number, and infinity.
    """
    normal, mask = 1 << _info(dtype).nmant, (1 << 8 * dtype.itemsize - 1) - 1
    return mask, normal, mask + 1 - normal


def in_range(x: Any, dtype: np.dtype) -> Any:
    """Where x, its fraction cut off, is within the range of an integer dtype."""
    low, high = int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)
    if x.dtype.kind in "iub":
        return (x >= low) & (x <= high)
    xp = backend.of(x).xp
    whole = xp.trunc(x)
    # powers of two: exact, or beyond all that x's dtype holds
    return quietly(lambda: xp.isfinite(x) & (whole >= float(low)) & (whole < float(high + 1)))
