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
from tinymp.precision import gemm, reduce, scatter_add

pytestmark = pytest.mark.cpu
F16, F32, F64 = np.float16, np.float32, np.float64
U = 2.0**-24
BOUND = 2.0**-15  # of the sum of |x|, for the error of a sum: see `reduce`


def ulps(y, expected):
    """How many FP16 numbers lie between y and the rounded `expected`; both positive."""
    return np.abs(y.view(np.uint16).astype(int) - np.asarray(expected).astype(F16).view(np.uint16).astype(int)).max()


# ------------------------------------------------------------------------------- the sums themselves, with tiny chains

fuzz = settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture
def chains(monkeypatch):
    def set_to(chain):
        monkeypatch.setattr(devices, "CHAIN", chain)
        monkeypatch.setattr(devices, "SHORT", chain)

    return set_to


@fuzz
@given(layouts(), st.integers(2, 5), st.sampled_from(["sum", "mean"]), st.data())
def test_sums_in_blocks_over_any_strides(chains, layout, chain, how, data):
    chains(chain)
    x = laid_out(layout, "f4", 1)
    axes = tuple(data.draw(st.lists(st.integers(0, x.ndim - 1), unique=True)))
    axes = tuple(a - x.ndim if data.draw(st.booleans()) else a for a in axes)
    with np.errstate(all="ignore"):
        expected = np.add.reduce(x, axis=axes, keepdims=True)  # exact: small integers
        expected = expected / cpu.count(x, axes) if how == "mean" else expected
        np.testing.assert_array_equal(cpu.reduce(x, axes, how), expected, strict=True)


@fuzz
@given(layouts(), st.integers(2, 5), st.data())
def test_running_sums_in_blocks_over_any_strides(chains, layout, chain, data):
    chains(chain)
    x = laid_out(layout, "f4", 1)
    axis = data.draw(st.integers(-x.ndim, x.ndim - 1))
    np.testing.assert_array_equal(cpu.reduce(x, axis, "cumsum"), np.add.accumulate(x, axis), strict=True)


@fuzz
@given(st.lists(st.integers(0, 3), max_size=60), st.integers(2, 5), st.sampled_from(["i8", "u8", "u1"]))
def test_rows_added_in_blocks(chains, index, chain, dtype):
    chains(chain)
    index = np.array(index, dtype)
    rows = rng(0).integers(-9, 10, (len(index), 2, 3)).astype(F32)
    expected = np.zeros((5, 2, 3), F32)
    np.add.at(expected, index.astype(int), rows)
    np.testing.assert_array_equal(cpu.scatter_add_rows(5, index, rows), expected, strict=True)


# ------------------------------------------------------------------------------------------ what the primitive promises


@pytest.mark.parametrize("how", ["sum", "mean"])
@pytest.mark.parametrize(
    ("shape", "order", "axes"),
    [
        ((1_000_000, 4), (0, 1), (0,)),
        ((1_000_000, 4), (1, 0), (1, 0)),
        ((300, 3000, 5), (0, 1, 2), (0, 1)),
        ((300, 5, 3000), (0, 1, 2), (0, 2)),
        ((5000, 300, 3), (0, 2, 1), (0, 1)),
        ((200_000, 4), (0, 1), (0, 1)),
        ((70_000, 2, 8), (0, 1, 2), (0,)),
    ],
)
def test_the_error_of_a_long_sum(shape, order, axes, how):
    for values in (np.full, lambda n, tenth: rng(1).random(n) * 2 * tenth):
        x = np.ascontiguousarray(values(shape, 0.1).astype(F16).transpose(order)).transpose(np.argsort(order))
        for view in (x, x[::-1], np.repeat(x, 2, -1)[..., ::2]):
            total = view.astype(F64).sum(axes, keepdims=True)
            n = cpu.count(x, axes)
            expected = total / n if how == "mean" else total
            error = np.abs(reduce(view, axes, how) - expected) / expected
            assert (error <= BOUND).all()  # all terms are positive: their magnitude is the sum
            assert (error <= 1e-6).all()  # what PyTorch reaches on these


def test_four_million_tenths_repeated():
    x = np.broadcast_to(np.full((1, 2), 0.1, F32), (4_000_000, 2))  # the gradient of a sum
    column = np.broadcast_to(np.full((4, 1), 0.1, F32), (4, 1_000_000))
    twice = np.broadcast_to(np.full((1_000_000, 1), 0.1, F32), (1_000_000, 2))  # NumPy adds such rows one by one
    for view, axis in ((x, 0), (x.T, 1), (x, (0, 1)), (column, 1), (column.T, 0), (twice, 0)):
        y = reduce(view, axis, "mean")
        assert (np.abs(y / F64(F32(0.1)) - 1) <= 1e-6).all()


