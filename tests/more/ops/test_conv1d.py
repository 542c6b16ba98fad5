"""conv1d and unfold."""

import numpy as np
import pytest

import tinymp as mp
from convolutions import loops
from oracle import check, randn
from tinymp import ops


@pytest.mark.parametrize("groups", [1, 2])
def test_conv1d(groups):
    def oracle(x, w, b):
        return loops(x[:, :, None], w[:, :, None], b, (1, 2), ((0, 0), (2, 2)), (1, 2), groups)[:, :, 0]

    check(
        lambda x, w, b: ops.conv1d(x, w, b, stride=2, padding=2, dilation=2, groups=groups),
        oracle,
        randn(2, 4, 9),
        randn(6, 4 // groups, 3, seed=2),
        randn(6, seed=3),
        length=13,
        magnitude=lambda *a: oracle(*a).max(),
        grad_length=100,
    )


def test_unfold():
    def oracle(x):
        x = np.pad(x, ((0, 0), (0, 0), (1, 1), (0, 0)))
        rows = range(0, x.shape[2] - 2, 2)
        cols = range(0, x.shape[3] - 2)
        return np.stack([x[:, :, i : i + 3, j : j + 3 : 2].reshape(len(x), -1) for i in rows for j in cols], 2)

    check(lambda x: ops.unfold(x, (3, 2), (1, 2), (1, 0), (2, 1)), oracle, randn(2, 3, 5, 6), grad_length=9)


def test_unfold_without_batch():
    x = mp.tensor(randn(3, 5, 6), requires_grad=True)
    y = ops.unfold(x, 2)
    np.testing.assert_array_equal(y.numpy(), ops.unfold(x.unsqueeze(0), 2).numpy()[0])
    y.sum().backward()
    assert x.grad.shape == (3, 5, 6)


@pytest.mark.cpu
def test_unfold_has_memory_of_its_own():
    x = mp.tensor(randn(2, 3, 4, 4))
    for kernel, stride in ((1, 1), (4, 4), (2, 2)):
        assert not np.shares_memory(ops.unfold(x, kernel, stride=stride).array, x.array)
