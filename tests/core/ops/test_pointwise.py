"""Pointwise ops: each against its formula in every dtype, then the edges, numbers, integers and refusals."""

import numpy as np
import pytest

import tinymp as mp
from oracle import check, distinct, host, randn
from tinymp import ops

F16, F32 = np.float16, np.float32
INF, NAN = float("inf"), float("nan")


def away(*shape, seed=0):
    """Values of both signs with 0.5 <= |x|."""
    x = randn(*shape, seed=seed)
    return np.sign(x) * (np.abs(x) + 0.5)


def positive(*shape, seed=0):
    return np.abs(away(*shape, seed=seed))


def between(*shape, seed=0):
    """Values that equal none of `distinct`."""
    return distinct(*shape, seed=seed) + 0.03125


BINARY = {  # function: oracle, first operand, second operand
    "add": (np.add, randn, randn),
    "sub": (np.subtract, randn, randn),
    "mul": (np.multiply, randn, randn),
    "div": (np.divide, randn, away),
    "pow": (np.power, positive, randn),
    "maximum": (np.maximum, distinct, between),
    "minimum": (np.minimum, distinct, between),
}
ARITHMETIC = ["add", "sub", "mul", "div", "pow"]
UNARY = {  # function: oracle, input, roundings that backward inherits (a stored y)
    "neg": (np.negative, randn, 0),
    "abs": (np.abs, away, 0),
    "exp": (np.exp, randn, 1),
    "log": (np.log, positive, 0),
    "sqrt": (np.sqrt, positive, 1),
    "rsqrt": (lambda x: x**-0.5, positive, 0),
    "square": (np.square, randn, 0),
    "reciprocal": (lambda x: 1 / x, away, 0),
    "sin": (np.sin, away, 0),
    "cos": (np.cos, away, 0),
    "sign": (np.sign, away, 0),
}
SHAPES = [
    ((2, 3), (2, 3)),
    ((3,), (2, 3)),
    ((2, 1), (1, 3)),
    ((4, 1, 3), (2, 1)),
    ((2, 3), ()),
    ((), ()),
    ((0, 3), (3,)),
]


@pytest.mark.parametrize("shapes", SHAPES, ids=str)
@pytest.mark.parametrize("name", BINARY)
def test_two_operands(name, shapes):
    oracle, first, second = BINARY[name]
    terms = np.broadcast(*[np.empty(s) for s in shapes]).size  # at most so many terms in the gradient of one operand
    check(getattr(ops, name), oracle, first(*shapes[0]), second(*shapes[1], seed=1), grad_length=terms)


@pytest.mark.parametrize("number", [2, 0.5, -1, np.float64(1.5)])
@pytest.mark.parametrize("name", ARITHMETIC)
def test_a_number_on_either_side(name, number):
    oracle, _, second = BINARY[name]
    check(lambda x: getattr(ops, name)(x, number), lambda x: oracle(x, float(number)), positive(3, 4))
    number = abs(number)
    check(lambda x: getattr(ops, name)(number, x), lambda x: oracle(float(number), x), second(3, 4))


@pytest.mark.parametrize("alpha", [2, -0.5, 0, np.float64(0.1)])
@pytest.mark.parametrize(("name", "sign"), [("add", 1), ("sub", -1)])
def test_alpha(name, sign, alpha):
    wide = float(alpha)
    f, inputs = getattr(ops, name), (randn(2, 3), randn(3, seed=1))
    check(lambda x, y: f(x, y, alpha=alpha), lambda x, y: x + sign * wide * y, *inputs, grad_length=2)


@pytest.mark.parametrize("shape", [(3, 4), (1,), (), (0, 2)])
@pytest.mark.parametrize("name", UNARY)
def test_one_operand(name, shape):
    oracle, values, inherited = UNARY[name]
    check(getattr(ops, name), oracle, values(*shape), inherited=inherited)


def value_and_grads(f, *xs, dtype):
    """f(*xs), and the gradients for dy = 1, as lists."""
    tensors = [mp.tensor(np.array(x, dtype), requires_grad=True) for x in xs]
    y = f(*tensors)
    y.backward(np.ones(y.shape, dtype))
    return y.numpy(), *[host(t.grad) for t in tensors]


def same(got, expected):
    """Equal, with nan and the sign of 0 counted."""
    expected = np.array(expected, got.dtype)
    np.testing.assert_array_equal(got, expected)
    number = ~np.isnan(expected)
    np.testing.assert_array_equal(np.signbit(got)[number], np.signbit(expected)[number])


dtypes = pytest.mark.parametrize("dtype", [F16, F32, np.float64])


