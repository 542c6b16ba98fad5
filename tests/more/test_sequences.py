"""Batches of sequences that are about equally long, and their padding."""

import numpy as np
import pytest

import tinymp as mp
from oracle import rng
from tinymp.data import BucketBatchSampler, DataLoader, Subset, pad_sequence, padding_share

LENGTHS = rng().integers(1, 40, 1000)
PAIRS = np.stack([LENGTHS, LENGTHS + rng(1).integers(-3, 4, 1000).clip(1 - LENGTHS)], 1)


def epoch(sampler):
    return [batch.tolist() for batch in sampler]


@pytest.mark.parametrize("lengths", [LENGTHS, PAIRS, mp.tensor(PAIRS)], ids=["single", "pairs", "tensor"])
def test_every_item_once_and_little_padding(lengths):
    sampler = BucketBatchSampler(lengths, 32, seed=0)
    batches = epoch(sampler)
    assert sorted(i for batch in batches for i in batch) == list(range(1000))
    assert sorted(map(len, batches)) == [8] + [32] * 31
    assert len(sampler) == 32
    plain = np.array_split(rng(2).permutation(1000), 32)
    assert padding_share(lengths, plain) > 0.45
    assert padding_share(lengths, batches) < (0.06 if lengths is LENGTHS else 0.08)


def test_epochs_differ_in_the_order_of_batches_and_within_a_length():
    sampler = BucketBatchSampler(LENGTHS, 8, seed=3)
    first, second = epoch(sampler), epoch(sampler)
    assert first == epoch(BucketBatchSampler(LENGTHS, 8, generator=rng(3)))
    assert first != second
    assert [LENGTHS[b].max() for b in first] != [LENGTHS[b].max() for b in second]
    assert not {frozenset(b) for b in first} & {frozenset(b) for b in second}
    mp.manual_seed(1)
    free = BucketBatchSampler(LENGTHS, 8)
    third = epoch(free), epoch(free)
    mp.manual_seed(1)
    assert (epoch(free), epoch(free)) == third
    assert third[0] != third[1]


def test_without_shuffling_in_order_of_length():
    lengths = [[3, 9], [1, 5], [3, 2], [1, 4], [3, 2]]
    state = mp.backend.cpu.generator.bit_generator.state
    assert epoch(BucketBatchSampler(lengths, 2, shuffle=False)) == [[3, 1], [2, 4], [0]]
    assert mp.backend.cpu.generator.bit_generator.state == state


def test_what_drop_last_leaves_out_is_not_always_the_longest():
    sampler = BucketBatchSampler(np.arange(10), 4, drop_last=True, seed=0)
    left = [set(range(10)) - {i for batch in epoch(sampler) for i in batch} for _ in range(20)]
    assert len(sampler) == 2
    assert all(len(items) == 2 for items in left)
    assert set.union(*left) == set(range(10))


@pytest.mark.parametrize("how", [{"prefetch": 0}, {}, {"num_workers": 2}], ids=str)
def test_a_loader_takes_its_batches(how):
    words = [np.full(n, n) for n in LENGTHS[:50]]
    sampler = BucketBatchSampler(LENGTHS[10:30], 6, seed=0)
    loader = DataLoader(Subset(words, range(10, 30)), batch_sampler=sampler, collate_fn=pad_sequence, **how)
    expected = [[10 + i for i in batch] for batch in epoch(BucketBatchSampler(LENGTHS[10:30], 6, seed=0))]
    batches = list(loader)
    assert len(loader) == len(batches) == 4
    for batch, items in zip(batches, expected):
        assert batch.shape == (LENGTHS[items].max(), len(items))
        assert (batch.numpy() != 0).sum(0).tolist() == LENGTHS[items].tolist()


def test_pad_sequence():
    arrays = [np.ones((2, 3), np.float16), mp.tensor(np.full((4, 3), 2, np.float16))]
    padded = pad_sequence(arrays, padding_value=-1)
    assert padded.shape == (4, 2, 3)
    assert padded.dtype == "float16"
    assert padded[:, 0].tolist() == [[1] * 3] * 2 + [[-1] * 3] * 2
    assert padded[:, 1].tolist() == [[2] * 3] * 4
    assert pad_sequence(arrays, batch_first=True, padding_value=-1).numpy().swapaxes(0, 1).tolist() == padded.tolist()


@pytest.mark.peer
def test_as_pytorch_pads():
    torch = pytest.importorskip("torch")
    arrays = [rng(i).standard_normal((n, 2)) for i, n in enumerate((3, 1, 5))]
    for first in (False, True):
        theirs = torch.nn.utils.rnn.pad_sequence([torch.from_numpy(x) for x in arrays], first, 2.5)
        np.testing.assert_array_equal(pad_sequence(arrays, first, 2.5).numpy(), theirs.numpy())


def test_padding_share():
    assert padding_share([3, 1, 2], [[0, 1], [2]]) == pytest.approx(1 - 6 / 8)
    assert padding_share([[3, 1], [1, 4]], [[0, 1]]) == pytest.approx(1 - 9 / 14)
    assert padding_share([], []) == 0


@pytest.mark.parametrize(
    ("call", "error", "match"),
    [
        (lambda: BucketBatchSampler([1.5], 2), TypeError, "`lengths` to be integers, got float64"),
        (lambda: BucketBatchSampler([[[1]]], 2), ValueError, r"`lengths` of shape \(N,\), or .* got \(1, 1, 1\)"),
        (lambda: BucketBatchSampler([[1, 2], [3, -1]], 2), ValueError, "at least 0, got -1 for item 1"),
        (lambda: BucketBatchSampler([1], 0), ValueError, "`batch_size` to be positive, got 0"),
        (lambda: BucketBatchSampler([1], 2, shuffle="no"), TypeError, "`shuffle` to be True or False"),
        (lambda: BucketBatchSampler([1], 2, seed=-1), ValueError, "`seed` to be a non-negative integer"),
        (lambda: pad_sequence([]), ValueError, "at least one sequence"),
        (lambda: pad_sequence([np.ones(2), np.ones((2, 3))]), ValueError, r"\(2,\) as sequence 0 and \(2, 3\) as seq"),
        (lambda: pad_sequence([np.ones(2), np.ones(2, int)]), TypeError, "one dtype, got float64 .* and int64 as 1"),
        (lambda: DataLoader([1], batch_sampler=[[1]]), IndexError, r"`batch_sampler` in \[-1, 0\] for 1 items, got 1"),
        (lambda: DataLoader([1], batch_sampler=iter([[0]])), TypeError, "`batch_sampler` to be an iterable with a l"),
        (lambda: DataLoader([1], 2, batch_sampler=[[0]]), ValueError, "batch_sampler alone, without batch_size"),
        (lambda: DataLoader([1], shuffle=True, batch_sampler=[[0]]), ValueError, "batch_sampler alone"),
    ],
)
def test_refused(call, error, match):
    with pytest.raises(error, match=match):
        list(call())
