"""Softmax and log-softmax along rows: one kernel each way (softmax.cu), for any length."""

from __future__ import annotations

from typing import Any

from ..autograd import Array, Op
from ..ops.softmax import LogSoftmax, Softmax
from ..precision import FP32, store
from . import kernel, made, summed
from .kernels import Kernels

KERNELS = Kernels(__file__)
MOST = 1024  # threads of a block, as in softmax.cu


def in_rows(op: Op, x: Array, dim: int) -> tuple[Array, int] | None:
    """x in contiguous memory, and the length of its rows: None unless dim is the last axis, and sizes fit 32 bits."""
    n = x.shape[dim] if x.ndim else 0
    fits = dim == x.ndim - 1 and 0 < n < 2**31 and x.size // n < 2**31
    return (op.xp.ascontiguousarray(x), n) if fits and x.size else None


def launch(name: str, x: Array, n: int, *others: Any) -> None:
    """A kernel with a block for each row, of no more threads than a row has elements."""
    KERNELS.launch(name, x.dtype, x.size // n, min(MOST, -(-n // 32) * 32), x, *others, n)


@kernel(Softmax.forward)
def softmax_forward(op: Softmax, x: Array, *, dim: int) -> Array:
    if (rows := in_rows(op, x, dim)) is None:
        return NotImplemented
    (dense, n), y = rows, made(rows[0])
    launch("softmax_rows", dense, n, y)
    summed(x, dim)
    y = store(y, like=x)
    op.save(y)
    return y


@kernel(Softmax.backward)
def softmax_backward(op: Softmax, dy: Array) -> Array:
    if (rows := in_rows(op, op.saved[0], op.dim)) is None:
        return NotImplemented
    (y, n), dense = rows, op.xp.ascontiguousarray(dy)
    dx = made(dense)
    launch("softmax_rows_backward", y, n, dense, dx)
    summed(dy, op.dim)
    return store(dx, like=op.saved[0])


@kernel(LogSoftmax.forward)
def log_softmax_forward(op: LogSoftmax, x: Array, *, dim: int) -> Array:
    if (rows := in_rows(op, x, dim)) is None:
        return NotImplemented
    (dense, n), shape = rows, (*x.shape[:-1], 1)
    y, most, sums = made(dense), op.xp.empty(shape, FP32.storage), op.xp.empty(shape, FP32.storage)
    launch("log_softmax_rows", dense, n, y, most, sums)
    summed(x, dim)
    op.save(x, statistics=(most, sums))
    return store(y, like=x)


@kernel(LogSoftmax.backward)
def log_softmax_backward(op: LogSoftmax, dy: Array) -> Array:
    if (rows := in_rows(op, op.saved[0], op.dim)) is None:
        return NotImplemented
    (x, n), dense = rows, op.xp.ascontiguousarray(dy)
    dx = made(dense)
    launch("log_softmax_rows_backward", x, n, dense, *op.statistics, dx)
    summed(dy, op.dim)
    return store(dx, like=dy)
