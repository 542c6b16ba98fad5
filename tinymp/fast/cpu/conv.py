"""Convolutions on a CPU: blocks that stay in the cache, products without columns, phases of the stride, threads.

For few channels no columns are made: with H as the slowest axis the image itself contains them (`by_rows`). The input
gradient is mostly computed as correlations of dy, one for each phase of the stride (`spread_by_phases`).
"""

from __future__ import annotations

from collections.abc import Callable
from math import gcd, prod
from typing import Any, NamedTuple

from ...autograd import Array
from ...fast_path import fast_path
from ...ops import conv as definition
from ...ops.conv import Conv2d, ConvTranspose2d, Geometry, Pair, batch_first, bias_gradient, grouped, images_last
from ...precision import add_to, gemm, store, widen
from .threads import share, slices

BLOCK, CACHED = 1 << 24, 1 << 19
# OpenBLAS multiplies small matrices without copying them (with AVX-512): up to so many multiplications, or so large a
# result if both operands are contiguous along the sum. It copies others, which for few rows takes as long as a product.
SMALL, FEW = 1_000_000, 1200
RUN = 32  # the columns of a small product: fewer are not worth one


def region(xp: Any, x: Array, rows: Pair, across: Pair) -> Array:
    """x (C, H, W, N) from row rows[0] to rows[1] and from column across[0] to across[1], with 0 outside of x."""
    c, h, w, n = x.shape
    (top, bottom), (left, right) = rows, across
    seen = x[:, min(max(top, 0), h) : max(bottom, 0), min(max(left, 0), w) : max(right, 0)]
    if seen.shape[1:3] == (bottom - top, right - left):
        return seen
    y = xp.zeros((c, bottom - top, right - left, n), x.dtype)
    if seen.size:
        top, left = max(-top, 0), max(-left, 0)
        y[:, top : top + seen.shape[1], left : left + seen.shape[2]] = seen
    return y


def windows(xp: Any, x: Array, g: Geometry) -> Array:
    """All windows of the padded x (C, H, W, N), as a view (C, kh, kw, OH, OW, N) that copies nothing."""
    unpadded = g._replace(pads=((0, 0), (0, 0)))
    c, h, w, n = x.shape
    sc, sh, sw, sn = x.strides
    strides = (sc, sh * g.dilation[0], sw * g.dilation[1], sh * g.stride[0], sw * g.stride[1], sn)
    shape = (c, *g.kernel, *unpadded.output(h, w), n)
    return xp.lib.stride_tricks.as_strided(x, shape, strides)


def columns(xp: Any, x: Array, g: Geometry) -> tuple[list[slice], Callable[[slice], Array]]:
    """Blocks of output rows, and the function that gives the columns (groups, C kh kw / groups, rows OW N) of a block,
    of x (C, H, W, N), widened: to widen x rather than its columns reads each value once, not kh kw times.
    """
    c, h, w, n = x.shape
    (oh, ow), terms = g.output(h, w), c * prod(g.kernel) // g.groups
    itself = pointwise(g, x.shape, (oh, ow))
    rows = slices(oh, c * prod(g.kernel) * oh * ow * n, BLOCK if itself else CACHED)
    if itself:
        image = widen(x).reshape(g.groups, terms, h, w * n)
        return rows, lambda rows: image[:, :, rows].reshape(g.groups, terms, -1)
    (top, bottom), (left, right) = g.pads
    view = windows(xp, region(xp, widen(x), (-top, h + bottom), (-left, w + right)), g)  # C, kh, kw, OH, OW, N

    def cut(rows: slice) -> Array:
        return view[:, :, :, rows].reshape(g.groups, terms, (rows.stop - rows.start) * ow * n)

    return rows, cut


def small_run(g: Geometry, w: Array) -> int:
    """The widest product with the weights w of one tap that BLAS runs without copying; 0 if too narrow."""
    most = SMALL * g.groups * g.kernel[1] // max(w.size, 1)
    return most if most >= RUN else 0


