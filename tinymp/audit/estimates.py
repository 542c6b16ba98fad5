"""What the audit computes about arrays beside the training: signed errors, cancellation, extremes. Nothing here is part
of it. Of large arrays a sample is looked at.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ..backend import of, to_cpu

Array = Any
SAMPLE = 1 << 15  # of a larger array, about so many numbers are looked at: evenly spaced runs of
RUN = 32  # neighbours, as many as share a scale in a block of MXFP8
FEW = 1 << 13  # for errors, that all roundings are looked at for: so many
SUMS = 64  # of a place's sums, at most so many are looked at, and as many as have
TERMS = 1 << 16  # terms, together
MOST_BITS = 24.0  # what an FP32 accumulator has to lose


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
    """Some numbers of x and y, which have one shape."""
    if x.size <= FEW:
        return x, y
    if x.flags.c_contiguous and y.flags.c_contiguous:
        return sample(x, FEW), sample(y, FEW)
    axis = x.shape.index(max(x.shape))  # the numbers' order in memory may differ, and to change it takes longer
    at = (*[slice(None)] * axis, slice(None, None, -(-x.size // FEW)))
    return x[at], y[at]


def cancelled(terms: Array) -> tuple[int, float]:
    """For sums of terms (n, k): how many have terms other than 0, and how many bits cancel in them, all together.

    A sum loses log2(sum |t| / |sum t|) bits: by so much an error of one accumulator's rounding grows, relative to the
    result (the condition number; Higham 2002, Accuracy and Stability of Numerical Algorithms, 4.2). At most 24.
    """
    xp, terms = of(terms).xp, terms.astype(np.float64)  # rounds: an estimate of the audit, in FP64
    sums, sizes = abs(terms.sum(axis=1)), abs(terms).sum(axis=1)  # rounds: an estimate of the audit, in FP64
    known = (sizes > 0) & (sizes < math.inf)
    with np.errstate(divide="ignore", invalid="ignore"):
        bits = xp.where(known, xp.minimum(xp.log2(sizes / sums), MOST_BITS), 0.0)
    n, total = to_cpu(xp.stack([known.sum(), bits.sum()])).tolist()  # rounds: never, whole numbers are counted
    return int(n), total


def terms_of_sums(x: Array, axis: int | tuple[int, ...] | None) -> Array:
    """The terms of some of the sums of x over axis: (n, k)."""
    axes = range(x.ndim) if axis is None else [axis] if isinstance(axis, int) else axis
    reduced = {i % x.ndim for i in axes}
    if not x.size:
        return x.reshape(0, 1)
    kept = [i for i in range(x.ndim) if i not in reduced]
    length = max(math.prod(x.shape[i] for i in reduced), 1)
    x = x.transpose(*kept, *sorted(reduced))
    at = np.unravel_index(_spaced(x.size // length, length), x.shape[: len(kept)]) if kept else (None,)
    return x[tuple(of(x).xp.asarray(i) if i is not None else i for i in at)].reshape(-1, length)


def terms_of_products(a: Array, b: Array) -> Array:
    """The terms of some of the numbers of a @ b, (..., m, k) by (..., k, n), of one matrix each: (n, k)."""
    if not a.size or not b.size:  # no sequence of a batch reaches this step, for example
        return a.reshape(-1)[:0, None]
    while a.ndim > 2:
        a = a[a.shape[0] // 2]
    while b.ndim > 2:
        b = b[b.shape[0] // 2]
    xp, (m, k), n = of(a).xp, a.shape, b.shape[1]
    at = _spaced(m * n, k)
    rows, columns = (xp.asarray(i) for i in (at // n, at % n))
    return a[rows].astype(np.float64) * b[:, columns].T.astype(np.float64)  # rounds: an estimate of the audit, in FP64


def _spaced(n: int, length: int) -> np.ndarray:
    """Which of n sums of so many terms are looked at."""
    wanted = max(min(n, SUMS, TERMS // max(length, 1)), 1)
    return (np.arange(wanted) * n + n // 2) // wanted  # in the middle of equal parts


def extremes(x: Array) -> tuple[float, float, float]:
    """Of a stored array: its largest magnitude, the same of its median channel, and the root mean square of a sample.

    The channels' axis is the second one of four or more (N, C, H, W), else the last one. An infinity or NaN shows in
    the first number, wherever it is; the other two are of what is finite.
    """
    device = of(x)
    xp, sign = device.xp, (1 << 8 * x.itemsize - 1) - 1
    bits = device.bits(x) & sign  # of |x|, in the order of |x|: integers are compared faster
    axis = 1 if x.ndim > 3 else x.ndim - 1
    largest = bits.max(axis=tuple(i for i in range(x.ndim) if i != axis)) if x.ndim > 1 else bits
    by_channel = to_cpu(largest).view(x.dtype).astype(np.float64)  # rounds: an estimate of the audit, in FP64
    finite = by_channel[by_channel < math.inf]
    in_memory = sorted(range(x.ndim), key=lambda axis: -abs(x.strides[axis]))
    some = sample(x.transpose(in_memory)).astype(np.float64)  # rounds: an estimate of the audit, in FP64
    some = xp.where(abs(some) < math.inf, some, 0.0)
    mean_square = float((some * some).sum()) / max(some.size, 1)  # rounds: an estimate of the audit, in FP64
    return float(by_channel.max()), float(np.median(finite)) if finite.size else 0.0, math.sqrt(mean_square)
