"""matmul, mm, bmm, linear, einsum: one rounding of an FP32 accumulator."""

import numpy as np
import pytest

import tinymp as mp
from oracle import check, randn
from tinymp import ops


def products(op):
    """The magnitude of the terms that a product sums: the same product of absolute values."""
    return lambda *inputs: op(*inputs).max(initial=0)


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ((3,), (3,)),
        ((2, 3), (3,)),
        ((3,), (3, 4)),
        ((2, 3), (3, 4)),
        ((1, 1), (1, 1)),
        ((5, 2, 3), (3, 4)),
        ((5, 2, 3), (3,)),
        ((2, 3), (5, 3, 4)),
        ((5, 2, 3), (5, 3, 4)),
        ((4, 1, 2, 3), (5, 3, 2)),
        ((3,), (5, 3, 2)),
        ((5, 2, 0), (0, 4)),
        ((0, 2, 3), (3, 4)),
    ],
)
def test_matmul(a, b):
    check(
        ops.matmul, np.matmul, randn(*a), randn(*b, seed=2), length=a[-1], magnitude=products(np.matmul), grad_length=40
    )


def test_mm_and_bmm():
    check(ops.mm, np.matmul, randn(3, 4), randn(4, 2, seed=2), length=4, magnitude=products(np.matmul))
    check(ops.bmm, np.matmul, randn(2, 3, 4), randn(2, 4, 2, seed=2), length=4, magnitude=products(np.matmul))


def test_long_inner_dimension_keeps_fp32_accumulation():
    check(ops.matmul, np.matmul, randn(2, 5000), randn(5000, 3, seed=2), length=5000, magnitude=products(np.matmul))


def test_matmul_of_transposed_views():
    check(
        lambda a, b: a.transpose(0, 1) @ b.transpose(0, 1),
        lambda a, b: a.T @ b.T,
        randn(4, 3),
        randn(5, 4, seed=2),
        length=4,
        magnitude=lambda a, b: (a.T @ b.T).max(),
    )


@pytest.mark.parametrize("shape", [(7,), (4, 7), (2, 3, 7), (2, 3, 0), (0, 7)])
@pytest.mark.parametrize("bias", [True, False])
def test_linear(shape, bias):
    inputs = [randn(*shape), randn(5, shape[-1], seed=2)] + ([randn(5, seed=3)] if bias else [])

    def oracle(x, w, b=0):
        return x @ w.T + b

    check(ops.linear, oracle, *inputs, length=8, magnitude=products(oracle))


def test_linear_rounds_once():
    """2048 + 1 is not an FP16 number: a bias added after a rounding would be lost."""
    x = mp.tensor(np.array([[2048.0, 1.0]], "float16"))
    w, b = mp.tensor(np.array([[1.0, 1.0]], "float16")), mp.tensor(np.array([1.0], "float16"))
    assert ops.linear(x, w, b).item() == 2050


@pytest.mark.parametrize(
    ("equation", "shapes"),
    [
        ("ij,jk->ik", [(2, 3), (3, 4)]),
        ("bij,bjk->bik", [(5, 2, 3), (5, 3, 4)]),
        ("bhqd,bhkd->bhqk", [(2, 3, 4, 5), (2, 3, 6, 5)]),
        ("i,j->ij", [(2,), (3,)]),
        ("ij,ij->ij", [(2, 3), (2, 3)]),
        ("ij,ij->", [(2, 3), (2, 3)]),
        ("ijk,jil->kl", [(3, 4, 5), (4, 3, 2)]),
        ("ab,cd->acbd", [(2, 3), (4, 5)]),
        ("ba,b", [(3, 2), (3,)]),
        ("...ij,...jk->...ik", [(2, 7, 3, 4), (2, 7, 4, 5)]),
        ("ij->ji", [(2, 3)]),
        ("ij->", [(2, 3)]),
        ("...i->...", [(2, 3, 4)]),
        ("ii->i", [(3, 3)]),
        ("ii", [(3, 3)]),
        ("iij,jk->ik", [(3, 3, 2), (2, 4)]),
    ],
)
def test_einsum(equation, shapes):
    inputs = [randn(*s, seed=i) for i, s in enumerate(shapes)]
    oracle = lambda *x: np.einsum(equation, *x)  # noqa: E731
    check(lambda *x: ops.einsum(equation, *x), oracle, *inputs, length=16, magnitude=products(oracle))


@pytest.mark.parametrize(
    ("equation", "shapes"),
    [
        ("ij,ij->ij", [(1, 3), (4, 3)]),
        ("ij,jk->ik", [(2, 1), (4, 3)]),
        ("ij,jk->ik", [(2, 4), (1, 3)]),
        ("...i,...i->...", [(1, 4), (5, 4)]),
        ("...i,ij->...j", [(2, 1, 4), (4, 3)]),
        ("ii,i->i", [(1, 1), (4,)]),
        ("i,i,i->i", [(1,), (3,), (1,)]),
        ("ij->i", [(2, 1)]),
    ],
)
def test_einsum_broadcasts_axes_of_length_1(equation, shapes):
    inputs = [randn(*s, seed=i) for i, s in enumerate(shapes)]
    oracle = lambda *x: np.einsum(equation, *x)  # noqa: E731
    check(
        lambda *x: ops.einsum(equation, *x),
        oracle,
        *inputs,
        length=16,
        roundings=2,
        magnitude=products(oracle),
        inherited=2,
    )


@pytest.mark.parametrize(
    ("equation", "shape", "expected"), [("ii->i", (0, 0), ()), ("ii", (0, 0), 0.0), ("iij->j", (0, 0, 2), [0, 0])]
)
def test_einsum_diagonals_of_nothing(equation, shape, expected):
    x = mp.tensor(np.zeros(shape, "float16"), requires_grad=True)
    y = ops.einsum(equation, x)
    np.testing.assert_array_equal(y.numpy(), expected)
    y.sum().backward()
    assert x.grad.shape == shape


def test_einsum_of_three_rounds_each_product():
    check(
        lambda *x: ops.einsum("ij,jk,kl->il", *x),
        lambda *x: np.einsum("ij,jk,kl->il", *x),
        randn(2, 3),
        randn(3, 4, seed=1),
        randn(4, 5, seed=2),
        dtypes=("float64", "float32"),
        length=12,
        magnitude=lambda *x: np.einsum("ij,jk,kl->il", *x).max(),
        grad_length=60,
    )
