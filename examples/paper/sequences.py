"""MPT's results with sequences as tables for examples/paper/reproduce.py: each row is a task with some options."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import tinymp as mp

from .. import measure
from . import language_model, program, speech, translation, trials


class Row(NamedTuple):
    """Options of the task, what the paper reports under each setting, as a number or in words, and the steps."""

    options: dict[str, Any]
    paper: dict[str, float | str]
    steps: int


@dataclass(frozen=True)
class Results:
    """A table of the runs of one task; `reproduce` asks of it what it asks of the module table1. data: what the task
    reads if nothing is said.
    """

    name: str
    TITLE: str
    task: type[program.Task]
    data: str
    NETWORKS: dict[str, Row]
    SETTINGS: dict[str, trials.Setting]
    BATCH: int
    SOURCES: tuple[str, ...] = ("",)

    @property
    def UNIT(self) -> str:
        return self.task.items

    @property
    def FACTOR(self) -> int:
        """By which a score is multiplied to be printed."""
        return 100 if self.MEASURE.endswith("%") else 1

    @property
    def MEASURE(self) -> str:
        name, form = next(iter(self.task.measures.items()))
        return f"Held-out {name}, %" if form.endswith("%") else f"Held-out {name}"

    def label(self, source: str) -> str:
        """Its name in the table."""
        return Path(source).name or self.data

    def run(
        self, name: str, source: str, setting: trials.Setting, seed: int, steps: int, batch: int, device: str
    ) -> trials.Trial:
        """Train one model under one setting. The seed fixes weights and batches, whatever the setting."""
        task = self.task(batch, source or None, **self.NETWORKS[name].options)
        how = {"seed": seed, "steps": steps, "device": device, "lr": task.lr}
        return program.run(task, setting.policy, setting.scaler(), **how)[0]

    def draw(self, folder: Path, done: dict[Any, trials.Trial]) -> None:
        """The paper's kind of picture, for each row of the table: losses in training, and the gradients that are 0."""
        rows = list(dict.fromkeys((cell.name, cell.source) for cell in done))
        with trials.figure(folder / f"{self.name}.png", len(rows), 2, (14, 5 * len(rows))) as axes:
            for (left, right), (name, source) in zip(axes, rows):
                for setting, color in zip(self.SETTINGS, measure.COLORS):
                    mine = [t for c, t in done.items() if (c.name, c.source, c.setting) == (name, source, setting)]
                    if not mine:
                        continue
                    mean = self.FACTOR * statistics.fmean(t.score for t in mine)
                    measure.draw_curve(left, mine[0].curve, f"{setting}: {self.MEASURE} {mean:.2f}", color=color)
                    for other in mine[1:]:
                        measure.draw_curve(left, other.curve, "", color=color, linestyle=":")
                    steps, shares = zip(*mine[0].zero_shares)
                    zeros = statistics.fmean(t.zeros for t in mine)
                    right.plot(steps, [100 * s for s in shares], color=color, label=f"{setting}: mean {zeros:.1%}")
                left.set(xlabel="step", ylabel="training loss", title=f"{name}, {self.label(source)}")
                right.set(xlabel="step", ylabel="gradient values that are 0, %", ylim=(0, None))
                for one in (left, right):
                    one.legend(fontsize=9, frameon=False)


FIGURE4 = Results(
    "figure4",
    "MPT figure 4: translators of LSTMs with attention, with and without loss scaling.",
    translation.Translation,
    "verses",
    {
        f"NMT, {layers} layers": Row(
            {"layers": layers},
            {"FP32": "reference", "mixed, not scaled": "slightly worse", "mixed, dynamic scale": "as FP32"},
            translation.Translation.steps,
        )
        for layers in (3, 5)
    },
    # a 64th: gradients as small as those of a batch 64 times as large, whose loss is a mean over as many more words
    trials.settings("none", f"{1 / 64}", "dynamic"),
    BATCH=translation.Translation.batch,
)
FIGURE5 = Results(
    "figure5",
    "MPT figure 5: a language model of LSTMs, with and without loss scaling.",
    language_model.LanguageModeling,
    "Shakespeare's plays",
    {
        "LSTM, 2 layers": Row(
            {},
            {"FP32": "reference", "mixed, not scaled": "diverges", "mixed, scaled by 128": "as FP32"},
            language_model.LanguageModeling.steps,
        )
    },
    trials.settings("none", "128", "dynamic"),
    BATCH=language_model.LanguageModeling.batch,
)

NO_MASTER = "mixed, dynamic scale, FP16 weights alone"
TABLE3 = Results(
    "table3",
    "MPT table 3: Deep Speech 2 for two languages; and figure 2a, what it is without FP32 master weights.",
    speech.Speech,
    "eSpeak NG's voices",
    {  # sections 4.3, which tells of no loss scale, and 3.1
        "English": Row({"language": "english"}, {"FP32": 2.20, "mixed, not scaled": 1.99}, speech.Speech.steps),
        "Mandarin": Row(
            {"language": "mandarin"},
            {"FP32": 15.82, "mixed, not scaled": 15.01, NO_MASTER: "80 % less accurate"},
            1000,
        ),
    },
    {**trials.settings("none", "dynamic"), NO_MASTER: trials.Setting(mp.NO_MASTER, "dynamic")},
    BATCH=speech.Speech.batch,
)
