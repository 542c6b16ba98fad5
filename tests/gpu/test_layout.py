"""Copies into another memory order: by a kernel where a matrix is transposed, else CuPy's own."""

import numpy as np
import pytest

from gpu.both_ways import launches, on_device
from oracle import rng
from tinymp.gpu.layout import contiguous, matching, same_layout

pytestmark = pytest.mark.usefixtures("gpu")


@pytest.mark.parametrize(
    ("shape", "dtype"),
    [((2, 3, 5, 7), "float32"), ((65, 1, 2, 64), "float16"), ((3, 130, 1, 1), "float16"), ((128, 2, 8, 4), "float32")],
)
def test_images_are_transposed(gpu, shape, dtype):
    host = rng(0).standard_normal(shape).astype(dtype)
    before = len(launches() or ())
    last = contiguous(gpu.xp, on_device(host).transpose(1, 2, 3, 0))
    assert last.flags.c_contiguous
    np.testing.assert_array_equal(last.get(), host.transpose(1, 2, 3, 0))
    again = matching(gpu.xp, last.transpose(3, 0, 1, 2), on_device(host))
    assert again.flags.c_contiguous
    assert launches() is None or launches()[before:] == ["transpose_matrix"] * 2
    np.testing.assert_array_equal(again.get(), host)
    assert contiguous(gpu.xp, again) is again


def test_other_orders_gaps_and_integers(gpu):
    host = rng(0).integers(-9, 9, (4, 3, 5, 6))
    x = on_device(host.astype("float16"))
    for view in (
        x.transpose(0, 2, 3, 1),  # images stay where they are
        x.transpose(3, 2, 1, 0),
        x[:, :, ::2].transpose(1, 2, 3, 0),
        gpu.xp.broadcast_to(x[:1], x.shape).transpose(1, 2, 3, 0),
        on_device(host).transpose(1, 2, 3, 0),
        x[:0].transpose(1, 2, 3, 0),
    ):
        before = len(launches() or ())
        y = contiguous(gpu.xp, view)
        assert not (launches() or ())[before:]
        assert y.flags.c_contiguous
        np.testing.assert_array_equal(y.get(), view.get())


def test_axes_of_length_1_may_lie_anywhere(gpu):
    x = on_device(rng(0).standard_normal((4, 3, 1, 1)))
    alike = x.reshape(4, 1, 1, 3).transpose(0, 3, 1, 2)
    assert alike.strides != x.strides
    assert same_layout(x, alike) and matching(gpu.xp, alike, x) is alike
    assert not same_layout(x, x.transpose(2, 3, 0, 1))
    assert not same_layout(x, gpu.xp.broadcast_to(x[:1], x.shape))
