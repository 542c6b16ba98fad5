"""Convolutions in CUDA: every tile shape, access width and kind of window."""

from math import prod

import numpy as np
import pytest

import tinymp as mp
from cuda_on_cpu import device
from gpu.both_ways import check_both_ways, launches, on_device
from oracle import randn
from tinymp import ops
from tinymp.gpu import conv
from tinymp.gpu.layout import ceil_div

pytestmark = pytest.mark.usefixtures("gpu")

TILES = {f"{t.rows}x{t.columns}": t for t in conv.TILES}
TENSOR_CORES = {"arrange"}
H100 = 132  # multiprocessors


def force(monkeypatch, tile, parts=1):
    """Let products use this tile (where it is there for the batch, else 64 x 64), and so many parts of each sum."""

    def schedule(width, rows, columns, batch, depth, most, _):
        length = ceil_div(ceil_div(depth, parts if most > 1 else 1), 32) * 32
        return TILES[tile] if width in TILES[tile].widths else TILES["64x64"], length, ceil_div(depth, length)

    monkeypatch.setattr(conv, "schedule", schedule)
    monkeypatch.setattr(conv, "SHORTEST", 32)


def names(tile, width=8):
    return {TILES[tile].kernel(kernel, width) for kernel in ("correlate", "weight_gradient")}


def check_conv(x, w, *options, kernels=(), bias=True, **checks):
    """conv2d of shapes x and w, where every result may be as long a sum as there is."""
    inputs = [randn(*x), randn(*w, seed=2)] + ([randn(w[0], seed=3)] if bias else [])
    check_both_ways(
        lambda *t: ops.conv2d(*t, *options) if bias else ops.conv2d(*t, None, *options),
        *inputs,
        kernels=kernels,
        length=prod(w[1:]) + 1,
        grad_length=x[0] * x[2] * x[3] * w[0],
        **checks,
    )


SIZES = [(tile, 8, more) for tile in TILES for more in (-1, 0, 1) if 8 in TILES[tile].widths]
SIZES += [(tile, width, 1) for tile in TILES for width in TILES[tile].widths if width < 8]


@pytest.mark.parametrize(("tile", "width", "more"), SIZES)
def test_every_tile_below_at_and_above_its_size(monkeypatch, tile, width, more):
    force(monkeypatch, tile, 2)
    rows, columns = TILES[tile].rows + more, TILES[tile].columns // width + more  # pixels, of `width` images each
    x, w = (width, 3, 1, columns + 2), (rows, 3, 1, 3)
    check_conv(x, w, kernels=names(tile, width) | TENSOR_CORES, dtypes=("float16",), mixed=False)


@pytest.mark.parametrize("tile", TILES)
def test_every_tile_with_several_depths_and_columns_of_the_weights(monkeypatch, tile):
    force(monkeypatch, tile, 3)
    x, w = (16, 24, 5, 4), (40, 24, 3, 3)  # 216 terms: 7 depths, more than there are stages
    check_conv(x, w, 1, 1, kernels=names(tile) | {"sum_parts"}, dtypes=("float16",), mixed=False)


@pytest.mark.parametrize(("n", "width", "stride"), [(1, 1, 1), (2, 1, 2), (3, 1, 1), (4, 4, 2), (12, 4, 1), (16, 8, 2)])
def test_every_batch_size(monkeypatch, n, width, stride):
    force(monkeypatch, "64x64", 2)
    x, w = (n, 3, 6, 5), (4, 3, 3, 3)
    check_conv(
        x, w, stride, 1, kernels=names("64x64", width) | TENSOR_CORES, dtypes=("float16",), chwn=n > 2, mixed=False
    )


@pytest.mark.parametrize(("parts", "bias"), [(3, False), (100, True)])
def test_the_parts_of_a_sum_take_the_bias_and_are_rounded_once(monkeypatch, parts, bias):
    """Long sums of few results are split over the GPU. A group's last part is shorter, and the last tile overhangs."""
    force(monkeypatch, "64x64", parts)  # 108 terms: 4 depths; more parts than those are not made
    before = len(launches() or ())
    check_conv(
        (3, 24, 4, 5), (10, 12, 3, 3), 1, 1, 1, 2, kernels={"sum_parts"}, dtypes=("float16",), bias=bias, mixed=False
    )
    assert launches() is None or launches()[before:].count("sum_parts") >= 3  # y, dx and dw


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
    ((8, 3, 5, 5), (12, 1, 3, 2), 2, 1, 1, 3),  # four kernels for each channel
    ((3, 4, 6, 5), (4, 2, 3, 3), (2, 1), 1, (1, 2), 2),  # groups of 2 channels
    ((2, 2, 6, 5), (3, 2, 2, 4), 1, "same", 1, 1),  # more padding on the right
    ((8, 3, 9, 9), (5, 3, 7, 7), 2, 3, 1, 1),
    ((2, 2, 5, 5), (3, 2, 9, 9), 1, 4, 1, 1),  # a kernel larger than the image
]


