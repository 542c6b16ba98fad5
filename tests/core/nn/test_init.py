"""Initialisers: distributions, exact properties, repeatability, refusals."""

import math

import numpy as np
import pytest

import tinymp as mp
from oracle import host
from tinymp import nn
from tinymp.nn import init

SHAPE = (64, 32, 5, 5)  # fan_in 800, fan_out 1600
N = math.prod(SHAPE)


def weight(*shape, dtype="float32"):
    return nn.Parameter(np.zeros(shape or SHAPE, dtype))


def moments_of_uniform(r):
    return 0.0, r / math.sqrt(3), r


# name: how to fill, then mean, standard deviation and bound of the distribution
DISTRIBUTIONS = {
    "uniform": (lambda p: init.uniform_(p, -1.0, 3.0), 1.0, 4 / math.sqrt(12), 3.0),
    "normal": (lambda p: init.normal_(p, 2.0, 0.5), 2.0, 0.5, math.inf),
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
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_moments_and_bounds(name, dtype):
    fill, mean, std, bound = DISTRIBUTIONS[name]
    mp.manual_seed(3)
    p = weight(dtype=dtype)
    assert fill(p) is p
    assert p.dtype == dtype
    x = p.array.astype("float64")
    # five standard errors; a variance has relative standard error sqrt((kurtosis - 1) / n), kurtosis <= 9 here
    assert abs(x.mean() - mean) < 5 * std / math.sqrt(N)
    assert abs(x.std() / std - 1) < 5 * math.sqrt(8 / N) / 2
    assert abs(x).max() <= bound * (1 + 2.0**-23)
    if bound < math.inf:
        assert abs(x).max() > 0.99 * bound


@pytest.mark.parametrize("shape", [(6, 4), (4, 6), (5, 5), (3, 2, 2, 2), (0, 3)])
def test_orthogonal(shape):
    w = init.orthogonal_(weight(*shape, dtype="float64"), gain=2).numpy().reshape(shape[0], math.prod(shape[1:]))
    gram = w @ w.T if shape[0] <= w.shape[1] else w.T @ w
    np.testing.assert_allclose(gram, 4 * np.eye(len(gram)), atol=1e-13)


def test_orthogonal_has_no_preferred_sign():
    diagonals = [np.diagonal(init.orthogonal_(weight(3, 3)).numpy()) for _ in range(300)]
    assert abs(np.sign(diagonals).mean()) < 5 / math.sqrt(900)


def test_exact_fills():
    assert (init.constant_(weight(2, 3), 0.5).array == 0.5).all()
    assert (init.ones_(weight(2)).array == 1).all()
    assert not init.zeros_(init.ones_(weight(2))).array.any()
    np.testing.assert_array_equal(init.eye_(weight(2, 3)).numpy(), np.eye(2, 3))
    assert init.dirac_(weight(2, 2, 0, 1)).shape == (2, 2, 0, 1)
    w = init.dirac_(weight(4, 3, 3, 3), groups=2).array
    assert w.sum() == 4
    assert all(w[row, row % 2, 1, 1] == 1 for row in range(4))
    w = init.dirac_(weight(4, 2, 3)).array
    assert w.sum() == 2
    assert w[0, 0, 1] == w[1, 1, 1] == 1


def test_masters_and_copies_agree_and_tensors_are_filled():
    p = init.normal_(mp.MIXED.cast(nn.Linear(50, 50)).weight)
    assert p.master.dtype == "float32"
    assert p.dtype == "float16"
    np.testing.assert_array_equal(host(p.array), host(p.master).astype("float16"))
    assert (p.master != p.array).any()
    t = init.normal_(mp.tensor(np.zeros(100, "float16")))
    assert t.dtype == "float16"
    assert t.array.any()


def test_one_seed_one_model():
    def draw():
        mp.manual_seed(7)
        m = nn.Sequential(nn.Linear(3, 3), nn.Conv2d(1, 2, 3), nn.Embedding(4, 2), nn.ConvTranspose2d(1, 2, 3))
        return [a.tobytes() for a in m.state_dict().values()]

    assert draw() == draw()
    a, b = weight(3), weight(3)
    init.uniform_(a, generator=np.random.default_rng(5)), init.uniform_(b, generator=np.random.default_rng(5))
    np.testing.assert_array_equal(a.numpy(), b.numpy())


@pytest.mark.parametrize(
    ("layer", "bound"),
    [
        (lambda: nn.Linear(200, 300), 1 / math.sqrt(200)),
        (lambda: nn.Conv1d(20, 300, 5, groups=2), 1 / math.sqrt(50)),
        (lambda: nn.Conv2d(8, 200, 3), 1 / math.sqrt(72)),
        (lambda: nn.ConvTranspose2d(200, 8, 3), 1 / math.sqrt(72)),
    ],
)
def test_default_initialisation_is_uniform_with_fan_in(layer, bound):
    for p in layer().parameters():
        assert 0.5 * bound < abs(p.array).max() <= bound * (1 + 2.0**-23)
        relative = p.array.astype("float64").std() * math.sqrt(3) / bound - 1  # a uniform kurtosis is 1.8
        assert abs(relative) < 5 * math.sqrt(0.8 / p.array.size) / 2 + 1e-3


@pytest.mark.parametrize(
    ("name", "param", "gain"),
    [
        ("linear", None, 1), ("conv_transpose2d", None, 1), ("sigmoid", None, 1), ("tanh", None, 5 / 3),
        ("relu", None, math.sqrt(2)), ("leaky_relu", None, math.sqrt(2 / 1.0001)), ("leaky_relu", 1.0, 1),
        ("selu", None, 0.75),
    ],
)  # fmt: skip
def test_gains(name, param, gain):
    assert init.calculate_gain(name, param) == pytest.approx(gain)


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("a", [20, 1e4, 1e12])
def test_trunc_normal_far_from_its_mean(a, sign):
    """Beyond a >> 1 the excess over a is exponential with mean 1 / a (relative error 2 / a^2)."""
    x = mp.tensor(np.zeros(20_000))
    low, high = sorted((sign * a, sign * 1e30))
    init.trunc_normal_(x, a=low, b=high, generator=np.random.default_rng(0))
    excess = (sign * x.numpy() - a) * a
    assert (excess >= 0).all()
    if a < 1e8:  # else below the spacing of FP64
        assert abs(excess.mean() - 1) < 5 / math.sqrt(20_000) + 2 / a**2
        assert abs((excess > 1).mean() - math.exp(-1)) < 0.02
    for mean in (1e300, math.nan, math.inf):
        with pytest.raises(ValueError, match="trunc_normal_: "):
            init.trunc_normal_(x, mean)
