"""Batch norm on a CPU: the definition, for parts of the channels, by several threads."""

from __future__ import annotations

from copy import copy
from dataclasses import replace

from ...autograd import Array
from ...fast_path import fast_path
from ...ops.norm import BatchNorm, Running
from .threads import CACHED, cut, share, slices


@fast_path(BatchNorm.forward)
def forward(op: BatchNorm, x: Array, w: Array | None, b: Array | None, *, eps: float, running: Running) -> Array:
    if running.momentum is None or len(parts := slices(x.shape[1], x.size, CACHED)) < 2:
        return NotImplemented
    y = op.xp.empty_like(x)

    def normalise(some: slice) -> tuple:
        mean, var = cut(some, running.mean, running.var)
        part, moved = copy(op), replace(running, mean=mean, var=var, count=None)
        y[:, some] = BatchNorm.forward(part, x[:, some], *cut(some, w, b), eps=eps, running=moved)
        return part.statistics

    statistics = tuple([op.xp.concatenate(s, axis=1) for s in zip(*share(normalise, parts))])
    if running.count is not None:
        running.count[...] += 1
    op.save(x, w, statistics=statistics)
    return y


@fast_path(BatchNorm.backward)
def backward(op: BatchNorm, dy: Array) -> tuple:
    if len(parts := slices(dy.shape[1], dy.size, CACHED)) < 2:
        return NotImplemented
    (x, w), (like_x, like_w, like_b) = op.saved, op.targets
    dx = None if like_x is None else op.xp.empty_like(dy)

    def gradients(some: slice) -> tuple:
        part, n = copy(op), some.stop - some.start
        part.saved, part.statistics = (x[:, some], *cut(some, w)), tuple([s[:, some] for s in op.statistics])
        part.targets = like_x, *[like and like._replace(shape=(n,)) for like in (like_w, like_b)]
        part_dx, *others = BatchNorm.backward(part, dy[:, some])
        if dx is not None:
            dx[:, some] = part_dx
        return tuple(others)

    dw, db = zip(*share(gradients, parts))
    return dx, like_w and op.xp.concatenate(dw), like_b and op.xp.concatenate(db)
