"""Sums by kernels, products of captured steps by cuBLAS; waiting for the device raises what `checks` noted there."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..backend.devices import Array
from ..backend.gpu import Gpu
from ..backend.gpu import call_cublas as by_cupy
from ..fast_path import fast_path
from . import checks, cublas
from .recording import capturing, note_read
from .sums import sums


@fast_path(by_cupy)
def call_cublas(turned: int, *arguments: int) -> None:
    if not capturing():
        return NotImplemented
    return cublas.gemm(turned, *arguments)  # rounds: `gemm` by cuBLAS


@fast_path(Gpu.reduce)
def reduce(device: Gpu, x: Array, axis: Any, how: str) -> Array:
    if how not in ("sum", "mean") or not x.ndim:
        return NotImplemented
    axes = tuple(a % x.ndim for a in ((axis,) if isinstance(axis, int) else axis))
    if (total := sums(device.xp, x, axes)) is None:
        return NotImplemented
    return total if how == "sum" else device.map(lambda total, n: total / n, total, float(device.count(x, axes)))


@fast_path(Gpu.to_numpy)
def to_numpy(device: Gpu, x: Array) -> np.ndarray:
    note_read()
    host = device.xp.asnumpy(x)
    checks.raise_noted()
    return host


@fast_path(Gpu.synchronize)
def synchronize(device: Gpu) -> None:
    note_read()
    device.xp.cuda.get_current_stream().synchronize()
    checks.raise_noted()
