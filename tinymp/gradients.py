"""A gradient is an array, or an object that holds some rows of one. This module sums the gradients of one tensor.

An object of rows has `shape`, `dtype` and `values`, the array of its numbers, and the methods like(values), dense(),
add(other), rows(x) and put(x); see sparse.SparseRows.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from . import backend
from .precision import store, widen

Array = Any


def values_of(g: Any) -> Any:
    """The array that holds a gradient's numbers."""
    return getattr(g, "values", g)


def with_values(g: Any, values: Array) -> Any:
    """A gradient like g with other numbers."""
    return g.like(values) if hasattr(g, "like") else values


def rows_of(x: Array, g: Any) -> Array:
    """The part of x that belongs to the gradient g: x itself, or a copy of some rows."""
    return g.rows(x) if hasattr(g, "rows") else x


def put(x: Array, g: Any) -> None:
    """x[...] = g in place, or only the rows that g names."""
    if hasattr(g, "rows"):
        g.put(x)
    else:
        x[...] = g  # rounds: never, g has the dtype of x


def added(total: Any, part: Any) -> Any:
    """total + part for two gradients of one tensor, in FP32 and in the memory order of the first."""
    if hasattr(total, "add") or hasattr(part, "add"):
        return total.add(part) if hasattr(total, "add") else part.add(total)
    return backend.of(total).map(_sum, total, part)


def _sum(total: Array, part: Array) -> Array:
    total = widen(total)
    return store(total + widen(part), like=total)


def gathered(total: Any, part: Any) -> Any:
    """Add one more gradient of a tensor. The last two stay a pair, which `joined` adds and rounds in one pass."""
    total = added(*total) if isinstance(total, tuple) else total
    return added(total, part) if hasattr(total, "add") or hasattr(part, "add") else (total, part)


def joined(total: Any, like: Any) -> Any:
    """The sum of a tensor's gradients, in FP32 where there were several, rounded once to the dtype of `like`."""
    if isinstance(total, tuple):
        like = Target(like.shape, like.dtype, like.strides)
        return backend.of(total[0]).map(lambda total, part: store(_sum(total, part), like), *total)
    return total.like(store(total.values, like)) if hasattr(total, "like") else store(total, like)


class Target(NamedTuple):
    """The shape, dtype and memory order that the gradient of an argument must have."""

    shape: tuple[int, ...]
    dtype: np.dtype
    strides: tuple[int, ...] | None = None  # None: any memory order
