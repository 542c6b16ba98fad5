"""Which loss scale would have been enough? A CNN, a detector and a language model with nine constant scales each."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from . import sequences, table1, table2, trials

SCALES = tuple(2.0**k for k in (16, 12, 9, 6, 3, 0, -3, -6, -8))
SETTINGS = trials.settings(*(f"{scale:g}" for scale in SCALES))
PARTS = (1 / 8, 1 / 4, 1 / 2, 1)  # of the steps, after which losses are compared


class Network(NamedTuple):
    """A row: the table it is from, its data there, its steps and batch, its measure and by what that is multiplied."""

    table: Any
    source: str
    steps: int
    batch: int
    measure: str
    factor: float
    paper: dict[str, float | str]


NETWORKS = {
    "AlexNet": Network(table1, "mnist", 250, 32, "top-1 accuracy, %", 100, {}),
    "Multibox SSD": Network(table2, "mnist", 160, 8, "mAP, %", 100, {}),
    "LSTM, 2 layers": Network(sequences.FIGURE5, "", 120, 64, "perplexity", 1, {}),
}
TITLE = __doc__
MEASURE = "Held out: " + ", ".join(f"of {name} {n.measure}" for name, n in NETWORKS.items())
FACTOR, UNIT, SOURCES = 1, "examples", ("",)


def label(source: str) -> str:
    """The data's name in the table."""
    return Path(source).name or "as in the network's table"


def run(
    name: str, source: str, setting: trials.Setting, seed: int, steps: int, batch: int, device: str
) -> trials.Trial:
    """Train one network under one setting. The seed fixes weights and batches, whatever the setting."""
    network = NETWORKS[name]
    trial = network.table.run(name, source or network.source, setting, seed, steps, batch, device)
    return dataclasses.replace(trial, score=network.factor * trial.score)


# ------------------------------------------------------------------------------------------------------------- the map


def losses(trial: trials.Trial, steps: int) -> list[float]:
    """The mean loss of the last fifth of the steps until each of PARTS; NaN where the run had ended before."""
    ends = [round(part * steps) for part in PARTS]
    return [float(np.mean(trial.curve[int(0.8 * n) : n])) if n <= len(trial.curve) else np.nan for n in ends]


def verdict(found: Sequence[float], fp32: Sequence[float], start: float) -> tuple[str, float]:
    """The verdict on losses of some seeds, after FP32's of the same, and the share of FP32's fall from `start`.

    "as FP32"  the mean difference is at most FP32's spread over the seeds
    "loses"    another difference, but the fall is at least half of FP32's
    "stalls"   less than that
    "diverges" the loss is above its start, by a tenth of FP32's fall at least
    "ends"     no loss is left in one of the seeds: NaN, or ten steps in a row were skipped
    """
    if not np.isfinite(found).all():
        return "ends", np.nan
    mean, like = statistics.fmean(found), statistics.fmean(fp32)
    fall = (start - mean) / (start - like) if start != like else np.nan
    if mean - like <= max(fp32) - min(fp32):
        return "as FP32", fall
    return ("loses" if fall >= 0.5 else "stalls" if fall > -0.1 else "diverges"), fall


COLORS = {"as FP32": "#cfe8d5", "loses": "#fbe3a8", "stalls": "#f3c19d", "diverges": "#e88d7d", "ends": "#b9a7c9"}


def draw(folder: Path, done: dict[Any, trials.Trial]) -> None:
    """loss_scales.png shows for each network the verdict over scale and steps, and next to it the share of gradients
    that FP16 would lose at that scale.
    """
    names = [name for name in NETWORKS if any(cell.name == name for cell in done)]
    with trials.figure(folder / "loss_scales.png", 1, 2 * len(names), (6.4 * len(names), 5.4)) as axes:
        for (left, right), name in zip(axes.reshape(-1, 2), names):
            mine = {(cell.setting, cell.seed): trial for cell, trial in done.items() if cell.name == name}
            draw_map(left, name, mine, next(cell.steps for cell in done if cell.name == name))
            draw_lost(right, [t.kept["activation gradients"]["lost"] for (s, _), t in mine.items() if s == "FP32"])


def draw_map(axes: Any, name: str, mine: dict[tuple[str, int], trials.Trial], steps: int) -> None:
    """A row for each scale, a column for each of PARTS. mine: {(setting, seed): trial}."""
    fp32, *scaled = SETTINGS
    start = statistics.fmean(trial.curve[0] for (setting, _), trial in mine.items() if setting == fp32)
    for row, setting in enumerate(scaled):
        seeds = [seed for s, seed in mine if s == setting and (fp32, seed) in mine]
        found, like = (np.array([losses(mine[s, seed], steps) for seed in seeds]) for s in (setting, fp32))
        for column, of_part in enumerate(zip(found.T, like.T)):
            word, fall = verdict(*of_part, start)
            axes.add_patch(_square(column, row, COLORS[word]))
            text = word if np.isnan(fall) else f"{fall:.0%}"
            axes.text(column, row, text, ha="center", va="center", fontsize=9)
    axes.set(xlim=(-0.5, len(PARTS) - 0.5), ylim=(len(SCALES) - 0.5, -0.5), xlabel="steps", ylabel="loss scale S")
    axes.set_xticks(range(len(PARTS)), [f"{round(part * steps)}" for part in PARTS])
    axes.set_yticks(range(len(SCALES)), [f"$2^{{{int(np.log2(scale))}}}$" for scale in SCALES])
    axes.set_title(f"{name}: the loss's fall\nas a share of FP32's", fontsize=11)
    handles = [_square(0, 0, color) for color in COLORS.values()]
    axes.legend(handles, COLORS, loc="upper center", bbox_to_anchor=(0.5, -0.1), ncols=3, frameon=False, fontsize=9)


def draw_lost(axes: Any, lost: list[dict[str, dict[str, float]]]) -> None:
    """The share of FP32's activation gradients (but zeros) that are zero, or subnormal, in FP16 at each scale."""
    shares = [{float(scale): kinds for scale, kinds in one.items()} for one in lost]
    for label, kinds, style in (("zero in FP16", ["zero"], "o-"), ("zero or subnormal", ["zero", "subnormal"], "o--")):
        x = [100 * statistics.fmean(sum(one[scale][kind] for kind in kinds) for one in shares) for scale in SCALES]
        axes.plot(x, range(len(SCALES)), style, color="0.25", label=label, markersize=4)
    axes.set(xlim=(0, 100), ylim=(len(SCALES) - 0.5, -0.5), xlabel="of FP32's activation gradients, %", yticks=[])
    axes.grid(axis="x", alpha=0.3)
    axes.set_title("below $2^{-25}$ / S and\nbelow $2^{-14}$ / S", fontsize=11)
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.1), frameon=False, fontsize=9)


def _square(column: float, row: float, color: str) -> Any:
    from matplotlib.patches import Rectangle

    return Rectangle((column - 0.5, row - 0.5), 1, 1, facecolor=color, edgecolor="white")
