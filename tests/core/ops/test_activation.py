"""Activations: values and gradients, kinks and extremes."""

import math

import numpy as np
import pytest

import tinymp as mp
from oracle import check, distinct, host, randn
from tinymp import ops

erf = np.vectorize(math.erf, otypes=[float])


def sigmoid(x):
    return np.where(x >= 0, 1 / (1 + np.exp(-np.abs(x))), np.exp(-np.abs(x)) / (1 + np.exp(-np.abs(x))))


CASES = [
    # op, oracle, number of rounded saved arrays that backward reads
    (ops.relu, lambda x: np.maximum(x, 0), 0),
    (lambda x: ops.leaky_relu(x, 0.2), lambda x: np.where(x > 0, x, 0.2 * x), 0),
    (ops.sigmoid, sigmoid, 8),  # y near 1 moves 1 - y by u: dx by u dy, which is 4 u max dx (where y = 1/2)
    (ops.tanh, np.tanh, 4),
    (lambda x: ops.hardtanh(x, -1.5, 0.7), lambda x: np.clip(x, -1.5, 0.7), 0),
    (lambda x: ops.elu(x, 1.3), lambda x: np.where(x > 0, x, 1.3 * np.expm1(np.minimum(x, 0))), 0),
    (ops.gelu, lambda x: 0.5 * x * (1 + erf(x / np.sqrt(2))), 0),
    (
        lambda x: ops.gelu(x, "tanh"),
        lambda x: 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))),
        0,
    ),
    (ops.silu, lambda x: x * sigmoid(x), 0),
    (ops.softplus, lambda x: np.logaddexp(0, x), 0),
    (lambda x: ops.softplus(x, 2.0, 3.0), lambda x: np.where(2 * x > 3, x, np.logaddexp(0, 2 * x) / 2), 0),
    (ops.logsigmoid, lambda x: -np.logaddexp(0, -x), 0),
]


@pytest.mark.parametrize(("op", "oracle", "inherited"), CASES)
@pytest.mark.parametrize("x", [distinct(6, 8, step=0.3), 0.01 * randn(5, 3), np.array(0.4), np.empty((0, 3))], ids=str)
def test_activation(op, oracle, inherited, x):
    # the oracle of gelu cancels in its left tail: its own error is the magnitude there
    check(op, oracle, x, length=8, grad_length=24, inherited=inherited)


def values(op, x, dtype):
    """op(x) and its gradient for dy = 1."""
    t = mp.tensor(np.array(x, dtype), requires_grad=True)
    y = op(t)
    y.backward(np.ones(y.shape, dtype))
    return y.numpy(), host(t.grad)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
class TestEdges:
    def test_relu(self, dtype):
        y, dx = values(ops.relu, [-np.inf, -65504, -(2.0**-24), -0.0, 0.0, 2.0**-24, 65504, np.inf], dtype)
        np.testing.assert_array_equal(y, np.array([0, 0, 0, 0, 0, 2.0**-24, 65504, np.inf], dtype))
        np.testing.assert_array_equal(dx, [0, 0, 0, 0, 0, 1, 1, 1])  # 0 at 0, also at -0

    def test_relu_of_every_half(self, dtype):
        with np.errstate(invalid="ignore"):  # signalling nans among them
            x = np.arange(65536, dtype=np.uint16).view(np.float16).astype(dtype)
            np.testing.assert_array_equal(ops.relu(mp.tensor(x)).numpy(), np.maximum(x, 0))

    def test_relu_passes_nan_of_either_sign(self, dtype):
        nans = np.copysign(np.array([np.nan, np.nan], dtype), np.array([1, -1], dtype))
        assert np.isnan(ops.relu(mp.tensor(nans)).array).all()

    def test_relu_stops_an_infinite_gradient(self, dtype):
        x = mp.tensor(np.array([-1.0, 1.0], dtype), requires_grad=True)
        ops.relu(x).backward(np.array([np.inf, np.inf], dtype))
        np.testing.assert_array_equal(host(x.grad), [0, np.inf])

    def test_bounds(self, dtype):
        y, dx = values(lambda x: ops.hardtanh(x), [-2, -1, 0, 1, 2, np.inf, -np.inf], dtype)
        np.testing.assert_array_equal(y, [-1, -1, 0, 1, 1, 1, -1])
        np.testing.assert_array_equal(dx, [0, 0, 1, 0, 0, 0, 0])

    @pytest.mark.parametrize(
        ("op", "low", "high"),
        [
            (ops.sigmoid, 0, 1),
            (ops.tanh, -1, 1),
            (ops.elu, -1, None),
            (ops.softplus, 0, None),
            (ops.logsigmoid, None, 0),
        ],
    )
    def test_limits(self, dtype, op, low, high):
        y, dx = values(op, [-65504, 65504], dtype)
        np.testing.assert_array_equal(
            y, np.array([-65504 if low is None else low, 65504 if high is None else high], dtype)
        )
        np.testing.assert_array_equal(dx, [float(low is None), float(high is None)])
        y, dx = values(op, [-np.inf, np.inf], dtype)
        np.testing.assert_array_equal(y, [-np.inf if low is None else low, np.inf if high is None else high])
        np.testing.assert_array_equal(dx, [float(low is None), float(high is None)])

    @pytest.mark.parametrize("op", [c[0] for c in CASES])
    def test_nan_stays_nan(self, dtype, op):
        assert np.isnan(op(mp.tensor(np.array([np.nan, 1], dtype))).array).tolist() == [True, False]


