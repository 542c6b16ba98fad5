"""The GPU that is here: why none can be used, and what `mp.info()` says of one."""

from __future__ import annotations

import os
import pathlib
import sys

import numpy as np

from .. import backend
from ..backend.extras import hint


def look() -> str | None:
    """Why no GPU can be used here, and what to do about it; None where one works."""
    try:
        import cupy
    except ModuleNotFoundError as error:
        if error.name != "cupy":
            return f"CuPy cannot be imported ({error}): reinstall it with {hint('cuda13')}"
        return f"CuPy is not installed: {hint('cuda13')} (or cuda12, which still has Volta)"
    except ImportError as error:
        return f"CuPy finds a library missing ({error}): {hint('cuda13')} brings CUDA's libraries"
    if not hasattr(cupy, "cuda"):  # a folder of that name on Python's path
        return f"CuPy is hidden by {next(iter(cupy.__path__))}, a folder that Python finds first: rename it"
    runtime = cupy.cuda.runtime
    try:
        if not runtime.getDeviceCount():
            return "no NVIDIA GPU was found: `nvidia-smi` should list one"
    except runtime.CUDARuntimeError as error:
        if "InsufficientDriver" in str(error):
            return (
                f"the NVIDIA driver is missing or too old for CUDA {_version(runtime.runtimeGetVersion())} ({error}): "
                f"install a newer driver (`nvidia-smi` shows it), or {hint('cuda12')} for an older one"
            )
        return f"no NVIDIA GPU can be used ({error}): `nvidia-smi` should list one; is CUDA_VISIBLE_DEVICES set?"
    kernels = os.environ.get("CUPY_CACHE_DIR") or os.path.expanduser("~/.cupy/kernel_cache")
    if not any(pathlib.Path(kernels).glob("*")):
        print(f"tinymp: CuPy's kernel cache {kernels} is empty: compiling takes some seconds, once", file=sys.stderr)
    try:
        ones = cupy.full((2, 2), 1.0, np.float32)
        ones @ ones  # rounds: never; are NVRTC and cuBLAS there?
    except Exception as error:
        if type(error).__name__ == "OutOfMemoryError" or "cudaErrorMemoryAllocation" in str(error):
            return f"the GPU's memory is full before anything started ({error}): `nvidia-smi` shows who holds it"
        if isinstance(error, runtime.CUDARuntimeError):
            return f"the GPU does not answer ({error}): try `nvidia-smi`"
        if isinstance(error, (OSError, ImportError, RuntimeError, MemoryError)):
            return f"a CUDA library was not found ({error}): {hint('cuda13')} brings cuBLAS and NVRTC"
        if type(error).__name__ != "CompileException":  # of CuPy, in a module that needs NVRTC
            raise
        return (
            f"CUDA {_version(runtime.runtimeGetVersion())} cannot compile for this GPU ({str(error).strip()[:200]}): "
            f"CUDA 13 has dropped Volta and older ones; {hint('cuda12')}"
        )
    return None


def about() -> dict[str, str]:
    """The GPU and the versions of its libraries, for `mp.info()`; without a GPU, the reason."""
    if (why := backend.gpu.problem()) is not None:
        return {"GPU": f"none: {why}"}
    import cupy
    from cupy_backends.cuda.libs import cublas

    runtime = cupy.cuda.runtime
    properties = runtime.getDeviceProperties(cupy.cuda.Device().id)
    return {
        "GPU": properties["name"].decode(),
        "GPU memory": f"{properties['totalGlobalMem'] / 2**30:.0f} GiB",
        "compute capability": f"{properties['major']}.{properties['minor']}",
        "CuPy": cupy.__version__,
        "cuBLAS": _version(cublas.getVersion(cupy.cuda.device.get_cublas_handle()), 10_000, 100),
        "CUDA": f"runtime {_version(runtime.runtimeGetVersion())}, driver {_version(runtime.driverGetVersion())}",
        "math mode": "FP16 products on Tensor Cores, FP32 accumulators and reductions; FP32 is never TF32",
    }


def _version(number: int, major: int = 1000, minor: int = 10) -> str:
    return f"{number // major}.{number % major // minor}"
