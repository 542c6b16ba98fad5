"""Random tensors: their distribution, dtype and shape, and that a seed decides them on every device."""

import numpy as np
import pytest

import tinymp as mp

N = 20_000


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
