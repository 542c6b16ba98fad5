"""A race without a server: who learns most from the fewest bytes?

An entry is a Python file. It trains on `digits()` until ops and updates have moved BUDGET bytes, which the byte ledger
of the audit counts; then 1,000 other digits are named. The most that are right win; of equals, who moved fewer bytes.

    policy = mp.MIXED                     optional; the storage and arithmetic of all
    batch = 64                            optional
    def model(): ...                      an nn.Module that takes (N, 1, 28, 28) and returns logits (N, 10)
    def optimizer(parameters): ...        an optimizer
    def scaler(): ...                     optional; DynamicLossScaler() without it
    def schedule(optimizer): ...          optional; what it returns gets a step() after each step

The teacher runs all entries of a class again: what they say of themselves is not asked.
"""

from __future__ import annotations

import itertools
import runpy
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from tinymp import backend, ops, optim
from tinymp.audit.bytes import ByteLedger
from tinymp.audit.listener import Listener
from tinymp.audit.sampling import table
from tinymp.autograd import no_grad
from tinymp.data import DataLoader, TensorDataset
from tinymp.nn import Module
from tinymp.optim.optimizer import Optimizer
from tinymp.precision import MIXED, Policy, use
from tinymp.tensor import tensor

from .data import digits

BUDGET = 4 << 30  # bytes: some ninety steps of a small CNN in FP16


class NoEntry(ValueError):
    """A file is no entry: the text says what it lacks."""


@dataclass(frozen=True)
class Entry:
    """What a file says; see the top."""

    name: str
    model: Callable[[], Module]
    optimizer: Callable[[Any], Optimizer]
    policy: Policy = MIXED
    batch: int = 64
    scaler: Callable[[], optim.LossScaler] = optim.DynamicLossScaler
    schedule: Callable[[Optimizer], Any] | None = None


@dataclass(frozen=True)
class Finish:
    """right: of 1,000 digits; moved: bytes, while training; stopped: why it ended before its budget, or ""."""

    entry: str
    policy: str
    right: int
    moved: int
    steps: int
    seconds: float
    stopped: str = ""


def read(path: Path) -> Entry:
    """Run an entry's file. NoEntry says what is wrong with it; what its code raises passes."""
    said = runpy.run_path(str(path))
    given = {field.name: said[field.name] for field in fields(Entry) if field.name in said and field.name != "name"}
    for name in ("model", "optimizer"):
        if name not in given:
            raise NoEntry(f"{path}: expected a function {name}(), found none")
    for name, value in given.items():
        kind = {"policy": Policy, "batch": int}.get(name)
        if not (callable(value) if kind is None else isinstance(value, kind)):
            raise NoEntry(f"{path}: expected {name} to be {kind.__name__ if kind else 'a function'}, got {value!r:.40}")
    if not 1 <= given.get("batch", 1) <= 1000:
        raise NoEntry(f"{path}: expected batch to be 1 to 1000, got {given['batch']}")
    return Entry(path.stem, **given)


def run(entry: Entry, budget: int = BUDGET) -> Finish:
    """Train until `budget` bytes have moved, and count what is right. NoEntry for a model that is none."""
    train_x, train_y, test_x, test_y = digits()
    backend.manual_seed(0)
    start = time.perf_counter()
    ledger, stopped, steps = ByteLedger(), "", 0
    with use(entry.policy):
        made = entry.model()
        if not isinstance(made, Module):
            raise NoEntry(f"{entry.name}: expected model() to return an nn.Module, got {type(made).__name__}")
        model = entry.policy.cast(made)
        optimizer = entry.optimizer(model.parameters())
        scaler, schedule = entry.scaler(), entry.schedule and entry.schedule(optimizer)
        batches = DataLoader(TensorDataset(train_x, train_y), entry.batch, shuffle=True, drop_last=True, seed=0)
        with Listener([ledger]):
            for x, y in itertools.chain.from_iterable(itertools.repeat(batches)):
                loss = ops.cross_entropy(model(entry.policy.cast(x)), y)
                scaler.scale(loss).backward()
                applied = scaler.step(optimizer)
                try:
                    scaler.update()
                except FloatingPointError as error:
                    stopped = str(error)
                    break
                if schedule is not None and applied:
                    schedule.step()
                optimizer.zero_grad()
                steps += 1
                if ledger.moved >= budget:
                    break
        right = correct(model, entry.policy, test_x, test_y)
    return Finish(entry.name, entry.policy.name, right, ledger.moved, steps, time.perf_counter() - start, stopped)


def correct(model: Module, policy: Policy, x: Any, y: Any) -> int:
    """How many digits a model names rightly, in evaluation mode."""
    model.eval()
    with no_grad():
        found = [model(policy.cast(tensor(x[i : i + 250]))).numpy().argmax(1) for i in range(0, len(x), 250)]
    return int(np.count_nonzero(np.concatenate(found) == y))


def board(finishes: Sequence[Finish]) -> str:
    """The leaderboard: most right first, of equals the fewest bytes."""
    rows: list[tuple[str, ...]] = [("", "entry", "policy", "right", "moved", "steps", "seconds")]
    for place, f in enumerate(sorted(finishes, key=lambda f: (-f.right, f.moved)), 1):
        moved = f"{f.moved / 2**30:.2f} GiB"
        rows.append((f"{place}", f.entry, f.policy, f"{f.right / 10:.1f} %", moved, f"{f.steps}", f"{f.seconds:.1f}"))
    stopped = [f"{f.entry} stopped: {f.stopped}" for f in finishes if f.stopped]
    return "\n".join([table(rows, left=(0, 1, 2), most=None), *stopped])
