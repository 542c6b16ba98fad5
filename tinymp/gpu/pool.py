"""Pooling by maximum, forward and backward: one kernel each (pool.cu), for windows of at most 256 places."""

from __future__ import annotations

from typing import Any

from ..autograd import Array
from ..events import here
from ..ops.conv import Geometry, batch_first
from ..ops.more.pool import OverlappingMaxPool2d
from ..ops.pool import MaxPool2d, index_dtype
from ..precision import store, widen
from . import kernel, made
from .kernels import Kernels
from .layout import blocks, images_last

KERNELS = Kernels(__file__)


@kernel(MaxPool2d.forward)
def max_pool2d_forward(op: MaxPool2d, x: Array, *, geometry: Geometry) -> Any:
    if not _fits(x.shape, geometry):
        return NotImplemented
    op.shape = x.shape
    windows, x = _windows(geometry, x.shape), images_last(op.xp, x)
    y = op.xp.empty((x.shape[0], *geometry.output(*x.shape[1:3]), x.shape[3]), x.dtype)
    index = op.xp.empty(y.shape, index_dtype(geometry))
    _launch("max_pool2d_forward", y, (x, y, index), *windows)
    op.save(index)
    # told as the definition tells it, who compares in FP32
    return batch_first(store(widen(y), like=y) if here.inside else y)


@kernel(OverlappingMaxPool2d.forward)
def overlapping_forward(op: OverlappingMaxPool2d, x: Array, *, geometry: Geometry, indices: bool) -> Any:
    y = max_pool2d_forward(op, x, geometry=geometry)
    return (y, batch_first(op.places(op.saved[0]))) if indices and y is not NotImplemented else y


@kernel(OverlappingMaxPool2d.backward)
def overlapping_backward(op: OverlappingMaxPool2d, dy: Array, _: None = None) -> Array:
    return max_pool2d_backward(op, dy)


@kernel(MaxPool2d.backward)
def max_pool2d_backward(op: MaxPool2d, dy: Array) -> Array:
    if not _fits(op.shape, op.geometry):
        return NotImplemented
    index, dy = op.xp.ascontiguousarray(op.saved[0]), images_last(op.xp, dy)
    n, c, h, w = op.shape
    dx = made(dy, (c, h, w, n))
    _launch("max_pool2d_backward", dx, (dy, index, dx), *_windows(op.geometry, op.shape))
    if here.inside and not isinstance(op, OverlappingMaxPool2d):  # values of dy: nothing to tell
        return batch_first(op.device.cast(dx, dy.dtype))  # rounds: never, they were FP16
    return batch_first(store(dx, like=dy))


def _fits(shape: tuple, g: Geometry) -> bool:
    """True if there are images, a byte holds a place in the kernel, and 32 bits suffice for (channel, row) and (column,
    image).
    """
    (n, c, h, w), (oh, ow) = shape, g.output(*shape[2:])
    return n > 0 and index_dtype(g) == "uint8" and max(c * h, c * oh, w * n, ow * n, h * oh + h, w * ow + w) < 2**31


def _windows(g: Geometry, shape: tuple) -> tuple[int, ...]:
    """Windows (pool.cu) of both sides: size, count, kernel, stride, before, dilation."""
    sides = zip(shape[2:], g.output(*shape[2:]), g.kernel, g.stride, g.pads, g.dilation)
    return tuple([v for n, o, k, s, (before, _), d in sides for v in (n, o, k, s, before, d)])


def _launch(kernel: str, out: Array, arrays: tuple, *numbers: Any) -> None:
    """Run a kernel with a thread for every 16 bytes of `out` (C, H, W, N), or for every element of it."""
    planes, rows, columns, images = out.shape
    dtype = arrays[0].dtype
    pack = 16 // dtype.itemsize
    threads = columns * (images // pack if images % pack == 0 else images)
    block = min(256, -(-threads // 32) * 32)
    grid = blocks(threads, block), min(planes * rows, 65535)
    KERNELS.launch(kernel, dtype, grid, block, *arrays, planes, images, *numbers)
