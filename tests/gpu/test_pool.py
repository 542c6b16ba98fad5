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


@pytest.mark.parametrize("chwn", [False, True])
@pytest.mark.parametrize(("shape", "options"), [(shape, options) for shape, *options in WINDOWS])
def test_max_pool2d(shape, options, chwn):
    op = lambda x: ops.max_pool2d(x, *options, return_indices=True)  # noqa: E731
    check_both_ways(op, distinct(*shape, step=0.125), kernels=MAX, length=9, chwn=chwn, mixed=chwn)


def test_other_shapes_and_parts_of_larger_images():
    """Without a batch, none, several blocks along a row, places that fit no byte; what has gaps is copied."""
    pool = lambda x: ops.max_pool2d(x, 2)  # noqa: E731
    check_both_ways(pool, randn(3, 6, 6), kernels=MAX)
    check_both_ways(pool, randn(0, 3, 4, 6))
    check_both_ways(pool, randn(240, 1, 4, 20), kernels=MAX, chwn=True, mixed=False)
    check_both_ways(lambda x: ops.max_pool2d(x, (17, 16), 3, (2, 1)), distinct(1, 1, 19, 20, step=0.0625), length=40)
    for part in ((slice(1, 9),), (slice(None), slice(1, 3)), (..., slice(1, 5))):
        check_both_ways(lambda x, part=part: pool(x[part]), randn(9, 3, 4, 6), kernels=MAX, length=4, chwn=True)


def test_max_pool2d_with_ties_infinities_and_nan():
    """Values and places, bit for bit, over small integers, both zeros, infinities and nan."""
    values = np.array([-np.inf, -np.inf, -1, -0.0, 0.0, 1, 1, np.inf, np.nan])
    x = values[rng().integers(0, len(values), (8, 4, 6, 6))]
    x[:, 0] = -np.inf
    for images, dtype, *options in ((3, "float16", 2, 2, 0), (8, "float32", 3, 1, 1), (8, "float16", 3, 2, 1)):
        one = x[:images].astype(dtype)
        host, device = (ops.max_pool2d(mp.Tensor(a), *options, return_indices=True) for a in (one, on_device(one)))
        np.testing.assert_array_equal(device[0].numpy(), host[0].numpy())
        np.testing.assert_array_equal(device[1].numpy(), host[1].numpy())
    first = mp.Tensor(on_device(np.array([[[[1, 2], [4, 3]]]], "float16")), requires_grad=True)
    ops.max_pool2d(first, 2).backward(on_device(np.full((1, 1, 1, 1), np.inf, "float16")))
    np.testing.assert_array_equal(first.grad.numpy()[0, 0], [[0, 0], [np.inf, 0]])


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
