"""The base: what a GPU does by kernels of its own unless fast paths are enabled. They are in backend/base.cu.

Softmax and the norms sum along rows or channels; a convolution's columns are copied together and added up again. By
CuPy alone each would be five to ten passes over memory. ReLU and the sum of two tensors have CuPy read FP16 as it is
stored. Every other op runs its definition on CuPy's arrays, with cuBLAS for the products (backend/gpu.py).

An observer hears this path: while one listens, a kernel writes its FP32 results, and `store` rounds them in front of
it, to the same bits. Studies of sums, and FP64, run the definitions.
"""

from __future__ import annotations

from functools import partial
from math import prod
from typing import Any

import numpy as np

from .. import backend
from ..autograd import Array, Op
from ..backend.gpu import arranged, run_kernel
from ..dtypes import float16, float32
from ..events import here, tell
from ..fast_path import fast_path
from ..precision import FP32, gemm, plain, reduce, store, widen
from .conv import Geometry, columns, fold, grouped, spread
from .norm import BatchNorm, LayerNorm, Running, of_argument
from .recurrent import LSTM, times
from .softmax import LogSoftmax, Softmax

MOST = 1024  # threads of a block, as in base.cu
GRID = 1 << 16  # blocks, at most, of a kernel that goes on to further elements


# for a phase of an op on FP16 or FP32 storage
base = partial(fast_path, where=lambda op: op.storage in (float16, float32) and plain(op.storage))


