"""Initialisers of nn/more: distributions, exact properties, gains."""

import math

import numpy as np
import pytest

from layers_of import moments_are, weight
from tinymp.nn import init


def moments_of_uniform(r):
    return 0.0, r / math.sqrt(3), r


# name: how to fill, then mean, standard deviation and bound of the distribution
DISTRIBUTIONS = {
    "xavier_uniform": (lambda p: init.xavier_uniform_(p, 2.0), *moments_of_uniform(2 * math.sqrt(6 / 2400))),
    "xavier_normal": (lambda p: init.xavier_normal_(p), 0.0, math.sqrt(2 / 2400), math.inf),
    "kaiming_uniform": (lambda p: init.kaiming_uniform_(p), *moments_of_uniform(math.sqrt(6 / 800))),
    "kaiming_default": (lambda p: init.kaiming_uniform_(p, a=math.sqrt(5)), *moments_of_uniform(math.sqrt(1 / 800))),
    "kaiming_normal": (lambda p: init.kaiming_normal_(p, 0, "fan_out", "relu"), 0.0, math.sqrt(2 / 1600), math.inf),
    # a standard normal cut at +-2 has the variance 1 - 4 phi(2) / (Phi(2) - Phi(-2))
    "trunc_normal": (lambda p: init.trunc_normal_(p, std=0.5, a=-1, b=1), 0.0, 0.5 * math.sqrt(0.7737413), 1.0),
    # beyond 6: the mean excess is phi(6) / (1 - Phi(6)) - 6 = 0.158371, the variance 1 - m (m - 6) with m = 6.158371
    "trunc_normal_tail": (lambda p: init.trunc_normal_(p, a=6, b=100), 6.158371, math.sqrt(0.024690), math.inf),
}


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_moments_and_bounds(name):
    moments_are(*DISTRIBUTIONS[name], "float32")


def test_identities():
    np.testing.assert_array_equal(init.eye_(weight(2, 3)).numpy(), np.eye(2, 3))
    w = init.dirac_(weight(4, 3, 3, 3), groups=2).array
    assert w.sum() == 4 and all(w[row, row % 2, 1, 1] == 1 for row in range(4))


@pytest.mark.parametrize("shape", [(6, 4), (3, 2, 2, 2), (0, 3)])
def test_orthogonal(shape):
    w = init.orthogonal_(weight(*shape, dtype="float64"), gain=2).numpy().reshape(shape[0], math.prod(shape[1:]))
    gram = w @ w.T if shape[0] <= w.shape[1] else w.T @ w
    np.testing.assert_allclose(gram, 4 * np.eye(len(gram)), atol=1e-13)
