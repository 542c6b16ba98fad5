"""The CPU: NumPy's arrays."""

from __future__ import annotations

import os

import numpy as np

from .devices import Device, replaceable
from .extras import Held


class Cpu(Device):
    """NumPy for mathematics, BLAS (through NumPy) for products."""

    def __init__(self) -> None:
        super().__init__("cpu", np)

    keep_freed_memory = Held("fast.cpu.memory.keep_freed_memory")

    @replaceable
    def info(self) -> dict[str, str]:
        """The libraries and the settings of this device, for `mp.info()`."""
        return {"backend": f"cpu (NumPy {np.__version__})", "cores": str(os.cpu_count())}
