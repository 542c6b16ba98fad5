"""Copies into another memory order: by a kernel where a matrix is transposed, else CuPy's own."""

import numpy as np
import pytest

from gpu.both_ways import channels_last, launches, on_device
from oracle import rng
from tinymp.gpu.layout import contiguous, matching, same_layout

pytestmark = pytest.mark.usefixtures("gpu")


def launched(work):
    before = len(launches() or ())
    result = work()
    return result, (launches() or ())[before:]


def expect(names, *kernels):
    assert launches() is None or list(names) == list(kernels)


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("shape", [(2, 3, 5, 7), (65, 1, 2, 64), (3, 130, 1, 1), (128, 2, 8, 4)], ids=str)
def test_images_are_transposed(gpu, shape, dtype):
    host = rng(0).standard_normal(shape).astype(dtype)
    last, names = launched(lambda: contiguous(gpu.xp, on_device(host).transpose(1, 2, 3, 0)))
    expect(names, "transpose_matrix")
    assert last.flags.c_contiguous
    np.testing.assert_array_equal(last.get(), host.transpose(1, 2, 3, 0))
    again, names = launched(lambda: contiguous(gpu.xp, last.transpose(3, 0, 1, 2)))
    expect(names, "transpose_matrix")
    assert again.flags.c_contiguous
    np.testing.assert_array_equal(again.get(), host)
    assert contiguous(gpu.xp, again) is again


def test_the_order_of_another_array(gpu):
    host = rng(0).standard_normal((4, 3, 5, 7)).astype("float16")
    for x, like in ((host, channels_last(host)), (channels_last(host), host)):
        like = on_device(like)
        y, names = launched(lambda x=x, like=like: matching(gpu.xp, on_device(x), like))
        expect(names, "transpose_matrix")
        assert y.strides == like.strides
        np.testing.assert_array_equal(y.get(), host)


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
        y, names = launched(lambda view=view: contiguous(gpu.xp, view))
        expect(names)
        assert y.flags.c_contiguous
        np.testing.assert_array_equal(y.get(), view.get())


def test_axes_of_length_1_may_lie_anywhere(gpu):
    x = on_device(rng(0).standard_normal((4, 3, 1, 1)))
    alike = x.reshape(4, 1, 1, 3).transpose(0, 3, 1, 2)
    assert alike.strides != x.strides
    assert same_layout(x, alike) and matching(gpu.xp, alike, x) is alike
    assert not same_layout(x, x.transpose(2, 3, 0, 1))
    assert not same_layout(x, gpu.xp.broadcast_to(x[:1], x.shape))
