"""Matrix products by cuBLAS: FP16 operands, FP32 accumulators, one rounding (MPT section 3.3, NVG section 2.2).

The library is called through ctypes. CuPy has bindings of its own, but they refuse to set a stream that is being
captured in a CUDA graph and bind no workspaces, and its `matmul` decides about precision by itself.

**Rows and columns.** cuBLAS computes C' = op(A') op(B') on column-major matrices; CuPy's are row-major. Memory that
holds a row-major X is, read by columns, X^T. Since C = A B means

    C^T = B^T A^T,

cuBLAS is asked for C' = C^T with A' = B^T and B' = A^T, which is just how C, B and A lie in memory: the operands trade
places, m and n trade places, nothing is moved. An operand that lies transposed (X[i, j] and X[i + 1, j] are neighbours)
reads as X, and op = T makes it X^T again. A C that lies transposed is a row-major C^T, so `gemm` computes that, as
B^T A^T. This is done once, in `gemm` and `_multiply`; "leading dimension" is the distance of two rows as they lie.

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
import threading
import weakref
from typing import Any, NamedTuple

import numpy as np

from .kernels import require_one_gpu

Array = Any

_F16, _F32, _F64 = np.dtype(np.float16), np.dtype(np.float32), np.dtype(np.float64)
_DATA_TYPE = {_F16: 2, _F32: 0, _F64: 1}  # cudaDataType_t: CUDA_R_16F, CUDA_R_32F, CUDA_R_64F
_COMPUTE_16F, _COMPUTE_32F, _COMPUTE_64F, _COMPUTE_32F_FAST_TF32 = 64, 68, 70, 77  # cublasComputeType_t
_DEFAULT_MATH, _DISALLOW_REDUCED_PRECISION_REDUCTION = 0, 16  # cublasMath_t
_OP_N, _OP_T = 0, 1
_GEMM_DEFAULT = -1  # cuBLAS picks the algorithm
_MOST = 2**31 - 1  # sizes are C ints
_STATUS = {
    1: "CUBLAS_STATUS_NOT_INITIALIZED",
    3: "CUBLAS_STATUS_ALLOC_FAILED",
    7: "CUBLAS_STATUS_INVALID_VALUE",
    8: "CUBLAS_STATUS_ARCH_MISMATCH",
    11: "CUBLAS_STATUS_MAPPING_ERROR",
    13: "CUBLAS_STATUS_EXECUTION_FAILED",
    14: "CUBLAS_STATUS_INTERNAL_ERROR",
    15: "CUBLAS_STATUS_NOT_SUPPORTED",
    16: "CUBLAS_STATUS_LICENSE_ERROR",
}


class _Scalars(NamedTuple):
    """The factor 1 and the two values of beta in the type in which cuBLAS reads them: that of the accumulator."""

    one: Any
    zero: Any


# A c_uint16 holds the bits of an FP16 number, for which ctypes has no type.
_HALF = _Scalars(ctypes.c_uint16(0x3C00), ctypes.c_uint16(0))
_FLOAT = _Scalars(ctypes.c_float(1), ctypes.c_float(0))
_DOUBLE = _Scalars(ctypes.c_double(1), ctypes.c_double(0))

# (dtype of the operands, dtype of the result, accumulator) -> compute type, type of alpha and beta
_KINDS = {
    (_F16, _F16, "float32"): (_COMPUTE_32F, _FLOAT),
    (_F16, _F32, "float32"): (_COMPUTE_32F, _FLOAT),
    (_F16, _F16, "float16"): (_COMPUTE_16F, _HALF),
    (_F32, _F32, "float32"): (_COMPUTE_32F, _FLOAT),
    (_F32, _F32, "tf32"): (_COMPUTE_32F_FAST_TF32, _FLOAT),
    (_F64, _F64, "float64"): (_COMPUTE_64F, _DOUBLE),
}

# --------------------------------------------------------------------------------------------------------- the library

# p: a pointer, i: int, l: long long, z: size_t. All return a status.
_SIGNATURES = {
    "cublasCreate_v2": "p",
    "cublasGetProperty": "ip",
    "cublasSetMathMode": "pi",
    "cublasSetStream_v2": "pp",
    "cublasSetWorkspace_v2": "ppz",
    # handle, op a, op b, m, n, k, alpha, (a, type, distance), (b, ...), beta, (c, ...), compute type, algorithm
    "cublasGemmEx": "piiiii p pii pii p pii ii",
    # the same with the distance of two matrices in a batch after each distance of rows, and the number of them
    "cublasGemmStridedBatchedEx": "piiiii p piil piil p piil i ii",
}
_C = {"p": ctypes.c_void_p, "i": ctypes.c_int, "l": ctypes.c_longlong, "z": ctypes.c_size_t}

_library: Any = None
_per_thread = threading.local()  # its handles, by library: two threads must not use one at once
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


def version() -> str:
    """The version of cuBLAS, as "13.1.0". Needs no GPU."""
    parts = []
    for number in range(3):  # major, minor, patch
        value = ctypes.c_int()
        _check(_cublas().cublasGetProperty(number, ctypes.byref(value)), "cublasGetProperty")
        parts.append(str(value.value))
    return ".".join(parts)


def _check(status: int, what: str) -> None:
    if status:
        raise RuntimeError(f"{what}: {_STATUS.get(status, f'cuBLAS status {status}')}")


class _Handle:
    """A cuBLAS handle, and the stream that it is set to."""

    def __init__(self, library: Any) -> None:
        self.value = ctypes.c_void_p()
        self.stream: Any = lambda: None  # a weak reference: another stream may have the address of one that is gone
        self.workspace: Any = None
        _check(library.cublasCreate_v2(ctypes.byref(self.value)), "cublasCreate")
        mode = _DEFAULT_MATH | _DISALLOW_REDUCED_PRECISION_REDUCTION
        _check(library.cublasSetMathMode(self.value, mode), "cublasSetMathMode")


def _handle() -> ctypes.c_void_p:
    """This thread's handle, set to the current stream. RuntimeError on another GPU than before."""
    import cupy

    require_one_gpu(cupy)
    library, stream = _cublas(), cupy.cuda.get_current_stream()
    handles: Any = _per_thread.__dict__.setdefault("handles", weakref.WeakKeyDictionary())
    handle = handles.get(library)
    if handle is None:
        handle = handles[library] = _Handle(library)
    if handle.stream() is not stream:
        _check(library.cublasSetStream_v2(handle.value, stream.ptr), "cublasSetStream")
        if stream.ptr not in _workspaces:
            # What NVIDIA recommends. Products on two streams may run at once: each stream has its own. Not from a pool,
            # which would hand it out while they still run; cudaFree waits for them.
            size = 32 if int(cupy.cuda.Device().compute_capability) >= 90 else 4
            _workspaces[stream.ptr] = cupy.cuda.Memory(size << 20)
            weakref.finalize(stream, _workspaces.pop, stream.ptr, None)
        handle.workspace = _workspaces[stream.ptr]  # cublasSetStream went back to a workspace of cuBLAS's own
        memory, size = handle.workspace.ptr, handle.workspace.size
        _check(library.cublasSetWorkspace_v2(handle.value, memory, size), "cublasSetWorkspace")
        handle.stream = weakref.ref(stream)
    return handle.value


