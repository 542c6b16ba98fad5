"""embedding_bag: bags of equal and of any length, weights, padding, and one rounding."""

import numpy as np
import pytest

import tinymp as mp
from oracle import check, distinct, host, randn
from tinymp import ops

ROWS = np.array([[1, 2, 1], [6, 0, 6]])
FLAT, OFFSETS = np.array([1, 2, 1, 6, 0, 3, 3]), np.array([0, 3, 3, 6])
BAGS = [[1, 2, 1], [], [6, 0, 3], [3]]
REDUCE = {"sum": lambda x: x.sum(0), "mean": lambda x: x.mean(0), "max": lambda x: x.max(0)}


def bags(w, mode, indices, padding=None):
    kept = [[i for i in bag if i != padding] for bag in indices]
    return np.stack([REDUCE[mode](w[bag]) if bag else np.zeros(w.shape[1]) for bag in kept])


@pytest.mark.parametrize("padding", [None, 6])
@pytest.mark.parametrize("mode", REDUCE)
def test_bags(mode, padding):
    w = distinct(7, 4)
    check(
        lambda w: ops.embedding_bag(mp.tensor(ROWS), w, mode=mode, padding_idx=padding),
        lambda w: bags(w, mode, ROWS.tolist(), padding),
        w,
        length=4,
        grad_length=8,
        inherited=4,
    )
    check(
        lambda w: ops.embedding_bag(mp.tensor(FLAT), w, mp.tensor(OFFSETS), mode=mode, padding_idx=padding),
        lambda w: bags(w, mode, BAGS, padding),
        w,
        length=4,
        grad_length=8,
        inherited=4,
    )


def test_the_last_offset_may_be_the_end():
    w = mp.tensor(randn(7, 4))
    both = [
        ops.embedding_bag(mp.tensor(FLAT), w, mp.tensor(offsets), include_last_offset=last).tolist()
        for offsets, last in ((OFFSETS, False), ([*OFFSETS.tolist(), 7], True))
    ]
    assert both[0] == both[1]


@pytest.mark.parametrize("offsets", [None, OFFSETS])
def test_per_sample_weights(offsets):
    index = ROWS if offsets is None else FLAT
    indices = ROWS.tolist() if offsets is None else BAGS

    def oracle(w, f):
        parts = iter(f.reshape(-1))
        return np.stack([np.sum([next(parts) * w[i] for i in bag] or [0 * w[0]], 0) for bag in indices])

    check(
        lambda w, f: ops.embedding_bag(
            mp.tensor(index),
            w,
            None if offsets is None else mp.tensor(offsets),
            mode="sum",
            per_sample_weights=f,
        ),
        oracle,
        randn(7, 4),
        randn(*index.shape, seed=1),
        length=8,
        grad_length=16,
        inherited=4,
    )


def test_the_padding_row_counts_nothing_whatever_it_holds():
    table = np.array([[1, 2], [np.nan, np.inf], [3, 4]])
    f = mp.tensor(np.ones((1, 3)), requires_grad=True)
    y = ops.embedding_bag(mp.tensor([[0, 1, 2]]), mp.tensor(table), mode="sum", per_sample_weights=f, padding_idx=1)
    y.sum().backward()
    assert (y.tolist(), host(f.grad).tolist()) == ([[4, 6]], [[3, 0, 7]])


def test_a_sum_on_the_way_to_a_mean_may_leave_fp16():
    w = mp.tensor(np.full((2, 1), 60000.0, "float16"), requires_grad=True)
    y = ops.embedding_bag(mp.tensor([[0, 1, 1, 1]]), w)
    assert y.tolist() == [[60000]]
    y.sum().backward()
    assert host(w.grad).tolist() == [[0.25], [0.75]]


def test_sparse():
    w = mp.tensor(randn(7, 4), requires_grad=True)
    ops.embedding_bag(mp.tensor([[1, 2, 1]]), w, mode="sum", sparse=True).sum().backward()
    assert {*host(w.grad.indices).tolist()} == {1, 2} and w.grad.dense()[1].tolist() == [2] * 4
