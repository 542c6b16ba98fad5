"""Dropout: the share that survives, the scale, the mask shared by forward and backward."""

import numpy as np
import pytest

import tinymp as mp
from oracle import host
from tinymp import ops


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_dropout(dtype, p):
    mp.manual_seed(3)
    n = 20_000
    x = mp.tensor(np.ones(n, dtype), requires_grad=True)
    y = ops.dropout(x, p)
    y.backward(np.full(n, 2, dtype))
    kept = y.numpy() != 0
    scale = np.array(1 / (1 - p), "float64" if dtype == "float64" else "float32")
    assert y.dtype == dtype
    assert abs(kept.mean() - (1 - p)) < 5 * np.sqrt(p * (1 - p) / n)  # five standard deviations
    np.testing.assert_array_equal(y.numpy()[kept], scale.astype(dtype))
    np.testing.assert_array_equal(host(x.grad), np.where(kept, (2 * scale).astype(dtype), 0))
