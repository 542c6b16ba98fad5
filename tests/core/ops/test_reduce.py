"""Reductions: each against its formula in every dtype and over every choice of axes, then edges and refusals."""

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
    ((2, 3, 4), None), ((2, 3, 4), 0), ((2, 3, 4), 1), ((2, 3, 4), -1), ((2, 3, 4), (0, 2)), ((2, 3, 4), [-1, 0]),
    ((2, 3, 4), ()), ((2, 3, 4), (2, 1, 0)), ((5,), 0), ((1, 3), 0), ((), None), ((), 0), ((), ()), ((0, 3), 1),
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


@pytest.mark.parametrize("correction", [0, 1, 2, 0.5])
@pytest.mark.parametrize(("shape", "dim"), [case for case in CASES if terms(*case) > 2], ids=str)
@pytest.mark.parametrize("name", ["var", "std"])
def test_var_and_std(name, shape, dim, correction):
    axis, n = numpy_axis(dim, len(shape)), terms(shape, dim)

    def oracle(x):
        total = np.sum((x - x.mean(axis, keepdims=True)) ** 2, axis=axis) / (n - correction)
        return np.sqrt(total) if name == "std" else total

    check(lambda x: getattr(ops, name)(x, dim, correction=correction), oracle, randn(*shape), length=3 * n)


@pytest.mark.parametrize("dim", [0, -1])
@pytest.mark.parametrize("keepdim", [False, True])
def test_an_axis_of_a_tensor_without_axes(dim, keepdim):
    """As PyTorch: dim 0 or -1 of one element."""
    for f in (ops.max, ops.min):
        x = mp.tensor(2.5, requires_grad=True)
        values, indices = f(x, dim, keepdim)
        assert values.shape == indices.shape == () and values.item() == 2.5 and indices.item() == 0
        values.backward()
        assert x.grad.shape == () and float(x.grad) == 1
    for f in (ops.argmax, ops.argmin):
        assert f(mp.tensor(2.5), dim, keepdim).shape == () and f(mp.tensor(2.5), dim).item() == 0
    check(lambda x: ops.cumsum(x, dim), lambda x: x, np.asarray(2.5), roundings=0, length=-4)


@pytest.mark.parametrize("f", [ops.var, ops.std])
def test_unbiased_is_a_correction_of_1_or_0(f):
    x = mp.tensor(randn(3, 4))
    for whole in (f(x, correction=0), f(x, False), f(x, unbiased=False), f(x, None, False)):
        assert whole.item() == f(x, (0, 1), correction=0).item()
    np.testing.assert_array_equal(f(x, 0, False, True).numpy(), f(x, 0, correction=0, keepdim=True).numpy())
    for plain in (f(x, 0, unbiased=True), f(x, 0, True), f(x, 0, correction=None)):
        np.testing.assert_array_equal(plain.numpy(), f(x, 0).numpy())
    with pytest.raises(TypeError, match=rf"{f.__name__}: expected one of `unbiased` and `correction`, got True and 0"):
        f(x, 0, True, correction=0)
    with pytest.raises(TypeError, match=rf"{f.__name__}: expected `unbiased` to be True or False, got 'False'"):
        f(x, 0, "False")
    with pytest.raises(TypeError, match=rf"{f.__name__}: expected `correction` to be a number, got '1'"):
        f(x, correction="1")


@pytest.mark.parametrize("name", ["sum", "mean", "var", "std", "amax", "amin", "max", "min", "argmax", "argmin"])
def test_without_arguments_over_everything(name):
    x = distinct(3, 4)
    options = {"ddof": 1} if name in ("var", "std") else {}
    y = getattr(ops, name)(mp.tensor(x))
    assert y.shape == ()
    np.testing.assert_allclose(y.numpy(), getattr(np, name.replace("am", "m"))(x, **options), rtol=1e-14)


