"""Train Deep Speech 2, small, in FP32 and in mixed precision: from spectrograms to characters by CTC (MPT section 4.3).

    python -m examples.paper.speech
    python -m examples.paper.speech --language mandarin

eSpeak NG speaks; the voices and sentences that are held out are none of those to learn from.
"""

from __future__ import annotations

import functools
import importlib.util
import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import ClassVar, NamedTuple

import numpy as np

import tinymp as mp
from tinymp import data, nn, ops, optim
from tinymp.backend.extras import hint

from .. import measure, paper
from . import program, trials, utterances
from .buckets import BucketBatchSampler
from .utterances import Utterance, warped

TRAINING, HELD_OUT = 2000, 200  # utterances that eSpeak speaks
SCALE, CONTEXT = paper.Scale(width=1 / 20), 20  # 8 channels and 128 cells; the row convolution looks 0.4 s ahead
WARP = 0.15  # ln of the most by which frequencies are stretched in training
BUCKET = 20  # frames: utterances that differ by less are equally long to the batches
SHOWN = 10  # utterances in what is printed


class Batch(NamedTuple):
    """Utterances side by side. frames: (B, T, bands), 0 beyond `lengths`; targets: (B, S), classes; target_lengths."""

    frames: np.ndarray
    lengths: np.ndarray
    targets: np.ndarray
    target_lengths: np.ndarray