# ---------------------------------------------------------------------------------------------------------- the product


def gemm(a: Array, b: Array, out: Array, *, accumulate: str, beta: int = 0) -> None:
    """out = a @ b, or out += a @ b with beta = 1, written in place; one rounding to the dtype of out.

    a: (..., m, k), b: (..., k, n), out: (..., m, n) device arrays; leading axes broadcast to those of out. accumulate:
    "float32" for FP16 operands (out FP16 or FP32) and FP32 ones, which stay FP32 throughout; "float16" for FP16;
    "tf32" for FP32; "float64" for FP64. Operands and out may lie transposed, have gaps between rows (slices), or repeat
    along leading axes: nothing is copied unless neither of the two last axes is contiguous.
    ValueError for shapes that do not match, TypeError for dtypes, RuntimeError for what cuBLAS reports.
    """
    kind = _KINDS.get((a.dtype, out.dtype, accumulate))
    if kind is None or a.dtype != b.dtype:
        raise TypeError(
            f"gemm: no product of {a.dtype} and {b.dtype} into {out.dtype} accumulates in {accumulate!r}; there are "
            + ", ".join(f"{x} into {y} in {z!r}" for x, y, z in _KINDS)
        )
    m, k, n = _sizes(a, b, out, beta)
    if out.size == 0:
        return
    if k == 0:
        if beta == 0:
            out.fill(0)
        return
    rows = _rows(out)
    if rows is None:
        c = out.copy()
        gemm(a, b, c, accumulate=accumulate, beta=beta)
        out[...] = c  # rounds: never, c has the dtype of out
        return
    if rows.transposed:
        a, b, out, m, n = b.swapaxes(-1, -2), a.swapaxes(-1, -2), out.swapaxes(-1, -2), n, m
    _multiply(a, b, out, m, n, k, rows.distance, *kind, beta)


