"""After the paper: a CNN, a language model and a GAN in FP16, BF16 and FP8."""

from __future__ import annotations

import statistics
import time
from dataclasses import fields
from pathlib import Path
from typing import Any, NamedTuple

import tinymp as mp

from .. import cnn, dcgan, measure
from . import language_model, trials

NOT_SCALED, DYNAMIC = "FP16, not scaled", "FP16, dynamic scale"


class Network(NamedTuple):
    """A row: a module with a `train`, arguments of it, and what is measured (less is better)."""

    program: Any
    arguments: Any
    steps: int
    batch: int
    measure: str
    paper: dict[str, float | str]


NETWORKS = {
    "MNIST CNN": Network(cnn, {}, 800, cnn.BATCH, "test error, %", {}),
    "LSTM": Network(language_model, {}, 120, 128, "perplexity", {}),
    "DCGAN": Network(dcgan, {"size": 32, "width": 16}, 500, dcgan.BATCH, "Fréchet distance", {}),
}
SETTINGS = {
    name: trials.Setting(mp.POLICIES[policy], scale)
    for name, policy, scale in (
        ("FP32", "FP32", "none"),
        (NOT_SCALED, "MIXED", "none"),
        (DYNAMIC, "MIXED", "dynamic"),
        ("BF16", "BF16", "none"),
        ("FP8", "FP8", "none"),
    )
    if policy in mp.POLICIES  # without ml_dtypes there is no BF16
}
TITLE = __doc__
MEASURE = "Less is better: " + ", ".join(f"of the {name} the {n.measure}" for name, n in NETWORKS.items())
FACTOR, UNIT, SOURCES = 1, "examples", ("",)


def label(source: str) -> str:
    """The data's name in the table."""
    return Path(source).name or "the program's own"


def run(
    name: str, source: str, setting: trials.Setting, seed: int, steps: int, batch: int, device: str
) -> trials.Trial:
    """Train one model under one setting. The seed fixes weights and batches, whatever the setting."""
    network, start = NETWORKS[name], time.process_time()
    if source or batch != network.batch:
        raise ValueError("--data, --batch: the rows of this table have their own data and batches")
    found = network.program.train(
        setting.policy, setting.scaler(), seed=seed, steps=steps, device=device, **network.arguments
    )
    score = 100 * (1 - found["accuracy"]) if network.program is cnn else found[found["measure"]]
    common = {f.name: found[f.name] for f in fields(measure.Run)}
    return trials.Trial(**common, score=score, seconds=time.process_time() - start)


def draw(folder: Path, done: dict[Any, trials.Trial]) -> None:
    """formats.png: a panel per network, as each has its own measure: every run, their mean, grey FP32's spread."""
    with trials.figure(folder / "formats.png", 1, len(NETWORKS), (5 * len(NETWORKS), 4.5)) as axes:
        for one, (name, network) in zip(axes.flat, NETWORKS.items()):
            for i, setting in enumerate(SETTINGS):
                scores = [t.score for cell, t in done.items() if (cell.name, cell.setting) == (name, setting)]
                if not scores:
                    continue
                one.plot([i] * len(scores), scores, "o", color=measure.COLORS[0], alpha=0.5)
                one.plot(i, statistics.fmean(scores), "_", color=measure.COLORS[1], markersize=20, markeredgewidth=2)
                if setting == "FP32":
                    one.axhspan(min(scores), max(scores), color="0.9", zorder=0)
            one.set(xticks=range(len(SETTINGS)), title=name, ylabel=network.measure)
            one.set_xticklabels([setting.replace(", ", ",\n") for setting in SETTINGS], fontsize=9)
            one.grid(axis="y", alpha=0.3)
