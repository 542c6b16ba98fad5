"""An interrupted step, load, save, cast or move leaves no damage: an exception is raised at each line in turn.

In long functions it is raised the first few times that a line runs; and but for the lines of `with`, `except` and
`finally`, which put things back, at every eighth line only. With INTERRUPT_EVERY=1 in the environment it is every line.
"""

import ast
import functools
import os
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

import tinymp as mp
from oracle import host, randn
from tinymp import backend, nn, ops, optim
from tinymp.events import here

PACKAGE = str(Path(mp.__file__).parent)
EVERY = int(os.environ.get("INTERRUPT_EVERY", "8"))


@functools.cache
def that_put_back(file):
    """Its lines that begin a `with`, and those within `except` and `finally`."""
    found = set()
    for node in ast.walk(ast.parse(Path(file).read_bytes())):
        if isinstance(node, ast.With):
            found.add(node.lineno)
        for part in (*getattr(node, "handlers", ()), *getattr(node, "finalbody", ())):
            found.update(range(part.lineno, part.end_lineno + 1))
    return found


def run(work, at=None, error=KeyboardInterrupt):
    """Call work() and raise `error` before its line number `at` in the package; returns the lines that ran."""
    lines = []

    def trace(frame, event, _):
        if not frame.f_code.co_filename.startswith(PACKAGE):
            return None
        if event == "line":
            lines.append((frame.f_code, frame.f_lineno))
            if len(lines) == at:
                raise error("interrupted")
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return lines


def what_is_set():
    """In this thread, for as long as it is not put back."""
    running = here.running, here.backward, tuple(here.observers), backend.default()
    return *running, np.geterr(), mp.current_policy(), mp.is_grad_enabled()


class Full(MemoryError):
    """Python 3.10 crashes where it frees MemoryErrors themselves, which it keeps for reuse."""


def every_line(make, work, check, often=None, stride=1):
    """check(thing, line) after work(thing) was interrupted at lines (of `stride`) in turn; each time on a new thing.

    often: only the first so many times that a line runs
    """
    work(make())  # once as it is: imports, caches
    thing = make()
    lines, before, ran = run(lambda: work(thing)), what_is_set(), Counter()
    assert len(lines) > 20
    for at, line in enumerate(lines, 1):
        ran[line] += 1
        if (often and ran[line] > often) or at % stride:
            continue
        if at % EVERY and line[1] not in that_put_back(line[0].co_filename):
            continue
        thing = make()
        with pytest.raises((KeyboardInterrupt, MemoryError), match="interrupted"):
            run(lambda thing=thing: work(thing), at, KeyboardInterrupt if at // EVERY % 2 else Full)
        assert what_is_set() == before, at
        check(thing, at)


def weights(model):
    """Masters, working copies and buffers, each as (dtype, bytes)."""
    masters = {f"{name}.master": host(p.master) for name, p in model.named_parameters()}
    copies = {f"{name}.array": host(p.array) for name, p in model.named_parameters()}
    return {name: (x.dtype, x.tobytes()) for name, x in {**masters, **copies, **model.state_dict()}.items()}


def agree(model):
    """Every working copy is its master's rounding, and read-only."""
    for p in model.parameters():
        np.testing.assert_array_equal(host(p.array), host(p.master).astype(p.dtype), err_msg=p.name)
        if p.master_nbytes and p.device == "cpu":
            assert not p.array.flags.writeable


def network(policy=mp.MIXED, seed=0):
    mp.manual_seed(seed)
    layers = [nn.Embedding(5, 3), nn.Flatten(), nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)]
    return policy.cast(nn.Sequential(*layers))


class Job:
    """A model with gradients, an optimizer and a scaler, right before the step."""

    def __init__(self, rule=optim.Adam, device="cpu", **options):
        self.model = network().to(device)
        self.scaler = optim.DynamicLossScaler(2.0**10)
        self.optimizer = rule(self.model.parameters(), lr=0.1, **options)
        self.device = device
        self.backward()
        self.step()
        self.backward()

    def backward(self):
        x = mp.tensor(np.array([[0, 1], [1, 3], [4, 4]])).to(self.device)
        self.scaler.scale(ops.square(self.model(x)).float().mean()).backward()

    def step(self):
        result = self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad()
        return result

    def clipped_step(self):
        self.scaler.unscale_(self.optimizer)
        optim.clip_grad_norm_(self.model.parameters(), 0.1)
        return self.step()

    def iteration(self):
        self.backward()
        return self.clipped_step()


