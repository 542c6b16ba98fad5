"""Train an LSTM language model twice, in FP32 and in mixed precision, from the same weights on the same text.

    python -m examples.lstm

It learns to tell the next word of Shakespeare's plays (MPT section 4.5, small). The LSTM's state goes on from step to
step, while gradients end there.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

import tinymp as mp
from tinymp import nn, ops, optim

from . import measure
from .paper import text

VOCABULARY, WIDTH, DROPOUT = 4000, 128, 0.05
COLUMNS, ROWS = 32, 32  # the text is cut into columns, which are read side by side; a step reads so many rows of them


class LanguageModel(nn.Module):
    """Words -> embedding -> two LSTM layers -> a logit per word of the vocabulary, by the embedding's weights."""

    def __init__(self, vocabulary: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, WIDTH)
        self.lstm = nn.LSTM(WIDTH, WIDTH, num_layers=2, dropout=DROPOUT)
        self.dropout = nn.Dropout(DROPOUT)
        self.output = nn.Linear(WIDTH, vocabulary)
        self.output.weight = self.embedding.weight  # one matrix for both (Press and Wolf, 2017)
        nn.init.uniform_(self.embedding.weight, -0.1, 0.1)

    def forward(self, words: mp.Tensor, state: tuple | None = None) -> tuple[mp.Tensor, tuple]:
        """Logits (rows, columns, vocabulary) of the words that follow `words` (rows, columns), and the new state."""
        y, state = self.lstm(self.dropout(self.embedding(words)), state)
        return self.output(self.dropout(y)), state

    def start_with(self, words: np.ndarray) -> None:
        """Begin with the words' frequencies: an LSTM that must learn them first saturates its gates for long."""
        counts = np.bincount(words, minlength=len(self.output.bias)) + 1
        with mp.no_grad():
            self.output.bias.copy_(np.log(counts / counts.sum()).astype(np.float32))


def loss_of(model: LanguageModel, words: Any, following: Any, state: tuple | None) -> tuple[mp.Tensor, tuple]:
    """The mean of -ln p(following word), in FP32, and the state after it."""
    device = model.embedding.weight.device
    logits, state = model(mp.tensor(words).to(device), state)
    return ops.cross_entropy(logits.flatten(0, 1), mp.tensor(following).to(device).flatten()), state


def train(
    policy: mp.Policy,
    scaler: optim.LossScaler,
    *,
    seed: int = 0,
    steps: int = 2000,
    device: str = "cpu",
    lr: float = 6e-3,
    data: str | None = None,
) -> dict[str, Any]:
    """One training; the seed fixes weights and dropout, whatever the policy. data: a file with another text."""
    corpus = text.corpus(data, VOCABULARY)
    words, following = text.columns(corpus.training, COLUMNS, ROWS)
    places = range(0, len(words) - ROWS + 1, ROWS)
    mp.manual_seed(seed)
    model = LanguageModel(len(corpus.vocabulary))
    model.start_with(corpus.training)
    model = policy.cast(model).to(device)  # FP16 copies, FP32 masters
    optimizer = optim.Adam(model.parameters(), lr=lr, betas=(0.9, 0.99))
    schedule = optim.CosineAnnealingLR(optimizer, T_max=steps)
    run, zeros = measure.Run(policy.name), policy.cast(mp.zeros(2, COLUMNS, WIDTH)).to(device)

    @mp.capture  # on a GPU a CUDA graph of the step is replayed; on a CPU this only calls it
    def step(words: mp.Tensor, following: mp.Tensor, h: mp.Tensor, c: mp.Tensor) -> tuple:
        loss, (h, c) = loss_of(model, words, following, (h, c))  # forward in FP16, the loss in FP32
        scaler.scale(loss).backward()  # FP16 gradients, all of them S times as large
        scaler.unscale_(optimizer)  # their own size again, in FP32
        optim.clip_grad_norm_(model.parameters(), 1.0)  # without it an LSTM's gradients explode
        result = scaler.step(optimizer)  # updates the masters and rounds the copies, or skips after an overflow
        scaler.update()  # the next S
        optimizer.zero_grad()
        return loss, result, h.detach(), c.detach()  # gradients end here

    with mp.use(policy), run:
        for i in run.steps(steps, range(steps)):
            if (place := places[i % len(places)]) == 0:
                state = [zeros, zeros]
            rows = slice(place, place + ROWS)
            loss, result, *state = step(*(mp.tensor(x[rows]).to(device) for x in (words, following)), *state)
            schedule.step(result)
            run.note(loss, result)
    with mp.use(policy):
        found = perplexity(model, *text.columns(corpus.held_out, COLUMNS, 1))
    return run.found(scaler, ROWS * COLUMNS, higher_is_better=False, perplexity=found)


def perplexity(model: LanguageModel, words: np.ndarray, following: np.ndarray) -> float:
    """exp of the mean of -ln p(following word) over columns (rows, columns) that are read from top to bottom."""
    model.eval()
    state, total = None, 0.0
    with mp.no_grad():
        for i in range(0, len(words), ROWS):
            loss, state = loss_of(model, words[i : i + ROWS], following[i : i + ROWS], state)
            total += loss.item() * following[i : i + ROWS].size
    return math.exp(min(total / words.size, 700))


def main(arguments: list[str] | None = None) -> dict[str, Any]:
    """Both trainings, a table and a picture."""
    return measure.main(train, __doc__, {"held-out perplexity": "{perplexity:.2f}"}, "words", arguments)


if __name__ == "__main__":
    main()
