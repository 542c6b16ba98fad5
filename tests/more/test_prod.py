"""prod and cumprod: one rounding, and gradients that are right where elements are 0."""

import numpy as np
import pytest

import tinymp as mp
from oracle import check, host, randn
from tinymp import ops


@pytest.mark.parametrize("shape", [(7,), (3, 5), (2, 8, 3), ()])
@pytest.mark.parametrize("keepdim", [False, True])
def test_prod(shape, keepdim):
    check(ops.prod, lambda x: x.prod(), 1 + 0.3 * randn(*shape), length=32, grad_length=64)
    for dim in range(-len(shape), len(shape)):
        check(
            lambda x, d=dim: ops.prod(x, d, keepdim),
            lambda x, d=dim: x.prod(d, keepdims=keepdim),
            1 + 0.3 * randn(*shape),
            length=32,
            grad_length=64,
        )


def test_zeros_get_the_product_of_the_others():
    x = mp.tensor(np.array([[2.0, 0.0, 3.0], [0.0, 0.0, 5.0], [1.0, 2.0, 4.0]], "float16"), requires_grad=True)
    y = x.prod(1)
    assert y.tolist() == [0, 0, 8]
    y.sum().backward()
    assert host(x.grad).tolist() == [[0, 6, 0], [0, 0, 0], [8, 4, 2]]


def test_is_rounded_once_and_does_not_leave_the_range_on_the_way():
    x = np.array([300.0, 300.0, 1e-3, 1e-3], "float16")
    assert mp.tensor(x).prod().item() == np.float16(np.prod(x.astype("float64")))


def test_integers_and_no_elements():
    assert ops.prod(mp.tensor([2, 3, 2**33])).item() == 6 * 2**33
    y = ops.prod(mp.tensor([[True, True], [True, False]]), 1)
    assert y.dtype == "int64" and y.tolist() == [1, 0]
    x = mp.tensor(np.ones((3, 0), "float16"))
    assert ops.prod(x, 1).tolist() == [1, 1, 1] and ops.prod(x).item() == 1 and ops.prod(x, 0).shape == (0,)
    assert ops.prod(x, 1).dtype == "float16"
    x.requires_grad_()
    (ops.prod(x, 1).sum() + ops.prod(x)).backward()
    assert x.grad.shape == (3, 0)


@pytest.mark.parametrize("shape", [(7,), (3, 5), (2, 8, 3), (1,)])
def test_cumprod(shape):
    for dim in range(-len(shape), len(shape)):
        check(
            lambda x, d=dim: ops.cumprod(x, d),
            lambda x, d=dim: x.cumprod(d),
            1 + 0.3 * randn(*shape),
            length=32,
            grad_length=64,
        )


def test_cumprod_as_in_pytorch():
    torch = pytest.importorskip("torch")
    values = np.array([[2.0, 0.0, 3.0, -1.5], [0.0, 0.0, 5.0, 2.0], [1.0, 2.0, 4.0, 0.5]], "float32")
    x, t = mp.tensor(values, requires_grad=True), torch.tensor(values, requires_grad=True)
    for dim in (0, 1):
        ops.cumprod(x, dim).backward(values)  # all are exact
        torch.cumprod(t, dim).backward(torch.tensor(values))
    assert host(x.grad).tolist() == t.grad.tolist()
    assert ops.cumprod(mp.tensor([True, True, False]), 0).tolist() == [1, 1, 0]
    assert ops.cumprod(mp.tensor([2, 3, 2**33]), 0).tolist() == [2, 6, 6 * 2**33]
    assert ops.cumprod(mp.tensor(3.0), 0).item() == 3 and ops.cumprod(mp.zeros(0, 2), 0).shape == (0, 2)


def test_partial_products_do_not_leave_the_range_on_the_way():
    x = np.array([300.0, 300.0, 1e-3, 1e-3], "float16")
    with np.errstate(over="ignore"):
        assert ops.cumprod(mp.tensor(x), 0).tolist() == np.cumprod(x.astype("float64")).astype("float16").tolist()
