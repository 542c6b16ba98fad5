"""Pooling against loops over windows; averages, and the places of maxima, are in ops/more."""

import numpy as np
import pytest

import tinymp as mp
from oracle import check, distinct, randn
from tinymp import ops


def window_loop(x, out, kernel, stride, padding, dilation, fill, reducer):
    """reducer over every window; windows may hang over the right and bottom edge (ceil_mode)."""
    n, c, h, w = x.shape
    far = [
        max((o - 1) * s + d * (k - 1) + 1 - m - p, 0)
        for o, s, d, k, m, p in zip(out, stride, dilation, kernel, (h, w), padding)
    ]
    x = np.pad(x, ((0, 0), (0, 0), (padding[0], far[0]), (padding[1], far[1])), constant_values=fill)
    y = np.empty((n, c, *out))
    for i in range(out[0]):
        for j in range(out[1]):
            rows = i * stride[0] + np.arange(kernel[0]) * dilation[0]
            cols = j * stride[1] + np.arange(kernel[1]) * dilation[1]
            y[:, :, i, j] = reducer(x[:, :, rows][:, :, :, cols], i, j)
    return y


@pytest.mark.parametrize(
    ("shape", "kernel", "stride", "padding", "dilation", "ceil", "out"),
    [
        ((2, 3, 6, 8), (2, 2), (2, 2), (0, 0), (1, 1), False, (3, 4)),
        ((2, 3, 7, 5), (3, 2), (2, 1), (1, 1), (1, 1), False, (4, 6)),
        ((1, 2, 7, 7), (3, 3), (2, 2), (0, 0), (1, 1), True, (3, 3)),
        ((1, 2, 6, 8), (3, 3), (2, 3), (1, 0), (1, 1), True, (4, 3)),
        ((2, 1, 8, 9), (2, 3), (2, 2), (1, 1), (2, 2), False, (4, 4)),
        ((1, 1, 1, 1), (1, 1), (1, 1), (0, 0), (1, 1), False, (1, 1)),
    ],
)
def test_max_pool2d(shape, kernel, stride, padding, dilation, ceil, out):
    def oracle(x):
        return window_loop(x, out, kernel, stride, padding, dilation, -np.inf, lambda v, i, j: v.max((2, 3)))

    def op(x):
        return ops.max_pool2d(x, kernel, stride, padding, dilation, ceil)

    check(op, oracle, distinct(*shape), roundings=0, length=-4)


@pytest.mark.parametrize(
    ("values", "places"),
    [
        ([[1, np.nan], [2, np.nan]], [0, 1, 1, 2, 1, 1, 2, 3, 3]),  # the first nan, not what comes after it
        ([[-np.inf, -np.inf], [-np.inf, -np.inf]], [0, 0, 1, 0, 0, 1, 2, 2, 3]),  # never the padding
    ],
)
def test_max_pool2d_takes_nan_and_no_padding(values, places):
    x = mp.tensor(np.array([[values]], "float16"), requires_grad=True)
    y, index = ops.max_pool2d(x, 2, 1, 1, return_indices=True)
    assert index.array.reshape(-1).tolist() == places
    y.backward(np.ones(y.shape, "float16"))
    assert x.grad.reshape(-1).tolist() == [places.count(i) for i in range(4)]


def test_max_pool2d_indices():
    x = distinct(2, 3, 7, 6)
    y, index = ops.max_pool2d(mp.tensor(x), (3, 2), (2, 1), 1, return_indices=True)
    assert index.dtype == np.int64
    rows, places = x.reshape(2, 3, -1), index.numpy().reshape(2, 3, -1)
    np.testing.assert_array_equal(np.take_along_axis(rows, places, 2), y.numpy().reshape(2, 3, -1))


@pytest.mark.parametrize(
    ("shape", "kernel", "stride", "padding", "ceil", "include", "divisor", "out"),
    [
        ((2, 3, 7, 5), (3, 2), (2, 1), (1, 1), False, True, None, (4, 6)),
        ((2, 3, 7, 5), (3, 2), (2, 1), (1, 1), False, False, None, (4, 6)),
        ((1, 2, 6, 8), (3, 3), (2, 3), (1, 0), True, True, None, (4, 3)),
        ((1, 2, 6, 8), (3, 3), (2, 3), (1, 1), True, False, None, (4, 3)),
        ((1, 2, 6, 8), (2, 2), (2, 2), (0, 0), False, True, 3, (3, 4)),
    ],
)
def test_avg_pool2d(shape, kernel, stride, padding, ceil, include, divisor, out):
    def mean(v, i, j):
        sizes = []
        for o, k, s, p, n in zip((i, j), kernel, stride, padding, shape[2:]):
            start = o * s - p
            end = min(start + k, n + p)
            sizes.append(end - start if include else min(end, n) - max(start, 0))
        return v.sum((2, 3)) / (divisor or sizes[0] * sizes[1])

    def op(x):
        return ops.avg_pool2d(x, kernel, stride, padding, ceil, include, divisor)

    def oracle(x):
        return window_loop(x, out, kernel, stride, padding, (1, 1), 0, mean)

    check(op, oracle, randn(*shape), length=9, grad_length=9)


@pytest.mark.parametrize("size", [1, (2, 3), (None, 2), (8, 9)])
def test_adaptive_avg_pool2d(size):
    def oracle(x):
        h, w = x.shape[2:]
        oh, ow = (size, size) if isinstance(size, int) else (size[0] or h, size[1])
        y = np.empty((*x.shape[:2], oh, ow))
        for i in range(oh):
            for j in range(ow):
                rows, cols = slice(i * h // oh, -(-(i + 1) * h // oh)), slice(j * w // ow, -(-(j + 1) * w // ow))
                y[:, :, i, j] = x[:, :, rows, cols].mean((2, 3))
        return y

    check(lambda x: ops.adaptive_avg_pool2d(x, size), oracle, randn(2, 3, 5, 7), length=36, grad_length=20)
