"""An op does what it declares about its arithmetic, as the primitives see it."""

import numpy as np
import pytest

import tinymp as mp
from tinymp import ops


def half(*shape):
    return mp.tensor(np.random.default_rng(0).standard_normal(shape).astype("float16"), requires_grad=True)


MOVES = {
    "embedding": lambda: ops.embedding(mp.tensor([0, 2, 2]), half(4, 3)),
    "index": lambda: half(4, 3)[mp.tensor([0, 0])],
    "expand": lambda: half(4, 1).expand(4, 3),
    "cat": lambda: ops.cat([half(2, 3), half(2, 3)]),
    "where": lambda: ops.where(mp.tensor([True, False, True]), half(2, 3), half(1, 3)),
    "max_pool2d": lambda: ops.max_pool2d(half(1, 2, 4, 4), 3, 1),
    "unfold": lambda: ops.unfold(half(1, 2, 4, 4), 2),
    "reshape": lambda: half(2, 3).reshape(6),
}


@pytest.mark.parametrize("name", MOVES)
def test_what_only_moves_data_sums_nothing(name):
    """A lookup's gradients add up: then backward is no MOVEMENT."""
    with mp.audit() as a:
        y = MOVES[name]()
        y.backward(np.ones(y.shape, "float16"))
    for row in a.ledger.filter(kind="MOVEMENT"):
        assert row.accumulated == "-", row
    assert [row for row in a.ledger if row.kind == "MOVEMENT" and row.phase == "forward"]


@pytest.mark.parametrize("name", ["embedding", "index", "expand", "where", "max_pool2d", "unfold"])
def test_gradients_that_add_up_are_reductions(name):
    with mp.audit() as a, mp.use(mp.FP16_REDUCTIONS):
        y = MOVES[name]()
        y.backward(np.ones(y.shape, "float16"))
    (row,) = a.ledger.filter(phase="backward", kind="REDUCTION")
    assert row.accumulated == "float16"
