"""Batch norm in training, and layer norm: two passes over memory (norm.cu)."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..autograd import Array
from ..ops.more.norm import LayerNorm
from ..ops.norm import BatchNorm, Running, of_argument, per_channel
from ..precision import FP32, store, widen
from . import kernel, made
from .kernels import Kernels
from .layout import compact, matching
from .rows import over_all_but, over_channels, over_last, vector
from .sums import parts

KERNELS = Kernels(__file__)
NOT_MOVED = (None, None, None, None, 0.0)  # `running_arguments` for no statistics


@kernel(BatchNorm.forward)
def batch_norm_forward(
    op: BatchNorm, x: Array, w: Array | None, b: Array | None, *, eps: float, running: Running
) -> Array:
    if running.momentum is None:
        return _evaluated(op, x, w, b, eps, running)
    xp, dense = op.xp, compact(op.xp, x)
    if (plan := over_channels(dense)) is None:
        return NotImplemented
    y = made(dense)
    mean, rstd = (xp.empty((1, x.shape[1], *[1] * (x.ndim - 2)), FP32.storage) for _ in range(2))
    moved = running_arguments(running)
    var = xp.empty_like(mean) if moved is None else None  # only `update` needs it
    work = plan.sums(KERNELS, xp, "batch_norm_moments", dense)
    given = vector(xp, w), vector(xp, b)
    plan.launch(KERNELS, "batch_norm_forward", dense, *given, y, work, mean, var, rstd, *(moved or NOT_MOVED), eps)
    if moved is None:
        running.update(mean, var, x.size // x.shape[1])
    op.save(x, w, statistics=(mean, rstd))
    return store(y, like=x)


def _evaluated(op: BatchNorm, x: Array, w: Array | None, b: Array | None, eps: float, running: Running) -> Array:
    """With the running statistics a batch norm is pointwise."""
    mean = per_channel(running.mean, x).copy()  # training may move the running one before backward
    rstd = 1 / op.xp.sqrt(per_channel(running.var, x) + eps)
    op.save(x, w, statistics=(mean, rstd))

    def normal(x: Array, mean: Array, scale: Array, shift: Array | None) -> Array:
        y = (widen(x) - mean) * scale
        return store(y if shift is None else y + shift, like=x)

    return op.device.map(normal, x, mean, rstd if w is None else rstd * per_channel(w, x), per_channel(b, x))


def running_arguments(running: Running) -> tuple | None:
    """The arguments with which the kernel moves them; None for arrays that only `Running.update` can handle."""
    number = isinstance(running.momentum, (int, float, np.generic))
    arrays = running.mean, running.var, running.count, None if number else running.momentum
    for v, dtype in zip(arrays, ("float32", "float32", "int64", "float32")):
        if v is not None and not (v.dtype == dtype and v.flags.c_contiguous):
            return None
    return *arrays, running.momentum if number else 0.0


@kernel(BatchNorm.backward)
def batch_norm_backward(op: BatchNorm, dy: Array) -> tuple:
    (x, w), (mean, rstd), (like_x, like_w, like_b), xp = op.saved, op.statistics, op.targets, op.xp
    x = compact(xp, x)
    if op.running.momentum is None or (plan := over_channels(x)) is None:
        return NotImplemented
    dy, mean = matching(xp, dy, x), vector(xp, mean)
    dx = made(x) if like_x else None
    dw, db = (xp.empty(like.shape, FP32.storage) if like else None for like in (like_w, like_b))
    work = plan.sums(KERNELS, xp, "batch_norm_sums", x, dy, mean)
    plan.launch(KERNELS, "batch_norm_backward", x, dy, vector(xp, w), mean, vector(xp, rstd), dx, dw, db, work)
    return of_argument(dx, like_x), of_argument(dw, like_w), of_argument(db, like_b)


@kernel(LayerNorm.forward)
def layer_norm_forward(op: LayerNorm, x: Array, w: Array | None, b: Array | None, *, axes: tuple, eps: float) -> Array:
    if (rows := over_last(x, axes)) is None:
        return NotImplemented
    xp, dense = op.xp, op.xp.ascontiguousarray(x)
    y = made(dense)
    mean, rstd = (xp.empty((*x.shape[: axes[0]], *[1] * len(axes)), FP32.storage) for _ in range(2))
    rows.launch(KERNELS, "layer_norm_forward", dense, vector(xp, w), vector(xp, b), y, mean, rstd, eps)
    op.save(x, w, statistics=(mean, rstd))
    return store(y, like=x)


@kernel(LayerNorm.backward)
def layer_norm_backward(op: LayerNorm, dy: Array) -> Any:
    (x, w), (like_x, like_w, like_b), xp = op.saved, op.targets, op.xp
    axes, rows = op.axes, over_last(x, op.axes)
    plan = rows and over_all_but(rows.rows, rows.length, 1, 16 // x.itemsize)
    if rows is None or plan is None:
        return NotImplemented
    x, dy, mean, rstd = (xp.ascontiguousarray(a) for a in (x, dy, *op.statistics))
    dx = made(x) if like_x else None
    if like_x:
        rows.launch(KERNELS, "layer_norm_backward", x, dy, vector(xp, w), mean, rstd, dx)
    dw = db = None
    if like_w or like_b:
        work = xp.empty((plan.parts, 2, *x.shape[axes[0] :]), FP32.storage)
        plan.launch(KERNELS, "layer_norm_sums", x, dy, mean, rstd, work)
        dw, db = parts(xp, work)
    return of_argument(dx, like_x), of_argument(dw, like_w), of_argument(db, like_b)
