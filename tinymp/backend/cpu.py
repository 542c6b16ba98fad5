"""The CPU: NumPy's arrays, and what of the machine can be asked and set."""

from __future__ import annotations

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


class Cpu(Device):
    """NumPy for mathematics, BLAS (through NumPy) for products."""

    def __init__(self) -> None:
        super().__init__("cpu", np)

    keep_freed_memory = staticmethod(keep_freed_memory)

    @replaceable
    def info(self) -> dict[str, str]:
        """The libraries and the settings of this device, for `mp.info()`."""
        return {
            "backend": f"cpu (NumPy {np.__version__})",
            "cores": str(os.cpu_count()),
            "freed memory": "kept for reuse" if keeps_memory else "returned to the system",
        }
