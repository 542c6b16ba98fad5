"""FP8 as the operands of products: emulated in BF16 arrays, whose 8 significant bits hold its 3 or 4 exactly."""

import numpy as np
import pytest

import tinymp as mp
from job import Job
from oracle import rng
from tinymp import nn, ops, optim
from tinymp.precision import widen
from tinymp.study.formats import SCALED

pytestmark = pytest.mark.cpu
E4M3, E5M2 = SCALED["e4m3-tensor"], SCALED["e5m2-tensor"]


def test_a_product_of_what_fp8_holds():
    """By hand: both operands in E4M3, their product in FP32, the gradient in E5M2; the bias stays as it is stored."""
    x, w, b = (rng(i).standard_normal(s).astype("float32") for i, s in enumerate([(6, 8), (5, 8), (5,)]))
    layer = mp.FP8.cast(nn.Linear(8, 5))
    with mp.no_grad():
        layer.weight.copy_(mp.tensor(w)), layer.bias.copy_(mp.tensor(b))
    x = mp.Tensor(mp.FP8.cast(mp.tensor(x)).array, requires_grad=True)
    with mp.use(mp.FP8):
        y = layer(x)
        dy = mp.FP8.cast(mp.tensor(rng(3).standard_normal((6, 5)).astype("float32"))).array
        y.backward(dy)
    X, W, B, dY = (widen(a) for a in (x.array, layer.weight.array, layer.bias.array, dy))
    X, W, dY = E4M3.round(X), E4M3.round(W), E5M2.round(dY)
    for found, exact in ((y.array, X @ W.T + B), (x.grad_array, dY @ W), (layer.weight.grad_array, dY.T @ X)):
        np.testing.assert_allclose(widen(found), exact, rtol=2.0**-8, atol=1e-5)
    assert not np.allclose(widen(y.array), widen(x.array) @ widen(layer.weight.array).T + B, rtol=2.0**-7, atol=1e-3)


@pytest.mark.parametrize(
    "layer", [lambda: nn.Linear(6, 3), lambda: nn.Conv2d(6, 3, 2), lambda: nn.ConvTranspose2d(6, 3, 2)]
)
def test_the_gradient_of_a_bias_sums_what_was_not_rounded(layer):
    layer = mp.FP8.cast(layer())
    x = mp.FP8.cast(mp.tensor(rng(0).standard_normal((64, *[6] * (layer.weight.ndim - 1))).astype("float32")))
    with mp.use(mp.FP8):
        y = layer(x)
        dy = rng(1).lognormal(0, 1, y.shape).astype(mp.bfloat16)
        y.backward(dy)
    exact = dy.astype(np.float64).sum(axis=tuple(i for i in range(dy.ndim) if i != (1 if dy.ndim > 2 else dy.ndim - 1)))
    np.testing.assert_allclose(widen(layer.bias.grad_array), exact, rtol=2.0**-8)


@pytest.mark.parametrize(
    "make",
    [
        lambda x: ops.matmul(x, x.transpose(0, 1)),
        lambda x: ops.conv2d(x.reshape(1, 4, 8, 8), mp.FP8.cast(mp.randn(4, 4, 3, 3))),
        lambda x: ops.scaled_dot_product_attention(*[x.reshape(1, 2, 16, 8)] * 3),
        lambda x: mp.FP8.cast(nn.LSTM(8, 4))(x.reshape(4, 8, 8))[0],
    ],
)
def test_every_dot_op_reads_it(make):
    x = mp.FP8.cast(mp.tensor(rng(0).standard_normal((16, 16)).astype("float32"))).requires_grad_()
    with mp.audit() as a, mp.use(mp.FP8):
        y = make(x)
        y.float().sum().backward()
    rounded = {row.phase: row.rounded for row in a.ledger if row.kind == "DOT"}
    assert rounded["forward"] > y.numpy().size and rounded["backward"] > 0  # the operands as well as the result


@pytest.mark.parametrize("rule", ["SGD", "Adam"])
def test_it_trains(rule):
    losses = {}
    for policy in (mp.FP32, mp.FP8):
        job = Job("cpu", rule, scale=1.0, policy=policy)
        with mp.use(policy):
            losses[policy.name] = [job.step(*job.batch())[0].item() for _ in range(15)]
    assert losses["FP8"][-1] < 0.5 * losses["FP8"][0]
    np.testing.assert_allclose(losses["FP8"], losses["FP32"], atol=0.25)
    assert losses["FP8"] != losses["FP32"]


SCALES = ("e4m3-tensor", "e5m2-tensor"), ("mxfp8", "mxfp8-e5m2"), ("nvfp4", "nvfp4"), ("e4m3", "e5m2")


@pytest.mark.parametrize("operands", SCALES)
def test_the_scaler_hears_of_what_is_not_finite(operands):
    """Under scales, too, under which finite numbers saturate. The ledger counts what was finite before, alone."""
    policy = mp.study.change(mp.BF16, operands=operands)
    for weight in (1.0, np.inf, np.nan):
        mp.manual_seed(0)
        model, scaler = policy.cast(nn.Linear(4, 3)), optim.DynamicLossScaler(8.0)
        optimizer = optim.SGD(model.parameters(), 0.1)
        with mp.audit() as a, mp.use(policy):
            loss = (model(policy.cast(mp.ones(2, 4))).float() * mp.tensor([[weight, 1, 1], [1, 1, 1]])).sum()
            scaler.scale(loss).backward()
            assert not np.isfinite(widen(model.weight.grad_array[0])).any() or weight == 1
            assert scaler.step(optimizer).applied is (weight == 1)
        assert {row.infinite for row in a.ledger} == {0}
