"""What errors and the audit say of the user's program: which line of it runs, of what type a value is."""

from __future__ import annotations

import linecache
import os
import sys
from pathlib import Path
from types import FrameType
from typing import Any

PACKAGE = str(Path(__file__).parent) + os.sep
_files: dict[str, str] = {}  # the paths of the files that `line` has named


def inside(frame: FrameType) -> bool:
    """Whether a frame is tinymp's own."""
    return frame.f_code.co_filename.startswith(PACKAGE)


def stacklevel() -> int:
    """The `stacklevel` with which `warnings.warn`, called where this is, names the line of the user's program."""
    frame: FrameType | None = sys._getframe(1)
    level = 1
    while frame is not None and inside(frame):
        level, frame = level + 1, frame.f_back
    return level


def line(frame: FrameType) -> str:
    """File and line: in tinymp the path below it ("ops/dot.py:39"), else the file's name ("train.py:17"), and of a
    notebook the cell ("In [7]:3").
    """
    name = frame.f_code.co_filename
    if inside(frame):
        return f"{name.removeprefix(PACKAGE)}:{frame.f_lineno}"
    shell = frame.f_globals.get("get_ipython")
    cells = getattr(getattr(shell(), "compile", None), "_filename_map", {}) if callable(shell) else {}
    short = f"In [{cells[name]}]" if name in cells else Path(name).name
    _files[short] = name
    return f"{short}:{frame.f_lineno}"


def source(where: str, around: int = 0) -> list[tuple[int, str]]:
    """The numbered source line that `line` has named, and so many around it; empty where it cannot be read.

    Of two files of one name, the one that was named last.
    """
    name, _, number = where.rpartition(":")
    path = _files.get(name) or PACKAGE + name
    lines = linecache.getlines(path) if number.isdecimal() else []
    at = range(max(int(number) - around, 1), min(int(number) + around, len(lines)) + 1) if lines else ()
    return [(i, lines[i - 1].rstrip()) for i in at]


def caller(frame: FrameType | None) -> str:
    """The line of the innermost frame that is not tinymp's, from this one outwards; empty where there is none."""
    while frame is not None and inside(frame):
        frame = frame.f_back
    return "" if frame is None else line(frame)


def type_name(x: Any) -> str:
    """The type of x for messages, with its module unless it is built in: another library has a Tensor, too."""
    kind = type(x)
    return kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__name__}"
