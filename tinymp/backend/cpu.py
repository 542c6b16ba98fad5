"""The CPU backend: NumPy for mathematics, NumKong for FP16 casts, BLAS (through NumPy) for products.

These functions carry out what the gates in `precision.py` decide; they decide nothing. A product of two FP16
numbers has at most 22 significant bits and is exact in FP32, so "widen, SGEMM, round once" is the arithmetic
of a Tensor Core up to the order of the summation (MPT section 3.3).

Measured: NumPy casts FP16 at 0.7 Gelem/s, NumKong at 9 to 15 with the same bits.
"""

from __future__ import annotations

from . import blas

blas.load_numpy()  # OpenBLAS reads two settings when NumPy loads it, and never again; TINYMP_BLAS=0 leaves them alone

import ctypes
import math
import os
import sys
import warnings
from collections.abc import Callable, Sequence
from threading import Lock
from typing import Any

import numpy as np

from ..events import quietly
from . import threads
from .extras import hint
from .threads import share

numkong: Any = None  # without it the casts below fall back on NumPy: the same bits, a tenth of the speed
without_numkong = f"numkong is not installed: {hint('fast')}"
try:
    import numkong
except ModuleNotFoundError as error:
    if error.name != "numkong":
        raise
except ImportError as error:
    without_numkong = f"numkong is installed, but its import fails ({error})"
    warnings.warn(f"tinymp: FP16 casts are slow: {without_numkong}", RuntimeWarning, stacklevel=2)

Array = Any
name = "cpu"
xp = np

_F16, _F32, _F64 = np.dtype(np.float16), np.dtype(np.float32), np.dtype(np.float64)
_NUMKONG_NAMES = {_F16: "float16", _F32: "float32", _F64: "float64"}


BLOCK = 1 << 18  # elements: a few FP32 copies of as many stay in the cache (measured: a quarter faster than 2^16)
keeps_memory = False


def keep_freed_memory() -> bool:
    """Ask glibc to keep freed blocks for reuse instead of returning every large one to the kernel; whether it agreed.

    A training step frees and allocates the same sizes over and over. By default each array above 32 MiB, and
    often smaller ones, come back as unmapped pages; touching them costs more than the arithmetic (measured: a
    6 MB product of two arrays takes 0.85 ms fresh, 0.18 ms reused). All threads draw on one store, so that what one has
    freed serves the others. It is for the whole process, also for what is not tinymp's, and therefore a program's
    decision: tinymp's own programs call this, and `import tinymp` does not.
    """
    global keeps_memory
    if not sys.platform.startswith("linux"):
        return False
    M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_ARENA_MAX = -1, -3, -8
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):  # another C library, without this setting
        return False
    sizes = {M_MMAP_THRESHOLD: 1 << 30, M_TRIM_THRESHOLD: (1 << 31) - 1, M_ARENA_MAX: 1}
    keeps_memory = all(mallopt(*setting) for setting in sizes.items())
    return keeps_memory


def free_memory() -> int | None:
    """The bytes that this process may still ask for, as Linux says, or None."""
    try:
        import resource

        with open("/proc/meminfo", "rb") as file:
            free = next(int(line.split()[1]) * 1024 for line in file if line.startswith(b"MemAvailable"))
        limit = resource.getrlimit(resource.RLIMIT_AS)[0]
        with open("/proc/self/statm", "rb") as file:
            used = int(file.read().split()[0]) * resource.getpagesize()
    except (ImportError, OSError, StopIteration):
        return None
    return free if limit == resource.RLIM_INFINITY else max(min(free, limit - used), 0)


def info() -> dict[str, str]:
    """What this backend runs on, for `mp.info()`."""
    return {
        "backend": f"cpu (NumPy {np.__version__})",
        "FP16 casts": f"NumKong {numkong.__version__}" if numkong else f"NumPy: slower ({without_numkong})",
        "BLAS": blas.describe(),
        "cores": str(os.cpu_count()),
        "freed memory": "kept for reuse" if keeps_memory else "returned to the system",
    }