@dtypes
@pytest.mark.parametrize(
    ("name", "x", "y", "dx"),
    [
        ("neg", [0.0, -0.0, INF, NAN], [-0.0, 0.0, -INF, NAN], [-1, -1, -1, -1]),
        ("abs", [0.0, -0.0, -INF, INF, NAN], [0, 0, INF, INF, NAN], [0, 0, -1, 1, NAN]),
        ("exp", [0.0, -INF, INF, NAN], [1, 0, INF, NAN], [1, 0, INF, NAN]),
        ("log", [1.0, 0.0, -0.0, INF, -1.0, NAN], [0, -INF, -INF, INF, NAN, NAN], [1, INF, -INF, 0, -1, NAN]),
        ("sqrt", [0.0, -0.0, INF, -1.0, NAN], [0, -0.0, INF, NAN, NAN], [INF, -INF, 0, NAN, NAN]),
        ("rsqrt", [4.0, 0.0, INF, -1.0, NAN], [0.5, INF, 0, NAN, NAN], [-0.0625, -INF, -0.0, NAN, NAN]),
        ("square", [0.0, -0.0, -INF, NAN], [0, 0, INF, NAN], [0, -0.0, -INF, NAN]),
        ("sign", [-INF, -0.0, 0.0, 2.0**-24, NAN], [-1, 0, 0, 1, 0], [0, 0, 0, 0, 0]),
        ("reciprocal", [0.0, -0.0, INF, -INF, NAN], [INF, -INF, 0, -0.0, NAN], [-INF, -INF, -0.0, -0.0, NAN]),
    ],
)
def test_edges_of_one_operand(name, x, y, dx, dtype):
    got = value_and_grads(getattr(ops, name), x, dtype=dtype)
    same(got[0], y)
    same(got[1], dx)


@dtypes
@pytest.mark.parametrize(
    ("x", "p", "z", "dx", "dp"),
    [
        (0, 0, 1, 0, 0), (0, 1, 0, 1, 0), (0, 2, 0, 0, 0), (0, 0.5, 0, INF, 0), (0, -1, INF, -INF, -INF),
        (0, NAN, NAN, NAN, NAN),
        (2, 0, 1, 0, np.log(2)), (1, 5, 1, 5, 0), (-2, 2, 4, -4, NAN), (-2, 3, -8, 12, NAN), (-8, 1 / 3, NAN, NAN, NAN),
        (4, 0.5, 2, 0.25, 2 * np.log(4)), (4, -0.5, 0.5, -0.0625, 0.5 * np.log(4)), (NAN, 0, 1, 0, NAN),
        (INF, 1, INF, 1, INF),
    ],
)  # fmt: skip
def test_edges_of_pow(x, p, z, dx, dp, dtype):
    for got, expected in zip(value_and_grads(ops.pow, [x], [p], dtype=dtype), (z, dx, dp)):
        np.testing.assert_allclose(got, np.array([expected], dtype), rtol=2 * np.finfo(dtype).eps)
    got = value_and_grads(lambda t: ops.pow(t, p), [x], dtype=dtype)  # the same with a number
    np.testing.assert_allclose(got, np.array([[z], [dx]], dtype), rtol=2 * np.finfo(dtype).eps)


@dtypes
def test_clamp_by_an_infinite_tensor(dtype):
    x = [1, INF, -INF, 3, NAN]
    y, dx, low = value_and_grads(lambda x, low: ops.clamp(x, min=low), x, [INF, INF, 2, -INF, INF], dtype=dtype)
    np.testing.assert_array_equal(y, [INF, INF, 2, 3, NAN])
    np.testing.assert_array_equal([dx, low], [[0, 1, 0, 1, 0], [1, 0, 1, 0, 0]])
    _, dx, high = value_and_grads(lambda x, high: ops.clamp(x, max=high), x, [-INF, 2, -INF, INF, 1], dtype=dtype)
    np.testing.assert_array_equal([dx, high], [[0, 0, 1, 1, 0], [1, 1, 0, 0, 0]])


@dtypes
def test_clamp_at_its_bounds(dtype):
    x = [-2, -1, 0, 1, 2, NAN, INF]
    y, dx = value_and_grads(lambda t: ops.clamp(t, -1, 1), x, dtype=dtype)
    np.testing.assert_array_equal(y, [-1, -1, 0, 1, 1, NAN, 1])
    np.testing.assert_array_equal(dx, [0, 1, 1, 1, 0, 0, 0])  # the bounds themselves get dy
    _, dx, low, high = value_and_grads(ops.clamp, x, [-1] * 7, [1] * 7, dtype=dtype)
    np.testing.assert_array_equal(
        [dx, low, high], [[0, 1, 1, 1, 0, 0, 0], [1, 0, 0, 0, 0, 0, 0], [0, 0, 0, 0, 1, 0, 1]]
    )
    _, dx, low, high = value_and_grads(ops.clamp, [0, 3], [2, 2], [1, 1], dtype=dtype)  # low > high: high it is
    np.testing.assert_array_equal([dx, low, high], [[0, 0], [0, 0], [1, 1]])


