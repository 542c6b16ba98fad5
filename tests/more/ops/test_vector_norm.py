"""norm: every p against its formula, over every axis, at the ends of the range."""

import numpy as np
import pytest

import tinymp as mp
from oracle import check, distinct, host
from tinymp import ops

INF = float("inf")


@pytest.mark.parametrize("dim", [None, 0, (0, 2), -1])
@pytest.mark.parametrize("p", ["fro", 1, 2, 3, 1.5, 0.5, -1, INF, -INF])
def test_norm(p, dim):
    ord = 2 if p == "fro" else p
    axes = tuple(range(3)) if dim is None else dim if isinstance(dim, tuple) else (dim,)
    n = 60

    def oracle(x):
        size = np.abs(x)
        if abs(ord) == INF:
            return size.max(axes) if ord > 0 else size.min(axes)
        return (size**ord).sum(axes) ** (1 / ord)

    x = distinct(3, 4, 5, step=0.25)
    check(lambda x: ops.norm(x, p, dim), oracle, x, length=n, grad_length=n)
    assert ops.norm(mp.tensor(x), p, dim, keepdim=True).shape == np.sum(x, axes, keepdims=True).shape


def test_how_many_are_not_zero():
    x = mp.tensor([[0.0, 2.0, -3.0], [0.0, 0.0, 0.0]], requires_grad=True)
    y = x.norm(0, 1)
    assert y.tolist() == [2, 0]
    y.sum().backward()
    assert not x.grad.any()


@pytest.mark.parametrize("p", [1, 2, 3, INF])
def test_zero_rows_have_a_finite_gradient(p):
    x = mp.tensor(np.array([[0.0, 0.0], [3.0, 0.0]], "float16"), requires_grad=True)
    x.norm(p, 1).sum().backward()
    assert host(x.grad).tolist() == [[0, 0], [1, 0]]


@pytest.mark.parametrize("size", [1e-30, 1e-10, 1e10, 1e30])
@pytest.mark.parametrize("p", [2, 3, 4.5])
def test_powers_stay_in_range(p, size):
    x = mp.tensor(np.array([3.0, 4.0], "float32") * np.float32(size), requires_grad=True)
    y = x.norm(p)
    expected = (3.0**p + 4.0**p) ** (1 / p) * size
    np.testing.assert_allclose(y.item(), expected, rtol=1e-6)
    y.backward()
    np.testing.assert_allclose(host(x.grad), (np.array([3, 4]) * size / expected) ** (p - 1), rtol=1e-5)


def test_edges():
    assert np.isnan(mp.tensor([1.0, float("nan")]).norm().item())
    assert mp.tensor([1.0, -INF]).norm(3).item() == INF
    assert mp.tensor(np.full(4, 65504, "float16")).norm().item() == INF  # stored, it is beyond FP16
    assert mp.tensor(np.zeros((2, 0), "float32")).norm(2, 1).tolist() == [0, 0]
    with pytest.raises(ValueError, match="norm: expected at least one element for p=inf"):
        mp.tensor(np.zeros((2, 0), "float32")).norm(INF, 1)
