"""The speech program on a few synthesised utterances: what it prints, draws, learns and refuses."""

import json

import numpy as np
import pytest

import tinymp as mp
from examples import paper
from examples.paper import speech
from examples.paper.speech import Speech
from examples.paper.utterances import BANDS, Corpus, Utterance
from tinymp import nn

pytestmark = pytest.mark.cpu

WORDS = ["ab", "aab", "ba b", "bba"]


def chirp(text, seed):
    """An utterance in which each character is 8 frames of noise in a band of its own."""
    noise = np.random.default_rng(seed).normal(0, 0.3, (8 * len(text), BANDS))
    for i, c in enumerate(text):
        noise[8 * i : 8 * i + 6, 10 + 20 * " ab".index(c) :][:, :10] += 3
    return Utterance(noise.astype(np.float32), text, f"voice {seed}")


@pytest.fixture
def corpus(monkeypatch):
    some = [chirp(WORDS[i % 4], i) for i in range(12)]
    corpus = Corpus("Chirps", some[:8], some[8:], " ab")
    monkeypatch.setattr(speech, "read", lambda language: corpus)
    monkeypatch.setattr(speech, "SCALE", paper.Scale(width=1 / 320, depth=1 / 3))
    monkeypatch.setattr(speech, "WARP", 0.01)
    return corpus


def task(**options):
    return Speech(**{"batch": 4} | options)


def test_it_learns_and_reports(corpus, tmp_path, capsys):
    pytest.importorskip("jiwer")  # without it the program ends, and says what to install
    arguments = ["--device", "cpu", "--steps", "25", "--batch", "4", "--lr", "0.2", "--out", str(tmp_path)]
    runs = speech.main(arguments)
    printed = capsys.readouterr().out
    for row in ("held-out CER", "held-out WER", "utterances per second"):
        assert row in printed
    assert "Chirps: 8 utterances to learn from, 0 minutes, 4 held out, 3 characters." in printed
    for run in runs.values():
        assert run["score"] == run["held-out CER"] < 0.2
        assert run["curve"][-1] < 0.3 * run["curve"][0]
    assert "said   ab  (voice 8)" in printed
    assert "mixed  " in printed
    assert (tmp_path / "alignment.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    assert json.loads((tmp_path / "report.json").read_text())["settings"]["language"] == "english"


def test_batches(corpus):
    work = task()
    batches = work.batches(3)
    frames, lengths, targets, target_lengths = batch = next(batches)
    assert frames.shape == (4, lengths.max(), BANDS)
    assert targets.shape == (4, target_lengths.max())
    for row, n, target, m in zip(*batch):
        assert n == 8 * m
        assert row[:n].any()
        assert not row[n:].any()
        assert (target[:m] > 0).all()
        assert not target[m:].any()
    again = next(work.batches(3))
    assert all(np.array_equal(a, b) for a, b in zip(batch, again))
    seen = np.concatenate([lengths, next(batches).lengths])
    assert sorted(seen) == sorted(len(one.frames) for one in corpus.training)  # each once


def test_heard_in_any_order(corpus):
    """Batches are sorted by length; what comes back is not."""
    work = task()
    mp.manual_seed(0)
    model = work.model()
    with mp.no_grad(), mp.use(mp.FP32):
        model(mp.tensor(work.together(corpus.training).frames), [len(one.frames) for one in corpus.training])
        model.eval()
        together = work.heard(model, corpus.held_out)
        assert together == [work.heard(model, [one])[0] for one in corpus.held_out]


def test_a_model_that_has_diverged_hears_nothing(corpus, tmp_path):
    work = task()
    model = work.model()
    with mp.no_grad(), mp.use(mp.FP32):
        nn.init.constant_(model.output.bias, np.nan)
        assert work.scores(model.eval()) == {"CER": 1, "WER": 1}
    assert "said  ab  (voice 8)" in work.show(tmp_path, {"fp32": (mp.FP32, model)})


def test_what_is_heard(corpus):
    """Repetitions are merged, blanks are dropped; what lies beyond the length is not heard."""
    classes = [[0, 2, 2, 0, 2, 3, 1], [3, 3, 1, 1, 2, 2, 2]]
    logits = mp.tensor(np.eye(4, dtype="float32")[classes])

    class Model:
        def parameters(self):
            return iter([mp.tensor([0.0])])

        def __call__(self, frames, lengths):
            return logits, np.array([7, 4])

    assert task().heard(Model(), corpus.held_out[:2]) == ["aab ", "b "]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"data": "somewhere"}, "--data somewhere: speech has data of its own"),
        ({"batch": 9}, "--batch: expected at most 8, the utterances, got 9"),
    ],
)
def test_what_it_refuses(corpus, options, message):
    with pytest.raises(ValueError, match=message):
        task(**options)


def test_what_is_missing_is_said_before_anything_is_heard(monkeypatch):
    monkeypatch.setattr(speech.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ModuleNotFoundError, match=r'need the package jiwer: pip install -e "\.\[speech'):
        task()