def cast(x: Array, dtype: np.dtype) -> Array:
    """x in another floating dtype, rounded to nearest, ties to even. The memory order of x is kept."""
    if x.size < 64 and x.dtype == _F16:
        return x.astype(dtype)  # exact, and cheaper for a handful of values
    # NumKong would take FP64 to FP16 by way of FP32, two roundings, and takes longer for a few values out of order.
    # BF16 is ml_dtypes'
    known = numkong is not None and x.dtype in _NUMKONG_NAMES and dtype in _NUMKONG_NAMES
    if not known or (x.dtype == _F64 and dtype == _F16) or (x.size < 64 and not x.flags.c_contiguous):
        return quietly(x.astype, dtype)
    if not x.flags.aligned:  # np.frombuffer(..., offset=1), packed records: NumKong refuses them
        x = x.copy(order="K")
    if x.flags.c_contiguous:
        out = np.empty(x.shape, dtype)
        numkong.astype(x, _NUMKONG_NAMES[dtype], out=out)
        return out
    # NumKong writes C-contiguous arrays only: hand it the axes in the order in which they lie in memory.
    out = np.empty_like(x, dtype=dtype)
    order = sorted(range(x.ndim), key=out.strides.__getitem__, reverse=True)
    x = x.transpose(order)
    if x.strides[-1] != x.itemsize:  # single elements, one by one: to copy them first takes a fifth of the time
        x = np.ascontiguousarray(x)
    numkong.astype(x, _NUMKONG_NAMES[dtype], out=out.transpose(order))
    return out


def cast_stochastic(x: Array) -> Array:
    """x in FP16, rounded up or down with a probability given by its distance to each neighbour.

    Round(x) = z2 with probability (x - z1) / (z2 - z1), else z1, for the FP16 neighbours z1 <= x <= z2. (MPT v1,
    appendix A, prints the two probabilities interchanged; its text, "proportional to the proximity", is this.)
    """
    wide = x.astype(_F64)
    exponent = np.frexp(wide)[1] - 1
    ulp = np.maximum(exponent, -14) - 10  # FP16 keeps 10 fraction bits; below 2^-14 the spacing stays 2^-24
    steps = np.ldexp(wide, -ulp)
    low = np.floor(steps)
    with np.errstate(invalid="ignore"):  # inf - inf
        low = low + (generator.random(x.shape) < steps - low)  # an exact difference: 0 never rounds up
    return cast(np.copysign(np.ldexp(low, ulp), wide), _F16)


gemm_rounds = False


def gemm(a: Array, b: Array, bias: Any, acc: Any, compute: str, chunk: int, storage: np.dtype, rounded: bool) -> Array:
    """a @ b (+ bias) (+ acc) with accumulators of dtype `compute`, returned as they are: FP32, or FP64 for FP64.

    BLAS sums FP16 products exactly enough once they are widened (see above). "tf32" rounds FP32 operands first.
    """
    a, b = _widened(a), _widened(b)
    if compute == "float16":
        c = matmul_fp16(a, b, chunk, acc)
    else:
        c = np.matmul(*(map(_tf32, (a, b)) if compute == "tf32" else (a, b)))
        if acc is not None:
            c += acc
    if bias is not None:
        c += _widened(bias)
    return c


def _widened(x: Array) -> Array:
    return cast(x, _F32) if x.dtype.itemsize == 2 and x.dtype.kind in "fV" else x  # FP16, or BF16: NumPy's "void"


def _tf32(x: Array) -> Array:
    """FP32 with the last 13 bits of the fraction rounded away (to nearest, ties to even; inf and nan stay)."""
    u = x.view(np.uint32)
    rounded = ((u + (0x0FFF + (u >> 13 & 1))) & 0xFFFFE000).view(_F32)
    return np.where(np.isfinite(x), rounded, x)


def matmul_fp16(a: Array, b: Array, chunk: int, acc: Array | None = None) -> Array:
    """The product of FP32 operands with an FP16 accumulator, returned in FP32.

    `chunk` products at a time are summed exactly enough and then added to the accumulator with one rounding to FP16,
    as a Tensor Core with FP16 accumulators does with its step of 4 (NVG section 2.2). In FP64 up to 16 products, as
    many as Tensor Cores take in a step: no bit depends on the order of BLAS, which follows the shapes. More in FP32.
    """
    wide = _F64 if chunk <= 16 else _F32
    for k in range(0, a.shape[-1], chunk):
        part = np.matmul(a[..., k : k + chunk], b[..., k : k + chunk, :], dtype=wide).astype(_F32, copy=False)
        acc = cast(cast(part if acc is None else acc + part, _F16), _F32)
    return np.matmul(a, b) if acc is None else acc  # an empty inner dimension gives zeros


