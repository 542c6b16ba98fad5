"""Sums of rows by index, in a fixed order: the gradient of every lookup (embedding, gather, x[index])."""

from __future__ import annotations

from math import prod

from ..backend.devices import Array, Device
from ..dtypes import float32
from ..fast_path import fast_path
from .kernels import Kernels
from .layout import THREADS, blocks

KERNELS = Kernels(__file__)


@fast_path(Device.scatter_add_rows)
def scatter_add_rows(device: Device, n_rows: int, index: Array, rows: Array) -> Array:
    """As `Device.scatter_add_rows`, but indices outside [0, n_rows) are left out. NotImplemented for rows in FP16,
    which a study sums, and in FP64.
    """
    import cupy

    if rows.dtype != float32:
        return NotImplemented
    n, width = len(rows), prod(rows.shape[1:])
    out = cupy.empty((n_rows, *rows.shape[1:]), rows.dtype)
    if n == 0 or out.size == 0:
        out.fill(0)
        return out
    rows, index = cupy.ascontiguousarray(rows), cupy.ascontiguousarray(index, "int64")
    order = cupy.argsort(index, kind="stable")
    begin = cupy.searchsorted(index[order], cupy.arange(n_rows + 1))  # what is no index lies before or behind all runs
    packed = width % 4 == 0 and rows.data.ptr % 16 == 0
    grid = blocks(n_rows * (width // 4 if packed else width), THREADS)
    KERNELS.launch("add_rows", rows.dtype, grid, THREADS, rows, order, begin, out, n_rows, width, packed)
    return out
