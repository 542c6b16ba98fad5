"""nll_loss and cross_entropy with labels (loss.cu): one kernel each way, and one more that adds up what blocks summed.

The kernels visit the rows of x in memory order, and all other arrays in the same order.
"""

from __future__ import annotations

from typing import Any

from ...autograd import Array
from ...ops.loss import CrossEntropy, Labelled, NLLLoss, class_axis, total
from ...precision import FP32, widen
from . import checks, kernel
from .kernels import Kernels
from .layout import THREADS, blocks, channels, compact, matching, row_lanes

KERNELS = Kernels(__file__)
MOST_BLOCKS = 4096  # each adds up the losses of its rows; one more block then adds up these sums


@kernel(NLLLoss.forward)
def nll_forward(
    op: NLLLoss, input: Array, target: Array, weight: Array | None, *, reduction: str, ignore_index: int
) -> Array:
    op.axis, x = class_axis(input), compact(op.xp, input)
    if not x.size:
        return NotImplemented
    t, kept, w, divisor, loss = launch_forward("nll_forward", op, x, 1, target, contiguous(weight, op.xp), ignore_index)
    op.save(t, kept, statistics=(w, divisor))
    return loss


@kernel(NLLLoss.backward)
def nll_backward(op: NLLLoss, dy: Array) -> tuple:
    (t, kept), (w, divisor), like = op.saved, op.statistics, op.targets[0]
    dx = op.xp.zeros(like.shape, like.dtype)
    launch_backward("nll_backward", op, dx, 1, dy, t, kept, divisor, (w,))
    return dx, None, None


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
    op.axis, input, x = class_axis(x), x, compact(op.xp, x)
    if not x.size:
        return NotImplemented
    op.hard, op.share = 1 - label_smoothing, label_smoothing / x.shape[op.axis]
    top, scale = (per_row(op, x, FP32.storage) for _ in range(2))
    factors, lanes = contiguous(w, op.xp), lanes_of(x, op.axis)
    weights = total(factors) if op.share and factors is not None else None
    more = top, scale, weights, op.hard, op.share, label_smoothing, lanes
    t, kept, w_t, divisor, loss = launch_forward(
        "cross_entropy_forward", op, x, lanes, target, factors, ignore_index, *more
    )
    op.save(input, t, w, kept, statistics=(w_t, top, scale, divisor))
    return loss


@kernel(CrossEntropy.backward)
def cross_entropy_backward(op: CrossEntropy, dy: Array) -> tuple:
    (input, t, weight, kept), (*statistics, divisor) = op.saved, op.statistics
    x = compact(op.xp, input)
    dx, lanes = op.xp.empty_like(x), lanes_of(x, op.axis)
    more = x, contiguous(weight, op.xp), op.hard, op.share, lanes
    launch_backward("cross_entropy_backward", op, dx, lanes, dy, t, kept, divisor, statistics, *more)
    return dx, None, None


def launch_forward(
    kernel: str, op: Labelled, x: Array, lanes: int, target: Array, weight: Array | None, ignore_index: int, *more: Any
) -> tuple:
    """`Labelled.read` and the loss, reduced, of the dense x: t, kept, w, divisor, loss. `lanes` threads share a row."""
    xp, (outer, classes, inner) = op.xp, channels(x, op.axis)
    t, kept, w = (per_row(op, x, dtype) for dtype in ("int64", bool, FP32.storage))
    target = matching(xp, xp.expand_dims(xp.asarray(target, dtype="int64"), op.axis), like=t)
    grid = blocks(outer * inner * lanes, THREADS, MOST_BLOCKS)
    each = op.reduction == "none"
    loss, partial = (per_row(op, x, w.dtype), None) if each else (None, xp.empty((grid, 2), w.dtype))
    message = f"{op.name}: expected every value of `target` {op.labels(classes, ignore_index)}"
    bad = checks.flag(message, ValueError(f"{message} (seen on the GPU in an earlier call)"))
    rows = x, target, weight, ignore_index, bad, t, kept, w, loss, partial, outer * inner, classes, inner
    KERNELS.launch(kernel, x.dtype, grid, THREADS, *rows, *more)
    if loss is not None:
        return t, kept, w, None, loss.squeeze(op.axis)
    summed, divisor = xp.empty((), w.dtype), xp.empty((), w.dtype) if op.reduction == "mean" else None
    KERNELS.launch("total_loss", x.dtype, 1, THREADS, partial, summed, divisor, grid)
    return t, kept, w, divisor, summed


def launch_backward(
    kernel: str,
    op: Labelled,
    dx: Array,
    lanes: int,
    dy: Array,
    t: Array,
    kept: Array,
    divisor: Array | None,
    statistics: Any,
    *more: Any,
) -> None:
    """Write the dense dx from dy and what forward, this one or the definition, has saved."""
    xp, (outer, classes, inner) = op.xp, channels(dx, op.axis)
    like, each = per_row(op, dx, bool), op.reduction == "none"
    t, kept, *saved = (matching(xp, a, like) for a in (t, kept, *statistics))
    dy = matching(xp, xp.expand_dims(dy, op.axis), like) if each else dy
    rows = t, kept, dy, each, divisor, dx, outer * inner, classes, inner
    grid = blocks(outer * inner * lanes, THREADS)
    KERNELS.launch(kernel, dx.dtype, grid, THREADS, *rows, *saved, *more)


def per_row(op: Labelled, x: Array, dtype: Any) -> Array:
    """Room for one value per row of the dense x, with a class axis of length 1."""
    one = tuple([slice(0, 1) if a == op.axis else slice(None) for a in range(x.ndim)])
    return op.xp.empty_like(x[one], dtype)


def contiguous(weight: Array | None, xp: Any) -> Array | None:
    """Weights of classes as kernels read them."""
    return None if weight is None else xp.ascontiguousarray(widen(weight))


def lanes_of(x: Array, axis: int) -> int:
    """How many threads share a row of the dense x: one where its classes do not lie side by side."""
    _, classes, inner = channels(x, axis)
    return row_lanes(classes, 16 // x.itemsize) if inner == 1 else 1
