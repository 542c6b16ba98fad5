"""softmax along runs of memory, forward and backward: one kernel each (softmax.cu)."""

from __future__ import annotations

from ..autograd import Array
from ..ops.softmax import Softmax
from ..precision import store
from . import kernel, made
from .kernels import Kernels
from .layout import compact, matching
from .rows import along

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
