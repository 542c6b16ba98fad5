"""Comparisons are those of the exact values, in every dtype, and have no gradient."""

import operator

import numpy as np
import pytest

import tinymp as mp
from tinymp import ops

ORDER = {"lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal}
COMPARISONS = {"eq": np.equal, "ne": np.not_equal, **ORDER}
LOGICAL = {"logical_and": np.logical_and, "logical_or": np.logical_or}
TESTS = {"isnan": np.isnan, "isinf": np.isinf, "isfinite": np.isfinite, "logical_not": np.logical_not}
SPECIAL = np.array([0.0, -0.0, 1.0, -1.0, 65504, 6e-8, -6e-8, 1.001, np.inf, -np.inf, np.nan], "float16")


def agrees(y, expected):
    assert y.dtype == bool and not y.requires_grad
    np.testing.assert_array_equal(y.numpy(), expected, strict=True)


@pytest.mark.parametrize("name", {**COMPARISONS, **LOGICAL, **TESTS})
def test_special_values(name):
    if name in TESTS:
        agrees(getattr(ops, name)(mp.tensor(SPECIAL)), TESTS[name](SPECIAL))
    else:
        a, b = mp.tensor(SPECIAL[:, None], requires_grad=True), mp.tensor(SPECIAL)
        agrees(getattr(ops, name)(a, b), {**COMPARISONS, **LOGICAL}[name](SPECIAL[:, None], SPECIAL))


def test_numbers_are_rounded_like_the_tensor_that_they_meet_and_large_integers_are_exact():
    for dtype in ("int64", "uint8", "bool"):
        x = np.array([0, 1, 2, 200]).astype(dtype)
        for name, oracle in COMPARISONS.items():
            agrees(getattr(ops, name)(mp.tensor(x), 0.5), oracle(x, 0.5))
    agrees(ops.eq(mp.tensor(np.array([0.1], np.float16)), 0.1), [True])
    agrees(ops.gt(mp.tensor([0, 1, 2]), mp.tensor([0.5])), [False, True, True])
    agrees(ops.eq(mp.tensor([2**53, 2**53 + 1]), 2**53), [True, False])


@pytest.mark.parametrize("op", [ops.eq, ops.ne, ops.lt, ops.le, ops.gt, ops.ge])
@pytest.mark.parametrize(("dtype", "constant"), [("float16", 65520), ("float16", 10**30), ("float32", -1e300)])
def test_a_constant_beyond_the_dtype_lies_between_its_largest_number_and_infinity(op, dtype, constant):
    x = np.array([-np.inf, np.finfo(dtype).min, 0, np.finfo(dtype).max, np.inf, np.nan], dtype)
    expected = getattr(operator, op.__name__)(x.astype("float64"), float(constant))
    np.testing.assert_array_equal(op(mp.tensor(x), constant).numpy(), expected)
