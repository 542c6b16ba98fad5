"""softmax, forward and backward: one kernel each (softmax.cu)."""

from __future__ import annotations

from ...autograd import Array
from ...ops.softmax import Softmax
from . import kernel
from .kernels import Kernels
from .layout import compact, matching
from .rows import along

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
