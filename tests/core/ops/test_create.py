"""New tensors: shape, dtype, values."""

import numpy as np
import pytest

import tinymp as mp
from tinymp import ops

X = mp.tensor(np.ones((2, 3), np.float16))


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        (lambda: ops.zeros(2, 3), np.zeros((2, 3), np.float32)),
        (lambda: ops.zeros((2, 0), dtype="float16"), np.zeros((2, 0), np.float16)),
        (lambda: ops.ones(2, dtype=bool, device="cpu"), np.ones(2, bool)),
        (lambda: ops.full((2,), 0.5), np.full(2, 0.5, np.float32)),
        (lambda: ops.full((1,), 65504, dtype="float16"), np.full(1, 65504, np.float16)),
        (lambda: ops.full((1,), np.float64(0.1)), np.full(1, 0.1, np.float32)),
        (lambda: ops.full_like(X, -2.5), np.full((2, 3), -2.5, np.float16)),
        (lambda: ops.arange(4), np.arange(4)),
        (lambda: ops.arange(7, 1, -2), np.array([7, 5, 3])),
        (lambda: ops.arange(1, 2, 0.3), np.array([1, 1.3, 1.6, 1.9], np.float32)),
        (lambda: ops.arange(0, 256, dtype="uint8"), np.arange(256).astype(np.uint8)),  # the end is exclusive
        (lambda: ops.arange(0, 1, 0.25, dtype="float16"), np.array([0, 0.25, 0.5, 0.75], np.float16)),
    ],
)
def test_makes(made, expected):
    y = made()
    assert not y.requires_grad
    np.testing.assert_array_equal(y.numpy(), expected, strict=True)


def test_each_value_of_arange_is_rounded_once():
    np.testing.assert_array_equal(ops.arange(0, 100, 0.1).numpy(), (np.arange(1000) * 0.1).astype(np.float32))
