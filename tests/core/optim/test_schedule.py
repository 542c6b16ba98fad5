"""CosineAnnealingLR: its values, and that a schedule follows the applied steps."""

import math

import pytest

from schedules import T, goes_on_when_resumed, rates_are, sgd
from tinymp import optim
from tinymp.optim import StepResult

RATES = [0.1 + 0.4 * math.cos(math.pi * t / 16) ** 2 for t in range(T)]


def cosine(optimizer):
    return optim.CosineAnnealingLR(optimizer, 8, eta_min=0.1)


def test_rates():
    rates_are(cosine, RATES)


def test_a_resumed_schedule_goes_on():
    goes_on_when_resumed(cosine, RATES)


@pytest.mark.parametrize(
    ("results", "advances"),
    [
        ((), True),  # once per epoch
        ((StepResult.SKIPPED, StepResult.APPLIED), True),
        ((StepResult.SKIPPED, StepResult.NO_GRADIENTS), False),
    ],
)
def test_when_it_advances(results, advances):
    schedule = cosine(sgd())
    schedule.step(*results)
    assert schedule.last_epoch == advances