@pytest.mark.parametrize(
    ("shape", "dim"), [((4,), 0), ((3, 4), 0), ((3, 4), -1), ((2, 3, 4), 1), ((0, 3), 0), ((3, 0), 0)]
)
def test_cumsum(shape, dim):
    n = shape[dim]
    check(
        lambda x: ops.cumsum(x, dim),
        lambda x: np.cumsum(x, dim),
        randn(*shape),
        length=n,
        magnitude=lambda x: np.sum(x, initial=1.0),
        grad_length=4 * n,  # partial sums of the gradient are up to a few times larger than it is
    )


@pytest.mark.parametrize("keepdim", [False, True])
@pytest.mark.parametrize("dim", [0, 1, -1])
@pytest.mark.parametrize("name", ["max", "min"])
def test_max_and_min_along_an_axis(name, dim, keepdim):
    x = distinct(2, 3, 4)
    check(lambda x: getattr(ops, name)(x, dim, keepdim)[0], lambda x: getattr(np, name)(x, dim, keepdims=keepdim), x)
    found = getattr(ops, name)(mp.tensor(x, requires_grad=True), dim=dim, keepdim=keepdim)
    assert found.indices.dtype == np.int64
    assert not found.indices.requires_grad
    assert found.values is found[0]
    np.testing.assert_array_equal(found.indices.numpy(), getattr(np, "arg" + name)(x, dim, keepdims=keepdim))


@pytest.mark.parametrize("name", ["max", "min"])
def test_max_with_a_tensor_is_maximum(name):
    check(getattr(ops, name), getattr(np, name + "imum"), distinct(2, 3), distinct(3, seed=1) + 0.03125, grad_length=2)


# --------------------------------------------------------------------------------------------------------------- edges


def value_and_grad(f, x, dtype):
    t = mp.tensor(np.array(x, dtype), requires_grad=True)
    y = f(t)
    y.backward(np.ones(y.shape, dtype))
    return y.tolist(), host(t.grad)


dtypes = pytest.mark.parametrize("dtype", [F16, F32, np.float64])


@dtypes
@pytest.mark.parametrize(
    ("f", "x", "y", "dx"),
    [
        (ops.amax, [1, 3, 3, 2], 3, [0, 0.5, 0.5, 0]),  # equal extremes share
        (ops.amin, [[1, 1], [2, 1]], 1, [[1 / 3, 1 / 3], [0, 1 / 3]]),
        (ops.max, [1, 3, 3], 3, [0, 0.5, 0.5]),
        (lambda x: ops.max(x, 0).values, [1, 3, 3], 3, [0, 1, 0]),  # the first of equals
        (lambda x: ops.min(x, 0).values, [1, 3, 1], 1, [1, 0, 0]),
        (lambda x: ops.amax(x, 1), [[1, NAN], [INF, 2], [-INF, -INF]], [NAN, INF, -INF], [[0, 1], [1, 0], [0.5, 0.5]]),
        (lambda x: ops.amax(x, 0), [0.0, -0.0], 0, [0.5, 0.5]),
        (lambda x: ops.logsumexp(x, 0), [-INF, -INF], -INF, [0, 0]),
        (lambda x: ops.logsumexp(x, 0), [-INF, 2], 2, [0, 1]),
        (lambda x: ops.logsumexp(x, 0), [INF, 2], INF, [NAN, 0]),
        (lambda x: ops.logsumexp(x, 0), [NAN, 2], NAN, [NAN, NAN]),
        (lambda x: ops.logsumexp(x, 0), [60_000, 60_000, -60_000], 60_000 + np.log(2), [0.5, 0.5, 0]),
        (ops.std, [2, 2, 2], 0, [0, 0, 0]),
        (ops.var, [2, 2, 2], 0, [0, 0, 0]),
        (ops.var, [2], NAN, [NAN]),
        (ops.std, [2], NAN, [NAN]),
        (lambda x: ops.var(x, correction=5), [2, 4], INF, [-INF, INF]),
        (ops.sum, [INF, -INF], NAN, [1, 1]),
        (ops.sum, [INF, 1], INF, [1, 1]),
        (ops.mean, [], NAN, []),
        (ops.sum, [], 0, []),
        (ops.var, [], NAN, []),
    ],
)
def test_edges(f, x, y, dx, dtype):
    value, grad = value_and_grad(f, x, dtype)
    np.testing.assert_array_equal(np.array(value, dtype), np.array(y, dtype))
    np.testing.assert_array_equal(grad, np.array(dx, dtype))


