"""Exponent histograms: exact counts, in every bin, for both dtypes."""

import numpy as np
import pytest

from tinymp.backend import histogram

pytestmark = pytest.mark.usefixtures("gpu")


def expected(x):
    counts = np.zeros(histogram.BINS, np.int64)
    wide = np.abs(x.astype(np.float64))
    counts[histogram.ZEROS] = (wide == 0).sum()
    counts[histogram.INFINITIES] = np.isinf(wide).sum()
    counts[histogram.NANS] = np.isnan(wide).sum()
    for e in np.frexp(wide[np.isfinite(wide) & (wide > 0)])[1] - 1:
        counts[histogram.bin_of(int(e))] += 1
    return counts


def check(x, device):
    counts = histogram.exponents(device).get()
    assert counts.dtype == np.int64
    np.testing.assert_array_equal(counts, expected(x))


def test_every_half_is_in_its_bin():
    import cupy

    x = np.arange(65536, dtype=np.uint16).view(np.float16)
    check(x, cupy.asarray(x))


def test_every_exponent_of_fp32_is_in_its_bin():
    import cupy

    powers = np.ldexp(1.0, np.arange(-149, 128))
    with np.errstate(all="ignore"):
        below = np.nextafter(powers.astype(np.float32), np.float32(0))
    special = [0.0, -0.0, np.inf, -np.inf, np.nan]
    x = np.concatenate([powers, -powers, below, special]).astype(np.float32)
    check(x, cupy.asarray(x))


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("n", [1, 3, 8, 255, 2049])
@pytest.mark.parametrize("start", [0, 1])
def test_sizes_and_unaligned_starts(dtype, n, start):
    import cupy

    x = np.random.default_rng(n).standard_normal(n + start).astype(dtype)
    check(x[start:], cupy.asarray(x)[start:])


def test_layouts_and_empty_arrays():
    import cupy

    x = np.random.default_rng(0).standard_normal((4, 6)).astype(np.float16)
    check(x, cupy.asarray(x).T)
    check(x[:, ::2], cupy.asarray(x)[:, ::2])
    assert not histogram.exponents(cupy.empty((0, 3), np.float16)).get().any()


@pytest.mark.parametrize("exponent", [-150, 128])
def test_an_exponent_that_fp32_does_not_have(exponent):
    with pytest.raises(ValueError, match=f"from -149 to 127, got {exponent}"):
        histogram.bin_of(exponent)
