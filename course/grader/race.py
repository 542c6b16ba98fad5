"""A race without a server: who learns most from the fewest bytes?

An entry is a Python file. It trains on `digits()` until ops and updates have moved BUDGET bytes, by the audit's byte
ledger; then it names 1,000 other digits. Most right wins; of equals, fewest bytes.

    policy = mp.MIXED                     optional; the storage and arithmetic of all
    batch = 64                            optional
    def model(): ...                      an nn.Module that takes (N, 1, 28, 28) and returns logits (N, 10)
    def optimizer(parameters): ...        an optimizer
    def scaler(): ...                     optional; DynamicLossScaler() without it
    def schedule(optimizer): ...          optional; what it returns gets a step() after each step
"""

from __future__ import annotations

import itertools
import runpy
import time
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np

from tinymp import backend, ops, optim
from tinymp.audit.bytes import ByteLedger
from tinymp.audit.listener import Listener
from tinymp.autograd import no_grad
from tinymp.data import DataLoader, TensorDataset
from tinymp.nn import Module
from tinymp.precision import MIXED, Policy, use
from tinymp.tensor import tensor

from .data import digits

BUDGET = 4 << 30  # bytes: some ninety steps of a small CNN in FP16


@dataclass(frozen=True)
class Entry:
    """The definitions of a file; see the top."""

    name: str
    model: Callable[[], Module]
    optimizer: Callable
    policy: Policy = MIXED
    batch: int = 64
    scaler: Callable = optim.DynamicLossScaler
    schedule: Callable | None = None


@dataclass(frozen=True)
class Finish:
    """right: of 1,000 digits; moved: bytes, while training; stopped: why it ended before its budget, or ""."""

    entry: Entry
    right: int
    moved: int
    steps: int
    seconds: float
    stopped: str

    def __str__(self) -> str:
        said = f"{self.entry.name} ({self.entry.policy.name}): {self.right / 10:.1f} % right after {self.steps} steps"
        return f"{said}, {self.moved / 2**30:.2f} GiB, {self.seconds:.1f} s" + f"\n{self.stopped}" * bool(self.stopped)


def read(path: Path) -> Entry:
    """Run an entry's file. ValueError says what is missing or wrong; what its code raises passes."""
    said = runpy.run_path(str(path))
    given = {field.name: said[field.name] for field in fields(Entry)[1:] if field.name in said}
    for name in ("model", "optimizer", *given):
        if name not in given:
            raise ValueError(f"{path}: expected a function {name}(), found none")
        kind, value = {"policy": Policy, "batch": int}.get(name), given[name]
        if not (callable(value) if kind is None else isinstance(value, kind)):
            raise ValueError(
                f"{path}: expected {name} to be {kind.__name__ if kind else 'a function'}, got {value!r:.40}"
            )
    if not 1 <= given.get("batch", 1) <= 1000:
        raise ValueError(f"{path}: expected batch to be 1 to 1000, got {given['batch']}")
    return Entry(path.stem, **given)


def run(entry: Entry, budget: int = BUDGET) -> Finish:
    """Train until `budget` bytes have moved, and count right answers. ValueError where model() makes no Module."""
    train_x, train_y, test_x, test_y = digits()
    backend.manual_seed(0)
    start = time.perf_counter()
    ledger, stopped, steps = ByteLedger(), "", 0
    with use(entry.policy):
        made = entry.model()
        if not isinstance(made, Module):
            raise ValueError(f"{entry.name}: expected model() to return an nn.Module, got {type(made).__name__}")
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
        model.eval()
        with no_grad():
            x = entry.policy.cast(tensor(test_x))
            guess = np.concatenate([model(x[i : i + 250]).numpy().argmax(1) for i in range(0, len(test_x), 250)])
    right = int(np.count_nonzero(guess == test_y))
    return Finish(entry, right, ledger.moved, steps, time.perf_counter() - start, stopped)