def gemm_aligned(a: Array, b: Array, bias: Any, acc: Any, bits: int, chunk: int, promote: int) -> Array:
    """a @ b (+ bias) (+ acc) in FP32, summed as Tensor Cores were found to sum (Fasi et al. 2021, PeerJ CS 7:e330).

    `chunk` exact products and the accumulator are aligned to the largest of them, cut off (towards 0) behind its first
    `bits` bits, and added; of the sum again `bits` bits stay. After every `promote` products (0: never) it is added to
    an FP32 sum with one rounding, and begins at 0. Slow: FP64 arrays of chunk times the result.
    """
    a, b = (_widened(x).astype(_F64) for x in (a, b))
    shape = (*np.broadcast_shapes(a.shape[:-2], b.shape[:-2]), a.shape[-2], b.shape[-1])
    total = np.zeros(shape, _F64) if acc is None else np.broadcast_to(acc, shape).astype(_F64)
    promoted = np.zeros(shape, _F32)
    for k in range(0, a.shape[-1], chunk):
        terms = a[..., k : k + chunk, None] * b[..., None, k : k + chunk, :]
        terms = np.concatenate([terms, total[..., None, :]], -2)
        total = _cut(_cut(terms, bits, abs(terms).max(-2, keepdims=True)).sum(-2), bits)
        if promote and (k + chunk) % promote == 0:
            promoted += total.astype(_F32)
            total = np.zeros(shape, _F64)
    c = promoted + total.astype(_F32) if promote else total.astype(_F32)
    return c if bias is None else c + _widened(bias)


def _cut(x: Array, bits: int, largest: Array | None = None) -> Array:
    """x without what lies behind the first `bits` bits of the largest (by default of each number itself)."""
    exponent = np.frexp(x if largest is None else largest)[1] - bits
    return np.ldexp(np.trunc(np.ldexp(x, -exponent)), exponent)


CHAIN = 64  # long sums: how many terms, or sums of terms, are added one after the other
SHORT = 4 * CHAIN  # sums of at most so many terms are not cut into chains


def reduce(x: Array, axis: Any, how: str) -> Array:
    """sum, mean, max, min or cumsum in x's own dtype, FP32 for FP16; reduced axes stay with length 1."""
    x = _widened(x)
    if how == "max" or how == "min":
        return (np.maximum if how == "max" else np.minimum).reduce(x, axis=axis, keepdims=True)
    if x.dtype.kind == "u" and how != "mean":
        x = x.astype(np.int64)  # as PyTorch: NumPy's uint64 and int64 together would become float64
    if how == "cumsum":
        long = x.size > SHORT and x.shape[axis] > SHORT and x.dtype.kind == "f"
        return _cumsum_in_blocks(x, axis) if long else np.cumsum(x, axis=axis)
    total = _sum(x, axis)
    return total / count(x, axis) if how == "mean" else total


def _sum(x: Array, axis: Any) -> Array:
    """The sum over axis, with no more than SHORT floating numbers added one after the other.

    NumPy sums pairwise, which is better still, along the axes that are fastest in memory and have no gaps there. Along
    all others it adds one by one: four million times 0.1 over a leading axis would be 3.9 % off.
    """
    axes = (axis,) if isinstance(axis, int) else axis
    if (
        x.size <= SHORT
        or (len(axes) == x.ndim and x.flags.c_contiguous)
        or x.dtype.kind != "f"
        or count(x, axes) <= SHORT
        or (0 not in x.strides and count(x, _naive(x, axes)) <= SHORT)
    ):
        return np.add.reduce(x, axis=axis, keepdims=True)
    # NumPy walks an array from its slowest to its fastest axis in memory; repeated (stride 0) axes in the given order
    order = sorted(range(x.ndim), key=lambda a: abs(x.strides[a]) or math.inf, reverse=True)
    y = _sum_in_blocks(x.transpose(order), tuple(order.index(a % x.ndim) for a in axes))
    return y.transpose(np.argsort(order))


def _naive(x: Array, axes: tuple[int, ...]) -> list[int]:
    """Those of `axes` along which NumPy does not sum pairwise."""
    naive, step = [], x.itemsize
    for a in sorted(axes, key=x.strides.__getitem__):
        if x.strides[a] == step:
            step *= x.shape[a]
        elif x.shape[a] > 1:
            naive.append(a)
    return naive


