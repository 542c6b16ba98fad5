"""Loss scalers on a GPU: the same decisions as on the CPU, made without the host."""

import contextlib
import re

import numpy as np
import pytest

import tinymp as mp
from oracle import rng
from tinymp import nn, optim
from tinymp.gpu.scaler import NONE, OnDevice
from tinymp.optim import StepResult
from tinymp.optim.scaler import Iteration, Rule

pytestmark = pytest.mark.usefixtures("gpu")


def job(device, scaler, rule=optim.SGD, **options):
    mp.manual_seed(0)
    model = mp.MIXED.cast(nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2))).to(device)
    optimizer = rule(model.parameters(), lr=1e-3, **options)
    inputs = [mp.Tensor(rng(i).standard_normal((6, 3)).astype("float16")).to(device) for i in range(3)]

    def step(factor, clip=None):
        x = inputs[step.calls % 3]
        step.calls += 1
        loss = (model(x).float() * factor).square().mean()
        scaler.scale(loss).backward()
        if clip is not None:
            scaler.unscale_(optimizer)
            optim.clip_grad_norm_(model.parameters(), clip)
        result = scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        return result

    step.calls = 0
    return step, model, optimizer


SCALERS = {
    "none": lambda: optim.NoLossScaler(),
    "static": lambda: optim.StaticLossScaler(1024.0),
    "dynamic": lambda: optim.DynamicLossScaler(2.0**12, growth_interval=3, backoff_factor=0.25, max_scale=2.0**13),
}
FACTORS = [1.0, 1.0, 300.0, 1.0, 1.0, 1.0, 1.0, 1000.0, 1.0, 1.0]  # large ones make gradients overflow


@pytest.mark.parametrize(
    ("scaler", "clip", "rule"),
    [
        ("none", 0.5, optim.Adam),
        ("static", 0.5, optim.AdamW),
        ("dynamic", 0.5, optim.SGD),
        ("dynamic", None, optim.Adagrad),
    ],
)
def test_it_decides_as_on_the_cpu_and_never_waits(once, scaler, clip, rule):
    results, states, scalers = [], [], []
    for device in ("cpu", "gpu"):
        scalers.append(SCALERS[scaler]())
        step, model, _ = job(device, scalers[-1], rule)
        first = step(FACTORS[0], clip)
        with getattr(mp.backend.gpu.xp, "no_synchronisation", contextlib.nullcontext)():
            done = [first, *[step(f, clip) for f in FACTORS[1:]]]
        results.append([result.name for result in done])
        states.append(model.state_dict())
    assert results[0] == results[1] and scalers[0].history == scalers[1].history
    assert scalers[0].state_dict() == scalers[1].state_dict()
    assert scalers[0].iteration == scalers[1].iteration == len(FACTORS)
    for name, v in states[0].items():
        np.testing.assert_allclose(states[1][name], v, rtol=2e-2, atol=2e-3, err_msg=name)
    assert scaler != "dynamic" or {*results[0]} == {"APPLIED", "SKIPPED"}
    other = SCALERS[scaler]()  # saved on the GPU, loaded by one that is in use there
    resumed, _, _ = job("gpu", other)
    resumed(1.0)
    other.load_state_dict(scalers[1].state_dict())
    step(1.0), resumed(1.0)
    assert other.state_dict() == scalers[1].state_dict()


def test_a_pending_result_is_a_result():
    step, _, _ = job("gpu", SCALERS["dynamic"]())
    applied, skipped = step(1.0), step(1e6)
    assert applied and applied.applied and applied == StepResult.APPLIED and applied.name == "APPLIED"
    assert not skipped and not skipped.applied and skipped == StepResult.SKIPPED and skipped != applied
    assert skipped.value == StepResult.SKIPPED.value and "SKIPPED" in repr(skipped)
    assert {applied: 1}[StepResult.APPLIED] == 1
    schedule = optim.StepLR(job("gpu", SCALERS["dynamic"]())[2], 1, 0.1)
    schedule.step(skipped)
    assert schedule.last_epoch == 0
    schedule.step(applied)
    assert schedule.last_epoch == 1