KINKS = {
    "leaky_relu": (0.2,),
    "elu": (1.3,),
    "celu": (0.7,),
    "selu": (),
    "relu6": (),
    "hardtanh": (-3.0, 1.0),
    "hardsigmoid": (),
    "hardswish": (),
    "softplus": (2.0, 6.0),
    "threshold": (1.0, -7.0),
}


@pytest.mark.peer
@pytest.mark.parametrize("name", KINKS)
def test_slopes_at_kinks_are_pytorchs(name):
    torch = pytest.importorskip("torch")
    x = np.array([-3, -1, -0.0, 0, 1, 2, 3, 4, 6], "float32")
    y, dx = values(lambda x: getattr(ops, name)(x, *KINKS[name]), x, "float32")
    peer = torch.tensor(x, requires_grad=True)
    expected = getattr(torch.nn.functional, name)(peer, *KINKS[name])
    expected.sum().backward()
    np.testing.assert_allclose(y, expected.detach().numpy(), rtol=1e-6)
    np.testing.assert_allclose(dx, peer.grad.numpy(), rtol=1e-6)


@pytest.mark.cpu
def test_erfc_is_within_7_units_in_the_last_place():
    """Of every half, and of FP32 values between them; with its limits."""
    from tinymp.ops.more.unary import erfc

    halves = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    x = np.concatenate([halves[np.isfinite(halves)].astype("f4"), np.linspace(-6, 9.1, 100_001, dtype="f4")])
    exact = np.array([math.erfc(v) for v in x])
    got, normal = erfc(mp.backend.cpu, x), exact >= 2.0**-126
    assert (np.abs(got - exact) / np.spacing(exact.astype("f4")))[normal].max() < 7
    assert (got[~normal] < 2.0**-125).all()
    assert erfc(mp.backend.cpu, np.float32([np.inf, -np.inf])).tolist() == [0, 2]


def test_gelu_is_rounded_once_for_every_half():
    halves = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    x = halves[np.isfinite(halves)]
    exact = np.array([v * 0.5 * math.erfc(-v / math.sqrt(2)) for v in x.astype(float)])
    y = host(ops.gelu(mp.tensor(x)).array).astype(float)
    _, exponent = np.frexp(exact)
    ulp = np.ldexp(1.0, np.maximum(exponent - 11, -24))
    assert (np.abs(y - exact) / ulp).max() < 0.501


def test_gelu_keeps_its_left_tail_in_fp32():
    """x Phi(x) by 1 + erf would be 0 or noise below -5; erfc keeps it relative to its own size."""
    x = np.linspace(-9, -3, 50)
    expected = [v * 0.5 * math.erfc(-v / math.sqrt(2)) for v in x]
    np.testing.assert_allclose(ops.gelu(mp.tensor(x.astype("float32"))).numpy(), expected, rtol=2e-5)
