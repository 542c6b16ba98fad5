"""Long sums: the error that `reduce` promises, over every axis and layout, and the sums that are built on it."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import tinymp as mp
from layouts import laid_out, layouts
from oracle import rng
from tinymp import ops
from tinymp.backend import cpu, devices
from tinymp.precision import reduce

pytestmark = pytest.mark.cpu
F16, F32, F64 = np.float16, np.float32, np.float64
BOUND = 2.0**-15  # of the sum of |x|, for the error of a sum: see `reduce`


def ulps(y, expected):
    """Distance of y and the rounded `expected` in FP16 numbers; both positive."""
    return np.abs(y.view(np.uint16).astype(int) - np.asarray(expected).astype(F16).view(np.uint16).astype(int)).max()


fuzz = settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture
def chains(monkeypatch):
    def set_to(chain):
        monkeypatch.setattr(devices, "CHAIN", chain)
        monkeypatch.setattr(devices, "SHORT", chain)

    return set_to


@fuzz
@given(layouts(), st.integers(2, 5), st.sampled_from(["sum", "mean", "cumsum"]), st.data())
def test_sums_in_blocks_over_any_strides(chains, layout, chain, how, data):
    chains(chain)
    x = laid_out(layout, "f4", 1)  # small integers: exact
    if how == "cumsum":
        axis = data.draw(st.integers(-x.ndim, x.ndim - 1))
        np.testing.assert_array_equal(cpu.reduce(x, axis, how), np.add.accumulate(x, axis), strict=True)
        return
    axes = tuple(data.draw(st.lists(st.integers(0, x.ndim - 1), unique=True)))
    axes = tuple(a - x.ndim if data.draw(st.booleans()) else a for a in axes)
    with np.errstate(all="ignore"):
        expected = np.add.reduce(x, axis=axes, keepdims=True)
        expected = expected / cpu.count(x, axes) if how == "mean" else expected
        np.testing.assert_array_equal(cpu.reduce(x, axes, how), expected, strict=True)


@fuzz
@given(st.lists(st.integers(0, 3), max_size=60), st.integers(2, 5), st.sampled_from(["i8", "u8", "u1"]))
def test_rows_added_in_blocks(chains, index, chain, dtype):
    chains(chain)
    index = np.array(index, dtype)
    rows = rng(0).integers(-9, 10, (len(index), 2, 3)).astype(F32)
    expected = np.zeros((5, 2, 3), F32)
    np.add.at(expected, index.astype(int), rows)
    np.testing.assert_array_equal(cpu.scatter_add_rows(5, index, rows), expected, strict=True)


@pytest.mark.parametrize("how", ["sum", "mean"])
@pytest.mark.parametrize(
    ("shape", "order", "axes"),
    [((300_000, 4), (0, 1), (0,)), ((300_000, 4), (1, 0), (1, 0)), ((300, 1000, 3), (0, 1, 2), (0, 1)),
     ((300, 3, 1000), (0, 1, 2), (0, 2)), ((2000, 300, 3), (0, 2, 1), (0, 1))],
)  # fmt: skip
def test_the_error_of_a_long_sum(shape, order, axes, how):
    x = np.ascontiguousarray((rng(1).random(shape) * 0.2).astype(F16).transpose(order)).transpose(np.argsort(order))
    for view in (x, x[::-1], np.repeat(x, 2, -1)[..., ::2]):
        expected = getattr(np, how)(view.astype(F64), axes, keepdims=True)
        error = np.abs(reduce(view, axes, how) - expected) / expected
        assert (error <= 1e-6).all()  # what PyTorch reaches on these; all terms are positive


def test_four_million_tenths_repeated():
    x = np.broadcast_to(np.full((1, 2), 0.1, F32), (4_000_000, 2))  # the gradient of a sum
    column = np.broadcast_to(np.full((4, 1), 0.1, F32), (4, 1_000_000))
    twice = np.broadcast_to(np.full((1_000_000, 1), 0.1, F32), (1_000_000, 2))  # NumPy adds such rows one by one
    for view, axis in ((x, 0), (x.T, 1), (x, (0, 1)), (column, 1), (column.T, 0), (twice, 0)):
        y = reduce(view, axis, "mean")
        assert (np.abs(y / F64(F32(0.1)) - 1) <= 1e-6).all()


@pytest.mark.parametrize("dtype", [F16, F32])
def test_statistics_and_gradients_over_half_a_million_rows(dtype):
    x, dy = (rng(0).random((500_000, 2)) * 0.5 + 0.5).astype(dtype), np.full((500_000, 2), 0.1, dtype)
    mean, var = (mp.tensor(np.zeros(2, F32)) for _ in range(2))
    w, b, c = (mp.tensor(np.ones(2, dtype), requires_grad=True) for _ in range(3))
    ops.batch_norm(mp.tensor(x), mean, var, w, b, training=True, momentum=1.0).backward(dy)
    ops.linear(mp.tensor(x[:, :1]), mp.tensor(np.zeros((2, 1), dtype)), c).backward(dy)
    wide, expected = x.astype(F64), 500_000 * F64(dtype(0.1))
    assert (np.abs(mean.numpy() / wide.mean(0) - 1) <= 1e-6).all()
    assert (np.abs(var.numpy() / wide.var(0, ddof=1) - 1) <= 1e-6).all()
    for bias in (b, c):
        g = bias.grad_array
        assert ulps(g, expected) <= 1 if dtype == F16 else (np.abs(g / expected - 1) <= 1e-6).all()
    terms = np.abs(0.1 * (wide - wide.mean(0))).sum(0) / wide.std(0)  # those of dw cancel: it is 0 but for their error
    assert (np.abs(w.grad_array) <= BOUND * terms).all()
