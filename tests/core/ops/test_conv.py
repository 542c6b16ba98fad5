"""Convolutions against loops over the definition, and against each other."""

import pytest

from convolutions import CASES, TRANSPOSED, loops, sides, transposed
from oracle import check, randn
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
