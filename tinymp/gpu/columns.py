"""Columns of a convolution by one kernel each way (columns.cu): for FP32, and GPUs before Ampere."""

from __future__ import annotations

from math import prod
from typing import Any

from .. import backend
from ..autograd import Array
from ..dtypes import float16, float32
from ..events import here, tell
from ..fast_path import fast_path
from ..ops.conv import Geometry, columns, fold, grouped, spread
from ..precision import FP32, gemm, plain
from .kernels import Kernels

KERNELS = Kernels(__file__)
GRID = 1 << 16  # blocks, at most, of a kernel that goes on to further elements


def windows(name: str, x: Array, y: Array, shape: tuple[int, ...], g: Geometry) -> None:
    """A kernel from x to y for images of this shape (C, H, W, N)."""
    sides = *g.output(*shape[1:3]), *g.kernel, *g.stride, g.pads[0][0], g.pads[1][0], *g.dilation
    KERNELS.launch(name, x.dtype, min(GRID, -(-y.size // 256)), 256, x, y, y.size, *shape, *sides)


def one_pixel(g: Geometry, sides: tuple[int, ...], size: tuple[int, ...] | None = None) -> bool:
    """True if each window of images with these sides is one pixel, at its place, and `size` is theirs."""
    same = size is None or tuple(size) == tuple(sides)
    return same and g.kernel == g.stride == (1, 1) and not any(map(any, g.pads)) and g.output(*sides) == tuple(sides)


@fast_path(columns)
def im2col(x: Array, g: Geometry) -> Any:
    if x.dtype not in (float16, float32) or not x.size:
        return NotImplemented
    seen = x.shape[0] * prod(g.kernel), *g.output(*x.shape[1:3]), x.shape[3]
    if one_pixel(g, x.shape[1:3]):
        y = x
    else:
        y = backend.of(x).xp.empty(seen, x.dtype)
        windows("images_to_columns", backend.of(x).xp.ascontiguousarray(x), y, x.shape, g)
    return y.reshape(g.groups, seen[0] // g.groups, prod(seen[1:]))


@fast_path(spread)
def one_product(y: Array, w: Array, bias: Array | None, g: Geometry, size: tuple[int, int]) -> Array:
    if not one_pixel(g, size) or not plain(w.dtype):
        return NotImplemented
    x = gemm(grouped(w, g).swapaxes(1, 2), grouped(y, g), None if bias is None else grouped(bias, g))
    x = x.reshape(w.shape[1] * g.groups, *size, y.shape[3])
    if here.inside:  # as the only term of `fold`
        tell("added", x, None, "float32")
    return x


@fast_path(fold)
def col2im(columns: Array, shape: tuple, g: Geometry, like: Array, accumulator: str = "reduce") -> Array:
    if columns.dtype != float32 or not plain(like.dtype) or not columns.size:
        return NotImplemented
    xp = backend.of(columns).xp
    x = xp.empty(shape, FP32.storage)
    if here.inside:
        for part in columns.reshape(shape[0], prod(g.kernel), *g.output(*shape[1:3]), shape[3]).swapaxes(0, 1):
            tell("added", part, None, "float32")
    windows("columns_to_images", xp.ascontiguousarray(columns), x, shape, g)
    return x
