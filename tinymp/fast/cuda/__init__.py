"""Fast paths on CuPy's arrays: CUDA kernels, each next to the Python file that launches it."""

from __future__ import annotations

from functools import partial

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


# for a phase of an op that kernels do
kernel = partial(fast_path, where=lambda op: may_fuse(op.storage))
