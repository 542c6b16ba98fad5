"""Convolutions against loops over the definition, and against each other."""

import numpy as np
import pytest

import tinymp as mp
from convolutions import CASES, TRANSPOSED, loops, sides, transposed
from oracle import check, host, randn
from tinymp import fast_path, ops


@pytest.fixture(autouse=True)
def _definitions(monkeypatch):
    monkeypatch.setattr(fast_path, "off", {"forward", "backward"})


@pytest.mark.parametrize(("x", "w", "stride", "padding", "dilation", "groups"), CASES)
@pytest.mark.parametrize("bias", [True, False])
def test_conv2d(x, w, stride, padding, dilation, groups, bias):
    inputs = [randn(*x), randn(*w, seed=2)] + ([randn(w[0], seed=3)] if bias else [])

    def op(x, w, b=None):
        return ops.conv2d(x, w, b, stride, padding, dilation, groups)

    def oracle(x, w, b=None):
        return loops(x, w, b, stride, sides(padding), dilation, groups)

    terms = w[1] * w[2] * w[3] + 1
    check(
        op, oracle, *inputs, length=terms, magnitude=lambda *a: oracle(*a).max(), grad_length=x[0] * x[2] * x[3] * w[0]
    )


@pytest.mark.parametrize("kernel", [(3, 3), (2, 4), (1, 5)])
@pytest.mark.parametrize("dilation", [1, 2])
def test_conv2d_same_keeps_the_size_and_pads_more_on_the_right(kernel, dilation):
    spans = [dilation * (k - 1) for k in kernel]
    pads = [(s // 2, s - s // 2) for s in spans]

    def oracle(x, w):
        return loops(x, w, pads=pads, dilation=(dilation, dilation))

    check(
        lambda x, w: ops.conv2d(x, w, padding="same", dilation=dilation),
        oracle,
        randn(2, 2, 7, 8),
        randn(3, 2, *kernel, seed=2),
        length=2 * kernel[0] * kernel[1],
        magnitude=lambda *a: oracle(*a).max(),
        grad_length=400,
    )


@pytest.mark.parametrize(("x", "w", "stride", "padding", "output_padding", "groups", "dilation"), TRANSPOSED)
@pytest.mark.parametrize("bias", [True, False])
def test_conv_transpose2d(x, w, stride, padding, output_padding, groups, dilation, bias):
    inputs = [randn(*x), randn(*w, seed=2)] + ([randn(w[1] * groups, seed=3)] if bias else [])

    def op(x, w, b=None):
        return ops.conv_transpose2d(x, w, b, stride, padding, output_padding, groups, dilation)

    def oracle(x, w, b=None):
        return transposed(x, w, b, stride, padding, output_padding, groups, dilation)

    terms = w[0] * w[2] * w[3] + 1
    check(op, oracle, *inputs, length=terms, magnitude=lambda *a: oracle(*a).max(), grad_length=x[0] * x[2] * x[3] * 20)


EMPTY = {
    "conv2d": (lambda x, w, b: ops.conv2d(x, w, b, 2, 1, groups=2), (0, 4, 6, 5), (6, 2, 3, 3), (0, 6, 3, 3)),
    "conv2d, no channels": (ops.conv2d, (2, 0, 6, 5), (6, 0, 3, 3), (2, 6, 4, 3)),
    "conv2d, a kernel per channel": (lambda *x: ops.conv2d(*x, groups=6), (0, 6, 6, 5), (6, 1, 3, 3), (0, 6, 4, 3)),
    "conv_transpose2d": (ops.conv_transpose2d, (0, 4, 6, 5), (4, 6, 3, 3), (0, 6, 8, 7)),
}


@pytest.mark.parametrize("case", EMPTY)
def test_empty(case):
    """Nothing in gives nothing out (of no channels: the bias), and gradients of zeros."""
    dtype, (op, x, w, shape) = "float16", EMPTY[case]
    x, w, b = (mp.tensor(randn(*s).astype(dtype), requires_grad=True) for s in (x, w, (6,)))
    y = op(x, w, b)
    assert y.shape == shape and y.dtype == dtype
    if y.numel():
        np.testing.assert_array_equal(y.numpy(), np.broadcast_to(b.numpy().reshape(6, 1, 1), shape))
    y.sum().backward()
    assert x.grad.shape == x.shape
    np.testing.assert_array_equal(host(w.grad), 0)
    np.testing.assert_array_equal(host(b.grad), np.full(6, y.numel() / 6 if shape[0] else 0))
