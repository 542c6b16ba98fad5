"""Activations of the core: values and gradients, kinks and extremes. Others: tests/more/ops/test_activation."""

import numpy as np
import pytest

import tinymp as mp
from oracle import check, distinct, host, randn
from tinymp import ops


def sigmoid(x):
    return np.where(x >= 0, 1 / (1 + np.exp(-np.abs(x))), np.exp(-np.abs(x)) / (1 + np.exp(-np.abs(x))))


CASES = [
    # op, oracle, number of rounded saved arrays that backward reads
    (ops.relu, lambda x: np.maximum(x, 0), 0),
    (lambda x: ops.leaky_relu(x, 0.2), lambda x: np.where(x > 0, x, 0.2 * x), 0),
    (ops.sigmoid, sigmoid, 8),  # y near 1 moves 1 - y by u: dx by u dy, which is 4 u max dx (where y = 1/2)
    (ops.tanh, np.tanh, 4),
]


@pytest.mark.parametrize(("op", "oracle", "inherited"), CASES)
@pytest.mark.parametrize("x", [distinct(6, 8, step=0.3), 0.01 * randn(5, 3), np.array(0.4), np.empty((0, 3))], ids=str)
def test_activation(op, oracle, inherited, x):
    check(op, oracle, x, length=8, grad_length=24, inherited=inherited)


INF, NAN, TINY = float("inf"), float("nan"), 2.0**-24
EDGES = {
    "relu": ([-INF, -65504, -TINY, -0.0, 0, TINY, INF, NAN], [0, 0, 0, 0, 0, TINY, INF, NAN], [0] * 5 + [1, 1]),
    "leaky_relu": ([-INF, -1, -0.0, 0, 1, INF, NAN], [-INF, -0.01, 0, 0, 1, INF, NAN], [0.01] * 4 + [1, 1]),
    "sigmoid": ([-INF, -65504, 65504, INF, NAN], [0, 0, 1, 1, NAN], [0] * 4),
    "tanh": ([-INF, -65504, 65504, INF, NAN], [-1, -1, 1, 1, NAN], [0] * 4),
}


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("name", EDGES)
def test_edges(name, dtype):
    x, y, dx = (np.array(v, dtype) for v in EDGES[name])
    t = mp.tensor(x, requires_grad=True)
    z = getattr(ops, name)(t)
    z.backward(np.ones(z.shape, dtype))
    np.testing.assert_allclose(z.numpy(), y, rtol=np.finfo(dtype).eps)
    np.testing.assert_allclose(host(t.grad)[: len(dx)], dx, rtol=np.finfo(dtype).eps)


def test_relu_of_every_half_and_of_an_infinite_gradient():
    with np.errstate(invalid="ignore"):  # signalling nans among them
        x = np.arange(65536, dtype=np.uint16).view(np.float16)
        np.testing.assert_array_equal(ops.relu(mp.tensor(x)).numpy(), np.maximum(x, 0))
    x = mp.tensor([-1.0, 1.0], requires_grad=True)
    ops.relu(x).backward(np.array([INF, INF], "float32"))
    assert x.grad.tolist() == [0, INF]