@pytest.mark.parametrize("dim", [None, 0, 1])
@pytest.mark.parametrize("keepdim", [False, True])
@pytest.mark.parametrize("name", ["argmax", "argmin"])
@pytest.mark.parametrize("dtype", [F16, F32, np.int64, bool])
def test_arg_extremes_find_the_first(name, dim, keepdim, dtype):
    x = np.array([[1, 0, 1], [0, 0, 1], [1, 1, 0]]).astype(dtype)
    index = getattr(ops, name)(mp.tensor(x), dim, keepdim)
    assert index.dtype == np.int64
    assert not index.requires_grad
    np.testing.assert_array_equal(index.numpy(), getattr(np, name)(x, dim, keepdims=keepdim), strict=True)


def test_arg_extremes_find_nan():
    x = mp.tensor(np.array([[1, NAN, 5], [-INF, 2, INF]], F16))
    assert ops.argmax(x, 1).tolist() == [1, 2]
    assert ops.argmin(x, 1).tolist() == [1, 0]


def test_long_fp16_sums_are_accurate():
    x = np.full((20_000, 2), 0.1, F16)
    exact = 20_000 * np.float64(F16(0.1))
    for dim in (0, (0, 1)):
        assert (ops.sum(mp.tensor(x), dim).array == F16(exact * (1 if dim == 0 else 2))).all()
    assert (ops.mean(mp.tensor(x), 0).array == F16(0.1)).all()
    running = ops.cumsum(mp.tensor(x), 0).numpy()
    expected = np.arange(1, 20_001)[:, None] * np.float64(F16(0.1))
    assert (np.abs(running - expected) <= expected * (2.0**-11 + 20_000 * 2.0**-24)).all()
    spread = mp.tensor((np.arange(20_000) % 2 * 2 + 1000).astype(F16))  # 1000 and 1002: the variance is 1
    assert ops.var(spread, correction=0).item() == ops.std(spread, correction=0).item() == 1
    assert ops.logsumexp(mp.tensor(np.zeros(20_000, F16)), 0).item() == F16(np.log(20_000))


@pytest.mark.parametrize("shape", [(1_000_000,), (1_000_000, 2)])
def test_the_variance_of_values_far_from_0(shape):
    x = (np.random.default_rng(0).standard_normal(shape) + 1e4).astype(F32)
    t, wide = mp.tensor(x, requires_grad=True), x.astype(np.float64)
    y = ops.var(t, 0)
    assert (np.abs(y.numpy() / wide.var(0, ddof=1) - 1) <= 1e-6).all()
    assert (np.abs(ops.std(t, 0).numpy() / wide.std(0, ddof=1) - 1) <= 1e-6).all()
    y.backward(np.ones(y.shape, F32))
    expected = 2 * (wide - wide.mean(0)) / 999_999
    # backward reads the mean in FP32, whose numbers are 2^-10 apart near 10^4
    assert (np.abs(host(t.grad) - expected) <= 1.1 * 2.0**-10 / 999_999 + 1e-6 * np.abs(expected)).all()


@pytest.mark.parametrize("value", [0.1, 1e20, 1e-25, 0])
def test_the_variance_of_equal_values_is_0(value):
    x = mp.tensor(np.full((100_000, 2), value, F32))
    assert (ops.std(x, 0).array <= 2.0**-40 * value).all()
    assert (ops.var(x, 0).array <= (2.0**-40 * value) ** 2).all()