@pytest.mark.parametrize(("windows", "bias"), [(windows, i % 2 > 0) for i, windows in enumerate(WINDOWS)])
def test_every_kind_of_window(windows, bias):
    x, w, *options = windows
    check_conv(x, w, *options, kernels=TENSOR_CORES, dtypes=("float16",), bias=bias, mixed=bias)


TRANSPOSED = [
    # input, weight, stride, padding, output_padding, groups, dilation
    ((2, 3, 4, 5), (3, 2, 3, 3), 1, 0, 0, 1, 1),
    ((8, 3, 4, 4), (3, 4, 4, 4), 2, 1, 0, 1, 1),
    ((1, 4, 3, 4), (4, 2, 3, 2), (2, 3), (1, 0), (1, 2), 2, 1),
    ((2, 2, 3, 3), (2, 3, 2, 3), (1, 2), (1, 2), 1, 1, 2),
    ((4, 1, 1, 1), (1, 1, 2, 2), 1, 0, 0, 1, 1),
    ((2, 3, 3, 3), (3, 2, 1, 1), 1, 0, (0, 1), 1, (1, 2)),  # 1 x 1, but the output is larger
]


@pytest.mark.parametrize(("case", "bias"), [(case, i % 2 > 0) for i, case in enumerate(TRANSPOSED)])
def test_conv_transpose2d(case, bias):
    x, w, *options, groups, dilation = case
    inputs = [randn(*x), randn(*w, seed=2)] + ([randn(w[1] * groups, seed=3)] if bias else [])
    check_both_ways(
        lambda x, w, b=None: ops.conv_transpose2d(x, w, b, *options, groups, dilation),
        *inputs,
        kernels=TENSOR_CORES,
        length=w[0] * prod(w[2:]) + 1,
        grad_length=x[0] * x[2] * x[3] * 20,
        dtypes=("float16",),
        mixed=bias,
    )


def tensor(a, offset=0):
    """`a` as an FP16 Tensor on the device, `offset` elements behind an address that is a multiple of 16."""
    import cupy

    flat = cupy.empty(a.size + offset, "float16")[offset:].reshape(a.shape)
    flat[...] = on_device(a.astype("float16"))
    return mp.Tensor(flat)


def test_unaligned_operands():
    """Parts of larger arrays begin anywhere; what lies beside them is not touched."""
    x, w, b = randn(3, 4, 4, 8), randn(8, 3, 4, 4, seed=2), randn(8, seed=3)
    with mp.no_grad():
        results = [
            ops.conv2d(tensor(x, at).permute(3, 0, 1, 2), tensor(w, at), tensor(b, at), padding=2).numpy()
            for at in (0, 1, 2, 4, 8)
        ]
    for other in results[1:]:
        np.testing.assert_array_equal(other, results[0])


def both_ways(x, w, **options):
    """y and the gradients of conv2d of FP16 inputs on the device."""
    x, w = tensor(x).requires_grad_(), tensor(w).requires_grad_()
    y = ops.conv2d(x, w, **options)
    dy = tensor(randn(*y.shape, seed=4)).array
    y.backward(dy)
    return [mp.backend.to_cpu(a) for a in (y.array, x.grad_array, w.grad_array)]


