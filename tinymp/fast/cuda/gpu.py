"""Products by cuBLAS, also while a step is captured; waiting for the device raises what `checks` noted there."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...backend.devices import Array
from ...backend.gpu import Gpu
from ...fast_path import fast_path
from . import checks, cublas

_F16, _F32 = np.dtype(np.float16), np.dtype(np.float32)


@fast_path(Gpu.gemm)
def gemm(device: Gpu, a: Array, b: Array, bias: Any, acc: Any, storage: np.dtype, tf32: bool, rounded: bool) -> Array:
    """By cuBLAS: FP16 operands go to the Tensor Cores, which round once where that is all that is asked for.

    A bias is put in place first and the product added to it (beta = 1), so that it takes part in the one rounding: one
    more write and read of the result. (cublasLt adds one for free, but only a bias per column, by plans that are to be
    searched and kept per shape. A 1 x 1 convolution, which has one per row, has a kernel of ours instead.) An `acc` of
    FP32 becomes the result where that is wide; if not, the sum is rounded once it is complete.
    """
    # rounds: never, it undoes `widen`
    a, b = (x if x.dtype == storage else x.astype(storage) for x in (a, b))  # undoes `widen`: exact
    wide = _F32 if storage == _F16 else storage
    result = storage if rounded else wide
    dtype = result if acc is None else wide
    start = bias if acc is None else acc if bias is None else acc + bias
    shape = (*np.broadcast_shapes(a.shape[:-2], b.shape[:-2]), a.shape[-2], b.shape[-1])
    if acc is not None and start.dtype == dtype:
        c = device.xp.ascontiguousarray(start)
    else:
        c = device.xp.empty(shape, dtype)
        if start is not None:
            c[...] = start  # rounds: a bias and accumulators, to the dtype in which cuBLAS adds to them
    cublas.gemm(a, b, c, tf32=tf32, beta=0 if start is None else 1)  # rounds: `gemm`: FP32 sums, and c
    return c if c.dtype == result else c.astype(result)  # rounds: `gemm`: accumulators, once complete


@fast_path(Gpu.to_numpy)
def to_numpy(device: Gpu, x: Array) -> np.ndarray:
    host = device.xp.asnumpy(x)
    checks.raise_noted()
    return host


@fast_path(Gpu.synchronize)
def synchronize(device: Gpu) -> None:
    device.xp.cuda.get_current_stream().synchronize()
    checks.raise_noted()
