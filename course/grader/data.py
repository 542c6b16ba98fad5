"""Data of the lessons. Nothing is downloaded: it comes with the packages of the extra `course`."""

import re
from functools import cache

import numpy as np

from tinymp.lab import shipped

NOT_PROSE = re.compile(r">>>|---|===|::|\\|__|^ *\.\. ", re.MULTILINE)
MARKS = re.compile(r"(?::\w+:)?[`*]+~?([^`*]*)[`*]+")  # `x`, *x*, :ref:`x`


@cache
def digits() -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """(train_x, train_y, test_x, test_y): 4,000 and 1,000 digits of MNIST; float32 (N, 1, 28, 28), labels int64 (N,).

    Normalised to mean 0 and variance 1. ModuleNotFoundError names the package that brings them.
    """
    return shipped.example("datasets").mnist()


@cache
def words() -> str:
    """Some 200,000 characters of English that are there wherever NumPy is: what its functions say of themselves.

    A paragraph per line, each once; without code, tables, formulas and the marks of reStructuredText. The text is that
    of the NumPy that is installed: versions differ by some sentences.
    """
    owners = (np, np.linalg, np.fft, np.random, np.ma, np.ndarray, np.random.Generator, np.polynomial.Polynomial)
    things = (getattr(owner, name) for owner in owners for name in sorted(dir(owner)))
    paragraphs = (p for thing in things if callable(thing) for p in (thing.__doc__ or "").split("\n\n"))
    lines = (MARKS.sub(r"\1", " ".join(p.split())) for p in paragraphs if not NOT_PROSE.search(p))
    return "\n".join(dict.fromkeys(p for p in lines if p[:1].isupper() and p.endswith(".") and p.isascii()))
