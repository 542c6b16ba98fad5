"""Sums of rows by index, deterministic: the gradient of every lookup (embedding, gather, x[index])."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from .kernels import Kernels
from .layout import THREADS, blocks

Array = Any
KERNELS = Kernels(__file__)
_F32 = np.dtype(np.float32)
CHUNK = 32  # rows that one thread adds up, of one index or several


def scatter_add_rows(n_rows: int, index: Array, rows: Array) -> Array:
    """Zeros (n_rows, ...) with rows[i] added to row index[i], in order of i and in the dtype of rows.

    As `cpu.scatter_add_rows`. Indices outside [0, n_rows) are left out. FP64, which only gradient checks use, is added
    up by CuPy, in no fixed order.
    """
    if rows.dtype == np.float64:
        import cupy

        out = cupy.zeros((n_rows, *rows.shape[1:]), np.float64)
        cupy.add.at(out, index, rows)  # rounds: FP64 for FP64, in no fixed order
        return out
    return _sums(n_rows, index, rows, running=rows.dtype == np.float16)


def sum_rows(n_rows: int, index: Array, rows: Array) -> Array:
    """The same sums with FP32 accumulators, rounded once to the dtype of rows."""
    return _sums(n_rows, index, rows, running=False)


def _sums(n_rows: int, index: Array, rows: Array, running: bool) -> Array:
    import cupy

    n, width = len(rows), prod(rows.shape[1:])
    out = cupy.empty((n_rows, *rows.shape[1:]), rows.dtype)
    if n == 0 or out.size == 0:
        out.fill(0)
        return out
    rows, index = cupy.ascontiguousarray(rows), cupy.ascontiguousarray(index, "int64")
    order = cupy.argsort(index, kind="stable")
    chunk = n if running else CHUNK  # an accumulator that is rounded at each step takes all rows itself
    chunks = -(-n // chunk)
    partial = cupy.empty((chunks, 2, width), np.float32)
    bounds = cupy.zeros((n_rows, 2), "int64")
    pack = 16 // rows.itemsize
    packed = width % pack == 0 and rows.data.ptr % 16 == 0
    groups = width // pack if packed else width
    sizes = n_rows, width, chunk, packed
    grid = blocks(chunks * groups, THREADS)
    arrays = rows, index, order, out, partial, bounds
    KERNELS.launch("add_rows", rows.dtype, grid, THREADS, *arrays, n, *sizes, running)
    grid = blocks(n_rows * groups, THREADS)
    KERNELS.launch("add_parts", rows.dtype, grid, THREADS, partial, bounds, out, *sizes)
    return out
