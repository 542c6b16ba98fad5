"""Tables of addresses on the GPU, for kernels that work on many arrays in one launch.

Tables never change: other addresses get another table. So an upload need not wait for kernels that still read an old
one, and in the steady state, where CuPy's pool hands out the same addresses in every step, nothing is uploaded at all.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..backend.devices import Array, Device
from ..fast_path import fast_path
from . import recording
from .kernels import Kernels
from .layout import THREADS

KERNELS = Kernels(__file__)

_recent: dict[Any, Array] = {}  # by content, the least recently used first
_MOST_RECENT = 1024


def on_device(data: bytes, dtype: str, columns: int) -> Array:
    """A table on the device, uploaded if it is new; while a graph is captured, it is uploaded after the capture."""
    import cupy

    key = cupy, dtype, data  # `Kernels.launch` sees to it that there is one device
    table = _recent.pop(key, None)
    if table is not None:
        _recent[key] = table
    else:
        host = np.frombuffer(data, dtype).reshape(-1, columns)
        table = recording.lasting(host.shape, dtype)
        recording.after_capture(functools.partial(_upload, key, host, table))
    recording.keep(table)
    return table


def _upload(key: Any, host: np.ndarray, table: Array) -> None:
    recording.upload(host, table)
    _recent[key] = table
    while len(_recent) > _MOST_RECENT:
        del _recent[next(iter(_recent))]


@fast_path(Device.copy_all)
def copy_all(device: Device, sources: Sequence[Array], targets: Sequence[Array], wanted: Any = True) -> None:
    """In one launch, for small arrays. wanted: a bool, or an array of one on the device."""
    if not all(x.flags.c_contiguous and x.nbytes % 2 == 0 for x in (*sources, *targets)):
        raise ValueError("copy_all: expected C-contiguous arrays of numbers with 2 bytes or more")
    if sources:
        pairs = [(s.data.ptr, t.data.ptr, s.nbytes) for s, t in zip(sources, targets, strict=True)]
        table = on_device(np.array(pairs, np.uint64).tobytes(), "uint64", 3)
        KERNELS.launch("copy_all", np.dtype(np.float16), len(pairs), THREADS, table, None if wanted is True else wanted)
