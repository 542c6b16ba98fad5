"""Reductions on the GPU: FP16 or FP32 is read once, and accumulated in FP32 (MPT section 3.3).

The order of a sum depends on the shape alone: results repeat bit for bit.
"""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from .kernels import Kernels
from .layout import ENOUGH, THREADS, ceil_div, compact, memory_order, power_of_two, split

Array = Any
KERNELS = Kernels(__file__)

_F16, _F32 = np.dtype(np.float16), np.dtype(np.float32)
_HOW = {"sum": 0, "mean": 0, "max": 1, "min": 2}


def reduce(x: Array, axis: int | tuple[int, ...], how: str) -> Array:
    """The sum, mean, max or min of x (FP16 or FP32) over axis, in FP32; reduced axes stay with length 1.

    Max and min are nan where a value is. Over nothing, sum is 0 and mean nan; ValueError for max and min.
    """
    import cupy as xp

    axes = _axes(x, axis)
    count = prod(x.shape[a] for a in axes)
    shape = [1 if a in axes else n for a, n in enumerate(x.shape)]
    if count == 0 and how in ("max", "min"):
        raise ValueError(f"reduce: {how} of no elements, x is {x.shape} and the axes are {axes}")
    if x.size == 0:
        return xp.full(shape, float("nan") if how == "mean" else 0.0, _F32)
    if count == 1:
        return x.astype(_F32)  # rounds: never, FP16 -> FP32 is exact
    x = compact(xp, x)
    runs = split(x, axes)
    if len(runs) > 4:  # more than the kernels handle: bring the kept axes to the front
        order = [*(a for a in range(x.ndim) if a not in axes), *axes]
        x = xp.ascontiguousarray(x.transpose(order))
        runs = split(x, tuple(range(x.ndim - len(axes), x.ndim)))
    else:
        fast = memory_order(x)
        order = [a for a in range(x.ndim) if a not in fast] + fast
    y = xp.empty([shape[a] for a in order], _F32)  # the kept axes as they lie in x
    lengths = [1] * (4 - len(runs)) + [run.length for run in runs]
    (_rows if runs[-1].reduced else _columns)(xp, x, y, how, lengths, float(count) if how == "mean" else 1.0)
    return y.transpose(np.argsort(order).tolist())


def _axes(x: Array, axis: int | tuple[int, ...]) -> tuple[int, ...]:
    return tuple(a % x.ndim for a in ((axis,) if isinstance(axis, int) else axis)) if x.ndim else ()


def _rows(xp: Any, x: Array, y: Array, how: str, lengths: list[int], divisor: float) -> None:
    """y from x, whose memory is K0 R0 K1 R1 long: neighbours belong to the same sum."""
    k0, r0, k1, r1 = lengths
    outputs, width = k0 * k1, _width(x, r1)
    items = r0 * r1 // width
    lanes = min(32, power_of_two(items))  # threads per output
    if items > 8 * 32 or (items >= THREADS and 32 * outputs < ENOUGH * THREADS):
        lanes = THREADS
    grid = ceil_div(outputs, THREADS // lanes)
    parts = max(1, min(ENOUGH // grid, items // (4 * THREADS))) if lanes == THREADS else 1
    _launch(xp, "reduce_rows", x, y, how, grid, parts, (outputs, r0, k1, r1, lanes, width), divisor)


def _columns(xp: Any, x: Array, y: Array, how: str, lengths: list[int], divisor: float) -> None:
    """y from x, whose memory is R0 K0 R1 K1 long: neighbours belong to different sums."""
    r0, k0, r1, k1 = lengths
    outputs, width, items = k0 * k1, _width(x, k1), r0 * r1
    across = min(power_of_two(outputs // width), max(32, THREADS // power_of_two(ceil_div(items, 4))))
    grid = ceil_div(outputs, width * across)
    parts = max(1, min(ENOUGH // grid, items * across // (4 * THREADS)))
    _launch(xp, "reduce_columns", x, y, how, grid, parts, (outputs, k0, r0, r1, k1, across, width), divisor)


def _launch(
    xp: Any, kernel: str, x: Array, y: Array, how: str, grid: int, parts: int, sizes: tuple[int, ...], divisor: float
) -> None:
    """Reduce in one step, or few long sums in two: `parts` partial results for each output, which are then combined."""
    code, outputs = _HOW[how], sizes[0]
    if parts == 1:
        KERNELS.launch(kernel, x.dtype, grid, THREADS, x, y, code, *sizes, divisor)
        return
    partial = xp.empty((outputs, parts), _F32)
    KERNELS.launch(kernel, x.dtype, (grid, parts), THREADS, x, partial, code, *sizes, 1.0)
    _rows(xp, partial, y, how, [1, 1, outputs, parts], divisor)


def _width(x: Array, neighbours: int) -> int:
    """How many elements a thread reads at a time: 16 bytes of them where they are aligned, else 1."""
    pack = 16 // x.itemsize
    return pack if neighbours % pack == 0 and x.data.ptr % 16 == 0 else 1
