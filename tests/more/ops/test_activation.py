"""Activations beyond the core's: values and gradients, kinks as in PyTorch, and GELU in its left tail."""

import math

import numpy as np
import pytest

import tinymp as mp
from oracle import check, distinct, host
from tinymp import ops

erf = np.vectorize(math.erf, otypes=[float])
HALVES = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
HALVES = HALVES[np.isfinite(HALVES)]
CASES = {
    "hardtanh": (lambda x: ops.hardtanh(x, -1.5, 0.7), lambda x: np.clip(x, -1.5, 0.7)),
    "elu": (lambda x: ops.elu(x, 1.3), lambda x: np.where(x > 0, x, 1.3 * np.expm1(np.minimum(x, 0)))),
    "gelu": (ops.gelu, lambda x: 0.5 * x * (1 + erf(x / np.sqrt(2)))),
    "tanh gelu": (
        lambda x: ops.gelu(x, "tanh"),
        lambda x: 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))),
    ),
    "silu": (ops.silu, lambda x: x / (1 + np.exp(-x))),
    "softplus": (lambda x: ops.softplus(x, 2, 3), lambda x: np.where(2 * x > 3, x, np.logaddexp(0, 2 * x) / 2)),
    "logsigmoid": (ops.logsigmoid, lambda x: -np.logaddexp(0, -x)),
}


@pytest.mark.parametrize("name", CASES)
def test_activation(name):
    # the oracle of gelu cancels in its left tail: its own error is the magnitude there
    check(*CASES[name], distinct(6, 8, step=0.3), length=8, grad_length=24)


KINKS = {
    "leaky_relu": (0.2,), "elu": (1.3,), "celu": (0.7,), "selu": (), "relu6": (), "hardtanh": (-3.0, 1.0),
    "hardsigmoid": (), "hardswish": (), "softplus": (2.0, 6.0), "threshold": (1.0, -7.0),
}  # fmt: skip


@pytest.mark.peer
@pytest.mark.parametrize("name", KINKS)
def test_slopes_at_kinks_are_pytorchs(name):
    torch = pytest.importorskip("torch")
    x = np.array([-3, -1, -0.0, 0, 1, 2, 3, 4, 6], "float32")
    mine, theirs = mp.tensor(x, requires_grad=True), torch.tensor(x, requires_grad=True)
    y, e = getattr(ops, name)(mine, *KINKS[name]), getattr(torch.nn.functional, name)(theirs, *KINKS[name])
    y.sum().backward()
    e.sum().backward()
    np.testing.assert_allclose(y.numpy(), e.detach().numpy(), rtol=1e-6)
    np.testing.assert_allclose(host(mine.grad), theirs.grad.numpy(), rtol=1e-6)


@pytest.mark.cpu
def test_erfc_is_within_7_units_in_the_last_place():
    """erfc of every half, of FP32 values between them, and its limits."""
    from tinymp.ops.more.unary import erfc

    x = np.concatenate([HALVES.astype("f4"), np.linspace(-6, 9.1, 100_001, dtype="f4")])
    exact = np.array([math.erfc(v) for v in x])
    got, normal = erfc(mp.backend.cpu, x), exact >= 2.0**-126
    assert (np.abs(got - exact) / np.spacing(exact.astype("f4")))[normal].max() < 7
    assert (got[~normal] < 2.0**-125).all()
    assert erfc(mp.backend.cpu, np.float32([np.inf, -np.inf])).tolist() == [0, 2]


def test_gelu_is_rounded_once_for_every_half():
    exact = np.array([v * 0.5 * math.erfc(-v / math.sqrt(2)) for v in HALVES.astype(float)])
    y = host(ops.gelu(mp.tensor(HALVES)).array).astype(float)
    _, exponent = np.frexp(exact)
    ulp = np.ldexp(1.0, np.maximum(exponent - 11, -24))
    assert (np.abs(y - exact) / ulp).max() < 0.501
