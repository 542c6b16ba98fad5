"""All submissions in a folder: a table of points, and one of what was wrong.

A submission belongs to the student whose folder it lies in, or whose name its file begins with:
`ada/05_loss_scaling.ipynb`, or `ada_05_loss_scaling.ipynb` as learning platforms hand them out.
"""

from __future__ import annotations

import csv
import io
import os
import re
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from .checking import RIGHT
from .lesson import lessons
from .trial import Verdict, run

KINDS = ".ipynb", ".py"


def submissions(folder: Path) -> list[Path]:
    """The notebooks and Python files in a folder and those below it. FileNotFoundError if there are none."""
    found = sorted(
        path
        for path in folder.rglob("*")
        if path.suffix in KINDS and not any(part.startswith(".") for part in path.relative_to(folder).parts)
    )
    if not found:
        raise FileNotFoundError(f"grade: expected notebooks (*.ipynb) in {folder}, found none")
    return found


def student(path: Path, folder: Path) -> str:
    """Whose submission it is."""
    inside = path.relative_to(folder)
    if len(inside.parts) > 1:
        return inside.parts[0]
    known = "|".join(lesson.path.stem for lesson in lessons().values())
    return re.sub(rf"[_\W]*({known})$", "", inside.stem) or inside.stem


def grade(
    folder: Path, lesson: int | None = None, variants: Sequence[int] = (0,), told: Callable[[Verdict], None] = print
) -> list[tuple[str, Verdict]]:
    """(student, verdict) of each submission in a folder, a process on each core.

    lesson: what all of them are; None: each tells by the exercises it defines. told: hears of each that is judged.
    """

    def one(path: Path) -> tuple[str, Verdict]:
        verdict = run(path, lesson, variants)
        told(verdict)
        return student(path, folder), verdict

    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        return list(pool.map(one, submissions(folder)))


def points(graded: Sequence[tuple[str, Verdict]]) -> str:
    """CSV: a row per student; the exercises that are right per lesson, their sum, and what a teacher should look at.

    Of several submissions for one lesson the best counts.
    """
    numbers = sorted({v.lesson for _, v in graded if v.lesson})
    rows = []
    for name in sorted({name for name, _ in graded}):
        mine = [v for who, v in graded if who == name]
        best = {n: max((v.right for v in mine if v.lesson == n), default=0) for n in numbers}
        look = [f"{v.path.name}: {'; '.join(notes)}" for v in mine if (notes := (*v.patched, *v.problem.splitlines()))]
        rows.append([name, *best.values(), sum(best.values()), " | ".join(look)])
    heads = [f"{lessons()[n].title} (of {len(lessons()[n].exercises)})" for n in numbers]
    return _csv([["student", *heads, "sum", "look at"], *rows])


def details(graded: Sequence[tuple[str, Verdict]]) -> str:
    """CSV: a row per student, submission and exercise."""
    rows = [
        [name, verdict.path.name, verdict.lesson, r.exercise, r.verdict, int(r.verdict == RIGHT), r.message]
        for name, verdict in graded
        for r in verdict.results
    ]
    return _csv([["student", "file", "lesson", "exercise", "verdict", "point", "message"], *rows])


def _csv(rows: Sequence[Sequence[object]]) -> str:
    text = io.StringIO()
    csv.writer(text).writerows([[_plain(cell) for cell in row] for row in rows])
    return text.getvalue()


def _plain(cell: object) -> object:
    """A spreadsheet takes a text that begins so for a formula, and a student writes the names of files."""
    return f"'{cell}" if isinstance(cell, str) and cell[:1] in ("=", "+", "-", "@", "\t") else cell
