"""Memory layouts, as CUDA kernels see them, and how blocks of threads share them. An op's arrays have a meaning (N, C,
H, W) and an order in memory (the convolutions write C, H, W, N); a kernel wants to know which axes are neighbours in
memory.
"""

from __future__ import annotations

from functools import lru_cache
from math import prod
from typing import Any

from ..arguments import LONGEST
from .kernels import STORAGE, Kernels

Array = Any
KERNELS = Kernels(__file__)


@lru_cache(4096)
def _lies(shape: tuple[int, ...], strides: tuple[int, ...], itemsize: int) -> tuple[tuple, bool]:
    """The axes from the slowest to the fastest in memory, without those of length 1; and whether there are no gaps."""
    # stable: equal strides (of empty arrays) keep their order
    order = sorted([a for a in range(len(shape)) if shape[a] != 1], key=lambda a: -strides[a])
    steps = [itemsize * prod(shape[a] for a in order[i + 1 :]) for i in range(len(order))]
    return tuple(order), steps == [strides[a] for a in order]


def memory_order(x: Array) -> tuple[int, ...]:
    """The axes of x from the slowest to the fastest in memory, without those of length 1."""
    return _lies(x.shape, x.strides, x.itemsize)[0]


def dense(x: Array) -> bool:
    """True if x fills one block of memory without gaps or repetitions."""
    return _lies(x.shape, x.strides, x.itemsize)[1]


def compact(xp: Any, x: Array) -> Array:
    return x if dense(x) else xp.ascontiguousarray(x)


def contiguous(xp: Any, x: Array) -> Array:
    """x itself where it is C-contiguous, else a copy that is."""
    if x.flags.c_contiguous:
        return x
    y = xp.empty(x.shape, x.dtype)
    _copy(x, y)
    return y


def images_last(xp: Any, x: Array) -> Array:
    return contiguous(xp, x.transpose(1, 2, 3, 0))


def _copy(x: Array, y: Array) -> None:
    """y[...] = x, for the dense y. Where the axes that are slowest in x are the fastest in y, as between (N, C, H, W)
    and (C, H, W, N), a matrix is transposed, which a kernel does: CuPy's copies read or write scattered elements then.
    """
    before, after = memory_order(x), memory_order(y)
    k = before.index(after[0]) if after else 0
    rows, columns = prod(x.shape[a] for a in before[:k]), prod(x.shape[a] for a in before[k:])
    turned = k > 0 and before[k:] + before[:k] == after and dense(x)
    if turned and x.dtype in STORAGE and rows * columns > 0 and max(rows, columns) <= LONGEST:
        tiles = ceil_div(rows, TILE) * ceil_div(columns, TILE)
        KERNELS.launch("transpose_matrix", x.dtype, tiles, THREADS, x, y, rows, columns)
    else:
        y[...] = x  # rounds: never, both have one dtype


def same_layout(x: Array, y: Array) -> bool:
    """True if kernels may walk both arrays as flat memory: one shape, dense, one order."""
    return x.shape == y.shape and dense(x) and dense(y) and memory_order(x) == memory_order(y)


def matching(xp: Any, x: Array, like: Array) -> Array:
    """x in the memory order of the dense array `like`, which has its shape: x itself if it has that order already."""
    if same_layout(like, x):
        return x
    y = xp.empty_like(like, dtype=x.dtype)
    _copy(x, y)
    return y


def channels(x: Array, axis: int = 1) -> tuple[int, int, int]:
    """The dense x as (outer, C, inner) around one kept axis: x[(o * C + c) * inner + i].

    (N, C, H, W) is (N, C, HW); in the order C, H, W, N it is (1, C, HWN); (N, C) is (N, C, 1).
    """
    order = memory_order(x)
    if axis not in order:  # its length is 1
        return 1, 1, x.size
    place = order.index(axis)
    return prod(x.shape[a] for a in order[:place]), x.shape[axis], prod(x.shape[a] for a in order[place + 1 :])


# --------------------------------------------------------------------------------------------------- sharing the work

THREADS = 256  # per block, unless a kernel needs another number
TILE = 64  # rows and columns of a matrix that a block transposes; layout.cu has the same
ENOUGH = 1024  # blocks that keep a large GPU busy: below it, long sums are split over several


def ceil_div(n: int, d: int) -> int:
    return -(-n // d)


def power_of_two(n: int) -> int:
    return 1 << (n - 1).bit_length()


def row_lanes(n: int, pack: int) -> int:
    """The number of threads that share a row of n neighbours: two packs each, up to a warp; a block for long rows."""
    packs = ceil_div(n, pack)
    return THREADS if packs > 128 else min(32, power_of_two(ceil_div(packs, 2)))


def blocks(n: int, per_block: int, most: int = 65535 * 32) -> int:
    """The number of blocks that cover n items, from 1 to `most` (kernels stride over the rest)."""
    return max(1, min(ceil_div(n, per_block), most))
