"""Pooling over one axis, adaptive max pooling, and conv_transpose1d."""

import numpy as np
import pytest

import tinymp as mp
from oracle import check, distinct, randn
from tinymp import ops


def windows(x, kernel, stride, padding, value):
    x = np.pad(x, [(0, 0)] * (x.ndim - 1) + [(padding, padding)], constant_values=value)
    n = (x.shape[-1] - kernel) // stride + 1
    return np.stack([x[..., i * stride : i * stride + kernel] for i in range(n)], -2)


@pytest.mark.parametrize("shape", [(2, 3, 11), (3, 11)])
@pytest.mark.parametrize(("kernel", "stride", "padding"), [(3, 3, 0), (3, 2, 1), (4, 1, 2)])
def test_pools(kernel, stride, padding, shape):
    check(
        lambda x: ops.max_pool1d(x, kernel, stride, padding),
        lambda x: windows(x, kernel, stride, padding, -np.inf).max(-1),
        distinct(*shape),
        grad_length=8,
    )
    check(
        lambda x: ops.avg_pool1d(x, kernel, stride, padding),
        lambda x: windows(x, kernel, stride, padding, 0).mean(-1),
        randn(*shape),
        length=8,
        grad_length=16,
    )


def test_options():
    x = mp.tensor(np.array([[1.0, 3.0, 2.0, 5.0, 4.0]], "float32"))
    assert ops.max_pool1d(x, 2, ceil_mode=True).tolist() == [[3, 5, 4]]
    assert ops.max_pool1d(x, 2, 1, dilation=3).tolist() == [[5, 4]]
    y, index = ops.max_pool1d(x, (2,), return_indices=True)
    assert (y.tolist(), index.tolist()) == ([[3, 5]], [[1, 3]])
    assert ops.avg_pool1d(x, 2, padding=1, count_include_pad=False).tolist() == [[1, 2.5, 4.5]]


@pytest.mark.parametrize("size", [1, 3, 11, 13])
def test_adaptive_avg_pool1d(size):
    def oracle(x):
        spans = [(i * 11 // size, -(-(i + 1) * 11 // size)) for i in range(size)]
        return np.stack([x[..., a:b].mean(-1) for a, b in spans], -1)

    check(lambda x: ops.adaptive_avg_pool1d(x, size), oracle, randn(2, 3, 11), length=12, grad_length=16)


@pytest.mark.parametrize("size", [1, 3, (7, 5), (2, None), (9, 8)])
@pytest.mark.parametrize("shape", [(2, 3, 7, 5), (3, 7, 5)])
def test_adaptive_max_pool2d(shape, size):
    def oracle(x):
        oh, ow = (size, size) if isinstance(size, int) else (size[0], size[1] or 5)
        rows = [slice(i * 7 // oh, -(-(i + 1) * 7 // oh)) for i in range(oh)]
        cols = [slice(i * 5 // ow, -(-(i + 1) * 5 // ow)) for i in range(ow)]
        return np.stack([np.stack([x[..., r, c].max((-2, -1)) for c in cols], -1) for r in rows], -2)

    x = distinct(*shape)
    # where cells overlap, gradients are stored once for the columns and once for the rows
    check(lambda x: ops.adaptive_max_pool2d(x, size), oracle, x, grad_length=16, inherited=2)
    y, index = ops.adaptive_max_pool2d(mp.tensor(x), size, return_indices=True)
    planes = x.reshape(-1, 35)
    places = index.numpy().reshape(len(planes), -1)
    np.testing.assert_array_equal(np.take_along_axis(planes, places, 1), y.numpy().reshape(len(planes), -1))


def test_the_first_of_equal_maxima_gets_the_gradient():
    x = mp.tensor(np.ones((1, 1, 3, 3), "float32"), requires_grad=True)
    ops.adaptive_max_pool2d(x, 2).sum().backward()
    assert x.grad[0, 0].tolist() == [[1, 1, 0], [1, 1, 0], [0, 0, 0]]


def conv_transpose1d(x, w, b, stride, padding, extra, groups, dilation):
    n, c, length = x.shape
    per, k = w.shape[1], w.shape[2]
    y = np.zeros((n, per * groups, (length - 1) * stride + dilation * (k - 1) + 1 + extra))
    for i in range(c):
        outs = slice(i // (c // groups) * per, (i // (c // groups) + 1) * per)
        for t in range(length):
            for j in range(k):
                y[:, outs, t * stride + j * dilation] += x[:, i, t, None] * w[i, :, j]
    return y[:, :, padding : y.shape[2] - padding] + b[:, None]


@pytest.mark.parametrize(
    ("stride", "padding", "extra", "groups", "dilation"), [(1, 0, 0, 1, 1), (2, 1, 1, 3, 1), (3, 2, 1, 2, 2)]
)
def test_conv_transpose1d(stride, padding, extra, groups, dilation):
    check(
        lambda x, w, b: ops.conv_transpose1d(x, w, b, stride, padding, extra, groups, dilation),
        lambda x, w, b: conv_transpose1d(x, w, b, stride, padding, extra, groups, dilation),
        randn(2, 6, 5),
        randn(6, 2, 3, seed=1),
        randn(2 * groups, seed=2),
        length=40,
        grad_length=60,
    )
