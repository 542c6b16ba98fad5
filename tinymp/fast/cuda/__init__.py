"""Fast paths on CuPy's arrays: CUDA kernels, each next to the Python file that launches it."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...dtypes import float32
from ...events import here, tell
from ...ops.base import base as kernel  # for a phase of an op that kernels do

__all__ = ["kernel", "multiplied", "unrounded"]


def unrounded(dtype: np.dtype) -> np.dtype:
    """The dtype of what kernels write that is to be stored in `dtype`: FP32 while an observer listens.

    Then `store` rounds it in front of the observer, to the bits that the kernel would have written.
    """
    return float32 if here.inside else dtype


def multiplied(a: Any, b: Any) -> None:
    """Tell observers of the product a @ b, which a kernel sums in FP32."""
    if here.inside:
        tell("product", a, b, "float32")