def _sizes(a: Array, b: Array, out: Array, beta: int) -> tuple[int, int, int]:
    """m, k, n. ValueError where they do not fit together."""
    shapes = f"a is {a.shape}, b is {b.shape}, out is {out.shape}"
    if min(a.ndim, b.ndim, out.ndim) < 2:
        raise ValueError(f"gemm: expected matrices, with at least 2 axes; {shapes}")
    if beta not in (0, 1):
        raise ValueError(f"gemm: expected beta 0 or 1, got {beta!r}")
    (m, k), n = a.shape[-2:], b.shape[-1]
    try:
        batch = np.broadcast_shapes(a.shape[:-2], b.shape[:-2], out.shape[:-2])
    except ValueError:
        batch = None
    if b.shape[-2] != k or out.shape != (*(batch or ()), m, n) or batch is None:
        raise ValueError(f"gemm: expected a (..., m, k), b (..., k, n) and out (..., m, n); {shapes}")
    if any(s == 0 and length > 1 for s, length in zip(out.strides, out.shape)) and out.size:
        raise ValueError(f"gemm: out repeats its memory along an axis (strides {out.strides}); {shapes}")
    if max(m, k, n) > _MOST:
        raise ValueError(f"gemm: cuBLAS takes sizes up to 2^31 - 1; {shapes}")
    return m, k, n


class _Rows(NamedTuple):
    """How a matrix lies in memory: its rows (or, transposed, its columns) are contiguous, `distance` elements apart."""

    transposed: bool
    distance: int


