"""Train the LSTM language model of lstm.py on batches so large that gradients underflow: MPT figure 5.

python -m examples.paper.language_model
python -m examples.paper.reproduce figure5    with and without loss scaling
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, ClassVar

import tinymp as mp
from tinymp import nn, optim

from .. import lstm
from . import program, text
from .sampled_softmax import SampledSoftmax

State = tuple[mp.Tensor, mp.Tensor]
ROWS = 64  # words of a column in a step, through which gradients go back


class LanguageModeling(program.Task):
    """To tell the next word of a text, which is read in columns; perplexities are exp of the mean of -ln p(word).

    The loss is a mean over N words, so each gradient at the logits is p / N, and 0 in FP16 where p < N / 2^25. Here N
    is 8,192 (in the paper 1,024 columns, of some 20 words each).
    """

    name, unit, items = "language_model", "words", "columns"
    measures: ClassVar = {"perplexity": ":.2f"}
    higher = False
    steps, batch, lr, clip = 360, 128, 8e-3, 1.0

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

    def optimizer(self, parameters: Iterable, lr: float) -> optim.Optimizer:
        return optim.Adam(parameters, lr, betas=(0.9, 0.99))

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

    def size(self, batch: tuple) -> int:
        return batch[0].size

    def scores(self, model: nn.Module) -> dict[str, float]:
        return {"perplexity": lstm.perplexity(model, *self.held_out)}


class BigLSTM(nn.Module):
    """The model of MPT section 4.5, which Jozefowicz et al. (2016) call LSTM-8192-1024: 1,776,948,095 parameters.

    A sampled softmax of `negatives` classes has weights of its own; embedding and softmax have gradients of few rows.
    The paper trains it with Adagrad, on 1,024 columns of text and a loss scale of 128.
    """

    def __init__(
        self,
        vocabulary: int = 793_471,
        width: int = 1024,
        cells: int = 8192,
        negatives: int = 8192,
        num_layers: int = 2,
        dropout: float = 0.1,
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width, sparse=True)
        self.lstm = nn.LSTM(width, cells, num_layers, dropout=dropout, proj_size=width)
        self.dropout = nn.Dropout(dropout)
        self.output = SampledSoftmax(width, vocabulary, negatives)
        nn.init.uniform_(self.embedding.weight, -0.1, 0.1)

    def forward(self, words: mp.Tensor, following: mp.Tensor, state: State | None = None) -> tuple[mp.Tensor, State]:
        """The mean of -ln p(following word), FP32, in training of the sampled softmax, and the state after it; words
        and following: (T, B).
        """
        y, state = self.lstm(self.dropout(self.embedding(words)), state)
        return self.output(self.dropout(y), following), state


train = program.trainer(LanguageModeling)


def main(arguments: list[str] | None = None) -> dict[str, Any]:
    """Both trainings, a table and a picture."""
    return program.main(LanguageModeling, __doc__, arguments)


if __name__ == "__main__":
    main()
