"""Comparisons are those of the exact values, in every dtype, and have no gradient."""

import operator

import numpy as np
import pytest

import tinymp as mp
from oracle import randn
from tinymp import ops

ORDER = {"lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal}
COMPARISONS = {"eq": np.equal, "ne": np.not_equal, **ORDER}
LOGICAL = {"logical_and": np.logical_and, "logical_or": np.logical_or}
TESTS = {"isnan": np.isnan, "isinf": np.isinf, "isfinite": np.isfinite, "logical_not": np.logical_not}
DTYPES = ["float16", "float32", "float64", "int64", "uint8", "bool"]
SPECIAL = np.array([0.0, -0.0, 1.0, -1.0, 65504, 6e-8, -6e-8, 1.001, np.inf, -np.inf, np.nan])


def agrees(y, expected):
    assert y.dtype == bool
    assert not y.requires_grad
    np.testing.assert_array_equal(y.numpy(), expected, strict=True)


@pytest.mark.parametrize("name", {**COMPARISONS, **LOGICAL})
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_two_tensors_of_special_values(name, dtype):
    x = SPECIAL.astype(dtype)
    a, b = mp.tensor(x[:, None], requires_grad=True), mp.tensor(x)
    agrees(getattr(ops, name)(a, b), {**COMPARISONS, **LOGICAL}[name](x[:, None], x))


@pytest.mark.parametrize("name", COMPARISONS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("number", [0, 1, -1, True, 0.5, np.float64(1.0)])
def test_a_number(name, dtype, number):
    x = np.array([0, 1, 2, 200]).astype(dtype)
    agrees(getattr(ops, name)(mp.tensor(x), number), COMPARISONS[name](x, number))


def test_a_number_is_rounded_like_the_tensor_that_it_meets():
    x = mp.tensor(np.array([0.1], np.float16))
    agrees(ops.eq(x, 0.1), [True])
    agrees(ops.lt(x, float("inf")), [True])


def test_integers_beside_fractions():
    agrees(ops.gt(mp.tensor([0, 1, 2]), mp.tensor([0.5])), [False, True, True])
    agrees(ops.le(mp.tensor(np.array([0.5, 2.0], np.float16)), mp.tensor([1, 2])), [True, True])


def test_large_integers_are_exact():
    agrees(ops.eq(mp.tensor([2**53, 2**53 + 1]), 2**53), [True, False])


@pytest.mark.parametrize("name", TESTS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_tests(name, dtype):
    x = (SPECIAL if dtype.startswith("float") else np.array([0, 1, 2])).astype(dtype)
    agrees(getattr(ops, name)(mp.tensor(x)), TESTS[name](x))


@pytest.mark.parametrize("name", ["all", "any"])
@pytest.mark.parametrize("dtype", ["float16", "float64", "int64", "bool"])
@pytest.mark.parametrize("keepdim", [False, True])
@pytest.mark.parametrize("dim", [None, 0, -1, (0, 2), [1]])
def test_all_and_any(name, dtype, keepdim, dim):
    x = (randn(3, 4, 2) > {"all": -1, "any": 1}[name]).astype(dtype)
    expected = getattr(np, name)(x, axis=tuple(dim) if isinstance(dim, list) else dim, keepdims=keepdim)
    agrees(getattr(ops, name)(mp.tensor(x), dim, keepdim), np.asarray(expected))


def test_operators_of_masks():
    a, b = mp.tensor([True, True, False]), mp.tensor([True, False, False])
    agrees(a & b, [True, False, False])
    agrees(a | b, [True, True, False])
    agrees(~a, [False, False, True])


@pytest.mark.parametrize(("name", "of_none"), [("all", True), ("any", False)])
def test_all_and_any_at_the_edges(name, of_none):
    f = getattr(ops, name)
    agrees(f(mp.tensor(np.zeros((2, 0)), dtype="float16"), 1), [of_none, of_none])
    agrees(f(mp.tensor(np.array(np.nan)), 0), np.array(True))
    agrees(f(mp.tensor(np.array([-0.0], np.float16))), np.array(False))


@pytest.mark.parametrize("op", [ops.eq, ops.ne, ops.lt, ops.le, ops.gt, ops.ge])
@pytest.mark.parametrize(
    ("dtype", "constant"),
    [("float16", 65520), ("float16", -1e6), ("float16", 1e300), ("float16", 10**30), ("float32", -1e300)],
)
def test_a_constant_beyond_the_dtype_lies_between_its_largest_number_and_infinity(op, dtype, constant):
    x = np.array([-np.inf, np.finfo(dtype).min, 0, np.finfo(dtype).max, np.inf, np.nan], dtype)
    expected = getattr(operator, op.__name__)(x.astype("float64"), float(constant))
    np.testing.assert_array_equal(op(mp.tensor(x), constant).numpy(), expected)
