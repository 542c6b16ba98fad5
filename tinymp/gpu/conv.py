"""Convolutions on a GPU (conv.cu): FP16 products on Tensor Cores, in kernels that never write the columns. FP32, and
GPUs before Ampere, are left to the definition, whose columns are made by columns.py. A 1 x 1 convolution is a product.
"""

from __future__ import annotations

from functools import cache
from math import gcd, prod
from typing import Any, NamedTuple

import numpy as np

from ..autograd import Array
from ..dtypes import float16
from ..events import here, tell
from ..ops.conv import Conv2d, ConvTranspose2d, Geometry, Pair, batch_first, bias_gradient, columns, grouped
from ..precision import FP32, gemm, store
from . import kernel, made
from .columns import one_pixel
from .kernels import Kernels
from .layout import ceil_div, images_last
from .rows import ints

KERNELS = Kernels(__file__)

LIMIT = (1 << 31) - (1 << 16)  # the kernels count elements in 32 bits, and a last block may overshoot


def problem(image: tuple, g: Geometry, rows: int, size: Pair, transposed: bool = False) -> tuple[np.int32, ...]:
    """The arguments PROBLEM in conv.cu: an image (C, H, W, N) is read, `rows` channels per group of `size` written."""
    c, h, w, n = image
    (top, _), (left, _) = g.pads
    what = transposed, g.groups, c // g.groups, h, w, n, rows
    return ints(*what, *size, *g.kernel, *g.stride, top, left, *g.dilation)


def fits(device: Any, g: Geometry, x: Array, w: Array, outputs: int) -> bool:
    """True if the kernels take these arrays: FP16, from Ampere on (`cp.async`). outputs: the number of elements of y or
    dy.
    """
    short = max(x.size, w.size, outputs) < LIMIT and g.groups * prod(g.stride) < 1 << 16
    return short and x.size > 0 and x.dtype == float16 and device.compute_capability() >= 80


