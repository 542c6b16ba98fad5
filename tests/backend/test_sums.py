"""The sum of several gradients of one tensor in one launch, and that backward passes make no other."""

import numpy as np
import pytest

import tinymp as mp
from oracle import rng
from tinymp import ops, precision
from twins import channels_last, launches, on_device

pytestmark = pytest.mark.usefixtures("gpu")

F16, F32 = np.dtype(np.float16), np.dtype(np.float32)


def images(seed, dtype, shape=(2, 3, 5, 7)):
    return (100 * rng(seed).standard_normal(shape)).astype(dtype)


def expected(parts, dtype):
    total = parts[0].astype(F32)
    for x in parts[1:]:
        total = total + x.astype(F32)
    return total.astype(dtype)


@pytest.mark.parametrize("shape", [(), (0, 3), (5, 7), (2, 3, 4, 8)], ids=str)
@pytest.mark.parametrize(
    ("dtypes", "dtype"),
    [
        ((F16, F16), F16),
        ((F16, F16), F32),
        ((F16, F16, F16), F32),
        ((F32, F16), F32),
        ((F32, F16), F16),
        ((F32,), F16),
        ((F32, F32), F32),
        ((F16, F32), F32),
    ],
)
def test_sums(gpu, shape, dtypes, dtype):
    parts = [images(i, d, shape) for i, d in enumerate(dtypes)]
    y = gpu.add_gradients([on_device(x) for x in parts], dtype)
    assert y.dtype == dtype
    np.testing.assert_array_equal(y.get(), expected(parts, dtype))


def test_extremes_and_neighbours_that_are_not_aligned(gpu):
    a = np.array([0, -0.0, -0.0, 65504, -65504, np.inf, np.inf, np.nan, 1, 6e-8] * 3, F16)
    b = np.array([0, 0.0, -0.0, 65504, -16, 1, -np.inf, 1, 2**-11, 6e-8] * 3, F16)
    with np.errstate(all="ignore"):
        right = expected([a, b], F16)
    for first in (0, 1):
        y = gpu.add_gradients([on_device(a)[first:], on_device(b)[first:]], F16).get()
        np.testing.assert_array_equal(y, right[first:])
        numbers = ~np.isnan(y)
        np.testing.assert_array_equal(np.signbit(y[numbers]), np.signbit(right[first:][numbers]))  # of zeros, too


def test_the_memory_order_is_that_of_the_first_dense_one(gpu):
    a, b = images(0, F16), images(1, F16)
    for arrays in ([on_device(channels_last(a)), on_device(b)], [on_device(b), on_device(channels_last(a))]):
        y = gpu.add_gradients(arrays, F16)
        assert y.strides == arrays[0].strides
        np.testing.assert_array_equal(y.get(), expected([a, b], F16))
    view = gpu.xp.broadcast_to(on_device(a[:, :, :1, :1]), a.shape)
    y = gpu.add_gradients([view, on_device(channels_last(b))], F16)
    assert y.strides == on_device(channels_last(b)).strides
    np.testing.assert_array_equal(y.get(), expected([np.broadcast_to(a[:, :, :1, :1], a.shape), b], F16))
    np.testing.assert_array_equal(gpu.add_gradients([view, view], F32).get(), expected([view.get()] * 2, F32))


@pytest.mark.parametrize(
    ("uses", "kernels"),
    [(2, ["add_gradients"]), (3, ["add_gradients"] * 2), (5, ["add_gradients"] * 4)],
)
def test_gradients_meet_in_one_launch(uses, kernels):
    """Two FP16 gradients take as much memory as their sum in FP32: they wait, and are rounded as they are added."""
    dys = [images(i, F16) for i in range(uses)]
    x = mp.tensor(on_device(channels_last(images(9, F16))), requires_grad=True)
    inner = x.abs()  # its gradient is summed before it travels on
    before = len(launches() or ())
    products = [ops.reshape(inner, -1) * mp.tensor(on_device(dy.reshape(-1))) for dy in dys]
    sum((p.sum() for p in products[1:]), products[0].sum()).backward()
    if launches() is not None:
        assert [name for name in launches()[before:] if name == "add_gradients"] == kernels
    sign = np.sign(images(9, F16)).astype(F32)
    right = sign * expected(dys[::-1], F16).astype(F32)
    np.testing.assert_array_equal(x.grad.get(), right.astype(F16))


def test_of_several_backward_calls():
    dys = [images(i, F16, (11,)) for i in range(3)]
    x = mp.tensor(on_device(images(9, F16, (11,))), requires_grad=True)
    for dy in dys:
        (x * mp.tensor(on_device(dy))).sum().backward()
    assert x.grad.dtype == F32
    np.testing.assert_array_equal(x.grad.get(), expected(dys, F32))


def test_other_arithmetic_is_left_to_the_definition():
    a, b = on_device(images(0, "float64")), on_device(images(1, "float64"))
    before = list(launches() or ())
    np.testing.assert_array_equal(precision.accumulate([a, b], a).get(), a.get() + b.get())
    with mp.use(mp.STOCHASTIC_ROUNDING):
        halves = [on_device(np.full(4000, x, F16)) for x in (2048, 1)]
        y = precision.accumulate(halves, halves[0]).get()
    assert set(y.tolist()) == {2048, 2050}
    assert [name for name in launches() or () if name not in before and name == "add_gradients"] == []
