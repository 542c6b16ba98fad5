"""Estimates of the audit, compared with the definitions and with cases computed by hand."""

import math

import numpy as np
import pytest

from tinymp.audit import estimates

pytestmark = pytest.mark.cpu


@pytest.fixture
def rng():
    return np.random.default_rng(0)


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
