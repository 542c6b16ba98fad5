"""log_softmax along runs of memory, forward and backward: one kernel each (softmax.cu)."""

from __future__ import annotations

from ..autograd import Array
from ..ops.more.log_softmax import LogSoftmax
from ..precision import store
from . import kernel, made
from .layout import compact, matching
from .rows import along, reduced
from .softmax import KERNELS


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