@pytest.mark.cpu
@pytest.mark.parametrize(
    ("rule", "options", "work"),
    [(optim.SGD, {"momentum": 0.9}, Job.step), (optim.Adam, {"amsgrad": True}, Job.iteration)],
)
def test_an_interrupted_step_or_iteration_is_followed_by_another(rule, options, work):
    """Some parameters are updated and others not, but copies are their masters' rounding; training goes on: zero_grad()
    is enough, or the error says which call ends the iteration.
    """
    refused = []

    def check(job, at):
        agree(job.model)
        job.optimizer.zero_grad()
        if at % 3:
            return
        try:
            result = job.iteration()
        except RuntimeError as error:
            refused.append(str(error))
            job.scaler.update()
            job.optimizer.zero_grad()
            result = job.iteration()
        assert result, at
        agree(job.model)

    every_line(lambda: Job(rule, **options), work, check, often=1)
    assert refused and all("call update() at the end of the iteration" in error for error in refused)


def _loaded(policy):
    state = network(policy, seed=1).state_dict()
    return policy, lambda model: model.load_state_dict(state)


WHOLE = {  # the policy that a model is cast to before, and what is done to it
    "load FP32": lambda: _loaded(mp.FP32),
    "load MIXED": lambda: _loaded(mp.MIXED),
    "load NO_MASTER": lambda: _loaded(mp.NO_MASTER),
    "FP32 to MIXED": lambda: (mp.FP32, mp.MIXED.cast),
    "MIXED to FP32": lambda: (mp.MIXED, mp.FP32.cast),
    "NO_MASTER to MIXED": lambda: (mp.NO_MASTER, mp.MIXED.cast),
}


@pytest.mark.cpu
@pytest.mark.parametrize("case", WHOLE)
def test_an_interrupted_load_or_cast_of_a_model_is_whole_or_nothing(case):
    policy, work = WHOLE[case]()
    old, new = weights(network(policy)), network(policy)
    work(new)
    policies, new = {p.policy for p in new.parameters()}, weights(new)

    def check(model, at):
        got = weights(model)
        assert got in (old, new), at
        assert {p.policy for p in model.parameters()} == ({policy} if got == old else policies)
        agree(model)
        if case == "FP32 to MIXED":
            assert weights(mp.FP32.cast(model)) == old  # no weight has lost its FP32 value

    every_line(lambda: network(policy), work, check)


@pytest.mark.parametrize(
    "change",
    [
        lambda p: p.write(mp.tensor(randn(3).astype("float32")).array),
        lambda p: p.copy_(randn(3)),
        lambda p: p.__setitem__(1, 5.0),
        lambda p: setattr(p, "array", randn(3).astype("float32")),
    ],
    ids=["write", "copy_", "setitem", "array"],
)
def test_an_interrupted_write_is_whole_or_nothing(change):
    def make():
        return mp.MIXED.cast(nn.Parameter(randn(3, seed=5).astype("float32")))

    other = make()
    with mp.no_grad():
        change(other)
    old, new = host(make().master), host(other.master)

    def check(p, at):
        np.testing.assert_array_equal(host(p.array), host(p.master).astype("float16"))
        assert (host(p.master) == old).all() or (host(p.master) == new).all(), at

    with mp.no_grad():
        every_line(make, change, check)


@pytest.mark.cpu
def test_interrupted_loads_of_optimizer_and_scaler_are_whole_or_nothing():
    saved = Job()
    saved.step()
    states = saved.optimizer.state_dict(), saved.scaler.state_dict()

    def load(job):
        job.optimizer.load_state_dict(states[0])
        job.scaler.load_state_dict({**states[1], "scale": 2.0, "iteration": 7, "growth_tracker": 5, "history": []})

    before = Job().optimizer.state_dict(), Job().scaler.state_dict()

    def check(job, at):
        try:
            np.testing.assert_equal(job.optimizer.state_dict(), before[0])
        except AssertionError:
            np.testing.assert_equal(job.optimizer.state_dict(), states[0])
        changed = {name for name, value in job.scaler.state_dict().items() if value != before[1][name]}
        assert changed in (set(), {"scale", "iteration", "growth_tracker"}), at

    every_line(Job, load, check, often=3)


@pytest.mark.cpu
def test_an_interrupted_load_of_a_checkpoint_changes_nothing(tmp_path):
    def parts(job):
        return {"model": job.model, "optimizer": job.optimizer, "scaler": job.scaler}

    saved = Job()
    saved.step()
    mp.save(tmp_path / "run", **parts(saved))

    def make():
        job = Job()
        mp.manual_seed(7)
        return job

    def states(job):
        return weights(job.model), job.optimizer.state_dict(), job.scaler.state_dict(), mp.get_rng_state()

    before = states(make())

    def check(job, at):
        np.testing.assert_equal(states(job), before, str(at))
        agree(job.model)

    every_line(make, lambda job: mp.load(tmp_path / "run", **parts(job)), check, often=1)
