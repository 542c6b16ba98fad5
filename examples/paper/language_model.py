"""Train the LSTM language model of lstm.py on batches so large that gradients underflow: MPT figure 5.

python -m examples.paper.language_model
python -m examples.paper.reproduce figure5    with and without loss scaling
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import ClassVar

import tinymp as mp
from tinymp import nn, optim

from .. import lstm
from . import program, text

State = tuple[mp.Tensor, mp.Tensor]
ROWS = 64  # words of a column in a step, through which gradients go back


class LanguageModeling(program.Task):
    """To tell the next word of a text, which is read in columns; perplexities are exp of the mean of -ln p(word).

    The loss is a mean over N words, so each gradient at the logits is p / N, and 0 in FP16 where p < N / 2^25. Here N
    is 8,192 (in the paper 1,024 columns, of some 20 words each).
    """

    name, items = "language_model", "columns"
    measures: ClassVar = {"perplexity": ":.2f"}
    higher = False
    steps, batch, lr, clip = 360, 128, 8e-3, 1.0
    optimizer = staticmethod(partial(optim.Adam, betas=(0.9, 0.99)))

    def __init__(self, batch: int = batch, data: str | None = None) -> None:
        super().__init__(batch, data)
        self.corpus = c = text.corpus(data, lstm.VOCABULARY)
        self.columns = text.columns(c.training, batch, ROWS)
        self.held_out = text.columns(c.held_out, batch, 1)
        self.state: State | None = None
        self.about = (
            f"{c.name}: {len(c.training):,} words to learn from, {len(c.held_out):,} held out, "
            f"{len(c.vocabulary):,} different ones; {batch} x {ROWS} words per step."
        )

    def model(self) -> nn.Module:
        model = lstm.LanguageModel(len(self.corpus.vocabulary))
        model.start_with(self.corpus.training)
        return model

    def batches(self, seed: int) -> Iterator[tuple]:
        """(words, the words that follow, both (ROWS, batch); whether the text starts anew), the same for all seeds."""
        words, following = self.columns
        while True:
            for place in range(0, len(words) - ROWS + 1, ROWS):
                rows = slice(place, place + ROWS)
                yield words[rows], following[rows], place == 0

    def loss(self, model: nn.Module, batch: tuple) -> mp.Tensor:
        words, following, anew = batch
        loss, state = lstm.loss_of(model, words, following, None if anew else self.state)
        self.state = tuple(s.detach() for s in state)  # the next step goes on from here, and gradients end here
        return loss

    def scores(self, model: nn.Module) -> dict[str, float]:
        return {"perplexity": lstm.perplexity(model, *self.held_out)}


train, main = program.of(LanguageModeling, __doc__)


if __name__ == "__main__":
    main()
