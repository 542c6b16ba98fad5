"""Computes what the precision primitives decide, on the arrays of NumPy and of CuPy. Nothing here decides.

A product of two FP16 numbers has at most 22 significant bits and is exact in FP32, so "widen, multiply matrices in
FP32, round once" is the arithmetic of a Tensor Core up to the order of the summation (MPT section 3.3).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter
from typing import Any

import numpy as np

from .. import fast_path
from ..events import quietly
from .extras import held

Array = Any

_F16, _F32, _F64 = np.dtype(np.float16), np.dtype(np.float32), np.dtype(np.float64)
SIGNED = {"u": np.int64}  # sums of uint8, as in PyTorch: NumPy makes float64 of uint64 and int64
CHAIN = 64  # long sums add so many terms, or sums of terms, in sequence
SHORT = 4 * CHAIN  # sums of at most so many terms are not cut into chains


replaceable = fast_path.replaceable(attrgetter("name"))


class Device:
    """The arrays of one library. name: its public name; xp: the library; array_type: the class of its arrays."""

    xp: Any
    array_type: Any
    has_values = True  # False for arrays that have shapes alone
    keeps_order = True  # True if `store` gives results the memory order of `like`, at the cost of a copy

    def __init__(self, name: str, xp: Any = None) -> None:
        self.name, self.xp = name, xp
        self.array_type = getattr(xp, "ndarray", None)
        # For everything random here: initialisation, dropout, stochastic rounding
        self.generator: Any = np.random.Generator(np.random.PCG64(0))

    def first_use(self) -> None:
        """Called before the first array is made here."""

    # ---- for the precision primitives

    @replaceable
    def cast(self, x: Array, dtype: np.dtype) -> Array:
        """x in another floating dtype, rounded to nearest, ties to even. The memory order of x is kept."""
        return quietly(x.astype, dtype)  # rounds: `store` by the library: to nearest, ties to even

    @replaceable
    def cast_stochastic(self, x: Array) -> Array:
        """x in FP16, rounded up or down with a probability given by its distance to each neighbour.

        Round(x) = z2 with probability (x - z1) / (z2 - z1), else z1, for the FP16 neighbours z1 <= x <= z2. (MPT v1,
        appendix A, prints the two probabilities interchanged; its text, "proportional to the proximity", is this.)
        """
        xp, wide = self.xp, x.astype(_F64)  # rounds: never, FP32 -> FP64 is exact
        ulp = xp.maximum(xp.frexp(wide)[1] - 1, -14) - 10  # 10 fraction bits; below 2^-14 the spacing stays 2^-24
        steps = xp.ldexp(wide, -ulp)
        low = xp.floor(steps)
        with np.errstate(invalid="ignore"):  # inf - inf
            # rounds: `store` at random, to one of two neighbours in FP16
            low = low + (self.asarray(self.generator.random(x.shape)) < steps - low)  # an exact difference
        return self.cast(xp.copysign(xp.ldexp(low, ulp), wide), _F16)  # rounds: never, `low` was rounded already

    def gemm(self, a: Array, b: Array, bias: Any = None, tf32: bool = False, rounded: bool = False) -> Array:
        """a @ b (+ bias) in FP32 (FP64 for FP64).

        tf32: round FP32 operands to TF32 first. rounded: a library that can round its accumulators by itself, once and
        to nearest, may return them rounded; the definition leaves that to `store`.
        """
        a, b = self._widened(a), self._widened(b)
        c = self.xp.matmul(*((self.tf32(a), self.tf32(b)) if tf32 else (a, b)))  # rounds: `gemm` by BLAS: FP32 sums
        if bias is not None:
            c += self._widened(bias)
        return c

    def _widened(self, x: Array) -> Array:
        # rounds: never, FP16 and BF16 -> FP32 is exact
        return self.cast(x, _F32) if x.dtype.itemsize == 2 and x.dtype.kind in "fV" else x  # BF16 is "void" to NumPy

    def tf32(self, x: Array) -> Array:
        """FP32 without the last 13 bits of the fraction, to nearest, ties away from 0; inf and nan stay.

        So does cvt.rna.tf32.f32, whose products had the bits of cuBLAS on an A100 (triton-lang/triton, issue 4574).
        """
        rounded = ((x.view(np.uint32) + 0x1000) & np.uint32(0xFFFFE000)).view(_F32)  # rounds: operands to TF32
        return self.xp.where(self.xp.isfinite(x), rounded, x)

    def reduce(self, x: Array, axis: Any, how: str) -> Array:
        """sum, mean, max, min or cumsum in x's own dtype, FP32 for FP16; reduced axes stay with length 1.

        Sums: no more than SHORT floating numbers are added in sequence. Along the axes that are fastest in memory, and
        without gaps, NumPy sums pairwise, which is more accurate still. Along all others it adds one by one: the sum of
        four million times 0.1 over a leading axis would be wrong by 3.9 %.
        """
        x, axes = self._widened(x), (axis,) if isinstance(axis, int) else axis
        if how in ("max", "min"):
            return getattr(self.xp, how)(x, axis=axis, keepdims=True)
        if how == "cumsum":
            return held("ops.reduce.running_sums")(self.xp, x, axis % x.ndim)
        few = x.size <= SHORT or x.dtype.kind != "f" or self.count(x, axes) <= SHORT
        if few or (0 not in x.strides and self.count(x, _naive(x, axes)) <= SHORT):
            # rounds: `reduce`: short FP32 sums, in NumPy's order
            total = self.xp.sum(x, axis=axis, dtype=SIGNED.get(x.dtype.kind), keepdims=True)
        else:
            total = self._sum_in_blocks(x, axes)
        return total if how == "sum" else total / self.count(x, axes)

    def _sum_in_blocks(self, x: Array, axes: tuple[int, ...]) -> Array:
        """The sum over axes: at most CHAIN terms are added in sequence, then CHAIN of their sums, and so on.

        NumPy walks an array from its slowest to its fastest axis in memory, and so do the blocks; repeated (stride 0)
        axes stay in their order.
        """
        order = sorted(range(x.ndim), key=lambda a: abs(x.strides[a]) or math.inf, reverse=True)
        y = self._sum_ordered(x.transpose(order), tuple(order.index(a % x.ndim) for a in axes))
        return y.transpose([order.index(a) for a in range(x.ndim)])

    def _sum_ordered(self, x: Array, axes: tuple[int, ...]) -> Array:
        """`_sum_in_blocks` of an x whose axes are ordered from the slowest to the fastest."""
        naive = _naive(x, axes)
        chain = self.count(x, naive)
        if chain <= CHAIN:
            return self.xp.sum(x, axis=axes, keepdims=True)  # rounds: `reduce` of one chain: FP32 sums in NumPy's order
        first = min(naive)
        others, n = tuple(a for a in axes if a != first), x.shape[first]
        block = CHAIN // (chain // n)
        if block < 2:
            return self._sum_ordered(self._sum_ordered(x, others), (first,))
        whole = n - n % block
        blocks = part(x, first, slice(whole)).reshape(*x.shape[:first], -1, block, *x.shape[first + 1 :])  # a view
        # rounds: `reduce`: the FP32 sums of chains
        sums = self.xp.sum(blocks, axis=tuple(a + (a >= first) for a in axes), keepdims=True).squeeze(first + 1)
        if whole < n:
            tail = self.xp.sum(part(x, first, slice(whole, None)), axis=axes, keepdims=True)  # rounds: FP32 sums
            sums = self.xp.concatenate([sums, tail], axis=first)
        return self._sum_ordered(sums, (first,))

    def count(self, x: Array, axis: Any) -> int:
        """The number of elements of x that are reduced to one over axis."""
        return math.prod([x.shape[a] for a in ((axis,) if isinstance(axis, int) else axis)])

    @replaceable
    def scatter_add_rows(self, n_rows: int, index: Array, rows: Array) -> Array:
        """Zeros (n_rows, ...) with rows[i] added to row index[i], in order of i and in the dtype of rows.

        index: (len(rows),), integers in [0, n_rows). The gradient of every lookup. Many rows with the same index are
        added in blocks, as in `reduce`; FP16 ones, which a study sums, always one after the other.
        """
        # rounds: never, whole numbers
        xp, index = self.xp, index.astype(np.intp, copy=False)  # uint8 * width would wrap around
        if len(index) > SHORT and rows.dtype != _F16 and int(xp.bincount(index).max()) > SHORT:
            order = xp.argsort(index, kind="stable")
            ranked = index[order]
            rank = xp.arange(len(index)) - xp.searchsorted(ranked, ranked)  # how many equal ones come before it
            first, block = rank % CHAIN == 0, xp.empty(len(index), np.intp)
            block[order] = xp.cumsum(first) - 1  # rounds: never, whole numbers are counted
            sums = self.scatter_add_rows(int(first.sum()), block, rows)  # rounds: `scatter_add`: FP32 sums of blocks
            return self.scatter_add_rows(n_rows, ranked[first], sums)  # rounds: `scatter_add`: FP32 sums of the blocks
        out = xp.zeros((n_rows, *rows.shape[1:]), rows.dtype)
        width = math.prod(rows.shape[1:])
        places = (index[:, None] * width + xp.arange(width)).reshape(-1)  # numpy.add.at is fast for one axis alone
        xp.add.at(out.reshape(-1), places, rows.reshape(-1))  # rounds: `scatter_add`: row after row, in their dtype
        return out

    # ---- for the ops

    @replaceable
    def map(self, f: Callable, *operands: Any, **options: Any) -> Any:
        """f(*operands, **options), for an f that makes each element of its results from one of each array alone.

        A device may run f block by block, or call it once with symbols and compile the resulting expression. Therefore
        f takes all arrays and numbers as arguments, branches on none of them, and uses only arithmetic, selections,
        casts and `store`. It returns an array, or a tuple of arrays and None.
        """
        return f(*operands, **options)

    @replaceable
    def map_into(self, targets: Sequence[Array], f: Callable, *operands: Any) -> None:
        """target[...] = y for each of the results of f, as `map` computes them; targets may be among the operands."""
        for target, y in zip(targets, f(*operands), strict=True):
            target[...] = y  # rounds: never, both have one dtype

    def asarray(self, x: Any) -> Array:
        """x, from a CPU or GPU, as an array of this device."""
        return x if isinstance(x, (np.ndarray, np.generic)) else x.get()

    def to_numpy(self, x: Array) -> np.ndarray:
        """x on the host."""
        return x

    @replaceable
    def require(self, good: Array, error: type[Exception], message: str, values: Array | None = None) -> None:
        """Raise error(message) unless all of `good` is True; the message names the first of `values` that is not good.

        An asynchronous device records the failure and raises later, without the value.
        """
        if not self.every(good):
            where = tuple(int(i) for i in self.xp.argwhere(~good)[0])
            at = f" at index {where[0] if len(where) == 1 else where}" if where else ""
            seen: Any = None if values is None else values[where]
            got = seen.tolist() if getattr(seen, "ndim", 0) else seen
            raise error(message if values is None else f"{message}, got {got}{at}")

    def every(self, mask: Array) -> bool:
        """True if all elements of a boolean array are True."""
        return not mask.size or bool(mask.view(np.uint8).min())  # CuPy has this minimum compiled, and no all()

    @replaceable
    def isfinite(self, x: Array) -> bool:
        """True if x has neither an infinity nor a NaN."""
        return bool(self.xp.isfinite(x).all())

    def first_bad(self, arrays: Iterable[Array]) -> int | None:
        """The place of the first array with an infinity or NaN; None if there is none."""
        return next((i for i, x in enumerate(arrays) if not self.isfinite(self.asarray(x))), None)

    def select(self, mask: Array, x: Array) -> Array:
        """x where mask is True, else +0, exactly: an inf or NaN that is not selected has no effect (unlike x * mask).

        The bits times 0 or 1: no branch. `numpy.where` on an unpredictable mask is 20 times slower.
        """
        return (self.bits(x) * mask).view(x.dtype)

    @replaceable
    def where(self, mask: Array, x: Array, y: Array) -> Array:
        """x where mask is True, else y, broadcast, exactly; arrays or scalars of one dtype."""
        return self.xp.where(mask, x, y)

    @replaceable
    def concatenate(self, arrays: Sequence[Array], axis: int) -> Array:
        """The arrays one after another along axis."""
        return self.xp.concatenate(arrays, axis)

    def bits(self, x: Array) -> Array:
        """The bit patterns of x as unsigned integers, in the same memory."""
        return x.view(np.dtype(f"u{x.dtype.itemsize}"))

    @replaceable
    def uniform(self, shape: tuple[int, ...]) -> Array:
        """FP32 numbers in [0, 1) from the generator."""
        return self.asarray(self.generator.random(shape, dtype=_F32))

    @replaceable
    def copy_all(self, sources: Sequence[Array], targets: Sequence[Array], wanted: Any = True) -> None:
        """target[...] = source for each pair, if `wanted`."""
        if wanted:
            for source, target in zip(sources, targets, strict=True):
                target[...] = source  # rounds: never, both have one dtype

    @replaceable
    def manual_seed(self, seed: int) -> None:
        """Restart the generator from `seed`."""
        self.generator.bit_generator.state = np.random.PCG64(seed).state

    @replaceable
    def get_rng_state(self) -> dict:
        """The state of the generator."""
        return dict(self.generator.bit_generator.state)

    @replaceable
    def set_rng_state(self, state: dict) -> None:
        """Put the generator back into an earlier state."""
        self.generator.bit_generator.state = state


def part(x: Array, axis: int, some: slice) -> Array:
    """x[some] along axis."""
    return x[(slice(None),) * axis + (some,)]


def _naive(x: Array, axes: tuple[int, ...]) -> list[int]:
    """The axes that NumPy adds one by one, not pairwise: those not contiguous with the faster ones."""
    naive, step = [], x.itemsize
    for a in sorted(axes, key=x.strides.__getitem__):
        if x.strides[a] == step:
            step *= x.shape[a]
        elif x.shape[a] > 1:
            naive.append(a)
    return naive