def _rows(x: Array) -> _Rows | None:
    """How the matrices of x lie; None where neither rows nor columns are contiguous."""
    rows, columns = x.shape[-2:]
    down, right = (s // x.itemsize for s in x.strides[-2:])  # to the next row, to the next column
    for transposed, length, count, step, distance in (
        (False, columns, rows, right, down),
        (True, rows, columns, down, right),
    ):
        if count == 1:
            distance = length
        if (step == 1 or length == 1) and length <= distance <= _MOST:
            return _Rows(transposed, distance)
    return None


class _Axis(NamedTuple):
    """A leading axis: its length, and how far apart two matrices of a, b and out are along it, in elements."""

    length: int
    a: int
    b: int
    out: int


def _axes(a: Array, b: Array, out: Array) -> list[_Axis]:
    """The leading axes in the memory order of out, neighbours with regular strides merged into one."""
    steps = []
    for x in (a, b, out):
        missing = (0,) * (out.ndim - x.ndim)
        lengths, strides = (*missing, *x.shape[:-2]), (*missing, *x.strides[:-2])
        steps.append([s // x.itemsize if length > 1 else 0 for length, s in zip(lengths, strides)])
    axes = [_Axis(*axis) for axis in zip(out.shape[:-2], *steps) if axis[0] > 1]
    axes.sort(key=lambda axis: -axis.out)
    merged: list[_Axis] = []
    for inner in axes:
        outer = merged[-1] if merged else None
        if outer is not None and all(outer[i] == inner[i] * inner.length for i in (1, 2, 3)):
            merged[-1] = _Axis(outer.length * inner.length, inner.a, inner.b, inner.out)
        else:
            merged.append(inner)
    return merged


def _in_rows(x: Array) -> tuple[Array, _Rows]:
    """x, copied if neither its rows nor its columns are contiguous, and how it lies."""
    rows = _rows(x)
    return (x, rows) if rows is not None else (x.copy(), _Rows(False, x.shape[-1]))


def _multiply(
    a: Array, b: Array, out: Array, m: int, n: int, k: int, distance: int, compute: int, scalars: _Scalars, beta: int
) -> None:
    """`gemm` for an out whose rows are contiguous, `distance` elements apart."""
    (a, rows_a), (b, rows_b), rows_out = _in_rows(a), _in_rows(b), _Rows(False, distance)
    axes = _axes(a, b, out)
    for axis in reversed(axes):  # a batch that shares b and continues the rows of a and out is one tall matrix
        gap_a, gap_out = (axis.a, axis.out) if m == 1 else (rows_a.distance, rows_out.distance)
        continues = axis.b == 0 and not rows_a.transposed and (axis.a, axis.out) == (m * gap_a, m * gap_out)
        if continues and k <= gap_a <= _MOST and n <= gap_out <= _MOST and m * axis.length <= _MOST:
            m *= axis.length
            rows_a, rows_out = _Rows(False, gap_a), _Rows(False, gap_out)
            axes.remove(axis)
    forward = [axis for axis in axes if min(axis.a, axis.b, axis.out) >= 0]  # not reversed views
    batch = max(forward, key=lambda axis: axis.length, default=_Axis(1, 0, 0, 0))
    if batch.length > 1:
        axes.remove(batch)
    one, start = ctypes.byref(scalars.one), ctypes.byref(scalars.one if beta else scalars.zero)
    # Read by columns, all three are their transposes, and b comes first: see the head of this file.
    ops = (_OP_T if rows_b.transposed else _OP_N, _OP_T if rows_a.transposed else _OP_N)
    types = _DATA_TYPE[b.dtype], _DATA_TYPE[a.dtype], _DATA_TYPE[out.dtype]
    distances = rows_b.distance, rows_a.distance, rows_out.distance
    library, handle = _cublas(), _handle()
    for place in np.ndindex(*(axis.length for axis in axes)):
        at_a, at_b, at_out = (
            x.data.ptr + x.itemsize * sum(i * axis[which] for i, axis in zip(place, axes))
            for which, x in enumerate((a, b, out), start=1)
        )
        first, second, result = zip((at_b, at_a, at_out), types, distances)
        if batch.length == 1:
            name = "cublasGemmEx"
            status = library.cublasGemmEx(
                handle, *ops, n, m, k, one, *first, *second, start, *result, compute, _GEMM_DEFAULT
            )
        else:
            name = "cublasGemmStridedBatchedEx"
            status = library.cublasGemmStridedBatchedEx(
                *(handle, *ops, n, m, k, one, *first, batch.b, *second, batch.a, start, *result, batch.out),
                *(batch.length, compute, _GEMM_DEFAULT),
            )
        if status:
            _check(
                status,
                f"{name} of a {a.dtype} {a.shape} (strides {a.strides}) and b {b.shape} (strides {b.strides}) into "
                f"{out.dtype} {out.shape} (strides {out.strides}), compute type {compute}",
            )
