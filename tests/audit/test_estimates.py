"""What the audit computes beside a training, against the definitions, and on cases known by hand."""

import math

import numpy as np
import pytest

from tinymp.audit import estimates

pytestmark = pytest.mark.cpu


@pytest.fixture
def rng():
    return np.random.default_rng(0)


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
