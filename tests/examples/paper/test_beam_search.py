"""Greedy and beam search: exact where the beam holds everything, PyTorch-free and by hand elsewhere."""

import itertools
from typing import NamedTuple

import numpy as np
import pytest

import tinymp as mp
from examples.paper import Hypothesis, beam_search
from oracle import rng

END, SIZE = 3, 5
pytestmark = pytest.mark.cpu  # searching is the host's work; test_nmt.py searches on either device


class State(NamedTuple):
    """What the model remembers of each sequence; or nothing."""

    which: mp.Tensor
    prefixes: mp.Tensor


def table(seed, sentences=1, size=SIZE, sharpness=2.0):
    """log p of the next token after each of the prefixes, for each sentence: a model that remembers everything."""
    scores, known = rng(seed), {}

    def log_p(b, prefix):
        if (b, prefix) not in known:
            z = scores.standard_normal(size) * sharpness
            known[b, prefix] = z - np.log(np.exp(z).sum())
        return known[b, prefix]

    def step(tokens, state):
        b, prefixes = state
        assert len(b) == len(prefixes) == len(tokens)
        prefixes = mp.tensor(np.concatenate([prefixes.numpy(), tokens[:, None]], 1))
        return np.array([log_p(i, tuple(p)) for i, p in zip(b.tolist(), prefixes.tolist())]), State(b, prefixes)

    return log_p, step, State(mp.tensor(np.arange(sentences)), mp.zeros(sentences, 0))


def every(log_p, b, start, max_length, penalty):
    """All sequences, the best first, by their definition."""
    found, others = [], [t for t in range(SIZE) if t != END]
    for n in range(max_length + 1):
        for tokens in itertools.product(others, repeat=n):
            whole = tokens if n == max_length else (*tokens, END)
            p = sum(log_p(b, (start, *tokens[:i]))[t] for i, t in enumerate(whole))
            found.append(Hypothesis(list(tokens), p, p / ((5 + len(whole)) / 6) ** penalty))
    return sorted(found, key=lambda h: -h.score)


def test_a_beam_as_wide_as_everything_is_exact():
    log_p, step, state = table(0, sentences=2)
    found = beam_search(step, state, [1, 2], end=END, max_length=3, beam_size=SIZE**3, length_penalty=0.6)
    for b, (hypotheses, start) in enumerate(zip(found, (1, 2))):
        expected = every(log_p, b, start, 3, 0.6)
        assert len(hypotheses) == len(expected) == 1 + 4 + 16 + 64
        for h, e in zip(hypotheses, expected):
            assert h.tokens == e.tokens
            assert h[1:3] == pytest.approx(e[1:3], rel=1e-12)


def test_a_wider_beam_finds_what_greedy_misses():
    """The best first token leads nowhere: 0.4 * 1 is more than 0.6 * 0.5."""
    after = {0: [0, 0.6, 0.4, 0], 1: [0.25, 0.25, 0, 0.5], 2: [0, 0, 0, 1]}

    def step(tokens, state):
        with np.errstate(divide="ignore"):
            return np.log([after[t] for t in tokens.tolist()]), state

    assert beam_search(step, (), [0], end=END, max_length=4, beam_size=1)[0][0].tokens == [1]
    best, second = beam_search(step, (), [0], end=END, max_length=4, beam_size=2)[0]
    assert (best.tokens, second.tokens) == ([2], [1])
    assert np.exp(best.log_probability) == pytest.approx(0.4)
    assert best.score == pytest.approx(np.log(0.4) / (7 / 6) ** 0.6)
