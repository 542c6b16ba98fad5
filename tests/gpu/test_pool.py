"""Max pooling in CUDA against its definitions."""

import numpy as np
import pytest

import tinymp as mp
from gpu.both_ways import channels_last, check_both_ways, on_device
from oracle import distinct, randn, rng
from tinymp import ops

pytestmark = pytest.mark.usefixtures("gpu")

MAX = {"max_pool2d_forward", "max_pool2d_backward"}

# shape, kernel, stride, padding, dilation, ceil_mode. Images: 1, a pack (8 halves, 4 floats), two, and beside them
WINDOWS = [
    ((8, 3, 6, 8), (2, 2), (2, 2), (0, 0), (1, 1), False),
    ((9, 2, 7, 5), (3, 2), (2, 1), (1, 1), (1, 1), False),
    ((16, 2, 7, 7), (3, 3), (2, 2), (0, 0), (1, 1), True),
    ((4, 2, 6, 8), (3, 3), (2, 3), (1, 0), (1, 1), True),
    ((3, 1, 8, 9), (2, 3), (2, 2), (1, 1), (2, 2), False),
    ((8, 1, 9, 8), (3, 2), (1, 1), (1, 1), (2, 3), False),
    ((8, 2, 7, 7), (2, 2), (3, 4), (1, 0), (1, 1), False),  # places that no window sees
    ((8, 1, 1, 5), (2, 2), (1, 1), (1, 1), (2, 1), False),  # windows of padding alone
    ((1, 2, 5, 40), (3, 3), (1, 1), (1, 1), (1, 1), False),
    ((1, 1, 1, 1), (1, 1), (1, 1), (0, 0), (1, 1), False),
]
layouts = pytest.mark.parametrize("chwn", [False, True], ids=["nchw", "chwn"])


@layouts
@pytest.mark.parametrize(("shape", "kernel", "stride", "padding", "dilation", "ceil"), WINDOWS)
def test_max_pool2d(shape, kernel, stride, padding, dilation, ceil, chwn):
    check_both_ways(
        lambda x: ops.max_pool2d(x, kernel, stride, padding, dilation, ceil, return_indices=True),
        distinct(*shape, step=0.125),
        kernels=MAX,
        length=9,
        chwn=chwn,
    )


def test_max_pool2d_of_many_images():
    """Several blocks along a row."""
    check_both_ways(lambda x: ops.max_pool2d(x, 2), randn(240, 1, 4, 20), kernels=MAX, chwn=True, mixed=False)


def test_places_that_fit_no_byte_are_left_to_the_definition():
    check_both_ways(lambda x: ops.max_pool2d(x, (17, 16), 3, (2, 1)), distinct(1, 1, 19, 20, step=0.0625), length=40)


@pytest.mark.parametrize("images", [3, 8])
def test_max_pool2d_with_ties_infinities_and_nan(images):
    """Values and places, bit for bit, over small integers, both zeros, infinities and nan."""
    values = np.array([-np.inf, -np.inf, -1, -0.0, 0.0, 1, 1, np.inf, np.nan])
    x = values[rng().integers(0, len(values), (images, 4, 6, 6))]
    x[:, 0] = -np.inf
    for dtype in ("float16", "float32"):
        for kernel, stride, padding in ((2, 2, 0), (3, 1, 1), (3, 2, 1)):
            host, device = (
                ops.max_pool2d(mp.Tensor(a), kernel, stride, padding, return_indices=True)
                for a in (x.astype(dtype), on_device(x.astype(dtype)))
            )
            np.testing.assert_array_equal(device[0].numpy(), host[0].numpy())
            np.testing.assert_array_equal(device[1].numpy(), host[1].numpy())


def test_an_infinite_gradient_goes_to_its_place_only():
    for dtype in ("float16", "float32"):
        x = mp.Tensor(on_device(np.array([[[[1, 2], [4, 3]]]], dtype)), requires_grad=True)
        ops.max_pool2d(x, 2).backward(on_device(np.full((1, 1, 1, 1), np.inf, dtype)))
        np.testing.assert_array_equal(x.grad.numpy()[0, 0], [[0, 0], [np.inf, 0]])


def test_overlapping_gradients_add_up_in_fp32():
    """1025 windows whose gradient of 2 all go to one element: FP16 would stall at 2048."""
    x = np.zeros((1, 1, 1, 1025 + 1024), "float16")
    x[..., 1024] = 1
    x = mp.Tensor(on_device(x), requires_grad=True)
    y = ops.max_pool2d(x, (1, 1025), 1)
    y.backward(on_device(np.full(y.shape, 2, "float16")))
    assert x.grad.numpy()[0, 0, 0, 1024] == 2050


def test_results_lie_as_convolutions_write_them():
    x = mp.Tensor(on_device(channels_last(randn(8, 3, 4, 4).astype("float16"))), requires_grad=True)
    y = ops.max_pool2d(x, 2)
    y.backward(y.array)
    assert y.array.transpose(1, 2, 3, 0).flags.c_contiguous
    assert x.grad_array.transpose(1, 2, 3, 0).flags.c_contiguous


def test_without_batch():
    check_both_ways(lambda x: ops.max_pool2d(x, 2), randn(3, 6, 6), kernels=MAX)


@pytest.mark.parametrize("part", [(slice(1, 9),), (slice(None), slice(1, 3)), (..., slice(1, 5))])
def test_parts_of_a_larger_image(part):
    """What has gaps is copied."""
    check_both_ways(lambda x: ops.max_pool2d(x[part], 2), randn(9, 3, 4, 6), kernels=MAX, length=4, chwn=True)


def test_images_between_multiples_of_16_bytes():
    """A whole pack of images, but memory that starts one element late: x's, then dy's."""

    def images(flat):
        return flat.reshape(2, 4, 20, 8).permute(3, 0, 1, 2)

    def flat(images):
        return images.permute(1, 2, 3, 0).reshape(-1)

    x = randn(2 * 4 * 20 * 8 + 1)
    check_both_ways(lambda x: ops.max_pool2d(images(x[1:]), 2), x, kernels=MAX, length=4)
    check_both_ways(lambda x: ops.cat([x[:1], flat(ops.max_pool2d(images(x[:-1]), 2))]), x, kernels=MAX, length=4)


def test_more_rows_than_a_grid_has():
    """A grid has 65 535 blocks along its second axis."""
    x = randn(1, 65537, 1, 1).astype("float16")
    y = ops.max_pool2d(mp.Tensor(on_device(x)), 1)
    np.testing.assert_array_equal(y.numpy(), x)


def test_an_empty_batch():
    check_both_ways(lambda x: ops.max_pool2d(x, 2), randn(0, 3, 4, 6))
