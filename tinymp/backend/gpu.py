"""The GPU: CuPy's arrays, with which the definitions run as they do on NumPy's.

CuPy is imported when the first array goes to the GPU.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .devices import Array, Device, replaceable
from .extras import hint


def is_out_of_memory(error: BaseException) -> bool:
    """True if an exception of CuPy says that the device's memory is full."""
    return type(error).__name__ == "OutOfMemoryError" or "cudaErrorMemoryAllocation" in str(error)


class Gpu(Device):
    """CuPy's arrays, once a GPU is in use."""

    gemm_rounds = True
    keeps_order = False  # a copy more for each, and nothing is promised of a GPU's bits

    def __init__(self) -> None:
        super().__init__("gpu")
        self._problem: tuple[str | None] | None = None  # what `problem` found

    def problem(self) -> str | None:
        """Why no GPU can be used here, and what to do about it; None where one works. Looked up once."""
        if self._problem is None:
            self._problem = (_look(),)
        return self._problem[0]

    def first_use(self) -> None:
        """Take the GPU into use. RuntimeError that says why there is none, and what to do."""
        if self.array_type is None:
            why = self.problem()
            if why is not None:
                raise RuntimeError(f"device 'gpu' does not work here: {why}")
            import cupy

            self.xp, self.array_type = cupy, cupy.ndarray

    def free_memory(self) -> int:
        """The bytes that the device has left, with those that CuPy keeps for reuse."""
        return int(self.xp.cuda.runtime.memGetInfo()[0]) + int(self.xp.get_default_memory_pool().free_bytes())

    def compute_capability(self) -> int:
        """The GPU's generation as a number: 75 Turing, 80 Ampere, 90 Hopper, 100 Blackwell."""
        return int(self.xp.cuda.Device().compute_capability)

    @replaceable
    def info(self) -> dict[str, str]:
        """The GPU and the versions of its libraries, for `mp.info()`; without a GPU, the reason."""
        why = self.problem()
        if why is not None:
            return {"GPU": f"none: {why}"}
        import cupy

        runtime = cupy.cuda.runtime
        properties = runtime.getDeviceProperties(cupy.cuda.Device().id)
        model = properties["name"]
        return {
            "GPU": model.decode() if isinstance(model, bytes) else str(model),
            "GPU memory": f"{properties['totalGlobalMem'] / 2**30:.0f} GiB",
            "compute capability": f"{properties['major']}.{properties['minor']}",
            "CuPy": cupy.__version__,
            "CUDA": f"runtime {_version(runtime.runtimeGetVersion())}, driver {_version(runtime.driverGetVersion())}",
            "math mode": "FP16 products on Tensor Cores, FP32 accumulators and reductions; FP32 is never TF32",
        }

    def asarray(self, x: Any) -> Array:
        """x, from a CPU or GPU, as a device array."""
        if self.array_type is not None and isinstance(x, self.array_type):
            return x
        self.first_use()
        if getattr(x, "dtype", np.dtype(bool)).kind == "V":
            raise TypeError(
                "BF16 lies on the CPU alone: convert it with .half() or .float(), or cast the model to mp.MIXED"
            )
        return self.xp.asarray(x)

    @replaceable
    def to_numpy(self, x: Array) -> np.ndarray:
        """A copy of x on the host. It waits for the device."""
        return self.xp.asnumpy(x)

    @replaceable
    def synchronize(self) -> None:
        """Wait for the device."""
        self.xp.cuda.get_current_stream().synchronize()


def _look() -> str | None:
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
    try:
        x = cupy.arange(4.0).reshape(2, 2) + 1  # compiles a kernel: NVRTC is there
        x @ x  # rounds: never, this asks whether cuBLAS is there
    except runtime.CUDARuntimeError as error:
        if "MemoryAllocation" in str(error):
            return f"the GPU's memory is full before anything started ({error}): `nvidia-smi` shows who holds it"
        return f"the GPU does not answer ({error}): try `nvidia-smi`"
    except (OSError, ImportError, RuntimeError, MemoryError) as error:
        if is_out_of_memory(error):
            return f"the GPU's memory is full before anything started ({error}): `nvidia-smi` shows who holds it"
        return f"a CUDA library was not found ({error}): {hint('cuda13')} brings cuBLAS and NVRTC"
    return None


def _version(number: int) -> str:
    return f"{number // 1000}.{number % 1000 // 10}"
