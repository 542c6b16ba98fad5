"""Events: who hears what, and what is said to run; settings."""

import threading

import numpy as np
import pytest

import tinymp as mp
from tinymp import nn, optim
from tinymp.events import here


class Everything(mp.Observer):
    """Notes every event with what ran."""

    def __init__(self):
        self.seen = []

    def note(self, event, *what):
        runs = here.running
        phase = getattr(runs, "phase", "") or type(runs).__name__
        self.seen.append((event, getattr(runs, "name", None), phase, *what))

    def ran(self, op, inputs, outputs):
        self.note("ran", op.name, op.phase)

    def rounded(self, x, y):
        self.note("rounded")

    def product(self, a, b, accumulate):
        self.note("product", accumulate)

    def written(self, parameter, value):
        self.note("written")

    def deposited(self, leaf, gradient, scale):
        self.note("deposited", float(scale))

    def stepped(self, optimizer, result):
        self.note("stepped", result)


def half(*shape):
    return mp.tensor(np.ones(shape, "float16"))


@pytest.mark.cpu
def test_the_events_of_a_step():
    model = mp.MIXED.cast(nn.Linear(2, 1, bias=False))
    optimizer, scaler = optim.SGD(model.parameters(), lr=0.5), optim.StaticLossScaler(8.0)
    seen = Everything()
    with mp.observe(seen):
        scaler.scale(model(half(3, 2)).float().sum()).backward()
        scaler.step(optimizer)
    linear = [("product", "linear", "forward", "float32"), ("rounded", "linear", "forward")]
    assert seen.seen[:3] == [*linear, ("ran", None, "NoneType", "linear", "forward")]
    backward = [e for e in seen.seen if e[2] == "backward"]
    assert ("product", "linear", "backward", "float32") in backward and ("rounded", "linear", "backward") in backward
    assert ("deposited", None, "NoneType", 8.0) in seen.seen
    assert seen.seen[-3:] == [
        ("written", None, "update"),
        ("rounded", None, "update"),
        ("stepped", None, "NoneType", optim.StepResult.APPLIED),
    ]
    assert here.running is None and here.backward is None and not here.observers and not here.inside


SETTINGS = {  # how to enter it, what it sets, and to what
    "use": (lambda: mp.use(mp.FP32), mp.current_policy, mp.FP32),
    "no_grad": (mp.no_grad, mp.is_grad_enabled, False),
    "device": (lambda: mp.device("meta"), lambda: mp.backend.default().name, "meta"),
}


@pytest.mark.parametrize("name", SETTINGS)
def test_a_setting_can_be_entered_again_and_again(name):
    """In a loop, within itself, in several threads at once, and as the decorator of a function that calls itself."""
    make, now, within = SETTINGS[name]
    context, met, found, before = make(), threading.Barrier(2), [], now()

    def elsewhere():
        with context:
            met.wait(5)  # both are within the block, and the other thread leaves it first
            met.wait(5)
            found.append(now() == within)
        found.append(now() == before)

    for _ in range(2):
        with context:
            with context:
                assert now() == within
            assert now() == within
        assert now() == before
    countdown = context(lambda n: countdown(n - 1) if n else now())
    assert countdown(2) == within and now() == before
    thread = threading.Thread(target=elsewhere)
    thread.start()
    with context:
        met.wait(5)
    assert now() == before
    met.wait(5)
    thread.join()
    assert found == [True, True]
