"""Convolutions on a CPU, by every way that their fast paths have, against their definition, in both directions."""

import numpy as np
import pytest

import tinymp as mp
from convolutions import CASES, TRANSPOSED
from oracle import SPACING, STORAGE, WORK, host, randn
from tinymp import fast_path, ops
from tinymp.fast.cpu import conv

pytestmark = pytest.mark.cpu
BOTH = {"forward", "backward"}


@pytest.fixture(params=["by its size", "columns", "rows", "parts of rows", "blocks"])
def way(request, monkeypatch):
    """Convolution by columns, and by rows where they lie, whole or in parts, whatever their sizes."""
    if request.param == "blocks":
        monkeypatch.setattr(conv, "BLOCK", 1)
        monkeypatch.setattr(conv, "CACHED", 1)
    elif request.param != "by its size":
        monkeypatch.setattr(conv, "RUN", 1 << 30 if request.param == "columns" else 1)
        monkeypatch.setattr(conv, "SMALL", 400 if request.param == "parts of rows" else 1 << 30)


def results(monkeypatch, off, op, arrays, dtype, change=lambda x: x):
    """The result and the gradients of op without these fast paths."""
    monkeypatch.setattr(fast_path, "off", off)
    tensors = [mp.tensor(change(a.astype(dtype)), requires_grad=True) for a in arrays]
    y = op(*tensors)
    y.backward(change(randn(*y.shape, seed=9).astype(dtype)))
    return [y.numpy(), *[host(t.grad) for t in tensors]]


def check_both_directions(monkeypatch, op, *arrays):
    """|fast - definition| <= one ulp of storage + 2 n u_w sum |terms|, with the symbols of oracle.py: n terms, of which
    the sums of sizes come from the definition of the absolute values.
    """
    n = max(a.size for a in arrays) * arrays[1].size  # no sum is longer
    for dtype in ("float64", "float32", "float16"):
        expected = results(monkeypatch, BOTH, op, arrays, dtype)
        sizes = results(monkeypatch, BOTH, op, [a.astype(dtype).astype("f8") for a in arrays], "float64", np.abs)
        for off in (set(), {"forward"}, {"backward"}):
            for e, size, got in zip(expected, sizes, results(monkeypatch, off, op, arrays, dtype), strict=True):
                e, bound = e.astype("f8"), 2 * n * WORK[dtype] * size + SPACING[dtype]
                assert (abs(got - e) <= 2 * STORAGE[dtype] * abs(e) + bound).all(), (dtype, off)


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize(("x", "w", "stride", "padding", "dilation", "groups"), CASES)
@pytest.mark.parametrize("bias", [True, False])
def test_conv2d(monkeypatch, x, w, stride, padding, dilation, groups, bias):
    check_both_directions(
        monkeypatch,
        lambda x, w, b=None: ops.conv2d(x, w, b, stride, padding, dilation, groups),
        *[randn(*x), randn(*w, seed=2), randn(w[0], seed=3)][: 2 + bias],
    )


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize(("x", "w", "stride", "padding", "output_padding", "groups", "dilation"), TRANSPOSED)
@pytest.mark.parametrize("bias", [True, False])
def test_conv_transpose2d(monkeypatch, x, w, stride, padding, output_padding, groups, dilation, bias):
    check_both_directions(
        monkeypatch,
        lambda x, w, b=None: ops.conv_transpose2d(x, w, b, stride, padding, output_padding, groups, dilation),
        *[randn(*x), randn(*w, seed=2), randn(w[1] * groups, seed=3)][: 2 + bias],
    )


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("w", [(6, 2, 3, 3), (6, 4, 1, 1), (4, 1, 3, 3)])
def test_an_empty_batch(w):
    x, w = (mp.tensor(np.ones(shape, "float16"), requires_grad=True) for shape in ((0, 4, 6, 5), w))
    ops.conv2d(x, w, groups=x.shape[1] // w.shape[1]).sum().backward()
    assert not host(w.grad).any() and x.grad.shape == x.shape
