"""Sums of rows by index, in a fixed order: the gradient of every lookup (embedding, gather, x[index])."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from .kernels import Kernels
from .layout import THREADS, blocks

Array = Any
KERNELS = Kernels(__file__)


def scatter_add_rows(n_rows: int, index: Array, rows: Array) -> Array:
    """Zeros (n_rows, ...) with rows[i] added to row index[i], in order of i and in the dtype of rows.

    As `cpu.scatter_add_rows`. Indices outside [0, n_rows) are left out. FP64, which only gradient checks use, is added
    up by CuPy, in no fixed order.
    """
    import cupy

    if rows.dtype == np.float64:
        out = cupy.zeros((n_rows, *rows.shape[1:]), np.float64)
        cupy.add.at(out, index, rows)  # rounds: FP64 for FP64, in no fixed order
        return out
    n, width = len(rows), prod(rows.shape[1:])
    out = cupy.empty((n_rows, *rows.shape[1:]), rows.dtype)
    if n == 0 or out.size == 0:
        out.fill(0)
        return out
    rows, index = cupy.ascontiguousarray(rows), cupy.ascontiguousarray(index, "int64")
    order = cupy.argsort(index, kind="stable")
    begin = cupy.searchsorted(index[order], cupy.arange(n_rows + 1))  # what is no index lies before or behind all runs
    pack = 16 // rows.itemsize
    packed = width % pack == 0 and rows.data.ptr % 16 == 0
    grid = blocks(n_rows * (width // pack if packed else width), THREADS)
    running = rows.dtype == np.float16  # which only a study sums
    KERNELS.launch("add_rows", rows.dtype, grid, THREADS, rows, order, begin, out, n_rows, width, packed, running)
    return out
