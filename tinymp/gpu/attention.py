"""Attention on Tensor Cores without the matrix of scores in memory (attention.cu): FP16, from Ampere on."""

from __future__ import annotations

import math
from typing import Any

from ..arguments import LONGEST
from ..autograd import Array
from ..dtypes import float16
from ..events import here, tell
from ..ops.more.attention import Attention
from ..precision import store, widen
from . import kernel, made
from .kernels import Kernels
from .layout import ceil_div, contiguous
from .rows import reduced

KERNELS = Kernels(__file__)
HEADS = 32, 64, 128  # head sizes for which there are kernels; they take smaller ones


@kernel(Attention.forward)
def attention_forward(
    op: Attention, q: Array, k: Array, v: Array, mask: Array | None, kept: Array | None, **options: Any
) -> Array:
    if not fits(op.device, q, k, v):
        return NotImplemented
    y = result(q, v.shape[-1])
    z = reduced(op.xp, y, 3)
    launch("attention", op, q, (q, k, v, mask, kept), y, z)
    y, z = like_leading(q, store(y, like=q), z)
    if here.inside:
        tell("product", q, k.swapaxes(-1, -2), "float32")
    op.save(q, k, v, mask, kept, y, statistics=(z,))
    return y


@kernel(Attention.backward)
def attention_backward(op: Attention, dy: Array) -> Any:
    *read, _ = op.saved
    q, k, v, _, _ = read
    if op.targets[3] or not fits(op.device, q, k, v):
        return NotImplemented
    dy, z = (by_rows(op.xp, x) for x in (dy, *op.statistics))
    dq, dk, dv = (result(x, x.shape[-1]) for x in (q, k, v))
    total, delta = op.xp.empty_like(z), op.xp.empty_like(z)
    launch("attention_queries", op, q, read, dy, z, total, delta, dq)
    launch("attention_keys", op, k, read, dy, z, total, delta, dk, dv)
    if here.inside:
        for a, b in ((q, k), (like_leading(q, dy)[0], v)):
            tell("product", a, b.swapaxes(-1, -2), "float32")
    return (*[store(x, like=q) for x in like_leading(q, dq, dk, dv)], None, None)


def launch(kernel: str, op: Attention, rows: Array, read: Any, *others: Array) -> None:
    """A kernel of attention.cu, a block for each tile of the rows of q, or of k; read: the arguments of forward."""
    q, k, v = (with_neighbours(op.xp, heads(x)) for x in read[:3])
    mask, kept = read[3:]
    size = q.itemsize
    (B, H, L, E), (S, Ev) = q.shape, v.shape[2:]
    head = next(n for n in HEADS if n >= max(E, Ev))
    tile, pack = min(8192 // head, 128) // size, 16 // size  # as in attention.cu
    steps = [step // size for x in (q, k, v) for step in x.strides[:3]]
    seen, added = (mask, None) if mask is None or mask.dtype == bool else (None, widen(mask))
    given = seen if added is None else added
    if given is None:
        steps += [0] * 4
    else:
        whole = op.xp.broadcast_to(given, (*read[0].shape[:-1], S))
        steps += [step // given.itemsize for step in heads(whole).strides]
    numbers = *steps, H, L, S, E, Ev, op.causal, op.scale, op.growth()
    blocks, tiles = B * H * ceil_div(rows.shape[-2], tile), 3 if kernel == "attention" else 4
    shared = (tiles * tile * (head + pack) + tile * (tile + pack)) * size
    name = f"{kernel}_{head}"
    arrays = q, k, v, seen, added, kept
    KERNELS.launch(name, q.dtype, blocks, 2 * tile, *arrays, *numbers, *others, shared=shared)


def fits(device: Any, q: Array, k: Array, v: Array) -> bool:
    """True if the kernels take these arrays; not head sizes beyond 128, leading axes that broadcast, or more than two
    of them, FP32, and GPUs before Ampere.
    """
    sizes, lead = (q.shape[-1], v.shape[-1]), q.shape[:-2]
    cores = q.dtype == float16 and device.compute_capability() >= 80
    alike = len(lead) <= 2 and lead == k.shape[:-2] == v.shape[:-2]
    short = math.prod(lead) * max(q.shape[-2], k.shape[-2]) <= LONGEST
    return cores and alike and short and 0 < min(sizes) <= max(sizes) <= HEADS[-1]


def heads(x: Array) -> Array:
    return x if x.ndim == 4 else x[:, None]


def like_leading(q: Array, *arrays: Array) -> tuple:
    return arrays if q.ndim == 4 else tuple([x[:, 0] for x in arrays])


def with_neighbours(xp: Any, x: Array) -> Array:
    """x, or a copy of it, whose columns are neighbours in memory."""
    return x if x.strides[-1] == x.itemsize or x.shape[-1] == 1 else contiguous(xp, x)


def result(x: Array, columns: int) -> Array:
    """Room for an array like x, with so many columns, in the memory order that the kernels write: B, L, H, E."""
    b, h, n = heads(x).shape[:3]
    return made(x, (b, n, h, columns)).swapaxes(1, 2)


def by_rows(xp: Any, x: Array) -> Array:
    return contiguous(xp, heads(x).swapaxes(1, 2)).swapaxes(1, 2)
