"""softmax and log_softmax along runs of memory, forward and backward: one kernel each (softmax.cu)."""

from __future__ import annotations

from ..autograd import Array
from ..ops.softmax import LogSoftmax, Softmax
from ..precision import store
from . import kernel, made
from .kernels import Kernels
from .layout import compact, matching
from .rows import along, reduced

KERNELS = Kernels(__file__)


@kernel(Softmax.forward)
def softmax_forward(op: Softmax, x: Array, *, dim: int) -> Array:
    x = compact(op.xp, x)
    if (plan := along(x, dim)) is None:
        return NotImplemented
    y = made(x)
    plan.launch(KERNELS, "softmax_forward", x, y)
    y = store(y, like=x)
    op.save(y)
    return y


@kernel(Softmax.backward)
def softmax_backward(op: Softmax, dy: Array) -> Array:
    y = compact(op.xp, op.saved[0])
    if (plan := along(y, op.dim)) is None:
        return NotImplemented
    dx = made(y)
    plan.launch(KERNELS, "softmax_backward", y, matching(op.xp, dy, y), dx)
    return store(dx, like=y)


@kernel(LogSoftmax.forward)
def log_softmax_forward(op: LogSoftmax, x: Array, *, dim: int) -> Array:
    dense = compact(op.xp, x)
    if (plan := along(dense, dim)) is None:
        return NotImplemented
    y, most, sums = made(dense), reduced(op.xp, dense, dim), reduced(op.xp, dense, dim)
    plan.launch(KERNELS, "log_softmax_forward", dense, y, most, sums)
    op.save(x, statistics=(most, sums))
    return store(y, like=x)


@kernel(LogSoftmax.backward)
def log_softmax_backward(op: LogSoftmax, dy: Array) -> Array:
    x = compact(op.xp, op.saved[0])
    if (plan := along(x, op.dim)) is None:
        return NotImplemented
    dx, like = made(x), reduced(op.xp, x, op.dim, bool)
    most, sums = (matching(op.xp, a, like) for a in op.statistics)  # saved by either forward
    plan.launch(KERNELS, "log_softmax_backward", x, matching(op.xp, dy, x), most, sums, dx)
    return store(dx, like=x)
