"""Convolutions as matrix products (kind DOT: exact products, FP32 accumulator, one rounding; MPT section 3.3).

With a kernel of shape (C, kh, kw), the columns of x are, for each output position, the C kh kw values that the kernel
sees there. Three products then make up convolution and its gradients:

    correlate         y  = W columns(x)               forward
    spread            dx = fold(W^T dy)               input gradient; forward of the transposed convolution
    weight_gradient   dW = dy columns(x)^T

where fold adds every column back to the places it was read from, in FP32, before the one rounding.

Memory order: tensors are (N, C, H, W) by meaning, but these ops lay them out as C, H, W, N. One row of one column is
then a run of W * N neighbours in memory, so that columns() is a plain copy (measured: 14 MB in 0.2 ms, a tenth of
the product's time), the product gives the next layer's order without a transposition, and everything per channel
(batch norm, bias) works on one contiguous block.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from ..precision import DOT, MOVEMENT, add_to, gemm, reduce, store, widen
from ..tensor import Array, Like, Op, Tensor
from ._arguments import floating, integers

# Columns are made for as many output rows at a time as keep them below this many elements (64 MB in FP32).
BLOCK = 1 << 24


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


def batch_first(x: Array) -> Array:
    """(C, H, W, N) as (N, C, H, W)."""
    return x.transpose(3, 0, 1, 2)


def pad_spatial(xp: Any, x: Array, pads: Any, value: float = 0.0) -> Array:
    """x (C, H, W, N) with `value` around H and W."""
    (top, bottom), (left, right) = pads
    if not (top or bottom or left or right):
        return x
    c, h, w, n = x.shape
    padded = xp.full((c, h + top + bottom, w + left + right, n), value, x.dtype)
    padded[:, top : top + h, left : left + w] = x
    return padded


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


def blocks(g: Geometry, channels: int, oh: int, ow: int, n: int) -> list[slice]:
    """Output rows in blocks whose columns have at most BLOCK elements."""
    per_row = max(channels * g.kernel[0] * g.kernel[1] * ow * n, 1)
    step = max(BLOCK // per_row, 1)
    return [slice(i, min(i + step, oh)) for i in range(0, oh, step)]


def columns(xp: Any, x: Array, g: Geometry) -> Iterator[tuple[slice, Array]]:
    """Blocks of output rows and their columns (groups, C kh kw / groups, rows OW N) of x (C, H, W, N), widened.

    Widening x rather than its columns reads each value once, not kh kw times.
    """
    view = windows(xp, pad_spatial(xp, widen(x), g.pads), g)
    c, _, _, oh, ow, n = view.shape
    for rows in blocks(g, c, oh, ow, n):
        yield rows, view[:, :, :, rows].reshape(g.groups, c * g.kernel[0] * g.kernel[1] // g.groups, -1)


def correlate(xp: Any, x: Array, w: Array, bias: Array | None, g: Geometry) -> Array:
    """y (O, OH, OW, N) of x (C, H, W, N) and w (O, C / groups, kh, kw), in the storage dtype."""
    o, ow, n = w.shape[0], g.output(x.shape[1], x.shape[2])[1], x.shape[3]
    matrix = w.reshape(g.groups, o // g.groups, -1)
    if bias is not None:
        bias = bias.reshape(g.groups, -1, 1)
    parts = [gemm(matrix, block, bias).reshape(o, -1, ow, n) for _, block in columns(xp, x, g)]
    return parts[0] if len(parts) == 1 else xp.concatenate(parts, 1)


def spread(xp: Any, y: Array, w: Array, g: Geometry, size: Pair) -> Array:
    """dx (C, H, W, N) in FP32 of y (O, OH, OW, N) and w (O, C / groups, kh, kw): every y_o W_o added in its place."""
    o, oh, ow, n = y.shape
    c = w.shape[1] * g.groups
    matrix = w.reshape(g.groups, o // g.groups, -1).swapaxes(1, 2)
    y = widen(y)
    total = xp.zeros((c, *g.padded(*size), n), y.dtype)
    for rows in blocks(g, c, oh, ow, n):
        block = gemm(matrix, y[:, rows].reshape(g.groups, o // g.groups, -1), wide=True)
        block = block.reshape(c, *g.kernel, -1, ow, n)
        for i, j, seen in taps(total, g, rows):
            add_to(seen, block[:, i, j], like=w, accumulator="accumulate")
    return unpad_spatial(total, g, size)


def weight_gradient(xp: Any, x: Array, y: Array, g: Geometry, like: Array) -> Array:
    """dW (O, C / groups, kh, kw) in FP32 of the input x (C, H, W, N) and the output gradient y (O, OH, OW, N).

    Both may be widened; like is one that is stored.
    """
    o = y.shape[0]
    total: Any = None  # one accumulator over all blocks: the FP32 or FP16 of the policy
    for rows, block in columns(xp, x, g):  # columns y^T, not y columns^T: the tall operand first is a fifth faster
        dy = y[:, rows].reshape(g.groups, o // g.groups, -1).swapaxes(1, 2)
        total = gemm(block, dy, acc=total, wide=True, like=like)
    return total.swapaxes(1, 2).reshape(o, x.shape[0] // g.groups, *g.kernel)


class Conv2d(Op):
    """y_o = b_o + sum over c of W_oc * x_c (cross-correlation); gradients as in the module docstring, db = sum dy.

    x: (N, C, H, W), w: (O, C / groups, kh, kw), b: (O,) or None.
    """

    kind = DOT
    name = "conv2d"

    def forward(self, x: Array, w: Array, b: Array | None, *, geometry: Geometry) -> Array:
        self.save(x, w)
        self.geometry = geometry
        return batch_first(correlate(self.xp, self.xp.ascontiguousarray(channels_first(x)), w, b, geometry))

    def backward(self, dy: Array) -> tuple:
        (x, w), (like_x, like_w, like_b), g = self.saved, self.like, self.geometry
        dy = widen(self.xp.ascontiguousarray(channels_first(dy)))
        dx = like_x and store(batch_first(spread(self.xp, dy, w, g, x.shape[2:])), like=like_x)
        x = self.xp.ascontiguousarray(channels_first(x))
        dw = like_w and store(weight_gradient(self.xp, x, dy, g, like=w), like=like_w)
        return dx, dw, _bias_gradient(dy, like_b)


class ConvTranspose2d(Op):
    """The input gradient of conv2d as an operation of its own: y = fold(W^T x) + b;  dx = W columns(dy).

    x: (N, C, H, W), w: (C, O / groups, kh, kw), b: (O,) or None.
    """

    kind = DOT
    name = "conv_transpose2d"

    def forward(self, x: Array, w: Array, b: Array | None, *, geometry: Geometry, size: Pair) -> Array:
        self.save(x, w)
        self.geometry = geometry
        y = spread(self.xp, self.xp.ascontiguousarray(channels_first(x)), w, geometry, size)
        if b is not None:
            y += widen(b).reshape(-1, 1, 1, 1)
        return store(batch_first(y), like=x)

    def backward(self, dy: Array) -> tuple:
        (x, w), (like_x, like_w, like_b), g = self.saved, self.like, self.geometry
        dy = self.xp.ascontiguousarray(channels_first(dy))
        dx = like_x and batch_first(correlate(self.xp, dy, w, None, g))
        x = self.xp.ascontiguousarray(channels_first(x))
        dw = like_w and store(weight_gradient(self.xp, dy, x, g, like=w), like=like_w)
        return dx, dw, _bias_gradient(dy, like_b)


def _bias_gradient(dy: Array, like: Like | None) -> Array | None:
    return like and store(reduce(dy, (1, 2, 3), "sum", like=like).reshape(like.shape), like=like)


class Unfold(Op):
    """y (N, C kh kw, L): every window as a column;  dx adds them back where they overlap, in FP32."""

    kind = MOVEMENT

    def forward(self, x: Array, *, geometry: Geometry) -> Array:
        self.geometry, self.shape = geometry, x.shape
        padded = pad_spatial(self.xp, channels_first(x), geometry.pads)
        view = windows(self.xp, padded, geometry)  # C, kh, kw, OH, OW, N
        return view.reshape(-1, view.shape[3] * view.shape[4], x.shape[0]).transpose(2, 0, 1)

    def backward(self, dy: Array) -> Array:
        n, c, h, w = self.shape
        g, wide = self.geometry, widen(dy)
        oh, ow = g.output(h, w)
        block = wide.transpose(1, 2, 0).reshape(c, *g.kernel, oh, ow, n)
        total = self.xp.zeros((c, *g.padded(h, w), n), wide.dtype)
        for i, j, seen in taps(total, g):
            add_to(seen, block[:, i, j], like=dy)
        return store(batch_first(unpad_spatial(total, g, (h, w))), like=dy)


# ---------------------------------------------------------------------------------------------------------- functions


def _check(op: str, n: int, input: Any, weight: Any, bias: Any, transposed: bool, groups: Any) -> tuple[Tensor, bool]:
    """Hold input, weight and bias to each other; returns the input with a batch axis, and whether it had none."""
    x, w = floating(op, "input", input), floating(op, "weight", weight)
    if w.ndim != n + 2:
        raise ValueError(f"{op}: expected `weight` to have {n + 2} axes, got shape {w.shape}")
    if x.ndim not in (n + 1, n + 2):
        raise ValueError(f"{op}: expected `input` to have {n + 2} axes (or {n + 1} without batch), got shape {x.shape}")
    if not hasattr(groups, "__index__") or groups < 1:
        raise ValueError(f"{op}: expected `groups` to be a positive integer, got {groups!r}")
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
    if 0 in x.shape or 0 in w.shape:
        raise ValueError(f"{op}: expected no axis of length 0 {shapes}")
    outputs = w.shape[1] * groups if transposed else w.shape[0]
    if bias is not None and floating(op, "bias", bias).shape != (outputs,):
        raise ValueError(f"{op}: expected bias.shape == ({outputs},), got {bias.shape}")
    return batched, batched is not x


def _geometry(
    op: str, n: int, shape: tuple, kernel: tuple, stride: Any, padding: Any, dilation: Any, groups: int
) -> Geometry:
    """The Geometry of n = 1 or 2 spatial axes; ValueError if no window fits."""
    strides, dilations = integers(op, "stride", stride, n, 1), integers(op, "dilation", dilation, n, 1)
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
    x, unbatched = _check("conv2d", 2, input, weight, bias, False, groups)
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
    x, unbatched = _check("conv1d", 1, input, weight, bias, False, groups)
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
    """The transposed ("fractionally strided") convolution: what the gradient of conv2d does to its output gradient.

    input: (N, C, H, W) or (C, H, W); weight: (C, O / groups, kh, kw); bias: (O,). Returns (N, O, OH, OW) with
    OH = (H - 1) stride - 2 padding + dilation (kh - 1) + output_padding + 1. ValueError if shapes or sizes do not fit.
    """
    op = "conv_transpose2d"
    x, unbatched = _check(op, 2, input, weight, bias, True, groups)
    strides, dilations = integers(op, "stride", stride, 2, 1), integers(op, "dilation", dilation, 2, 1)
    pads, extra = integers(op, "padding", padding, 2, 0), integers(op, "output_padding", output_padding, 2, 0)
    if any(e >= s and e >= d for e, s, d in zip(extra, strides, dilations)):
        raise ValueError(
            f"{op}: expected output_padding below stride or dilation, got {extra}, {strides} and {dilations}"
        )
    kernel = weight.shape[2:]
    height, width = [
        (n - 1) * s - 2 * p + d * (k - 1) + e + 1
        for n, s, p, d, k, e in zip(x.shape[2:], strides, pads, dilations, kernel, extra)
    ]
    if min(height, width) < 1:
        raise ValueError(f"{op}: padding {pads} leaves nothing of the output: its size would be {(height, width)}")
    g = Geometry(kernel, strides, ((pads[0], pads[0]), (pads[1], pads[1])), dilations, groups, x.shape[2:])
    y = ConvTranspose2d.apply(x, weight, bias, geometry=g, size=(height, width))
    return y.squeeze(0) if unbatched else y


def unfold(input: Tensor, kernel_size: Any, dilation: Any = 1, padding: Any = 0, stride: Any = 1) -> Tensor:
    """Every kernel-sized window of input (N, C, H, W) as a column: (N, C kh kw, number of windows)."""
    x = floating("unfold", "input", input)
    if x.ndim != 4:
        raise ValueError(f"unfold: expected `input` to have 4 axes (N, C, H, W), got shape {x.shape}")
    kernel = integers("unfold", "kernel_size", kernel_size, 2, 1)
    return Unfold.apply(x, geometry=_geometry("unfold", 2, x.shape[2:], kernel, stride, padding, dilation, 1))
