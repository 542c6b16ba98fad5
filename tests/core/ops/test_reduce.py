"""Reductions: each against its formula in every dtype and over every choice of axes, then edges."""

import numpy as np
import pytest

import tinymp as mp
from oracle import check, distinct, host, randn
from tinymp import ops

F16, F32 = np.float16, np.float32
INF, NAN = float("inf"), float("nan")


def logsumexp(x, axis, keepdims):
    return np.log(np.sum(np.exp(x), axis=axis, keepdims=keepdims))


REDUCTIONS = {"sum": np.sum, "mean": np.mean, "amax": np.max, "amin": np.min, "logsumexp": logsumexp}
CASES = [  # shape, dim
    ((2, 3, 4), None), ((2, 3, 4), 1), ((2, 3, 4), -1), ((2, 3, 4), [-1, 0]), ((2, 3, 4), ()), ((5,), 0), ((1, 3), 0),
    ((), None), ((), 0), ((), ()), ((0, 3), 1),
]  # fmt: skip


def numpy_axis(dim, ndim):
    """dim as NumPy wants it: an empty dim means all axes here, and a tensor without axes has none."""
    axis = tuple(range(ndim)) if dim is None or dim in ((), []) or not ndim else dim
    return tuple(axis) if isinstance(axis, list) else axis


def terms(shape, dim):
    axis = numpy_axis(dim, len(shape))
    return int(np.prod([shape[a] for a in (axis if isinstance(axis, tuple) else (axis,))]))


@pytest.mark.parametrize("keepdim", [False, True])
@pytest.mark.parametrize(("shape", "dim"), CASES, ids=str)
@pytest.mark.parametrize("name", REDUCTIONS)
def test_reductions(name, shape, dim, keepdim):
    oracle, axis, n = REDUCTIONS[name], numpy_axis(dim, len(shape)), terms(shape, dim)
    check(
        lambda x: getattr(ops, name)(x, dim, keepdim),
        lambda x: oracle(x, axis=axis, keepdims=keepdim),
        distinct(*shape) if name[0] == "a" else randn(*shape),
        length=n + 8,  # the terms, and exp and log
        magnitude=lambda x: np.sum(x, initial=1.0) if name == "sum" else np.max(x, initial=1.0) + 1,
    )


@pytest.mark.parametrize("correction", [0, 1, 0.5])
@pytest.mark.parametrize(
    ("shape", "dim"), [((2, 3, 4), None), ((2, 3, 4), 1), ((2, 3, 4), [-1, 0]), ((5,), 0)], ids=str
)
@pytest.mark.parametrize("name", ["var", "std"])
def test_var_and_std(name, shape, dim, correction):
    axis, n = numpy_axis(dim, len(shape)), terms(shape, dim)

    def oracle(x):
        total = np.sum((x - x.mean(axis, keepdims=True)) ** 2, axis=axis) / (n - correction)
        return np.sqrt(total) if name == "std" else total

    check(lambda x: getattr(ops, name)(x, dim, correction=correction), oracle, randn(*shape), length=3 * n)


@pytest.mark.parametrize(("shape", "dim"), [((4,), 0), ((3, 4), 0), ((2, 3, 4), 1), ((0, 3), 0), ((3, 0), 0), ((), -1)])
def test_cumsum(shape, dim):
    n = shape[dim] if shape else 1
    check(
        lambda x: ops.cumsum(x, dim),
        lambda x: np.cumsum(x, dim).reshape(shape),
        randn(*shape),
        length=n,
        magnitude=lambda x: np.sum(x, initial=1.0),
        grad_length=4 * n,  # partial sums of the gradient are up to a few times larger than it is
    )


def value_and_grad(f, x, dtype):
    t = mp.tensor(np.array(x, dtype), requires_grad=True)
    y = f(t)
    y.backward(np.ones(y.shape, dtype))
    return y.tolist(), host(t.grad)


