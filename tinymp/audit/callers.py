"""Reads the user's program from Python's stack. Nothing else in tinymp reads the variables of frames."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

from .. import events, precision
from ..events import PACKAGE, inside
from ..nn.module import Module

_PRIMITIVES = {precision.__file__, events.__file__}
_CALL = Module.__call__.__code__


def line(frame: FrameType) -> str:
    """File and line: in tinymp the path below it ("ops/dot.py:39"), else the file's name, or of a notebook the cell
    ("In [7]:3").
    """
    name = frame.f_code.co_filename
    if inside(frame):
        return f"{name.removeprefix(PACKAGE)}:{frame.f_lineno}"
    shell = frame.f_globals.get("get_ipython")
    cells = getattr(getattr(shell(), "compile", None), "_filename_map", {}) if callable(shell) else {}
    return f"{f'In [{cells[name]}]' if name in cells else Path(name).name}:{frame.f_lineno}"


def caller(frame: FrameType | None) -> str:
    """The line of the innermost frame that is not tinymp's, from this one outwards; empty where there is none."""
    frame = _outside(frame)
    return "" if frame is None else line(frame)


def function(frame: FrameType | None) -> str:
    """The name of that frame's code in a traceback: "train()", and "<module>" outside of functions."""
    frame = _outside(frame)
    while frame is not None and frame.f_code.co_name.endswith(("comp>", "expr>")):  # a comprehension
        frame = _outside(frame.f_back)
    name = "" if frame is None else frame.f_code.co_name
    return name if name in ("", "<module>") else f"{name}()"


def _outside(frame: FrameType | None) -> FrameType | None:
    while frame is not None and inside(frame):
        frame = frame.f_back
    return frame


def line_of_primitive(frame: FrameType | None) -> str:
    """File and line in tinymp that called a primitive; `frame` is within it. Empty for an op of the user's own."""
    while frame is not None and frame.f_code.co_filename in _PRIMITIVES:
        frame = frame.f_back
    return line(frame) if frame is not None and inside(frame) else ""


def modules(frame: FrameType | None) -> tuple[list[Module], FrameType | None]:
    """The modules whose calls are under way, the innermost first, and the frame that called the outermost."""
    chain, outer = [], None
    while frame is not None:
        if frame.f_code is _CALL:
            chain.append(frame.f_locals["self"])
            outer = frame.f_back
        frame = frame.f_back
    return chain, outer


def made_at(frame: FrameType | None, thing: Any) -> str:
    """The line of the program that makes a thing, from within its constructors, whose first argument is called self."""
    while frame is not None and frame.f_locals.get("self") is thing:
        frame = frame.f_back
    return caller(frame)


def variable(frame: FrameType, thing: Any) -> str | None:
    """A frame's name for a thing: a variable, or an attribute of one."""
    if name := _name_in(frame.f_locals, thing):
        return name
    for name, value in frame.f_locals.items():
        fields = getattr(value, "_fields", None) or getattr(value, "__dict__", None)
        if isinstance(fields, (tuple, dict)) and not isinstance(value, (type, ModuleType, Module)):
            for field in list(fields):
                if isinstance(field, str) and getattr(value, field, None) is thing:
                    return field if name == "self" else f"{name}.{field}"
    return _name_in(frame.f_globals, thing)


def _name_in(names: Mapping[str, Any], thing: Any) -> str | None:
    """The name of a thing; not "_" or "_7", under which notebooks keep results."""
    return next((name for name, value in names.items() if value is thing and name.strip("_0123456789")), None)
