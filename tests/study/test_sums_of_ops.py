"""Sums that ops build up piece by piece follow the policy's accumulator, like those of `reduce` and `gemm`."""

import numpy as np
import pytest

import tinymp as mp
from tinymp import ops


def halves(array):
    return mp.tensor(np.asarray(array, "float16"), requires_grad=True)


@pytest.mark.parametrize(("policy", "expected"), [(mp.MIXED, 1.0), (mp.FP16_REDUCTIONS, 0.5)])
def test_average_pooling(policy, expected):
    """4 096 ones: an FP16 accumulator stalls at 2 048."""
    with mp.use(policy):
        assert ops.avg_pool2d(halves(np.ones((1, 1, 64, 64))), 64).item() == expected


@pytest.mark.parametrize(("policy", "expected"), [(mp.MIXED, 5000), (mp.FP16_REDUCTIONS, 2048)])
def test_lookup_gradients(policy, expected):
    for lookup in (lambda w, i: ops.embedding(i, w), lambda w, i: w[i], lambda w, i: ops.index_select(w, 0, i)):
        w = halves(np.zeros((2, 1)))
        with mp.use(policy):
            lookup(w, mp.tensor(np.ones(5000, int))).backward(np.ones((5000, 1), "float16"))
        assert w.grad.tolist() == [[0], [expected]]


@pytest.mark.parametrize(("policy", "expected"), [(mp.MIXED, 4900), (mp.FP16_ACCUMULATE, 2048)])
def test_folded_products(policy, expected):
    """The centre of a transposed convolution meets 4 900 kernels."""
    with mp.use(policy):
        y = ops.conv_transpose2d(halves(np.ones((1, 1, 70, 70))), halves(np.ones((1, 1, 70, 70))))
    assert y.array[0, 0, 69, 69] == expected
