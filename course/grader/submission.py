"""What a student hands in: a notebook, or a Python file. Only what the exercises need of it is run.

Running all of it would take minutes of training. So the statements that define an exercise are looked up, then those
that define what these use, and so on; the others (pictures, trainings, experiments) are left out.
"""

from __future__ import annotations

import ast
import json
import linecache
import re
import symtable
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from .lesson import Lesson, lessons

MAGIC = re.compile(r"^\s*[%!?].*$", re.MULTILINE)  # lines that IPython understands, not Python


class Unreadable(ValueError):
    """A file is no notebook, or holds no exercise."""


@dataclass(frozen=True)
class Submission:
    """path: the file. cells: (name, source) of its code cells, in order. broken: those that are not Python, and why."""

    path: Path
    cells: tuple[tuple[str, str], ...]
    broken: tuple[str, ...]

    def lesson(self) -> Lesson:
        """The lesson most of whose exercises are defined here. Unreadable if there is none."""
        found = {name for _, tree in self._trees() for node in tree.body for name in _defines(node)}
        best = max(lessons().values(), key=lambda lesson: len(found & set(lesson.exercises)), default=None)
        if best is None or not found & set(best.exercises):
            why = "".join(f"\n  {text}" for text in self.broken)
            raise Unreadable(f"{self.path}: no exercise of any lesson is defined here{why}")
        return best

    def _trees(self) -> Iterator[tuple[str, ast.Module]]:
        for name, source in self.cells:
            yield name, _parsed(source)

    def run(self, names: Iterable[str]) -> dict[str, Any]:
        """What the names stand for, after running the statements that define them and what they use.

        Raises what the student's code raises.
        """
        wanted, needed = set(names), set(names)
        kept: list[tuple[str, list[ast.stmt]]] = []
        for name, tree in reversed(list(self._trees())):
            mine: list[ast.stmt] = []
            for node in reversed(tree.body):
                if _defines(node) & needed:
                    needed |= _uses(node)
                    mine.insert(0, node)
            kept.insert(0, (name, mine))
        for name, source in self.cells:  # so that errors show their lines
            linecache.cache[name] = len(source), None, source.splitlines(True), name
        space: dict[str, Any] = {"__name__": "__main__"}
        for name, mine in kept:
            exec(compile(ast.Module(mine, []), name, "exec"), space)
        return {name: space[name] for name in wanted if name in space}


def read(path: Path) -> Submission:
    """A notebook or a Python file. Unreadable if it is neither."""
    try:
        text = path.read_text(encoding="utf-8")
        sources = [text] if path.suffix == ".py" else list(_code(json.loads(text)))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise Unreadable(f"{path}: expected a notebook (nbformat 4), got something else ({error})") from None
    cells, broken = [], []
    for i, source in enumerate(sources, 1):
        name = f"{path.name}[cell {i}]"
        source = MAGIC.sub("", source)
        try:
            ast.parse(source)
            cells.append((name, source))
        except (SyntaxError, ValueError) as error:  # ValueError: a null byte
            at = f", line {error.lineno}: {(error.text or '').strip()}" if isinstance(error, SyntaxError) else ""
            broken.append(f"{name} is not Python: {getattr(error, 'msg', error)}{at}")
    return Submission(path, tuple(cells), tuple(broken))


@lru_cache(256)  # the same tree, so that what its statements define is found once
def _parsed(source: str) -> ast.Module:
    return ast.parse(source)


def _code(notebook: Any) -> Iterator[str]:
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            yield "".join(cell["source"])


@lru_cache(4096)
def _defines(node: ast.stmt) -> set[str]:
    """The global names that a statement binds."""
    return set(_names(node, lambda symbol: symbol.is_assigned() or symbol.is_imported() or symbol.is_namespace()))


@lru_cache(4096)
def _uses(node: ast.stmt) -> set[str]:
    """The global names that a statement, or a function in it, reads."""
    return set(_names(node, lambda symbol: symbol.is_referenced(), inside=True))


def _names(node: ast.stmt, which: Callable[[symtable.Symbol], bool], inside: bool = False) -> Iterator[str]:
    tables = [symtable.symtable(ast.unparse(node), "student", "exec")]
    while tables:
        table = tables.pop()
        top = table.get_type() == "module"
        yield from (s.get_name() for s in table.get_symbols() if which(s) and (top or s.is_global()))
        tables += table.get_children() if inside else []
