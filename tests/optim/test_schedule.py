"""Schedules: values against a recursion or a table, and that they follow the applied steps."""

import math

import numpy as np
import pytest

from tinymp import optim
from tinymp.nn.parameter import Parameter
from tinymp.optim import StepResult

T = 24


def sgd(*lrs):
    return optim.SGD([{"params": [Parameter(np.ones(1, "float32"))], "lr": lr} for lr in lrs or (0.5,)])


def recursion(factor_at):
    """The rates 0.5, 0.5 f(1), 0.5 f(1) f(2), ...: how a schedule that multiplies step by step would get there."""
    rates = [0.5]
    for t in range(1, T):
        rates.append(rates[-1] * factor_at(t))
    return rates


def warm_up(t):
    return (0.25 + 0.75 * min(t, 4) / 4) * 0.5


CASES = [
    (lambda o: optim.StepLR(o, 5, gamma=0.5), recursion(lambda t: 0.5 if t % 5 == 0 else 1)),
    (lambda o: optim.MultiStepLR(o, [9, 3, 9]), recursion(lambda t: {3: 0.1, 9: 0.01}.get(t, 1))),
    (
        lambda o: optim.CosineAnnealingLR(o, 8, eta_min=0.1),
        [0.1 + 0.4 * math.cos(math.pi * t / 16) ** 2 for t in range(T)],
    ),
    (lambda o: optim.LinearLR(o, 0.25, total_iters=4), [warm_up(t) for t in range(T)]),
    (lambda o: optim.LinearLR(o), [0.5 * min(1, 1 / 3 + t / 7.5) for t in range(T)]),
    (lambda o: optim.LambdaLR(o, lambda t: 1 / (1 + t)), [0.5 / (1 + t) for t in range(T)]),
    (
        lambda o: optim.SequentialLR(o, [optim.LinearLR(o, 0.25, total_iters=4), optim.StepLR(o, 5, 0.5)], [6]),
        [warm_up(t) if t < 6 else 0.5 * 0.5 ** ((t - 6) // 5) for t in range(T)],
    ),
]
IDS = ["StepLR", "MultiStepLR", "CosineAnnealingLR", "LinearLR", "LinearLR-defaults", "LambdaLR", "SequentialLR"]


@pytest.mark.parametrize(("make", "expected"), CASES, ids=IDS)
def test_rates(make, expected):
    optimizer = sgd(0.5)
    schedule = make(optimizer)
    for t in range(T):
        assert schedule.get_last_lr() == pytest.approx([expected[t]], rel=1e-12)
        assert optimizer.param_groups[0]["lr"] == schedule.get_last_lr()[0] and schedule.last_epoch == t
        schedule.step(StepResult.SKIPPED)  # a skipped step leaves no trace
        schedule.step(StepResult.NO_GRADIENTS)
        schedule.step(StepResult.APPLIED)


@pytest.mark.parametrize(("make", "expected"), CASES, ids=IDS)
def test_a_resumed_schedule_goes_on(make, expected):
    first = make(sgd(0.5))
    for _ in range(9):
        first.step()
    optimizer = sgd(7.0)
    second = make(optimizer)
    second.load_state_dict(first.state_dict())
    assert optimizer.param_groups[0]["lr"] == pytest.approx(expected[9], rel=1e-12)
    second.step()
    assert second.get_last_lr() == pytest.approx([expected[10]], rel=1e-12)


def test_the_optimizers_state_dict_carries_the_rate():
    optimizer, other = sgd(0.5), sgd(0.5)
    optim.StepLR(optimizer, 1).step()
    other.load_state_dict(optimizer.state_dict())
    assert other.param_groups[0]["lr"] == pytest.approx(0.05) and other.param_groups[0]["initial_lr"] == 0.5


def test_groups_keep_their_ratio_or_have_their_own_function():
    schedule = optim.StepLR(sgd(0.5, 0.25), 1)
    schedule.step()
    assert schedule.get_last_lr() == pytest.approx([0.05, 0.025])
    schedule = optim.LambdaLR(sgd(0.5, 0.25), [lambda t: 1, lambda t: 1 / (1 + t)])
    schedule.step()
    assert schedule.get_last_lr() == [0.5, 0.125]


@pytest.mark.parametrize(
    ("results", "advances"),
    [
        ((), True),  # once per epoch
        ((StepResult.SKIPPED, StepResult.APPLIED), True),
        ((StepResult.SKIPPED, StepResult.NO_GRADIENTS), False),
    ],
)
def test_when_it_advances(results, advances):
    schedule = optim.StepLR(sgd(), 1)
    schedule.step(*results)
    assert schedule.last_epoch == advances


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda o: optim.StepLR(o, 1).step(3), TypeError, "StepLR.step: .*a StepResult, got 3"),
        (lambda o: optim.StepLR(o, 1).step(True), TypeError, "a StepResult, got True"),
        (lambda o: optim.StepLR(o, 1).step(None), TypeError, "a StepResult, got None"),
        (lambda o: optim.StepLR([o], 1), TypeError, "StepLR: expected an Optimizer, got list"),
        (lambda o: optim.StepLR(o, 0), ValueError, "`step_size` to be positive"),
        (lambda o: optim.StepLR(o, 1.5), TypeError, "`step_size` to be an integer"),
        (lambda o: optim.StepLR(o, 1, last_epoch=5), TypeError, r"load_state_dict resumes.*`last_epoch`"),
        (lambda o: optim.LinearLR(o, 0.0), ValueError, "`start_factor` to be above 0"),
        (lambda o: optim.LinearLR(o, 2.0), ValueError, "factors up to 1"),
        (lambda o: optim.LambdaLR(o, [abs, abs]), ValueError, "a function for each of 1 groups, got 2"),
        (lambda o: optim.LambdaLR(o, lambda t: -1), ValueError, "LambdaLR: expected `lr` to be at least 0"),
        (lambda o: optim.SequentialLR(o, [optim.StepLR(o, 1)], [3]), ValueError, "n - 1 rising milestones"),
        (lambda o: optim.SequentialLR(o, [optim.StepLR(sgd(), 1)], []), ValueError, "made for its own optimizer"),
        (lambda o: optim.StepLR(o, 1).load_state_dict({}), ValueError, "it lacks"),
        (
            lambda o: optim.StepLR(o, 1).load_state_dict({"last_epoch": 1, "base_lrs": [1.0, 2.0]}),
            ValueError,
            "rates of 1 groups, got 2",
        ),
    ],
)
def test_refused(call, error, message):
    with pytest.raises(error, match=message):
        call(sgd())


def test_a_bad_state_changes_nothing():
    schedule = optim.StepLR(optim.SGD([Parameter(np.ones(1, "float32"))], lr=0.5), 2)
    before = schedule.state_dict()
    for t in ("x", 1.5, float("nan")):
        with pytest.raises(TypeError, match="expected `last_epoch` to be an integer, got"):
            schedule.load_state_dict({**before, "base_lrs": [9.0], "last_epoch": t})
    falling = optim.LambdaLR(sgd(), lambda t: 2 - t)
    with pytest.raises(ValueError, match="expected `lr` to be at least 0"):
        falling.load_state_dict({"base_lrs": [1.0], "last_epoch": 9})
    assert falling.state_dict() == {"base_lrs": [0.5], "last_epoch": 0}
    with pytest.raises(TypeError, match="expected `last_epoch` to be an integer, got 'x'"):
        schedule.load_state_dict({"last_epoch": "x", "base_lrs": [0.1]})
    assert schedule.state_dict() == before
