"""Operands of products in formats that no array here has: FP8, in arrays of the storage dtype."""

from __future__ import annotations

import weakref
from typing import Any

import numpy as np

from .. import backend
from ..dtypes import HALVES
from ..events import here, tell
from ..precision import widen
from .formats import Format, Scaled

Array = Any

# The arrays that `rounded` returned, by id: the array, its format, and the gradient that was rounded
_made: dict[int, tuple[weakref.ref, Format, Array | None]] = {}


def rounded(x: Array, scaled: Scaled, gradient: bool) -> Array:
    """x in a scaled format, where it has two axes or more and is FP16 or BF16, else x itself. What is not finite stays
    so (NaN where there are no infinities): the loss scaler must hear of it. A finite number that is too large saturates
    in formats with a scale; in the others it becomes infinite or NaN.
    """
    if x.dtype not in HALVES or x.ndim < 2:
        return x
    wide, device = widen(x), backend.of(x)
    with np.errstate(all="ignore"):
        # rounds: an operand of a product, as FP8 or another format holds it
        y = device.cast(scaled.round(wide), x.dtype)
    key = id(y)
    _made[key] = weakref.ref(y, lambda _: _made.pop(key, None)), scaled.format, x if gradient else None
    if here.inside:
        tell("rounded", wide, y)
    return y


def emulated(x: Array) -> Format | None:
    """The format whose numbers the array x holds, if `rounded` made it."""
    made, kind, _ = _made.get(id(x), (None, None, None))
    return kind if made is not None and made() is x else None


def unrounded(dy: Array) -> Array:
    """The gradient that `rounded` made dy of, else dy."""
    made, _, before = _made.get(id(dy), (None, None, None))
    return dy if made is None or made() is not dy or before is None else before
