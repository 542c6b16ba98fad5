"""Movement ops: the right elements in the right places, bit for bit; gradients go back to where they came from."""

from functools import partial

import numpy as np
import pytest

import tinymp as mp
from oracle import check, randn, shared
from tinymp import ops

moves = partial(check, roundings=0, grad_roundings=0, length=0)  # no arithmetic, in either direction
sums = partial(check, roundings=0, grad_roundings=1)  # only the gradient adds up, and is rounded once

VIEWS = {
    "reshape": (lambda x: ops.reshape(x, 4, -1), lambda x: x.reshape(4, -1), (2, 6)),
    "reshape to no axes": (lambda x: ops.reshape(x, ()), lambda x: x.reshape(()), (1, 1)),
    "reshape nothing": (lambda x: ops.reshape(x, -1, 4), lambda x: x.reshape(0, 4), (0, 2)),
    "flatten": (ops.flatten, lambda x: x.reshape(-1), (2, 3, 4)),
    "flatten 0 to -2": (lambda x: ops.flatten(x, 0, -2), lambda x: x.reshape(6, 4), (2, 3, 4)),
    "flatten no axes": (ops.flatten, lambda x: x.reshape(1), ()),
    "transpose": (lambda x: ops.transpose(x, 0, -1), lambda x: x.swapaxes(0, 2), (2, 3, 4)),
    "permute": (lambda x: ops.permute(x, 2, 0, 3, 1), lambda x: x.transpose(2, 0, 3, 1), (2, 3, 4, 5)),
    "squeeze": (ops.squeeze, lambda x: x.reshape(2, 3), (1, 2, 1, 3)),
    "squeeze a longer axis": (lambda x: ops.squeeze(x, (1, -2)), lambda x: x.reshape(1, 2, 3), (1, 2, 1, 3)),
    "unsqueeze -1": (lambda x: ops.unsqueeze(x, -1), lambda x: x.reshape(2, 3, 1), (2, 3)),
    "split": (lambda x: ops.split(x, 2)[2], lambda x: x[4:], (5, 2)),
    "split in sections": (lambda x: ops.split(x, [1, 0, 4], dim=-1)[2], lambda x: x[:, 1:], (2, 5)),
    "chunk": (lambda x: ops.chunk(x, 3, 1)[1], lambda x: x[:, 2:4], (2, 5)),
}
COPIES = {
    "flip": (lambda x: ops.flip(x, (0, -1)), lambda x: x[::-1, :, ::-1], (2, 3, 4)),
    "pad": (lambda x: ops.pad(x, (1, 2, 0, 3)), lambda x: np.pad(x, ((0, 0), (0, 3), (1, 2))), (2, 3, 4)),
    "pad and crop": (lambda x: ops.pad(x, [-1, 2, 1, -2]), lambda x: np.pad(x[:-2, 1:], ((1, 0), (0, 2))), (3, 4)),
    "crop all": (lambda x: ops.pad(x, (-1, -2)), lambda x: x[:, :0], (2, 3)),
}
MOVES = {**VIEWS, **COPIES}


@pytest.mark.parametrize("case", MOVES)
def test_moves(case):
    op, oracle, shape = MOVES[case]
    moves(op, oracle, randn(*shape))


@pytest.mark.parametrize("case", MOVES)
def test_keeps_every_bit_and_shares_memory_where_it_can(case):
    op, oracle, shape = MOVES[case]
    special = np.array([0.0, -0.0, 65504, -6e-8, 6e-5, np.inf, -np.inf, np.nan, -np.nan, 1.0], np.float16)
    x = np.resize(special, shape[::-1]).T  # in another order of memory
    t = mp.tensor(np.resize(special, shape))
    np.testing.assert_array_equal(op(mp.tensor(x)).numpy().view(np.uint16), oracle(x.view(np.uint16)))
    assert 0 in shape or shared(op(t).array, t.array) == (case in VIEWS)
    integers = op(mp.tensor(np.ones(shape, int)))
    assert integers.dtype == int and not integers.requires_grad


@pytest.mark.parametrize(
    ("size", "shape", "copies"),
    [((3, 4), (3, 1), 4), ((-1, 4), (3, 1), 4), ((2, 3, -1), (1, 5), 6), ((2, 3), (), 6), ((0, 3), (1, 3), 0)],
)
def test_expand(size, shape, copies):
    full = tuple(shape[i - len(size)] if n == -1 else n for i, n in enumerate(size))
    sums(lambda x: ops.expand(x, *size), lambda x: np.broadcast_to(x, full), randn(*shape), grad_length=copies)


@pytest.mark.parametrize("dim", [0, 1, -1])
def test_cat(dim):
    parts = [randn(*[n if d == dim % 3 else 2 for d in range(3)], seed=n) for n in (3, 0, 1)]
    moves(lambda *x: ops.cat(x, dim), lambda *x: np.concatenate(x, dim), *parts)
