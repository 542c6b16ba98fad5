"""What every example reports: a table, report.json and report.png, with one column per run."""

from __future__ import annotations

import argparse
import pathlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import tinymp as mp
from tinymp.checkpoint import writing

from . import stopping

ROLES = ("weights", "masters", "gradients", "activations", "optimizer")
COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7")  # told apart also by those who see no red or green
EXPONENTS = range(-40, 17)  # of gradients, as floor(log2 |g|); what is smaller or larger goes to the ends


@dataclass
class Run:
    """The numbers of one training run; `as_dict` is its entry in report.json."""

    accuracy: float = float("nan")
    loss: float = float("nan")
    ms_per_step: float = float("nan")
    per_second: float = float("nan")
    bytes: dict[str, int] = field(default_factory=dict)
    skipped_steps: int = 0
    loss_scale: float = 1.0
    curve: list[float] = field(default_factory=list)
    policy: str = ""
    gradient_exponents: list[int] = field(default_factory=lambda: [0] * len(EXPONENTS))
    zero_gradients: int = 0
    stopped: str | None = None  # why the run ended early

    def measure_bytes(self, *graphs: mp.Tensor) -> None:
        """Before backward: what the graphs keep for it; the largest of several calls counts."""
        kept = sum(map(mp.saved_nbytes, graphs))
        self.bytes["activations"] = max(kept, self.bytes.get("activations", 0))

    def measure_state(self, model: mp.nn.Module, optimizer: mp.optim.Optimizer) -> None:
        """After a step: weights, masters, gradients as backward wrote them, optimizer's state; models add up."""
        parameters, state = list(model.parameters()), optimizer.state_dict()["state"].values()
        for role, size in (
            ("weights", sum(p.nbytes for p in parameters)),
            ("masters", sum(p.master_nbytes for p in parameters)),
            ("gradients", sum(p.grad.nbytes for p in parameters if p.grad is not None)),
            ("optimizer", sum(np.asarray(v).nbytes for entry in state for v in entry.values())),
        ):
            self.bytes[role] = self.bytes.get(role, 0) + size

    def count_exponents(self, model: mp.nn.Module) -> None:
        """Add the exponents of the weight gradients, as they are stored (so with the loss scale), to the histogram."""
        for p in model.parameters():
            if p.grad is not None:
                g = mp.backend.to_cpu(mp.autograd.values_of(p.grad_array))
                g = np.abs(g[np.isfinite(g)].astype(np.float32))
                exponents = np.frexp(g[g > 0])[1] - 1
                self.add_exponents(exponents, np.ones_like(exponents), int(g.size - len(exponents)))

    def add_exponents(self, exponents: np.ndarray, counts: Any, zeros: int) -> None:
        """Add so many values with each of these exponents, and so many zeros."""
        places = np.clip(exponents, EXPONENTS.start, EXPONENTS.stop - 1) - EXPONENTS.start
        total = np.bincount(places, counts, len(EXPONENTS)).astype(int) + self.gradient_exponents
        self.gradient_exponents = total.tolist()
        self.zero_gradients += zeros

    def as_dict(self) -> dict[str, Any]:
        """For report.json."""
        values = {k: _jsonable(v) for k, v in vars(self).items()}
        ordered = {role: self.bytes[role] for role in ROLES if role in self.bytes}
        return {**values, "bytes": ordered, "exponents": list(EXPONENTS)}


def _jsonable(value: Any) -> Any:
    """JSON has no nan and no infinity: they become null."""
    if isinstance(value, list):
        return [_jsonable(v) for v in value]
    return None if isinstance(value, float) and not np.isfinite(value) else value


# The rows that say how well a run did: a label, and the text in the column of a run.
SCORES = (("test accuracy", lambda run: f"{run.accuracy:.2%}"), ("final loss", lambda run: f"{run.loss:.4f}"))


def table(runs: dict[str, Any], scores: Any = SCORES, unit: str = "images") -> str:
    """The runs side by side, and the ratio of the last to the first. `unit` is what a run counts per second."""
    names = list(runs)
    first, last = runs[names[0]], runs[names[-1]]
    rows: list[tuple[str, ...]] = [("", *names, f"{names[-1]} / {names[0]}")]

    def row(label: str, form: Any, value: Any, ratio: bool = False) -> None:
        cells = [form(value(run)) for run in runs.values()]
        share = f"{value(last) / value(first):.2f}" if ratio and value(first) else ""
        rows.append((label, *cells, share))

    for label, text in scores:
        row(label, text, lambda r: r)
    row("ms per step", lambda v: f"{v:.1f}", lambda r: r.ms_per_step, ratio=True)
    row(f"{unit} per second", lambda v: f"{v:.0f}", lambda r: r.per_second, ratio=True)
    for role in ROLES:
        row(f"{role}, KiB", lambda v: f"{v / 1024:.0f}", lambda r, role=role: r.bytes.get(role, 0), ratio=True)
    row("steps skipped", str, lambda r: r.skipped_steps)
    row("final loss scale", lambda v: f"{v:g}", lambda r: r.loss_scale)
    widths = [max(len(r[i]) for r in rows) for i in range(len(rows[0]))]
    lines = ["  ".join(c.ljust(w) if i == 0 else c.rjust(w) for i, (c, w) in enumerate(zip(r, widths))) for r in rows]
    return "\n".join([lines[0], "-" * len(lines[0]), *lines[1:]])


