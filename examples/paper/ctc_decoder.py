"""From the log-probabilities of a network trained with `ctc_loss` to labels: greedily, or by a search over prefixes.

Both work on NumPy, in FP32 (in FP64 for FP64), one sequence after the other.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from tinymp import backend
from tinymp.arguments import function, integers
from tinymp.ops.more.ctc import require_blank, sequence_lengths
from tinymp.precision import widen
from tinymp.tensor import Tensor, array_of


class Transcript(NamedTuple):
    """What a decoder found.

    labels  classes, without blanks and repetitions
    score   ln of its probability; with a language model, times the weights of its labels
    """

    labels: tuple[int, ...]
    score: float


LanguageModel = Callable[[tuple[int, ...]], Any]


def ctc_greedy(log_probs: Any, lengths: Any = None, blank: int = 0) -> list[Transcript]:
    """For each sequence the labels of its most probable alignment: the best class of every frame, repetitions merged,
    blanks dropped. The score is that of this one alignment.

    log_probs: (T, N, C), or (T, C) for one sequence, a Tensor or array. lengths: N integers in [0, T], by default T.
    Raises as `ctc_beam_search`.
    """
    found = []
    for x in _sequences("ctc_greedy", log_probs, lengths, blank):
        best = x.argmax(1)
        first = np.flatnonzero(np.diff(best, prepend=-1))  # frames in which another class begins
        labels = tuple(c for c in best[first].tolist() if c != blank)
        found.append(Transcript(labels, sum(x.max(1).tolist())))
    return found


def ctc_beam_search(
    log_probs: Any,
    lengths: Any = None,
    blank: int = 0,
    beam_width: int = 16,
    language_model: LanguageModel | None = None,
) -> list[list[Transcript]]:
    """For each sequence up to beam_width labellings, the most probable first: the sum of all alignments counts.

    After every frame the beam_width best prefixes are kept (Hannun et al., 2014; prefix search: Graves et al., 2006,
    section 3.2). Of each, alignments that end with a blank and those that end with a label are counted apart, for
    only after a blank the same label can come once more. With a beam that is never full the result is exact. Labellings
    of probability 0 are left out.

    language_model(prefix) gives ln of the weights of what may follow a prefix (a tuple of classes): (C,), for each
    label its own, at the blank that of ending there. They are multiplied in once for each label, however long it lasts.
    (A model of words gives 0 within a word, and alpha ln P(word) + beta where a space or the end completes it.)

    log_probs, lengths: as of `ctc_greedy`. TypeError or ValueError for log_probs of another shape, those that are nan,
    lengths outside [0, T], a blank that is no class, a beam_width below 1, and weights that are not (C,).
    """
    op = "ctc_beam_search"
    (width,) = integers(op, "beam_width", beam_width, 1, 1)
    if language_model is not None:
        function(op, "language_model", language_model)
    return [_search(x, blank, width, language_model) for x in _sequences(op, log_probs, lengths, blank)]


def _search(x: np.ndarray, blank: int, width: int, language_model: LanguageModel | None) -> list[Transcript]:
    """The best labellings of x (frames, C).

    Of each prefix, `ends` is ln of the alignments that end with a blank, `lasts` of those that end with its last label.
    """

    def weights_after(prefix: tuple[int, ...]) -> np.ndarray:
        return nothing if language_model is None else _weights(language_model(prefix), nothing)

    nothing = np.zeros(x.shape[1], x.dtype)
    prefixes: list[tuple[int, ...]] = [()]
    weights = [weights_after(())]
    ends, lasts = nothing[:1], nothing[:1] - np.inf
    for y in x:
        each, last = np.arange(len(prefixes)), np.array([p[-1] if p else blank for p in prefixes])
        both = np.logaddexp(ends, lasts)
        following = y + np.stack(weights)
        longer = both[:, None] + following  # than each prefix, by each label
        longer[each, last] = ends + following[each, last]
        longer[:, blank] = -np.inf
        ends, lasts = both + y[blank], lasts + y[last]
        places = {p: i for i, p in enumerate(prefixes)}
        for j, p in enumerate(prefixes):
            if p and (i := places.get(p[:-1])) is not None:  # p is also reached from there: one entry for both
                lasts[j] = np.logaddexp(lasts[j], longer[i, p[-1]])
                longer[i, p[-1]] = -np.inf
        scores = np.concatenate([np.logaddexp(ends, lasts), longer.reshape(-1)])
        best = np.argsort(-scores, kind="stable")[:width]
        stay, go = best[best < len(each)], best[best >= len(each)] - len(each)
        go = go[longer.reshape(-1)[go] > -np.inf]
        new = [(*prefixes[i], c) for i, c in zip((go // len(y)).tolist(), (go % len(y)).tolist())]
        weights = [*(weights[i] for i in stay), *map(weights_after, new)]
        prefixes = [*(prefixes[i] for i in stay), *new]
        ends = np.concatenate([ends[stay], np.full(len(new), -np.inf, x.dtype)])
        lasts = np.concatenate([lasts[stay], longer.reshape(-1)[go]])
    scores = np.logaddexp(ends, lasts) + np.stack(weights)[:, blank]
    order = np.argsort(-scores, kind="stable").tolist()
    return [Transcript(prefixes[i], scores[i].item()) for i in order if scores[i] > -np.inf]


def _weights(given: Any, like: np.ndarray) -> np.ndarray:
    """What a language model gave, as an array (C,) like that of a frame."""
    weights = np.asarray(given, like.dtype)  # rounds: what a language model gave, to the dtype of a frame
    if weights.shape != like.shape or np.isnan(weights).any():
        raise ValueError(
            f"ctc_beam_search: expected language_model(prefix) to be {like.shape}, ln of a weight for each class, got "
            f"{'nan' if weights.shape == like.shape else f'shape {weights.shape}'}"
        )
    return weights


def _sequences(op: str, log_probs: Any, lengths: Any, blank: Any) -> list[np.ndarray]:
    """Each sequence of log_probs (frames, C), without what lies beyond its length."""
    x = widen(backend.to_cpu(array_of(op, log_probs.array if isinstance(log_probs, Tensor) else log_probs)))
    if x.dtype.kind != "f":
        raise TypeError(f"{op}: expected `log_probs` to be floating, got {x.dtype}")
    if x.ndim not in (2, 3) or not x.shape[-1]:
        raise ValueError(f"{op}: expected `log_probs` to be (T, N, C), or (T, C) without a batch, got {x.shape}")
    require_blank(op, blank, x.shape[-1])
    batch = x if x.ndim == 3 else x[:, None]
    frames, n, _ = batch.shape
    given = [frames] * n if lengths is None else lengths
    counts = backend.to_cpu(sequence_lengths(op, "lengths", given, batch, frames, "the frames of `log_probs`"))
    for i, count in enumerate(counts.tolist()):
        for t in np.flatnonzero(np.isnan(batch[:count, i]).any(1))[:1]:
            raise ValueError(f"{op}: expected no nan among `log_probs`, got one in frame {t} of sequence {i}")
    return [batch[:count, i] for i, count in enumerate(counts.tolist())]
