"""Products by cuBLAS while a step is captured; waiting for the device raises what `checks` noted there."""

from __future__ import annotations

import numpy as np

from ..backend.devices import Array
from ..backend.gpu import Gpu
from ..backend.gpu import call_cublas as by_cupy
from ..fast_path import fast_path
from . import checks, cublas
from .recording import capturing, note_read


@fast_path(by_cupy)
def call_cublas(turned: int, *arguments: int) -> None:
    if not capturing():
        return NotImplemented
    return cublas.gemm(turned, *arguments)  # rounds: `gemm` by cuBLAS


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
