"""Train a small GPT that writes characters, in FP32 and in mixed precision, from the same weights on the same text.

    python -m examples.paper.train_gpt
    python -m examples.paper.train_gpt --audit    where FP16 loses in it: docs/attention.md

The step is in `trials.train`.
"""

from __future__ import annotations

import math
import pathlib
from collections.abc import Iterator
from functools import partial
from typing import ClassVar

import numpy as np

import tinymp as mp
from tinymp import nn, ops, optim

from .. import paper
from . import gpt_audit, program, text

LAYERS, WIDTH, HEADS = 4, 128, 4
LENGTH = 128  # characters that are read at once
WRITTEN, TEMPERATURE = 400, 0.8  # characters that each model writes at the end


class Gpt(program.Task):
    """The next character of Shakespeare's plays, or of another text, by a Transformer."""

    name = "train_gpt"
    measures: ClassVar = {"bits per character": ":.2f", "perplexity": ":.2f"}
    higher = False
    items = "windows"
    steps, batch, lr, clip = 1500, 16, 4e-3, 1.0
    optimizer = staticmethod(partial(optim.Adam, betas=(0.9, 0.99)))

    def __init__(self, batch: int = batch, data: str | None = None, audit: bool = False) -> None:
        super().__init__(batch, data)
        self.audit = audit
        self.text = c = text.corpus(data, 10_000, list)
        for part, stream in (("learn from", c.training), ("be judged by", c.held_out)):
            if len(stream) <= LENGTH:
                raise ValueError(f"{c.name}: expected more than {LENGTH} characters to {part}, got {len(stream)}")
        self.about = (
            f"{c.name}: {len(c.training):,} characters to learn from, {len(c.held_out):,} held out, "
            f"{len(c.vocabulary)} different ones."
        )

    def model(self) -> nn.Module:
        return paper.GPT(len(self.text.vocabulary), LENGTH, WIDTH, LAYERS, HEADS, 0.0)

    def batches(self, seed: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        random, window = np.random.default_rng(seed), np.arange(LENGTH + 1)
        while True:
            starts = random.integers(0, len(self.text.training) - LENGTH, self.batch)
            rows = self.text.training[starts[:, None] + window]
            yield rows[:, :-1], rows[:, 1:]

    def loss(self, model: nn.Module, batch: tuple[np.ndarray, np.ndarray]) -> mp.Tensor:
        inputs, targets = (mp.tensor(x).to(model.wte.weight.device) for x in batch)
        return ops.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())

    def scores(self, model: nn.Module) -> dict[str, float]:
        """Scores on the held-out text; each character is predicted from at least half a window of earlier ones."""
        stream, total, n = self.text.held_out, 0.0, 0
        new = (LENGTH + 1) // 2  # characters of a window that the one before has not predicted
        starts = np.arange(0, len(stream) - LENGTH, new)
        for some in np.array_split(starts, -(-len(starts) // self.batch)):
            rows = mp.tensor(stream[some[:, None] + np.arange(LENGTH + 1)]).to(model.wte.weight.device)
            logits, targets = model(rows[:, :-1])[:, -new:], rows[:, -new:]
            total += ops.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum").item()
            n += targets.array.size
        return {"bits per character": total / n / math.log(2), "perplexity": math.exp(total / n)}

    def show(self, folder: pathlib.Path, trained: dict[str, tuple[mp.Policy, nn.Module]]) -> str:
        """A text from each model, and the audit of the last model."""
        words = self.text.vocabulary.words
        start = mp.tensor(self.text.vocabulary.encode(["\n"])[None])
        said = []
        for label, (policy, model) in trained.items():
            device = model.wte.weight.device
            with mp.use(policy):
                written = model.generate(start.to(device), WRITTEN, TEMPERATURE)
            lines = "".join(words[i] for i in written.cpu().numpy()[0])
            said.append(f"{label} writes:\n\n{lines.strip()}")
        if self.audit:
            said.append(gpt_audit.audited(self, model, device, folder))
        return "\n\n".join(said)


audit = {"action": "store_true", "help": "audit a step of the last model, and draw audit.png"}
train, main = program.of(Gpt, __doc__, audit=audit)


if __name__ == "__main__":
    main()
