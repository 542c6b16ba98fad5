"""Which loss scale would have been enough? A CNN, a detector and a language model with nine constant scales each."""

from __future__ import annotations

import dataclasses
import statistics
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from . import sequences, table1, table2, trials

SCALES = tuple(2.0**k for k in (16, 12, 9, 6, 3, 0, -3, -6, -8))
SETTINGS = trials.settings(*(f"{scale:g}" for scale in SCALES))
SCALED = dict(zip(list(SETTINGS)[1:], SCALES))
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


def verdict(found: list[float], fp32: list[float], start: float) -> tuple[str, float]:
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
    """loss_scales.png: for each network the verdict over scale and steps, beside it what FP16 would lose of the
    gradients at that scale.
    """
    names = [name for name in NETWORKS if any(cell.name == name for cell in done)]
    with trials.figure(folder / "loss_scales.png", 1, 2 * len(names), (6.4 * len(names), 5.4)) as axes:
        for (left, right), name in zip(axes.reshape(-1, 2), names):
            mine = {(c.setting, c.seed): (t, c.steps) for c, t in done.items() if c.name == name}
            draw_map(left, name, mine)
            draw_lost(right, [t.kept["activation gradients"]["lost"] for (s, _), (t, _) in mine.items() if s == "FP32"])


def draw_map(axes: Any, name: str, mine: dict[tuple[str, int], tuple[trials.Trial, int]]) -> None:
    """A row for each scale, a column for each of PARTS. mine: {(setting, seed): (trial, steps)}."""
    fp32 = {seed: trial for (setting, seed), (trial, _) in mine.items() if setting == "FP32"}
    start, steps = statistics.fmean(t.curve[0] for t in fp32.values()), next(iter(mine.values()))[1]
    for row, setting in enumerate(SCALED):
        both = [(mine[setting, seed][0], t) for seed, t in fp32.items() if (setting, seed) in mine]
        columns = zip(*([*map(list, zip(losses(t, steps), losses(like, steps)))] for t, like in both))
        for column, pairs in enumerate(columns):
            word, fall = verdict(*map(list, zip(*pairs)), start)
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