def correlate(
    xp: Any, x: Array, w: Array, bias: Array | None, g: Geometry, size: Pair, transposed: bool = False
) -> Array:
    """y (O, *size, N) of x (C, H, W, N): `correlate`, or, transposed, `spread` of the definition."""
    c, n = x.shape[0], x.shape[3]
    rows = w.shape[1] if transposed else w.shape[0] // g.groups  # of y, per group
    y_shape = (g.groups * rows, *size, n)
    w, bias = xp.ascontiguousarray(w), None if bias is None else xp.ascontiguousarray(bias)
    matrix = grouped(w, g).swapaxes(1, 2) if transposed else grouped(w, g)
    if one_pixel(g, x.shape[1:3], size):
        return gemm(matrix, grouped(x, g), None if bias is None else grouped(bias, g)).reshape(y_shape)
    phases = g.stride if transposed else (1, 1)
    numbers, batch = problem(x.shape, g, rows, size, transposed), g.groups * prod(phases)
    y = made(x, y_shape)
    if here.inside:
        tell("product", matrix, grouped(x, g) if transposed else columns(x, g), "float32")
    positions = prod(ceil_div(s, p) for s, p in zip(size, phases)) * n  # of the first phase, which has most
    width = at_once(n, x, y)
    # each tap belongs to one phase, and a phase has every (stride / gcd(stride, dilation))-th
    most = [ceil_div(k, p // gcd(p, d)) for k, p, d in zip(g.kernel, phases, g.dilation)]
    terms = c // g.groups * prod(most)
    ld = ceil_div(terms, 8) * 8
    if transposed or ld != terms or at_once(ld, w) < 8:
        arranged = xp.empty((batch, rows, ld), w.dtype)
        KERNELS.launch("arrange", w.dtype, (ceil_div(rows * ld, 256), 1, batch), 256, w, arranged, ld, *numbers)
        w = arranged
    # not for several phases, which lie apart in y. They have so many times as many blocks anyway
    split = ceil_div(terms, SHORTEST) if prod(phases) == 1 else 1
    tile, length, parts = schedule(width, rows, positions, batch, terms, split, processors())
    grid = (ceil_div(rows, tile.rows) * ceil_div(positions, tile.columns), parts, batch)
    sums = xp.empty((parts, *y_shape), FP32.storage) if parts > 1 else None
    shared = max(tile.stages, tile.rows * (tile.columns + 8) * 2)
    arguments = x, w, bias, y, sums, length, ld, *numbers
    KERNELS.launch(tile.kernel("correlate", width), x.dtype, grid, 128, *arguments, shared=shared)
    if sums is not None:
        sum_parts(sums, bias, y, w.dtype)
    return store(y, like=w)


def weight_gradient(xp: Any, x: Array, dy: Array, w: Array, g: Geometry) -> Array:
    """dW, like w, of x (C, H, W, N) and dy (O, OH, OW, N)."""
    (o, *size, n), c = dy.shape, x.shape[0]
    rows, terms, positions = o // g.groups, c // g.groups * prod(g.kernel), prod(size) * n
    if one_pixel(g, x.shape[1:3], tuple(size)):
        return gemm(grouped(dy, g), grouped(x, g).swapaxes(1, 2)).reshape(w.shape)
    width, numbers = at_once(n, x, dy), problem(x.shape, g, rows, tuple(size))
    dw = made(w, w.shape)
    if here.inside:
        tell("product", grouped(dy, g), columns(x, g).swapaxes(1, 2), "float32")
    split = ceil_div(positions, SHORTEST)
    tile, length, parts = schedule(width, rows, terms, g.groups, positions, split, processors())
    sums = xp.empty((parts, *w.shape), FP32.storage) if parts > 1 else None
    grid = (ceil_div(rows, tile.rows) * ceil_div(terms, tile.columns), parts, g.groups)
    shared = tile.stages + 16 * tile.columns  # and where each column begins
    arguments = x, dy, dw, sums, length, *numbers
    KERNELS.launch(tile.kernel("weight_gradient", width), x.dtype, grid, 128, *arguments, shared=shared)
    if sums is not None:
        sum_parts(sums, None, dw, w.dtype)
    return store(dw, like=w)


def sum_parts(parts: Array, bias: Array | None, to: Array, storage: np.dtype) -> None:
    """to = bias + the sum of its parts (FP32, along the first axis), rounded once; bias: for the first axis of `to`."""
    warps = min(len(parts), 8)
    numbers = len(parts), to.size, to.size // to.shape[0]
    KERNELS.launch("sum_parts", storage, ceil_div(to.size, 32), 32 * warps, parts, bias, to, *numbers)


class Tile(NamedTuple):
    """The part of a product that a block of 128 threads computes; how fast a GPU full of them is, relative to
    128 x 128 (measured: `tiles` in benchmarks/results/gpu_h200.json); and for how many images side by side it is there.
    """

    rows: int
    columns: int
    speed: float
    widths: tuple[int, ...]

    @property
    def stages(self) -> int:
        """Bytes of shared memory for both operands: 3 stages of depth 32 in FP16."""
        return 3 * 32 * 2 * (self.rows + self.columns)

    def kernel(self, name: str, width: int) -> str:
        return f"{name}_{self.rows}x{self.columns}" + ("" if width == 8 else f"_by_{width}")


# A larger tile reads less per multiplication, (rows + columns) / (rows columns); a smaller one makes more blocks, and
# pads less. Warps compute 64 x 64 of the result where they can: that many accumulators fill half of their registers.
TILES = (
    Tile(128, 128, 1.0, (8, 4)),  # the work horse: two on a multiprocessor hide each other's waiting
    Tile(64, 128, 0.79, (8,)),  # layers of 64 channels, the first ones of most networks
    Tile(32, 128, 0.59, (8,)),  # 32 channels, or an image of 3 is made
    Tile(16, 128, 0.37, (8, 4, 1)),  # grouped: few rows each. Tensor Cores have no fewer than 16
    Tile(64, 64, 0.65, (8, 4, 1)),  # few positions. Odd batches, which are copied in halves without cp.async:
    # small blocks, of which 4 on a multiprocessor hide the waiting
)
SHORTEST = 256  # of the parts of a sum: 8 stages, so that filling and emptying them does not count for much
# What a second launch costs (2 us), and the 8 bytes that are written and read per result and part (at 3.3 TB/s), in
# multiplications that each multiprocessor could do in that time (2.3e12 per second)
LAUNCH, PART = 4_500_000, 5


@cache
def schedule(
    width: int, rows: int, columns: int, batch: int, depth: int, most: int, processors: int
) -> tuple[Tile, int, int]:
    """The tile for `width` images at a time, and the length and number (up to `most`) of the parts of the sum over
    depth, each a multiple of 32 long, with the least expected time: the waves of blocks, two at a time on each
    multiprocessor, and the sum of the parts, in multiplications that one does.
    """

    def time(choice: tuple[Tile, int, int]) -> float:
        tile, length, parts = choice
        blocks = ceil_div(rows, tile.rows) * ceil_div(columns, tile.columns) * batch * parts
        product = 2 * ceil_div(blocks, 2 * processors) * tile.rows * tile.columns / tile.speed * length
        return product + (LAUNCH + PART * parts * rows * columns * batch if parts > 1 else 0)

    lengths = {ceil_div(ceil_div(depth, parts), 32) * 32 for parts in range(1, min(most, 2 * processors) + 1)}
    choices = [(t, n, ceil_div(depth, n)) for t in TILES if width in t.widths for n in sorted(lengths, reverse=True)]
    return min(choices, key=time)


def processors() -> int:
    """The number of the GPU's multiprocessors: an H100 has 132, an A100 108."""
    import cupy

    runtime = cupy.cuda.runtime
    return int(runtime.deviceGetAttribute(runtime.cudaDevAttrMultiProcessorCount, runtime.getDevice()))


def at_once(n: int, *arrays: Array) -> int:
    """The number of elements that a kernel may read or write at once, from rows of n and by their addresses: as many as
    fill 16 bytes, or 4, or 1.
    """
    for width in (16 // arrays[0].itemsize, 4):
        if n % width == 0 and all(x.data.ptr % (width * x.itemsize) == 0 for x in arrays):
            return width
    return 1


@kernel(Conv2d.forward)
def conv2d_forward(op: Conv2d, x: Array, w: Array, b: Array | None, *, geometry: Geometry) -> Array:
    return _forward(op, x, w, b, geometry, geometry.output(*x.shape[2:]), w.shape[0])


@kernel(ConvTranspose2d.forward)
def conv_transpose2d_forward(
    op: ConvTranspose2d, x: Array, w: Array, b: Array | None, *, geometry: Geometry, size: Pair
) -> Array:
    return _forward(op, x, w, b, geometry, size, w.shape[1] * geometry.groups)


def _forward(op: Any, x: Array, w: Array, b: Array | None, g: Geometry, size: Pair, channels: int) -> Array:
    if not fits(op.device, g, x, w, x.shape[0] * channels * prod(size)):
        return NotImplemented
    op.save(x, w)
    return batch_first(correlate(op.xp, images_last(op.xp, x), w, b, g, size, isinstance(op, ConvTranspose2d)))


@kernel(Conv2d.backward)
@kernel(ConvTranspose2d.backward)
def backward(op: Any, dy: Array) -> Any:
    (x, w), (like_x, like_w, like_b), g, transposed = op.saved, op.targets, op.geometry, isinstance(op, ConvTranspose2d)
    if not fits(op.device, g, x, w, dy.size):
        return NotImplemented
    y = images_last(op.xp, dy)
    dx = batch_first(correlate(op.xp, y, w, None, g, x.shape[2:], not transposed)) if like_x else None
    dw = None
    if like_w:
        seen = images_last(op.xp, x)
        dw = weight_gradient(op.xp, y, seen, w, g) if transposed else weight_gradient(op.xp, seen, y, w, g)
    return dx, dw, bias_gradient(op.xp, dy, like_b) if like_b else None
