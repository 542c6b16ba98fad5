"""Batch norm: FP16 in and out, FP32 statistics and parameters."""

import numpy as np
import pytest

import tinymp as mp
from oracle import assert_close, check, host, randn, tolerance
from tinymp import ops

EPS = 1e-5


def batch_norm(x, w=None, b=None):
    axes = (0, *range(2, x.ndim))
    shape = (1, -1, *[1] * (x.ndim - 2))
    y = (x - x.mean(axes, keepdims=True)) / np.sqrt(x.var(axes, keepdims=True) + EPS)
    y = y if w is None else y * w.reshape(shape)
    return y if b is None else y + b.reshape(shape)


@pytest.mark.parametrize("shape", [(4, 3), (4, 3, 5), (3, 4, 5, 6), (3, 1, 2, 2)])
@pytest.mark.parametrize("affine", [True, False])
def test_batch_norm_training(shape, affine):
    parameters = [randn(shape[1], seed=2), randn(shape[1], seed=3)] if affine else []
    n = 20 * int(np.prod(shape)) // shape[1]
    check(
        lambda x, *p: ops.batch_norm(x, None, None, *p, training=True),
        batch_norm,
        randn(*shape),
        *parameters,
        length=n,
        grad_length=8 * n,
        inherited=0,
    )


@pytest.mark.parametrize("shape", [(4, 3), (3, 3, 5, 6)])
def test_batch_norm_evaluation(shape):
    mean, var = randn(3, seed=4), randn(3, seed=5) ** 2
    wide = (1, -1, *[1] * (len(shape) - 2))

    def op(x, w, b):
        running = [mp.tensor(v.astype("float64" if x.dtype == np.float64 else "float32")) for v in (mean, var)]
        return ops.batch_norm(x, *running, w, b)

    def oracle(x, w, b):
        return (x - mean.reshape(wide)) / np.sqrt(var.reshape(wide) + EPS) * w.reshape(wide) + b.reshape(wide)

    check(op, oracle, randn(*shape), randn(3, seed=2), randn(3, seed=3), length=8, grad_length=200)


def test_large_mean_does_not_cancel():
    """Values near 1000 with a spread of 1: E[x^2] - E[x]^2 in FP32 would lose the variance to rounding."""
    x = (1000 + randn(64, 2, 8, 8)).astype("float16").astype("float64")
    y = ops.batch_norm(mp.tensor(x.astype("float16")), None, None, training=True).numpy()
    assert_close(y, batch_norm(x), tolerance("float16", batch_norm(x), 1, 4096 * 8, 1.0), "large mean")


def test_statistics_that_move_before_backward():
    """An op that saved them must not go on with others: batch norm in evaluation keeps a copy, others raise."""
    x, dy = randn(6, 3, seed=1).astype("float32"), randn(6, 3, seed=2).astype("float32")
    mean, var = (mp.tensor(v) for v in (randn(3, seed=3).astype("float32"), np.float32([1, 2, 3])))
    w, b = (mp.tensor(np.ones(3, "float32"), requires_grad=True) for _ in range(2))
    xhat = (x - mean.numpy()) / np.sqrt(var.numpy() + EPS)
    y, product = ops.batch_norm(mp.tensor(x), mean, var, w, b), w * mean
    ops.batch_norm(mp.tensor(dy), mean, var, training=True)
    y.backward(dy)
    np.testing.assert_allclose(host(w.grad), (dy * xhat).sum(0), rtol=1e-5)
    with pytest.raises(RuntimeError, match="changed in place"):
        product.sum().backward()


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("shape", [(0, 3), (2, 3, 0), (2, 0, 4)])
def test_batch_norm_of_nothing(shape, training):
    """Nothing comes out, the gradients are zeros, and the running statistics stay; only the counter moves."""
    c = shape[1]
    x = mp.tensor(np.zeros(shape, "float16"), requires_grad=True)
    w, b = (mp.tensor(np.ones(c, "float32"), requires_grad=True) for _ in range(2))
    mean, var, count = mp.ones(c), mp.ones(c), mp.tensor(3)
    y = ops.batch_norm(x, mean, var, w, b, training, num_batches_tracked=count)
    y.sum().backward()
    assert y.shape == x.grad.shape == shape and y.dtype == "float16" and count.item() == 3 + training
    for v, expected in ((w.grad, 0), (b.grad, 0), (mean, 1), (var, 1)):
        np.testing.assert_array_equal(v.numpy(), expected)
