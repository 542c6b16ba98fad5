"""Matrix products by cuBLAS: FP16 operands, FP32 accumulators, one rounding (MPT section 3.3, NVG section 2.2).

The library is called through ctypes, with CuPy's handle. CuPy has bindings of its own, but they refuse to set a stream
that is being captured in a CUDA graph and bind no workspaces, and its `matmul` decides about precision by itself.

**Rows and columns.** cuBLAS computes C' = op(A') op(B') on column-major matrices; CuPy's are row-major. Memory that
holds a row-major X is, read by columns, X^T. Since C = A B means

    C^T = B^T A^T,

cuBLAS is asked for C' = C^T with A' = B^T and B' = A^T, which is just how C, B and A lie in memory: the operands trade
places, m and n trade places, nothing is moved. An operand that lies transposed (X[i, j] and X[i + 1, j] are neighbours)
reads as X, and op = T makes it X^T again. "Leading dimension" is the distance of two rows as they lie.

**Precision.** Since CUDA 11 the default math mode uses Tensor Cores wherever they keep the precision that is asked for:
for FP16 operands (on Volta too, in `GemmEx`), never for FP32 ones, which TF32 would round to 11 bits. TENSOR_OP_MATH,
which older code sets, is deprecated, and would allow cuBLAS to round FP32 operands. To the default we add
DISALLOW_REDUCED_PRECISION_REDUCTION: where cuBLAS splits k over several blocks, it must add their partial sums in FP32,
not in the FP16 of the result.

**Graphs.** cuBLAS would allocate its workspace itself, which would break a capture: it is given one from here. It
belongs to a stream and goes with it; graphs keep its address, so they keep the stream on which they were captured.
"""

from __future__ import annotations

import ctypes
import weakref
from typing import Any, NamedTuple

import numpy as np

from .kernels import require_one_gpu

Array = Any

_F16, _F32, _F64 = np.dtype(np.float16), np.dtype(np.float32), np.dtype(np.float64)
_DATA_TYPE = {_F16: 2, _F32: 0, _F64: 1}  # cudaDataType_t: CUDA_R_16F, CUDA_R_32F, CUDA_R_64F
_COMPUTE_32F, _COMPUTE_64F, _COMPUTE_32F_FAST_TF32 = 68, 70, 77  # cublasComputeType_t
_DEFAULT_MATH, _DISALLOW_REDUCED_PRECISION_REDUCTION = 0, 16  # cublasMath_t
_OP_N, _OP_T = 0, 1
_GEMM_DEFAULT = -1  # cuBLAS picks the algorithm
_MOST = 2**31 - 1  # sizes are C ints
_STATUS = {1: "NOT_INITIALIZED", 3: "ALLOC_FAILED", 7: "INVALID_VALUE", 8: "ARCH_MISMATCH", 13: "EXECUTION_FAILED",
           14: "INTERNAL_ERROR", 15: "NOT_SUPPORTED"}  # fmt: skip

# (dtype of the operands, dtype of the result, TF32) -> compute type, and the type of alpha and beta
_KINDS: dict[tuple, tuple[int, Any]] = {
    (_F16, _F16, False): (_COMPUTE_32F, ctypes.c_float),
    (_F16, _F32, False): (_COMPUTE_32F, ctypes.c_float),
    (_F32, _F32, False): (_COMPUTE_32F, ctypes.c_float),
    (_F32, _F32, True): (_COMPUTE_32F_FAST_TF32, ctypes.c_float),
    (_F64, _F64, False): (_COMPUTE_64F, ctypes.c_double),
}

# --------------------------------------------------------------------------------------------------------- the library

# p: a pointer, i: int, l: long long, z: size_t. All return a status.
_SIGNATURES = {
    "cublasSetMathMode": "pi",
    "cublasSetStream_v2": "pp",
    "cublasSetWorkspace_v2": "ppz",
    # handle, op a, op b, m, n, k, alpha, (a, type, distance of rows, distance of two matrices in a batch), (b, ...),
    # beta, (c, ...), batch, compute type, algorithm
    "cublasGemmStridedBatchedEx": "piiiii p piil piil p piil i ii",
}
_C = {"p": ctypes.c_void_p, "i": ctypes.c_int, "l": ctypes.c_longlong, "z": ctypes.c_size_t}

_library: Any = None
_workspaces: dict[int, Any] = {}  # the address of a stream -> memory, as long as the stream is there


def _cublas() -> Any:
    """The library, loaded at its first use. OSError or RuntimeError where there is none."""
    global _library
    if _library is None:
        library = ctypes.CDLL(_path())
        for name, letters in _SIGNATURES.items():
            function = getattr(library, name)
            function.argtypes, function.restype = [_C[letter] for letter in letters.replace(" ", "")], ctypes.c_int
        _library = library
    return _library


def _path() -> str:
    """The path of the cuBLAS that CuPy uses, from NVIDIA's wheels or a CUDA toolkit."""
    try:
        from cuda.pathfinder import load_nvidia_dynamic_lib
    except ImportError:  # CuPy needs it from version 14 on; the older ones have loaded cuBLAS at their import
        for name in ("libcublas.so.13", "libcublas.so.12"):
            try:
                ctypes.CDLL(name)
                return name
            except OSError:
                continue
        raise OSError("libcublas.so.13 or libcublas.so.12 was not found") from None
    return load_nvidia_dynamic_lib("cublas").abs_path


def _call(name: str, *args: Any, what: str = "") -> None:
    status = getattr(_cublas(), name)(*args)
    if status:
        raise RuntimeError(f"{name}{what}: CUBLAS_STATUS_{_STATUS.get(status, status)}")


