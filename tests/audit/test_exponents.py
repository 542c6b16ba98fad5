"""`exponents` of arrays on both devices: exact counts in the same bins, against math.frexp."""

import math

import numpy as np
import pytest

from tinymp.audit.exponents import BINS, INFINITIES, NANS, ZEROS, bin_of, exponents


@pytest.fixture(params=["cpu", "gpu"])
def count(request):
    """exponents(x) of one device for a NumPy array, as a NumPy array."""
    if request.param == "cpu":
        return exponents
    device = request.getfixturevalue("gpu")

    def on_device(x):
        return exponents(like(device.xp, x))

    return on_device


def like(xp, x):
    """x on the device, in the same layout."""
    order = sorted(range(x.ndim), key=lambda a: -x.strides[a])
    return xp.asarray(np.ascontiguousarray(x.transpose(order))).transpose(np.argsort(order).tolist())


def expected(x):
    counts = np.zeros(BINS, np.int64)
    with np.errstate(invalid="ignore"):  # a signalling NaN
        values = x.astype(np.float64).ravel().tolist()
    for value in values:
        if math.isnan(value):
            place = NANS
        elif math.isinf(value):
            place = INFINITIES
        else:
            place = bin_of(min(max(math.frexp(value)[1] - 1, -149), 127)) if value else ZEROS
        counts[place] += 1
    return counts


def check(count, x):
    counts = count(x)
    assert counts.dtype == np.int64
    np.testing.assert_array_equal(counts, expected(x))


def test_every_half(count):
    check(count, np.arange(65536, dtype=np.uint16).view(np.float16))


def test_every_exponent_of_fp32_and_some_of_fp64(count):
    powers = np.ldexp(1.0, np.arange(-149, 128)).astype(np.float32)
    with np.errstate(under="ignore"):
        below = np.nextafter(powers, np.float32(0))
    special = np.array([0.0, -0.0, np.inf, -np.inf, np.nan], np.float32)
    check(count, np.concatenate([powers, -powers, below, special]))
    check(count, np.array([0.0, -3.0, 2.0**-149, 1e-300, 1e300, np.inf, np.nan, 1 - 2.0**-53]))


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize(("n", "start"), [(0, 0), (1, 1), (2049, 1)])
def test_sizes_and_unaligned_starts(count, dtype, n, start):
    x = np.random.default_rng(n).standard_normal(n + start).astype(dtype)
    check(count, x[start:])


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_layouts(count, dtype):
    x = np.random.default_rng(0).standard_normal((4, 6, 5)).astype(dtype)
    for view in (x.T, x[:, ::2], x[1:3, :, 4], np.broadcast_to(x[0], (3, 6, 5)), x[0, 0, 0]):
        np.testing.assert_array_equal(count(view), expected(view))
