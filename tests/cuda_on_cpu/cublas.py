"""A stand-in for NVIDIA's cuBLAS in the tests: the functions that tinymp calls, with the same arguments, as a library
(for ctypes) and as CuPy's bindings.

It reads memory at addresses, column-major, as cuBLAS's documentation defines it, and writes exactly the m x n elements
of the result. What cuBLAS answers with an error status gets that status here; what it cannot see, but is a mistake (a
handle on another stream, scalars of the wrong type, memory that is not allocated), raises.
"""

from __future__ import annotations

import collections
import ctypes

import numpy as np

from . import device

SUCCESS, INVALID_VALUE, NOT_SUPPORTED = 0, 7, 15
_DTYPE = {2: np.dtype(np.float16), 0: np.dtype(np.float32), 1: np.dtype(np.float64)}  # cudaDataType_t
_32F, _32F_PEDANTIC, _64F, _32F_FAST_TF32 = 68, 69, 70, 77  # cublasComputeType_t

# compute type -> the type of alpha and beta, and the combinations of types of A, B and C
_TYPES = {
    _32F: (ctypes.c_float, {(2, 2, 2), (2, 2, 0), (0, 0, 0)}),
    _32F_PEDANTIC: (ctypes.c_float, {(2, 2, 2), (2, 2, 0), (0, 0, 0)}),
    _32F_FAST_TF32: (ctypes.c_float, {(0, 0, 0)}),
    _64F: (ctypes.c_double, {(1, 1, 1)}),
}


class _State:
    def __init__(self):
        self.stream, self.workspace, self.math_mode = 0, None, 0


class Library:
    """libcublas. `calls`: the arguments by name of every product, for tests."""

    def __init__(self):
        self.calls = []
        self._handles = collections.defaultdict(_State)  # by the number that CuPy gives out

    def cublasSetMathMode(self, handle, mode):
        self._handles[handle].math_mode = mode
        return SUCCESS

    def cublasSetStream_v2(self, handle, stream):
        device.stream_at(stream)
        state = self._handles[handle]
        state.stream, state.workspace = stream, None
        return SUCCESS

    def cublasSetWorkspace_v2(self, handle, address, size):
        if address % 256:
            return INVALID_VALUE
        device.device_bytes(address, size)
        self._handles[handle].workspace = address, size
        return SUCCESS

    def cublasGemmStridedBatchedEx(
        self, handle, transa, transb, m, n, k, alpha, A, Atype, lda, strideA, B, Btype, ldb, strideB, beta,
        C, Ctype, ldc, strideC, batch, compute, algo,
    ):  # fmt: skip
        self.calls.append({"m": m, "n": n, "k": k, "batch": batch, "types": (Atype, Btype, Ctype), "compute": compute})
        for value in (transa, transb, m, n, k, Atype, lda, Btype, ldb, Ctype, ldc, batch, compute, algo):
            assert isinstance(value, int), f"a C int cannot be made of {value!r}"
            assert -(2**31) <= value < 2**31, f"{value} does not fit a C int"
        state = self._handles[handle]
        stream = device.get_current_stream()
        assert state.stream == stream.ptr, "the handle is set to another stream than the current one"
        assert state.workspace is not None, "cuBLAS would allocate a workspace of its own"
        if transa not in (0, 1) or transb not in (0, 1) or min(m, n, k, batch) < 0 or algo not in (-1, 99):
            return INVALID_VALUE
        if compute not in _TYPES or (Atype, Btype, Ctype) not in _TYPES[compute][1]:
            return NOT_SUPPORTED
        shape_a, shape_b = (k, m) if transa else (m, k), (n, k) if transb else (k, n)
        if lda < max(1, shape_a[0]) or ldb < max(1, shape_b[0]) or ldc < max(1, m):
            return INVALID_VALUE
        places = np.arange(batch)[:, None, None] * strideC + np.arange(n)[:, None] * ldc + np.arange(m)
        assert np.unique(places).size == places.size, "the results of a batch overlap"
        scalar = _TYPES[compute][0]
        alpha, beta = (scalar.from_address(address).value for address in (alpha, beta))
        assert alpha == 1 and beta in (0, 1), "alpha and beta have the wrong type"
        if 0 in (m, n, batch):
            return SUCCESS
        a, b, c = (
            _matrices(address, _DTYPE[kind], shape, distance, stride, batch)
            for address, kind, shape, distance, stride in (
                (A, Atype, shape_a, lda, strideA),
                (B, Btype, shape_b, ldb, strideB),
                (C, Ctype, (m, n), ldc, strideC),
            )
        )

        def work():
            with np.errstate(all="ignore"):
                product = _product(a.swapaxes(1, 2) if transa else a, b.swapaxes(1, 2) if transb else b, compute)
                if beta == 0:  # what lies in C is not read: it may be NaN
                    c[...] = (alpha * product).astype(c.dtype)
                else:
                    c[...] = (alpha * product + beta * c.astype(product.dtype)).astype(c.dtype)

        device.perform(work, [memory for x in (A, B, C) for memory in device.memory_at(x)], stream, own=True)
        return SUCCESS


class CUBLASError(RuntimeError):
    """cupy_backends.cuda.libs.cublas.CUBLASError."""


class Bindings:
    """The part of cupy_backends.cuda.libs.cublas that tinymp uses. `calls`: as in Library."""

    CUBLASError = CUBLASError

    def __init__(self):
        self._library = Library()
        self.calls = self._library.calls

    def getVersion(self, handle):
        return 130000

    def setMathMode(self, handle, mode):
        self._library.cublasSetMathMode(handle, mode)

    def gemmStridedBatchedEx(self, handle, *arguments):
        stream = device.get_current_stream()
        if stream.is_capturing():
            raise NotImplementedError("calling cuBLAS API during stream capture is currently unsupported")
        state = self._library._handles[handle]
        assert state.math_mode & 16, "cuBLAS may add the parts of a product in FP16"
        state.stream, state.workspace = stream.ptr, (0, 0)  # cuBLAS's own
        status = self._library.cublasGemmStridedBatchedEx(handle, *arguments)
        if status:
            raise CUBLASError(f"CUBLAS_STATUS {status}")


def _matrices(address, dtype, shape, distance, stride, batch):
    """A batch of column-major matrices in device memory, as (batch, rows, columns)."""
    assert address % dtype.itemsize == 0, f"{address:#x} is not aligned for {dtype}"
    assert stride >= 0
    rows, columns = shape
    if rows == 0 or columns == 0:
        return np.zeros((batch, rows, columns), dtype)
    elements = (batch - 1) * stride + (columns - 1) * distance + rows
    memory = device.device_bytes(address, elements * dtype.itemsize)
    steps = (stride * dtype.itemsize, dtype.itemsize, distance * dtype.itemsize)
    return np.ndarray((batch, rows, columns), dtype, memory.data, 0, steps)


def _product(a, b, compute):
    """a @ b, in the dtype of the accumulator."""
    if compute == _64F:
        return np.matmul(a, b)
    a, b = a.astype(np.float32), b.astype(np.float32)
    if compute == _32F_FAST_TF32:
        a, b = _tf32(a), _tf32(b)
    return np.matmul(a, b)


def _tf32(x):
    """FP32 with 10 bits of fraction, rounded to nearest, ties away from 0; inf and nan stay."""
    rounded = ((x.view(np.uint32) + 0x1000) & np.uint32(0xFFFFE000)).view(np.float32)
    return np.where(np.isfinite(x), rounded, x)
