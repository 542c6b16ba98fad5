"""The kernels in CUDA against the definitions of their ops, in both directions: one row per op, shape and layout.

Sizes lie below, at and above what a line of memory (8 halves, 4 floats), a warp, a block and a tile hold. What rows
cannot say is in test_edges.py.
"""

from math import prod

import numpy as np
import pytest

import tinymp as mp
from gpu.both_ways import check_both_ways, on_device
from oracle import STORAGE, WORK, distinct, randn, rng
from tinymp import ops
from tinymp.gpu import conv, norm
from tinymp.gpu import rows as shared_rows
from tinymp.gpu.layout import ceil_div
from tinymp.ops import lstm_layer

INF, NAN = np.inf, np.nan
ROWS = []


def row(op, *inputs, patch=(), **checks):
    """patch: what monkeypatch sets. The rest: as check_both_ways takes it."""
    ROWS.append((op, inputs, patch, checks))


def with_value(x, value, place):
    """x, which holds a value at a place."""
    x[place] = value
    return x


def single(*shape, seed):
    """FP32 values, which stay so beside FP16 ones."""
    return randn(*shape, seed=seed).astype("float32")


# ------------------------------------------------------------------------------------------------------- convolutions

TILES = {f"{t.rows}x{t.columns}": t for t in conv.TILES}
TENSOR_CORES = {"arrange"}
NO_KERNELS = (conv, "KERNELS", None)


def force(tile, parts=1):
    """Products use this tile (where it is there for the batch, else 64 x 64), and so many parts of each sum."""

    def schedule(width, rows, columns, batch, depth, most, _):
        length = ceil_div(ceil_div(depth, parts if most > 1 else 1), 32) * 32
        return TILES[tile] if width in TILES[tile].widths else TILES["64x64"], length, ceil_div(depth, length)

    return (conv, "schedule", schedule), (conv, "SHORTEST", 32)


def names(tile, width=8):
    return {TILES[tile].kernel(kernel, width) for kernel in ("correlate", "weight_gradient")}


def conv_row(x, w, *options, kernels=TENSOR_CORES, bias=True, put=None, transposed=False, groups=1, **checks):
    """Shapes of x and w; every result may be as long a sum as there is. put: a value, and where it is put into x."""
    images = randn(*x) if put is None else with_value(randn(*x), *put)
    inputs = [images, randn(*w, seed=2)] + ([randn(w[1] * groups if transposed else w[0], seed=3)] if bias else [])
    checks = {"length": prod(w) + 1, "grad_length": x[0] * x[2] * x[3] * max(w[0], 20), "mixed": False} | checks
    f = ops.conv_transpose2d if transposed else ops.conv2d
    op = lambda x, w, b=None: f(x, w, b, *options)  # noqa: E731
    row(op, *inputs, kernels=kernels, **({"dtypes": ("float16",)} | checks))


for tile in TILES:
    for width in TILES[tile].widths:
        for more in (-1, 0, 1) if width == 8 else (1,):
            rows, columns = TILES[tile].rows + more, TILES[tile].columns // width + more  # pixels, of `width` images
            kernels = names(tile, width) | TENSOR_CORES
            conv_row((width, 3, 1, columns + 2), (rows, 3, 1, 3), kernels=kernels, patch=force(tile, 2))
    # 216 terms: 7 depths, more than there are stages; several columns of the weights
    conv_row((16, 24, 5, 4), (40, 24, 3, 3), 1, 1, kernels=names(tile) | {"sum_parts"}, patch=force(tile, 3))
for n, width, stride in ((1, 1, 1), (2, 1, 2), (3, 1, 1), (4, 4, 2), (12, 4, 1), (16, 8, 2)):
    kernels = names("64x64", width) | TENSOR_CORES
    conv_row((n, 3, 6, 5), (4, 3, 3, 3), stride, 1, kernels=kernels, patch=force("64x64", 2), chwn=n > 2)
for parts, bias in ((3, False), (100, True)):  # 108 terms: 4 depths; more parts than those are not made
    x, w = (3, 24, 4, 5), (10, 12, 3, 3)
    conv_row(x, w, 1, 1, 1, 2, kernels={"sum_parts"}, bias=bias, patch=force("64x64", parts))