def beside_seeds(runs: dict[str, Any], value: Callable[[Any], float]) -> list[str]:
    """Where a number of each run lies beside those of the runs in FP32, a line each, if these are several."""
    fp32 = [value(run) for run in runs.values() if run.policy == "FP32"]
    low, high, lines = min(fp32), max(fp32), []
    for label, run in runs.items():
        if run.policy != "FP32":
            own = value(run)
            lines.append(f"{label}: {own:.2f}, {'below' if own < low else 'above' if own > high else 'within'} that")
    return [f"{len(fp32)} seeds of FP32: {low:.2f} to {high:.2f}", *lines] if len(fp32) > 1 else []


def settings_of(options: argparse.Namespace) -> dict[str, Any]:
    """The options of the command line, for report.json."""
    return {k: v if isinstance(v, (bool, int, float, list)) else str(v) for k, v in vars(options).items()}


def finish(parser: argparse.ArgumentParser, runs: dict[str, Any]) -> dict[str, Any]:
    """Say which runs ended early; the program fails if FP32's did, or if a signal ended it."""
    for label, run in runs.items():
        if run.stopped:
            print(f"\n{label} stopped after {len(run.curve)} steps: {run.stopped}")
    if status := stopping.code() or runs["fp32"].stopped is not None:
        parser.exit(int(status))
    return runs


def write_json(path: pathlib.Path, runs: dict[str, Run], settings: dict[str, Any]) -> None:
    """report.json: {"runs": {name: ...}, "settings": {...}, "environment": {...}}."""
    content = {
        "runs": {name: run.as_dict() for name, run in runs.items()},
        "settings": settings,
        "environment": dict(mp.info()),
    }
    writing.write_json(path, content)


def write_png(path: pathlib.Path, runs: dict[str, Run], title: str) -> None:
    """report.png: the loss curves, and the exponents of the weight gradients with FP16's limits."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(13, 5), layout="constrained")
    figure.suptitle(title)
    for run, color in zip(runs.values(), COLORS):
        draw_curve(left, run.curve, f"{run.policy}: accuracy {run.accuracy:.2%}", color=color)
    left.set(xlabel="step", ylabel="training loss", title="Loss", yscale="log")
    draw_exponents(right, runs)
    for axes in (left, right):
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.13), ncols=2, fontsize=9, frameon=False)
    writing.write_figure(path, figure, dpi=110)
    plt.close(figure)


def draw_curve(axes: Any, values: list[float], label: str, **style: Any) -> None:
    """A value per step, faint, and its moving average over a fortieth of the steps."""
    curve = np.asarray(values or [np.nan])
    axes.plot(curve, **style, alpha=0.2, linewidth=0.8)
    window = max(len(curve) // 40, 1)
    smooth = np.convolve(curve, np.ones(window) / window, "valid")
    axes.plot(np.arange(len(smooth)) + window - 1, smooth, **style, label=label)


def draw_exponents(axes: Any, runs: dict[str, Any]) -> None:
    """The exponents of the weight gradients as they were stored, and where FP16 ends."""
    for (name, run), color in zip(runs.items(), COLORS):
        counts = np.asarray(run.gradient_exponents, float)
        total = max(counts.sum() + run.zero_gradients, 1)
        scaled = " × loss scale, as stored" if run.loss_scale != 1 else ""
        label = f"{name}{scaled}: {run.zero_gradients / total:.1%} zeros"
        axes.stairs(
            100 * counts / total, [*EXPONENTS, EXPONENTS.stop], color=color, fill=False, linewidth=1.8, label=label
        )
    axes.set(
        xlabel="exponent of the gradient, floor(log2 |g|)",
        ylabel="share of all weight gradients, %",
        title="Weight gradients over the run",
        xlim=(EXPONENTS.start, EXPONENTS.stop + 3),
        ylim=(0, axes.get_ylim()[1] * 1.2),  # room for the words at the limits
    )
    top = axes.get_ylim()[1]
    for exponent, limit in (
        (-24, "smallest\nsubnormal\n2$^{-24}$"),
        (-14, "smallest\nnormal\n2$^{-14}$"),
        (16, "largest\n65504"),
    ):
        axes.axvline(exponent, color="0.35", linestyle="--", linewidth=1)
        axes.text(exponent - 0.4, top * 0.985, limit, ha="right", va="top", fontsize=8, color="0.25")
    axes.axvspan(EXPONENTS.start, -24, color="0.5", alpha=0.12)
    axes.text((EXPONENTS.start - 24) / 2, top * 0.4, "zero in FP16", ha="center", fontsize=9, color="0.25")
