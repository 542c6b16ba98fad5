"""Fast paths: quicker ways to do what a definition does. The core names none of them, and runs without.

The fast path of `Conv2d.forward` (ops/conv.py) on a CPU is in fast/cpu/conv.py: in a folder for the device, under the
name of the definition's file. That file is loaded when the definition first runs on the device:

    @fast_path(Conv2d.forward)
    def forward(op, x, w, b, *, geometry): ...

A fast path takes what the definition takes, saves what it saves and rounds where it rounds. It returns the definition's
result, or NotImplemented for a case that it leaves to the definition. Where a policy studies how numbers are summed,
definitions run alone (`precision.plain`). Deleting the file deletes the fast path.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib import import_module
from inspect import signature, unwrap
from typing import TypeVar

Function = TypeVar("Function", bound=Callable)

FOLDERS = {"cpu": "cpu", "gpu": "cuda"}  # in fast/, for the devices that have fast paths
off: set[str] = set()  # names of definitions ("forward", "cast") whose fast paths do not run: for tests and comparisons
_found: dict[tuple[Callable, str], Callable] = {}


def fast_path(definition: Callable) -> Callable[[Function], Function]:
    """Make the decorated function the fast path of `definition` on the device that its folder is named after.

    TypeError unless it has the parameters of the definition.
    """

    definition = unwrap(definition)

    def register(faster: Function) -> Function:
        mine, its = (list(signature(f).parameters)[1:] for f in (faster, definition))
        if mine != its:
            raise TypeError(f"{faster.__module__}.{faster.__name__}: expected the parameters {its}, got {mine}")
        _found[definition, faster.__module__.split(".")[-2]] = faster
        return faster

    return register


@cache
def _find(definition: Callable, device: str) -> Callable | None:
    if device not in FOLDERS:
        return None
    module = f"{__package__}.fast.{FOLDERS[device]}.{definition.__module__.rpartition('.')[2]}"
    try:
        import_module(module)
    except ModuleNotFoundError as error:
        if not module.startswith(error.name or "?"):
            raise  # something that the file itself imports
    return _found.get((definition, FOLDERS[device]))


def find(definition: Callable, device: str) -> Callable | None:
    """The fast path of a definition on the device of this name, or None."""
    return None if definition.__name__ in off else _find(definition, device)
