"""cross_entropy with labels (loss.cu): one kernel each way; the losses of the rows are summed as elsewhere.

The kernels take logits whose classes are a run of memory. They visit the rows in memory order, and all other arrays in
the same order.
"""

from __future__ import annotations

from typing import Any

from ..autograd import Array
from ..ops.loss import CrossEntropy, class_axis, total
from ..precision import store
from . import checks, kernel, made
from .kernels import Kernels
from .layout import compact, matching
from .rows import along, reduced, vector

KERNELS = Kernels(__file__)


@kernel(CrossEntropy.forward)
def cross_entropy_forward(
    op: CrossEntropy,
    x: Array,
    target: Array,
    w: Array | None,
    *,
    ignore_index: int,
    reduction: str,
    label_smoothing: float,
) -> Array:
    op.axis, xp, dense = class_axis(x), op.xp, compact(op.xp, x)
    if (plan := along(dense, op.axis)) is None:
        return NotImplemented
    op.hard, op.share = 1 - label_smoothing, label_smoothing / plan.length
    t, kept, w_t, losses, top, scale = (reduced(xp, dense, op.axis, kind) for kind in ("int64", bool, *["float32"] * 4))
    target = matching(xp, xp.expand_dims(xp.asarray(target, dtype="int64"), op.axis), like=t)
    factors = vector(xp, w)
    weights = total(factors) if op.share and factors is not None else None
    message = f"{op.name}: expected every value of `target` {op.labels(plan.length, ignore_index)}"
    bad = checks.flag(message, ValueError(f"{message} (seen on the GPU in an earlier call)"))
    rows = target, factors, ignore_index, bad, t, kept, w_t, losses, top, scale, weights
    plan.launch(KERNELS, "cross_entropy_forward", dense, *rows, op.hard, op.share, label_smoothing)
    divisor = total(w_t) if reduction == "mean" else None
    op.save(x, t, w, kept, statistics=(w_t, top, scale, divisor))
    return op.reduced(losses.squeeze(op.axis), divisor)


@kernel(CrossEntropy.backward)
def cross_entropy_backward(op: CrossEntropy, dy: Array) -> Any:
    (input, t, weight, kept), (w, top, scale, divisor), xp = op.saved, op.statistics, op.xp
    x = compact(xp, input)
    if (plan := along(x, op.axis)) is None:
        return NotImplemented
    dx, each, like = made(x), op.reduction == "none", reduced(xp, x, op.axis, bool)
    t, kept, w, top, scale = (matching(xp, a, like) for a in (t, kept, w, top, scale))  # saved by either forward
    dy = matching(xp, xp.expand_dims(dy, op.axis), like) if each else dy
    rows = t, kept, dy, each, divisor, dx, w, top, scale, vector(xp, weight)
    plan.launch(KERNELS, "cross_entropy_backward", x, *rows, op.hard, op.share)
    return store(dx, like=x), None, None
