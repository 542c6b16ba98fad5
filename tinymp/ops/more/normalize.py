"""normalize: vectors of length 1, by any p-norm."""

from __future__ import annotations

from ...arguments import axis, floating, name_all, number
from ...dtypes import HALVES
from ...tensor import Tensor
from ..pointwise import clamp, div
from .vector_norm import norm


def normalize(input: Tensor, p: float = 2.0, dim: int = 1, eps: float = 1e-12) -> Tensor:
    """input / max(its p-norm along dim, eps), p as in `norm`; of FP32 ops (there eps is not 0), rounded once."""
    x = floating("normalize", "input", input)
    eps = number("normalize", "eps", eps, 0)
    d = axis("normalize", dim, x.ndim or 1)
    wide = x.float() if x.dtype in HALVES else x
    return div(wide, clamp(norm(wide, p, d if x.ndim else None, True), min=eps)).to(x.dtype)


name_all(globals())
