"""Beam search: the sequences to which a model gives the highest probability, token by token."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

import tinymp as mp
from tinymp import ops


class Hypothesis(NamedTuple):
    """A sequence that was found.

    tokens           those after the start, without the end token
    log_probability  the sum over these tokens, and over the end token if there was one
    score            the same, divided by the length penalty
    """

    tokens: list[int]
    log_probability: float
    score: float


def beam_search(
    step: Callable[[np.ndarray, Any], tuple[np.ndarray, Any]],
    state: Any,
    start: Sequence[int],
    *,
    end: int,
    max_length: int,
    beam_size: int = 4,
    length_penalty: float = 0.6,
) -> list[list[Hypothesis]]:
    """For each of the sequences that begin with a token of `start`, the best that were found, best first.

    step(tokens, state) -> (log-probabilities, state): tokens (N,) are the last ones of N sequences, int64; the
    log-probabilities of the next ones are an array (N, V), and the state is what the model remembers of the N
    sequences: a named tuple of Tensors with N rows. `state`: before the first step. end: the token that ends a
    sequence. max_length: the most tokens after the start, the end token among them.

    Of each sequence, the beam_size most probable beginnings of one length go on; those that end leave the beam, and
    when beam_size have ended, the search is over. They are ranked by

        score = log p / ((5 + n) / 6)^length_penalty,  n tokens with the end token (Wu et al., 2016, section 7)

    A token whose log-probability is -inf, or not a number, is never taken; where no other is left, an empty hypothesis
    is all there is. Of equal ones, the first is taken.
    """
    tokens = np.asarray(start)
    live: list[list[tuple[list[int], float]]] = [[([], 0.0)] for _ in tokens]  # of each sequence: tokens, log p
    found: list[list[Hypothesis]] = [[] for _ in tokens]

    def keep(b: int, sequence: list[int], log_p: float, n: int) -> None:
        found[b].append(Hypothesis(sequence, log_p, log_p / ((5 + n) / 6) ** length_penalty))

    for _ in range(max_length):
        with mp.no_grad():
            log_ps, state = step(tokens, state)
        log_ps = np.where(np.isnan(log_ps), -np.inf, log_ps)
        parents, first = [], 0
        for b, beams in enumerate(live):
            rows = slice(first, first + len(beams))
            totals = log_ps[rows] + np.array([log_p for _, log_p in beams])[:, None]
            following = []
            # Each beam can end in one way, so among twice as many there are beam_size that go on.
            for rank, (i, token) in enumerate(_largest(totals, 2 * beam_size)):
                sequence, log_p = beams[i][0], float(totals[i, token])
                if token != end:
                    following.append((first + i, ([*sequence, token], log_p)))
                elif rank < beam_size:
                    keep(b, sequence, log_p, len(sequence) + 1)
            following = following[:beam_size] if len(found[b]) < beam_size else []
            live[b] = [beam for _, beam in following]
            parents += [parent for parent, _ in following]
            first = rows.stop
        if not parents:
            break
        tokens = np.array([sequence[-1] for beams in live for sequence, _ in beams])
        state = type(state)(*(ops.index_select(part, 0, mp.tensor(parents).to(part.device)) for part in state))
    for b, beams in enumerate(live):
        for sequence, log_p in beams or ([] if found[b] else [([], -np.inf)]):
            keep(b, sequence, log_p, len(sequence))
    return [sorted(hypotheses, key=lambda h: -h.score) for hypotheses in found]


def _largest(values: np.ndarray, n: int) -> list[tuple[int, int]]:
    """The places of the n largest values that are not -inf, largest first, of equal ones the first."""
    flat = values.ravel()
    best = np.argsort(-flat, kind="stable")[:n].tolist()
    return [divmod(place, values.shape[1]) for place in best if flat[place] > -np.inf]
