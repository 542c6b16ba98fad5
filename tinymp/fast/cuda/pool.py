"""Pooling by maximum and average, forward and backward: one kernel each (pool.cu)."""

from __future__ import annotations

from typing import Any

from ...autograd import Array
from ...ops.conv import Geometry, Pair, batch_first, images_last
from ...ops.pool import AvgPool2d, MaxPool2d, index_dtype
from . import kernel
from .kernels import Kernels
from .layout import blocks

KERNELS = Kernels(__file__)


@kernel(MaxPool2d.forward)
def max_pool2d_forward(op: MaxPool2d, x: Array, *, geometry: Geometry, indices: bool) -> Any:
    if not _fits(x.shape, geometry.output(*x.shape[2:])):
        return NotImplemented
    op.shape = x.shape
    windows, x = _windows(geometry, x.shape), images_last(op.xp, x)
    y = op.xp.empty((x.shape[0], *geometry.output(*x.shape[1:3]), x.shape[3]), x.dtype)
    index = op.xp.empty(y.shape, index_dtype(geometry))
    _launch(f"max_pool2d_forward{_suffix(index)}", y, (x, y, index), *windows)
    op.save(index)
    return (batch_first(y), batch_first(op.places(index))) if indices else batch_first(y)


@kernel(MaxPool2d.backward)
def max_pool2d_backward(op: MaxPool2d, dy: Array, _: None = None) -> Array:
    if not _fits(op.shape, dy.shape[2:]):
        return NotImplemented
    index, dy = op.xp.ascontiguousarray(op.saved[0]), images_last(op.xp, dy)
    dx = _empty_images(op.xp, op.shape, dy.dtype)
    _launch(f"max_pool2d_backward{_suffix(index)}", dx, (dy, index, dx), *_windows(op.geometry, op.shape))
    return batch_first(dx)


@kernel(AvgPool2d.forward)
def avg_pool2d_forward(
    op: AvgPool2d, x: Array, *, geometry: Geometry, include_pad: bool, override: int | None
) -> Array:
    if not _fits(x.shape, geometry.output(*x.shape[2:])):
        return NotImplemented
    op.shape = x.shape
    x = images_last(op.xp, x)
    y = op.xp.empty((x.shape[0], *geometry.output(*x.shape[1:3]), x.shape[3]), x.dtype)
    _launch("avg_pool2d_forward", y, (x, y), *_windows(geometry, op.shape), include_pad, override or 0)
    return batch_first(y)


@kernel(AvgPool2d.backward)
def avg_pool2d_backward(op: AvgPool2d, dy: Array) -> Array:
    if not _fits(op.shape, dy.shape[2:]):
        return NotImplemented
    windows, dy = _windows(op.geometry, op.shape), images_last(op.xp, dy)
    dx = _empty_images(op.xp, op.shape, dy.dtype)
    _launch("avg_pool2d_backward", dx, (dy, dx), *windows, op.include_pad, op.override or 0)
    return batch_first(dx)


def _suffix(index: Array) -> str:
    """What the names of max pooling's kernels end in."""
    return "" if index.dtype == "uint8" else "_uint32"


def _fits(shape: tuple, out: Pair) -> bool:
    """True if there are images, and 32 bits suffice: places are numbered (channel, row) and (column, image)."""
    (n, c, h, w), (oh, ow) = shape, out
    return n > 0 and max(c * h, c * oh, w * n, ow * n, h * oh + h, w * ow + w) < 2**31


def _empty_images(xp: Any, shape: tuple, dtype: Any) -> Array:
    n, c, h, w = shape
    return xp.empty((c, h, w, n), dtype)


def _windows(g: Geometry, shape: tuple) -> tuple[int, ...]:
    """Windows (pool.cu) of both sides: size, count, kernel, stride, before, dilation."""
    sides = zip(shape[2:], g.output(*shape[2:]), g.kernel, g.stride, g.pads, g.dilation)
    return tuple([v for n, o, k, s, (before, _), d in sides for v in (n, o, k, s, before, d)])


def _launch(kernel: str, out: Array, arrays: tuple, *numbers: Any) -> None:
    """Run a kernel with a thread for every 16 bytes of `out` (C, H, W, N), or for every element of it."""
    planes, rows, columns, images = out.shape
    pack = 16 // out.itemsize
    threads = columns * (images // pack if images % pack == 0 else images)
    block = min(256, -(-threads // 32) * 32)
    grid = blocks(threads, block), min(planes * rows, 65535)
    KERNELS.launch(kernel, out.dtype, grid, block, *arrays, planes, images, *numbers)
