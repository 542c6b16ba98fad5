"""One training run under one of the settings that MPT's tables compare, and the numbers that it leaves."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import tinymp as mp
from tinymp import nn, optim

from . import report
from .mnist import loss_scaler


@dataclass(frozen=True)
class Setting:
    """A column of a table: a policy, and the loss scale with it: "none", "dynamic", or a number."""

    policy: mp.Policy
    scale: str


SETTINGS = {
    "FP32": Setting(mp.FP32, "none"),
    "mixed, not scaled": Setting(mp.MIXED, "none"),
    "mixed, scaled by 8": Setting(mp.MIXED, "8"),
    "mixed, dynamic scale": Setting(mp.MIXED, "dynamic"),
}


@dataclass
class Trial(report.Run):
    """The numbers of one run.

    score    on the test set, the measure of its table: top-1 accuracy, or mean average precision
    seconds  of work on all cores, in training alone; waited: seconds that training waited for data
    kept     what the program wants to keep of the trained model, such as the boxes that it finds
    """

    score: float = float("nan")
    seconds: float = 0.0
    waited: float = 0.0
    kept: dict[str, Any] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """For the JSON: of the curve, means over 50 parts."""
        parts = np.array_split(self.curve, min(50, max(len(self.curve), 1)))
        return {**super().as_dict(), "curve": [round(float(part.mean()), 4) for part in parts if len(part)]}


def train(
    model: nn.Module,
    setting: Setting,
    batches: Iterator[tuple],
    loss_of: Callable[[nn.Module, tuple], mp.Tensor],
    steps: int,
    *,
    lr: float,
    weight_decay: float = 0.0,
    clip: float | None = None,
    watch: Callable[[int], AbstractContextManager] = nullcontext,
) -> Trial:
    """Train `model`, which the setting's policy has cast, for `steps` batches by SGD with momentum 0.9.

    The learning rate rises to lr over the first tenth of the steps, and falls as a cosine. clip: the largest norm of
    all gradients together. The settings of a table share these numbers (MPT section 4.1: the hyper-parameters of FP32).
    watch(step) is what forward and backward of that step run in, such as an audit.
    """
    scaler, run, times = loss_scaler(setting.scale), Trial(policy=setting.policy.name), []
    optimizer = optim.SGD(model.parameters(), lr=lr, momentum=0.9, weight_decay=weight_decay)
    warm_up = steps // 10 + 1
    rising = optim.LinearLR(optimizer, start_factor=1 / warm_up, total_iters=warm_up)
    falling = optim.CosineAnnealingLR(optimizer, T_max=max(steps - warm_up, 1))
    schedule = optim.SequentialLR(optimizer, [rising, falling], milestones=[warm_up])
    with mp.use(setting.policy):
        for step in range(steps):
            before = time.perf_counter()
            batch = next(batches)
            run.waited += time.perf_counter() - before
            start, cpu = time.perf_counter(), time.process_time()

            with watch(step):
                loss = loss_of(model, batch)
                if step == 0:
                    run.measure_bytes(loss)
                scaler.scale(loss).backward()
            if step % 20 == 0:
                run.count_exponents(model)
            if clip is not None:
                scaler.unscale_(optimizer)
                optim.clip_grad_norm_(model.parameters(), clip)
            result = scaler.step(optimizer)
            try:
                scaler.update()
            except FloatingPointError as error:  # it has diverged: that is what a table wants to know
                run.stopped = str(error)
                break
            schedule.step(result)

            mp.synchronize()
            times.append(time.perf_counter() - start)
            run.seconds += time.process_time() - cpu
            if step == 0:
                run.measure_state(model, optimizer)
            optimizer.zero_grad()
            run.curve.append(loss.item())
            run.skipped_steps += not result.applied
    if times:
        run.loss = statistics.fmean(run.curve[-50:])
        run.ms_per_step = 1000 * statistics.median(times)
    run.loss_scale = scaler.get_scale()
    return run


# ------------------------------------------------------------------------------------------------------------- pictures


@contextmanager
def figure(path: Path, rows: int, columns: int, size: tuple[float, float], dpi: int = 110) -> Iterator[np.ndarray]:
    """The axes of a new picture, which is then written."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    picture, axes = plt.subplots(rows, columns, figsize=size, layout="constrained", squeeze=False)
    yield axes
    picture.savefig(path, dpi=dpi)
    plt.close(picture)


def draw_scores(path: Path, table: Any, done: dict[Any, Trial]) -> None:
    """A table's runs, a column per network: every run as a point, their mean; last, the paper's numbers."""
    networks, settings = table.NETWORKS, table.SETTINGS
    sources = list(dict.fromkeys(cell.source for cell in done))
    with figure(path, 1, len(sources) + 1, (6.5 * (len(sources) + 1), 5)) as axes:
        *_, last = axes.flat
        for k, (setting, color) in enumerate(zip(settings, report.COLORS)):
            shift = 0.18 * (k - (len(settings) - 1) / 2)
            for one, source in zip(axes.flat, sources):
                for i, name in enumerate(networks):
                    mine = name, source, setting
                    scores = [100 * t.score for c, t in done.items() if (c.name, c.source, c.setting) == mine]
                    if scores:
                        one.plot([i + shift] * len(scores), scores, "o", color=color, alpha=0.5, markersize=5)
                        one.plot(
                            i + shift, statistics.fmean(scores), "_", color=color, markersize=16, markeredgewidth=2
                        )
                one.plot([], [], "o", color=color, label=setting)
            paper = [(i + shift, network.paper.get(setting)) for i, network in enumerate(networks.values())]
            numbers = [(x, y) for x, y in paper if isinstance(y, float)]
            last.plot(*zip(*numbers) if numbers else ([], []), "D", color=color, label=setting)
            for x, y in paper:
                if isinstance(y, str):
                    last.text(x, last.get_ylim()[0], y, color=color, rotation=90, va="bottom", ha="center")
        for one, title in zip(axes.flat, [*map(table.label, sources), "the paper"]):
            one.set(xticks=range(len(networks)), xticklabels=networks, ylabel=f"{table.MEASURE}, %", title=title)
            one.grid(axis="y", alpha=0.3)
        axes.flat[0].legend(fontsize=9)
