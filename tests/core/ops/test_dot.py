"""matmul and linear: one rounding of an FP32 accumulator."""

import numpy as np
import pytest

from oracle import check, randn
from tinymp import ops


def products(op):
    """The magnitude of the terms that a product sums: the same product of absolute values."""
    return lambda *inputs: op(*inputs).max(initial=0)


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ((3,), (3,)),
        ((2, 3), (3,)),
        ((3,), (3, 4)),
        ((2, 3), (3, 4)),
        ((5, 2, 3), (3, 4)),
        ((5, 2, 3), (3,)),
        ((2, 3), (5, 3, 4)),
        ((5, 2, 3), (5, 3, 4)),
        ((4, 1, 2, 3), (5, 3, 2)),
        ((3,), (5, 3, 2)),
        ((5, 2, 0), (0, 4)),
        ((0, 2, 3), (3, 4)),
        ((2, 5000), (5000, 3)),
    ],
)
def test_matmul(a, b):
    length, terms = a[-1], products(np.matmul)
    check(ops.matmul, np.matmul, randn(*a), randn(*b, seed=2), length=length, magnitude=terms, grad_length=40)


@pytest.mark.parametrize("shape", [(7,), (2, 3, 7), (2, 3, 0), (0, 7)])
@pytest.mark.parametrize("bias", [True, False])
def test_linear(shape, bias):
    inputs = [randn(*shape), randn(5, shape[-1], seed=2)] + ([randn(5, seed=3)] if bias else [])

    def oracle(x, w, b=0):
        return x @ w.T + b

    check(ops.linear, oracle, *inputs, length=8, magnitude=products(oracle))
