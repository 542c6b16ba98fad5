"""Columns of a convolution, which FP32 and GPUs before Ampere need, and windows of one pixel, which need none."""

import numpy as np
import pytest

from gpu.both_ways import check_both_ways, launches, on_device
from oracle import randn
from tinymp import ops
from tinymp.gpu.columns import one_pixel
from tinymp.ops import conv

GEOMETRIES = [
    conv.Geometry((3, 3)),
    conv.Geometry((1, 1)),
    conv.Geometry((1, 1), stride=(2, 2)),
    conv.Geometry((3, 2), (2, 1), ((1, 0), (0, 2)), (1, 2)),
    conv.Geometry((5, 5), (3, 2), ((2, 2), (4, 1))),
    conv.Geometry((3, 3), (1, 1), ((1, 1), (1, 1)), (2, 2), groups=2),
]


@pytest.mark.parametrize("g", GEOMETRIES)
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_columns_and_their_sums_have_the_bits_of_the_definition(g, dtype):
    x = randn(4, 9, 8, 3).astype(dtype)
    host = conv.columns(x, g)
    device = conv.columns(on_device(x), g)
    assert device.shape == host.shape
    np.testing.assert_array_equal(device.get(), host)
    wide = randn(*host.shape).astype("float32")
    host = conv.fold(wide, x.shape, g, like=x)
    device = conv.fold(on_device(wide), x.shape, g, like=on_device(x))
    np.testing.assert_array_equal(device.get(), host)


@pytest.mark.parametrize(
    ("groups", "options"), [(1, {}), (2, {"stride": 2, "padding": 1}), (6, {"dilation": 2, "padding": (2, 1)})], ids=str
)
def test_convolutions(groups, options):
    x, b, sizes = randn(2, 6, 7, 5), randn(6), {"length": 60, "grad_length": 800}
    w = randn(6, 6 // groups, 3, 3)
    for op in (ops.conv2d, ops.conv_transpose2d):
        check_both_ways(lambda x, w, b, op=op: op(x, w, b, groups=groups, **options), x, w, b, **sizes)


@pytest.mark.parametrize("groups", [1, 3])
def test_a_window_of_one_pixel_needs_no_columns(groups):
    """Each gradient is one product, whose result is rounded once. A shifted window is another case."""
    x, b, sizes = randn(2, 6, 4, 5), randn(6), {"length": 8, "grad_length": 80}
    for op in (ops.conv2d, ops.conv_transpose2d):
        before = len(launches() or ())
        check_both_ways(lambda x, w, b, op=op: op(x, w, b, groups=groups), x, randn(6, 6 // groups, 1, 1), b, **sizes)
        ours = "images_to_columns", "columns_to_images", "correlate", "weight_gradient"
        assert not [name for name in (launches() or ())[before:] if name.startswith(ours)]
    shifted = conv.Geometry((1, 1), pads=((1, -1), (0, 0)))
    assert not one_pixel(shifted, (4, 5)) and shifted.output(4, 5) == (4, 5)
