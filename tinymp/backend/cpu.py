"""The CPU: NumPy's arrays, and what of the machine can be asked and set."""

from __future__ import annotations

from . import blas

blas.load_numpy()  # OpenBLAS reads two settings when NumPy loads it, and never again; TINYMP_BLAS=0 leaves them alone

import ctypes
import os
import sys

import numpy as np

from .devices import Device, replaceable

keeps_memory = False


def keep_freed_memory() -> bool:
    """Ask glibc to keep freed blocks for reuse instead of returning every large one to the kernel; whether it agreed.

    A training step frees and allocates the same sizes over and over. By default each array above 32 MiB, and
    often smaller ones, come back as unmapped pages; touching them costs more than the arithmetic (measured: a
    6 MB product of two arrays takes 0.85 ms fresh, 0.18 ms reused). All threads draw on one store, so that what one has
    freed serves the others. It is for the whole process, also for what is not tinymp's, and therefore a program's
    decision: tinymp's own programs call this, and `import tinymp` does not.
    """
    global keeps_memory
    if not sys.platform.startswith("linux"):
        return False
    M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_ARENA_MAX = -1, -3, -8
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):  # another C library, without this setting
        return False
    sizes = {M_MMAP_THRESHOLD: 1 << 30, M_TRIM_THRESHOLD: (1 << 31) - 1, M_ARENA_MAX: 1}
    keeps_memory = all(mallopt(*setting) for setting in sizes.items())
    return keeps_memory


def free_memory() -> int | None:
    """The bytes that this process may still ask for, as Linux says, or None."""
    try:
        import resource

        with open("/proc/meminfo", "rb") as file:
            free = next(int(line.split()[1]) * 1024 for line in file if line.startswith(b"MemAvailable"))
        limit = resource.getrlimit(resource.RLIMIT_AS)[0]
        with open("/proc/self/statm", "rb") as file:
            used = int(file.read().split()[0]) * resource.getpagesize()
    except (ImportError, OSError, StopIteration):
        return None
    return free if limit == resource.RLIM_INFINITY else max(min(free, limit - used), 0)


class Cpu(Device):
    """NumPy for mathematics, BLAS (through NumPy) for products."""

    def __init__(self) -> None:
        super().__init__("cpu", np)

    free_memory = staticmethod(free_memory)
    keep_freed_memory = staticmethod(keep_freed_memory)

    @replaceable
    def info(self) -> dict[str, str]:
        """The libraries and the settings of this device, for `mp.info()`."""
        return {
            "backend": f"cpu (NumPy {np.__version__})",
            "FP16 casts": "NumPy",
            "BLAS": blas.describe(),
            "cores": str(os.cpu_count()),
            "freed memory": "kept for reuse" if keeps_memory else "returned to the system",
        }
