"""One training run under one of the settings that MPT's tables compare, and the numbers that it leaves."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np

import tinymp as mp
from tinymp import nn, optim
from tinymp.audit.histograms import ACTIVATION_GRADIENT, Exponents
from tinymp.gradients import values_of
from tinymp.precision import MOVEMENT

from .. import measure
from ..measure import loss_scaler

AUDITED = 50  # one step in so many
LOST_AT = tuple(2.0**k for k in range(-8, 17))  # loss scales


@dataclass(frozen=True)
class Setting:
    """A column of a table: a policy, and the loss scale with it: "none", "dynamic", or a number."""

    policy: mp.Policy
    scale: str

    def scaler(self) -> optim.LossScaler:
        """A new one."""
        return loss_scaler(self.scale)


def settings(*scales: str) -> dict[str, Setting]:
    """FP32, and mixed precision with each of these scales, by the names that tables have for them."""
    names = {"none": "mixed, not scaled", "dynamic": "mixed, dynamic scale"}
    mixed = {names.get(scale, f"mixed, scaled by {scale}"): Setting(mp.MIXED, scale) for scale in scales}
    return {"FP32": Setting(mp.FP32, "none"), **mixed}


@dataclass
class Trial(measure.Run):
    """The numbers of one run.

    score        on the test set, the measure of its table, such as top-1 accuracy; scores: all measures, by name
    seconds      of work on all cores, in training alone
    zero_shares  (step, share of all values which that step's backward wrote as gradients that are 0)
    kept         what the program wants to keep, such as the boxes that it finds; of an FP32 run its activation
                 gradients: see `counted`
    commit       of the code that ran, "-dirty" if it differed from it
    """

    score: float = math.nan
    scores: dict[str, float] = field(default_factory=dict)
    seconds: float = 0.0
    zero_shares: list[tuple[int, float]] = field(default_factory=list)
    kept: dict[str, Any] = field(default_factory=dict)
    commit: str = ""

    @property
    def zeros(self) -> float:
        """The mean share of gradient values that are 0."""
        return statistics.fmean(share for _, share in self.zero_shares) if self.zero_shares else math.nan

    def to_json(self) -> dict[str, Any]:
        """By name; of the curve, means over 50 parts, and how many steps it has."""
        parts = np.array_split(self.curve, min(50, max(len(self.curve), 1)))
        means = [round(float(part.mean()), 4) for part in parts if len(part)]
        return {**self.as_dict(), "curve": means, "ran": len(self.curve)}

    @classmethod
    def from_json(cls, entry: dict[str, Any]) -> Trial:
        """The inverse, but that the curve has the means. Further items do not matter; KeyError where one is missing."""
        values = {
            f.name: math.nan if entry[f.name] is None and f.type == "float" else entry[f.name] for f in fields(cls)
        }
        means = np.array([math.nan if mean is None else mean for mean in entry["curve"]])
        lengths = [len(part) for part in np.array_split(np.arange(entry["ran"]), max(len(means), 1))]
        return cls(**{**values, "curve": np.repeat(means, lengths[: len(means)]).tolist()})


class Zeros(mp.Observer):
    """Watches a backward pass and counts the values that ops write as gradients, and those that are 0 (MPT section 3.2:
    "activation gradient values", too, become zeros in FP16).
    """

    def __init__(self) -> None:
        self.values = self.zeros = 0

    def ran(self, op: Any, inputs: tuple, outputs: tuple) -> None:
        if op.phase == "backward" and op.kind is not MOVEMENT:
            for dx in (values_of(dx) for dx, like in zip(outputs, op.targets) if like is not None):
                self.values += dx.size
                self.zeros += dx.size - int(mp.backend.of(dx).xp.count_nonzero(dx))


def train(
    model: nn.Module,
    policy: mp.Policy,
    scaler: optim.LossScaler,
    batches: Iterator[Any],
    loss_of: Callable[[nn.Module, Any], mp.Tensor],
    steps: int,
    *,
    optimizer: optim.Optimizer,
    clip: float,
    batch: int,
) -> Trial:
    """Train `model`, which `policy` has cast, for `steps` batches.

    The optimizer's learning rate rises to what it is over the first tenth of the steps, and falls as a cosine. clip:
    the largest norm of all gradients together. The settings of a table share these numbers (MPT section 4.1: the
    hyper-parameters of FP32). batch: the examples of a step. Of an FP32 run every fiftieth step is audited: it shows
    what FP16 would lose, and has not lost it already. On a GPU, steps whose batch is a tuple of Tensors or arrays are
    captured.
    """
    run, cpu, gradients = Trial(policy=policy.name), time.process_time(), Exponents()
    warm_up = steps // 10 + 1
    rising = optim.LinearLR(optimizer, start_factor=1 / warm_up, total_iters=warm_up)
    falling = optim.CosineAnnealingLR(optimizer, T_max=max(steps - warm_up, 1))
    schedule = optim.SequentialLR(optimizer, [rising, falling], milestones=[warm_up])

    def step(examples: Any) -> tuple[mp.Tensor, optim.StepResult]:
        loss = loss_of(model, examples)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        optim.clip_grad_norm_(model.parameters(), clip)
        result = scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        return loss, result

    device = next(model.parameters()).device
    graph = mp.capture(lambda *tensors: step(tensors))  # on a GPU; on a CPU, and where a step is watched, it only calls
    with mp.use(policy), run:  # one that diverges ends here: that is what a table wants to know
        for i, examples in enumerate(run.steps(steps, batches)):
            zeros, looked_at = Zeros(), i % measure.EVERY == 0
            audited = mp.audit(gradients) if policy is mp.FP32 and i % AUDITED == 0 else nullcontext()
            whole = type(examples) is tuple and all(isinstance(x, (mp.Tensor, np.ndarray)) for x in examples)
            tensors = [mp.tensor(x).to(device) for x in examples] if whole else []
            with audited, mp.observe(zeros) if looked_at else nullcontext():
                loss, result = graph(*tensors) if whole else step(examples)
            if looked_at:
                run.zero_shares.append((i, zeros.zeros / zeros.values))
            schedule.step(result)
            run.note(loss, result)
    run.seconds = time.process_time() - cpu
    run.end(scaler, batch)
    if policy is mp.FP32:
        run.kept["activation gradients"] = counted(gradients)
    return run


def counted(gradients: Exponents) -> dict[str, Any]:
    """The exponents of all activation gradients, how many are zeros, and of the others the shares that FP16 would
    lose: {scale: {"zero": ..., "subnormal": ..., "overflow": ...}}.
    """
    run = measure.Run(policy="FP32")
    for tensor in gradients.as_dict()["tensors"]:
        if tensor["role"] == ACTIVATION_GRADIENT:
            run.count_exponents(tensor["lowest"], tensor["counts"], tensor["zeros"])
    lost = {scale: gradients.share_lost(ACTIVATION_GRADIENT, scale)._asdict() for scale in LOST_AT}
    return {"exponents": run.gradient_exponents, "zeros": run.zero_gradients, "lost": lost}


def table(head: Sequence, rows: Iterable[Sequence], numbers: str = "---:") -> str:
    """Markdown; the first column is text; numbers: how the others are ruled."""
    lines = [head, ("---", *[numbers] * (len(head) - 1)), *rows]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)


@contextmanager
def figure(path: Path, rows: int, columns: int, size: tuple[float, float], dpi: int = 110) -> Iterator[np.ndarray]:
    """The axes of a new picture, which is then written."""
    with measure.figure(path, size, dpi) as new:
        yield new.subplots(rows, columns, squeeze=False)
