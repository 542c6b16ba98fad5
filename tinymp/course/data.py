"""What the lessons train on. Nothing is downloaded: the packages that the extra `course` installs bring it."""

from __future__ import annotations

from functools import cache

import numpy as np

from .. import shipped

Digits = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]


@cache
def digits() -> Digits:
    """(train_x, train_y, test_x, test_y): 4,000 and 1,000 digits of MNIST; float32 (N, 1, 28, 28), labels int64 (N,).

    Normalised to mean 0 and variance 1. ModuleNotFoundError names the package that brings them.
    """
    return shipped.example("datasets").mnist()


@cache
def words() -> str:
    """Some 200,000 characters of English that are there wherever NumPy is: what its functions say of themselves."""
    texts = (getattr(np, name).__doc__ or "" for name in sorted(dir(np)) if callable(getattr(np, name)))
    paragraphs = (" ".join(p.split()) for text in texts for p in text.split("\n\n"))
    prose = [p for p in paragraphs if p[:1].isupper() and p.endswith(".") and p.isascii() and ">>>" not in p]
    return "\n".join(dict.fromkeys(prose))