WINDOWS = [  # input, weight, stride, padding, dilation, groups
    ((2, 3, 7, 6), (4, 3, 3, 2), 1, 0, 1, 1),
    ((2, 3, 7, 6), (4, 3, 3, 2), (2, 3), (2, 1), 1, 1),
    ((2, 3, 7, 6), (4, 3, 2, 2), 3, 0, 1, 1),  # some inputs are in no window
    ((2, 3, 8, 9), (4, 3, 3, 3), 2, 2, 2, 1),  # stride and dilation have a common factor: no tap hits odd positions
    ((2, 2, 9, 9), (3, 2, 3, 2), (4, 2), 1, (2, 3), 1),
    ((1, 1, 1, 1), (1, 1, 1, 1), 2, 1, 1, 1),
    ((2, 6, 5, 5), (6, 1, 3, 3), (1, 2), 1, 1, 6),
    ((2, 4, 5, 5), (6, 2, 3, 3), 2, (1, 0), (2, 1), 2),
    ((8, 3, 5, 5), (12, 1, 3, 2), 2, 1, 1, 3),  # four kernels for each channel
    ((3, 4, 6, 5), (4, 2, 3, 3), (2, 1), 1, (1, 2), 2),  # groups of 2 channels
    ((2, 2, 6, 5), (3, 2, 2, 4), 1, "same", 1, 1),  # more padding on the right
    ((8, 3, 9, 9), (5, 3, 7, 7), 2, 3, 1, 1),
    ((2, 2, 5, 5), (3, 2, 9, 9), 1, 4, 1, 1),  # a kernel larger than the image
]
TRANSPOSED = [  # input, weight, stride, padding, output_padding, groups, dilation
    ((2, 3, 4, 5), (3, 2, 3, 3), 1, 0, 0, 1, 1),
    ((8, 3, 4, 4), (3, 4, 4, 4), 2, 1, 0, 1, 1),
    ((1, 4, 3, 4), (4, 2, 3, 2), (2, 3), (1, 0), (1, 2), 2, 1),
    ((2, 2, 3, 3), (2, 3, 2, 3), (1, 2), (1, 2), 1, 1, 2),
    ((2, 3, 3, 3), (3, 2, 1, 1), 1, 0, (0, 1), 1, (1, 2)),  # 1 x 1, but the output is larger
]
for i, case in enumerate(WINDOWS):
    conv_row(*case, bias=i % 2 > 0, mixed=i % 2 > 0)
for i, case in enumerate(TRANSPOSED):
    conv_row(*case, bias=i % 2 > 0, mixed=i % 2 > 0, transposed=True, groups=case[5])
for put in ((INF, (1, 2, 3, 3)), (-INF, (1, 2, 5, 3)), (NAN, (0, 0, 0, 0))):
    conv_row((2, 3, 6, 7), (4, 3, 3, 2), 2, 1, bias=False, put=put, magnitude=20.0, grad_magnitude=100.0)