def _sum_in_blocks(x: Array, axes: tuple[int, ...]) -> Array:
    """The sum of an x whose axes are ordered from the slowest to the fastest: no more than CHAIN terms are added one
    after the other, then no more than CHAIN of their sums, and so on.
    """
    naive = _naive(x, axes)
    chain = count(x, naive)
    if chain <= CHAIN:
        return np.add.reduce(x, axis=axes, keepdims=True)
    first = min(naive)
    others, n = tuple(a for a in axes if a != first), x.shape[first]
    block = CHAIN // (chain // n)
    if block < 2:
        return _sum_in_blocks(_sum_in_blocks(x, others), (first,))
    whole = n - n % block
    head, tail = ((slice(None),) * first + (part,) for part in (slice(whole), slice(whole, None)))
    blocks = x[head].reshape(*x.shape[:first], -1, block, *x.shape[first + 1 :])  # a view: one axis becomes two
    sums = np.add.reduce(blocks, axis=tuple(a + (a >= first) for a in axes), keepdims=True).squeeze(first + 1)
    if whole < n:
        sums = np.concatenate([sums, np.add.reduce(x[tail], axis=axes, keepdims=True)], axis=first)
    return _sum_in_blocks(sums, (first,))


def _cumsum_in_blocks(x: Array, axis: int) -> Array:
    """Running sums along axis: within blocks of CHAIN terms, to which those of all blocks before are added."""
    n, axis = x.shape[axis], axis % x.ndim
    if n <= CHAIN:
        return np.cumsum(x, axis=axis)
    sums, whole = np.empty(x.shape, x.dtype), n - n % CHAIN
    head, tail, rest = ((slice(None),) * axis + (part,) for part in (slice(whole), slice(whole, None), slice(1, None)))
    blocks, within = (a[head].reshape(*a.shape[:axis], -1, CHAIN, *a.shape[axis + 1 :]) for a in (x, sums))
    np.cumsum(blocks, axis=axis + 1, out=within)  # one axis became two: `within` is a view of sums
    np.cumsum(x[tail], axis=axis, out=sums[tail])
    ends = (slice(None),) * axis
    last: Any
    last, but_last, end = (*ends, slice(None), -1), (*ends, slice(-1)), (*ends, slice(-1, None))
    before = _cumsum_in_blocks(within[last], axis)
    within[rest] += np.expand_dims(before[but_last], axis + 1)
    sums[tail] += before[end]
    return sums


def reduce_fp16(x: Array, axis: Any, how: str) -> Array:
    """sum, mean or cumsum with one FP16 accumulator that runs along the axes; returned in FP32.

    This is the reduction that MPT section 3.3 warns of: it stalls as soon as a term is below half an ulp of the sum.
    """
    halves = x if x.dtype == _F16 else cast(x, _F16)
    with np.errstate(over="ignore"):
        if how == "cumsum":
            return cast(np.add.accumulate(halves, axis=axis), _F32)
        axes = (axis,) if isinstance(axis, int) else tuple(axis)
        kept = tuple(1 if i in [a % x.ndim for a in axes] else n for i, n in enumerate(x.shape))
        rows = np.moveaxis(halves, axes, range(len(axes))).reshape(count(x, axis), math.prod(kept))
        # accumulate, unlike reduce, never reorders into pairwise sums
        total = np.add.accumulate(rows, axis=0)[-1] if len(rows) else np.zeros(rows.shape[1], _F16)
        total = total.reshape(kept)
        return cast((total * _F16.type(1 / max(count(x, axis), 1))) if how == "mean" else total, _F32)


def add_fp16(total: Array, part: Array) -> None:
    """total += part in place, with an FP16 accumulator: each sum is rounded to FP16, but kept in an FP32 array."""
    total += part
    total[...] = cast(cast(total, _F16), _F32)


def count(x: Array, axis: Any) -> int:
    """How many elements of x are reduced to one over axis."""
    n, shape = 1, x.shape
    for a in (axis,) if isinstance(axis, int) else axis:
        n *= shape[a]
    return n


def asarray(x: Any) -> Array:
    """x, from a CPU or GPU, as a NumPy array."""
    return x if isinstance(x, (np.ndarray, np.generic)) else x.get()


def isfinite(x: Array) -> bool:
    """Whether x holds neither an infinity nor a NaN.

    An FP16 value is one of them when all five exponent bits are set; looking at the bits takes a fifteenth of the
    time of `numpy.isfinite`, which widens every half (0.1 against 1.5 ms for 1.6 million).
    """
    if x.dtype == _F16:
        return bool((x.view(np.uint16) & 0x7C00).max(initial=0) < 0x7C00)
    return bool(np.isfinite(x).all())


def concatenate(arrays: Sequence[Array], axis: int) -> Array:
    """The arrays one after another along axis."""
    return np.concatenate(arrays, axis)


