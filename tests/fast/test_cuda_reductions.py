"""Reductions on the device against those on the CPU: every pattern of axes, memory order, width and number of stages.

Both sum n FP32 terms, in different orders: |difference| <= 2 n u sum|x| with u = 2^-24. Max and min are exact.
"""

import itertools

import numpy as np
import pytest

from fast.both_ways import launches, on_device
from tinymp.backend import cpu
from tinymp.fast.cuda import reductions

pytestmark = pytest.mark.usefixtures("gpu")
HOWS = ("sum", "mean", "max", "min")


def random(shape, dtype, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def check(x, axis, how, device=None):
    """reduce on the device (of `device`, or x as it lies in memory) against the CPU."""
    expected = cpu.reduce(x, axis, how)
    y = reductions.reduce(on_device(x) if device is None else device, axis, how)
    assert y.shape == expected.shape
    assert y.dtype == np.float32
    if how in ("max", "min"):
        np.testing.assert_array_equal(y.get(), expected)
        return
    n = cpu.count(x, axis)
    size = np.abs(x.astype(np.float64)).sum(axis=axis, keepdims=True) / (n if how == "mean" else 1)
    assert (np.abs(y.get() - expected) <= 2 * (n + 2) * 2.0**-24 * size).all()


def in_order(x, order):
    """x with its memory in this order of axes."""
    return np.ascontiguousarray(x.transpose(order)).transpose(np.argsort(order))


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("shape", [(1,), (5,), (7, 9), (16, 8), (3, 5, 8), (8, 1, 3)])
def test_all_axes_and_memory_orders(dtype, shape):
    x = random(shape, dtype)
    axes = range(len(shape))
    for order in itertools.permutations(axes):
        for n in range(len(shape) + 1):
            for some in itertools.combinations(axes, n):
                check(in_order(x, order), some, HOWS[(n + order[0]) % 4])


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_four_axes(dtype, how):
    x = random((3, 4, 2, 8), dtype)
    for n in range(5):
        for some in itertools.combinations(range(4), n):
            check(x, some, how)
            check(in_order(x, (1, 2, 3, 0)), some, how)  # C, H, W, N


def test_axes_that_alternate_five_times():
    x = random((2, 3, 2, 3, 2), "float16")
    for axes in ((0, 2, 4), (1, 3)):
        check(x, axes, "sum")
        check(in_order(x, (4, 3, 2, 1, 0)), axes, "mean")


def test_an_axis_may_be_an_integer_and_negative():
    x = random((4, 6), "float16")
    check(x, -1, "sum")
    check(x, 0, "max")
    check(x, (-2, 1), "mean")


# What decides between lanes, a block and several blocks for a sum is their number and length: `kernels` is how many
# launches that takes.
@pytest.mark.parametrize("how", ["mean", "min"])
@pytest.mark.parametrize(
    ("dtype", "shape", "axis", "kernels"),
    [
        ("float16", (300, 3), 1, ["reduce_rows"]),  # 4 lanes
        ("float16", (5, 8 * 31), 1, ["reduce_rows"]),  # a warp
        ("float32", (3, 4 * 257), 1, ["reduce_rows"]),  # a block, and aligned rows
        ("float16", (3, 1999), 1, ["reduce_rows"]),  # a block, element by element
        ("float16", (2, 8 * 2100), 1, ["reduce_rows", "reduce_rows"]),  # several blocks
        ("float32", (4100,), 0, ["reduce_rows"]),
        ("float32", (8199,), 0, ["reduce_rows", "reduce_rows"]),
        ("float16", (3, 700, 7), (0, 2), ["reduce_rows"]),
        ("float16", (70, 2, 65), (0, 2), ["reduce_rows", "reduce_rows"]),  # the walk jumps from row to row
        ("float16", (4, 2000), 0, ["reduce_columns"]),  # all threads side by side
        ("float16", (140, 72), 0, ["reduce_columns", "reduce_rows"]),
        ("float16", (37, 9), 0, ["reduce_columns"]),
        ("float32", (3000, 3), 0, ["reduce_columns", "reduce_rows"]),  # a bias gradient
        ("float16", (50, 5, 60, 8), (0, 2), ["reduce_columns", "reduce_rows"]),
    ],
)
def test_short_and_long_sums(dtype, shape, axis, kernels, how):
    x = random(shape, dtype)
    before = len(launches() or ())
    check(x, axis, how)
    if launches() is not None:
        assert launches()[before:] == kernels


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("axis", [0, 1])
def test_unaligned_starts_and_gaps(dtype, axis):
    x = random(1 + 24 * 16, dtype)
    check(x[1:].reshape(24, 16), axis, "sum", on_device(x)[1:].reshape(24, 16))
    x = random((24, 16), dtype)
    check(x[::2], axis, "sum", on_device(x)[::2])
    check(x[:, 1:], axis, "max", on_device(x)[:, 1:])
    broadcast = np.broadcast_to(x[:1], (5, 16))
    check(broadcast, axis, "mean", on_device(broadcast[:1]).repeat(5, axis=0))


@pytest.mark.parametrize("shape", [(40, 24), (2, 700), (700, 3)])
def test_nan_and_infinity(shape):
    x = random(shape, "float16")
    x[1, 0], x[1, 1], x[-1, -1] = np.nan, np.inf, -np.inf
    for axis, how in itertools.product((0, 1, (0, 1)), HOWS):
        with np.errstate(all="ignore"):
            expected = cpu.reduce(x, axis, how)
        y = reductions.reduce(on_device(x), axis, how).get()
        np.testing.assert_array_equal(np.isnan(y), np.isnan(expected))
        np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-4)


