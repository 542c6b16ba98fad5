"""torch.cuda: whether there is a GPU, and which."""

from __future__ import annotations

from typing import Any

from ... import backend
from ...backend import manual_seed, synchronize
from ..space import fill
from ..types import DTYPES as _DTYPES

manual_seed_all = manual_seed
OutOfMemoryError = MemoryError


def is_available() -> bool:
    """True if there is a GPU that works."""
    return backend.gpu.problem() is None


def device_count() -> int:
    """1 or 0: tinymp uses one GPU."""
    return int(is_available())


def get_device_name(device: Any = None) -> str:
    """The GPU's name. RuntimeError where there is none."""
    backend.get("gpu")
    return str(backend.gpu.info().get("GPU", "GPU"))


def empty_cache() -> None:
    """Give memory that no array uses back to the GPU."""
    if backend.gpu.array_type is not None:
        backend.gpu.xp.get_default_memory_pool().free_all_blocks()


fill(globals(), "torch.cuda", {name: f"torch.{name}" for name in _DTYPES}, "amp")
