"""Attention on a CPU: the definition, for parts of the batch whose scores stay in the cache, by several threads."""

from __future__ import annotations

from copy import copy
from math import prod
from typing import Any

from ...autograd import Array
from ...fast_path import fast_path
from ...ops.more.attention import Attention
from .threads import CACHED, share, slices


def batch(q: Array, k: Array, *others: Array | None) -> list[slice]:
    """The parts of q's first axis; none unless it is that of the scores."""
    axes = [(x.ndim, x.shape[:1]) for x in (q, k, *others) if x is not None]
    return slices(len(q), prod(q.shape[:-1]) * k.shape[-2], CACHED) if max(axes) == axes[0] else []


def cut(some: slice, q: Array, *others: Any) -> list:
    """The places `some` along the first axis of q and of those that have it; others broadcast."""
    return [q[some], *[x if lacks(x, q) else x[some] for x in others]]


def lacks(x: Any, q: Array) -> bool:
    """True if x has not all of q's first axis."""
    return x is None or len(x.shape) < q.ndim or x.shape[0] < len(q)


@fast_path(Attention.forward)
def forward(
    op: Attention, q: Array, k: Array, v: Array, mask: Array | None, kept: Array | None, **options: Any
) -> Array:
    arrays = q, k, v, mask, kept
    if len(parts := batch(*arrays)) < 2:
        return NotImplemented

    def attention(some: slice) -> tuple:
        part = copy(op)
        return Attention.forward(part, *cut(some, *arrays), **op.options), *part.statistics

    y, *statistics = map(op.xp.concatenate, zip(*share(attention, parts)))
    op.save(*arrays, y, statistics=tuple(statistics))
    return y


@fast_path(Attention.backward)
def backward(op: Attention, dy: Array) -> Any:
    (*arrays, y), (z,) = op.saved, op.statistics
    parts = batch(*arrays)
    if len(parts) < 2 or any(like and lacks(like, arrays[0]) for like in op.targets):
        return NotImplemented

    def gradients(some: slice) -> tuple:
        part, n = copy(op), len(dy[some])
        part.saved, part.statistics = (*cut(some, *arrays), y[some]), (z[some],)
        part.targets = tuple([like and like._replace(shape=(n, *like.shape[1:])) for like in op.targets])
        return Attention.backward(part, dy[some])

    return tuple([None if g[0] is None else op.xp.concatenate(g) for g in zip(*share(gradients, parts))])
