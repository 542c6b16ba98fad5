"""What the audit computes beside a training, against the definitions, and on cases known by hand."""

import math

import numpy as np
import pytest

import tinymp as mp
from tinymp.audit import estimates

pytestmark = pytest.mark.cpu


@pytest.fixture
def rng():
    return np.random.default_rng(0)


def f16(*values):
    return np.asarray(values, np.float16)


def test_a_sample_takes_the_same_places_of_arrays_of_one_size(rng):
    x = rng.standard_normal((100, 1000)).astype(np.float32)
    some = estimates.sample(x)
    assert estimates.SAMPLE // 2 <= some.size <= 2 * estimates.SAMPLE
    np.testing.assert_array_equal(estimates.sample(2 * x), 2 * some)
    assert estimates.sample(x[:3]) is not None and estimates.sample(x[:3]).size == 3000


def test_errors(rng):
    x = rng.standard_normal((30, 40)).astype(np.float32)
    y = x.astype(np.float16)
    e = y.astype(np.float64) - x
    np.testing.assert_allclose(
        estimates.errors(x, y), [e.sum(), abs(e).sum(), abs(x.astype(np.float64)).sum()], rtol=1e-12
    )
    x[0, :3] = 1e6, np.inf, np.nan
    with np.errstate(over="ignore"):
        assert all(map(math.isfinite, estimates.errors(x, x.astype(np.float16))))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("shape", [(4, 5, 6, 7), (8, 5), (2, 3, 5), (9,)])
def test_extremes(rng, dtype, shape):
    x = rng.standard_normal(shape).astype(mp.dtypes.as_dtype(dtype))
    wide = abs(x.astype(np.float64))
    axis = 1 if x.ndim > 3 else x.ndim - 1
    by_channel = wide.max(axis=tuple(i for i in range(x.ndim) if i != axis)) if x.ndim > 1 else wide
    largest, median, size = estimates.extremes(x)
    assert largest == wide.max() and median == np.median(by_channel)
    assert size == pytest.approx(math.sqrt((wide**2).mean()))


def test_extremes_of_what_is_not_finite():
    largest, median, size = estimates.extremes(f16([1, 2, np.inf], [-3, 1, 1]))
    assert (largest, median) == (math.inf, 2.5) and size == pytest.approx(math.sqrt(16 / 6))
    assert math.isnan(estimates.extremes(f16([1, np.nan]))[0])
    assert estimates.extremes(f16([np.nan]))[1:] == (0, 0)


@pytest.mark.parametrize("at", [(0, 0), (1, 2), (199_999, 1)])
@pytest.mark.parametrize("value", [-1e4, np.inf, np.nan])
def test_no_extreme_of_a_large_array_is_missed(at, value):
    x = np.ones((200_000, 3), np.float16)
    x[at] = value
    np.testing.assert_equal(estimates.extremes(x)[:2], (abs(value), 1))
    np.testing.assert_equal(estimates.extremes(np.asfortranarray(x))[:2], (abs(value), 1))
