"""Streams go on when they like: what tinymp does on a GPU is right in every order that they allow, and faults show.

The stand-in (cuda_on_cpu/device.py) lets work queue until something waits for it; within `order(seed)`, streams go on
at random moments.
"""

import contextlib
import inspect
import textwrap

import numpy as np
import pytest

import tinymp as mp
from cuda_on_cpu import KernelError, device
from job import Job, same
from tinymp.gpu import recording
from tinymp.gpu.capture import Captured

pytestmark = [pytest.mark.usefixtures("gpu", "once"), pytest.mark.cpu]
ORDERS = [None, 0, 1, 2]  # as late as can be, and at random


@pytest.fixture(autouse=True)
def _stand_in(request):
    if request.config.getoption("--backend") == "gpu":
        pytest.skip("a GPU has an order of its own")


def in_order(seed):
    return contextlib.nullcontext() if seed is None else device.order(seed)


# -------------------------------------------------------------------------------------------------- programs and faults


def eager():
    """Steps as they are called; one overflows."""
    job = Job(rule="Adam", clip=True, dropout=0.3)
    losses = [job.step(*job.batch(i), factor=1e6 if i == 2 else 1.0)[0] for i in range(4)]
    return job.state() | {f"loss {i}": loss.numpy() for i, loss in enumerate(losses)} | {"S": job.scaler.get_scale()}


def captured():
    """Two jobs whose graphs share a stream and a workspace, run in turn on two other streams; one does not wait."""
    import cupy

    jobs = Job(rule="SGD"), Job(rule="Adam")
    steps = [mp.capture(job.step, warmup=1) for job in jobs]
    batches = [jobs[0].batch(i) for i in range(4)]
    mp.synchronize()  # the streams below do not wait for the one that made the batches
    found = {}
    for i, batch in enumerate(batches):
        for j, step in enumerate(steps):
            with cupy.cuda.Stream(non_blocking=True) if i == 3 else contextlib.nullcontext():
                loss, _ = step(*batch)
                found[f"loss {i} of {j}"] = loss.numpy()
    mp.synchronize()
    return found | {f"{j}.{name}": x for j, job in enumerate(jobs) for name, x in job.state().items()}


def one_graph_on_two_streams():
    """A graph that two streams start in turn, and what it leaves behind."""
    import cupy

    total = mp.Tensor(np.zeros(4, "float32")).to("gpu")

    def add(x):
        total.array[...] = total.array * 2 + x.array
        return total

    step, xs = mp.capture(add, warmup=1), [mp.Tensor(np.full(4, i, "float32")).to("gpu") for i in range(1, 7)]
    found = {"first": step(xs[0]).numpy()}
    step(xs[1])
    mp.synchronize()
    streams = [cupy.cuda.Stream(non_blocking=True) for _ in range(2)]
    for i, x in enumerate(xs[2:]):
        with streams[i % 2]:
            step(x)
    for stream in streams:
        stream.synchronize()
    return found | {"total": total.numpy()}


def uploads():
    """Numbers that go up while earlier work waits, from memory that is used again at once."""
    import cupy

    found = {}
    for i in range(6):
        y = found[f"{i}"] = cupy.empty(5, "float32")
        recording.upload(np.full(5, i * 10.0, "float32"), y)
        y += 1
    return {name: part.get() for name, part in found.items()}


def callbacks():
    """A callback gets what the array held at some moment since the last one."""
    import cupy

    x, seen = cupy.zeros(3, "int32"), [[0] * 3]
    callback = recording.AsyncCallback(x, lambda values: seen.append(values.tolist()))
    for _ in range(8):
        x += 1
        callback.poll()
    for _ in range(2):  # the copy under way, and one after it
        mp.synchronize()
        callback.poll()
    return {"in order": seen == sorted(seen) and all(n == [n[0]] * 3 for n in seen), "last": seen[-1] == [8] * 3}


_expected = {}


def expected(program, monkeypatch):
    """The program's result if every piece of work is done at once."""
    if program not in _expected:
        with monkeypatch.context() as patch:
            patch.setenv("CUDA_LAUNCH_BLOCKING", "1")
            _expected[program] = program()
    return _expected[program]


SEEDS = {captured: [None, 1]}  # which is slow
PROGRAMS = [eager, captured, one_graph_on_two_streams, uploads, callbacks]


@pytest.mark.parametrize(
    ("program", "seed"), [(program, seed) for program in PROGRAMS for seed in SEEDS.get(program, ORDERS[:3])]
)
def test_programs_are_right_in_every_order(monkeypatch, program, seed):
    at_once = expected(program, monkeypatch)
    with in_order(seed):
        same(program(), at_once)


# (program, owner of a function, its name, its text, the fault)
FAULTS = [
    # a host buffer that is used again before the copy has run, or behind an event that was never recorded
    (uploads, recording, "_hold", "_under_way.append((memory, event))", "pass"),
    (uploads, recording, "_hold", "event.record()", "pass"),
    # a callback that is called before the copy is there
    (callbacks, recording.AsyncCallback, "poll", "if self._sent and not self._event.done:", "if False:"),
    # a graph that does not wait for the one before, or waits for the wrong stream
    (one_graph_on_two_streams, Captured, "__call__", "stream.wait_event(self._idle)", "pass"),
    (one_graph_on_two_streams, Captured, "__call__", "idle.record(stream)", "idle.record(self._stream)"),
    (one_graph_on_two_streams, Captured, "_aside", "stream.synchronize()", "pass"),
]


@pytest.mark.parametrize(("program", "owner", "name", "old", "new"), FAULTS)
def test_planted_faults_of_time_are_found(monkeypatch, program, owner, name, old, new):
    at_once, found = expected(program, monkeypatch), 0
    text = textwrap.dedent(inspect.getsource(getattr(owner, name)))
    assert text.count(old) == 1, text
    exec("from __future__ import annotations\n" + text.replace(old, new), getattr(owner, name).__globals__, names := {})
    monkeypatch.setattr(owner, name, names[name])
    for seed in ORDERS:
        try:
            with in_order(seed):
                same(program(), at_once)
        except (AssertionError, AttributeError, KernelError, ArithmeticError, RuntimeError, ValueError, IndexError):
            found += 1
        while device.busy():  # with what failed, too
            with contextlib.suppress(KernelError):
                device.arrive()
    assert found