@pytest.mark.parametrize("dim", [None, 0, 1])
@pytest.mark.parametrize("size", [1e20, 1e37, 1e18, 1e-19, 1e-25, 1e-37, 1e-42])
def test_std_is_in_range_where_its_square_is_not(size, dim):
    x = (randn(40, 5) * size).astype(F32)
    wide = x.astype(np.float64)
    t = mp.tensor(x, requires_grad=True)
    y = ops.std(t, dim)
    # CuPy takes what is below 2^-126 for 0, in four steps: x, x - mean, that without its own mean, and y
    expected, least = wide.std(dim, ddof=1), 2.0**-149 if t.device == "cpu" else 4 * 2.0**-126
    assert (np.abs(y.numpy() - expected) <= 2e-6 * expected + least).all()
    y.backward(np.ones(y.shape, F32))
    n = x.size if dim is None else x.shape[dim]
    std = wide.std(dim, ddof=1, keepdims=True)
    gradient = (wide - wide.mean(dim, keepdims=True)) / std / (n - 1)
    assert (np.abs(host(t.grad) - gradient) <= 1e-6 + 2 * least / std).all()


@pytest.mark.parametrize(("size", "value"), [(1e20, INF), (1e-25, 0)])
def test_a_variance_beyond_fp32(size, value):
    assert ops.var(mp.tensor(np.array([-size, size], F32))).item() == value


def test_an_fp16_sum_may_overflow_and_a_mean_does_not():
    x = mp.tensor(np.full(4, 60_000, F16))
    assert ops.sum(x).item() == INF
    assert ops.mean(x).item() == 60_000
    assert ops.sum(x.float()).item() == 240_000
    assert ops.std(mp.tensor(np.array([60_000, -60_000], F16)), correction=0).item() == 60_000  # through 3.6e9


def test_a_reduction_follows_the_policy():
    x = mp.tensor(np.full(10_000, 0.1, F16))
    with mp.use(mp.FP16_REDUCTIONS):
        assert ops.sum(x).item() == 256
        assert abs(ops.sum(x.float()).item() - 1000) < 0.5


@pytest.mark.parametrize(
    ("f", "result", "value"),
    [
        (lambda i, b, u: ops.sum(b), "int64", 2), (lambda i, b, u: ops.sum(u), "int64", 600),
        (lambda i, b, u: ops.sum(i, 0), "int64", 4), (lambda i, b, u: ops.cumsum(u, 0), "int64", [200, 400, 600]),
        (lambda i, b, u: ops.cumsum(b, 0), "int64", [1, 1, 2]), (lambda i, b, u: ops.cumsum(i, 0), "int64", [1, -1, 4]),
        (lambda i, b, u: ops.amax(i), "int32", 5), (lambda i, b, u: ops.max(b), "bool", True),
        (lambda i, b, u: ops.min(i, 0).values, "int32", -2), (lambda i, b, u: ops.amin(u), "uint8", 200),
    ],
)  # fmt: skip
def test_integers(f, result, value):
    i, b, u = np.array([1, -2, 5], np.int32), np.array([True, False, True]), np.full(3, 200, np.uint8)
    y = f(*map(mp.tensor, (i, b, u)))
    assert y.dtype == result
    assert y.tolist() == value
    assert not y.requires_grad


ALL = {
    **{name: (lambda x, f=name: getattr(ops, f)(x, 0)) for name in [*REDUCTIONS, "var", "std", "cumsum"]},
    "max": lambda x: ops.max(x, 0).values,
}


@pytest.mark.parametrize("name", ALL)
def test_inputs_and_gradients_are_never_written_to(name):
    x = mp.tensor(randn(3, 4).astype(F32), requires_grad=True)
    before = x.numpy().copy()
    dy = np.ones(ALL[name](x).shape, F32)
    for _ in range(2):
        ALL[name](x).backward(dy)
    np.testing.assert_array_equal(x.numpy(), before)
    assert (dy == 1).all()


