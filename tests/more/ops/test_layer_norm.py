"""layer_norm and normalize."""

import numpy as np
import pytest

import tinymp as mp
from oracle import check, host, randn
from tinymp import ops

EPS = 1e-5


@pytest.mark.parametrize("normalized", [(5,), (4, 5)])
@pytest.mark.parametrize("affine", ["both", "weight", "none"])
def test_layer_norm(normalized, affine):
    parameters = {"both": 2, "weight": 1, "none": 0}[affine]
    axes = tuple(range(-len(normalized), 0))

    def oracle(x, w=1, b=0):
        return (x - x.mean(axes, keepdims=True)) / np.sqrt(x.var(axes, keepdims=True) + EPS) * w + b

    inputs = [randn(*normalized, seed=2 + i) for i in range(parameters)]
    check(lambda x, *p: ops.layer_norm(x, normalized, *p), oracle, randn(3, 4, 5), *inputs, length=60, grad_length=200)


@pytest.mark.parametrize("p", [1.0, 1.5, 2.0, 3.0])
@pytest.mark.parametrize("dim", [0, 1, -1])
def test_normalize(p, dim):
    def oracle(x):
        return x / np.maximum((np.abs(x) ** p).sum(dim, keepdims=True) ** (1 / p), 1e-12)

    check(lambda x: ops.normalize(x, p, dim), oracle, randn(3, 4, 5), length=16, grad_length=60)


def test_normalize_of_zeros_is_zero_with_a_finite_gradient():
    for dtype in ("float32", "float64"):
        x = mp.tensor(np.zeros((2, 3), dtype), requires_grad=True)
        y = ops.normalize(x, eps=0.5)
        y.backward(np.ones((2, 3), dtype))
        np.testing.assert_array_equal(y.numpy(), 0)
        np.testing.assert_array_equal(host(x.grad), 2)


@pytest.mark.parametrize("p", [1.0, 1.5, 2.0, 3.0, 4.0, 17.0])
def test_the_gradient_of_normalizing_zeros(p):
    x = np.array([[0, 0, 0], [3, 0, -4]], "float32")
    dy = np.array([[1, 2, -3], [1, 2, -3]], "float32")
    t = mp.tensor(x, requires_grad=True)
    y = ops.normalize(t, p)
    y.backward(dy)
    n = (np.abs(x[1].astype("float64")) ** p).sum() ** (1 / p)
    u = x[1] / n
    np.testing.assert_allclose(y.numpy(), [[0, 0, 0], u], rtol=1e-6)
    expected = (dy[1] - np.sign(u) * np.abs(u) ** (p - 1) * (dy[1] * u).sum()) / n
    np.testing.assert_allclose(host(t.grad), [dy[0] / np.float32(1e-12), expected], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("p", [1.0, 2.0, 3.0, 4.0, 17.0])
@pytest.mark.parametrize("size", [1e-10, 1e-11, 1, 1e10, 1e18])
def test_normalize_of_small_and_large_values(size, p):
    """y does not depend on the size of x, and dx is inversely proportional to it."""
    x, dy = randn(2, 5), randn(2, 5, seed=1)
    n = (np.abs(x) ** p).sum(1, keepdims=True) ** (1 / p)
    t = mp.tensor((x * size).astype("float32"), requires_grad=True)
    y = ops.normalize(t, p)
    y.backward(dy.astype("float32"))
    u = x / n
    expected = (dy - np.sign(u) * np.abs(u) ** (p - 1) * (dy * u).sum(1, keepdims=True)) / n
    np.testing.assert_allclose(y.numpy(), u, rtol=1e-5)
    np.testing.assert_allclose(host(t.grad) * size, expected, rtol=1e-4, atol=1e-5)


def test_normalize_of_infinity():
    for p in (1.5, 2, 3):
        y = ops.normalize(mp.tensor(np.array([[np.inf, 1], [np.nan, 1]], "float32")), p)
        np.testing.assert_array_equal(y.numpy(), [[np.nan, 0], [np.nan, np.nan]])


def test_layer_norm_over_nothing():
    x = mp.tensor(np.zeros((2, 0), "float16"), requires_grad=True)
    y = ops.layer_norm(x, (0,))
    assert y.shape == (2, 0) and y.dtype == "float16"
    y.sum().backward()
    assert x.grad.shape == (2, 0)


def test_normalize_of_a_tensor_without_axes():
    x = mp.tensor(-4.0, requires_grad=True)
    y = ops.normalize(x, dim=0)
    assert y.shape == () and y.item() == -1
    y.backward()
    assert x.grad.shape == ()
