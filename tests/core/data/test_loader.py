import numpy as np
import pytest

import tinymp as mp
from tinymp.data import DataLoader, TensorDataset

X = np.random.default_rng(0).standard_normal((10, 2)).astype(np.float16)
Y = np.arange(10)
DATASET = TensorDataset(X, Y)


def numbers(loader):
    """The labels of each batch."""
    return [y.tolist() for _, y in loader]


@pytest.mark.parametrize(
    ("batch_size", "drop_last", "lengths"), [(4, False, [4, 4, 2]), (4, True, [4, 4]), (20, False, [10])]
)
def test_batches_in_order(batch_size, drop_last, lengths):
    loader = DataLoader(DATASET, batch_size, drop_last=drop_last)
    batches = list(loader)
    assert [len(y) for _, y in batches] == lengths
    assert len(loader) == len(lengths)
    assert all(x.dtype == np.float16 and y.dtype == np.int64 for x, y in batches)
    np.testing.assert_array_equal(np.concatenate([x.array for x, _ in batches]), X[: sum(lengths)])
    np.testing.assert_array_equal(np.concatenate([y.array for _, y in batches]), Y[: sum(lengths)])
    batches[0][0].array[...] = 0  # a batch is a copy
    assert X.all()


def test_shuffling_is_seeded_and_new_in_each_epoch():
    runs = []
    for how in ({"seed": 3}, {"generator": np.random.default_rng(3)}):
        loader = DataLoader(DATASET, 3, shuffle=True, **how)
        runs.append([[i for batch in numbers(loader) for i in batch] for _ in range(3)])
    assert runs[0] == runs[1]
    assert all(sorted(epoch) == Y.tolist() for epoch in runs[0])
    assert len({tuple(epoch) for epoch in runs[0]}) == 3
    assert [i for b in numbers(DataLoader(DATASET, 3, shuffle=True, seed=4)) for i in b] != runs[0][0]


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize(
    "loader",
    [
        lambda **how: DataLoader(TensorDataset(X[:0], Y[:0]), **how),
        lambda **how: DataLoader(DATASET, 11, drop_last=True, **how),
    ],
)
def test_no_batch_at_all(loader, shuffle):
    loader = loader(shuffle=shuffle)
    assert list(loader) == []
    assert len(loader) == 0


def test_shuffling_follows_manual_seed_from_the_epoch_on():
    loader = DataLoader(DATASET, 3, shuffle=True)
    mp.manual_seed(1)
    first, second = numbers(loader), numbers(loader)
    mp.manual_seed(1)
    assert numbers(loader) == first != second


def test_only_shuffling_draws_from_tinymps_generator():
    state = mp.backend.cpu.generator.bit_generator.state
    numbers(DataLoader(DATASET, 3))
    numbers(DataLoader(DATASET, 3, shuffle=True, seed=1))
    assert mp.backend.cpu.generator.bit_generator.state == state


def test_a_dataset_needs_a_length_and_items():
    with pytest.raises(TypeError, match="`dataset` with a length and items, got generator"):
        DataLoader(i for i in Y)
