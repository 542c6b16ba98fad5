"""Histograms of exponents on the GPU: how much of a tensor lies beyond the range of FP16 (MPT 3.2, figure 3)."""

from __future__ import annotations

from typing import Any

from .kernels import Kernels
from .layout import THREADS, blocks, compact

Array = Any
KERNELS = Kernels(__file__)

# The bins of `exponents`, the same for FP16 and FP32: zeros, the exponents from LOWEST to HIGHEST, and what has none
LOWEST, HIGHEST = -149, 127
ZEROS, INFINITIES, NANS = 0, 278, 279
BINS = 280  # histogram.cu has the same number


def bin_of(exponent: int) -> int:
    """The bin of the values x with 2^exponent <= |x| < 2^(exponent + 1)."""
    if not LOWEST <= exponent <= HIGHEST:
        raise ValueError(f"bin_of: expected an exponent from {LOWEST} to {HIGHEST}, got {exponent}")
    return exponent - LOWEST + 1


def exponents(x: Array) -> Array:
    """How many values of x (FP16 or FP32, on the GPU) have each exponent floor(log2 |x|): int64, (BINS,), exact.

    Entry ZEROS counts +0 and -0, entry `bin_of(e)` the finite values with exponent e, subnormal ones too (FP32 has
    e >= -149, FP16 e >= -24), entries INFINITIES and NANS the rest. The entries add up to x.size. Nothing waits for the
    device.
    """
    import cupy as xp

    counts = xp.zeros(BINS, "uint64")
    if x.size:
        x = compact(xp, x)
        KERNELS.launch("exponents", x.dtype, blocks(x.nbytes, 64 * THREADS, 2048), THREADS, x, counts, x.size)
    return counts.view("int64")
