"""The C library's store of freed memory."""

from __future__ import annotations

import ctypes
import sys
from typing import Any

kept = False  # True if freed blocks are kept for reuse


def keep_freed_memory(device: Any) -> bool:
    """Ask glibc to keep freed blocks for reuse instead of returning every large one to the kernel. True if it agreed.

    A training step frees and allocates the same sizes over and over, and touching unmapped pages costs more than the
    arithmetic (measured: a 6 MB product of two arrays takes 0.85 ms fresh, 0.18 ms reused). The setting concerns the
    whole process and is a program's decision: tinymp's own programs call this, `import tinymp` does not.
    """
    global kept
    if not sys.platform.startswith("linux"):
        return False
    M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_ARENA_MAX = -1, -3, -8
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):  # another C library, without this setting
        return False
    sizes = {M_MMAP_THRESHOLD: 1 << 30, M_TRIM_THRESHOLD: (1 << 31) - 1, M_ARENA_MAX: 1}
    kept = all(mallopt(*setting) for setting in sizes.items())
    return kept
