"""Train a translator, Portuguese to Spanish, in FP32 and in mixed precision, from the same weights and sentences.

    python -m examples.paper.translation
    python -m examples.paper.reproduce figure4    with and without loss scaling

The model is that of MPT section 4.4, small: LSTM layers on either side, with attention (paper/nmt.py). The
sentences are short verses; the two languages are so near that ten thousand of them teach a deep network. A sentence
that is held out shares neither its Portuguese nor its Spanish with one that was learned from.
"""

from __future__ import annotations

import importlib.util
import math
import pathlib
from collections.abc import Iterator
from functools import partial
from typing import Any, ClassVar, NamedTuple

import numpy as np

import tinymp as mp
from tinymp import data, nn, optim
from tinymp.backend.extras import hint

from .. import paper
from ..measure import positive
from . import program, trials, verses
from .buckets import BucketBatchSampler

VOCABULARY, LONGEST = 3000, 7  # words of each language, and of a sentence at most
HIDDEN, DROPOUT, SMOOTHING = 256, 0.1, 0.1  # cells of a layer; of the labels
BEAM = 4  # hypotheses that a search keeps
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

    name, items = "translation", "sentences"
    own_data = True
    measures: ClassVar = {"BLEU": ":.2f", "perplexity": ":.2f"}
    higher = True
    steps, batch, lr, clip = 800, 64, 3e-3, 1.0
    optimizer = staticmethod(partial(optim.Adam, betas=(0.9, 0.98)))

    def __init__(self, batch: int = batch, data: str | None = None, layers: int = 2) -> None:
        super().__init__(batch, data)
        self.layers = layers
        self.corpus = c = verses.corpus(VOCABULARY, LONGEST)
        self.training = [self.numbered(pair) for pair in c.training]
        self.held_out = [self.numbered(pair) for pair in c.held_out]
        if importlib.util.find_spec("sacrebleu") is None:
            raise ModuleNotFoundError(f"BLEU needs the package sacrebleu: {hint('translation')}")
        if batch > len(c.training):
            raise ValueError(f"--batch {batch} is more than the {len(c.training)} pairs that there are to learn from")
        self.about = (
            f"{c.name}: {len(c.training):,} pairs to learn from, {len(c.held_out):,} held out; vocabularies of "
            f"{len(c.source):,} and {len(c.target):,}; {layers} layers."
        )

    def numbered(self, pair: verses.Pair) -> tuple[np.ndarray, np.ndarray]:
        """A pair for the model."""
        return self.corpus.source.encode(pair[0]), verses.between(self.corpus.target, pair[1])

    def model(self) -> nn.Module:
        sizes = len(self.corpus.source), len(self.corpus.target)
        model = paper.NMT(*sizes, HIDDEN, self.layers, DROPOUT)
        # Start with the words' frequencies, which need not be learned then.
        counts = np.bincount(np.concatenate([target[1:] for _, target in self.training]), minlength=sizes[1]) + 1
        with mp.no_grad():
            model.output.bias.copy_(np.log(counts / counts.sum()).astype(np.float32))
        return model

    def batches(self, seed: int) -> Iterator[Batch]:
        sampler = BucketBatchSampler(lengths_of(self.training), self.batch, np.random.default_rng(seed), True)
        loader = data.DataLoader(self.training, batch_sampler=sampler, collate_fn=batch_of, prefetch=2)
        while True:
            yield from loader

    def loss(self, model: nn.Module, batch: Batch) -> mp.Tensor:
        source, target = (mp.tensor(words).to(model.output.weight.device) for words in (batch.source, batch.target))
        return model.loss(source, batch.lengths, target, SMOOTHING if model.training else 0.0)

    def scores(self, model: nn.Module) -> dict[str, float]:
        """sacreBLEU's (Post, 2018), of texts in lower case; perplexity per word of the translations, with </s>; words
        out of the vocabulary count as one word.
        """
        import sacrebleu

        total = words = 0.0
        for batch, _ in self.in_order():
            n = np.count_nonzero(batch.target[1:])
            total += self.loss(model, batch).item() * n
            words += n
        found = [verses.joined(translation) for translation, _ in self.translations(model)]
        bleu = sacrebleu.corpus_bleu(found, [[verses.joined(target) for _, target in self.corpus.held_out]]).score
        return {"BLEU": bleu, "perplexity": math.exp(min(total / words, 50))}

    def in_order(self) -> Iterator[tuple[Batch, np.ndarray]]:
        """The held-out pairs in batches of similar length, and their numbers."""
        for places in BucketBatchSampler(lengths_of(self.held_out), AT_ONCE):
            yield batch_of([self.held_out[i] for i in places]), places

    def translations(self, model: nn.Module, only: int | None = None) -> list[tuple[list[str], np.ndarray]]:
        """Translations of all held-out sentences (or the first `only`): their words, and each word's attention weights
        on the source. <unk> is replaced by the source word with the largest weight (Luong et al., 2015,
        section 4.1).
        """
        device, found = model.output.weight.device, {}
        batches = self.in_order() if only is None else [(batch_of(self.held_out[:only]), np.arange(only))]
        for batch, places in batches:
            state = model.encode(mp.tensor(batch.source).to(device), batch.lengths)
            start, longest = [verses.START] * len(places), int(LONGER * len(batch.source)) + 10
            how = {"end": verses.END, "max_length": longest, "beam_size": BEAM}
            best = paper.beam_search(possible(model), state, start, **how)
            numbers = [hypotheses[0].tokens for hypotheses in best]
            read = data.pad_sequence([np.array([verses.START, *tokens]) for tokens in numbers])
            attention = model.decode(read.to(device), state)[2].float().numpy()  # B, T, S
            for i, tokens, weights, n in zip(places, numbers, attention, batch.lengths):
                weights, source = weights[: len(tokens), :n], self.corpus.held_out[i][0]
                words = [self.corpus.target.words[token] for token in tokens]
                for place in np.flatnonzero(np.equal(tokens, verses.UNKNOWN)):
                    words[place] = source[weights[place].argmax()]
                found[int(i)] = words, weights
        return [found[i] for i in sorted(found)]

    def show(self, folder: pathlib.Path, models: dict[str, tuple[mp.Policy, nn.Module]]) -> str:
        found, shown = {}, min(SHOWN, len(self.held_out))
        for label, (policy, model) in models.items():
            with mp.no_grad(), mp.use(policy):
                found[label] = self.translations(model, shown)
        sources = [source for source, _ in self.corpus.held_out[:shown]]
        drawn = sorted(range(shown), key=lambda i: -len(sources[i]))[:DRAWN]  # the longest
        some = {label: [translations[i] for i in drawn] for label, translations in found.items()}
        draw_attention(folder / "attention.png", some, [sources[i] for i in drawn])
        width = max(map(len, ["reference", *found]))
        lines = []
        for i, (source, target) in enumerate(self.corpus.held_out[:shown]):
            said = {"": source, "reference": target, **{label: found[label][i][0] for label in found}}
            lines += [f"{label:<{width}}  {verses.joined(words)}" for label, words in said.items()] + [""]
        return "\n".join([*lines, f"wrote {folder / 'attention.png'}"])


def possible(model: nn.Module) -> Any:
    """The model's step, in which nothing begins or pads a sentence."""

    def step(words: np.ndarray, state: Any) -> tuple[np.ndarray, Any]:
        log_p, state = model.step(words, state)
        log_p = log_p.copy()
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


layers = {"type": positive, "default": 2, "help": "of encoder and decoder each (2)"}
train, main = program.of(Translation, __doc__, layers=layers)


if __name__ == "__main__":
    main()
