"""Local response normalisation against sums over windows of channels."""

import numpy as np
import pytest

from oracle import check, randn
from tinymp import ops


@pytest.mark.parametrize("beta", [0.75, 0.6])
@pytest.mark.parametrize("size", [1, 2, 3, 5, 9])
def test_local_response_norm(size, beta):
    def oracle(x):
        square = np.pad(x**2, ((0, 0), (size // 2, (size - 1) // 2), (0, 0)))
        window = sum(square[:, i : i + x.shape[1]] for i in range(size))
        return x / (2 + 0.5 * window / size) ** beta

    check(lambda x: ops.local_response_norm(x, size, 0.5, beta, 2.0), oracle, randn(2, 6, 4), length=20, grad_length=60)


@pytest.mark.parametrize("channels", [0, 1, 3])
def test_over_more_channels_than_there_are(channels):
    def oracle(x):
        return x / (1 + 2.0**-20 * (x * x).sum(1, keepdims=True)) ** 0.5

    check(
        lambda x: ops.local_response_norm(x, 2**30, 2.0**10, 0.5), oracle, randn(2, channels, 4), length=12, inherited=4
    )
