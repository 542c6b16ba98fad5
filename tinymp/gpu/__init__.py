"""A GPU's own kernels, each next to the Python file that launches it; all else is done by CuPy and cuBLAS.

Pointwise ops are compiled from their definitions (elementwise.py); by hand are written what sums along an axis and what
moves data. Each file stands in for the definitions of the file of its name. Deleting the folder leaves CuPy and cuBLAS.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from .. import backend
from ..autograd import Array
from ..dtypes import float16, float32
from ..events import here, tell
from ..fast_path import fast_path
from ..precision import plain

# for a phase of an op on FP16 or FP32 storage
kernel = partial(fast_path, where=lambda op: op.storage in (float16, float32) and plain(op.storage))


def made(x: Array, shape: tuple[int, ...] | None = None) -> Array:
    """An array for results, as x lies or C-contiguous in another shape; in FP32 while an observer listens."""
    return backend.of(x).xp.empty_like(x, float32 if here.inside else x.dtype, order="C" if shape else "K", shape=shape)


def summed(x: Array, axis: Any) -> None:
    """Tell observers that a kernel sums x along axis."""
    if here.inside:
        tell("reduced", x, axis, "sum", "float32")