def test_the_tile_does_not_change_a_bit(monkeypatch):
    """Every tile sums in the same order, so the choice among them, which knows the GPU's size, shows in time alone."""
    inputs, results = (randn(8, 20, 4, 5), randn(9, 20, 3, 3, seed=2)), []
    for tile in TILES:
        force(monkeypatch, tile, 2)
        results.append(both_ways(*inputs, padding=1, stride=2))
    for other in results[1:]:
        for a, b in zip(results[0], other):
            np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize(
    ("special", "place"), [(np.inf, (1, 2, 3, 3)), (-np.inf, (1, 2, 5, 3)), (np.nan, (0, 0, 0, 0))]
)
def test_infinities_stay_where_they_belong(special, place):
    """One special input reaches the outputs whose windows see it, and no other."""
    x, w = randn(2, 3, 6, 7), randn(4, 3, 3, 2, seed=2)
    x[place] = special
    check_both_ways(
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


@pytest.mark.parametrize(("capability", "dtype"), [(75, "float16"), (80, "float32")])
def test_before_ampere_and_in_float32_the_base_makes_the_columns(monkeypatch, capability, dtype):
    monkeypatch.setattr(mp.backend.gpu, "compute_capability", lambda: capability)
    monkeypatch.setattr(conv, "KERNELS", None)
    kernels = {"images_to_columns", "columns_to_images"}
    check_conv((2, 3, 5, 5), (4, 3, 3, 3), 2, 1, kernels=kernels, dtypes=(dtype,), mixed=False)


def test_images_beyond_32_bits_are_left_to_the_definition(monkeypatch):
    monkeypatch.setattr(conv, "LIMIT", 100)
    monkeypatch.setattr(conv, "KERNELS", None)
    check_conv((2, 3, 5, 5), (4, 3, 3, 3), 2, 1, mixed=False)


def test_an_empty_batch():
    w, b = randn(4, 3, 3, 3), randn(4)
    check_both_ways(lambda x, w, b: ops.conv2d(x, w, b, 2, 1), randn(0, 3, 5, 5), w, b)
    check_both_ways(lambda x, w: ops.conv_transpose2d(x, w), randn(0, 4, 5, 5), w)


@pytest.mark.parametrize(
    ("width", "sizes", "tile", "parts"),
    [
        (8, (512, 100_000, 1, 4608, 18), "128x128", 1),  # much work of every kind
        (8, (64, 100_000, 1, 576, 2), "64x128", 1),
        (8, (32, 100_000, 1, 1024, 4), "32x128", 1),
        (8, (3, 100_000, 1, 1024, 4), "16x128", 1),  # an image is made
        (8, (512, 1568, 1, 4608, 1), "64x64", 1),  # 7 x 7 pixels of 32 images: 200 small blocks, or 52 large ones
        (8, (512, 1568, 1, 4608, 18), "128x128", 5),  # 52 blocks of 5 parts: two for each of 132 multiprocessors
        (4, (512, 100_000, 1, 4608, 18), "128x128", 1),
        (1, (512, 100_000, 1, 4608, 18), "64x64", 1),  # the largest that a batch of 1 has
        (8, (4, 56 * 56 * 64, 32, 36, 1), "16x128", 1),  # 32 groups of 4 channels: ResNeXt-50
    ],
)
def test_which_tile(width, sizes, tile, parts):
    found, length, split = conv.schedule(width, *sizes, H100)
    assert (found, split) == (TILES[tile], parts)
    assert length % 32 == 0 and (split - 1) * length < sizes[3] <= split * length


def test_the_gpu_is_asked_how_many_multiprocessors_it_has(gpu):
    if not hasattr(gpu.xp, "launched"):
        pytest.skip("a GPU is what it is")
    assert conv.processors() == H100
    with device.playing("RTX 3050"):
        assert conv.processors() == 20
    assert conv.schedule(8, 512, 1568, 1, 4608, 1, 20)[0] != TILES["64x64"]  # the large tiles fill it
    assert all(t.stages + 16 * t.columns <= 99 << 10 for t in conv.TILES)  # all that GeForce has from Ampere on
    assert 64 < conv.schedule(8, 64, 9, 1, 50_176, 196, H100)[2] <= 196  # a small weight gradient is split over the GPU


@pytest.mark.parametrize(("n", "width"), [(1, 1), (2, 1), (4, 4), (8, 8), (12, 4), (20, 4), (24, 8)])
def test_how_much_is_read_at_once(n, width):
    import cupy

    halves = cupy.empty(64, "float16")
    assert conv.at_once(n, halves) == width
    assert conv.at_once(n, halves, halves[1:]) == 1
    assert conv.at_once(n, halves, halves[4:]) == min(width, 4)
    assert conv.at_once(n, cupy.empty(64, "float32")) == min(width, 4)
