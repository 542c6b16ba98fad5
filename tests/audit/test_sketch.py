"""Marks: any change of a bit shows in the digest, and the sketch tells how far apart two arrays are."""

import numpy as np
import pytest

from oracle import rng
from tinymp.audit.sketch import WIDTH, mark
from tinymp.dtypes import bfloat16

pytestmark = pytest.mark.cpu


def apart(a, b):
    return np.linalg.norm(mark(a).sketch - mark(b).sketch)


@pytest.mark.parametrize("shape", [(), (31,), (32,), (64, 28, 28), (1_000_003,)])
def test_the_sketch_tells_the_distance(shape):
    a = rng(0).standard_normal(shape)
    column = np.zeros(shape)
    column[(..., slice(1)) if shape else ...] = 1e-3
    for change in (1e-3 * rng(1).standard_normal(shape), np.full(shape, 1e-3), column):
        ratio = apart(a, a + change) / np.linalg.norm(change)
        assert abs(ratio - 1) < (1e-9 if a.size <= WIDTH else 0.4)  # three standard deviations of 13 %


@pytest.mark.parametrize("dtype", ["float16", "float64", "int8"])
def test_one_bit_of_one_element(dtype):
    a = (50 * rng(0).standard_normal((200, 500))).astype(dtype)
    b = a.copy()
    b[123, 321] += 1 if b.dtype.kind == "i" else np.spacing(b[123, 321])
    assert mark(a).digest != mark(b).digest
    if dtype != "float64":  # in which the sketch is summed: it cannot tell so little
        np.testing.assert_allclose(apart(a, b), abs(float(b[123, 321]) - float(a[123, 321])), rtol=1e-4)


def test_numbers():
    a = np.array([3.0, -4.0, np.inf, np.nan, 0.0], "float32")
    m = mark(a)
    assert (m.nonfinite, m.largest, m.norm, m.sketch.size) == (2, 4.0, 5.0, 5)
    assert mark(np.float32(-2.5)).sketch.tolist() == [-2.5]  # with its sign: so a loss is read
    assert mark(np.array([True, False])).norm == 1
    empty = mark(np.zeros((0, 3)))
    assert (empty.norm, empty.largest, empty.sketch.size) == (0, 0, 0)
    if bfloat16 is not None:
        assert mark(np.array([1.5, np.inf], bfloat16))[1:4] == (1, 1.5, 1.5)


def test_the_order_of_memory_does_not_matter_and_that_of_the_axes_does():
    a = rng(0).standard_normal((40, 50)).astype("float16")
    assert mark(a).digest == mark(np.asfortranarray(a)).digest == mark(np.repeat(a, 2, 0)[::2]).digest
    assert mark(a).digest != mark(a.T).digest


def test_the_signs_are_those_of_every_machine():
    """Traces are compared across machines and versions of NumPy."""
    m = mark(np.arange(100, dtype="float32"))
    assert m.digest == "913283ec8502ba14"
    assert m.sketch[:6].tolist() == [62, 126, -124, 62, 70, -72]
