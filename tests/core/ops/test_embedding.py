"""Embedding: rows out, summed gradients back."""

import numpy as np
import pytest

import tinymp as mp
from oracle import check, host, randn
from tinymp import ops


@pytest.mark.parametrize(
    "index", [np.array(2), np.array([0, 3, 3, 3, 6]), np.array([[1, 2, 1], [6, 0, 1]]), np.empty((0, 2), int)]
)
def test_embedding(index):
    check(
        lambda w: ops.embedding(mp.tensor(index), w),
        lambda w: w[index],
        randn(7, 4),
        roundings=0,
        length=-4,
        grad_length=8,
    )


def test_padding_idx_gets_no_gradient():
    for padding in (2, -5):
        w = mp.tensor(randn(7, 4), requires_grad=True)
        ops.embedding(mp.tensor([2, 3, 2]), w, padding_idx=padding).sum().backward()
        np.testing.assert_array_equal(host(w.grad).sum(1), [0, 0, 0, 4, 0, 0, 0])


def test_repeated_rows_add_up_in_fp32():
    """3 000 gradients of 1 to one row: an FP16 sum stalls at 2048."""
    w = mp.tensor(np.zeros((2, 1), "float16"), requires_grad=True)
    ops.embedding(mp.tensor(np.ones(3000, int)), w).backward(np.ones((3000, 1), "float16"))
    assert w.grad.tolist() == [[0], [3000]]
