"""Convolutions as matrix products (kind DOT: exact products, FP32 accumulator, one rounding; MPT section 3.3).

With a kernel of shape (C, kh, kw), the columns of x are, for each output position, the C kh kw values that the kernel
sees there. Three products then make up convolution and its gradients:

    correlate         y  = W columns(x)               forward
    spread            dx = fold(W^T dy)               input gradient; forward of the transposed convolution
    weight_gradient   dW = dy columns(x)^T

where fold adds every column back to the places it was read from, in FP32, before the one rounding. On a CPU, spread is
mostly computed as correlations of dy, one for each phase of the stride.

Where few channels meet, a CPU makes no columns: with H as the slowest axis they lie in the image itself (by_rows).

Memory order: tensors are (N, C, H, W) by meaning, but these ops lay them out as C, H, W, N. One row of one column is
then a run of W * N neighbours in memory, so that columns() is a plain copy (measured: 14 MB in 0.2 ms, a tenth of
the product's time), the product gives the next layer's order without a transposition, and everything per channel
(batch norm, bias) works on one contiguous block.

On a GPU, FP16 products run on Tensor Cores in kernels that never write the columns (conv.cu), and depthwise ones in
kernels that add up one by one. Where neither applies (FP32, GPUs before Turing), kernels make and fold the columns and
cuBLAS multiplies.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import cache
from math import gcd, prod
from typing import Any, NamedTuple

from .. import backend
from ..arguments import floating, integers
from ..autograd import Array, Op, Target
from ..backend.kernels import Kernels
from ..backend.layout import LONGEST, ceil_div, contiguous
from ..backend.threads import slices
from ..dtypes import float16
from ..precision import DOT, FP32, MOVEMENT, REDUCTION, add_to, gemm, may_fuse, reduce, store, unrounded, widen
from ..tensor import Tensor
from .dot import operand

KERNELS = Kernels(__file__)

# Columns are made for as many output rows at a time as keep them below this many elements: on a GPU (64 MB in FP32),
# and on a CPU, where they stay in the cache between their making and the product.
BLOCK, CACHED = 1 << 24, 1 << 19
# OpenBLAS multiplies small matrices where they lie (with AVX-512): up to so many multiplications, or so large a result
# where both operands run along the sum. Others it first copies, which for few rows takes as long as the product.
SMALL, FEW = 1_000_000, 1200
RUN = 32  # the columns of a small product: fewer are not worth one


STRIP = 1008  # places of all images that are turned round at a time

Pair = tuple[int, ...]  # (height, width)


class Geometry(NamedTuple):
    """Where the windows of a kernel lie. All pairs are (height, width); pads are ((top, bottom), (left, right))."""

    kernel: Pair
    stride: Pair = (1, 1)
    pads: tuple[Pair, ...] = ((0, 0), (0, 0))
    dilation: Pair = (1, 1)
    groups: int = 1
    out: Pair | None = None  # the number of windows, where it is not all that fit (output_padding)

    def padded(self, h: int, w: int) -> Pair:
        """The size of the input with its padding."""
        return h + self.pads[0][0] + self.pads[0][1], w + self.pads[1][0] + self.pads[1][1]

    def output(self, h: int, w: int) -> Pair:
        """How many windows fit: floor((size + padding - dilation (kernel - 1) - 1) / stride) + 1."""
        if self.out is not None:
            return self.out
        spans = [d * (k - 1) + 1 for d, k in zip(self.dilation, self.kernel)]
        return tuple([(n - span) // s + 1 for n, span, s in zip(self.padded(h, w), spans, self.stride)])


def channels_first(x: Array) -> Array:
    """(N, C, H, W) as (C, H, W, N); the ops of this file keep that contiguous in memory."""
    return x.transpose(1, 2, 3, 0)


def images_last(xp: Any, x: Array) -> Array:
    """(N, C, H, W) as a C-contiguous (C, H, W, N): x's own memory where it lies so.

    NumPy would copy images that lie one behind the other with a cache miss for each element; in strips that fit the
    cache it takes a third of the time.
    """
    if backend.of(x) is backend.gpu:
        return contiguous(xp, channels_first(x))
    if backend.of(x) is not backend.cpu or not x.flags.c_contiguous or not 8 <= len(x) < x.size // STRIP:
        return xp.ascontiguousarray(channels_first(x))
    y = xp.empty((*x.shape[1:], len(x)), x.dtype)
    images, places = x.reshape(len(x), -1), y.reshape(-1, len(x))
    strip = xp.empty((len(x), STRIP + 16), x.dtype)  # 16: rows that are not a multiple of 4 KiB apart
    for i in range(0, len(places), STRIP):
        part = strip[:, : len(places[i : i + STRIP])]
        part[...] = images[:, i : i + STRIP]
        places[i : i + STRIP] = part.T
    return y


def batch_first(x: Array) -> Array:
    """(C, H, W, N) as (N, C, H, W)."""
    return x.transpose(3, 0, 1, 2)


def region(xp: Any, x: Array, rows: Pair, across: Pair, value: float = 0.0) -> Array:
    """x (C, H, W, N) from row rows[0] up to rows[1], and across likewise, with `value` where those lie outside of x."""
    c, h, w, n = x.shape
    (top, bottom), (left, right) = rows, across
    seen = x[:, min(max(top, 0), h) : max(bottom, 0), min(max(left, 0), w) : max(right, 0)]
    if seen.shape[1:3] == (bottom - top, right - left):
        return seen
    y = xp.full((c, bottom - top, right - left, n), value, x.dtype)
    if seen.size:
        top, left = max(-top, 0), max(-left, 0)
        y[:, top : top + seen.shape[1], left : left + seen.shape[2]] = seen
    return y


def pad_spatial(xp: Any, x: Array, pads: Any, value: float = 0.0) -> Array:
    """x (C, H, W, N) with `value` around H and W."""
    (top, bottom), (left, right) = pads
    return region(xp, x, (-top, x.shape[1] + bottom), (-left, x.shape[2] + right), value)


def unpad_spatial(x: Array, g: Geometry, size: Pair) -> Array:
    """The part of the padded x (C, H, W, N) that is not padding."""
    top, left = g.pads[0][0], g.pads[1][0]
    return x[:, top : top + size[0], left : left + size[1]]


def windows(xp: Any, x: Array, g: Geometry) -> Array:
    """All windows of the padded x (C, H, W, N), as a view (C, kh, kw, OH, OW, N) that copies nothing."""
    unpadded = g._replace(pads=((0, 0), (0, 0)))
    c, h, w, n = x.shape
    sc, sh, sw, sn = x.strides
    strides = (sc, sh * g.dilation[0], sw * g.dilation[1], sh * g.stride[0], sw * g.stride[1], sn)
    shape = (c, *g.kernel, *unpadded.output(h, w), n)
    return xp.lib.stride_tricks.as_strided(x, shape, strides)


def taps(view: Array, g: Geometry, rows: slice = slice(None)) -> Iterator[tuple[int, int, Array]]:
    """For each kernel position (i, j): the part of the padded image (C, H, W, N) that it sees at the output rows."""
    oh, ow = g._replace(pads=((0, 0), (0, 0))).output(view.shape[1], view.shape[2])
    first, last, _ = rows.indices(oh)
    for i in range(g.kernel[0]):
        top = i * g.dilation[0] + first * g.stride[0]
        for j in range(g.kernel[1]):
            left = j * g.dilation[1]
            tall, wide = (last - first - 1) * g.stride[0] + 1, (ow - 1) * g.stride[1] + 1
            yield i, j, view[:, top : top + tall : g.stride[0], left : left + wide : g.stride[1]]


def columns(xp: Any, x: Array, g: Geometry) -> tuple[list[slice], Callable[[slice], Array]]:
    """Blocks of output rows, and the function that gives the columns (groups, C kh kw / groups, rows OW N) of a block,
    of x (C, H, W, N), widened.

    Widening x rather than its columns reads each value once, not kh kw times. Kernels leave them as they are stored.
    """
    c, h, w, n = x.shape
    (oh, ow), terms = g.output(h, w), c * prod(g.kernel) // g.groups
    copied = backend.of(x) is not backend.gpu and not pointwise(g, x.shape, (oh, ow))
    rows = backend.of(x).slices(oh, c * prod(g.kernel) * oh * ow * n, CACHED if copied else BLOCK)
    if pointwise(g, x.shape, (oh, ow)):
        image = widen(x).reshape(g.groups, terms, h, w * n)
        return rows, lambda rows: image[:, :, rows].reshape(g.groups, terms, -1)
    by_kernel = has_kernels(x, x.size)
    view: Any = None if by_kernel else windows(xp, pad_spatial(xp, widen(x), g.pads), g)  # C, kh, kw, OH, OW, N

    def cut(rows: slice) -> Array:
        block = im2col(xp, x, g, rows) if by_kernel else view[:, :, :, rows]
        return block.reshape(g.groups, terms, (rows.stop - rows.start) * ow * n)

    return rows, cut


def small_run(g: Geometry, w: Array) -> int:
    """How many columns a small product with the weights w of one tap across has at most; 0 if that is too few."""
    most = SMALL * g.groups * g.kernel[1] // max(w.size, 1)
    return most if most >= RUN else 0


def row_parts(g: Geometry, x: Array, w: Array) -> int:
    """Into how many parts the rows of `by_rows` are cut, so that a product of each is small; 0 where it cannot be."""
    size, most = g.output(*x.shape[1:3]), small_run(g, w)
    run = size[1] * x.shape[3]
    if not run or not most or backend.of(x) is backend.gpu or pointwise(g, x.shape, size):
        return 0
    return next((parts for parts in range(ceil_div(run, most), run // RUN + 1) if run % parts == 0), 0)


def by_rows(xp: Any, x: Array, g: Geometry) -> Callable[[int, slice, int], Array]:
    """The columns of x (C, H, W, N) for one tap across and some output rows, each cut into parts: a function that gives
    them, widened, as (groups, rows, parts, kh C / groups, OW N / parts), in the order (kh, C). It copies nothing.

    With H as the slowest axis, all rows of x that a window sees are neighbours in memory: rows of a matrix, in which
    the next tap across begins a place further on: with a stride, the places of each of its phases lie together.
    """
    (c, h, w, n), (tall, wide), across = x.shape, g.padded(*x.shape[1:3]), g.stride[1]
    (top, bottom), (left, right) = g.pads
    x = widen(x)[:, max(-top, 0) : max(h + min(bottom, 0), 0), max(-left, 0) : max(w + min(right, 0), 0)]
    x = x.reshape(g.groups, c // g.groups, *x.shape[1:]).swapaxes(1, 2)  # groups, H, C / groups, W, N
    top, left = max(top, 0), max(left, 0)
    image = xp.zeros((across, g.groups, tall, c // g.groups, ceil_div(wide, across), n), x.dtype)
    for phase in range(across):
        part, first = x[:, :, :, (phase - left) % across :: across], ceil_div(max(left - phase, 0), across)
        image[phase, :, top : top + part.shape[1], :, first : first + part.shape[3]] = part
    _, sg, sh, sc, _, step = image.strides
    run = g.output(h, w)[1] * n

    def cut(tap: int, rows: slice, parts: int) -> Array:
        place = tap * g.dilation[1]
        seen = image[place % across, :, rows.start * g.stride[0] :, :, place // across :]
        shape = g.groups, rows.stop - rows.start, parts, g.kernel[0], c // g.groups, run // parts
        strides = sg, sh * g.stride[0], run // parts * step, sh * g.dilation[0], sc, step
        view = xp.lib.stride_tricks.as_strided(seen, shape, strides)
        return view.reshape(*shape[:3], -1, shape[5])  # dilated rows it does copy

    return cut


def fold(
    xp: Any, parts: Iterable[tuple[slice, Array]], shape: tuple, g: Geometry, like: Array, accumulator: str = "reduce"
) -> Array:
    """x (C, H, W, N) in FP32 of blocks of output rows and their columns, widened: each is added where it was read."""
    c, h, w, n = shape
    total: Any = None
    by_kernel = has_kernels(like, prod(shape))
    for rows, block in parts:
        if by_kernel:
            total = col2im(xp, block, shape, g, rows, total)
            continue
        if total is None:
            total = xp.zeros((c, *g.padded(h, w), n), block.dtype)
        block = block.reshape(c, *g.kernel, rows.stop - rows.start, g.output(h, w)[1], n)
        for i, j, seen in taps(total, g, rows):
            add_to(seen, block[:, i, j], like, accumulator)
    return total if by_kernel else unpad_spatial(total, g, (h, w))


def correlate(xp: Any, x: Array, w: Array, bias: Array | None, g: Geometry) -> Array:
    """y (O, OH, OW, N) of x (C, H, W, N) and w (O, C / groups, kh, kw), in the storage dtype. x may be widened."""
    if depthwise(w, g, x):
        return correlate_depthwise(xp, x, w, bias, g)
    o, (oh, ow), n = w.shape[0], g.output(x.shape[1], x.shape[2]), x.shape[3]
    matrix = w.reshape(g.groups, o // g.groups, prod(w.shape[1:]))
    if bias is not None:
        bias = bias.reshape(g.groups, -1, 1)
    y = xp.empty((o, oh, ow, n), w.dtype)  # first: where it is too large, the blocks are too many, too
    wins = o <= 2 * g.kernel[0] * x.shape[0]  # else the sums over the taps across take longer than columns
    if wins and (parts := row_parts(g, x, w)):
        return correlate_rows(xp, x, w, bias, g, y, parts)
    rows, cut = columns(xp, x, g)
    if len(rows) == 1:
        return gemm(matrix, cut(rows[0]), bias).reshape(y.shape)
    device = backend.of(x)
    matrix = operand(device, matrix)

    def fill(block: slice) -> None:
        y[:, block] = gemm(matrix, cut(block), bias, like=w).reshape(o, block.stop - block.start, ow, n)

    device.share(fill, rows)
    return y


def correlate_rows(xp: Any, x: Array, w: Array, bias: Array | None, g: Geometry, y: Array, parts: int) -> Array:
    """`correlate` into y, as a sum of products over the taps across; see `by_rows`."""
    (o, oh), cut, across = y.shape[:2], by_rows(xp, x, g), g.kernel[1]
    matrices = widen(w).reshape(g.groups, o // g.groups, -1, *g.kernel).transpose(4, 0, 1, 3, 2)  # (kh, C) as the image
    matrices = matrices.reshape(across, g.groups, 1, 1, o // g.groups, -1)
    bias = None if bias is None else bias.reshape(g.groups, 1, 1, -1, 1)
    places = y.reshape(g.groups, o // g.groups, oh, parts, -1)

    def fill(rows: slice) -> None:
        total: Any = None
        for tap in range(across):
            last = tap == across - 1
            seen, final = cut(tap, rows, parts), bias if last else None
            total = gemm(matrices[tap], seen, final, acc=total, wide=not last, like=w)
        places[:, :, rows] = total.transpose(0, 3, 1, 2, 4)

    device = backend.of(x)
    device.share(fill, device.slices(oh, x.shape[0] * prod(g.kernel) * y[0].size, 2 * CACHED))
    return y


def spread(xp: Any, y: Array, w: Array, bias: Array | None, g: Geometry, size: Pair) -> Array:
    """dx (C, H, W, N), in the storage dtype, of y (O, OH, OW, N) and w (O, C / groups, kh, kw).

    Every y_o W_o is added in its place, and the bias. y may be widened.
    """
    o, oh, ow, n = y.shape
    c = w.shape[1] * g.groups
    # columns of y on one side, additions into dx, which take longer, on the other
    most = 3 if small_run(g, w) else 1.5
    if backend.of(w) is not backend.gpu and o * prod(size) <= most * c * oh * ow * prod(g.stride):
        return spread_by_phases(xp, y, w, bias, g, size)
    matrix = w.reshape(g.groups, o // g.groups, prod(w.shape[1:])).swapaxes(1, 2)
    y = widen(y)
    parts = (
        (rows, gemm(matrix, y[:, rows].reshape(g.groups, o // g.groups, (rows.stop - rows.start) * ow * n), wide=True))
        for rows in slices(oh, c * prod(g.kernel) * oh * ow * n, BLOCK)
    )
    x = fold(xp, parts, (c, *size, n), g, like=w, accumulator="accumulate")
    if bias is not None:
        x += widen(bias).reshape(-1, 1, 1, 1)
    return store(x, like=w)


def spread_by_phases(xp: Any, y: Array, w: Array, bias: Array | None, g: Geometry, size: Pair) -> Array:
    """`spread` as correlations of y: nothing is scattered, and each dx is one sum in one accumulator.

    A row h of dx with phase p = (h + pad) mod stride gets contributions of the taps i with i dilation = p (mod stride).
    These are every step-th tap, and the rows of y that they meet lie side by side: with the taps in reverse order, the
    rows of one phase are a correlation of y with stride 1.
    """
    c, n = w.shape[1] * g.groups, y.shape[3]
    y = widen(y)
    w = w.reshape(g.groups, -1, *w.shape[1:]).swapaxes(1, 2).reshape(c, -1, *g.kernel)  # (C, O / groups, kh, kw)
    x = xp.empty((c, *size, n), w.dtype)
    for tall in phases(g, size, 0):
        for wide in phases(g, size, 1):
            to = x[:, tall.places, wide.places]
            taps = w[:, :, tall.taps, wide.taps][:, :, ::-1, ::-1]
            if taps.size:  # else there is no place that they see, either
                pads = [(-side.seen[0], side.seen[1] - n) for side, n in ((tall, y.shape[1]), (wide, y.shape[2]))]
                inner = Geometry(taps.shape[2:], (1, 1), tuple(pads), (tall.dilation, wide.dilation), g.groups)
                part = correlate(xp, y, xp.ascontiguousarray(taps), bias, inner)
                if part.shape == x.shape:  # without a stride: the only one
                    return part
                to[...] = part
            else:
                to[...] = 0 if bias is None else bias.reshape(-1, 1, 1, 1)
    return x


class Phase(NamedTuple):
    """Along one axis: the places of dx that meet the same taps of the kernel."""

    places: slice
    taps: slice
    seen: Pair  # the places of y that they meet: from, up to
    dilation: int  # between the places of y that neighbouring taps meet


def phases(g: Geometry, size: Pair, axis: int) -> list[Phase]:
    """The phases of the stride along axis 0 (height) or 1 (width); see `spread_by_phases`."""
    kernel, stride, dilation, pad = g.kernel[axis], g.stride[axis], g.dilation[axis], g.pads[axis][0]
    step, found = stride // gcd(stride, dilation), []
    for p in range(stride):
        first = (p - pad) % stride  # the first place of dx with (place + pad) % stride = p
        if not (count := len(range(first, size[axis], stride))):
            continue
        tap = next((i for i in range(min(step, kernel)) if (i * dilation - p) % stride == 0), kernel)
        taps, between = len(range(tap, kernel, step)), step * dilation // stride
        last = (first + pad - tap * dilation) // stride  # the place of y that the first tap sees from `first`
        seen = last - (taps - 1) * between, last + count
        found.append(Phase(slice(first, None, stride), slice(tap, None, step), seen, between))
    return found


def weight_gradient(xp: Any, x: Array, y: Array, g: Geometry, like: Array) -> Array:
    """dW (O, C / groups, kh, kw), in the dtype of `like`, of the input x (C, H, W, N) and the output gradient y
    (O, OH, OW, N). Both may be widened; like is the stored weight.
    """
    o = y.shape[0]
    if depthwise(like, g, x):
        return weight_gradient_depthwise(xp, x, y, g, like)
    if 0 < g.kernel[0] * x.shape[0] * o <= FEW * g.groups**2 and row_parts(g, x, like):
        return weight_gradient_rows(xp, x, y, g, like)

    def of(channels: slice) -> Array:
        total: Any = None  # one accumulator over all blocks: the FP32 or FP16 of the policy
        rows, cut = columns(xp, x[channels], g)
        for block in rows:  # columns y^T, not y columns^T: the tall operand first is a fifth faster
            seen = cut(block)
            dy = y[:, block].reshape(g.groups, o // g.groups, seen.shape[2]).swapaxes(1, 2)
            total = gemm(seen, dy, acc=total, wide=True, like=like)
        return total

    device, size = backend.of(x), x.shape[0] * prod(g.kernel) * y[0].size
    channels = (device.slices(x.shape[0], size, size) if g.groups == 1 else []) or [slice(None)]
    first, *others = device.share(of, channels)
    total = xp.concatenate([first, *others], axis=1) if others else first
    return store(total.swapaxes(1, 2).reshape(like.shape), like=like)


def weight_gradient_rows(xp: Any, x: Array, y: Array, g: Geometry, like: Array) -> Array:
    """`weight_gradient` as a sum over the output rows, for each tap across; see `by_rows`."""
    (o, oh, ow, n), cut = y.shape, by_rows(xp, x, g)
    dy = y.reshape(g.groups, o // g.groups, oh, ow * n).transpose(0, 2, 3, 1)
    dw = xp.zeros((g.kernel[1], g.groups, g.kernel[0] * x.shape[0] // g.groups, o // g.groups), widen(like[:0]).dtype)

    def products(rows: slice) -> list[Array]:
        return [gemm(cut(tap, rows, 1)[:, :, 0], dy[:, rows], wide=True, like=like) for tap in range(len(dw))]

    device = backend.of(x)
    for taps in device.share(products, device.slices(oh, x.shape[0] * prod(g.kernel) * y[0].size, 2 * CACHED)):
        for total, part in zip(dw, taps):
            for row in part.swapaxes(0, 1):
                add_to(total, row, like, "accumulate")
    dw = dw.reshape(*dw.shape[:2], g.kernel[0], -1, o // g.groups)  # kw, groups, kh, C, O
    return store(dw.transpose(1, 4, 3, 2, 0).reshape(like.shape), like=like)


# A convolution of each channel by itself (depthwise) needs no columns: its sums are as long as the kernel is large.


def depthwise(w: Array, g: Geometry, x: Array) -> bool:
    """Whether every channel has one kernel of its own, and no CUDA kernel takes it."""
    return w.shape[1] == 1 < g.groups == w.shape[0] and not has_kernels(w, x.size)


def correlate_depthwise(xp: Any, x: Array, w: Array, bias: Array | None, g: Geometry) -> Array:
    """`correlate` for one kernel per channel: y = b + the sum over taps of w_tap * x where the tap sees it."""
    c, h, width, n = x.shape
    oh, ow = g.output(h, width)
    y = xp.empty((c, oh, ow, n), w.dtype)

    def fill(channels: slice) -> None:
        weights = widen(w[channels]).reshape(-1, *g.kernel, 1, 1, 1)
        total = xp.zeros((weights.shape[0], oh, ow, n), weights.dtype)
        for i, j, seen in taps(pad_spatial(xp, widen(x[channels]), g.pads), g):
            add_to(total, seen, like=w, accumulator="accumulate", times=weights[:, i, j])
        if bias is not None:
            total += widen(bias[channels]).reshape(-1, 1, 1, 1)
        y[channels] = store(total, like=w)

    device = backend.of(x)
    device.share(fill, device.slices(c, y.size, CACHED // 8))
    return y


def weight_gradient_depthwise(xp: Any, x: Array, y: Array, g: Geometry, like: Array) -> Array:
    """`weight_gradient` for one kernel per channel: dw_tap = the sum of dy * x where the tap sees it."""
    dw = xp.empty(like.shape, like.dtype)

    def fill(channels: slice) -> None:
        dy = widen(y[channels])
        dy = dy.reshape(len(dy), 1, y[0].size)  # which an empty batch makes 0
        for i, j, seen in taps(pad_spatial(xp, widen(x[channels]), g.pads), g):
            dw[channels, 0, i, j] = gemm(dy, seen.reshape(len(dy), y[0].size, 1), like=like).reshape(-1)

    device = backend.of(x)
    device.share(fill, device.slices(len(x), y.size, CACHED // 8))
    return dw


class Conv2d(Op):
    """y_o = b_o + sum over c of W_oc * x_c (cross-correlation); gradients as in the module docstring, db = sum dy.

    x: (N, C, H, W), w: (O, C / groups, kh, kw), b: (O,) or None.
    """

    kind = DOT
    name = "conv2d"

    def forward(self, x: Array, w: Array, b: Array | None, *, geometry: Geometry) -> Array:
        self.save(x, w)
        return batch_first(correlate(self.xp, images_last(self.xp, x), w, b, geometry))

    def backward(self, dy: Array) -> tuple:
        (x, w), (like_x, like_w, like_b), g = self.saved, self.targets, self.geometry
        given, dy = dy, widen(images_last(self.xp, dy))
        dx = like_x and batch_first(spread(self.xp, dy, w, None, g, x.shape[2:]))
        x = images_last(self.xp, x)
        dw = like_w and weight_gradient(self.xp, x, dy, g, like=w)
        return dx, dw, _bias_gradient(self.xp, given, dy, like_b)

    def forward_cuda(self, x: Array, w: Array, b: Array | None, *, geometry: Geometry) -> Array:
        size = geometry.output(*x.shape[2:])
        if not in_kernels(self.device, geometry, x, w, x.shape[0] * w.shape[0] * prod(size)):
            return NotImplemented
        self.save(x, w)
        x = images_last(self.xp, x)
        return batch_first(correlate_cuda(self.xp, x, w, b, geometry, size))

    def backward_cuda(self, dy: Array) -> Any:
        (x, w), (like_x, like_w, like_b), g = self.saved, self.targets, self.geometry
        if not in_kernels(self.device, g, x, w, dy.size):
            return NotImplemented
        given, dy = dy, images_last(self.xp, dy)
        dx = like_x and batch_first(correlate_cuda(self.xp, dy, w, None, g, x.shape[2:], transposed=True))
        x = images_last(self.xp, x)
        return dx, like_w and weight_gradient_cuda(self.xp, x, dy, w, g), _bias_gradient(self.xp, given, dy, like_b)


class ConvTranspose2d(Op):
    """The input gradient of conv2d as an operation of its own: y = fold(W^T x) + b;  dx = W columns(dy).

    x: (N, C, H, W), w: (C, O / groups, kh, kw), b: (O,) or None.
    """

    kind = DOT
    name = "conv_transpose2d"

    def forward(self, x: Array, w: Array, b: Array | None, *, geometry: Geometry, size: Pair) -> Array:
        self.save(x, w)
        return batch_first(spread(self.xp, images_last(self.xp, x), w, b, geometry, size))

    def backward(self, dy: Array) -> tuple:
        (x, w), (like_x, like_w, like_b), g = self.saved, self.targets, self.geometry
        given, dy = dy, images_last(self.xp, dy)
        dx = like_x and batch_first(correlate(self.xp, dy, w, None, g))
        x = images_last(self.xp, x)
        dw = like_w and weight_gradient(self.xp, dy, x, g, like=w)
        return dx, dw, _bias_gradient(self.xp, given, dy, like_b)

    def forward_cuda(self, x: Array, w: Array, b: Array | None, *, geometry: Geometry, size: Pair) -> Array:
        if not in_kernels(self.device, geometry, x, w, x.shape[0] * w.shape[1] * geometry.groups * prod(size)):
            return NotImplemented
        self.save(x, w)
        x = images_last(self.xp, x)
        return batch_first(correlate_cuda(self.xp, x, w, b, geometry, size, transposed=True))

    def backward_cuda(self, dy: Array) -> Any:
        (x, w), (like_x, like_w, like_b), g = self.saved, self.targets, self.geometry
        if not in_kernels(self.device, g, x, w, dy.size):
            return NotImplemented
        given, dy = dy, images_last(self.xp, dy)
        dx = like_x and batch_first(correlate_cuda(self.xp, dy, w, None, g, x.shape[2:]))
        x = images_last(self.xp, x)
        return dx, like_w and weight_gradient_cuda(self.xp, dy, x, w, g), _bias_gradient(self.xp, given, dy, like_b)


def _bias_gradient(xp: Any, given: Array, dy: Array, like: Target | None) -> Array | None:
    """The sum of dy, which is the given gradient with the images last."""
    if (exact := unrounded(given)) is not given:
        dy = images_last(xp, exact)
    return like and store(reduce(dy, (1, 2, 3), "sum", like=like).reshape(like.shape), like=like)


class Unfold(Op):
    """y (N, C kh kw, L): every window as a column;  dx adds them back where they overlap, in FP32."""

    kind = MOVEMENT
    gradient = REDUCTION

    def forward(self, x: Array, *, geometry: Geometry) -> Array:
        self.shape = x.shape
        padded = pad_spatial(self.xp, channels_first(x), geometry.pads)
        view = windows(self.xp, padded, geometry)  # C, kh, kw, OH, OW, N
        # a copy even where the windows lie side by side and a view of x would do: as in PyTorch, y has its own memory
        return view.copy().reshape(prod(view.shape[:3]), prod(view.shape[3:5]), x.shape[0]).transpose(2, 0, 1)

    def backward(self, dy: Array) -> Array:
        (n, c, h, w), g = self.shape, self.geometry
        block = widen(dy).transpose(1, 2, 0)
        return store(batch_first(fold(self.xp, [(every_row(g, h, w), block)], (c, h, w, n), g, like=dy)), like=dy)

    def forward_cuda(self, x: Array, *, geometry: Geometry) -> Array:
        n, _, h, w = x.shape
        positions = prod(geometry.output(h, w))
        if not x.size or max(x.size, n * positions) >= LIMIT:
            return NotImplemented
        self.shape = x.shape
        y = im2col(self.xp, channels_first(x), geometry, every_row(geometry, h, w))
        return y.reshape(-1, positions, n).transpose(2, 0, 1)

    def backward_cuda(self, dy: Array) -> Array:
        (n, c, h, w), g = self.shape, self.geometry
        if not 0 < prod(self.shape) < LIMIT:
            return NotImplemented
        return batch_first(col2im(self.xp, dy.transpose(1, 2, 0), (c, h, w, n), g, every_row(g, h, w)))


# -------------------------------------------------------------------------------------------------------- CUDA kernels

LIMIT = (1 << 31) - (1 << 16)  # the kernels count elements in 32 bits, and a last block may overshoot


def has_kernels(like: Array, elements: int) -> bool:
    """Whether kernels make and fold the columns of an image with this many elements, stored like `like`."""
    return backend.of(like) is backend.gpu and may_fuse(like.dtype) and 0 < elements < LIMIT


def every_row(g: Geometry, h: int, w: int) -> slice:
    """All output rows of an image (h, w)."""
    return slice(0, g.output(h, w)[0])


def problem(image: tuple, g: Geometry, rows: int, size: Pair, transposed: bool = False) -> tuple[int, ...]:
    """The arguments PROBLEM in conv.cu: an image (C, H, W, N) is read, `rows` channels per group of `size` written."""
    c, h, w, n = image
    (top, _), (left, _) = g.pads
    return (transposed, g.groups, c // g.groups, h, w, n, rows, *size, *g.kernel, *g.stride, top, left, *g.dilation)


def im2col(xp: Any, x: Array, g: Geometry, rows: slice) -> Array:
    """The columns (C kh kw, rows OW N) of x (C, H, W, N), C-contiguous, for some output rows."""
    c, h, w, n = x.shape
    x = xp.ascontiguousarray(x)
    size, terms = g.output(h, w), c * prod(g.kernel)
    columns = xp.empty((terms, (rows.stop - rows.start) * size[1] * n), x.dtype)
    width = 16 // x.itemsize if at_once(n, x, columns) * x.itemsize == 16 else 1  # what the kernel knows
    across = ceil_div(columns.shape[1], 256 * width)
    grid = (across, min(terms, max(1, 4096 // across)))  # enough blocks for any GPU; each goes on to further terms
    numbers = problem(x.shape, g._replace(groups=1), terms, size)
    KERNELS.launch("im2col", x.dtype, grid, 256, x, columns, width, rows.start, rows.stop, *numbers)
    return columns


def col2im(xp: Any, columns: Array, shape: tuple, g: Geometry, rows: slice, total: Array | None = None) -> Array:
    """x (C, H, W, N) in the dtype of its columns (C kh kw, rows OW N), which are summed in FP32; added to `total`."""
    c, h, w, n = shape
    columns = xp.ascontiguousarray(columns)
    x = xp.empty(shape, columns.dtype) if total is None else total
    width = 16 // x.itemsize if at_once(n, x, columns) * x.itemsize == 16 else 1  # what the kernel knows
    grid = (ceil_div(h * w * n, 256 * width), min(c, 65535))
    numbers = problem(shape, g._replace(groups=1), c, g.output(h, w))
    more = total is not None
    KERNELS.launch("col2im", x.dtype, grid, 256, columns, x, width, rows.start, rows.stop, more, *numbers)
    return x


def in_kernels(device: Any, g: Geometry, x: Array, w: Array, outputs: int) -> bool:
    """Whether kernels that need no columns take these arrays; `outputs`: the number of elements of y or dy."""
    fits = max(x.size, w.size, outputs) < LIMIT and g.groups * prod(g.stride) < 1 << 16 and x.size > 0
    return fits and (direct(g, w) or (x.dtype == float16 and device.compute_capability() >= 75))


def direct(g: Geometry, w: Array) -> bool:
    """Whether so few channels of x and y meet in a group that sums one by one beat tiles of 16 rows and a depth of 32.

    An estimate: a multiplication there takes as long as 25 of a full tile's, and each of the 512 per column of a tile
    of 16 rows as long as 3. A 3 x 3 kernel has 9 per pair of channels: the two meet at 7 pairs. Depthwise: 1 pair.
    """
    return w.shape[0] // g.groups * w.shape[1] <= 4


def pointwise(g: Geometry, shape: tuple, size: Pair) -> bool:
    """Whether the columns are the image itself (C, H, W, N), so that cuBLAS can read them there."""
    return g.kernel == g.stride == (1, 1) and g.pads == ((0, 0), (0, 0)) and tuple(shape[1:3]) == tuple(size)


def correlate_cuda(
    xp: Any, x: Array, w: Array, bias: Array | None, g: Geometry, size: Pair, transposed: bool = False
) -> Array:
    """correlate, or, transposed, spread with a bias and the rounding at the end: y (O, *size, N) of x (C, H, W, N)."""
    c, n = x.shape[0], x.shape[3]
    rows = w.shape[1] if transposed else w.shape[0] // g.groups  # of y, per group
    y_shape = (g.groups * rows, *size, n)
    w, bias = xp.ascontiguousarray(w), None if bias is None else xp.ascontiguousarray(bias)
    if not direct(g, w) and pointwise(g, x.shape, size):
        if bias is None:
            matrix = w.reshape(g.groups, w.shape[0] // g.groups, w.shape[1])
            y = gemm(matrix.swapaxes(1, 2) if transposed else matrix, x.reshape(g.groups, c // g.groups, -1))
            return y.reshape(y_shape)
        # cuBLAS would add to a y full of biases, which is written and read before: 4 more bytes for each element
        x, size, n = x.reshape(c, 1, 1, -1), (1, 1), prod(size) * n
    phases = g.stride if transposed else (1, 1)
    numbers, batch = problem(x.shape, g, rows, size, transposed), g.groups * prod(phases)
    y = xp.empty(y_shape, x.dtype)
    positions = prod(ceil_div(s, p) for s, p in zip(size, phases)) * n  # of the first phase, which has most
    width = at_once(n, x, y)
    if direct(g, w):
        grid = (ceil_div(positions, 256 * width), rows, batch)
        KERNELS.launch("direct", x.dtype, grid, 256, x, w, bias, y, width, *numbers)
        return y
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
    tile, length, parts = schedule(tiles_for(x, width), rows, positions, batch, terms, split)
    grid = (ceil_div(rows, tile.rows) * ceil_div(positions, tile.columns), parts, batch)
    sums = xp.empty((parts, *y_shape), FP32.storage) if parts > 1 else None
    shared = max(tile.stages, tile.rows * (tile.columns + 8) * 2)
    arguments = x, w, bias, y, sums, length, ld, *numbers
    KERNELS.launch(tile.kernel("correlate", width), x.dtype, grid, tile.threads, *arguments, shared=shared)
    if sums is not None:
        sum_parts(sums, bias, y)
    return y


def weight_gradient_cuda(xp: Any, x: Array, dy: Array, w: Array, g: Geometry) -> Array:
    """weight_gradient rounded to w's dtype, of x (C, H, W, N) and dy (O, OH, OW, N)."""
    (o, *size, n), c = dy.shape, x.shape[0]
    rows, terms, positions = o // g.groups, c // g.groups * prod(g.kernel), prod(size) * n
    if not direct(g, w) and pointwise(g, x.shape, tuple(size)):
        images = x.reshape(g.groups, c // g.groups, -1)
        return gemm(dy.reshape(g.groups, rows, -1), images.swapaxes(1, 2)).reshape(w.shape)
    width, numbers = at_once(n, x, dy), problem(x.shape, g, rows, tuple(size))
    dw = xp.empty(w.shape, w.dtype)
    if direct(g, w):
        parts = ceil_div(positions, PIECE)
        sums = xp.empty((parts, *w.shape), FP32.storage)
        grid = parts * o * w.shape[1]
        KERNELS.launch("direct_gradient", x.dtype, grid, 256, x, dy, sums, parts, PIECE, width, *numbers)
        sum_parts(sums, None, dw)
        return dw
    split = ceil_div(positions, SHORTEST)
    tile, length, parts = schedule(tiles_for(x, width), rows, terms, g.groups, positions, split)
    sums = xp.empty((parts, *w.shape), FP32.storage) if parts > 1 else None
    grid = (ceil_div(rows, tile.rows) * ceil_div(terms, tile.columns), parts, g.groups)
    shared = tile.stages + 16 * tile.columns  # and where each column begins
    arguments = x, dy, dw, sums, length, *numbers
    KERNELS.launch(tile.kernel("weight_gradient", width), x.dtype, grid, tile.threads, *arguments, shared=shared)
    if sums is not None:
        sum_parts(sums, None, dw)
    return dw


def sum_parts(parts: Array, bias: Array | None, to: Array) -> None:
    """to = bias + the sum of its parts (FP32, along the first axis), rounded once; bias: for the first axis of `to`."""
    warps = min(len(parts), 8)
    numbers = len(parts), to.size, to.size // to.shape[0]
    KERNELS.launch("sum_parts", to.dtype, ceil_div(to.size, 32), 32 * warps, parts, bias, to, *numbers)


class Tile(NamedTuple):
    """The part of a product that a block computes; how fast a GPU full of them is, relative to 128 x 128 (an estimate,
    to be fitted on a GPU); and for how many images side by side it is there."""

    rows: int
    columns: int
    threads: int
    speed: float
    widths: tuple[int, ...]

    @property
    def stages(self) -> int:
        """Bytes of shared memory for both operands: 3 stages of depth 32 in FP16."""
        return 3 * 32 * 2 * (self.rows + self.columns)

    def kernel(self, name: str, width: int) -> str:
        """Its kernel for `width` images at a time."""
        return f"{name}_{self.rows}x{self.columns}" + ("" if width == 8 else f"_by_{width}")


# A larger tile reads less per multiplication, (rows + columns) / (rows columns); a smaller one makes more blocks, and
# pads less. Warps compute 64 x 64 of the result where they can: that many accumulators fill half of their registers.
TILES = (
    Tile(128, 256, 256, 1.1, (8,)),  # large layers: a quarter less to read than two of the next, which it replaces
    Tile(128, 128, 128, 1.0, (8, 4, 2)),  # the work horse: two on a multiprocessor hide each other's waiting
    Tile(64, 128, 128, 0.8, (8,)),  # layers of 64 channels, the first ones of most networks
    Tile(32, 128, 128, 0.55, (8,)),  # 32 channels, or an image of 3 is made
    Tile(16, 128, 128, 0.3, (8, 4, 2, 1)),  # grouped: few rows each. Tensor Cores have no fewer than 16
    Tile(64, 64, 128, 0.65, (8, 4, 2, 1)),  # few positions. Odd batches, which are copied in halves without cp.async:
    # small blocks, of which 4 on a multiprocessor hide the waiting
)
MULTIPROCESSORS = 132  # of an H100. Each is taken to run 256 threads at a time, what registers allow the large tiles
SHORTEST = 256  # of the parts of a sum: 8 stages, so that filling and emptying them does not count for much
# What a second launch costs (2 us), and the 8 bytes that are written and read per result and part (at 3.3 TB/s), in
# multiplications that each multiprocessor could do in that time (2.3e12 per second)
LAUNCH, PART = 4_500_000, 5
PIECE = 8192  # positions that a block of a depthwise weight gradient sums: 32 KB of dy and x, cached from tap to tap


def tiles_for(x: Array, width: int) -> tuple[Tile, ...]:
    """Those for `width` images at a time that x's GPU has the shared memory for: Turing, 64 KB."""
    large = backend.of(x).compute_capability() >= 80
    return tuple(tile for tile in TILES if width in tile.widths and (large or tile.stages < 1 << 16))


@cache
def schedule(
    tiles: tuple[Tile, ...], rows: int, columns: int, batch: int, depth: int, most: int
) -> tuple[Tile, int, int]:
    """The tile, and the length and number of the parts of the sum over depth, with the least expected time.

    Up to `most` parts, each a multiple of 32 long. Estimated in multiplications that a multiprocessor does: the waves
    of blocks, and the sum of the parts.
    """

    def time(choice: tuple[Tile, int, int]) -> float:
        tile, length, parts = choice
        blocks = ceil_div(rows, tile.rows) * ceil_div(columns, tile.columns) * batch * parts
        waves = ceil_div(blocks * tile.threads, 256 * MULTIPROCESSORS)
        product = waves * (256 // tile.threads) * tile.rows * tile.columns / tile.speed * length
        return product + (LAUNCH + PART * parts * rows * columns * batch if parts > 1 else 0)

    lengths = {ceil_div(ceil_div(depth, parts), 32) * 32 for parts in range(1, min(most, 2 * MULTIPROCESSORS) + 1)}
    choices = [(t, n, ceil_div(depth, n)) for t in tiles for n in sorted(lengths, reverse=True)]
    return min(choices, key=time)


def at_once(n: int, *arrays: Array) -> int:
    """How many elements a kernel may read or write at once, from rows of n: 16 bytes, or a half, a quarter, ... of it.

    Addresses must be multiples of it.
    """
    width = 16 // arrays[0].itemsize
    while n % width or any(x.data.ptr % (width * x.itemsize) for x in arrays):
        width //= 2
    return width


# ---------------------------------------------------------------------------------------------------------- functions


def _check(
    op: str, n: int, input: Any, weight: Any, bias: Any, transposed: bool, groups: Any
) -> tuple[Tensor, bool, int]:
    """Check that input, weight and bias fit; returns the input with a batch axis, whether it had none, and groups."""
    x, w = floating(op, "input", input), floating(op, "weight", weight)
    if w.ndim != n + 2:
        raise ValueError(f"{op}: expected `weight` to have {n + 2} axes, got shape {w.shape}")
    if x.ndim not in (n + 1, n + 2):
        raise ValueError(f"{op}: expected `input` to have {n + 2} axes (or {n + 1} without batch), got shape {x.shape}")
    (groups,) = integers(op, "groups", groups, 1, 1)
    batched = x if x.ndim == n + 2 else x.unsqueeze(0)
    channels = batched.shape[1]
    shapes = f"(input is {x.shape}, weight is {w.shape})"
    if transposed:
        if channels != w.shape[0]:
            raise ValueError(
                f"{op}: expected input.shape[1] == weight.shape[0], got {channels} and {w.shape[0]} {shapes}"
            )
        if channels % groups:
            raise ValueError(f"{op}: expected input.shape[1] to be a multiple of groups, got {channels} and {groups}")
    elif channels != w.shape[1] * groups:
        raise ValueError(
            f"{op}: expected input.shape[1] == weight.shape[1] * groups, got {channels} and {w.shape[1]} * {groups} "
            f"{shapes}"
        )
    elif w.shape[0] % groups:
        raise ValueError(f"{op}: expected weight.shape[0] to be a multiple of groups, got {w.shape[0]} and {groups}")
    outputs = w.shape[1] * groups if transposed else w.shape[0]
    if 0 in batched.shape[2:] or 0 in w.shape[2:] or not outputs:
        raise ValueError(f"{op}: expected no axis of length 0 but batch and input channels {shapes}")
    if bias is not None and floating(op, "bias", bias).shape != (outputs,):
        raise ValueError(f"{op}: expected bias.shape == ({outputs},), got {bias.shape}")
    return batched, batched is not x, groups


def _steps(op: str, n: int, stride: Any, dilation: Any) -> tuple[Pair, Pair]:
    """stride and dilation of n axes; ValueError for steps longer than an axis can be."""
    strides, dilations = integers(op, "stride", stride, n, 1), integers(op, "dilation", dilation, n, 1)
    if max(strides + dilations) > LONGEST:
        raise ValueError(f"{op}: expected stride and dilation to be at most {LONGEST}, got {stride!r} and {dilation!r}")
    return strides, dilations


def _geometry(
    op: str, n: int, shape: tuple, kernel: tuple, stride: Any, padding: Any, dilation: Any, groups: int
) -> Geometry:
    """The Geometry of n = 1 or 2 spatial axes; ValueError if no window fits."""
    strides, dilations = _steps(op, n, stride, dilation)
    if isinstance(padding, str):
        if padding not in ("same", "valid"):
            raise ValueError(f"{op}: expected `padding` to be integers, 'same' or 'valid', got {padding!r}")
        if padding == "same" and max(strides) > 1:
            raise ValueError(f"{op}: padding='same' needs stride 1, got {stride!r}")
        spans = [d * (k - 1) if padding == "same" else 0 for d, k in zip(dilations, kernel)]
        pads = [(span // 2, span - span // 2) for span in spans]  # the odd one goes to the right and bottom
    else:
        pads = [(p, p) for p in integers(op, "padding", padding, n, 0)]
    lead = 2 - n  # a 1-d convolution is a 2-d one of height 1
    g = Geometry(
        (1,) * lead + tuple(kernel),
        (1,) * lead + strides,
        ((0, 0),) * lead + tuple(pads),
        (1,) * lead + dilations,
        groups,
    )
    if min(g.output(*shape)) < 1:
        raise ValueError(
            f"{op}: the kernel {tuple(kernel)} with dilation {dilations} does not fit the input of "
            f"{tuple(shape)[lead:]} with padding {padding!r}"
        )
    return g


def conv2d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Tensor:
    """2-d cross-correlation.

    input: (N, C, H, W) or (C, H, W); weight: (O, C / groups, kh, kw); bias: (O,). stride, dilation: an integer or two;
    padding: likewise, or "valid" (none) or "same" (output as large as input, stride 1). Returns (N, O, OH, OW) with
    OH = floor((H + 2 padding - dilation (kh - 1) - 1) / stride) + 1. ValueError if shapes or sizes do not fit.
    """
    x, unbatched, groups = _check("conv2d", 2, input, weight, bias, False, groups)
    g = _geometry("conv2d", 2, x.shape[2:], weight.shape[2:], stride, padding, dilation, groups)
    y = Conv2d.apply(x, weight, bias, geometry=g)
    return y.squeeze(0) if unbatched else y


def conv1d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Tensor:
    """1-d cross-correlation: `conv2d` of height 1. input: (N, C, L) or (C, L); weight: (O, C / groups, k)."""
    x, unbatched, groups = _check("conv1d", 1, input, weight, bias, False, groups)
    g = _geometry("conv1d", 1, (1, x.shape[2]), weight.shape[2:], stride, padding, dilation, groups)
    y = Conv2d.apply(x.unsqueeze(2), weight.unsqueeze(2), bias, geometry=g).squeeze(2)
    return y.squeeze(0) if unbatched else y


def conv_transpose2d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    output_padding: Any = 0,
    groups: int = 1,
    dilation: Any = 1,
) -> Tensor:
    """The transposed ("fractionally strided") convolution: the map from conv2d's output gradient to its input gradient.

    input: (N, C, H, W) or (C, H, W); weight: (C, O / groups, kh, kw); bias: (O,). Returns (N, O, OH, OW) with
    OH = (H - 1) stride - 2 padding + dilation (kh - 1) + output_padding + 1. ValueError if shapes or sizes do not fit.
    """
    options = stride, padding, output_padding, groups, dilation
    return _conv_transpose("conv_transpose2d", 2, input, weight, bias, *options)


def conv_transpose1d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    output_padding: Any = 0,
    groups: int = 1,
    dilation: Any = 1,
) -> Tensor:
    """`conv_transpose2d` of height 1. input: (N, C, L) or (C, L); weight: (C, O / groups, k); bias: (O,)."""
    options = stride, padding, output_padding, groups, dilation
    return _conv_transpose("conv_transpose1d", 1, input, weight, bias, *options)


def _conv_transpose(
    op: str,
    n: int,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Any,
    padding: Any,
    output_padding: Any,
    groups: int,
    dilation: Any,
) -> Tensor:
    """The transposed convolution over n = 1 or 2 axes; a 1-d one is a 2-d one of height 1."""
    x, unbatched, groups = _check(op, n, input, weight, bias, True, groups)
    if n == 1:
        x, weight = x.unsqueeze(2), weight.unsqueeze(2)
    lead = 2 - n
    strides, dilations = [(1,) * lead + steps for steps in _steps(op, n, stride, dilation)]
    pads = (0,) * lead + integers(op, "padding", padding, n, 0)
    extra = (0,) * lead + integers(op, "output_padding", output_padding, n, 0)
    if any(e >= s and e >= d for e, s, d in zip(extra, strides, dilations)):
        raise ValueError(
            f"{op}: expected output_padding below stride or dilation, got {extra[-n:]}, {strides[-n:]} and "
            f"{dilations[-n:]}"
        )
    kernel = weight.shape[2:]
    size = tuple(
        (m - 1) * s - 2 * p + d * (k - 1) + e + 1
        for m, s, p, d, k, e in zip(x.shape[2:], strides, pads, dilations, kernel, extra)
    )
    if min(size) < 1:
        raise ValueError(f"{op}: padding {pads[-n:]} leaves nothing of the output: its size would be {size[-n:]}")
    g = Geometry(kernel, strides, ((pads[0], pads[0]), (pads[1], pads[1])), dilations, groups, x.shape[2:])
    y = ConvTranspose2d.apply(x, weight, bias, geometry=g, size=size)
    y = y.squeeze(2) if n == 1 else y
    return y.squeeze(0) if unbatched else y


def unfold(input: Tensor, kernel_size: Any, dilation: Any = 1, padding: Any = 0, stride: Any = 1) -> Tensor:
    """Every kernel-sized window of input (N, C, H, W) or (C, H, W) as a column: (N, C kh kw, number of windows)."""
    x = floating("unfold", "input", input)
    if x.ndim not in (3, 4) or 0 in x.shape[-3:]:
        raise ValueError(
            f"unfold: expected `input` to be (N, C, H, W) or (C, H, W), of which N may be 0, got {x.shape}"
        )
    batched = x if x.ndim == 4 else x.unsqueeze(0)
    kernel = integers("unfold", "kernel_size", kernel_size, 2, 1)
    geometry = _geometry("unfold", 2, x.shape[-2:], kernel, stride, padding, dilation, 1)
    y = Unfold.apply(batched, geometry=geometry)
    return y if batched is x else y.squeeze(0)
