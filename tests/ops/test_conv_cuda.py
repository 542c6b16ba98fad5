"""The CUDA twins of the convolutions and of unfold: every tile shape, access width and kind of window."""

from math import prod

import numpy as np
import pytest

import tinymp as mp
from oracle import randn
from tinymp import ops
from tinymp.ops import conv
from twins import check_twin, launches, on_device

pytestmark = pytest.mark.usefixtures("gpu")

TILES = {f"{t.rows}x{t.columns}": t for t in conv.TILES}
TENSOR_CORES = {"arrange", "sum_parts"}


def force(monkeypatch, tile, parts=1):
    """Let products use this tile (small batches have 64 x 64 only), and the weight gradient so many parts."""
    monkeypatch.setattr(conv, "schedule", lambda width, *sizes: (TILES[tile if width == 8 else "64x64"], parts))


def names(tile, width=8):
    return {TILES[tile].kernel(kernel, width) for kernel in ("correlate", "weight_gradient")}


def check_conv(x, w, *options, kernels=(), bias=True, **checks):
    """conv2d of shapes x and w, where every result may be as long a sum as there is."""
    inputs = [randn(*x), randn(*w, seed=2)] + ([randn(w[0], seed=3)] if bias else [])
    check_twin(
        lambda *t: ops.conv2d(*t, *options) if bias else ops.conv2d(*t, None, *options),
        *inputs,
        kernels=kernels,
        length=prod(w[1:]) + 1,
        grad_length=x[0] * x[2] * x[3] * w[0],
        **checks,
    )


@pytest.mark.parametrize("tile", TILES)
@pytest.mark.parametrize("more", [-1, 0, 1])
def test_every_tile_below_at_and_above_its_size(monkeypatch, tile, more):
    force(monkeypatch, tile, 2)
    rows, columns = TILES[tile].rows + more, TILES[tile].columns // 8 + more  # pixels, of 8 images each
    check_conv(
        (8, 3, 1, columns + 2), (rows, 3, 1, 3), kernels=names(tile) | TENSOR_CORES, dtypes=("float16",), mixed=False
    )


@pytest.mark.parametrize("tile", TILES)
def test_every_tile_with_several_depths_and_columns_of_the_weights(monkeypatch, tile):
    force(monkeypatch, tile, 3)
    x, w = (16, 24, 5, 4), (40, 24, 3, 3)  # 216 terms: 7 depths, more than there are stages
    check_conv(x, w, 1, 1, kernels=names(tile), dtypes=("float16",), mixed=False)


@pytest.mark.parametrize(("n", "width"), [(1, 1), (2, 2), (3, 1), (4, 4), (6, 2), (8, 8), (12, 4), (16, 8)])
@pytest.mark.parametrize("stride", [1, 2])
def test_every_batch_size(monkeypatch, n, width, stride):
    force(monkeypatch, "64x64", 2)
    x, w = (n, 3, 6, 5), (4, 3, 3, 3)
    check_conv(x, w, stride, 1, kernels=names("64x64", width) | TENSOR_CORES, dtypes=("float16",), chwn=n > 2)


WINDOWS = [
    # input, weight, stride, padding, dilation, groups
    ((2, 3, 7, 6), (4, 3, 3, 2), 1, 0, 1, 1),
    ((2, 3, 7, 6), (4, 3, 3, 2), (2, 3), (2, 1), 1, 1),
    ((2, 3, 7, 6), (4, 3, 2, 2), 3, 0, 1, 1),  # some inputs are in no window
    ((2, 3, 8, 9), (4, 3, 3, 3), 2, 2, 2, 1),  # stride and dilation have a common factor: no tap hits odd positions
    ((2, 2, 9, 9), (3, 2, 3, 2), (4, 2), 1, (2, 3), 1),
    ((1, 1, 1, 1), (1, 1, 1, 1), 2, 1, 1, 1),
    ((2, 6, 5, 5), (4, 3, 3, 3), 1, 1, 1, 2),
    ((2, 6, 5, 5), (6, 1, 3, 3), (1, 2), 1, 1, 6),
    ((2, 4, 5, 5), (6, 2, 3, 3), 2, (1, 0), (2, 1), 2),
    ((2, 2, 6, 5), (3, 2, 2, 4), 1, "same", 1, 1),  # more padding on the right
    ((8, 3, 9, 9), (5, 3, 7, 7), 2, 3, 1, 1),
    ((2, 2, 5, 5), (3, 2, 9, 9), 1, 4, 1, 1),  # a kernel larger than the image
]


@pytest.mark.parametrize("windows", WINDOWS)
@pytest.mark.parametrize("bias", [True, False])
def test_every_kind_of_window(windows, bias):
    x, w, *options = windows
    check_conv(x, w, *options, kernels=TENSOR_CORES, dtypes=("float16",), bias=bias)


@pytest.mark.parametrize("windows", WINDOWS)
def test_float32_takes_the_columns_from_a_kernel(windows):
    x, w, *options = windows
    check_conv(x, w, *options, kernels={"im2col", "col2im"}, dtypes=("float32",), mixed=False)


