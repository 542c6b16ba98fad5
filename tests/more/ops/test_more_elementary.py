"""The functions of ops/more/unary.py: values and gradients, extremes, integers."""

import math

import numpy as np
import pytest

import tinymp as mp
from oracle import check, distinct, host
from tinymp import ops

SELU = 1.6732632423543772, 1.0507009873554805
CASES = {  # the oracle in float64, and the inputs' step: within the domain, and far from 0 where it is a pole
    "erf": (np.vectorize(math.erf, otypes=[float]), 0.2),
    "log1p": (np.log1p, 0.03),
    "expm1": (np.expm1, 0.1),
    "tan": (np.tan, 0.05),
    "atan": (np.arctan, 0.3),
    "asin": (np.arcsin, 0.03),
    "acos": (np.arccos, 0.03),
    "sinh": (np.sinh, 0.2),
    "cosh": (np.cosh, 0.2),
    "softsign": (lambda x: x / (1 + np.abs(x)), 0.3),
    "selu": (lambda x: SELU[1] * np.where(x > 0, x, SELU[0] * np.expm1(np.minimum(x, 0))), 0.2),
    "celu": (lambda x: np.where(x > 0, x, np.expm1(np.minimum(x, 0))), 0.2),
    "hardsigmoid": (lambda x: np.clip(x + 3, 0, 6) / 6, 0.3),
    "floor": (np.floor, 0.3),
    "ceil": (np.ceil, 0.3),
    "round": (np.round, 0.3),
    "trunc": (np.trunc, 0.3),
}


@pytest.mark.parametrize("name", CASES)
def test_value_and_gradient(name):
    oracle, step = CASES[name]
    check(getattr(ops, name), oracle, distinct(6, 8, step=step), length=8, grad_length=24)
    check(getattr(ops, name), oracle, np.empty((0, 3)))


@pytest.mark.parametrize(("name", "oracle"), [("log2", np.log2), ("log10", np.log10)])
def test_logarithms(name, oracle):
    check(getattr(ops, name), oracle, np.abs(distinct(6, 8, step=0.3)), length=8, grad_length=24)


@pytest.mark.parametrize("alpha", [0.5, 3.0])
def test_celu_with_alpha(alpha):
    oracle = lambda x: np.where(x > 0, x, alpha * np.expm1(np.minimum(x, 0) / alpha))  # noqa: E731
    check(lambda x: ops.celu(x, alpha), oracle, distinct(6, 8, step=0.2), length=8, grad_length=24)


def test_threshold():
    check(lambda x: ops.threshold(x, 0.4, -2), lambda x: np.where(x > 0.4, x, -2), distinct(6, 8, step=0.3))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_erf_keeps_its_digits_near_0_and_at_the_seam(dtype):
    x = np.concatenate([np.geomspace(1e-30, 6, 2000), [0.5, np.nextafter(0.5, 0), np.nextafter(0.5, 1)]]).astype(dtype)
    expected = np.array([math.erf(v) for v in x.astype("float64")])
    unit = np.finfo(dtype).eps / 2
    # 7 units of erfc, which is below erf from 1/2 on, and the rounding of 1 - erfc
    np.testing.assert_allclose(host(ops.erf(mp.tensor(x))), expected, rtol=2 * (7 + 1) * unit)
    assert (host(ops.erf(mp.tensor(-x))) == -host(ops.erf(mp.tensor(x)))).all()


@pytest.mark.parametrize("name", [*CASES, "log2", "log10"])
def test_extremes_as_in_pytorch(name):
    torch = pytest.importorskip("torch")
    home = torch.nn.functional if hasattr(torch.nn.functional, name) else torch
    values = np.array([0.0, -0.0, 1, -1, 0.5, 1.5, -2.5, 3, -3, 40, -40, np.inf, -np.inf, np.nan], "float32")
    x, t = mp.tensor(values, requires_grad=True), torch.tensor(values, requires_grad=True)
    y, expected = getattr(ops, name)(x), getattr(home, name)(t)
    np.testing.assert_allclose(host(y), expected.detach().numpy(), rtol=16 * 2.0**-24)
    if name not in ("atan", "log1p", "log2", "log10", "asin", "acos", "selu", "celu", "tan"):
        return
    finite = np.isfinite(values)
    y.backward(np.ones(y.shape, "float32"))
    expected.backward(torch.ones_like(expected))
    np.testing.assert_allclose(host(x.grad)[finite], t.grad.numpy()[finite], rtol=32 * 2.0**-24)


@pytest.mark.parametrize("name", ["floor", "ceil", "round", "trunc"])
def test_integers_stay_integers(name):
    x = mp.tensor([1, -2, 3])
    y = getattr(ops, name)(x)
    y += 1
    assert y.dtype == "int64" and y.tolist() == [2, -1, 4] and x.tolist() == [1, -2, 3]


@pytest.mark.parametrize("name", ["erf", "log1p", "expm1", "log2", "log10", "tan", "atan", "sinh", "cosh", "softsign"])
def test_integers_become_float32(name):
    torch = pytest.importorskip("torch")
    home = torch.nn.functional if hasattr(torch.nn.functional, name) else torch
    y, expected = getattr(ops, name)(mp.tensor([1, 2, 3])), getattr(home, name)(torch.tensor([1, 2, 3]))
    assert y.dtype == "float32"
    np.testing.assert_allclose(host(y), expected.numpy(), rtol=16 * 2.0**-24)