@dtypes
@pytest.mark.parametrize("name", ALL)
def test_memory_order_changes_nothing(name, dtype):
    x = randn(4, 5, 6).astype(dtype)
    dy = np.asarray(randn(*ALL[name](mp.tensor(x)).shape, seed=1)).astype(dtype)
    results = []
    for t in (mp.tensor(x), mp.tensor(x.transpose(2, 0, 1)).permute(1, 2, 0)):
        y = ALL[name](t.requires_grad_())
        y.backward(dy)
        results.append((y.numpy(), host(t.grad)))
    for a, b in zip(*results):
        np.testing.assert_allclose(a, b, rtol=4 * np.finfo(dtype).eps, atol=32 * np.finfo(dtype).eps)


# ------------------------------------------------------------------------------------------------------------- refusals

X, E, N = mp.tensor(np.ones((2, 3), F32)), mp.tensor(np.ones((0, 3), F32)), mp.tensor([1, 2])
DIMS = ["sum", "mean", "var", "std", "amax", "amin", "logsumexp"]
DIM = ["max", "min", "argmax", "argmin", "cumsum"]


@pytest.mark.parametrize("name", DIMS + DIM)
def test_axes_that_do_not_exist(name):
    with pytest.raises(IndexError, match=rf"{name}: expected dim in \[-2, 1\] for a tensor with 2 axes, got 2"):
        getattr(ops, name)(X, 2)
    with pytest.raises(TypeError, match=rf"{name}: expected `dim` to be an integer"):
        getattr(ops, name)(X, 1.0)
    with pytest.raises(IndexError, match=f"{name}: .*ax[ei]s"):
        getattr(ops, name)(mp.tensor(1.0), 1)


@pytest.mark.parametrize("dim", [(0, 0), (1, -1), [0, -2]])
@pytest.mark.parametrize("name", DIMS)
def test_an_axis_named_twice(name, dim):
    with pytest.raises(ValueError, match=f"{name}: expected every axis once in dim, got"):
        getattr(ops, name)(X, dim)


def test_logsumexp_of_nothing():
    x = mp.tensor(np.zeros((0, 3), F16), requires_grad=True)
    y = ops.logsumexp(x, 0)
    assert y.dtype == F16 and y.tolist() == [-INF] * 3
    y.sum().backward()
    assert x.grad.shape == (0, 3)
    assert ops.logsumexp(x, 1, keepdim=True).shape == (0, 1)


@pytest.mark.parametrize("name", ["amax", "amin", "max", "min", "argmax", "argmin"])
def test_nothing_to_reduce(name):
    with pytest.raises(ValueError, match=rf"{name}: expected at least one element to reduce, got shape \(0, 3\)"):
        getattr(ops, name)(E, 0)
    assert getattr(ops, name)(E, 1) is not None


@pytest.mark.parametrize("name", ["mean", "var", "std", "logsumexp"])
def test_integers_are_refused(name):
    with pytest.raises(TypeError, match=f"{name}: expected `input` to be floating, got int64"):
        getattr(ops, name)(N, 0)


@pytest.mark.parametrize("name", DIMS + DIM)
def test_arrays_are_refused(name):
    with pytest.raises(TypeError, match=f"{name}: expected a Tensor for `input`, got numpy.ndarray"):
        getattr(ops, name)(np.ones(2), 0)


@pytest.mark.parametrize("name", [*DIMS, "max", "min", "cumsum"])
def test_out_is_refused(name):
    with pytest.raises(TypeError, match=f"{name}.*argument .out."):
        getattr(ops, name)(X, 0, out=X)


@pytest.mark.parametrize("name", ["sum", "mean", "cumsum"])
def test_dtype_is_refused(name):
    with pytest.raises(TypeError, match=rf"{name}.*argument .dtype."):
        getattr(ops, name)(X, 0, dtype=F16)


@pytest.mark.parametrize("name", ["max", "min"])
def test_keepdim_wants_a_dim(name):
    with pytest.raises(TypeError, match=f"{name}: expected `dim` together with keepdim=True; a{name} keeps the axes"):
        getattr(ops, name)(X, keepdim=True)
