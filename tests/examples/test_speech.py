"""The speech program on a few made-up utterances: what it prints, draws and learns."""

import json

import numpy as np
import pytest

from examples import paper
from examples.paper import speech
from examples.paper.utterances import BANDS, Corpus, Utterance

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


@pytest.mark.usefixtures("undrawn")
def test_it_learns_and_reports(corpus, tmp_path, capsys):
    pytest.importorskip("jiwer")  # without it the program ends, and says what to install
    runs = speech.main([*["--device", "cpu", "--steps", "25", "--batch", "4", "--lr", "0.2", "--out"], str(tmp_path)])
    printed = capsys.readouterr().out
    for row in ("held-out CER", "held-out WER", "utterances per second", "said   ab  (voice 8)", "mixed  "):
        assert row in printed
    assert "Chirps: 8 utterances to learn from, 0 minutes, 4 held out, 3 characters." in printed
    for run in runs.values():
        assert run["score"] == run["held-out CER"] < 0.2
    assert (tmp_path / "alignment.png").exists()
    assert json.loads((tmp_path / "report.json").read_text())["settings"]["language"] == "english"
