"""Waiting for the device raises what `checks` noted there."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...backend.devices import Array
from ...backend.gpu import Gpu
from ...fast_path import fast_path
from . import checks, cublas


@fast_path(Gpu.to_numpy)
def to_numpy(device: Gpu, x: Array) -> np.ndarray:
    host = device.xp.asnumpy(x)
    checks.raise_noted()
    return host


@fast_path(Gpu.synchronize)
def synchronize(device: Gpu) -> None:
    device.xp.cuda.get_current_stream().synchronize()
    checks.raise_noted()


@fast_path(Gpu.info)
def info(device: Gpu) -> dict[str, str]:
    definition: Any = Gpu.info
    found = definition.__wrapped__(device)
    return found if device.problem() else {**found, "cuBLAS": cublas.version()}
