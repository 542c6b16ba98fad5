"""For `mp.info()`: the library that casts FP16, and OpenBLAS with its kernels."""

from __future__ import annotations

from typing import Any

from ...backend.cpu import Cpu
from ...fast_path import fast_path
from . import blas, memory
from .devices import numkong, without_numkong


@fast_path(Cpu.info)
def info(device: Cpu) -> dict[str, str]:
    definition: Any = Cpu.info
    casts = f"NumKong {numkong.__version__}" if numkong else f"NumPy: slower ({without_numkong})"
    freed = "kept for reuse" if memory.kept else "returned to the system"
    return {**definition.__wrapped__(device), "FP16 casts": casts, "BLAS": blas.describe(), "freed memory": freed}
