"""softmax and log_softmax, forward and backward: one kernel each (softmax.cu)."""

from __future__ import annotations

from ...autograd import Array
from ...ops.softmax import LogSoftmax, Softmax
from . import kernel
from .kernels import Kernels
from .layout import compact, matching
from .rows import along, reduced

KERNELS = Kernels(__file__)


@kernel(Softmax.forward)
def softmax_forward(op: Softmax, x: Array, *, dim: int) -> Array:
    x = compact(op.xp, x)
    if (plan := along(x, dim)) is None:
        return NotImplemented
    y = op.xp.empty_like(x)
    plan.launch(KERNELS, "softmax_forward", x, y)
    op.save(y)
    return y


@kernel(Softmax.backward)
def softmax_backward(op: Softmax, dy: Array) -> Array:
    y = compact(op.xp, op.saved[0])
    if (plan := along(y, op.dim)) is None:
        return NotImplemented
    dx = op.xp.empty_like(y)
    plan.launch(KERNELS, "softmax_backward", y, matching(op.xp, dy, y), dx)
    return dx


@kernel(LogSoftmax.forward)
def log_softmax_forward(op: LogSoftmax, x: Array, *, dim: int) -> Array:
    dense = compact(op.xp, x)
    if (plan := along(dense, dim)) is None:
        return NotImplemented
    y, m, s = op.xp.empty_like(dense), reduced(op.xp, dense, dim), reduced(op.xp, dense, dim)
    plan.launch(KERNELS, "log_softmax_forward", dense, y, m, s)
    op.save(x, statistics=(m, s))
    return y


@kernel(LogSoftmax.backward)
def log_softmax_backward(op: LogSoftmax, dy: Array) -> Array:
    x = compact(op.xp, op.saved[0])
    if (plan := along(x, op.dim)) is None:
        return NotImplemented
    dx, like = op.xp.empty_like(x), reduced(op.xp, x, op.dim)
    m, s = (matching(op.xp, v, like) for v in op.statistics)  # the definition may have laid them out otherwise
    plan.launch(KERNELS, "log_softmax_backward", x, matching(op.xp, dy, x), m, s, dx)
    return dx