@pytest.mark.parametrize(
    "rule", [Rule(), Rule(2.0, 0.5, 3, 2.0**-3, 2.0**3), Rule(4.0, 0.25, 2, 0.5, 0.5), Rule(1.7, 0.3, 2, 0.1, 9.0)]
)
def test_the_kernel_follows_the_rule_state_by_state(rule):
    """On the same sequence of overflows and bad losses, with the rule computed in FP32, as the kernel does."""
    scaler = optim.StaticLossScaler(
        float(np.clip(1.0, rule.least, rule.most)), max_consecutive_skips=10**6, max_nonfinite_losses=10**6
    )
    scaler.rule, draw = rule, rng(1)
    scaler._device, scaler._kept = "gpu", (kept := OnDevice(scaler))
    kept.optimizers.append(optim.SGD([nn.Parameter(mp.ones(1, device="gpu"))]))
    state = scaler.state._replace(scale=np.float32(scaler.get_scale()))
    exact = Rule(*[x if name == "interval" else np.float32(x) for name, x in rule._asdict().items()])
    changes, now = [], Iteration()
    now.judged = True
    for i in range(150):
        overflow, bad_loss = draw.random() < (0.9 if i % 40 > 30 else 0.2), draw.random() < 0.1
        kept.found[0] = 0 if overflow else NONE
        kept.bad_loss[0] = bad_loss
        scaler.end(now)
        new = exact(state, overflow, bad_loss)
        changes += [(i, float(new.scale))] if new.scale != state.scale else []
        state = new
        assert (kept.state, kept.iteration) == (state, i + 1)
    assert [change[:2] for change in kept.history] == changes
    assert bool(changes) is (rule.growth > 1 and rule.least < rule.most)


def test_update_ends_an_iteration_without_step():
    scaler = optim.DynamicLossScaler(2.0**10)
    step, model, optimizer = job("gpu", scaler)
    x = mp.Tensor(rng().standard_normal((6, 3)).astype("float16")).to("gpu")
    for factor, expected in ((1.0, 2.0**10), (1e6, 2.0**9)):
        scaler.scale(model(x).float().square().mean() * factor).backward()
        scaler.unscale_(optimizer)
        scaler.update()
        optimizer.zero_grad()
        assert scaler.get_scale() == expected
    scaler.scale(model(x).float().square().mean() * float("nan"))
    assert scaler.step(optimizer) == StepResult.NO_GRADIENTS
    scaler.update()
    assert scaler.iteration == 3
    scaler.scale(model(x).float().square().mean() * float("nan"))
    scaler.load_state_dict(scaler.state_dict())
    assert step(1.0) == StepResult.APPLIED


@pytest.mark.parametrize(("dtype", "large"), [("float32", 1e38), ("float64", 1e300)])
def test_what_is_not_finite_in_either_dtype(dtype, large):
    """A gradient that a scale below 1 keeps finite, and a loss, which is not to blame on the scale."""
    unused = nn.Parameter(mp.tensor(np.ones(2), device="gpu"))
    w = nn.Parameter(mp.tensor(np.full(1, 1e-30), dtype=dtype, device="gpu"))
    optimizer, scaler = optim.SGD([unused, w], lr=0.0), optim.DynamicLossScaler(2.0**-14, min_scale=2.0**-20)
    for size, addend in ((large, 0.0), (1.0, 0.0), (1.0, np.inf), (1.0, np.nan)):
        more = 1e10 if size > 1 else 1.0
        scaler.scale((w * size * more + mp.tensor(np.full(1, addend), dtype=dtype, device="gpu")).sum()).backward()
        applied = size == 1 and addend == 0
        assert scaler.step(optimizer, allow_missing=True).applied is applied
        scaler.update()
        optimizer.zero_grad()
    assert scaler.get_scale() == 2.0**-15  # halved once


def test_limits_raise_some_steps_late():
    step, model, _ = job("gpu", optim.DynamicLossScaler(1.0, max_consecutive_skips=3, min_scale=0.5))
    with pytest.raises(
        FloatingPointError, match=r"overflow in \d+ iterations in a row, .* first parameter: `"
    ) as error:
        [step(1e6) for _ in range(1000)]  # a GPU runs behind the host
    assert re.search(r"(first gradient that is not finite is that of .*test_scaler.py|docs/scalers)", str(error.value))
    scaler = optim.StaticLossScaler(8.0, max_nonfinite_losses=2)
    step, model, _ = job("gpu", scaler)
    before = model.state_dict()
    with pytest.raises(FloatingPointError, match=r"not finite in \d+ iterations in a row"):
        [step(float("inf")) for _ in range(1000)]
    assert all((v == before[name]).all() for name, v in model.state_dict().items())
    assert scaler.get_scale() == 8


def test_a_skipped_step_does_not_begin_the_momentum():
    w, scaler = nn.Parameter(mp.tensor(np.ones(1, "float32"), device="gpu")), optim.StaticLossScaler(8.0)
    optimizer = optim.SGD([w], lr=1.0)

    def step(gradient):
        optimizer.zero_grad()
        scaler.scale((w * gradient).sum()).backward()
        result = scaler.step(optimizer)
        scaler.update()
        return result

    assert step(0.25) == StepResult.APPLIED
    optimizer.param_groups[0].update(momentum=0.5, dampening=0.5)
    assert step(1e38) == StepResult.SKIPPED
    assert list(optimizer.state_dict()["state"][0]) == ["step"]
    assert step(0.25) == StepResult.APPLIED and w.item() == 0.5
    assert step(0.25) == StepResult.APPLIED and w.item() == 0.25  # m = 0.5 0.25 + 0.5 0.25
