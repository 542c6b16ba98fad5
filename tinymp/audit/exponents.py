"""Histograms of exponents: how much of a tensor lies beyond the range of FP16 (MPT 3.2, figure 3)."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any, NamedTuple

import numpy as np

from .. import backend
from ..dtypes import HALVES, NAMES
from .numbers import power
from .sampling import BLUE, RED, SKY

Array = Any

# The bins of `exponents`, the same for FP16 and FP32: zeros, the exponents from LOWEST to HIGHEST, and what has none
LOWEST, HIGHEST = -149, 127
ZEROS, INFINITIES, NANS = 0, 278, 279
BINS = 280
BLOCK = 1 << 16  # elements: what is computed of a block stays in a core's L2 cache
FIELDS = {"float16": (10, 31), "bfloat16": (7, 255), "float32": (23, 255)}  # where the exponent is: shift and mask


def bin_of(exponent: int) -> int:
    """The bin of the values x with 2^exponent <= |x| < 2^(exponent + 1)."""
    if not LOWEST <= exponent <= HIGHEST:
        raise ValueError(f"bin_of: expected an exponent from {LOWEST} to {HIGHEST}, got {exponent}")
    return exponent - LOWEST + 1


def exponents(x: Array) -> np.ndarray:
    """Counts of the values of x by their exponent floor(log2 |x|): (BINS,), int64, exact.

    Entry ZEROS counts +0 and -0, entry `bin_of(e)` the finite values with exponent e, subnormal ones too, entries
    INFINITIES and NANS the rest. FP64's exponents beyond FP32's count in the first or last bin. An array on a GPU is
    counted on the host.
    """
    x, counts = backend.to_cpu(x), np.zeros(BINS, np.int64)
    flat = x.ravel(order="K")  # a view wherever x has no gaps
    for i in range(0, flat.size, BLOCK):
        block = flat[i : i + BLOCK]
        if block.dtype.name in FIELDS:  # normal numbers are counted by their exponent's bits
            shift, mask = FIELDS[block.dtype.name]
            bits = block.view(f"u{block.itemsize}")
            field = bits >> shift & mask
            fields = np.bincount(field, minlength=mask + 1)
            normal = bin_of(-(mask // 2) + 1)
            counts[normal : normal + mask - 1] += fields[1:mask]
            zeros = block.size - np.count_nonzero(bits << 1 != 0)  # NumPy counts booleans faster than numbers
            if fields[0] + fields[mask] == zeros:
                counts[ZEROS] += zeros
                continue
            block = block[(field == 0) | (field == mask)]
        _add(block.astype(np.float32) if block.dtype in HALVES else block, counts)  # rounds: never, exact
    return counts


def _add(x: Array, counts: Array) -> None:
    nonzero = x[x != 0]
    finite = nonzero[np.isfinite(nonzero)]
    nans = np.count_nonzero(np.isnan(nonzero))
    counts[ZEROS] += x.size - nonzero.size
    counts[NANS] += nans
    counts[INFINITIES] += nonzero.size - finite.size - nans
    places = np.clip(np.frexp(finite)[1] - 1, LOWEST, HIGHEST) + bin_of(0)
    counts += np.bincount(places, minlength=BINS)


LIMITS = (-24, "smallest subnormal"), (-14, "smallest normal"), (16, "infinite")  # exponents where FP16 changes
FINITE = slice(bin_of(LOWEST), bin_of(HIGHEST) + 1)
NONE = np.zeros(BINS, "int64")


class Lost(NamedTuple):
    """The shares of the nonzero values that FP16 would lose at a scale; see `Exponents.share_lost`."""

    zero: float
    subnormal: float
    overflow: float


class Histogram:
    """The exponents of one tensor under one policy, as the values are without a loss scale.

    counts    in the bins of `exponents`; NaN and zeros as they are
    infinite  {loss scale: how many values were infinite at it}
    scale     the last loss scale
    largest   the largest finite magnitude, divided by the scale
    """

    def __init__(self, role: str, name: str, dtype: np.dtype, policy: str, layer: str, normalisation: bool) -> None:
        self.role, self.name, self.dtype, self.policy = role, name, dtype, policy
        self.layer, self.normalisation = layer, normalisation
        self.counts, self.infinite = NONE.copy(), Counter[float]()
        self.scale, self.largest = 1.0, 0.0

    def add(self, x: Any, underflows: np.ndarray, scale: float) -> None:
        """Count x. `underflows`: the exponents, before rounding, of those of its zeros that were not 0 then."""
        x = np.asarray(backend.to_cpu(x))  # NumPy's results of arrays without axes are scalars
        counts = exponents(x) + underflows
        counts[ZEROS] -= sum(underflows.tolist())
        places = np.flatnonzero(counts[FINITE])
        if places.size and math.ldexp(2.0, int(places[-1]) + LOWEST) / scale > self.largest:
            bits = x.view(f"u{x.itemsize}") & (1 << 8 * x.itemsize - 1) - 1  # of |x|, in the order of |x|
            if counts[INFINITIES] or counts[NANS]:
                bits = np.where(np.isfinite(x), bits, 0)
            self.largest = max(self.largest, float(bits.max().view(x.dtype)) / scale)
        if counts[INFINITIES]:
            self.infinite[scale] += int(counts[INFINITIES])
            counts[INFINITIES] = 0
        self.scale = scale
        self.counts += shifted(counts, 1 / scale)

    def as_dict(self) -> dict[str, Any]:
        """`counts` from the exponent `lowest` on, as the values are at the last loss scale."""
        counts = shifted(self.counts, self.scale)
        used = np.flatnonzero(counts[FINITE])
        first, end = (int(used[0]), int(used[-1]) + 1) if used.size else (0, 0)
        own = {name: getattr(self, name) for name in ("name", "layer", "role", "policy", "scale", "largest")}
        own |= {"dtype": NAMES[self.dtype], "lowest": first + LOWEST, "counts": counts[FINITE][first:end].tolist()}
        return own | {"zeros": int(counts[ZEROS]), "infinite": self.infinite.total(), "nan": int(counts[NANS])}


def shifted(counts: np.ndarray, factor: float) -> np.ndarray:
    """The counts of values multiplied by a factor: exactly for a power of two, else by the one next to it."""
    k = round(math.log2(factor))
    if not k:
        return counts
    moved = counts.copy()
    moved[FINITE] = 0
    places = np.flatnonzero(counts[FINITE])
    # rounds: never, whole numbers are counted
    np.add.at(moved, np.clip(places + k, 0, HIGHEST - LOWEST) + bin_of(LOWEST), counts[FINITE][places])
    return moved


def draw(axes: Any, tensors: list[Histogram], title: str) -> None:
    """Bars: the share of the tensors' values per exponent at the last loss scale, and where FP16 ends."""
    scale = tensors[-1].scale
    counts = shifted(total(tensors), scale)
    shares = 100 * counts / max(int(counts[ZEROS]) + nonzero(tensors), 1)
    used = (np.flatnonzero(counts[FINITE]) + LOWEST).tolist()
    low, high = min([-29, *used]), max([19, *used])  # the exponents that occur, and FP16's
    colors = ["0.6"] * (-25 - low) + [SKY] * 11 + [BLUE] * 30 + [RED] * (high - 15)
    axes.bar([e + 0.5 for e in range(low, high + 1)], shares[bin_of(low) : bin_of(high) + 1], width=0.85, color=colors)
    axes.axvspan(LOWEST, -25, color="0.92", zorder=0)  # to the left edge, also of a wider picture
    top = 1.3 * max(shares[FINITE].max(), 0.1)
    for at, text in LIMITS:
        axes.axvline(at, color="0.3", linestyle="--", linewidth=0.8, zorder=0)
        axes.text(at + 0.3, top * 0.98, text.replace(" ", "\n"), fontsize=7, color="0.3", va="top")
    axes.set(
        xlim=(max(low, -60) - 1, high + 1), ylim=(0, top), ylabel="share of all values, %",
        xlabel=f"exponent, floor(log2 |{f'{power(scale)} ' if scale != 1 else ''}x|)",
        title=f"{title}: {shares[ZEROS]:.1f} % are 0",
    )  # fmt: skip


def lost_of(tensors: list[Histogram], scale: float) -> Lost:
    """The shares that FP16 would lose of these tensors' values at a scale; see `Exponents.share_lost`."""
    counts = shifted(total(tensors), scale)
    infinite = sum(n for t in tensors for at, n in t.infinite.items() if at <= scale)
    values = max(between(counts, LOWEST, HIGHEST) + infinite, 1)
    lost = between(counts, LOWEST, -26), between(counts, -25, -15), between(counts, 16, HIGHEST) + infinite
    return Lost(*(n / values for n in lost))


def nonzero(tensors: list[Histogram]) -> int:
    """The number of values of these tensors that are not 0."""
    return between(total(tensors), LOWEST, HIGHEST) + sum(t.infinite.total() for t in tensors)


def total(tensors: list[Histogram]) -> np.ndarray:
    return sum((t.counts for t in tensors), NONE)


def between(counts: np.ndarray, low: int, high: int) -> int:
    return sum(counts[bin_of(low) : bin_of(high) + 1].tolist())