@pytest.mark.parametrize("dtype", [F16, F32, np.float64])
@pytest.mark.parametrize(
    ("f", "x", "y", "dx"),
    [
        (ops.amax, [1, 3, 3, 2], 3, [0, 0.5, 0.5, 0]),  # equal extremes share
        (ops.amin, [[1, 1], [2, 1]], 1, [[1 / 3, 1 / 3], [0, 1 / 3]]),
        (ops.max, [1, 3, 3], 3, [0, 0.5, 0.5]),
        (lambda x: ops.max(x, 0).values, [1, 3, 3], 3, [0, 1, 0]),  # the first of equals
        (lambda x: ops.max(x, 0).values, 2.5, 2.5, 1),
        (lambda x: ops.min(x, 0).values, [1, 3, 1], 1, [1, 0, 0]),
        (lambda x: ops.amax(x, 1), [[1, NAN], [INF, 2], [-INF, -INF]], [NAN, INF, -INF], [[0, 1], [1, 0], [0.5, 0.5]]),
        (lambda x: ops.logsumexp(x, 0), [-INF, -INF], -INF, [0, 0]),
        (lambda x: ops.logsumexp(x, 0), [-INF, 2], 2, [0, 1]),
        (lambda x: ops.logsumexp(x, 0), [INF, 2], INF, [NAN, 0]),
        (lambda x: ops.logsumexp(x, 0), [NAN, 2], NAN, [NAN, NAN]),
        (lambda x: ops.logsumexp(x, 0), [60_000, 60_000, -60_000], 60_000 + np.log(2), [0.5, 0.5, 0]),
        (lambda x: ops.logsumexp(x, 0), [], -INF, []),
        (ops.std, [2, 2, 2], 0, [0, 0, 0]),
        (ops.std, [2], NAN, [NAN]),
        (lambda x: ops.var(x, correction=5), [2, 4], INF, [-INF, INF]),
        (ops.sum, [INF, -INF], NAN, [1, 1]),
        (ops.mean, [], NAN, []),
        (ops.sum, [], 0, []),
    ],
)
def test_edges(f, x, y, dx, dtype):
    value, grad = value_and_grad(f, x, dtype)
    np.testing.assert_array_equal(np.array(value, dtype), np.array(y, dtype))
    np.testing.assert_array_equal(grad, np.array(dx, dtype))


def test_long_fp16_sums_are_accurate():
    x, exact = mp.tensor(np.full((20_000, 2), 0.1, F16)), 20_000 * np.float64(F16(0.1))
    assert (ops.sum(x, 0).array == F16(exact)).all() and (ops.mean(x, 0).array == F16(0.1)).all()
    spread = mp.tensor((np.arange(20_000) % 2 * 2 + 1000).astype(F16))  # 1000 and 1002: the variance is 1
    assert ops.var(spread, correction=0).item() == ops.std(spread, correction=0).item() == 1
    assert ops.logsumexp(mp.tensor(np.zeros(20_000, F16)), 0).item() == F16(np.log(20_000))
    large = mp.tensor(np.full(4, 60_000, F16))
    assert ops.sum(large).item() == INF and ops.mean(large).item() == 60_000
    with mp.use(mp.FP16_REDUCTIONS):
        assert ops.sum(x[:, 0]).item() == 256 and abs(ops.sum(x[:, 0].float()).item() - exact) < 0.5


def test_the_variance_of_values_far_from_0():
    x = (np.random.default_rng(0).standard_normal(1_000_000) + 1e4).astype(F32)
    t, wide = mp.tensor(x, requires_grad=True), x.astype(np.float64)
    y = ops.var(t, 0)
    assert abs(y.item() / wide.var(0, ddof=1) - 1) <= 1e-6
    assert abs(ops.std(t, 0).item() / wide.std(0, ddof=1) - 1) <= 1e-6
    y.backward()
    expected = 2 * (wide - wide.mean(0)) / 999_999
    # backward reads the mean in FP32, whose numbers are 2^-10 apart near 10^4
    assert (np.abs(host(t.grad) - expected) <= 1.1 * 2.0**-10 / 999_999 + 1e-6 * np.abs(expected)).all()


@pytest.mark.parametrize("value", [0.1, 1e20, 1e-25, 0])
def test_the_variance_of_equal_values_is_0(value):
    x = mp.tensor(np.full((100_000, 2), value, F32))
    assert (ops.std(x, 0).array <= 2.0**-40 * value).all()
    assert (ops.var(x, 0).array <= (2.0**-40 * value) ** 2).all()


@pytest.mark.parametrize("dim", [None, 0])
@pytest.mark.parametrize("size", [1e20, 1e37, 1e-19, 1e-25, 1e-42])
def test_std_is_in_range_where_its_square_is_not(size, dim):
    x = (randn(40, 5) * size).astype(F32)
    wide = x.astype(np.float64)
    t = mp.tensor(x, requires_grad=True)
    y = ops.std(t, dim)
    # CuPy takes what is below 2^-126 for 0, in four steps: x, x - mean, that without its own mean, and y
    expected, least = wide.std(dim, ddof=1), 2.0**-149 if t.device == "cpu" else 4 * 2.0**-126
    assert (np.abs(y.numpy() - expected) <= 2e-6 * expected + least).all()
    y.backward(np.ones(y.shape, F32))
    std = wide.std(dim, ddof=1, keepdims=True)
    gradient = (wide - wide.mean(dim, keepdims=True)) / std / ((x.size if dim is None else 40) - 1)
    assert (np.abs(host(t.grad) - gradient) <= 1e-6 + 2 * least / std).all()
