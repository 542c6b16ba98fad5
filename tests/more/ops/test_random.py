"""Random tensors: their distribution, dtype and shape, and that a seed decides them on every device."""

import numpy as np
import pytest

import tinymp as mp
from tinymp import ops

N = 20_000
X = mp.tensor(np.zeros((2, 3), np.float16))


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_moments(dtype):
    """Within 6 standard errors of the mean and the second moment."""
    mp.manual_seed(1)
    for made, mean, square, fourth in ((mp.rand, 1 / 2, 1 / 3, 1 / 5), (mp.randn, 0, 1, 3)):
        y = made(N, dtype=dtype)
        assert y.dtype == dtype and y.shape == (N,)
        wide = y.numpy().astype("float64")
        assert abs(wide.mean() - mean) < 6 * np.sqrt((square - mean**2) / N) + 2.0**-11
        assert abs((wide**2).mean() - square) < 6 * np.sqrt((fourth - square**2) / N) + 2.0**-10
        assert made is mp.randn or (wide.min() >= 0 and wide.max() < 1)


def test_integers():
    mp.manual_seed(0)
    y = mp.randint(-2, 3, (4, 500))
    assert y.dtype == "int64" and sorted(set(y.numpy().reshape(-1).tolist())) == [-2, -1, 0, 1, 2]
    assert mp.randint(2, (9,), dtype="int32").dtype == "int32" and mp.randint(1, (2,)).tolist() == [0, 0]
    assert sorted(mp.randperm(7).tolist()) == list(range(7)) and mp.randperm(0).shape == (0,)


def test_a_seed_decides():
    runs = []
    for _ in range(2):
        mp.manual_seed(7)
        runs.append([t.tolist() for t in (mp.rand(2, 2), mp.randn((3,)), mp.randperm(5), mp.randint(9, (3,)))])
    assert runs[0] == runs[1] and mp.rand(2, 2).tolist() != runs[0][0]


def test_like_and_gradient():
    for made in (ops.rand_like, ops.randn_like):
        assert (made(X).shape, made(X).dtype, made(X, dtype="float64").dtype) == ((2, 3), "float16", "float64")
    assert mp.randn(2, requires_grad=True).requires_grad


@pytest.mark.cpu
def test_without_memory():
    with mp.device("meta"):
        assert mp.randn(2, 3).device == mp.rand(2, device="meta").device == mp.randperm(4).device == "meta"
        assert mp.linspace(0, 1, 5).device == mp.eye(3).device == "meta"
