"""Judges exercises.

A lesson's `check_NAME(NAME, random)` gets the student's answer and a random generator, and raises `Wrong` with a text
that helps. It draws its cases from the generator: a student sees one draw, hidden tests make others.
`expect` and `close` are how a check says what is wrong.
"""

from __future__ import annotations

import linecache
import traceback
import warnings
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from tinymp.dtypes import FLOATING
from tinymp.tensor import Tensor

from .hide import EMPTY
from .lesson import of

RIGHT, WRONG, MISSING = "right", "wrong", "empty"


class Wrong(Exception):
    """An exercise is not solved; the text says what was expected, what came, and what to think of."""


@dataclass(frozen=True)
class Result:
    """verdict: right, wrong or empty (not written yet). message: the hint, "" where it is right."""

    exercise: str
    verdict: str
    message: str = ""

    def __str__(self) -> str:
        return f"{self.verdict}: {self.exercise}" + (f"\n  {self.message}" if self.message else "")


def expect(condition: Any, message: str) -> None:
    """Raise Wrong with this message unless the condition holds."""
    if not condition:
        raise Wrong(message)


def close(
    got: Any, want: Any, what: str, rtol: float = 1e-6, atol: float = 0.0, hint: str = "", dtype: Any = None
) -> None:
    """Raise Wrong unless `got` has `want`'s shape and values within atol + rtol |want|, and `dtype` if one is given.

    NaN equals NaN, and infinities those of their sign. what: the call in the student's words, `scaled(x, 8)`.
    """
    hint = f" {hint}" if hint else ""
    try:
        have = np.asarray(got.numpy() if isinstance(got, Tensor) else got)
    except ValueError:  # lists of different lengths
        have = np.asarray(None)
    if have.dtype.kind not in "biuf" and have.dtype not in FLOATING:
        raise Wrong(f"{what} is {type(got).__name__} {got!r:.60}, expected numbers.{hint}")
    wanted = np.asarray(want)
    if have.shape != wanted.shape:
        raise Wrong(f"{what} has shape {have.shape}, expected {wanted.shape}.{hint}")
    if dtype is not None and have.dtype != dtype:
        raise Wrong(f"{what} is {have.dtype}, expected {np.dtype(dtype)}.{hint}")
    with np.errstate(all="ignore"):
        # rounds: never, an answer is compared in FP64
        good = np.isclose(np.asarray(have, float), np.asarray(wanted, float), rtol, atol, equal_nan=True)
    if not good.all():
        where = np.argwhere(~good)[0]
        place = f"{what}[{', '.join(map(str, where))}]" if have.ndim else what
        more = f" ({np.count_nonzero(~good)} of {good.size} numbers are wrong)" if good.size > 1 else ""
        raise Wrong(f"{place} is {have[tuple(where)]}, expected {wanted[tuple(where)]}{more}.{hint}")


def short(x: Any) -> str:
    """A number or a small array, as one would type it."""
    text = np.array2string(np.asarray(x), separator=", ", precision=6, threshold=8, edgeitems=3)
    return " ".join(text.split())


def judge(name: str, thing: Any, variant: int = 0) -> Result:
    """Judge a student's answer to the exercise `name`. variant: which cases are drawn; students see those of 0."""
    if thing is Ellipsis:
        return Result(name, MISSING, "not written yet")
    random = np.random.default_rng([variant, zlib.crc32(name.encode())])
    try:
        with np.errstate(all="ignore"), warnings.catch_warnings():  # a division by 0 is for the check to find
            warnings.simplefilter("ignore")
            of(name).checks[name](thing, random)
    except Wrong as wrong:
        return Result(name, WRONG, str(wrong))
    except RecursionError as error:
        return Result(name, WRONG, f"your code calls itself without end ({error})")
    except Exception as error:
        if isinstance(error, NotImplementedError) and str(error) == EMPTY:
            return Result(name, MISSING, "not written yet")
        return Result(name, WRONG, raised(error))
    return Result(name, RIGHT)


def raised(error: BaseException) -> str:
    """An error of the student's code in a line or two, with the last of the student's lines that led to it."""
    text = f"your code raises {type(error).__name__}: {error}"
    called = traceback.extract_tb(error.__traceback__)
    if frames := [f for f in called if f.filename.startswith("<ipython") or "ipykernel" in f.filename]:
        line = linecache.getline(frames[-1].filename, frames[-1].lineno or 0).strip()
        text += f"\n  in {frames[-1].name}, line {frames[-1].lineno}: {line}"
    return text


def hold(name: str, answers: Mapping[str, Any], variant: int) -> None:
    """Raise Wrong unless the answer of this name is right: Otter's tests call it."""
    expect(name in answers, f"{name} is not defined")
    expect((result := judge(name, answers[name], variant)).verdict == RIGHT, result.message)


def check(*things: Any, **answers: Any) -> None:
    """Print whether functions or classes of the student's, or answers by their names, are right, and if not, why.

        check(lost)                 a function or class: the exercise of its name
        check(stall=stall)          a number or another value

    ValueError for what no exercise asks for; TypeError for a value without its name.
    """
    for thing in things:
        if not hasattr(thing, "__name__"):
            raise TypeError(f"check: expected a function, a class, or name=value; got {type(thing).__name__} {thing!r}")
    for name, thing in ({thing.__name__: thing for thing in things} | answers).items():
        of(name)
        print(judge(name, thing))
