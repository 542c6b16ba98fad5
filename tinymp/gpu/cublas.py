"""cuBLAS, called through ctypes, while a step is captured in a CUDA graph.

CuPy's binding, which backend/gpu.py calls at all other times, refuses to set a stream that is being captured, and binds
no workspace. cuBLAS would allocate one itself, which would break a capture: it is given one from here. It belongs to a
stream and goes with it; graphs keep the stream on which they were captured. The handle is CuPy's: its next product sets
the stream, by which cuBLAS has its own workspace again.
"""

from __future__ import annotations

import ctypes
import weakref
from typing import Any

from ..backend.gpu import MATH_MODE

_STATUS = {1: "NOT_INITIALIZED", 3: "ALLOC_FAILED", 7: "INVALID_VALUE", 8: "ARCH_MISMATCH", 13: "EXECUTION_FAILED",
           14: "INTERNAL_ERROR", 15: "NOT_SUPPORTED"}  # fmt: skip

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


def gemm(*arguments: int) -> None:
    """A product that the current stream, which is captured, will do at each replay. RuntimeError for what cuBLAS
    reports.
    """
    import cupy

    handle, stream = cupy.cuda.device.get_cublas_handle(), cupy.cuda.get_current_stream()
    memory = _workspace(cupy, stream)
    _call("cublasSetStream_v2", handle, stream.ptr)
    _call("cublasSetWorkspace_v2", handle, memory.ptr, memory.size)  # the stream brought one of cuBLAS's own
    _call("cublasSetMathMode", handle, MATH_MODE)
    _call("cublasGemmStridedBatchedEx", handle, *arguments)  # rounds: `gemm` by cuBLAS: FP32 sums, and the result


def _workspace(cupy: Any, stream: Any) -> Any:
    """A stream's own, as large as NVIDIA recommends. A pool would hand it out while products still run."""
    if stream.ptr not in _workspaces:
        size = 32 if int(cupy.cuda.Device().compute_capability) >= 90 else 4
        _workspaces[stream.ptr] = cupy.cuda.Memory(size << 20)
        weakref.finalize(stream, _workspaces.pop, stream.ptr, None)
    return _workspaces[stream.ptr]


def _call(name: str, *arguments: int) -> None:
    status = getattr(_cublas(), name)(*arguments)
    if status:
        raise RuntimeError(f"{name}{arguments}: CUBLAS_STATUS_{_STATUS.get(status, status)}")


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
