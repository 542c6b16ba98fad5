"""Schedules in sequence and on a plateau. The others: test_rules.py."""

import math
import warnings

import numpy as np
import pytest

from schedules import sgd
from tinymp import optim
from tinymp.parameter import Parameter


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


def test_a_bad_state_changes_nothing():
    falling = optim.LambdaLR(sgd(), lambda t: 2 - t)
    with pytest.raises(ValueError, match="expected `lr` to be at least 0"):
        falling.load_state_dict({"base_lrs": [1.0], "last_epoch": 9})
    assert falling.state_dict() == {"base_lrs": [0.5], "last_epoch": 0}