@pytest.mark.parametrize(
    ("f", "x", "y"),
    [
        (lambda x: x + 15.99, 65504, 65504), (lambda x: x + 16, 65504, INF), (lambda x: x * 2, 65504, INF),
        (lambda x: x * 0.5, 2.0**-24, 0), (lambda x: x * 0.5, 3 * 2.0**-24, 2.0**-23),
        (lambda x: x / 4, 2.0**-14, 2.0**-16),
        (lambda x: x + 1, 2048, 2048), (lambda x: x + 1, 2050, 2052), (ops.exp, 11.086, 65248), (ops.exp, 11.1, INF),
        (ops.square, 255.875, 65472), (ops.square, 256, INF), (ops.reciprocal, 2.0**-16, INF),
        (ops.rsqrt, 2.0**-24, 4096),
        (lambda x: x * 65504 / 65504, 3, INF), (lambda x: x - 0.0001, 1, 1),
    ],
)  # fmt: skip
def test_fp16_rounds_once_at_the_end(f, x, y):
    assert f(mp.tensor(np.array([x], F16))).tolist() == [F16(y)]


def test_fp16_gradients_do_not_overflow_inside():
    pytest.importorskip("tinymp.ops.more.compare")
    x, y = mp.tensor(np.array([300.0], F16), requires_grad=True), mp.tensor(np.array([0.001], F16), requires_grad=True)
    (x / y).backward(np.array([1e-4], F16))
    assert x.grad == F16(np.float64(F16(1e-4)) / np.float64(F16(0.001)))
    assert y.grad == F16(-np.float64(F16(1e-4)) * 300 / np.float64(F16(0.001)) ** 2)  # x / y^2 alone is 3e8


@pytest.mark.parametrize(
    ("f", "result", "values"),
    [
        (lambda i, b, u: i + 1.5, "float32", [2.5, 3.5, 4.5]), (lambda i, b, u: i * 2, "int64", [2, 4, 6]),
        (lambda i, b, u: 1 / i, "float32", [1, 0.5, F32(1 / 3)]), (lambda i, b, u: i**2, "int64", [1, 4, 9]),
        (lambda i, b, u: 2**i, "int64", [2, 4, 8]), (lambda i, b, u: i + b, "int64", [2, 2, 4]),
        (lambda i, b, u: u + i, "int64", [4, 4, 4]), (lambda i, b, u: u + 1, "uint8", [4, 3, 2]),
        (lambda i, b, u: b + b, "bool", [True, False, True]), (lambda i, b, u: ops.abs(-i), "int64", [1, 2, 3]),
        (lambda i, b, u: ops.maximum(i, u), "int64", [3, 2, 3]),
        (lambda i, b, u: ops.clamp(u, 1, 2), "uint8", [2, 2, 1]),
        (lambda i, b, u: ops.where(b, u, i), "int64", [3, 2, 1]),
        (lambda i, b, u: ops.where(b, i, 0.5), "float32", [1, 0.5, 3]),
        (lambda i, b, u: ops.where(b, 1, 0), "int64", [1, 0, 1]),
        (lambda i, b, u: ops.masked_fill(u, b, mp.tensor(1.0)), "uint8", [1, 2, 1]),
        (lambda i, b, u: ops.add(i, i, alpha=2), "int64", [3, 6, 9]),
    ],
)  # fmt: skip
def test_integers(f, result, values):
    i, b, u = np.array([1, 2, 3]), np.array([True, False, True]), np.array([3, 2, 1], np.uint8)
    y = f(*map(mp.tensor, (i, b, u)))
    assert y.dtype == result and y.tolist() == values and not y.requires_grad


@pytest.mark.parametrize("name", BINARY)
def test_integers_beside_a_floating_tensor_take_its_dtype(name):
    x, i = mp.tensor(np.array([1.5, 2], F16), requires_grad=True), mp.tensor([2, 3])
    for y in (getattr(ops, name)(x, i), getattr(ops, name)(i, x)):
        assert y.dtype == F16 and y.requires_grad


@pytest.mark.parametrize("value", [70_000, 65520.0])
@pytest.mark.parametrize("name", ARITHMETIC)
def test_constants_that_do_not_fit_fp16(name, value):
    half = mp.tensor(np.ones(2, F16))
    for given in ((value, half), (half, value)):
        with pytest.raises(ValueError, match=f"{name}: the constant .* does not fit FP16"):
            getattr(ops, name)(*given)
    getattr(ops, name)(half.float(), value)