def test_over_nothing():
    import cupy

    x = cupy.empty((0, 3), np.float16)
    assert (reductions.reduce(x, 0, "sum").get() == np.zeros((1, 3))).all()
    assert np.isnan(reductions.reduce(x, (0, 1), "mean").get()).all()
    assert reductions.reduce(x, 1, "mean").shape == (0, 1)
    assert reductions.reduce(x, 1, "max").shape == (0, 1)
    with pytest.raises(ValueError, match="max of no elements"):
        reductions.reduce(x, 0, "max")


@pytest.mark.parametrize("axis", [0, -1, ()])
@pytest.mark.parametrize("how", ["sum", "mean", "max"])
def test_without_axes(how, axis):
    x = np.array(1.5, "float16")
    y = reductions.reduce(on_device(x), axis, how).get()
    assert (y, y.shape, y.dtype) == (1.5, (), np.float32)


def test_over_no_axes_it_is_a_copy():
    x = on_device(random((2, 3), "float32"))
    y = reductions.reduce(x, (), "sum")
    y += 1
    assert (x.get() + 1 == y.get()).all()


def test_the_accumulator_is_fp32():
    x = np.full((10000, 1), 0.1, np.float16)  # NumPy's FP16 sum over axis 0 stalls at 256
    for axis in (0, (0, 1)):
        assert abs(reductions.reduce(on_device(x), axis, "sum").get().item() - 999.755859375) < 1e-2


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("shape", [(2, 400_000), (200_000, 8), (200_000, 1, 3)])
def test_a_thread_adds_in_blocks(dtype, shape, monkeypatch):
    """Where all blocks are busy with other sums, each thread has hundreds of terms: one after the other, their
    roundings would all fall to one side. NumPy sums these in FP64.
    """
    monkeypatch.setattr(reductions, "ENOUGH", 1)
    x = np.full(shape, 0.1, dtype)
    axis = int(np.argmax(shape))
    y = reductions.reduce(on_device(x), axis, "mean").get()
    assert (np.abs(y / float(x.flat[0]) - 1) <= 1e-6).all()