def _handle() -> int:
    """CuPy's handle of this thread, set up for the current stream: CuPy may have used it since. RuntimeError on another
    GPU than before.
    """
    import cupy

    require_one_gpu(cupy)
    handle, stream = cupy.cuda.device.get_cublas_handle(), cupy.cuda.get_current_stream()
    if stream.ptr not in _workspaces:
        # What NVIDIA recommends. Products on two streams may run at once: each stream has its own. Not from a pool,
        # which would hand it out while they still run; cudaFree waits for them.
        size = 32 if int(cupy.cuda.Device().compute_capability) >= 90 else 4
        _workspaces[stream.ptr] = cupy.cuda.Memory(size << 20)
        weakref.finalize(stream, _workspaces.pop, stream.ptr, None)
    memory = _workspaces[stream.ptr]
    _call("cublasSetStream_v2", handle, stream.ptr)
    _call("cublasSetWorkspace_v2", handle, memory.ptr, memory.size)  # the stream brought one of cuBLAS's own
    _call("cublasSetMathMode", handle, _DEFAULT_MATH | _DISALLOW_REDUCED_PRECISION_REDUCTION)
    return handle


# ---------------------------------------------------------------------------------------------------------- the product


class _Matrices(NamedTuple):
    """How a batch of matrices lies in memory: their rows (or, transposed, their columns) are contiguous, `distance`
    elements apart, and two matrices are `step` apart.
    """

    array: Array
    transposed: bool
    distance: int
    step: int


def _lying(x: Array) -> _Matrices:
    """x (batch, rows, columns) as it lies, or a copy of it where neither rows nor columns are contiguous."""
    (_, rows, columns), (step, down, right) = x.shape, (s // x.itemsize for s in x.strides)
    for transposed, length, count, near, distance in (
        (False, columns, rows, right, down),
        (True, rows, columns, down, right),
    ):
        if count == 1:
            distance = length
        if (near == 1 or length == 1) and length <= distance <= _MOST and step >= 0:
            return _Matrices(x, transposed, distance, step)
    return _Matrices(x.copy(), False, columns, rows * columns)


def gemm(a: Array, b: Array, out: Array, *, tf32: bool = False, beta: int = 0) -> None:
    """out = a @ b, or out += a @ b with beta = 1, written in place; one rounding to the dtype of out.

    a: (..., m, k), b: (..., k, n), out: (..., m, n), C-contiguous: device arrays, whose leading axes broadcast to those
    of out. FP16 operands and out in FP16 or FP32, FP32 throughout (with tf32, operands rounded to TF32), or FP64
    throughout; accumulators are FP32, or FP64. Operands that lie transposed, have gaps between rows (slices), or are
    shared by a batch are not copied. ValueError for shapes that do not match or an out with gaps, TypeError for dtypes,
    RuntimeError for what cuBLAS reports.
    """
    if (kind := _KINDS.get((a.dtype, out.dtype, tf32))) is None or a.dtype != b.dtype:
        raise TypeError(f"gemm: there is no product of {a.dtype} and {b.dtype} into {out.dtype} (tf32={tf32})")
    shapes, lead = f"a is {a.shape}, b is {b.shape}, out is {out.shape}", out.shape[:-2]
    (m, k), n = a.shape[-2:], b.shape[-1]
    if b.shape[-2] != k or out.shape[-2:] != (m, n) or np.broadcast_shapes(a.shape[:-2], b.shape[:-2]) != lead:
        raise ValueError(f"gemm: expected a (..., m, k), b (..., k, n) and out (..., m, n); {shapes}")
    if not out.flags.c_contiguous:
        raise ValueError(f"gemm: expected out to be C-contiguous, its strides are {out.strides}; {shapes}")
    if k == 0 and beta == 0:
        out.fill(0)
    if out.size == 0 or k == 0:
        return
    batch = out.size // (m * n)
    if b.size == k * n and a.flags.c_contiguous and a.size == batch * m * k and batch * m <= _MOST:
        m, batch = m * batch, 1  # a batch that shares b is one tall matrix
    first, second = _lying(_batched(a, lead, batch, m, k)), _lying(_batched(b, lead, batch, k, n))
    if max(m, k, n, batch) > _MOST:
        raise ValueError(f"gemm: cuBLAS takes sizes up to 2^31 - 1; {shapes}")
    compute, scalar = kind
    alpha, start = ctypes.byref(scalar(1)), ctypes.byref(scalar(beta))
    # Read by columns, all three are their transposes, and b comes first: see the head of this file.
    operands = [(x.array.data.ptr, _DATA_TYPE[x.array.dtype], x.distance, x.step) for x in (second, first)]
    result = out.data.ptr, _DATA_TYPE[out.dtype], n, m * n
    ops = [_OP_T if x.transposed else _OP_N for x in (second, first)]
    _call(
        "cublasGemmStridedBatchedEx",
        *(_handle(), *ops, n, m, k, alpha, *operands[0], *operands[1], start, *result, batch, compute, _GEMM_DEFAULT),
        what=f" of a {a.dtype} {a.shape} (strides {a.strides}) and b {b.shape} (strides {b.strides}) into {out.dtype}",
    )


def _batched(x: Array, lead: tuple[int, ...], batch: int, rows: int, columns: int) -> Array:
    """x with one leading axis. It is copied where several leading axes do not lie at one distance from each other."""
    if x.size == batch * rows * columns or batch == 1:
        return x.reshape(batch, rows, columns)
    import cupy

    if x.size == rows * columns:
        return cupy.broadcast_to(x.reshape(1, rows, columns), (batch, rows, columns))
    return cupy.broadcast_to(x, (*lead, rows, columns)).reshape(batch, rows, columns)
