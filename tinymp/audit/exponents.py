"""Histograms of exponents: how much of a tensor lies beyond the range of FP16 (MPT 3.2, figure 3)."""

from __future__ import annotations

from typing import Any

import numpy as np

from .. import backend

Array = Any

# The bins of `exponents`, the same for FP16 and FP32: zeros, the exponents from LOWEST to HIGHEST, and what has none
LOWEST, HIGHEST = -149, 127
ZEROS, INFINITIES, NANS = 0, 278, 279
BINS = 280


def bin_of(exponent: int) -> int:
    """The bin of the values x with 2^exponent <= |x| < 2^(exponent + 1)."""
    if not LOWEST <= exponent <= HIGHEST:
        raise ValueError(f"bin_of: expected an exponent from {LOWEST} to {HIGHEST}, got {exponent}")
    return exponent - LOWEST + 1


BLOCK = 1 << 16  # elements: FP32 copies of a few blocks stay in a core's L2 cache
LANES = 8  # counters per bin: with one, equal neighbours would wait for each other's increment
_LANE = np.arange(BLOCK, dtype=np.uint32) % LANES
_LANE_OF_PAIR, _LANE_OF_SINGLE = _LANE[: BLOCK // 2] << 10, _LANE << 8


def exponents(x: Array) -> np.ndarray:
    """How many values of x have each exponent floor(log2 |x|): (BINS,), int64, exact.

    Entry ZEROS counts +0 and -0, entry `bin_of(e)` the finite values with exponent e, subnormal ones too (FP32 has
    e >= -149, FP16 e >= -24), entries INFINITIES and NANS the rest. The entries add up to x.size. FP64's exponents
    beyond FP32's count in the first or last bin. An array on a GPU is counted on the host. ValueError for an array
    without values, on the device "meta".

    Measured on one core, per element: 1.6 ns for FP16, 2.5 where many are subnormal; FP32 2.6, FP64 5 to 7.
    """
    if backend.of(x).name == "meta":
        raise ValueError(
            "exponents: arrays on the device 'meta' have no values; let Exponents listen to a training, with "
            "tinymp.audit()"
        )
    x = backend.to_cpu(x)
    counts = np.zeros(BINS, np.int64)
    wide = x.dtype.kind == "V"  # BF16
    add = _add_singles if wide or x.dtype == np.float32 else _add_halves if x.dtype == np.float16 else _add_any
    flat = x.ravel(order="K")  # a view wherever x has no gaps
    for i in range(0, flat.size, BLOCK):
        block = flat[i : i + BLOCK]
        add(block.astype(np.float32) if wide else block, counts)  # rounds: never, BF16 -> FP32 is exact
    return counts


def _add_halves(x: Array, counts: Array) -> None:
    """Count the exponent fields, two at a time; values with field 0 or 31 are compared with the bounds of the bins."""
    bits = x.view(np.uint16)
    pairs = bits[: x.size & -2].view(np.uint32)
    field, second = pairs >> 10, pairs >> 21
    field &= 31
    second &= 31 << 5
    field |= second
    field |= _LANE_OF_PAIR[: pairs.size]
    both = np.bincount(field, minlength=1024 * LANES).reshape(LANES, 32, 32).sum(0)  # rounds: never, these are counts
    fields = both.sum(0) + both.sum(1)  # rounds: never, whole numbers are counted
    fields[bits[pairs.size * 2 :] >> 10 & 31] += 1
    counts[bin_of(-14) : bin_of(15) + 1] += fields[1:31]
    magnitude = bits & 0x7FFF
    nonzero, above = np.count_nonzero(magnitude), x.size - int(fields[0])
    counts[ZEROS] += x.size - nonzero
    for e in range(-15, -25, -1):
        if above == nonzero:
            break
        n = np.count_nonzero(magnitude >= 1 << e + 24)
        counts[bin_of(e)] += n - above
        above = n
    if fields[31]:
        nans = np.count_nonzero(magnitude > 0x7C00)
        counts[NANS] += nans
        counts[INFINITIES] += fields[31] - nans


def _add_singles(x: Array, counts: Array) -> None:
    """Count the exponent fields; values with field 0 or 255, rare except for zeros, are looked at again."""
    field = x.view(np.uint32) >> 23
    field &= 255
    field |= _LANE_OF_SINGLE[: x.size]
    fields = np.bincount(field, minlength=256 * LANES).reshape(LANES, 256).sum(0)  # rounds: never, these are counts
    counts[bin_of(-126) : bin_of(127) + 1] += fields[1:255]
    zeros = x.size - np.count_nonzero(x != 0)  # NumPy counts booleans three times as fast as floats
    if fields[0] == zeros and not fields[255]:
        counts[ZEROS] += zeros
    else:
        normal = (field & 255) + 1 & 254
        _add_any(x[normal == 0], counts)


def _add_any(x: Array, counts: Array) -> None:
    finite = np.isfinite(x)
    nans = int(np.count_nonzero(np.isnan(x)))
    counts[NANS] += nans
    counts[INFINITIES] += x.size - np.count_nonzero(finite) - nans
    nonzero = x[finite & (x != 0)]
    counts[ZEROS] += np.count_nonzero(finite) - nonzero.size
    places = np.clip(np.frexp(nonzero)[1] - 1, LOWEST, HIGHEST) + bin_of(0)
    counts += np.bincount(places, minlength=BINS)
