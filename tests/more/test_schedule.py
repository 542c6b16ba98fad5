"""Schedules of optim.more: values against a recursion or a table, and that they follow the applied steps."""

import math
import warnings

import numpy as np
import pytest

from schedules import T, goes_on_when_resumed, rates_are, sgd
from tinymp import optim
from tinymp.parameter import Parameter


def recursion(factor_at):
    """The rates 0.5, 0.5 f(1), 0.5 f(1) f(2), ...: how a schedule that multiplies step by step would get there."""
    rates = [0.5]
    for t in range(1, T):
        rates.append(rates[-1] * factor_at(t))
    return rates


def warm_up(t):
    return (0.25 + 0.75 * min(t, 4) / 4) * 0.5


def between(a, b, share, linear=False):
    return a + (b - a) * (share if linear else (1 - math.cos(math.pi * min(share, 1))) / 2)


def one_cycle(t):
    """Up to 1 in the first quarter (t = 5), then down to 0.2 / 100 at t = 23."""
    return between(0.2, 1.0, t / 5) if t <= 5 else between(1.0, 0.002, (t - 5) / 18)


def three_phases(t):
    """The same up, straight; as long down again (t = 10), and on to the end."""
    if t <= 5:
        return between(0.2, 1.0, t / 5, True)
    return between(1.0, 0.2, (t - 5) / 5, True) if t <= 10 else between(0.2, 0.002, (t - 10) / 13, True)


CYCLE = {"pct_start": 0.25, "div_factor": 5, "final_div_factor": 100, "cycle_momentum": False}
CASES = [
    (lambda o: optim.OneCycleLR(o, 1.0, T, **CYCLE), [one_cycle(t) for t in range(T)]),
    (
        lambda o: optim.OneCycleLR(
            o, 1.0, epochs=4, steps_per_epoch=T // 4, anneal_strategy="linear", three_phase=True, **CYCLE
        ),
        [three_phases(t) for t in range(T)],
    ),
    (lambda o: optim.StepLR(o, 5, gamma=0.5), recursion(lambda t: 0.5 if t % 5 == 0 else 1)),
    (lambda o: optim.MultiStepLR(o, [9, 3, 9]), recursion(lambda t: {3: 0.1, 9: 0.01}.get(t, 1))),
    (lambda o: optim.LinearLR(o, 0.25, total_iters=4), [warm_up(t) for t in range(T)]),
    (lambda o: optim.LinearLR(o), [0.5 * min(1, 1 / 3 + t / 7.5) for t in range(T)]),
    (lambda o: optim.LambdaLR(o, lambda t: 1 / (1 + t)), [0.5 / (1 + t) for t in range(T)]),
    (
        lambda o: optim.SequentialLR(o, [optim.LinearLR(o, 0.25, total_iters=4), optim.StepLR(o, 5, 0.5)], [6]),
        [warm_up(t) if t < 6 else 0.5 * 0.5 ** ((t - 6) // 5) for t in range(T)],
    ),
]
IDS = ["OneCycleLR", "OneCycleLR-3", "StepLR", "MultiStepLR", "LinearLR", "LinearLR-defaults"]
IDS += ["LambdaLR", "SequentialLR"]


@pytest.mark.parametrize("name", ["SGD", "Adam"])
@pytest.mark.parametrize(
    "make",
    [
        lambda o, s: s.OneCycleLR(o, 0.5, total_steps=20, three_phase=True),
        lambda o, s: s.SequentialLR(o, [s.LinearLR(o, total_iters=5), s.OneCycleLR(o, 0.5, total_steps=15)], [5]),
        lambda o, s: s.SequentialLR(o, [s.OneCycleLR(o, 0.5, total_steps=10), s.LinearLR(o)], [9]),
    ],
)
def test_rates_and_momenta_are_pytorchs(make, name):
    torch = pytest.importorskip("torch")
    options = {"momentum": 0.8} if name == "SGD" else {}
    own = getattr(optim, name)([Parameter(np.ones(1, "float32"))], lr=0.1, **options)
    peer = getattr(torch.optim, name)([torch.nn.Parameter(torch.ones(1))], lr=0.1, **options)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of PyTorch, about its own SequentialLR
        schedules = make(own, optim), make(peer, torch.optim.lr_scheduler)
        for _ in range(18):
            one, other = (o.param_groups[0] for o in (own, peer))
            for key in ("lr", "momentum" if options else "betas"):
                assert one[key] == pytest.approx(other[key], rel=1e-9)
            peer.step()
            for schedule in schedules:
                schedule.step()


def plateau(metrics, lr=1.0, resumed=False, **options):
    """The rate after each metric; resumed: each comes to a schedule that has loaded the state of the one before."""
    optimizer = sgd(lr)
    schedule, rates = optim.ReduceLROnPlateau(optimizer, **options), []
    for metric in metrics:
        if resumed:
            state, schedule = schedule.state_dict(), optim.ReduceLROnPlateau(sgd(lr), **options)
            schedule.load_state_dict(state)
        schedule.step(metric)
        rates += schedule.get_last_lr()
    return rates


@pytest.mark.parametrize(
    ("metrics", "options", "rates"),
    [
        ([3, 2, 2, 2, 2], {"patience": 1, "factor": 0.5}, [1, 1, 1, 0.5, 0.5]),
        ([1, 1, 1, 1, 1], {"patience": 0, "factor": 0.5, "cooldown": 1}, [1, 0.5, 0.5, 0.25, 0.25]),
        ([1, 2, 2, 3], {"mode": "max", "patience": 0, "factor": 0.5}, [1, 1, 0.5, 0.5]),
        ([10, 9.5, 9.1, 8], {"patience": 0, "factor": 0.5, "threshold": 0.1}, [1, 0.5, 0.25, 0.25]),
        (
            [10, 9.5, 9.1, 8],
            {"patience": 0, "factor": 0.5, "threshold": 0.4, "threshold_mode": "abs"},
            [1, 1, 0.5, 0.5],
        ),
        ([1, 1, 1], {"patience": 0, "min_lr": 0.3, "factor": 0.5}, [1, 0.5, 0.3]),
        ([1, 1], {"patience": 0, "factor": 0.5, "eps": 0.6}, [1, 1]),
        ([1, math.nan, math.nan], {"patience": 1, "factor": 0.5}, [1, 1, 0.5]),
    ],
)
def test_plateau(metrics, options, rates):
    assert plateau(metrics, **options) == plateau(metrics, resumed=True, **options) == rates


@pytest.mark.parametrize(("make", "expected"), CASES, ids=IDS)
def test_rates(make, expected):
    rates_are(make, expected)


@pytest.mark.parametrize(("make", "expected"), CASES, ids=IDS)
def test_a_resumed_schedule_goes_on(make, expected):
    goes_on_when_resumed(make, expected)


def test_a_bad_state_changes_nothing():
    falling = optim.LambdaLR(sgd(), lambda t: 2 - t)
    with pytest.raises(ValueError, match="expected `lr` to be at least 0"):
        falling.load_state_dict({"base_lrs": [1.0], "last_epoch": 9})
    assert falling.state_dict() == {"base_lrs": [0.5], "last_epoch": 0}
