"""A race without a server: who learns most from the fewest bytes?

An entry is a Python file. It trains on `digits()` until ops and updates have moved so many bytes, by the audit's
ledger, and then names 1,000 other digits. Most right wins; of equals, fewest bytes.

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
from dataclasses import dataclass
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


@dataclass(frozen=True)
class Finish:
    """right: of 1,000 digits; moved: bytes, while training."""

    entry: str
    policy: str
    right: int
    moved: int
    steps: int
    seconds: float

    def __str__(self) -> str:
        said = f"{self.entry} ({self.policy}): {self.right / 10:.1f} % right after {self.steps} steps"
        return f"{said}, {self.moved / 2**30:.2f} GiB, {self.seconds:.1f} s"


def run(path: Path, budget: int) -> Finish:
    """Train an entry until `budget` bytes have moved, and count right answers.

    ValueError says what the file lacks. What its code raises passes, as does the FloatingPointError of a scaler.
    """
    entry = runpy.run_path(str(path))
    policy, batch = entry.get("policy", MIXED), entry.get("batch", 64)
    for name in ("model", "optimizer", *({"scaler", "schedule"} & set(entry))):
        if not callable(entry.get(name)):
            raise ValueError(f"{path}: expected a function {name}(), got {entry.get(name)!r:.40}")
    if not isinstance(policy, Policy) or not isinstance(batch, int) or not 1 <= batch <= 1000:
        raise ValueError(f"{path}: expected a Policy and a batch of 1 to 1000, got {policy!r:.40} and {batch!r:.40}")
    train_x, train_y, test_x, test_y = digits()
    backend.manual_seed(0)
    start, ledger, steps = time.perf_counter(), ByteLedger(), 0
    with use(policy):
        model = entry["model"]()
        if not isinstance(model, Module):
            raise ValueError(f"{path}: expected model() to return an nn.Module, got {type(model).__name__}")
        optimizer = entry["optimizer"](policy.cast(model).parameters())
        scaler = entry.get("scaler", optim.DynamicLossScaler)()
        schedule = entry["schedule"](optimizer) if "schedule" in entry else None
        batches = DataLoader(TensorDataset(train_x, train_y), batch, shuffle=True, drop_last=True, seed=0)
        with Listener([ledger]):
            for x, y in itertools.chain.from_iterable(itertools.repeat(batches)):
                scaler.scale(ops.cross_entropy(model(policy.cast(x)), y)).backward()
                applied = scaler.step(optimizer)
                scaler.update()
                if schedule is not None and applied:
                    schedule.step()
                optimizer.zero_grad()
                steps += 1
                if ledger.moved >= budget:
                    break
        model.eval()
        with no_grad():
            x = policy.cast(tensor(test_x))
            guess = np.concatenate([model(x[i : i + 250]).numpy().argmax(1) for i in range(0, len(test_x), 250)])
    right = int(np.count_nonzero(guess == test_y))
    return Finish(path.stem, policy.name, right, ledger.moved, steps, time.perf_counter() - start)
