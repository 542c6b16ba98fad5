import numpy as np
import pytest

import tinymp as mp
from batches import LENGTHS, X, Y, batches_in_order, numbers
from tinymp.data import DataLoader, TensorDataset

DATASET = TensorDataset(X, Y)


@pytest.mark.parametrize(("batch_size", "drop_last", "lengths"), LENGTHS)
def test_batches_in_order(batch_size, drop_last, lengths):
    batches_in_order(DataLoader(DATASET, batch_size, drop_last=drop_last), lengths)


def test_shuffling_is_seeded_and_new_in_each_epoch():
    runs = []
    for how in ({"seed": 3}, {"generator": np.random.default_rng(3)}):
        loader = DataLoader(DATASET, 3, shuffle=True, **how)
        runs.append([[i for batch in numbers(loader) for i in batch] for _ in range(3)])
    assert runs[0] == runs[1]
    assert all(sorted(epoch) == Y.tolist() for epoch in runs[0])
    assert len({tuple(epoch) for epoch in runs[0]}) == 3
    assert [i for b in numbers(DataLoader(DATASET, 3, shuffle=True, seed=4)) for i in b] != runs[0][0]


@pytest.mark.parametrize("wrap", [np.asarray, mp.Tensor])
def test_tensor_dataset_gives_rows_in_their_dtype_and_shares_memory(wrap):
    dataset = TensorDataset(wrap(X), wrap(Y))
    x, y = dataset[4]
    assert isinstance(x, mp.Tensor) and x.dtype == X.dtype and y.dtype == Y.dtype and y.shape == ()
    np.testing.assert_array_equal(x.array, X[4])
    assert y.item() == Y[4] and np.may_share_memory(dataset.tensors[0].array, X)
    assert len(dataset) == len(list(dataset)) == len(X)  # IndexError beyond the end stops the iteration
