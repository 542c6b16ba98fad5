"""A lesson is one Python file: text, given code, exercises with their solutions, and the checks of the exercises.

Cells begin with a line that Jupytext, VS Code and Spyder know, too:

    # %% [markdown]    text, behind "# "; INSTALL becomes the command that installs a wheel
    # %%               code that the student is given
    # %% exercise      code to fill in. The student sees neither the lines from "# SOLUTION" to "# END" nor, in
                       `answer = 3  # SOLUTION`, the right side
    # %% check         not in the notebook: a function `check_NAME(NAME, random)` per exercise, see checking.py
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from tinymp.backend.extras import from_wheel
from tinymp.lab.shipped import home

from .hide import unsolved

MARK = re.compile(r"# %%(?: \[(markdown)\]| (exercise|check))?\s*")


@dataclass(frozen=True)
class Cell:
    """kind: markdown, code, exercise or check. line: of its first line in the lesson's file."""

    kind: str
    source: str
    line: int


@dataclass(frozen=True)
class Lesson:
    """number: 1 to 10; the capstone is 11. exercises: the names of what the student writes, in order."""

    number: int
    path: Path
    cells: tuple[Cell, ...]

    @property
    def title(self) -> str:
        """The first heading."""
        return self.cells[0].source.splitlines()[0].lstrip("# ")

    @cached_property
    def exercises(self) -> tuple[str, ...]:
        """The names of what the checks look at, in their order."""
        trees = [ast.parse(cell.source) for cell in self.cells if cell.kind == "check"]
        names = [node.name for tree in trees for node in tree.body if isinstance(node, ast.FunctionDef)]
        return tuple(name.removeprefix("check_") for name in names if name.startswith("check_"))

    @cached_property
    def checks(self) -> dict[str, Any]:
        """The lesson's check functions, by the name of their exercise."""
        names: dict[str, Any] = {"__name__": self.path.stem}
        for cell in self.cells:
            if cell.kind == "check":  # with their lines, so that an error in a check can be found
                exec(compile("\n" * (cell.line - 1) + cell.source, str(self.path), "exec"), names)
        return {name: names[f"check_{name}"] for name in self.exercises}

    @property
    def drawn(self) -> str:
        """The text of the notebook for students, as course.generate wrote it."""
        return self.path.with_suffix(".ipynb").read_text(encoding="utf-8")

    def notebook(self, solved: bool = False) -> dict[str, Any]:
        """The notebook of nbformat 4.5, with or without the solutions, without outputs."""
        cells: list[dict[str, Any]] = []
        for cell in self.cells:
            if cell.kind == "check":
                continue
            source = exercise(cell.source, solved) if cell.kind == "exercise" else quiet(cell)
            one: dict[str, Any] = {"id": f"cell-{len(cells) + 1}", "metadata": {}, "source": source.splitlines(True)}
            code = {"cell_type": "code", "execution_count": None} | one | {"outputs": []}
            cells.append({"cell_type": "markdown"} | one if cell.kind == "markdown" else code)
        about = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}
        about["language_info"] = {"name": "python"}
        return {"cells": cells, "metadata": about, "nbformat": 4, "nbformat_minor": 5}


def quiet(cell: Cell) -> str:
    """A cell that draws ends in a semicolon: else the value of its last line would stand above its picture."""
    last = cell.source.rsplit("\n", 1)[-1] if cell.kind == "code" else ""
    draws = re.match(r"(a\.\w+\.draw|\w+(\[\d\]|\.spines\[:\])?\.(set|legend|set_visible))\(", last) or last == ")"
    return cell.source + ";" if draws else cell.source


def exercise(source: str, solved: bool) -> str:
    """A cell of the kind exercise, as it stands in a notebook."""
    if solved:
        return re.sub(r"^ *# (SOLUTION|END)\n?|  # SOLUTION$", "", source, flags=re.MULTILINE)
    return unsolved(source).rstrip("\n")


def parse(path: Path) -> Lesson:
    """Read a lesson's file, whose name begins with its number."""
    cells: list[Cell] = []
    lines = path.read_text(encoding="utf-8").splitlines()
    starts = [i for i, line in enumerate(lines) if MARK.fullmatch(line)]
    for start, end in zip(starts, [*starts[1:], len(lines)]):
        mark = MARK.fullmatch(lines[start])
        kind = (mark and (mark[1] or mark[2])) or "code"
        body = lines[start + 1 : end]
        if kind == "markdown":
            body = [line[2:].replace("INSTALL", from_wheel("course")) for line in body]
        cells.append(Cell(kind, "\n".join(body).strip("\n"), start + 2))
    return Lesson(int(path.stem.split("_")[0]), path, tuple(cells))


@cache
def lessons() -> dict[int, Lesson]:
    """All lessons by their numbers. ModuleNotFoundError where the folder `course` is missing."""
    found = sorted((home("course") / "course").glob("[0-9][0-9]_*.py"))
    return {one.number: one for one in map(parse, found)}


def of(name: str) -> Lesson:
    """The lesson with an exercise of this name. ValueError if there is none."""
    for lesson in lessons().values():
        if name in lesson.exercises:
            return lesson
    raise ValueError(f"check: expected something that an exercise asks for, got {name!r}; see tinymp course")
