"""The division of sums along one axis, over channels and over the last axes among a GPU's blocks, by `rows.cuh` and
beside the ops. A plan is made for a dense array, and is None for one that no kernel takes.
"""

from __future__ import annotations

from functools import cache
from math import prod
from typing import Any, NamedTuple

import numpy as np

from ..arguments import LONGEST
from ..precision import widen
from .kernels import Kernels
from .layout import ENOUGH, THREADS, Array, ceil_div, channels, power_of_two, row_lanes

LEAST_PER_BLOCK = 8192  # elements: fewer are not worth a block of their own


def reduced(xp: Any, x: Array, dim: int, dtype: Any = "float32") -> Array:
    """Room for a statistic of x along dim, in x's memory order."""
    return xp.empty_like(x[tuple([slice(0, 1) if a == dim else slice(None) for a in range(x.ndim)])], dtype)


def vector(xp: Any, v: Array | None) -> Array | None:
    """A parameter or statistic as the kernels take it: FP32 without gaps."""
    return None if v is None else xp.ascontiguousarray(widen(v))


@cache
def ints(*numbers: int) -> tuple[np.int32, ...]:
    return tuple([np.int32(n) for n in numbers])


class Channels(NamedTuple):
    """x seen as (outer, channels, run), for sums over all but the channels (batch norm; see norm.cu)."""

    outer: int
    channels: int
    run: int
    lanes: int  # neighbouring threads that walk along one run of memory; a power of two
    rows_per_part: int
    columns_per_part: int
    parts: int  # blocks that share a channel (or neighbouring channels)
    groups: int  # channels, or groups of neighbouring channels

    def launch(self, kernels: Kernels, name: str, x: Array, *others: Any) -> None:
        name = name if self.run > 1 else f"{name}_columns"
        kernels.launch(name, x.dtype, self.groups * self.parts, THREADS, x, *others, *ints(*self[:-1]))

    def room(self, xp: Any, x: Array) -> Array:
        """Room for what every part accumulates: up to 1 + 2 V floats for V channels."""
        v = 1 if self.run > 1 else 16 // x.itemsize
        return xp.empty(self.parts * ceil_div(self.channels, v) * (1 + 2 * v), "float32")

    def sums(self, kernels: Kernels, xp: Any, name: str, x: Array, *others: Array) -> Array | None:
        """The parts' sums, or None where each channel is one part: the next kernel then sums by itself."""
        if self.parts == 1:
            return None
        work = self.room(xp, x)
        self.launch(kernels, name, x, *others, work)
        return work


def over_channels(x: Array) -> Channels | None:
    return over_all_but(*channels(x), 16 // x.itemsize)


def over_all_but(outer: int, c: int, run: int, pack: int) -> Channels | None:
    """The plan for sums over all but c channels, of packs of neighbours."""
    if not 0 < min(outer, c, run) <= max(outer, c, run) <= LONGEST:
        return None
    if run == 1:
        return over_columns(outer, c, pack)
    rows, columns, parts = outer, run, _parts(c, outer * run)
    if parts <= outer:
        rows = ceil_div(outer, parts)
    else:
        columns = ceil_div(ceil_div(run, parts), pack) * pack
    lanes = min(THREADS, power_of_two(ceil_div(columns, pack)))
    return Channels(outer, c, run, lanes, rows, columns, ceil_div(outer, rows) * ceil_div(run, columns), c)


def over_columns(rows: int, c: int, pack: int, split: bool = True) -> Channels:
    """The plan for sums over the rows of a matrix. split: whether several blocks may share a column."""
    lanes = min(16, power_of_two(ceil_div(c, pack)))  # a block takes lanes * pack columns, and its threads rows of them
    groups = ceil_div(c, lanes * pack)
    parts = min(_parts(groups, rows * lanes * pack), 8 * THREADS // lanes) if split else 1
    per_part = ceil_div(rows, parts)
    return Channels(rows, c, 1, lanes, per_part, 1, ceil_div(rows, per_part), groups)


def _parts(groups: int, n: int) -> int:
    """Into how many parts to split each of `groups` sums over n elements: enough blocks, none of them too small."""
    return max(1, min(ENOUGH // groups, n // LEAST_PER_BLOCK))


class Rows(NamedTuple):
    rows: int
    length: int
    lanes: int  # threads per row

    def launch(self, kernels: Kernels, name: str, x: Array, *others: Any) -> None:
        kernels.launch(name, x.dtype, ceil_div(self.rows * self.lanes, THREADS), THREADS, x, *others, *self)


def over_last(x: Array, axes: tuple) -> Rows | None:
    """The plan for sums of the C-contiguous x over its last axes."""
    length = prod(x.shape[axes[0] :])
    if not x.size or length > LONGEST:
        return None
    return Rows(x.size // length, length, row_lanes(length, 16 // x.itemsize))


def along(x: Array, dim: int) -> Rows | None:
    """The plan for sums of the dense x along dim, where that is a run of memory."""
    rows, length, run = channels(x, dim)
    if run > 1 or not rows or not 0 < length <= LONGEST:
        return None
    return Rows(rows, length, row_lanes(length, 16 // x.itemsize))