class Speech(program.Task):
    """Characters from spectrograms. Mandarin is written without spaces: a word of its WER is a whole sentence.

    English is trained by SGD, as in Deep Speech 2. With it, small synthesised Mandarin hardly learns in 2,500 steps
    (CER 40 %). With Adam it does, and with every seed when the first epoch begins with the shortest utterances (Deep
    Speech 2, section 3.3, "SortaGrad").
    """

    name, items, higher = "speech", "utterances", False
    own_data = True
    measures: ClassVar = {"CER": ":.2%", "WER": ":.2%"}
    steps, batch, lr, clip = 2500, 16, 0.25, 2.0  # 20 epochs, as in the paper
    optimizer = staticmethod(functools.partial(optim.SGD, momentum=0.9, nesterov=True))

    def __init__(self, batch: int = batch, data: str | None = None, language: str = "english") -> None:
        super().__init__(batch, data)
        self.short_first = language == "mandarin"
        if self.short_first:
            self.optimizer, self.lr = functools.partial(optim.Adam, betas=(0.9, 0.98)), 2e-3  # type: ignore[assignment]
        if importlib.util.find_spec("jiwer") is None:
            raise ModuleNotFoundError(f"error rates need the package jiwer: {hint('speech')}", name="jiwer")
        corpus = read(language)
        self.alphabet, self.training, self.held_out = corpus.alphabet, corpus.training, corpus.held_out
        if batch > len(self.training):
            raise ValueError(f"--batch: expected at most {len(self.training)}, the utterances, got {batch}")
        seconds = sum(len(one.frames) for one in self.training) * utterances.STEP
        self.about = (
            f"{corpus.name}: {len(self.training):,} utterances to learn from, {seconds / 60:.0f} minutes, "
            f"{len(self.held_out):,} held out, {len(self.alphabet)} characters."
        )

    def model(self) -> nn.Module:
        return paper.DeepSpeech2(len(self.alphabet) + 1, bands=utterances.BANDS, context=CONTEXT, scale=SCALE)

    def batches(self, seed: int) -> Iterator[Batch]:
        random = np.random.default_rng(seed)
        lengths = np.array([len(one.frames) for one in self.training])
        sampler = BucketBatchSampler(lengths // BUCKET, self.batch, random, drop_last=True)
        first = [BucketBatchSampler(lengths, self.batch, drop_last=True)] if self.short_first else []
        for rows in itertools.chain.from_iterable(itertools.chain(first, itertools.repeat(sampler))):
            some = [self.training[i] for i in rows]
            factors = np.exp(random.uniform(-WARP, WARP, len(some)))
            yield self.together([one._replace(frames=warped(one.frames, f)) for one, f in zip(some, factors)])

    def together(self, some: Sequence[Utterance]) -> Batch:
        """A batch of utterances."""
        parts: list[np.ndarray] = []
        for rows in [one.frames for one in some], [encoded(one.text, self.alphabet) for one in some]:
            parts += [data.pad_sequence(rows, batch_first=True).numpy(), np.array([*map(len, rows)])]
        return Batch(*parts)

    def log_probs(self, model: nn.Module, batch: Batch) -> tuple[mp.Tensor, np.ndarray]:
        """ln p of each class in each frame that comes out, (T', B, classes), FP32, and how many frames they are."""
        device = next(model.parameters()).device
        frames = mp.current_policy().cast(mp.tensor(batch.frames)).to(device)
        logits, lengths = model(frames, batch.lengths)
        return ops.log_softmax(logits.float(), 2).transpose(0, 1), lengths

    def loss(self, model: nn.Module, batch: Batch) -> mp.Tensor:
        log_probs, lengths = self.log_probs(model, batch)
        return ops.ctc_loss(log_probs, batch.targets, lengths, batch.target_lengths)

    def heard(self, model: nn.Module, some: Sequence[Utterance]) -> list[str]:
        """The text of each utterance: the best class of every frame, repetitions merged, blanks dropped."""
        found = {}
        for rows in np.array_split(np.argsort([len(one.frames) for one in some]), -(-len(some) // 32)):
            log_probs, lengths = self.log_probs(model, self.together([some[i] for i in rows]))
            for i, best, length in zip(rows, log_probs.numpy().argmax(2).T, lengths):
                first = np.flatnonzero(np.diff(best[:length], prepend=0))  # frames in which another class begins
                found[i] = "".join(self.alphabet[c - 1] for c in best[first] if c)
        return [found[i] for i in range(len(some))]

    def scores(self, model: nn.Module) -> dict[str, float]:
        """Character and word error rate: insertions, deletions and substitutions, of all characters or words said."""
        import jiwer

        said, heard = [one.text for one in self.held_out], self.heard(model, self.held_out)
        return {"CER": jiwer.cer(said, heard), "WER": jiwer.wer(said, heard)}

    def show(self, folder: Path, shown: dict[str, tuple[mp.Policy, nn.Module]]) -> str:
        some = self.held_out[:SHOWN]
        longest = max(some, key=lambda one: len(one.frames))
        heard, seen = {}, {}
        for label, (policy, model) in shown.items():
            with mp.no_grad(), mp.use(policy):
                heard[label] = self.heard(model, some)
                seen[label] = self.log_probs(model, self.together([longest]))[0].numpy()[:, 0]
        draw(folder / "alignment.png", longest, seen, self.alphabet)
        width = max(map(len, ("said", *heard)))
        lines = [f"wrote {folder / 'alignment.png'}", f"the first {len(some)} that were held out:"]
        for i, one in enumerate(some):
            said = [f"  {'said':{width}}  {one.text}  ({one.source})"]
            lines += ["", *said, *(f"  {label:{width}}  {texts[i]}" for label, texts in heard.items())]
        return "\n".join(lines)


@functools.cache
def read(language: str) -> utterances.Corpus:
    """Synthesised speech, once for all runs."""
    return utterances.synthesised(language, TRAINING, HELD_OUT)


def encoded(text: str, alphabet: str) -> np.ndarray:
    """The classes of its characters: 0 is CTC's blank."""
    return np.array([alphabet.index(c) + 1 for c in text])


def draw(path: Path, one: Utterance, seen: dict[str, np.ndarray], alphabet: str) -> None:
    """An utterance's spectrogram with the characters where each model heard them, and their probabilities.

    seen: ln p of the classes, (frames, classes), by the models' labels.
    """
    with trials.figure(path, 2, len(seen), (9 * len(seen), 7)) as axes:

        def written(text: str) -> str:  # fonts may lack others
            return "".join(c if c.isascii() else f"[{ord(c):x}]" for c in text)

        seconds, top = len(one.frames) * utterances.STEP, utterances.RATE / 2000
        for (upper, lower), (label, log_probs), color in zip(axes.T, seen.items(), measure.COLORS):
            upper.imshow(one.frames.T, origin="lower", aspect="auto", cmap="Greys", extent=(0, seconds, 0, top))
            best, p = log_probs.argmax(1), np.exp(log_probs)
            at = (np.arange(len(p)) + 0.5) * seconds / len(p)
            lower.plot(at, p[:, 0], color="0.6", linestyle=":", label="blank")
            for c in sorted({*best.tolist()} - {0}):
                lower.plot(at, p[:, c], color=color)
            for i in np.flatnonzero((best > 0) & (best != np.r_[0, best[:-1]])):
                character = written(alphabet[best[i] - 1]).replace(" ", "␣")
                upper.axvline(at[i], color=color, linewidth=0.8, alpha=0.7)
                upper.text(at[i], 1.02 * top, character, color=color, ha="center")
                lower.text(at[i], p[i, best[i]] + 0.02, character, color=color, ha="center")
            upper.set(xlabel="seconds", ylabel="kHz")
            upper.set_title(f"{label}: “{written(one.text)}”, {Path(one.source).name}", pad=22)
            lower.set(xlabel="seconds", ylabel="probability", xlim=(0, seconds), ylim=(0, 1.1))
            lower.legend(frameon=False)


language = {"choices": utterances.LANGUAGES, "default": "english", "help": "that eSpeak speaks"}
train, main = program.of(Speech, __doc__, language=language)


if __name__ == "__main__":
    main()
