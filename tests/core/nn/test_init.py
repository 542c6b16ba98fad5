"""Initialisers: their distributions."""

import math

import pytest

from layers_of import moments_are
from tinymp import nn
from tinymp.nn import init

# name: how to fill, then mean, standard deviation and bound of the distribution
DISTRIBUTIONS = {
    "uniform": (lambda p: init.uniform_(p, -1.0, 3.0), 1.0, 4 / math.sqrt(12), 3.0),
    "normal": (lambda p: init.normal_(p, 2.0, 0.5), 2.0, 0.5, math.inf),
}


@pytest.mark.parametrize("name", DISTRIBUTIONS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_moments_and_bounds(name, dtype):
    moments_are(*DISTRIBUTIONS[name], dtype)


@pytest.mark.parametrize(
    ("layer", "bound"),
    [
        (lambda: nn.Linear(200, 300), 1 / math.sqrt(200)),
        (lambda: nn.Conv1d(20, 300, 5, groups=2), 1 / math.sqrt(50)),
        (lambda: nn.Conv2d(8, 200, 3), 1 / math.sqrt(72)),
        (lambda: nn.ConvTranspose2d(200, 8, 3), 1 / math.sqrt(72)),
        (lambda: nn.LSTM(30, 100), 0.1),
    ],
)
def test_default_initialisation_is_uniform_with_fan_in(layer, bound):
    for p in layer().parameters():
        assert 0.5 * bound < abs(p.array).max() <= bound * (1 + 2.0**-23)
        relative = p.array.astype("float64").std() * math.sqrt(3) / bound - 1  # a uniform kurtosis is 1.8
        assert abs(relative) < 5 * math.sqrt(0.8 / p.array.size) / 2 + 1e-3
