"""The audit finds the first value that is not finite; faults are planted at a known step and op."""

import numpy as np
import pytest

import tinymp as mp
from tinymp import nn, ops, optim

pytestmark = pytest.mark.cpu


class Root(nn.Module):
    """sqrt(x - 1): NaN where x falls below 1."""

    def forward(self, x):
        return ops.sqrt(ops.sub(x, 1.0))


def training(bad_at, policy=mp.FP32, scaler=None, steps=9):
    """A training whose input is too small from one step on."""
    model = policy.cast(nn.Sequential(nn.Linear(3, 3), Root()))
    with mp.no_grad():
        model[0].weight.copy_(np.eye(3, dtype="f4"))
        model[0].bias.copy_(np.zeros(3, "f4"))
    optimizer, scaler = optim.SGD(model.parameters(), lr=1e-4), scaler or optim.NoLossScaler()
    for step in range(steps):
        x = policy.cast(mp.tensor(np.full((4, 3), 0.5 if step == bad_at else 2.0, np.float32)))
        loss = ops.mean(model(x).float())
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()


@pytest.mark.parametrize("bad_at", [0, 3])
def test_the_step_and_the_op_are_found(bad_at):
    with mp.audit() as a:
        training(bad_at)
    found = a.crash.found
    assert (found["what"], found["iteration"]) == ("the loss became nan", bad_at)
    assert found["first"].startswith("sqrt of model.1 (test_crash.py:")
    assert f"In iteration {bad_at}, the loss became nan; the first that was not finite: sqrt of model.1" in str(a)
    assert a.as_dict()["crash"]["first"] == found["first"]


@pytest.mark.parametrize("scaled", [False, True])
def test_nothing_is_kept_of_a_training_that_stays_finite(scaled):
    """Nor of one whose overflows the scaler deals with."""
    with mp.audit(stop_at="inf") as a:
        training(None, *([mp.MIXED, optim.DynamicLossScaler(2.0**24)] if scaled else []))
    assert a.crash.found is None and bool(a.as_dict()["scale"]["skipped"]) is scaled
    assert str(a.crash) == "loss and weights stayed finite" and a.as_dict()["crash"] is None


def test_a_weight():
    """Gradients that overflow without a loss scale make a weight infinite, while the loss is still finite."""

    model = mp.MIXED.cast(nn.Linear(3, 3, bias=False))
    x = mp.MIXED.cast(mp.tensor(np.full((4, 3), 1e-6, np.float32)))
    optimizer = optim.SGD(model.parameters(), lr=1e-4)
    with mp.audit() as a:
        steep = ops.mul(ops.mul(ops.mul(model(x), 300.0), 300.0), 300.0)
        ops.mean(steep.float()).backward()
        optimizer.step()
    assert a.crash.found["what"] == "the weight model.weight became infinite or NaN"
    assert a.crash.found["iteration"] == 0
    assert a.crash.found["first"].startswith("mul backward of test_a_weight() (test_crash.py:")


def test_stop_at_the_first():
    expected = (
        r"audit: sqrt of model.1 \(test_crash.py:\d+\) made the first NaN, from arguments of magnitudes up to 0.5"
    )
    with pytest.raises(FloatingPointError, match=expected), mp.audit(stop_at="nan") as a:
        training(4)
    assert a.crash.found["iteration"] == 4
