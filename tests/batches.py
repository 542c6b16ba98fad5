"""Data and checks that tests of DataLoader share."""

import numpy as np

import tinymp as mp

X = np.random.default_rng(0).standard_normal((10, 2)).astype(np.float16)
Y = np.arange(10)
LENGTHS = [(4, False, [4, 4, 2]), (4, True, [4, 4]), (20, False, [10])]  # batch_size, drop_last, lengths of X's batches


def numbers(loader):
    """The labels of each batch."""
    return [y.tolist() for _, y in loader]


def batches_in_order(loader, lengths):
    """The loader gives X and Y in order, in batches of these lengths, as copies."""
    batches = list(loader)
    assert [len(y) for _, y in batches] == lengths
    assert len(loader) == len(lengths)
    assert all(isinstance(b, tuple) and isinstance(b[0], mp.Tensor) for b in batches)
    assert all(x.dtype == np.float16 and y.dtype == np.int64 for x, y in batches)
    np.testing.assert_array_equal(np.concatenate([x.array for x, _ in batches]), X[: sum(lengths)])
    np.testing.assert_array_equal(np.concatenate([y.array for _, y in batches]), Y[: sum(lengths)])
    batches[0][0].array[...] = 0
    assert X.all()
