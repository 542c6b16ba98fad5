"""Convolutions as matrix products (kind DOT: exact products, FP32 accumulator, one rounding; MPT section 3.3).

For a kernel of shape (C, kh, kw), each column of x holds the C kh kw values that the kernel covers at one output
position. Three products then compute the convolution and its gradients:

    correlate         y  = W columns(x)               forward
    spread            dx = fold(W^T dy)               input gradient; forward of the transposed convolution
    weight_gradient   dW = dy columns(x)^T

where fold adds every column back to the places it was read from, in FP32, before the one rounding.

Memory order: tensors are (N, C, H, W) by meaning, but these ops lay them out as C, H, W, N. One row of one column is
then a run of W * N neighbours in memory, so that columns() is a plain copy, the product gives the next layer's order
without a transposition, and everything per channel (batch norm, bias) works on one contiguous block.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from math import prod
from typing import Any, NamedTuple

from .. import backend
from ..arguments import LONGEST, integers, shaped, with_axes
from ..autograd import Array, Op
from ..backend.extras import held
from ..fast_path import replaceable
from ..gradients import Target
from ..precision import DOT, add_to, gemm, reduce, store, unrounded, widen
from ..tensor import Tensor

Pair = tuple[int, ...]  # (height, width)
by_device = replaceable(lambda x: backend.of(x).name)


class Geometry(NamedTuple):
    """The windows of a kernel. All pairs are (height, width); pads are ((top, bottom), (left, right))."""

    kernel: Pair
    stride: Pair = (1, 1)
    pads: tuple[Pair, ...] = ((0, 0), (0, 0))
    dilation: Pair = (1, 1)
    groups: int = 1
    out: Pair | None = None  # the number of windows, if not all that fit (output_padding)

    def padded(self, h: int, w: int) -> Pair:
        """The size of the input with its padding."""
        return h + self.pads[0][0] + self.pads[0][1], w + self.pads[1][0] + self.pads[1][1]

    def output(self, h: int, w: int) -> Pair:
        """The number of windows that fit: floor((size + padding - dilation (kernel - 1) - 1) / stride) + 1."""
        sides = zip(self.padded(h, w), self.kernel, self.stride, self.dilation)
        return self.out or tuple([(n - d * (k - 1) - 1) // s + 1 for n, k, s, d in sides])


def images_last(xp: Any, x: Array) -> Array:
    """(N, C, H, W) as a C-contiguous (C, H, W, N): without a copy if x is laid out in this way."""
    return xp.ascontiguousarray(x.transpose(1, 2, 3, 0))


def batch_first(x: Array) -> Array:
    """(C, H, W, N) as (N, C, H, W)."""
    return x.transpose(3, 0, 1, 2)


def pad_spatial(xp: Any, x: Array, pads: Any, value: float = 0.0) -> Array:
    """x (C, H, W, N) with `value` around H and W."""
    return xp.pad(x, ((0, 0), *pads, (0, 0)), constant_values=value) if any(map(any, pads)) else x


def unpad_spatial(x: Array, g: Geometry, size: Pair) -> Array:
    """The part of the padded x (C, H, W, N) that is not padding."""
    return x[:, g.pads[0][0] :, g.pads[1][0] :][:, : size[0], : size[1]]


def taps(padded: Array, g: Geometry) -> Iterator[tuple[int, int, Array]]:
    """For each place (i, j) in the kernel: the part (C, OH, OW, N) of the padded image that it sees."""
    size = g._replace(pads=((0, 0), (0, 0))).output(*padded.shape[1:3])
    sides = list(zip(size, g.stride, g.dilation))
    for place in product(*map(range, g.kernel)):
        rows, across = [slice(k * d, k * d + (n - 1) * s + 1, s) for k, (n, s, d) in zip(place, sides)]
        yield *place, padded[:, rows, across]


@by_device
def columns(x: Array, g: Geometry) -> Array:
    """The columns (groups, C kh kw / groups, OH OW N) of x (C, H, W, N)."""
    xp = backend.of(x).xp
    seen = xp.stack([view for _, _, view in taps(pad_spatial(xp, x, g.pads), g)], 1)  # C, kh kw, OH, OW, N
    return seen.reshape(g.groups, prod(seen.shape[:2]) // g.groups, prod(seen.shape[2:]))


@by_device
def fold(columns: Array, shape: tuple, g: Geometry, like: Array, accumulator: str = "reduce") -> Array:
    """x (C, H, W, N) in FP32 from its columns in FP32: each value is added at the place from which it was read."""
    xp, (c, h, w, n) = backend.of(columns).xp, shape
    total = xp.zeros((c, *g.padded(h, w), n), columns.dtype)
    columns = columns.reshape(c, *g.kernel, *g.output(h, w), n)
    for i, j, seen in taps(total, g):
        add_to(seen, columns[:, i, j], like, accumulator)
    return xp.ascontiguousarray(unpad_spatial(total, g, (h, w)))  # a view would keep the padding in memory


def grouped(x: Array, g: Geometry) -> Array:
    """x (channels, ...) as a matrix per group."""
    return x.reshape(g.groups, x.shape[0] // g.groups, prod(x.shape[1:]))


def correlate(x: Array, w: Array, bias: Array | None, g: Geometry) -> Array:
    """y (O, OH, OW, N) of x (C, H, W, N) and w (O, C / groups, kh, kw)."""
    y = gemm(grouped(w, g), columns(x, g), None if bias is None else grouped(bias, g))
    return y.reshape(w.shape[0], *g.output(*x.shape[1:3]), x.shape[3])


@by_device
def spread(y: Array, w: Array, bias: Array | None, g: Geometry, size: Pair) -> Array:
    """dx (C, H, W, N) of y (O, OH, OW, N) and w (O, C / groups, kh, kw): every y_o W_o is added in its place.

    The input gradient of a convolution, and the forward of a transposed one.
    """
    columns = gemm(grouped(w, g).swapaxes(1, 2), grouped(y, g), wide=True)
    x = fold(columns, (w.shape[1] * g.groups, *size, y.shape[3]), g, like=w, accumulator="accumulate")
    return store(x if bias is None else x + widen(bias).reshape(-1, 1, 1, 1), like=w)


def weight_gradient(x: Array, y: Array, w: Array, g: Geometry) -> Array:
    """dW, like w, of the input x (C, H, W, N) and the output gradient y (O, OH, OW, N)."""
    return gemm(grouped(y, g), columns(x, g).swapaxes(1, 2)).reshape(w.shape)


def bias_gradient(xp: Any, dy: Array, like: Target) -> Array:
    """The sum of dy (N, O, OH, OW) per channel."""
    return store(reduce(images_last(xp, unrounded(dy)), (1, 2, 3), "sum", like=like).reshape(like.shape), like=like)


class Conv2d(Op):
    """y_o = b_o + sum over c of W_oc * x_c (cross-correlation); gradients as in the module docstring, db = sum dy.

    x: (N, C, H, W), w: (O, C / groups, kh, kw), b: (O,) or None.
    """

    kind = DOT
    name = "conv2d"

    def forward(self, x: Array, w: Array, b: Array | None, *, geometry: Geometry) -> Array:
        self.save(x, w)
        return batch_first(correlate(images_last(self.xp, x), w, b, geometry))

    def backward(self, dy: Array) -> tuple:
        (x, w), (like_x, like_w, like_b), g = self.saved, self.targets, self.geometry
        images, y = images_last(self.xp, x), images_last(self.xp, dy)
        dx = batch_first(spread(y, w, None, g, x.shape[2:])) if like_x else None
        dw = weight_gradient(images, y, w, g) if like_w else None
        return dx, dw, bias_gradient(self.xp, dy, like_b) if like_b else None


class ConvTranspose2d(Op):
    """The input gradient of conv2d as an op: y = fold(W^T x) + b;  dx = W columns(dy).

    x: (N, C, H, W), w: (C, O / groups, kh, kw), b: (O,) or None.
    """

    kind = DOT
    name = "conv_transpose2d"

    def forward(self, x: Array, w: Array, b: Array | None, *, geometry: Geometry, size: Pair) -> Array:
        self.save(x, w)
        return batch_first(spread(images_last(self.xp, x), w, b, geometry, size))

    def backward(self, dy: Array) -> tuple:
        (x, w), (like_x, like_w, like_b), g = self.saved, self.targets, self.geometry
        images, y = images_last(self.xp, x), images_last(self.xp, dy)
        dx = batch_first(correlate(y, w, None, g)) if like_x else None
        dw = weight_gradient(y, images, w, g) if like_w else None
        return dx, dw, bias_gradient(self.xp, dy, like_b) if like_b else None


# ---------------------------------------------------------------------------------------------------------- functions


def pair(op: str, name: str, value: Any, least: int) -> Pair:
    """One or two integers from `least` to LONGEST, as a pair."""
    return integers(op, name, value, 2, least, LONGEST)


def _around(op: str, padding: Any, *_: Any) -> tuple[Pair, Pair]:
    """The same padding on both sides."""
    p, q = pair(op, "padding", padding, 0)
    return (p, p), (q, q)


def geometry_of(op: str, shape: Pair, kernel: Pair, stride: Any, padding: Any, dilation: Any, groups: int) -> Geometry:
    """The Geometry of windows in images of this shape; ValueError if none fits."""
    strides, dilations = pair(op, "stride", stride, 1), pair(op, "dilation", dilation, 1)
    around = held("ops.conv.named_padding") if isinstance(padding, str) else _around
    g = Geometry(kernel, strides, around(op, padding, kernel, strides, dilations), dilations, groups)
    if min(g.output(*shape)) < 1:
        fits = f"the kernel {kernel} with dilation {dilations} does not fit"
        raise ValueError(f"{op}: {fits} the input of {tuple(shape)} with padding {padding!r}")
    return g


def _operands(op: str, input: Any, weight: Any, bias: Any, groups: Any, transposed: bool) -> tuple:
    """input with a batch axis, weight, and groups; ValueError if they do not fit."""
    x, w = with_axes(op, "input", input, 4, 3), with_axes(op, "weight", weight, 4)
    (groups,) = integers(op, "groups", groups, 1, 1)
    inputs, outputs = (w.shape[1] * groups, w.shape[0])[:: -1 if transposed else 1]
    if x.shape[-3] != inputs:
        expected = "weight.shape[0]" if transposed else "weight.shape[1] * groups"
        found = f"got {x.shape[-3]} and {inputs} (input is {x.shape}, weight is {w.shape})"
        raise ValueError(f"{op}: expected input.shape[1] == {expected}, {found}")
    if w.shape[0] % groups or not min(*x.shape[-2:], *w.shape[2:], outputs):
        expected = f"weight.shape[0] to be a multiple of groups ({groups}), and no axis but batch and input channels"
        raise ValueError(f"{op}: expected {expected} of length 0 (input is {x.shape}, weight is {w.shape})")
    shaped(op, "bias", bias, (outputs,))
    return x if x.ndim == 4 else x.unsqueeze(0), w, groups


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
    x, w, groups = _operands("conv2d", input, weight, bias, groups, transposed=False)
    g = geometry_of("conv2d", x.shape[2:], w.shape[2:], stride, padding, dilation, groups)
    y = Conv2d.apply(x, w, bias, geometry=g)
    return y if input.ndim == 4 else y.squeeze(0)


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
    op = "conv_transpose2d"
    x, w, groups = _operands(op, input, weight, bias, groups, transposed=True)
    strides, dilations = pair(op, "stride", stride, 1), pair(op, "dilation", dilation, 1)
    pads, extra = _around(op, padding), pair(op, "output_padding", output_padding, 0)
    if any(e >= max(s, d) for e, s, d in zip(extra, strides, dilations)):
        got = f"{extra}, {strides} and {dilations}"
        raise ValueError(f"{op}: expected output_padding below stride or dilation, got {got}")
    sides = zip(x.shape[2:], strides, pads, dilations, w.shape[2:], extra)
    size = tuple([(m - 1) * s - 2 * p + d * (k - 1) + e + 1 for m, s, (p, _), d, k, e in sides])
    if min(size) < 1:
        raise ValueError(f"{op}: padding {padding} leaves nothing of the output: its size would be {size}")
    g = Geometry(w.shape[2:], strides, pads, dilations, groups, x.shape[2:])
    y = ConvTranspose2d.apply(x, w, bias, geometry=g, size=size)
    return y if input.ndim == 4 else y.squeeze(0)
