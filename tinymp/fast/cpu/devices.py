"""FP16 casts by NumKong, and selections by bits: NumPy's results, ten times as fast.

Measured: NumPy casts FP16 at 0.7 Gelem/s, NumKong at 9 to 15.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

from ...backend.devices import SHORT, Array, Device
from ...backend.extras import hint
from ...fast_path import fast_path

numkong: Any = None  # without it NumPy casts: the same bits, a tenth of the speed
without_numkong = f"numkong is not installed: {hint('fast')}"
try:
    import numkong
except ModuleNotFoundError as error:
    if error.name != "numkong":
        raise
except ImportError as error:
    without_numkong = f"numkong is installed, but its import fails ({error})"
    warnings.warn(f"tinymp: FP16 casts are slow: {without_numkong}", RuntimeWarning, stacklevel=2)

# glibc keeps freed memory for reuse, up to the size of the largest array below 32 MiB that was freed so far. A step of
# small arrays gets it back page by page: 2,100 page faults, a fifth of the time of an MNIST CNN in FP16.
np.empty(31 << 20, np.uint8)  # freed at once, never touched
WIDE = 64  # elements: for rows that are not, `numpy.add.at` is faster
_F16, _F32, _F64 = np.dtype(np.float16), np.dtype(np.float32), np.dtype(np.float64)
_NAMES = {_F16: "float16", _F32: "float32", _F64: "float64"} if numkong else {}


@fast_path(Device.cast)
def cast(device: Device, x: Array, dtype: np.dtype) -> Array:
    if x.size < 64 and x.dtype == _F16:
        return x.astype(dtype)  # rounds: never; and cheaper for a handful of values
    # NumKong would take FP64 to FP16 by way of FP32, two roundings, and takes longer for a few values out of order.
    # BF16 is ml_dtypes'
    known = x.dtype in _NAMES and dtype in _NAMES
    if not known or (x.dtype == _F64 and dtype == _F16) or (x.size < 64 and not x.flags.c_contiguous):
        return NotImplemented
    if not x.flags.aligned:  # np.frombuffer(..., offset=1), packed records: NumKong refuses them
        x = x.copy(order="K")
    if x.flags.c_contiguous:
        out = np.empty(x.shape, dtype)
        numkong.astype(x, _NAMES[dtype], out=out)  # rounds: `store` by NumKong: to nearest, ties to even, NumPy's bits
        return out
    # NumKong writes C-contiguous arrays only: give it the axes in their memory order.
    out = np.empty_like(x, dtype=dtype)
    order = sorted(range(x.ndim), key=out.strides.__getitem__, reverse=True)
    x = x.transpose(order)
    if x.strides[-1] != x.itemsize:  # single elements, one by one: to copy them first takes a fifth of the time
        x = np.ascontiguousarray(x)
    numkong.astype(x, _NAMES[dtype], out=out.transpose(order))  # rounds: `store` by NumKong, with NumPy's bits
    return out


@fast_path(Device.isfinite)
def isfinite(device: Device, x: Array) -> bool:
    """An FP16 value is not finite if all five exponent bits are set. Testing the bits takes a fifteenth of the time of
    `numpy.isfinite`, which widens every half (0.1 instead of 1.5 ms for 1.6 million).
    """
    if x.dtype != _F16:
        return NotImplemented
    return bool((x.view(np.uint16) & 0x7C00).max(initial=0) < 0x7C00)


@fast_path(Device.where)
def where(device: Device, mask: Array, x: Array, y: Array) -> Array:
    """Select by bits, without a branch, as in `Device.select`."""
    a, b = device.bits(x), device.bits(y)
    return ((a ^ b) * mask ^ b).view(x.dtype)


@fast_path(Device.scatter_add_rows)
def scatter_add_rows(device: Device, n_rows: int, index: Array, rows: Array) -> Array:
    """For wide rows: add the first row of every index at once, then the second of each, ...: the same order of sums."""
    if rows.size < len(index) * WIDE or not len(index) or rows.dtype == _F16:
        return NotImplemented
    order = np.argsort(index, kind="stable")
    ranked = index[order]
    rank = np.arange(len(index)) - np.searchsorted(ranked, ranked)  # how many equal ones come before it
    if rank.max() >= SHORT:
        return NotImplemented
    out = np.zeros((n_rows, *rows.shape[1:]), rows.dtype)
    of_rank = np.split(order[np.argsort(rank, kind="stable")], np.cumsum(np.bincount(rank))[:-1])
    for some in of_rank:
        out[index[some]] += rows[some]  # rounds: `scatter_add`: row after row, in their dtype
    return out
