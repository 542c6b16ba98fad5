"""Sums by kernels (sums.cu) where they are over all axes but neighbours in memory: a bias's gradient, a loss."""

from __future__ import annotations

from math import prod
from typing import Any

from .kernels import STORAGE, Kernels
from .layout import Array, dense, memory_order, row_lanes
from .rows import Rows, over_all_but, over_columns

KERNELS = Kernels(__file__)


def sums(xp: Any, x: Array, axes: tuple[int, ...]) -> Array | None:
    """The FP32 sums of x over axes, which stay with length 1. None for an x that no kernel takes."""
    order = memory_order(x)
    kept = [a for a in order if a not in axes]
    first = order.index(kept[0]) if kept else 0
    last = first + len(kept)
    if x.dtype not in STORAGE or not x.size or list(order[first:last]) != sorted(kept) or not dense(x):
        return None
    outer, c, run = (prod(x.shape[a] for a in some) for some in (order[:first], order[first:last], order[last:]))
    shape = [1 if a in axes else n for a, n in enumerate(x.shape)]
    if c == 1:
        outer, run = 1, outer * run
    if (plan := over_all_but(outer, c, run, 16 // x.itemsize)) is None:
        return None
    if outer == 1 and plan.parts == 1:
        return rows(xp, x, c, run, shape)
    y = xp.empty((plan.parts, *shape), "float32")
    plan.launch(KERNELS, "sum", x, y)
    return parts(xp, y)


def rows(xp: Any, x: Array, n: int, length: int, shape: list[int]) -> Array:
    """The sums of x, seen as (n, length), over each row."""
    y = xp.empty(shape, "float32")
    Rows(n, length, row_lanes(length, 16 // x.itemsize)).launch(KERNELS, "sum_rows", x, y)
    return y


def parts(xp: Any, x: Array) -> Array:
    """The sum of what each block has left: the FP32 x over its first axis, which goes."""
    n, c = len(x), x.size // len(x)
    if n == 1:
        return x[0]
    if c == 1:
        return rows(xp, x, 1, n, x.shape[1:])
    y = xp.empty(x.shape[1:], "float32")
    over_columns(n, c, 4, split=False).launch(KERNELS, "sum", x, y)
    return y
