"""cross_entropy with labels (loss.cu): one kernel each way; the losses of the rows are summed as elsewhere.

The kernels take logits whose classes are a run of memory. They visit the rows in memory order, and all other arrays in
the same order.
"""

from __future__ import annotations

from typing import Any

from ..autograd import Array
from ..ops.loss import CrossEntropy, class_axis, labels, total
from ..ops.more.loss import WeightedCrossEntropy
from ..precision import store
from . import checks, kernel, made
from .kernels import Kernels
from .layout import compact, matching
from .rows import along, reduced, vector

KERNELS = Kernels(__file__)


@kernel(CrossEntropy.forward)
def cross_entropy_forward(op: CrossEntropy, x: Array, target: Array, *, ignore_index: int, reduction: str) -> Any:
    return _forward(op, x, target, None, ignore_index, 0.0)


@kernel(WeightedCrossEntropy.forward)
def weighted_forward(
    op: Any, x: Array, target: Array, w: Array | None, *, ignore_index: int, reduction: str, label_smoothing: float
) -> Any:
    return _forward(op, x, target, w, ignore_index, label_smoothing)


def _forward(op: Any, x: Array, target: Array, w: Array | None, ignore_index: int, smoothing: float) -> Any:
    op.axis, xp, dense = class_axis(x), op.xp, compact(op.xp, x)
    if (plan := along(dense, op.axis)) is None:
        return NotImplemented
    op.hard, op.share = 1 - smoothing, smoothing / plan.length
    t, kept, w_t, losses, top, scale = (reduced(xp, dense, op.axis, kind) for kind in ("int64", bool, *["float32"] * 4))
    target = matching(xp, xp.expand_dims(xp.asarray(target, dtype="int64"), op.axis), like=t)
    factors = vector(xp, w)
    weights = total(factors) if op.share and factors is not None else None
    message = f"{op.name}: expected every value of `target` {labels(plan.length, ignore_index)}"
    bad = checks.flag(message, ValueError(f"{message} (seen on the GPU in an earlier call)"))
    rows = target, factors, ignore_index, bad, t, kept, w_t, losses, top, scale, weights
    plan.launch(KERNELS, "cross_entropy_forward", dense, *rows, op.hard, op.share, smoothing)
    divisor = total(w_t) if op.reduction == "mean" else None
    if isinstance(op, WeightedCrossEntropy):
        op.save(x, t, w, kept, statistics=(w_t, top, scale, divisor))
    else:
        op.save(x, t, kept, statistics=(top, scale, divisor))
    return op.reduced(losses.squeeze(op.axis), divisor)


@kernel(CrossEntropy.backward)
@kernel(WeightedCrossEntropy.backward)
def cross_entropy_backward(op: Any, dy: Array) -> Any:
    weighted = isinstance(op, WeightedCrossEntropy)
    (x, t, *weight, kept), (*w, top, scale, divisor) = op.saved, op.statistics
    xp, x = op.xp, compact(op.xp, x)
    if (plan := along(x, op.axis)) is None:
        return NotImplemented
    dx, each, like = made(x), op.reduction == "none", reduced(xp, x, op.axis, bool)
    # saved by either forward
    t, kept, top, scale, *w = (matching(xp, a, like) for a in (t, kept, top, scale, *w))
    dy = matching(xp, xp.expand_dims(dy, op.axis), like) if each else dy
    known = t, kept, dy, each, divisor, dx, *(w or [None]), top, scale, vector(xp, weight[0]) if weighted else None
    hard, share = (op.hard, op.share) if weighted else (1.0, 0.0)
    plan.launch(KERNELS, "cross_entropy_backward", x, *known, hard, share)
    return store(dx, like=x), *[None] * (len(op.targets) - 1)