def test_fp16_means_are_right_to_the_last_place():
    x = mp.tensor(np.full((4_000_000, 1, 2), 0.1, F16))
    assert (ops.mean(x, 0).array == F16(0.1)).all()
    x = mp.tensor((rng(0).random((4_000_000, 2)) + 0.5).astype(F16))
    assert ulps(ops.mean(x, 0).numpy(), x.numpy().astype(F64).mean(0)) <= 1
    assert ulps(ops.mean(x.permute(1, 0), 1).numpy(), x.numpy().astype(F64).mean(0)) <= 1


@pytest.mark.parametrize("dtype", [F16, F32])
@pytest.mark.parametrize("dim", [0, 1])
def test_a_running_sum_of_a_million(dtype, dim):
    shape = (1_000_000, 2) if dim == 0 else (1, 1_000_000)
    x = (rng(0).random(shape) * 0.1 if dtype == F32 else np.full(shape, 0.05)).astype(dtype)
    y = ops.cumsum(mp.tensor(x), dim).numpy()
    expected = np.cumsum(x.astype(F64), dim)
    if dtype == F16:
        assert ulps(y, expected) <= 1
    else:
        assert (np.abs(y / expected - 1) <= 1e-6).all()


@pytest.mark.parametrize("dtype", [F16, F32])
def test_a_bias_gradient_over_half_a_million_rows(dtype):
    x, w, b = (mp.tensor(np.zeros(shape, dtype)) for shape in ((500_000, 1), (3, 1), (3,)))
    b.requires_grad_()
    dy = np.full((500_000, 3), 0.1, dtype)
    ops.linear(x, w, b).backward(dy)
    exact = 500_000 * F64(dtype(0.1))
    assert ulps(b.grad_array, exact) <= 1 if dtype == F16 else (np.abs(b.grad_array / exact - 1) <= 1e-6).all()


@pytest.mark.parametrize("values", [np.full, lambda n, tenth: rng(1).random(n) * tenth])
@pytest.mark.parametrize(("m", "n", "k"), [(2, 2, 250_000), (4, 3, 80_000), (1, 1, 1_000_000), (64, 32, 200_000)])
def test_the_error_of_a_long_product(m, n, k, values):
    """Of weight gradients: BLAS may add one product after the other, so no more is promised than for that."""
    a, b = values((k, m), 0.1).astype(F32), values((k, n), 0.1).astype(F32)
    expected = a.T.astype(F64) @ b.astype(F64)  # all terms are positive: their magnitude is the sum
    assert (np.abs(gemm(a.T, b) - expected) <= k * U * expected).all()


def test_a_row_that_is_looked_up_a_million_times():
    index = np.zeros(1_000_000, np.int64)
    index[::1000] = 2
    rows = np.full((1_000_000, 2), 0.1, F32)
    y = scatter_add(3, index, rows, rows)
    expected = np.array([999_000, 0, 1000])[:, None] * F64(F32(0.1))
    assert (np.abs(y - expected) <= BOUND * expected).all()


def test_the_study_of_fp16_accumulators_stays_naive():
    x = np.full((10_000, 2), 0.1, F16)
    with mp.use(mp.FP16_REDUCTIONS):
        assert (reduce(x, 0, "sum") == 256).all()
        assert (scatter_add(1, np.zeros(10_000, np.int64), x, x) == 256).all()


def test_a_sum_repeats_bit_for_bit():
    x = rng(0).standard_normal((3000, 7)).astype(F32)
    for how in ("sum", "mean", "cumsum"):
        np.testing.assert_array_equal(reduce(x, 0, how), reduce(x.copy(), 0, how))


@pytest.mark.parametrize("dtype", [F16, F32])
def test_batch_norm_statistics_over_half_a_million_values(dtype):
    x = (rng(0).random((500_000, 2)) * 0.5 + 0.5).astype(dtype)
    mean, var = (mp.tensor(np.zeros(2, F32)) for _ in range(2))
    w = mp.tensor(np.ones(2, dtype), requires_grad=True)
    b = mp.tensor(np.zeros(2, dtype), requires_grad=True)
    y = ops.batch_norm(mp.tensor(x), mean, var, w, b, training=True, momentum=1.0)
    assert (np.abs(mean.numpy() / x.astype(F64).mean(0) - 1) <= 1e-6).all()
    assert (np.abs(var.numpy() / x.astype(F64).var(0, ddof=1) - 1) <= 1e-6).all()
    dy = np.full((500_000, 2), 0.1, dtype)
    y.backward(dy)
    expected = 500_000 * F64(dtype(0.1))
    assert ulps(b.grad_array, expected) <= 1 if dtype == F16 else (np.abs(b.grad_array / expected - 1) <= 1e-6).all()
    wide = x.astype(F64)
    terms = np.abs(0.1 * (wide - wide.mean(0))).sum(0) / wide.std(0)  # those of dw cancel: it is 0 but for their error
    assert (np.abs(w.grad_array) <= BOUND * terms).all()
