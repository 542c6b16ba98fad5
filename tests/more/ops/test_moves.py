"""Ops that move, find and sample elements are held to NumPy and PyTorch."""

import operator
import re

import numpy as np
import pytest

import tinymp as mp
from oracle import distinct, host, randn
from tinymp import ops

torch = pytest.importorskip("torch")

MOVES = """
o.narrow(x, 1, -4, 2) | o.roll(x, (1, -2), (0, 1)) | o.roll(x, 3) | o.movedim(x, (0, 2), (2, 1)) | o.swapaxes(x, 0, 2)
o.broadcast_to(x, (2, 3, 4, 5)) | o.unflatten(x, 1, (2, -1)) | o.hstack([x, x]) | o.vstack([x, x]) | o.tile(x, (2,))
o.repeat_interleave(x, 2, 1) | o.repeat_interleave(x, 2) | o.diagonal(x, 1, 2, 0) | o.diag(x[0], -1)
o.diag(x[0, 0], 2) | o.masked_select(x, x > 0) | o.meshgrid(x[0, 0], x[1, :, 0], indexing="xy")[0]
o.take_along_dim(x, x.argsort(1), 1) | o.repeat_interleave(x, counts, 0)
o.take_along_dim(x, x.argsort(1) - x.shape[1], 1) | x.view(4, -1) | x.transpose(1, 2).contiguous()
x.repeat(2, 1, 3, 1) | x.repeat((0, 2, 1)) | x.unbind(-1)[1] * 2 | o.tril(x, -1) | o.triu(x[0], 9) | o.tril(x[0, :0])
x[0].T.contiguous().view(20)
"""


@pytest.mark.parametrize("move", [move.strip() for move in re.split(r" \| |\n", MOVES.strip())])
@pytest.mark.parametrize("dtype", ["float16", "float32", "int64"])
def test_moves_and_their_gradients_as_in_pytorch(move, dtype):
    values = (16 * distinct(3, 4, 5)).astype(dtype)
    x, t = mp.tensor(values), torch.tensor(values)
    if dtype != "int64":
        x.requires_grad_(), t.requires_grad_()
    y, expected = (
        eval(move, {"o": o, "x": v, "counts": make([2, 0, 1])})
        for o, v, make in ((ops, x, mp.tensor), (torch, t, torch.tensor))
    )
    assert host(y).tolist() == expected.tolist() and str(expected.dtype).endswith(str(y.dtype))
    if dtype != "int64":
        dy = np.round(4 * randn(*y.shape)).astype(dtype)  # whole numbers: their sums are exact
        y.backward(dy)
        expected.backward(torch.tensor(dy))
        assert host(x.grad).tolist() == t.grad.tolist()


WITHOUT_GRADIENT = """
o.nonzero(x) | o.nonzero(x, as_tuple=True) | o.nonzero(x[0, 1]) | o.count_nonzero(x, 1) | o.logical_xor(x, x[1])
o.bincount(i, minlength=7) | o.bincount(i, weights=x[0]) | F.one_hot(i, 6) | F.one_hot(i) | o.unique(x)
o.unique(x, return_counts=True) | o.unique(x, return_inverse=True, return_counts=True, dim=1) | o.isclose(x, y)
o.isclose(x, y, rtol=1e-2) | o.isclose(x, y, atol=1e-2, equal_nan=True) | o.allclose(x, y) | o.allclose(i, i)
o.equal(x[0, :2], x[0, :2]) | o.equal(x, y) | o.equal(x, x[0])
"""


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("call", [call for row in WITHOUT_GRADIENT.strip().split("\n") for call in row.split(" | ")])
def test_what_has_no_gradient_is_as_in_pytorch(call, dtype):
    x = np.array([[0.0, -1, 2], [np.inf, np.nan, 1]], dtype)
    y, i = x + np.array([1e-3, -1e-2, 0], dtype), np.array([1, 4, 1])
    found = []
    for o, functions, make in ((ops, ops, mp.tensor), (torch, torch.nn.functional, torch.tensor)):
        result = eval(call, {"o": o, "F": functions, "x": make(x), "y": make(y), "i": make(i)})
        parts = result if isinstance(result, tuple) else (result,)
        found.append([(part.tolist(), str(part.dtype)[-4:]) if hasattr(part, "dtype") else part for part in parts])
    assert str(found[0]) == str(found[1])


def test_samples_have_their_probabilities():
    mp.manual_seed(0)
    n, weights = 40_000, mp.tensor([1.0, 0.0, 3.0, 4.0])

    def near(counts, p):
        """Within five standard deviations."""
        return abs(counts - n * p) <= 5 * np.sqrt(n * p * (1 - p))

    drawn = host(ops.multinomial(weights, n, replacement=True))
    first = host(ops.multinomial(ops.broadcast_to(weights, (n, 4)), 2))
    assert first.shape == (n, 2) and (first[:, 0] != first[:, 1]).all() and str(first.dtype) == "int64"
    for sample in (drawn, first[:, 0]):
        assert near(np.bincount(sample, minlength=4), np.array([1, 0, 3, 4]) / 8).all()
    hard = ops.gumbel_softmax(ops.log(ops.broadcast_to(weights, (n, 4))), hard=True)
    assert near(host(hard).sum(0, dtype=float), np.array([1, 0, 3, 4]) / 8).all() and {*host(hard).ravel()} == {0, 1}
    coins = ops.bernoulli(mp.full((n,), 0.3).half())
    assert coins.dtype == "float16" and near(host(coins).sum(dtype=float), 0.3)
    assert {*host(ops.bernoulli(mp.tensor([0.0, 1.0]))).tolist()} == {0, 1}
    x = ops.normal(mp.full((n, 2), 3.0), mp.tensor([2.0, 0.0]))
    assert abs(host(x)[:, 0].mean() - 3) < 5 * 2 / np.sqrt(n) and (host(x)[:, 1] == 3).all()
    assert abs(host(x)[:, 0].std() - 2) < 5 * 2 / np.sqrt(2 * n)
    assert ops.normal(0.0, 1.0, (2, 3)).shape == (2, 3)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_moments(dtype):
    """Within 6 standard errors of the mean and the second moment."""
    mp.manual_seed(1)
    n = 20_000
    for made, mean, square, fourth in ((mp.rand, 1 / 2, 1 / 3, 1 / 5), (mp.randn, 0, 1, 3)):
        y = made(n, dtype=dtype)
        assert y.dtype == dtype and y.shape == (n,)
        wide = y.numpy().astype("float64")
        assert abs(wide.mean() - mean) < 6 * np.sqrt((square - mean**2) / n) + 2.0**-11
        assert abs((wide**2).mean() - square) < 6 * np.sqrt((fourth - square**2) / n) + 2.0**-10
        assert made is mp.randn or (wide.min() >= 0 and wide.max() < 1)


# ---- comparisons are those of the exact values, in every dtype, and have no gradient ----

ORDER = {"lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal}
COMPARISONS = {"eq": np.equal, "ne": np.not_equal, **ORDER}


def agrees(y, expected):
    assert y.dtype == bool and not y.requires_grad
    np.testing.assert_array_equal(y.numpy(), expected, strict=True)


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