def launch(name: str, x: Array, y: Array, blocks: int, length: int, *args: Any) -> None:
    """A kernel that reads x and writes y: a block for each row or channel, of no more threads than it has elements."""
    run_kernel(backend.of(x).xp, name, x.dtype, y.dtype, blocks, min(MOST, -(-length // 32) * 32), *args)


def made(x: Array, shape: tuple[int, ...] | None = None) -> Array:
    """An array for results, as x lies or C-contiguous in another shape; in FP32 while an observer listens."""
    return backend.of(x).xp.empty_like(x, float32 if here.inside else x.dtype, order="C" if shape else "K", shape=shape)


def summed(x: Array, axis: Any) -> None:
    """Tell observers that a kernel sums x along axis."""
    if here.inside:
        tell("reduced", x, axis, "sum", "float32")


def in_rows(op: Op, x: Array, axes: tuple[int, ...]) -> tuple[Array, int] | None:
    """x in contiguous memory, and the length of its rows: the last axes. None if these are not `axes`, or are long."""
    length = prod([x.shape[a] for a in axes]) if x.ndim else 0
    last = tuple(range(x.ndim - len(axes), x.ndim))
    fits = axes == last and 0 < length < 2**31 and x.size // length < 2**31
    return (op.xp.ascontiguousarray(x), length) if fits and x.size else None


# --------------------------------------------------------------------------------------------------------------- rows


@base(Softmax.forward)
def softmax_forward(op: Softmax, x: Array, *, dim: int) -> Array:
    if (rows := in_rows(op, x, (dim,))) is None:
        return NotImplemented
    dense, n = rows
    y = made(dense)
    launch("softmax_rows", dense, y, x.size // n, n, dense, y, n)
    summed(x, dim)
    y = store(y, like=x)
    op.save(y)
    return y


@base(Softmax.backward)
def softmax_backward(op: Softmax, dy: Array) -> Array:
    if (rows := in_rows(op, op.saved[0], (op.dim,))) is None:
        return NotImplemented
    (y, n), dx = rows, made(op.xp.ascontiguousarray(dy))
    launch("softmax_rows_backward", y, dx, y.size // n, n, y, op.xp.ascontiguousarray(dy), dx, n)
    summed(dy, op.dim)
    return store(dx, like=op.saved[0])


@base(LogSoftmax.forward)
def log_softmax_forward(op: LogSoftmax, x: Array, *, dim: int) -> Array:
    if (rows := in_rows(op, x, (dim,))) is None:
        return NotImplemented
    (dense, n), shape = rows, (*x.shape[:-1], 1)
    y, most, sums = made(dense), op.xp.empty(shape, FP32.storage), op.xp.empty(shape, FP32.storage)
    launch("log_softmax_rows", dense, y, x.size // n, n, dense, y, most, sums, n)
    summed(x, dim)
    op.save(x, statistics=(most, sums))
    return store(y, like=x)


@base(LogSoftmax.backward)
def log_softmax_backward(op: LogSoftmax, dy: Array) -> Array:
    if (rows := in_rows(op, op.saved[0], (op.dim,))) is None:
        return NotImplemented
    (x, n), dense = rows, op.xp.ascontiguousarray(dy)
    dx = made(dense)
    launch("log_softmax_rows_backward", x, dx, x.size // n, n, x, dense, *op.statistics, dx, n)
    summed(dy, op.dim)
    return store(dx, like=dy)


@base(LayerNorm.forward)
def layer_norm_forward(op: LayerNorm, x: Array, w: Array | None, b: Array | None, *, axes: tuple, eps: float) -> Array:
    if (rows := in_rows(op, x, axes)) is None:
        return NotImplemented
    (dense, n), shape = rows, (*x.shape[: x.ndim - len(axes)], *[1] * len(axes))
    y, mean, rstd = made(dense), op.xp.empty(shape, FP32.storage), op.xp.empty(shape, FP32.storage)
    given = wide(op, w), wide(op, b)
    launch("layer_norm_rows", dense, y, x.size // n, n, dense, *given, y, mean, rstd, n, eps)
    summed(x, axes)
    op.save(x, w, statistics=(mean, rstd))
    return store(y, like=x)


@base(LayerNorm.backward)
def layer_norm_backward(op: LayerNorm, dy: Array) -> Any:
    (x, w), (mean, rstd), (like_x, like_w, like_b) = op.saved, op.statistics, op.targets
    if (rows := in_rows(op, x, op.axes)) is None:
        return NotImplemented
    (dense, n), outer, dw, db = rows, op.outer(x), None, None
    if like_w:
        dw = reduce(widen(dy) * ((widen(x) - mean) * rstd), outer, "sum", like=x)
    if like_b:
        db = reduce(dy, outer, "sum")
    if like_x:
        dx, given = made(dense), op.xp.ascontiguousarray(dy)
        launch("layer_norm_rows_backward", x, dx, x.size // n, n, dense, given, wide(op, w), mean, rstd, dx, n)
        summed(dy, op.axes)
    return of_argument(dx, like_x) if like_x else None, of_argument(dw, like_w), of_argument(db, like_b)


def wide(op: Op, v: Array | None) -> Array | None:
    """A weight or bias in FP32, contiguous."""
    return None if v is None else op.xp.ascontiguousarray(widen(v))


# ----------------------------------------------------------------------------------------------------------- channels


def in_channels(op: Op, x: Array) -> tuple[Array, tuple]:
    """x (N, C, ...) and how it lies, as (outer, C, inner): images first or last; anything else is copied."""
    n, c = x.shape[:2]
    if x.transpose(*range(1, x.ndim), 0).flags.c_contiguous:
        return x, (np.int64(1), c, np.int64(x.size // c))
    return op.xp.ascontiguousarray(x), (np.int64(n), c, np.int64(x.size // (n * c)))


@base(BatchNorm.forward)
def batch_norm_forward(
    op: BatchNorm, x: Array, w: Array | None, b: Array | None, *, eps: float, running: Running
) -> Array:
    dense, lies = in_channels(op, x)
    y, (_, c, _) = made(dense), lies
    mean, var, rstd = (op.xp.empty((1, c, *[1] * (x.ndim - 2)), FP32.storage) for _ in range(3))
    given, moved = (wide(op, w), wide(op, b)), (running.mean, running.var, running.count, running.momentum)
    by_kernel = type(running.momentum) is float and all(v is None or v.dtype == float32 for v in moved[:2])
    moved = moved if by_kernel else (None, None, None, 0.0)
    launch("batch_norm_channels", dense, y, c, x.size // c, dense, *given, y, mean, var, rstd, *moved, *lies, eps)
    summed(x, (0, *range(2, x.ndim)))
    op.save(x, w, statistics=(mean, rstd))
    if not by_kernel:
        running.update(mean, var, x.size // c)
    return store(y, like=x)


@base(BatchNorm.backward)
def batch_norm_backward(op: BatchNorm, dy: Array) -> tuple:
    (x, w), (mean, rstd), (like_x, like_w, like_b) = op.saved, op.statistics, op.targets
    dense, lies = in_channels(op, x)
    dx, c, given = made(dense), x.shape[1], dy
    if dy.strides != dense.strides:
        (_, given), back = arranged(dense, dy)
        given = back(op.xp.ascontiguousarray(given))
    dw, db = op.xp.empty(c, FP32.storage), op.xp.empty(c, FP32.storage)
    arrays = dense, given, wide(op, w), mean, rstd, dx, dw, db
    launch("batch_norm_channels_backward", x, dx, c, x.size // c, *arrays, *lies)
    summed(dy, (0, *range(2, x.ndim)))
    return store(dx, like=dy) if like_x else None, of_argument(dw, like_w), of_argument(db, like_b)


# --------------------------------------------------------------------------------------------------------------- LSTM


@fast_path(times)
def products(w: Array, rows: Array) -> Array:
    return gemm(rows, w.T, wide=True)  # which lies as the kernels read it


@base(LSTM.unit)
def unit(op: LSTM, z: Array, m: Array, c: Array, cell: Array, h: Array) -> None:
    in_place(op, "lstm_unit", (z, cell, h), z, m, c)


@base(LSTM.unit_backward)
def unit_backward(op: LSTM, gates: Array, cell: Array, before: Array, d: Array, dy: Any, dc: Array, dz: Array) -> None:
    in_place(op, "lstm_unit_backward", (dz,), gates, cell, before, d, dy, dc)


def in_place(op: LSTM, name: str, targets: tuple[Array, ...], *arrays: Any) -> None:
    """A kernel that writes into targets; while an observer listens, `store` rounds what goes there."""
    results = [made(y) for y in targets] if here.inside else targets
    blocks, types = -(-arrays[2].size // 128), (arrays[0].dtype, results[0].dtype)
    run_kernel(op.xp, name, *types, blocks, 128, *arrays, *results, arrays[2].size, arrays[2].shape[1])
    if here.inside:
        for target, result in zip(targets, results):
            target[...] = store(result, like=target)


# ------------------------------------------------------------------------------------------------------------ windows


def windows(name: str, x: Array, y: Array, shape: tuple[int, ...], g: Geometry) -> None:
    """A kernel from x to y for images of this shape (C, H, W, N)."""
    sides = *g.output(*shape[1:3]), *g.kernel, *g.stride, g.pads[0][0], g.pads[1][0], *g.dilation
    blocks = min(GRID, -(-y.size // 256))
    run_kernel(backend.of(x).xp, name, x.dtype, x.dtype, blocks, 256, x, y, np.int64(y.size), *shape, *sides)


def one_pixel(g: Geometry, sides: tuple[int, ...]) -> bool:
    """True if each window of images with these sides is one pixel, at its place."""
    return g.kernel == g.stride == (1, 1) and not any(map(any, g.pads)) and g.output(*sides) == sides


@fast_path(columns)
def im2col(xp: Any, x: Array, g: Geometry) -> Array:
    if x.dtype not in (float16, float32) or not x.size:
        return NotImplemented
    seen = x.shape[0] * prod(g.kernel), *g.output(*x.shape[1:3]), x.shape[3]
    if one_pixel(g, x.shape[1:3]):
        y = x
    else:
        y = xp.empty(seen, x.dtype)
        windows("images_to_columns", xp.ascontiguousarray(x), y, x.shape, g)
    return y.reshape(g.groups, seen[0] // g.groups, prod(seen[1:]))


@fast_path(spread)
def one_product(xp: Any, y: Array, w: Array, bias: Array | None, g: Geometry, size: tuple[int, int]) -> Array:
    if not one_pixel(g, size) or not plain(w.dtype):
        return NotImplemented
    x = gemm(grouped(w, g).swapaxes(1, 2), grouped(y, g), None if bias is None else grouped(bias, g))
    return x.reshape(w.shape[1] * g.groups, *size, y.shape[3])


@fast_path(fold)
def col2im(xp: Any, columns: Array, shape: tuple, g: Geometry, like: Array, accumulator: str = "reduce") -> Array:
    if columns.dtype != float32 or not plain(like.dtype) or not columns.size:
        return NotImplemented
    x = xp.empty(shape, FP32.storage)
    if here.inside:
        tell("added", columns, None, "float32")
    windows("columns_to_images", xp.ascontiguousarray(columns), x, shape, g)
    return x
