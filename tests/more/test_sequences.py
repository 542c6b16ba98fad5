"""Sequences of different lengths as one tensor; and batches that a sampler gives."""

import numpy as np
import pytest

import tinymp as mp
from oracle import rng
from tinymp.data import DataLoader, pad_sequence


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


@pytest.mark.parametrize(
    ("call", "error", "match"),
    [
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