def select(mask: Array, x: Array) -> Array:
    """x where mask holds, else +0, exactly: an inf or NaN that is not selected does not leak (unlike x * mask).

    Multiplying the bits by 0 or 1 is branch-free; `numpy.where` on an unpredictable mask is 20 times slower.
    """
    bits = np.dtype(f"u{x.dtype.itemsize}")
    return (x.view(bits) * mask).view(x.dtype)


def where(mask: Array, x: Array, y: Array) -> Array:
    """x where mask holds, else y, broadcast, exactly; arrays or scalars of one dtype. See `select` for why not
    `numpy.where`.
    """
    bits = np.dtype(f"u{x.dtype.itemsize}")
    a, b = x.view(bits), y.view(bits)
    return ((a ^ b) * mask ^ b).view(x.dtype)


def bits(x: Array) -> Array:
    """The bit patterns of x as unsigned integers, in the same memory."""
    return x.view(np.dtype(f"u{x.dtype.itemsize}"))


def slices(n: int, size: int, most: int) -> list[slice]:
    """range(n), to which `size` elements belong, in slices of at most `most` elements, as many for every thread."""
    return threads.slices(n, size, most, threads.count())


def blockwise(f: Callable[..., Array], *arrays: Array) -> Array:
    """f(*arrays) for an elementwise f, computed by several threads, in blocks whose intermediate values stay in the
    cache. The result has the memory order of the first array.
    """
    like = arrays[0]
    if len(blocks := slices(like.size, like.size, BLOCK)) < 2 or any(a.shape != like.shape for a in arrays):
        return f(*arrays)
    flat: list[Any] = [_elements(a, like) for a in arrays]
    if any(a is None for a in flat):
        return f(*arrays)
    out: list[Any] = []

    def fill(block: slice) -> None:
        part = f(*[a[block] for a in flat])
        with _first:
            if not out:
                out.append(np.empty_like(like, dtype=part.dtype))
        elements: Any = _elements(out[0], like)
        elements[block] = part

    share(fill, blocks)
    return out[0]


_first = Lock()  # whoever has the first part makes the whole


