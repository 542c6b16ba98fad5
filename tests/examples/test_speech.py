"""The speech program on a few synthesised utterances: what it prints, draws, learns and refuses."""

import json
from argparse import Namespace

import numpy as np
import pytest
from scipy.io import wavfile

import tinymp as mp
from examples import paper
from examples.paper import speech, utterances
from examples.paper.speech import Speech
from examples.paper.utterances import BANDS, Corpus, Utterance
from tinymp import nn

pytestmark = pytest.mark.cpu

OTHERS = {"steps": None, "lr": None, "loss_scale": None}
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
    monkeypatch.setattr(speech, "read", lambda folder, language: corpus)
    monkeypatch.setattr(speech, "SCALE", paper.Scale(width=1 / 320, depth=1 / 3))
    monkeypatch.setattr(speech, "WARP", 0.01)
    return corpus


def task(**options):
    return Speech(Namespace(**{"data": None, "language": "english", "alphabet": None, "batch": 4} | OTHERS | options))


def test_it_learns_and_reports(corpus, tmp_path, capsys):
    arguments = ["--device", "cpu", "--steps", "25", "--batch", "4", "--lr", "0.2", "--out", str(tmp_path)]
    runs = speech.main(arguments)
    printed = capsys.readouterr().out
    for row in ("held-out CER", "CER with beam search", "held-out WER", "frames per second", "CER of the nearest utt"):
        assert row in printed
    assert "Chirps: 8 utterances to learn from, 0 minutes, 4 held out, 3 characters." in printed
    for run in runs.values():
        assert run.score == run.scores["CER"] < 0.2
        assert run.curve[-1] < 0.3 * run.curve[0]
    assert "said   ab  (voice 8)" in printed
    assert "mixed  " in printed
    assert (tmp_path / "alignment.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    assert json.loads((tmp_path / "report.json").read_text())["settings"]["baselines"]["the nearest utterance"] < 1


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
    assert work.size(batch) == lengths.sum()
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
        assert len(work.heard(model, corpus.held_out, beam=2)) == len(corpus.held_out)


def test_a_model_that_has_diverged_hears_nothing(corpus, tmp_path):
    work = task()
    model = work.model()
    with mp.no_grad(), mp.use(mp.FP32):
        nn.init.constant_(model.output.bias, np.nan)
        assert work.scores(model.eval()) == {"CER": 1, "CER with beam search": 1, "WER": 1}
    assert "said  ab  (voice 8)" in work.show(tmp_path, {"fp32": (mp.FP32, model)})


def test_rates():
    said, heard = ["one two", "three"], ["one too", "thre"]
    assert speech.rates(said, heard) == pytest.approx((2 / 12, 2 / 3))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"alphabet": "abc"}, r"voice 2: expected characters of the alphabet 'abc', got ' ' in 'ba b'"),
        ({"batch": 9}, "--batch: expected at most 8, the utterances, got 9"),
    ],
)
def test_what_it_refuses(corpus, options, message):
    with pytest.raises(ValueError, match=message):
        task(**options)


def test_a_text_too_long_for_its_sound(corpus):
    frames = corpus.training[0].frames
    corpus.training[0] = Utterance(frames[:7], "abbb", "a.wav, texts.txt, line 7")  # 4 frames come out
    with pytest.raises(ValueError, match=r"a\.wav, texts\.txt, line 7: CTC takes 6 frames for 'abbb', .* come 4"):
        task()


def test_recordings(tmp_path, monkeypatch, capsys):
    """A folder of recordings; errors of it end the program with their message."""
    monkeypatch.setattr(speech, "SCALE", paper.Scale(width=1 / 320, depth=1 / 3))
    sound = np.random.default_rng(0).normal(0, 1000, 8000).astype(np.int16)
    for i in range(10):
        wavfile.write(tmp_path / f"{i}.wav", utterances.RATE, sound)
    (tmp_path / "texts.txt").write_text("".join(f"{i}: word {i % 3}\n" for i in range(10)))
    out = ["--device", "cpu", "--steps", "2", "--batch", "4", "--out", str(tmp_path / "out")]
    speech.main(["--data", str(tmp_path), *out])
    assert "9 utterances to learn from, 0 minutes, 1 held out, 8 characters." in capsys.readouterr().out
    (tmp_path / "3.wav").write_bytes(b"no sound")
    speech.read.cache_clear()
    with pytest.raises(SystemExit):
        speech.main(["--data", str(tmp_path), *out])
    assert "3.wav: expected a WAV file that SciPy reads" in capsys.readouterr().err


def test_what_is_missing_is_said_before_anything_is_heard(monkeypatch):
    monkeypatch.setattr(speech.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ModuleNotFoundError, match=r'need the package jiwer: pip install -e "\.\[speech'):
        task()
