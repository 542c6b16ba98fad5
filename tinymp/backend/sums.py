"""Sums of the gradients of one tensor on the GPU: one launch, which reads every term once and rounds once (sums.cu)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .kernels import Kernels
from .layout import THREADS, chunk_blocks, dense, matching

Array = Any
KERNELS = Kernels(__file__)

_F16, _F32 = np.dtype(np.float16), np.dtype(np.float32)
MOST = 3  # how many terms the kernel takes


def add_gradients(parts: Sequence[Array], dtype: np.dtype) -> Array:
    """parts[0] + parts[1] + ..., at most MOST arrays in FP16 or FP32, in FP32 and in this order; rounded once to dtype.

    The result has the memory order of the first of them that is dense, so that images stay as convolutions laid them.
    """
    import cupy as xp

    storage = _F16 if _F16 in (dtype, *[x.dtype for x in parts]) else _F32
    like = next((x for x in parts if dense(x)), None)
    y = xp.empty(parts[0].shape, dtype) if like is None else xp.empty_like(like, dtype)
    terms = [matching(xp, x, y) for x in parts] + [None] * (MOST - len(parts))
    places = [x if wanted else None for x in (*terms, y) for wanted in _places(x, storage)]
    KERNELS.launch("add_gradients", storage, chunk_blocks(y), THREADS, *places, y.size)
    return y


def _places(x: Array | None, storage: np.dtype) -> tuple[bool, bool]:
    """Whether the kernel gets x as one of its stored arrays, and whether as one in FP32."""
    return x is not None and x.dtype == storage, x is not None and x.dtype != storage