@pytest.mark.parametrize("n", [1, 3, 4, 8])
def test_columns_in_several_blocks(monkeypatch, n):
    monkeypatch.setattr(conv, "BLOCK", 200)  # a few rows at a time: col2im goes on from its sums
    check_conv((n, 2, 6, 5), (3, 2, 3, 3), 1, 1, kernels={"im2col", "col2im"}, dtypes=("float32",), mixed=False)


TRANSPOSED = [
    # input, weight, stride, padding, output_padding, groups, dilation
    ((2, 3, 4, 5), (3, 2, 3, 3), 1, 0, 0, 1, 1),
    ((8, 3, 4, 4), (3, 4, 4, 4), 2, 1, 0, 1, 1),
    ((1, 4, 3, 4), (4, 2, 3, 2), (2, 3), (1, 0), (1, 2), 2, 1),
    ((2, 2, 3, 3), (2, 3, 2, 3), (1, 2), (1, 2), 1, 1, 2),
    ((4, 1, 1, 1), (1, 1, 2, 2), 1, 0, 0, 1, 1),
    ((2, 3, 3, 3), (3, 2, 1, 1), 1, 0, (0, 1), 1, (1, 2)),  # 1 x 1, but the output is larger
]


@pytest.mark.parametrize("case", TRANSPOSED)
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_conv_transpose2d(case, bias, dtype):
    x, w, *options, groups, dilation = case
    inputs = [randn(*x), randn(*w, seed=2)] + ([randn(w[1] * groups, seed=3)] if bias else [])
    check_twin(
        lambda x, w, b=None: ops.conv_transpose2d(x, w, b, *options, groups, dilation),
        *inputs,
        kernels=TENSOR_CORES if dtype == "float16" else {"im2col", "col2im"},
        length=w[0] * prod(w[2:]) + 1,
        grad_length=x[0] * x[2] * x[3] * 20,
        dtypes=(dtype,),
    )


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("transposed", [False, True])
def test_one_by_one_is_a_plain_product(groups, transposed):
    op = ops.conv_transpose2d if transposed else ops.conv2d
    x, w, b = randn(3, 4, 3, 2), randn(4, 4 // groups, 1, 1, seed=2), randn(4, seed=3)
    before = len(launches() or ())
    check_twin(lambda x, w, b: op(x, w, b, groups=groups), x, w, b, length=5, grad_length=30, dtypes=("float16",))
    assert not {name for name in (launches() or ())[before:] if name.startswith(("correlate", "weight_gradient"))}


def test_conv1d():
    check_twin(
        lambda x, w, b: ops.conv1d(x, w, b, stride=2, padding=2, dilation=2),
        *(randn(4, 3, 9), randn(6, 3, 3, seed=2), randn(6, seed=3)),
        kernels=TENSOR_CORES,
        length=10,
        grad_length=100,
        dtypes=("float16",),
    )


@pytest.mark.parametrize("parts", [1, 2, 3, 264])
def test_the_parts_of_the_weight_gradient(monkeypatch, parts):
    force(monkeypatch, "64x64", parts)  # 200 positions: 7 depths; more parts than those are not made
    check_conv((8, 2, 5, 5), (3, 2, 3, 3), 1, 1, kernels={"sum_parts"}, dtypes=("float16",), mixed=False)


def tensor(a, offset=0):
    """`a` as an FP16 Tensor on the device, `offset` elements behind an address that is a multiple of 16."""
    import cupy

    flat = cupy.empty(a.size + offset, "float16")[offset:].reshape(a.shape)
    flat[...] = on_device(a.astype("float16"))
    return mp.Tensor(flat)


@pytest.mark.parametrize("offset", [1, 2, 4, 8])
def test_unaligned_operands(offset):
    """Parts of larger arrays begin anywhere; what lies beside them is not touched."""
    x, w, b = randn(3, 4, 4, 8), randn(8, 3, 4, 4, seed=2), randn(8, seed=3)
    with mp.no_grad():
        expected = ops.conv2d(tensor(x).permute(3, 0, 1, 2), tensor(w), tensor(b), padding=2)
        got = ops.conv2d(tensor(x, offset).permute(3, 0, 1, 2), tensor(w, offset), tensor(b, offset), padding=2)
    np.testing.assert_array_equal(got.numpy(), expected.numpy())


def both_ways(x, w, **options):
    """y and the gradients of conv2d of FP16 inputs on the device."""
    x, w = tensor(x).requires_grad_(), tensor(w).requires_grad_()
    y = ops.conv2d(x, w, **options)
    dy = tensor(randn(*y.shape, seed=4)).data
    y.backward(dy)
    return [mp.backend.to_cpu(a) for a in (y.data, x.grad, w.grad)]


def test_the_tile_does_not_change_a_bit(monkeypatch):
    """Every tile sums in the same order, so the choice among them, which knows the GPU's size, shows in time alone."""
    inputs, results = (randn(8, 20, 4, 5), randn(9, 20, 3, 3, seed=2)), []
    for tile in TILES:
        force(monkeypatch, tile, 2)
        results.append(both_ways(*inputs, padding=1, stride=2))
    for other in results[1:]:
        for a, b in zip(results[0], other):
            np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("special", [np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("place", [(1, 2, 3, 3), (1, 2, 5, 3), (0, 0, 0, 0)])
def test_infinities_stay_where_they_belong(special, place):
    """One special input reaches the outputs whose windows see it, and no other."""
    x, w = randn(2, 3, 6, 7), randn(4, 3, 3, 2, seed=2)
    x[place] = special
    check_twin(
        lambda x, w: ops.conv2d(x, w, None, 2, 1),
        *(x, w),
        kernels=TENSOR_CORES,
        length=20,
        grad_length=200,
        magnitude=20.0,
        grad_magnitude=100.0,
        dtypes=("float16",),
        mixed=False,
    )


def test_values_that_do_not_fit_become_infinite():
    y, dx, dw = both_ways(np.full((8, 8, 4, 4), 100.0), np.full((8, 8, 3, 3), 100.0))
    assert np.isposinf(y).all() and np.isfinite(dx).all() and np.isfinite(dw).all()


def test_before_turing_the_columns_are_made(monkeypatch):
    monkeypatch.setattr(mp.backend.gpu, "compute_capability", lambda: 70)
    check_conv((2, 3, 5, 5), (4, 3, 3, 3), 2, 1, kernels={"im2col", "col2im"}, dtypes=("float16",), mixed=False)


def test_images_beyond_32_bits_are_left_to_the_definition(monkeypatch):
    monkeypatch.setattr(conv, "LIMIT", 100)
    before = len(launches() or ())
    check_conv((2, 3, 5, 5), (4, 3, 3, 3), 2, 1, mixed=False)
    check_twin(lambda x: ops.unfold(x, 3), randn(2, 3, 5, 5), length=9, mixed=False)
    ours = [name for name in (launches() or ())[before:] if name in conv.KERNELS.path.read_text(encoding="utf-8")]
    assert not ours


@pytest.mark.parametrize("n", [1, 2, 4, 8, 60, 62, 64])
@pytest.mark.parametrize("chwn", [False, True])
def test_unfold(n, chwn):
    check_twin(
        lambda x: ops.unfold(x, (3, 2), dilation=(1, 2), padding=(2, 1), stride=(1, 2)),
        randn(n, 2, 5, 6),  # up to 64 images: 6 blocks of positions
        kernels={"im2col", "col2im"},
        length=6,
        chwn=chwn,
    )


def test_an_empty_batch():
    w, b = randn(4, 3, 3, 3), randn(4)
    check_twin(lambda x, w, b: ops.conv2d(x, w, b, 2, 1), randn(0, 3, 5, 5), w, b)
    check_twin(lambda x, w: ops.conv_transpose2d(x, w), randn(0, 4, 5, 5), w)
    check_twin(lambda x: ops.unfold(x, 3), randn(0, 3, 5, 5))


def test_nothing_waits_for_the_device(gpu):
    x, w = tensor(randn(2, 3, 5, 5)).requires_grad_(), tensor(randn(4, 3, 3, 3, seed=2)).requires_grad_()
    dy = tensor(randn(2, 4, 5, 5)).data
    if not hasattr(gpu.xp, "no_synchronisation"):
        pytest.skip("a real GPU does not tell")
    with gpu.xp.no_synchronisation():
        ops.conv2d(x, w, padding=1).backward(dy)


@pytest.mark.parametrize(
    ("sizes", "tile", "parts"),
    [
        ((8, 512, 100_000, 1, 4608, 1), "128x128", 1),  # much work of every kind
        ((8, 64, 100_000, 1, 576, 1), "64x128", 1),
        ((8, 3, 100_000, 1, 1024, 1), "32x128", 1),  # an image is made
        ((8, 512, 1568, 1, 4608, 1), "64x64", 1),  # 7 x 7 pixels of 32 images: 200 small blocks, or 52 large ones
        ((1, 512, 100_000, 1, 4608, 1), "64x64", 1),  # all that a batch of 1 has
    ],
)
def test_which_tile(sizes, tile, parts):
    assert conv.schedule(*sizes) == (TILES[tile], parts)


def test_a_small_weight_gradient_is_split_over_the_gpu():
    _, parts = conv.schedule(8, 64, 9, 1, 50_176, 196)
    assert 64 < parts <= 196
    assert conv.schedule(8, 4096, 4608, 1, 6272, 25)[1] <= 2  # there are enough blocks


@pytest.mark.parametrize(("n", "width"), [(1, 1), (2, 2), (4, 4), (8, 8), (12, 4), (20, 4), (24, 8)])
def test_how_much_is_read_at_once(n, width):
    import cupy

    halves = cupy.empty(64, "float16")
    assert conv.at_once(n, halves) == width
    assert conv.at_once(n, halves, halves[1:]) == 1
    assert conv.at_once(n, halves, halves[4:]) == min(width, 4)
    assert conv.at_once(n, cupy.empty(64, "float32")) == min(width, 4)