def _elements(x: Array, like: Array) -> Array | None:
    """The elements of x in memory order; None unless x and `like` have the same memory order, without gaps."""
    x, like = x.squeeze(), like.squeeze()  # the strides of axes of length 1 are arbitrary
    steps = [s // x.itemsize for s in x.strides]
    if steps != [s // like.itemsize for s in like.strides]:
        return None
    flat = x.transpose(sorted(range(x.ndim), key=steps.__getitem__, reverse=True))
    return flat.reshape(-1) if flat.flags.c_contiguous else None


def along(axis: int, f: Callable[..., tuple], *arrays: Array | None, size: int | None = None) -> tuple:
    """Apply f to cache-sized slices of the arrays along `axis`, by several threads, and join the results. f must treat
    each place along the axis by itself. Results of the first array's shape have its memory order. size: how many
    elements the largest array has that f reads or makes, by default the first.
    """
    x: Any = arrays[0]
    n = x.shape[axis]
    if len(cut := slices(n, x.size if size is None else size, BLOCK)) < 2:
        return f(*arrays)
    out: list[Any] = []

    def fill(some: slice) -> None:
        place = (slice(None),) * axis + (some,)
        results = f(*[None if a is None else a[place] for a in arrays])
        with _first:
            if not out:
                shapes = [None if y is None else (*y.shape[:axis], n, *y.shape[axis + 1 :]) for y in results]
                out.extend(
                    y if y is None else np.empty_like(x, y.dtype) if shape == x.shape else np.empty(shape, y.dtype)
                    for y, shape in zip(results, shapes)
                )
        for whole, y in zip(out, results):
            if y is not None:
                whole[place] = y

    share(fill, cut)
    return tuple(out)


# e^(z^2) erfc(z) for z in [0, 10.2] as a polynomial in u = (z - 3.5) / (z + 3.5), which is in [-1, 0.5): the smallest
# largest relative error is 2e-8 (least squares, reweighted until the errors' peaks are level).
_ERFCX = (
    1.55293656e-01,
    -2.89265001e-01,
    2.33130346e-01,
    -1.61340147e-01,
    9.44304396e-02,
    -4.54192152e-02,
    1.69663955e-02,
    -4.32073485e-03,
    2.49108402e-04,
    4.15023763e-04,
)
_erfc64 = np.frompyfunc(math.erfc, 1, 1)


def erfc(x: Array) -> Array:
    """1 - erf(x), also where it is tiny: in FP32 within 7 units in the last place (NumPy has no error function).

    z^2 is split, as its rounding would be magnified by the exponential: the square of z's first 12 bits is exact.
    """
    if x.dtype == _F64:
        return np.asarray(_erfc64(x), _F64)
    z = np.clip(np.abs(x), 0, 16)  # beyond 10.1 it is 0 in FP32
    u = (z - 3.5) / (z + 3.5)
    y = np.full_like(z, _ERFCX[-1])
    for coefficient in _ERFCX[-2::-1]:
        y *= u
        y += coefficient
    head = (z.view(np.uint32) & 0xFFFFF000).view(_F32)
    y *= np.exp(-head * head)
    y *= np.exp((head - z) * (head + z))
    two = np.signbit(x) * _F32.type(2)
    return two + (1 - two) * y  # erfc(x) = 2 - erfc(-x)


def uniform(shape: tuple[int, ...]) -> Array:
    """FP32 numbers in [0, 1) from the generator."""
    return generator.random(shape, dtype=_F32)


def scatter_add_rows(n_rows: int, index: Array, rows: Array) -> Array:
    """Zeros (n_rows, ...) with rows[i] added to row index[i], in order of i and in the dtype of rows.

    index: (len(rows),), integers in [0, n_rows). The gradient of every lookup: rows with the same index add up, many of
    them in blocks as in `_sum`; FP16, which a policy studies, always one after the other.
    """
    index = index.astype(np.intp, copy=False)  # uint8 * width would wrap around
    width, out = math.prod(rows.shape[1:]), np.zeros((n_rows, *rows.shape[1:]), rows.dtype)
    if len(index) > SHORT and rows.dtype != _F16 and np.bincount(index).max() > SHORT:
        return _scatter_in_blocks(n_rows, index, rows)
    if width < WIDE:  # element by element: numpy.add.at has a fast loop for one axis alone
        elements = index if width == 1 else (index[:, None] * width + np.arange(width)).reshape(-1)
        np.add.at(out.reshape(-1), elements, rows.reshape(-1))
    elif len(index):  # all rows that are the first of their index, then all that are the second, ...
        rank = _ranks(index)[1]
        for places in np.split(np.argsort(rank, kind="stable"), np.cumsum(np.bincount(rank))[:-1]):
            out[index[places]] += rows[places]
    return out


WIDE = 16  # elements: so wide rows are added as such


def smallest(x: Array, n: int) -> Array:
    """The places of the n smallest elements of the vector x, in rising order, of equal ones the first."""
    some = np.flatnonzero(x <= np.partition(x, n - 1)[n - 1]) if n < x.size else np.arange(x.size)
    return some[np.argsort(x[some], kind="stable")][:n]


def _ranks(index: Array) -> tuple[Array, Array]:
    """The order that sorts index, and for each of its elements how many equal ones come before it."""
    order = np.argsort(index, kind="stable")
    ranked = index[order]
    begins = np.flatnonzero(np.diff(ranked, prepend=-1))  # where each index begins in `ranked`
    rank = np.empty(len(index), np.intp)
    rank[order] = np.arange(len(index)) - np.repeat(begins, np.diff(begins, append=len(index)))
    return order, rank


def _scatter_in_blocks(n_rows: int, index: Array, rows: Array) -> Array:
    """`scatter_add_rows` that first sums blocks of at most CHAIN rows with the same index, and then those sums."""
    order, rank = _ranks(index)
    first = rank[order] % CHAIN == 0
    block = np.empty(len(index), np.intp)
    block[order] = np.cumsum(first) - 1
    return scatter_add_rows(n_rows, index[order][first], scatter_add_rows(int(first.sum()), block, rows))


def copy_all(sources: Sequence[Array], targets: Sequence[Array], wanted: bool = True) -> None:
    """target[...] = source for each pair, if `wanted`."""
    if wanted:
        for source, target in zip(sources, targets, strict=True):
            target[...] = source


# One generator for everything random on this backend: initialisation, dropout, stochastic rounding.
generator = np.random.Generator(np.random.PCG64(0))


def manual_seed(seed: int) -> None:
    """Restart the generator from `seed`."""
    set_rng_state(dict(np.random.PCG64(seed).state))


def get_rng_state() -> dict:
    """The state of the generator."""
    return dict(generator.bit_generator.state)


def set_rng_state(state: dict) -> None:
    """Put the generator back into an earlier state."""
    generator.bit_generator.state = state
