"""Sums by the GPU's own kernels: along every group of neighbouring axes, in the order in which arrays lie in memory."""

from inspect import unwrap
from itertools import product

import numpy as np
import pytest

import tinymp as mp
from gpu.both_ways import on_device
from oracle import rng
from tinymp.backend.gpu import LONG
from tinymp.fast_path import find

GPU = mp.backend.gpu
CASES = {  # shape -> the axes that are summed
    "total": [((1,), 0), ((7,), 0), ((40_001,), 0), ((3, 5, 7), (0, 1, 2)), ((2, 3, 20_000), (0, 1, 2))],
    "rows": [((1000, 3), 1), ((5, 300), 1), ((3, 5000), -1), ((2, 40_000), 1), ((4, 3, 8, 8), (2, 3)), ((5, 1), 1)],
    "columns": [((300, 5), 0), ((7, 64), 0), ((5000, 17), 0), ((2000, 1, 24), (0, 1)), ((40_000, 8), 0)],
    "between": [((4, 3, 8, 8), (0, 2, 3)), ((2, 70, 5), (0, 2)), ((900, 2, 33), (0, 2)), ((3, 2, 30_000), (0, 2))],
    "several kept": [((6, 3, 4), 0), ((2, 3, 4, 5), (0, 3)), ((3, 4), ())],
}


def taken(x, axis):
    """True if a kernel sums x."""
    return find(unwrap(type(GPU).reduce), "gpu")(GPU, x, axis, "sum") is not NotImplemented


@pytest.mark.parametrize("kind", CASES)
def test_exact_sums(kind):
    for dtype, (shape, axis) in product(("float16", "float32"), CASES[kind]):
        x = (rng(0).integers(-8, 9, shape) / 4).astype(dtype)  # sums of them are exact
        on = on_device(x)
        assert taken(on, axis)
        got = GPU.reduce(on, axis, "sum")
        expected = x.sum(axis, "f8", keepdims=True)
        assert (got.dtype, got.shape) == ("float32", expected.shape)
        np.testing.assert_array_equal(got.get(), expected, err_msg=f"{shape} over {axis}")
        count = x.size // max(expected.size, 1)
        np.testing.assert_allclose(GPU.reduce(on, axis, "mean").get(), expected / count, rtol=2**-24)


def test_orders_of_memory_and_addresses():
    x = (rng(1).integers(-8, 9, (3, 4, 5, 24)) / 4).astype("float16")
    for order in ((0, 1, 2, 3), (3, 0, 1, 2), (1, 2, 3, 0)):
        lies = on_device(x.transpose(order)).transpose(np.argsort(order).tolist())
        for axes in ((0, 2, 3), (0,), (1, 2, 3), (1, 2), (0, 3)):
            np.testing.assert_array_equal(GPU.reduce(lies, axes, "sum").get(), x.sum(axes, "f8", keepdims=True))
    flat = on_device(x.ravel())
    for start, axis in product((1, 3, 8), (0, 1, (0, 1))):  # not at multiples of 16 bytes
        part = flat[start : start + 10 * 33].reshape(10, 33)
        np.testing.assert_array_equal(GPU.reduce(part, axis, "sum").get(), part.get().sum(axis, "f8", keepdims=True))


def test_others_are_left_to_cupy():
    gaps = on_device(np.ones((6, 8), "float32"))[:, ::2]
    long = on_device(np.abs(rng(3).standard_normal((2, 3 * LONG + 5))))  # FP64
    for x in (gaps, long, on_device(np.ones((3, 4), "int64"))):
        for axis in (0, 1, (0, 1)):
            assert not taken(x, axis)
            np.testing.assert_allclose(GPU.reduce(x, axis, "sum").get(), x.get().sum(axis, keepdims=True), rtol=1e-5)
    assert GPU.reduce(on_device(np.ones((0, 4), "float32")), 0, "sum").get().tolist() == [[0] * 4]
    special = np.ones((4, 64), "float16")
    special[0, 3], special[1, 5], special[2, 7], special[3, 7] = np.inf, np.nan, np.inf, -np.inf
    got = GPU.reduce(on_device(special), 0, "sum").get()[0]
    assert got[3] == np.inf and np.isnan(got[[5, 7]]).all() and (np.delete(got, [3, 5, 7]) == 4).all()


@pytest.mark.parametrize(
    ("shape", "axis"), [((2_000_000,), 0), ((200_000, 8), 0), ((2, 400_000), 1), ((8, 3, 50_000), (0, 2))]
)
def test_long_sums_lose_nothing(shape, axis):
    """0.1 added up one by one is 4 % off after four million."""
    x = np.full(shape, 0.1, "float32")
    exact = x.sum(axis, "f8", keepdims=True)
    np.testing.assert_allclose(GPU.reduce(on_device(x), axis, "sum").get(), exact, rtol=1e-6)