CASE = (2, 3, 5, 5), (4, 3, 3, 3), 2, 1
MAKES = {"images_to_columns", "columns_to_images"}  # FP32, and GPUs before Ampere
conv_row(*CASE, kernels=MAKES, patch=[NO_KERNELS, (mp.backend.gpu, "compute_capability", lambda: 75)])
conv_row(*CASE, kernels=MAKES, patch=[NO_KERNELS], dtypes=("float32",))
conv_row(*CASE, kernels=(), patch=[NO_KERNELS, (conv, "LIMIT", 100)], dtypes=("float16", "float32"))
conv_row((0, 3, 5, 5), (4, 3, 3, 3), 2, 1, kernels=())
for groups, options in ((1, {}), (2, {"stride": 2, "padding": 1}), (6, {"dilation": 2, "padding": (2, 1)})):
    for f in (ops.conv2d, ops.conv_transpose2d):
        op = lambda x, w, b, f=f, g=groups, o=options: f(x, w, b, groups=g, **o)  # noqa: E731
        row(op, randn(2, 6, 7, 5), randn(6, 6 // groups, 3, 3), randn(6), length=60, grad_length=800)
        op = lambda x, w, b, f=f, g=groups: f(x, w, b, groups=g)  # noqa: E731
        row(op, randn(2, 6, 4, 5), randn(6, 6 // groups, 1, 1), randn(6), length=8, grad_length=80)  # of one pixel


# -------------------------------------------------------------------------------------------------------------- norms


def affine(c):
    return [single(c, seed=2), single(c, seed=3)]


def training(x, *parameters):
    return ops.batch_norm(x, None, None, *parameters, training=True)


def batch_row(x, *parameters, op=training, **checks):
    """Terms per sum, with the operations around it: as in test_norm.py, where FP32 is held against FP64."""
    n = x.size // x.shape[1] if x.ndim > 1 else x.size
    row(op, x, *parameters, **({"length": 20 * n, "grad_length": 8 * n} | checks))


SPLIT = [(shared_rows, "_parts", lambda groups, n: 3)]  # several blocks share a channel: else from some thousand values
for shape in ((300, 1, 1), (4, 3, 5), (3, 4, 5, 6), (16, 3, 3, 5), (4, 3, 1, 8), (9, 2, 3, 40), (2, 1, 37, 37)):
    for patch, chwn in (((), False), (SPLIT, False), (SPLIT, True)):
        kernels = {"batch_norm_forward", "batch_norm_backward"}
        kernels |= {"batch_norm_moments", "batch_norm_sums"} if patch and not chwn else set()
        x = 1 + 2 * randn(*shape)
        batch_row(x, *affine(shape[1]), kernels=kernels, chwn=chwn, mixed=bool(patch), patch=patch)
for shape in ((4, 3), (3, 8), (9, 300), (70, 16), (300, 5)):
    for patch in ((), SPLIT):
        kernels = {"batch_norm_forward_columns", "batch_norm_backward_columns"}
        kernels |= {"batch_norm_moments_columns", "batch_norm_sums_columns"} if patch else set()
        batch_row(1 + 2 * randn(*shape), *affine(shape[1]), kernels=kernels, mixed=bool(patch), patch=patch)
for shape, parts in (((45, 130), 40), ((290, 1, 9), 280)):  # more parts than threads that combine them
    patch = [(shared_rows, "_parts", lambda groups, n, parts=parts: parts)]
    batch_row(1 + 2 * randn(*shape), dtypes=("float16",), gradient=False, patch=patch)
for shape in ((6, 9), (5, 3, 4, 8)):
    x, (w, b), c = randn(*shape), affine(shape[1]), shape[1]
    for parameters in ((), (w,), (w.astype("f8"), b.astype("f8"))):  # none, one, those of FP16
        batch_row(x, *parameters, patch=SPLIT)
    # gradients of x alone, and of the parameters alone
    batch_row(x, patch=SPLIT, op=lambda x, w=w, b=b: training(x, *(mp.tensor(v).to(x.device) for v in (w, b))))
    op = lambda w, b, x=x: training(mp.tensor(x.astype("float32")).to(w.device), w, b)  # noqa: E731
    row(op, w, b, dtypes=("float32",), patch=SPLIT, length=20 * x.size, grad_length=8 * x.size)
    batch_row(x, *affine(c), patch=SPLIT, op=lambda x, w, b: training(x[1:], w, b))
    batch_row(randn(x.size + 1), *affine(c), op=lambda x, w, b, s=shape: training(x[1:].reshape(s), w, b), mixed=False)
    batch_row(x, single(2 * c, seed=2), op=lambda x, w: training(x, w[::2]), mixed=False)
batch_row(with_value(randn(40, 3), NAN, (3, 1)), *affine(3), patch=SPLIT)
batch_row(with_value(randn(8, 3, 4, 4), -INF, (3, 1, 2, 2)), *affine(3), chwn=True, patch=SPLIT)


def layer_row(x, *parameters, shape=None, **checks):
    """layer_norm over the last axis, or over the last ones of `shape`."""
    shape = shape or x.shape[-1:]
    sizes = {"length": 20 * prod(shape), "grad_length": 8 * prod(shape) + x.size // prod(shape)}
    row(lambda x, *p: ops.layer_norm(x, shape, *p), x, *parameters, **(sizes | checks))


for shape in ((3, 4, 5), (5, 8), (300, 9), (3, 64), (7, 257), (2, 1025), (1, 2060), (600, 2)):
    for patch in ((), SPLIT):
        kernels = {"layer_norm_forward", "layer_norm_backward", "layer_norm_sums_columns"}
        mixed = shape[-1] < 1000 and bool(patch)
        layer_row(1 + 2 * randn(*shape), *affine(shape[-1]), kernels=kernels, mixed=mixed, patch=patch)
for chwn in (False, True):
    layer_row(randn(3, 4, 5, 6), single(5, 6, seed=2), single(5, 6, seed=3), shape=(5, 6), chwn=chwn)
    layer_row(randn(3, 4, 5, 6), shape=(3, 4, 5, 6), chwn=chwn)
for parameters in ((), (randn(20, seed=2),), (randn(20, seed=2), randn(20, seed=3))):  # of FP16
    layer_row(randn(6, 20), *parameters)
row(lambda x, w, b: ops.layer_norm(x[:, 1:], 16, w, b), randn(5, 17), *affine(16), length=400, grad_length=200)
row(
    lambda x, w: ops.layer_norm(x[1:].reshape(5, 16), 16, w), randn(81), single(16, seed=2), length=400, grad_length=200
)
row(lambda x, w: ops.layer_norm(x, 16, w[1:]), randn(5, 16), single(17, seed=2), length=400, grad_length=200)
layer_row(with_value(randn(3, 20), -INF, (1, 3)), *affine(20))
layer_row(with_value(randn(3, 1100), NAN, (1, 3)), *affine(1100), mixed=False)
TOO_LONG = [(shared_rows, "LONGEST", 4), (norm, "KERNELS", None)]
batch_row(randn(5, 5), *affine(5), patch=TOO_LONG)
layer_row(randn(5, 5), *affine(5), patch=TOO_LONG)


# ------------------------------------------------------------------------------------------------- softmax and losses

SPECIAL = [[6, 0, -6], [-INF, 0, 0], [-INF, -INF, -INF], [INF, 0, 0], [-INF, INF, 0], [0, NAN, -INF]]
for f in (ops.softmax, ops.log_softmax):
    sizes = {"inherited": 8, "magnitude": 12 if f is ops.log_softmax else None}
    for shape in ((7,), (1, 1), (3, 5), (33, 9), (2, 3, 64), (2, 255), (2, 1025), (1, 8200)):
        n, kernels = shape[-1], {f"{f.__name__}_{phase}" for phase in ("forward", "backward")}
        of = {"length": 30 + n, "grad_length": 60 + 4 * n} | sizes
        row(lambda x, f=f: f(x, -1), 3 * randn(*shape), kernels=kernels, **of)
    of = {"length": 60, "grad_length": 200} | sizes
    for dim, view in ((0, lambda x: x), (-1, lambda x: x[:, 1:]), (-1, lambda x: x.T)):  # CuPy's, or copied
        row(lambda x, f=f, dim=dim, view=view: f(view(x), dim), randn(5, 18), mixed=False, **of)
    row(lambda x, f=f: f(x, 0), np.array(2.0), mixed=False, **of)
    row(lambda x, f=f: f(x, 1), randn(0, 3), mixed=False)
    row(lambda x, f=f: f(x, -1), np.array(SPECIAL).repeat([1, 40, 1], axis=1), **of)


def labels(shape, ignored=-100):
    """Labels for logits of this shape; some rows, but not the first, are ignored."""
    axis = min(1, len(shape) - 1)
    rows = shape[:axis] + shape[axis + 1 :]
    target = np.where(rng(4).random(rows) < 0.3, ignored, rng(3).integers(0, shape[axis], rows))
    target[(0,) * target.ndim] = 0
    return target


def loss_row(x, target, reduction, weighted=False, part=slice(None), **options):
    classes = x.shape[min(1, x.ndim - 1)]
    w = rng(7).integers(1, 9, classes) / 4  # exact in FP16
    kernels = {"cross_entropy_forward", "cross_entropy_backward"}

    def loss(x, t):
        put = on_device if x.device == "gpu" else np.asarray
        weight = mp.Tensor(put(w.astype(x.dtype))) if weighted else None
        return ops.cross_entropy(x[part] if part != slice(None) else x, t, weight, reduction=reduction, **options)

    largest = np.abs(x).max()
    row(
        loss, x, target, kernels=kernels if x.ndim < 3 or x.strides[1] == x.itemsize or 1 in x.shape[2:] else (),
        length=classes + target.size, grad_length=2 * classes + 2 * largest + 8,  # exp's error grows with its argument
        magnitude=(target.size if reduction == "sum" else 1) * 2 * (2 * largest + np.log(classes)),
    )  # fmt: skip


HOW = [("mean", False, 0.0), ("mean", True, 0.25), ("sum", False, 0.25), ("none", True, 1.0), ("none", True, 0.0)]
# a thread, a few lanes, a warp, a block per row; classes that are no neighbours are left to the definition
LOGITS = [(5,), (1, 1), (3, 7), (257, 3), (9, 8), (70, 40), (5, 333), (3, 1101), (2, 2200), (2, 3, 1), (2, 11, 3, 5)]
for i, shape in enumerate(LOGITS):
    for reduction, weighted, smoothing in (HOW[i % 5], HOW[(i + 2) % 5]):
        loss_row(2 * randn(*shape), labels(shape), reduction, weighted, label_smoothing=smoothing)
for dtype, ignored in (("int32", 1), ("uint8", 200)):
    loss_row(randn(20, 7), labels((20, 7), ignored).astype(dtype), "mean", ignore_index=ignored)
for order, reduction in (((1, 2, 3, 0), "none"), ((0, 2, 3, 1), "mean"), ((3, 1, 0, 2), "none")):
    x = np.ascontiguousarray(randn(3, 10, 2, 5).transpose(order)).transpose(np.argsort(order))
    loss_row(x, labels(x.shape), reduction, weighted=True)
for part in (slice(1, None), slice(None, None, 2)):  # between two multiples of 16 bytes, and with gaps
    loss_row(randn(7, 45), labels(randn(7, 45)[part].shape), "mean", part=part)


# ------------------------------------------------------------------------------------------------- pooling and lookups

MAX = {"max_pool2d_forward", "max_pool2d_backward"}
POOLS = [  # shape, kernel, stride, padding, dilation, ceil_mode. Images: 1, a pack, two, and beside them
    ((8, 3, 6, 8), (2, 2), (2, 2), (0, 0), (1, 1), False),
    ((9, 2, 7, 5), (3, 2), (2, 1), (1, 1), (1, 1), False),
    ((16, 2, 7, 7), (3, 3), (2, 2), (0, 0), (1, 1), True),
    ((4, 2, 6, 8), (3, 3), (2, 3), (1, 0), (1, 1), True),
    ((3, 1, 8, 9), (2, 3), (2, 2), (1, 1), (2, 2), False),
    ((8, 1, 9, 8), (3, 2), (1, 1), (1, 1), (2, 3), False),
    ((8, 2, 7, 7), (2, 2), (3, 4), (1, 0), (1, 1), False),  # places that no window sees
    ((8, 1, 1, 5), (2, 2), (1, 1), (1, 1), (2, 1), False),  # windows of padding alone
    ((1, 1, 1, 1), (1, 1), (1, 1), (0, 0), (1, 1), False),
]
for shape, *options in POOLS:
    for chwn in (False, True):
        op = lambda x, o=options: ops.max_pool2d(x, *o, return_indices=True)  # noqa: E731
        row(op, distinct(*shape, step=0.125), kernels=MAX, length=9, chwn=chwn, mixed=chwn)
for x in (randn(3, 6, 6), randn(240, 1, 4, 20)):  # without a batch, and several blocks along a row
    row(lambda x: ops.max_pool2d(x, 2), x, kernels=MAX, chwn=True, mixed=False)
row(lambda x: ops.max_pool2d(x, 2), randn(0, 3, 4, 6))
row(lambda x: ops.max_pool2d(x, (17, 16), 3, (2, 1)), distinct(1, 1, 19, 20, step=0.0625), length=40)  # no byte
for part in ((slice(1, 9),), (slice(None), slice(1, 3)), (..., slice(1, 5))):
    row(lambda x, part=part: ops.max_pool2d(x[part], 2), randn(9, 3, 4, 6), kernels=MAX, length=4, chwn=True)
# a whole pack of images, but memory that starts one element late
op = lambda x: ops.max_pool2d(x[1:].reshape(2, 4, 20, 8).permute(3, 0, 1, 2), 2)  # noqa: E731
row(op, randn(1281), kernels=MAX, length=4)

PLACES = np.array([[0, 2, 2, 1], [1, 1, 0, 1]])
for index, padding in ((np.array(2), None), (np.array([0, 3, 3, 3, 6]), 3), (np.array([[1, 2, 1], [6, 0, 1]]), None)):
    op = lambda w, i, p=padding: ops.embedding(i, w, padding_idx=p)  # noqa: E731
    row(op, randn(7, 8), index, kernels={"add_rows"}, grad_length=index.size)
row(lambda w, i: ops.embedding(i, w), randn(7, 4), np.empty((0, 2), int))
row(lambda x, i: ops.gather(x, 0, i), randn(3, 4), PLACES, kernels={"add_rows"}, grad_length=8)
row(lambda x, i: ops.index_select(x, 1, i), randn(3, 4), PLACES[0], kernels={"add_rows"}, grad_length=8)
row(lambda x, i: x[i], randn(3, 4, 2), PLACES, kernels={"add_rows"}, grad_length=8)


# ---------------------------------------------------------------------------------------------------- products, layers

for a, b in (((3, 4), (4, 5)), ((4,), (4, 5)), ((2, 1, 3, 4), (1, 6, 4, 5)), ((3, 0), (0, 5)), ((6, 3, 4), (6, 4, 1))):
    row(ops.matmul, randn(*a), randn(*b), length=8, grad_length=80, grad_roundings=4)
for view in (lambda x: x.T, lambda x: x[:, :4], lambda x: x[::2], lambda x: x[:, ::2]):
    row(lambda x, view=view: ops.matmul(view(x), view(x).T), randn(6, 8), length=8, grad_length=40)

T, B, D = 4, 3, 5


def recurrent_inputs(h=6, p=None, gates=4):
    """x, W_ih, W_hh, b_ih, b_hh, h, c (, W_hr), in float64."""
    n = p or h
    shapes = [(gates * h, D), (gates * h, n), (gates * h,), (gates * h,), (B, n), (B, h)] + ([(p, h)] if p else [])
    return [randn(T, B, D), *[0.5 * randn(*s, seed=i + 3) for i, s in enumerate(shapes)][: 5 if gates == 3 else 8]]


def joined(results, used=(0, 1, 2)):
    """One tensor of those results that are used: all get their gradients at once."""
    return ops.cat([y.reshape(-1) for i, y in enumerate(results) if i in used])


def lstm(x, w_ih, w_hh, b_ih, b_hh, h, c, w_hr=None, used=(0, 1, 2), **options):
    return joined(lstm_layer(x, (h, c), w_ih, w_hh, b_ih, b_hh, w_hr, **options), used)


def gru(x, w_ih, w_hh, b_ih, b_hh, h, **options):
    return joined(ops.gru_layer(x, h, w_ih, w_hh, b_ih, b_hh, **options))


def recurrent_row(op, *inputs, packed=12):
    """A value that T steps of FP16 made went through some 12 T other roundings (test_recurrent.py) than another."""
    longest = T * B * (4 * max(x.shape[-1] for x in inputs) + 8)
    for dtype in ("float16", "float32"):
        length = longest + packed * T * STORAGE[dtype] / WORK[dtype] / 2  # check_both_ways doubles it
        bounds = {"length": length, "magnitude": 1.0, "inherited": packed * T, "grad_length": longest}
        row(op, *inputs, dtypes=(dtype,), mixed=dtype == "float16", **bounds)


for lengths in (None, [2, 4, 1]):
    for reverse in (False, True):
        way = {"lengths": lengths, "reverse": reverse}
        recurrent_row(lambda *v, way=way: lstm(*v, **way), *recurrent_inputs())
        recurrent_row(lambda *v, way=way: gru(*v, **way), *recurrent_inputs(gates=3))
        recurrent_row(lambda *v, way=way: lstm(*v, **way), *recurrent_inputs(p=3 if reverse else 2))
for h in (1, 9):
    recurrent_row(lstm, *recurrent_inputs(h))
for used in range(3):  # a gradient from one of the results
    recurrent_row(lambda *v, used=used: lstm(*v, used=[used]), *recurrent_inputs())
for given in (["bias_ih"], ["bias_hh"], []):
    op = lambda x, w, u, *b, names=given: joined(lstm_layer(x, None, w, u, **dict(zip(names, b))))  # noqa: E731
    recurrent_row(op, *recurrent_inputs()[: 3 + len(given)])
recurrent_row(lambda x, *v: lstm(x.transpose(0, 1), *v), randn(B, T, D), *recurrent_inputs()[1:])  # batch first
ONES = [np.full((1, 1, 1), 1.0), np.full((4, 1), -1023.0), np.zeros((4, 1)), np.full(4, 1024.0), np.full(4, -0.25)]
# 1024 - 0.25 is no FP16 number, and 1024 - 0.25 - 1023 is one: the sum of two biases is not rounded
row(lambda x, *w: lstm_layer(x, None, *w)[0], *ONES, dtypes=("float16",), gradient=False)


IDS = [f"{op.__qualname__.partition('.')[0]} {min(checks.get('kernels') or [''])}" for op, *_, checks in ROWS]


@pytest.mark.parametrize(("op", "inputs", "patch", "checks"), ROWS, ids=IDS)
def test_both_ways(monkeypatch, op, inputs, patch, checks):
    for where in patch:
        monkeypatch.setattr(*where)
    check_both_ways(op, *inputs, **checks)
