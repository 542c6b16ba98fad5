"""Greedy and beam search: the sequences that a model gives the highest probability, token by token.

They know nothing of the model but a function, step(tokens, state) -> (log-probabilities, state): tokens (N,) are the
last ones of N sequences, a NumPy array of int64; the log-probabilities of the next ones are (N, V), and the state is
what the model remembers of the N sequences: Tensors with N rows in their first axis, in tuples, lists or dicts as it
likes. Sequences are dropped and doubled by choosing rows of the state.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from tinymp import backend, ops
from tinymp.arguments import count, function, integers, number
from tinymp.events import type_name
from tinymp.grad_mode import no_grad
from tinymp.ops.more.sampled import smallest
from tinymp.tensor import Tensor, array_of

Step = Callable[[np.ndarray, Any], tuple[Any, Any]]


class Hypothesis(NamedTuple):
    """A sequence that was found.

    tokens           those after the start, without the end token
    log_probability  the sum over these tokens, and over the end token if there was one
    score            the same, divided by the length penalty
    ended            whether it came to the end token, within the greatest length
    """

    tokens: list[int]
    log_probability: float
    score: float
    ended: bool


def beam_search(
    step: Step,
    state: Any,
    start: Sequence[int],
    *,
    end: int,
    max_length: int,
    beam_size: int = 4,
    length_penalty: float = 0.6,
) -> list[list[Hypothesis]]:
    """For each of the B sequences that begin with a token of `start`, the best that were found, best first.

    state: of these B sequences, before the first step. end: the token that ends a sequence. max_length: the most
    tokens after the start, the end token among them. Of each sequence, the beam_size most probable beginnings of one
    length go on; those that end leave the beam, and when beam_size have ended, the search is over. They are ranked by

        score = log p / ((5 + n) / 6)^length_penalty,  n tokens with the end token (Wu et al., 2016, section 7)

    0 ranks by probability, which prefers short sequences. A token whose log-probability is -inf, or not a number, is
    never taken; where no other is left, an empty hypothesis is all there is. Of equal ones, the first is taken. Nothing
    is recorded for backward.

    ValueError for log-probabilities that are not (N, V), and for an `end` that is not in [0, V).
    """
    name = "beam_search"
    max_length, beam_size = count(name, "max_length", max_length), count(name, "beam_size", beam_size)
    (end,), power = integers(name, "end", end, 1, 0), number(name, "length_penalty", length_penalty, -10, 10)
    function(name, "step", step)
    tokens = _starts(name, start)
    live: list[list[tuple[list[int], float]]] = [[([], 0.0)] for _ in tokens]  # of each sequence: tokens, log p
    found: list[list[Hypothesis]] = [[] for _ in tokens]

    def keep(b: int, sequence: list[int], log_p: float, ended: bool) -> None:
        n = len(sequence) + ended
        found[b].append(Hypothesis(sequence, log_p, log_p / ((5 + n) / 6) ** power, ended))

    for _ in range(max_length):
        with no_grad():
            given, state = step(tokens, state)
        log_ps = _host(given)
        if log_ps.ndim != 2 or len(log_ps) != len(tokens) or end >= log_ps.shape[1]:
            raise ValueError(
                f"{name}: expected `step` to give log-probabilities ({len(tokens)}, V) with V > end = {end}, got "
                f"{log_ps.shape}"
            )
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
                    keep(b, sequence, log_p, True)
            following = following[:beam_size] if len(found[b]) < beam_size else []
            live[b] = [beam for _, beam in following]
            parents += [parent for parent, _ in following]
            first = rows.stop
        if not parents:
            break
        tokens = np.array([sequence[-1] for beams in live for sequence, _ in beams])
        state = state if parents == list(range(first)) else _rows(state, np.array(parents))
    for b, beams in enumerate(live):
        for sequence, log_p in beams or ([] if found[b] else [([], -np.inf)]):
            keep(b, sequence, log_p, False)
    return [sorted(hypotheses, key=lambda h: -h.score) for hypotheses in found]


def greedy_search(step: Step, state: Any, start: Sequence[int], *, end: int, max_length: int) -> list[Hypothesis]:
    """For each of the sequences that begin with a token of `start`, the one that takes the most probable token at every
    step. See `beam_search`.
    """
    best = beam_search(step, state, start, end=end, max_length=max_length, beam_size=1, length_penalty=0.0)
    return [hypotheses[0] for hypotheses in best]


def _starts(op: str, start: Any) -> np.ndarray:
    """(B,), the tokens that sequences begin with."""
    tokens = np.asarray(start.numpy() if isinstance(start, Tensor) else array_of(op, start))
    if tokens.ndim != 1 or (tokens.size and tokens.dtype.kind not in "iu"):
        raise TypeError(f"{op}: expected `start` to be a list of integers, got {start!r}")
    return np.asarray(tokens, int)


def _host(log_ps: Any) -> np.ndarray:
    """In float64, which sums of many lose little in; nan is no probability."""
    # rounds: never, to FP64, which is exact
    wide = np.asarray(backend.to_cpu(log_ps.array if isinstance(log_ps, Tensor) else log_ps), float)
    return np.where(np.isnan(wide), -np.inf, wide)


def _largest(values: np.ndarray, n: int) -> list[tuple[int, int]]:
    """The places of the n largest values that are not -inf, largest first, of equal ones the first."""
    flat = values.ravel()
    best = smallest(-flat, n)
    return [divmod(place, values.shape[1]) for place in best[flat[best] > -np.inf].tolist()]


def _rows(state: Any, index: np.ndarray) -> Any:
    """The state of these sequences."""
    if isinstance(state, Tensor):
        return ops.index_select(state, 0, Tensor(index).to(state.device))
    if isinstance(state, dict):
        return {key: _rows(value, index) for key, value in state.items()}
    if isinstance(state, (tuple, list)):
        parts = [_rows(value, index) for value in state]
        return type(state)(*parts) if hasattr(state, "_fields") else type(state)(parts)
    if state is not None and not getattr(state, "shape", ()):
        raise TypeError(f"beam_search: expected `state` of Tensors and arrays, got {type_name(state)}")
    return state if state is None else state[index]
