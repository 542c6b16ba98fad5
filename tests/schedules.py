"""Checks that tests of learning-rate schedules share: the rates of T steps, and of a schedule that is resumed."""

import numpy as np
import pytest

from tinymp import optim
from tinymp.optim import StepResult
from tinymp.parameter import Parameter

T = 24


def sgd(*lrs):
    return optim.SGD([{"params": [Parameter(np.ones(1, "float32"))], "lr": lr} for lr in lrs or (0.5,)])


def rates_are(make, expected):
    """make(optimizer) gives the schedule; expected: its rates from 0.5 on."""
    optimizer = sgd(0.5)
    schedule = make(optimizer)
    for t in range(T):
        assert schedule.get_last_lr() == pytest.approx([expected[t]], rel=1e-12)
        assert optimizer.param_groups[0]["lr"] == schedule.get_last_lr()[0] and schedule.last_epoch == t
        schedule.step(StepResult.SKIPPED)  # a skipped step leaves no trace
        schedule.step(StepResult.NO_GRADIENTS)
        schedule.step(StepResult.APPLIED)


def goes_on_when_resumed(make, expected):
    """The same; the state after 9 steps goes to a schedule whose optimizer had another rate."""
    first = make(sgd(0.5))
    for _ in range(9):
        first.step()
    optimizer = sgd(7.0)
    second = make(optimizer)
    second.load_state_dict(first.state_dict())
    assert optimizer.param_groups[0]["lr"] == pytest.approx(expected[9], rel=1e-12)
    second.step()
    assert second.get_last_lr() == pytest.approx([expected[10]], rel=1e-12)
