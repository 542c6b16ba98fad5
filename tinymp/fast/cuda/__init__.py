"""Fast paths on CuPy's arrays: CUDA kernels, each next to the Python file that launches it."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import numpy as np

from ...dtypes import float16, float32
from ...events import here
from ...fast_path import fast_path
from ...precision import plain


def may_fuse(dtype: np.dtype | None) -> bool:
    """True if a CUDA kernel may do the work of several primitives at once on storage of this dtype.

    A kernel widens, computes and accumulates in FP32 registers and stores with one rounding to nearest. It may stand in
    for an op's definition only where the policy in use asks for just that and no observer hears the primitives.
    """
    return not here.inside and dtype in (float16, float32) and plain(dtype)


def kernel(definition: Callable) -> Callable[[Callable], Callable]:
    """`fast_path` for a phase of an op that kernels do: it runs where `may_fuse` says so."""

    def register(faster: Callable) -> Callable:
        @wraps(faster)
        def able(op: Any, *arrays: Any, **options: Any) -> Any:
            return faster(op, *arrays, **options) if may_fuse(op.storage) else NotImplemented

        return fast_path(definition)(able)

    return register
