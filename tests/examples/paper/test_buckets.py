"""Batches of sequences that are about equally long."""

import numpy as np
import pytest

from examples.paper.buckets import BucketBatchSampler
from oracle import rng

LENGTHS = rng().integers(1, 40, 1000)
PAIRS = np.stack([LENGTHS, LENGTHS + rng(1).integers(-3, 4, 1000).clip(1 - LENGTHS)], 1)


def epoch(sampler):
    return [batch.tolist() for batch in sampler]


@pytest.mark.parametrize("lengths", [LENGTHS, PAIRS], ids=["single", "pairs"])
def test_every_item_once_and_little_padding(lengths):
    sampler = BucketBatchSampler(lengths, 32, seed=0)
    batches = epoch(sampler)
    assert sorted(i for batch in batches for i in batch) == list(range(1000))
    assert sorted(map(len, batches)) == [8] + [32] * 31 and len(sampler) == 32
    padded = sum(len(b) * lengths[b].max(0).sum() for b in batches)
    assert 1 - lengths.sum() / padded < (0.06 if lengths is LENGTHS else 0.08)


def test_epochs_differ_in_the_order_of_batches_and_within_a_length():
    sampler = BucketBatchSampler(LENGTHS, 8, seed=3)
    first, second = epoch(sampler), epoch(sampler)
    assert first == epoch(BucketBatchSampler(LENGTHS, 8, generator=rng(3)))
    assert [LENGTHS[b].max() for b in first] != [LENGTHS[b].max() for b in second]
    assert not {frozenset(b) for b in first} & {frozenset(b) for b in second}


def test_what_drop_last_leaves_out_is_not_always_the_longest():
    sampler = BucketBatchSampler(np.arange(10), 4, drop_last=True, seed=0)
    left = [set(range(10)) - {i for batch in epoch(sampler) for i in batch} for _ in range(20)]
    assert {len(items) for items in left} == {2} and set.union(*left) == set(range(10))