def row_parts(g: Geometry, x: Array, w: Array) -> int:
    """The number of parts of the rows of `by_rows` that makes each product small; 0 if none does."""
    size, most = g.output(*x.shape[1:3]), small_run(g, w)
    run = size[1] * x.shape[3]
    if not run or not most or pointwise(g, x.shape, size):
        return 0
    return next((parts for parts in range(ceil_div(run, most), run // RUN + 1) if run % parts == 0), 0)


def by_rows(xp: Any, x: Array, g: Geometry) -> Callable[[int, slice, int], Array]:
    """The columns of x (C, H, W, N) for one tap across and some output rows, each cut into parts: a function that gives
    them, widened, as (groups, rows, parts, kh C / groups, OW N / parts), in the order (kh, C). It copies nothing.

    With H as the slowest axis, all rows of x under a window are neighbours in memory, as rows of a matrix. The next tap
    across begins one place later. With a stride, the places of each phase of it are made contiguous.
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


def correlate(xp: Any, x: Array, w: Array, bias: Array | None, g: Geometry) -> Array:
    """y (O, OH, OW, N) of x (C, H, W, N) and w (O, C / groups, kh, kw), in the storage dtype. x may be widened."""
    o, (oh, ow), n = w.shape[0], g.output(x.shape[1], x.shape[2]), x.shape[3]
    y = xp.empty((o, oh, ow, n), w.dtype)  # first: an output that is too large fails before its blocks are counted
    wins = o <= 2 * g.kernel[0] * x.shape[0]  # else the sums over the taps across take longer than columns
    if wins and (parts := row_parts(g, x, w)):
        return correlate_rows(xp, x, w, bias, g, y, parts)
    rows, cut = columns(xp, x, g)
    matrix, bias = widen(grouped(w, g)), None if bias is None else grouped(bias, g)
    if len(rows) == 1:
        return store(gemm(matrix, cut(rows[0]), bias), like=w).reshape(y.shape)

    def fill(block: slice) -> None:
        y[:, block] = store(gemm(matrix, cut(block), bias), like=w).reshape(o, block.stop - block.start, ow, n)

    share(fill, rows)
    return y


def correlate_rows(xp: Any, x: Array, w: Array, bias: Array | None, g: Geometry, y: Array, parts: int) -> Array:
    """`correlate` into y, as a sum of products over the taps across; see `by_rows`."""
    (o, oh), cut, across = y.shape[:2], by_rows(xp, x, g), g.kernel[1]
    matrices = widen(w).reshape(g.groups, o // g.groups, -1, *g.kernel).transpose(4, 0, 1, 3, 2)  # (kh, C) as the image
    matrices = matrices.reshape(across, g.groups, 1, 1, o // g.groups, -1)
    bias = None if bias is None else widen(bias).reshape(g.groups, 1, 1, -1, 1)
    places = y.reshape(g.groups, o // g.groups, oh, parts, -1)

    def fill(rows: slice) -> None:
        total = gemm(matrices[0], cut(0, rows, parts))
        for tap in range(1, across):
            total += gemm(matrices[tap], cut(tap, rows, parts))
        if bias is not None:
            total += bias
        places[:, :, rows] = store(total, like=w).transpose(0, 3, 1, 2, 4)

    share(fill, slices(oh, x.shape[0] * prod(g.kernel) * y[0].size, 2 * CACHED))
    return y


def spread(xp: Any, y: Array, w: Array, bias: Array | None, g: Geometry, size: Pair) -> Array:
    """dx (C, H, W, N), in the storage dtype, of y (O, OH, OW, N) and w (O, C / groups, kh, kw). y may be widened."""
    o, oh, ow, _ = y.shape
    c = w.shape[1] * g.groups
    # columns of y on one side, additions into dx, which take longer, on the other
    most = 3 if small_run(g, w) else 1.5
    if o * prod(size) <= most * c * oh * ow * prod(g.stride):
        return spread_by_phases(xp, y, w, bias, g, size)
    return definition.spread(y, w, bias, g, size)


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
            if taps.size:  # else no place of y contributes
                pads = [(-side.seen[0], side.seen[1] - n) for side, n in ((tall, y.shape[1]), (wide, y.shape[2]))]
                inner = Geometry(taps.shape[2:], (1, 1), tuple(pads), (tall.dilation, wide.dilation), g.groups)
                part = correlate(xp, y, xp.ascontiguousarray(taps), bias, inner)
                if part.shape == x.shape:  # without a stride: the only one
                    return part
                to[...] = part  # rounds: never, `part` is a product that `gemm` stored
            else:
                to[...] = 0 if bias is None else bias.reshape(-1, 1, 1, 1)  # rounds: never, a bias that was stored
    return x


def pointwise(g: Geometry, shape: tuple, size: Pair) -> bool:
    return g.kernel == g.stride == (1, 1) and g.pads == ((0, 0), (0, 0)) and tuple(shape[1:3]) == tuple(size)


def ceil_div(n: int, d: int) -> int:
    return -(-n // d)


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
    if 0 < g.kernel[0] * x.shape[0] * o <= FEW * g.groups**2 and row_parts(g, x, like):
        return weight_gradient_rows(xp, x, y, g, like)

    def of(channels: slice) -> Array:
        total: Any = None  # one accumulator over all blocks
        rows, cut = columns(xp, x[channels], g)
        for block in rows:  # columns y^T, not y columns^T: the tall operand first is a fifth faster
            seen = cut(block)
            dy = y[:, block].reshape(g.groups, o // g.groups, seen.shape[2]).swapaxes(1, 2)
            part = gemm(seen, dy, wide=True)
            total = part if total is None else xp.add(total, part, out=total)  # rounds: never, FP32 sums
        return total

    size = x.shape[0] * prod(g.kernel) * y[0].size
    channels = (slices(x.shape[0], size, size) if g.groups == 1 else []) or [slice(None)]
    first, *others = share(of, channels)
    total = xp.concatenate([first, *others], axis=1) if others else first
    return store(total.swapaxes(1, 2).reshape(like.shape), like=like)


def weight_gradient_rows(xp: Any, x: Array, y: Array, g: Geometry, like: Array) -> Array:
    """`weight_gradient` as a sum over the output rows, for each tap across; see `by_rows`."""
    (o, oh, ow, n), cut = y.shape, by_rows(xp, x, g)
    dy = y.reshape(g.groups, o // g.groups, oh, ow * n).transpose(0, 2, 3, 1)
    dw = xp.zeros((g.kernel[1], g.groups, g.kernel[0] * x.shape[0] // g.groups, o // g.groups), widen(like[:0]).dtype)

    def products(rows: slice) -> list[Array]:
        return [gemm(cut(tap, rows, 1)[:, :, 0], dy[:, rows], wide=True) for tap in range(len(dw))]

    for taps in share(products, slices(oh, x.shape[0] * prod(g.kernel) * y[0].size, 2 * CACHED)):
        for total, part in zip(dw, taps):
            for row in part.swapaxes(0, 1):
                add_to(total, row, like, "accumulate")
    dw = dw.reshape(*dw.shape[:2], g.kernel[0], -1, o // g.groups)  # kw, groups, kh, C, O
    return store(dw.transpose(1, 4, 3, 2, 0).reshape(like.shape), like=like)


@fast_path(Conv2d.forward)
def conv2d_forward(op: Conv2d, x: Array, w: Array, b: Array | None, *, geometry: Geometry) -> Array:
    op.save(x, w)
    return batch_first(correlate(op.xp, images_last(op.xp, x), w, b, geometry))


@fast_path(Conv2d.backward)
def conv2d_backward(op: Conv2d, dy: Array) -> tuple:
    (x, w), (like_x, like_w, like_b), g = op.saved, op.targets, op.geometry
    y = widen(images_last(op.xp, dy))
    dx = batch_first(spread(op.xp, y, w, None, g, x.shape[2:])) if like_x else None
    dw = weight_gradient(op.xp, images_last(op.xp, x), y, g, like=w) if like_w else None
    return dx, dw, bias_gradient(op.xp, dy, like_b) if like_b else None


@fast_path(ConvTranspose2d.forward)
def conv_transpose2d_forward(
    op: ConvTranspose2d, x: Array, w: Array, b: Array | None, *, geometry: Geometry, size: Pair
) -> Array:
    op.save(x, w)
    return batch_first(spread(op.xp, images_last(op.xp, x), w, b, geometry, size))


@fast_path(ConvTranspose2d.backward)
def conv_transpose2d_backward(op: ConvTranspose2d, dy: Array) -> tuple:
    (x, w), (like_x, like_w, like_b), g = op.saved, op.targets, op.geometry
    y = images_last(op.xp, dy)
    dx = batch_first(correlate(op.xp, y, w, None, g)) if like_x else None
    dw = weight_gradient(op.xp, y, images_last(op.xp, x), g, like=w) if like_w else None
    return dx, dw, bias_gradient(op.xp, dy, like_b) if like_b else None
