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
        (lambda: ops.zeros(()), np.zeros((), np.float32)),
        (lambda: ops.ones([3], dtype=np.float64), np.ones(3)),
        (lambda: ops.ones(2, dtype=bool, device="cpu"), np.ones(2, bool)),
        (lambda: ops.full((2,), 0.5), np.full(2, 0.5, np.float32)),
        (lambda: ops.full(2, 7), np.full(2, 7)),
        (lambda: ops.full((), True), np.array(True)),
        (lambda: ops.full((1,), 65504, dtype="float16"), np.full(1, 65504, np.float16)),
        (lambda: ops.full((1,), float("-inf"), dtype="float16"), np.full(1, -np.inf, np.float16)),
        (lambda: ops.full((1,), np.float64(0.1)), np.full(1, 0.1, np.float32)),
        (lambda: ops.zeros_like(X), np.zeros((2, 3), np.float16)),
        (lambda: ops.ones_like(X, dtype="int64"), np.ones((2, 3), np.int64)),
        (lambda: ops.full_like(X, -2.5), np.full((2, 3), -2.5, np.float16)),
        (lambda: ops.arange(4), np.arange(4)),
        (lambda: ops.arange(4.0), np.arange(4, dtype=np.float32)),
        (lambda: ops.arange(7, 1, -2), np.array([7, 5, 3])),
        (lambda: ops.arange(1, 2, 0.3), np.array([1, 1.3, 1.6, 1.9], np.float32)),
        (lambda: ops.arange(3, 3), np.arange(0)),
        (lambda: ops.arange(0, 256, dtype="uint8"), np.arange(256).astype(np.uint8)),  # the end is exclusive
        (lambda: ops.arange(2, -1, -1, dtype="uint8"), np.array([2, 1, 0], np.uint8)),
        (lambda: ops.arange(0, 1, 0.25, dtype="float16"), np.array([0, 0.25, 0.5, 0.75], np.float16)),
        (lambda: ops.arange(3, dtype="float64"), np.arange(3.0)),
        (lambda: ops.linspace(0, 1, 5), np.array([0, 0.25, 0.5, 0.75, 1], np.float32)),
        (lambda: ops.linspace(3, 1, 3, dtype="float16"), np.array([3, 2, 1], np.float16)),
        (lambda: ops.linspace(mp.tensor(0.0), mp.tensor(1.0), 2), np.array([0, 1], np.float32)),
        (lambda: ops.linspace(2, 3, 1), np.array([2], np.float32)),
        (lambda: ops.linspace(2, 3, 0), np.zeros(0, np.float32)),
        (lambda: ops.eye(3), np.eye(3, dtype=np.float32)),
        (lambda: ops.eye(2, 3, dtype="int64"), np.eye(2, 3, dtype=np.int64)),
        (lambda: ops.empty(2, 3), np.zeros((2, 3), np.float32)),
        (lambda: ops.empty_like(X), np.zeros((2, 3), np.float16)),
    ],
)
def test_makes(made, expected):
    y = made()
    assert not y.requires_grad
    np.testing.assert_array_equal(y.numpy(), expected, strict=True)


def test_each_value_of_arange_is_rounded_once():
    np.testing.assert_array_equal(ops.arange(0, 100, 0.1).numpy(), (np.arange(1000) * 0.1).astype(np.float32))


def test_can_require_a_gradient():
    for made in (ops.zeros, ops.ones, ops.arange, lambda n, **more: ops.full_like(X, n, **more)):
        assert made(2.0 if made is ops.arange else 2, requires_grad=True).requires_grad


def test_makers_are_at_the_top_too():
    """As in PyTorch: torch.zeros is no function of torch.nn.functional."""
    names = ("arange", "empty", "eye", "full", "linspace", "ones", "rand", "randint", "randn", "randperm", "zeros")
    for name in (*names, "empty_like", "full_like", "ones_like", "rand_like", "randn_like", "zeros_like"):
        assert getattr(mp, name) is getattr(ops, name)


def test_arange_of_numpy_scalars_does_not_wrap():
    assert ops.arange(np.uint64(5), np.int8(-1), np.float32(-2)).tolist() == [5, 3, 1]
    with pytest.raises(ValueError, match="arange: expected a `step` that leads from start to end"):
        ops.arange(np.uint64(2**64 - 2), 2, 0.5)
    with pytest.raises(ValueError, match="arange: expected a `step` that leads from start to end"):
        ops.arange(np.uint8(5), np.uint8(3))
