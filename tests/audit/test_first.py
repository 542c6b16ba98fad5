"""The error of a scaler that gives up names the op whose gradient is not finite, and what to do: without an audit."""

import gc

import numpy as np
import pytest

import tinymp as mp
from tinymp import nn, ops, optim
from tinymp.events import here

X = np.random.default_rng(0).standard_normal((4, 8)).astype("float32")
X[3] = 0  # padding: a row that stays zero
ONE = np.ones((4, 8), "float32")


@pytest.fixture(autouse=True)
def _nobody_listens_afterwards():
    yield
    gc.collect()
    assert not here.observers


def half(x):
    return mp.MIXED.cast(mp.tensor(x))


# name: the loss of what a layer without bias gives for X; the op of the error, and what it says; the same, mended
CASES = {
    "normalize": (
        lambda z: ops.normalize(z, dim=-1).float().mean(),
        "`input` of cast, in normalize (test_first.py:",
        "give it a larger one, such as eps=1e-3",
        lambda z: ops.normalize(z, dim=-1, eps=1e-3).float().mean(),
    ),
    "binary cross entropy": (
        lambda z: ops.binary_cross_entropy(ops.sigmoid(z + 30), half(1 - ONE)),
        "binary_cross_entropy (test_first.py:",
        "use binary_cross_entropy_with_logits (BCEWithLogitsLoss)",
        lambda z: ops.binary_cross_entropy_with_logits(z + 30, half(1 - ONE)),
    ),
    "a root": (
        lambda z: ops.sqrt(z * z).float().mean(),
        "`input` of sqrt (test_first.py:",
        "such as 1e-4",
        lambda z: ops.sqrt(z * z + 1e-4).float().mean(),
    ),
    "a quotient": (
        lambda z: (z.sum(-1) * 1e-3 / (z * z).sum(-1).clamp(1e-6)).float().mean(),
        "of div (test_first.py:",
        "its divisor is nearly 0",
        lambda z: (z.sum(-1) * 1e-3 / ((z * z).sum(-1) + 1e-3)).float().mean(),
    ),
}


def train(loss, limit=5, scaler=None):
    """The result of the last step, or of the error."""
    mp.manual_seed(0)
    net = mp.MIXED.cast(nn.Linear(8, 8, bias=False))
    optimizer = optim.SGD(net.parameters(), lr=1e-3)
    scaler = scaler or optim.DynamicLossScaler(64.0, max_consecutive_skips=limit)
    for _ in range(limit + 1):
        with mp.use(mp.MIXED):
            scaler.scale(loss(net(half(X)))).backward()
        result = scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    return result


@pytest.mark.parametrize(("loss", "op", "advice", "mended"), CASES.values(), ids=CASES)
def test_the_op_and_what_to_do_are_named_and_that_helps(loss, op, advice, mended):
    with pytest.raises(FloatingPointError, match="in 5 iterations in a row") as error:
        train(loss)
    assert op in str(error.value) and advice in str(error.value), str(error.value)
    assert train(mended) is optim.StepResult.APPLIED


def test_what_fp16_cannot_hold_fp32_can_as_in_pytorch():
    torch = pytest.importorskip("torch")
    w, found = np.random.default_rng(1).standard_normal((8, 8)).astype("float32"), []
    for module, functions in ((torch, torch.nn.functional), (mp, ops)):
        v = module.tensor(w, requires_grad=True)
        z = module.tensor(X) @ v + 30 * module.tensor(abs(X))
        loss = functions.binary_cross_entropy(z.sigmoid(), z.detach() * 0)
        (functions.normalize(z, dim=-1).mean() + loss).backward()
        found.append(v.grad.numpy())
    assert np.isfinite(found[0]).all()
    np.testing.assert_allclose(found[1], found[0], rtol=1e-4, atol=1e-5)


def test_it_listens_from_the_last_skip_to_the_next_step_alone():
    w = mp.MIXED.cast(nn.Linear(1, 1, bias=False))
    optimizer, scaler = optim.SGD(w.parameters(), lr=0.0), optim.StaticLossScaler(1.0, max_consecutive_skips=3)
    heard = []
    for factor in (1e6, 1e6, 1.0, 1e6, 1e6, 1.0, 1.0):
        heard.append(len(here.observers))
        scaler.scale((w(half(ONE[:1, :1])).float() * factor).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    assert heard == [0, 0, 1, 0, 0, 1, 0]
