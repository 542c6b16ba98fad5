"""The training step as a whole: a skipped step leaves no trace, S halves and grows, micro-batches add up."""

import numpy as np
import pytest

import tinymp as mp
from oracle import host, on_cpu_if_bf16, randn, rng
from tinymp import nn, ops, optim
from tinymp.optim import StepResult

RESUMED = [mp.FP32, mp.MIXED, mp.STOCHASTIC_ROUNDING, *([mp.BF16] if "BF16" in mp.POLICIES else [])]


def mlp(policy, seed=0):
    mp.manual_seed(seed)
    layers = [nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 3)]
    return policy.cast(nn.Sequential(*layers))


def data(policy, n=48):
    """Three classes: which of three directions a point lies closest to."""
    x = randn(n, 8, seed=3)
    target = (x @ rng(4).standard_normal((8, 3))).argmax(1)
    return policy.cast(mp.tensor(x.astype("float32"))), mp.tensor(target)


def snapshot(model, optimizer, schedule):
    """Everything that a skipped step must not change."""
    arrays = {name: host(p.master).copy() for name, p in model.named_parameters()}
    copies = {name: p.numpy().copy() for name, p in model.named_parameters()}
    buffers = {name: b.numpy().copy() for name, b in model.named_buffers()}
    state = {i: s for i, s in optimizer.state_dict()["state"].items() if s["step"]}  # a GPU makes it before it can know
    return arrays, copies, buffers, {**optimizer.state_dict(), "state": state}, schedule.state_dict()


@pytest.mark.parametrize(("rule", "clip"), [(optim.SGD, False), (optim.Adam, True)])
def test_training_through_overflow_and_growth(rule, clip):
    model = mlp(mp.MIXED)
    x, target = data(mp.MIXED)
    optimizer = rule(model.named_parameters(), lr=0.02, **({"momentum": 0.9} if rule is optim.SGD else {}))
    schedule = optim.CosineAnnealingLR(optimizer, T_max=80)
    scaler = optim.DynamicLossScaler(2.0**24, growth_interval=12, max_scale=2.0**24)
    losses, applied = [], 0
    for _ in range(60):
        before, scale = snapshot(model, optimizer, schedule), scaler.get_scale()
        optimizer.zero_grad()
        loss = ops.cross_entropy(model(x), target)
        scaler.scale(loss).backward()
        if clip:
            scaler.unscale_(optimizer)
            optim.clip_grad_norm_(model.parameters(), 5.0)
        result = scaler.step(optimizer)
        scaler.update()
        schedule.step(result)
        if result == StepResult.SKIPPED:
            np.testing.assert_equal(snapshot(model, optimizer, schedule), before)
            assert scaler.get_scale() == scale / 2
        else:
            assert all((p.array == p.master.astype(p.dtype)).all() for p in model.parameters())
            applied += 1
        assert schedule.last_epoch == applied
        assert all(state["step"] == applied for state in optimizer.state.values())
        losses.append(loss.item())
    assert model[0].weight.dtype == "float16" and model[1].weight.dtype == "float32"
    skips = [i for i, _, reason in scaler.history if reason.startswith("overflow in `")]
    growths = [i for i, _, reason in scaler.history if reason == "12 iterations without overflow"]
    assert skips[:3] == [0, 1, 2] and len(skips) == 60 - applied
    assert growths[0] == max(i for i in skips if i < growths[0]) + 12
    assert losses[-1] < 0.3 * losses[0]


@pytest.mark.parametrize(("dtype", "rtol"), [("float64", 1e-12), ("float32", 1e-5), ("float16", 2.0**-8)])
def test_micro_batches_add_up_to_the_big_batch(dtype, rtol):
    policy = mp.Policy("TEST", storage=dtype)
    x, target = (mp.tensor(a) for a in (randn(32, 8), rng(1).integers(0, 3, 32)))
    grads = []
    for parts in (1, 4):
        mp.manual_seed(0)
        model = policy.cast(nn.Linear(8, 3))
        optimizer, scaler = optim.SGD(model.parameters()), optim.DynamicLossScaler(1024.0)
        for i in range(parts):
            rows = slice(i * 32 // parts, (i + 1) * 32 // parts)
            loss = ops.cross_entropy(model(policy.cast(x[rows])), target[rows])
            scaler.scale(loss / parts).backward()
        assert model.weight.grad.dtype == ("float32" if parts > 1 and dtype == "float16" else dtype)
        scaler.unscale_(optimizer)
        grads.append(host(model.weight.grad))
        assert scaler.step(optimizer)
    np.testing.assert_allclose(grads[1], grads[0], rtol=0, atol=rtol * np.abs(grads[0]).max())


@pytest.mark.parametrize("rule", [optim.SGD, optim.Adam])
@pytest.mark.parametrize("policy", [*map(on_cpu_if_bf16, RESUMED)], ids=str)
def test_a_resumed_training_goes_on_bit_for_bit(policy, rule):
    """As the README says: the state of model, optimizer, scaler, schedule and random numbers."""

    def make(seed):
        mp.manual_seed(seed)
        layers = [nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Dropout(0.2), nn.Linear(16, 3)]
        model = policy.cast(nn.Sequential(*layers))
        optimizer = rule(model.parameters(), lr=0.05, **({"momentum": 0.9} if rule is optim.SGD else {}))
        return model, optimizer, optim.DynamicLossScaler(2.0**10), optim.CosineAnnealingLR(optimizer, 9)

    def go(job, steps):
        model, optimizer, scaler, schedule = job
        x, target = data(policy)
        with mp.use(policy):
            for _ in range(steps):
                optimizer.zero_grad()
                scaler.scale(ops.cross_entropy(model(x), target)).backward()
                result = scaler.step(optimizer)
                scaler.update()
                schedule.step(result)

    def bits(job):
        copies = {f"copy {name}": p.numpy().tobytes() for name, p in job[0].named_parameters()}
        return {**copies, **{name: np.asarray(x).tobytes() for name, x in job[0].state_dict().items()}}

    first = make(0)
    go(first, 3)
    saved, random = [part.state_dict() for part in first], mp.get_rng_state()
    second = make(1)
    for part, state in zip(second, saved, strict=True):
        part.load_state_dict(state)
    assert bits(second) == bits(first)
    for job in (first, second):
        mp.set_rng_state(random)
        go(job, 3)
    assert bits(second) == bits(first)
    np.testing.assert_equal(second[1].state_dict(), first[1].state_dict())
