"""softmax: exponentials and sums in FP32."""

import numpy as np
import pytest

import tinymp as mp
from oracle import check, randn
from tinymp import ops


def softmax(x, dim):
    e = np.exp(x - x.max(dim, keepdims=True))
    return e / e.sum(dim, keepdims=True)


@pytest.mark.parametrize(("shape", "dim"), [((7,), 0), ((3, 5), 1), ((3, 5), 0), ((2, 3, 4), -2), ((2, 1), 1)])
def test_softmax(shape, dim):
    """Backward reads the stored y twice, and both terms of dx may cancel: each is below max |dy| y."""
    x, lengths = 3 * randn(*shape), {"length": 12, "grad_length": 40, "inherited": 8}
    check(lambda x: ops.softmax(x, dim), lambda x: softmax(x, dim), x, **lengths)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_extreme_logits(dtype):
    """inf / inf and nan are not hidden; nor is a row that is wholly masked, as in PyTorch."""
    inf = np.inf
    x = [[65504, 0, -65504], [-inf, 0, 0], [inf, 0, 0], [np.nan, 0, 0], [-inf, -inf, -inf]]
    y = ops.softmax(mp.tensor(np.array(x, dtype)), 1).numpy()
    np.testing.assert_array_equal(y[:2], np.array([[1, 0, 0], [0, 0.5, 0.5]], dtype))
    assert np.isnan(y[2:]).any(1).all() and np.isnan(y[4]).all()
