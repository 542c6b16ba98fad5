"""Fast paths: quicker ways to do what a definition does. The core names none of them, and runs without.

The fast path of `Conv2d.forward` (ops/conv.py) on a CPU is in fast/cpu/conv.py: in a folder for the device, under the
name of the definition's file. That file is loaded when the definition first runs on the device:

    @fast_path(Conv2d.forward)
    def forward(op, x, w, b, *, geometry): ...

A fast path takes what the definition takes, saves what it saves and rounds where it rounds. It returns the definition's
result, or NotImplemented for a case that it leaves to the definition. Where a policy studies how numbers are summed,
definitions run alone (`precision.plain`). Deleting the file deletes the fast path.

On a GPU the next to be asked is the base, ops/base.py and optim/base.py: the few kernels that train unless
`enable_fast("cuda")` puts those of fast/cuda in front of them.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache, wraps
from importlib import import_module
from inspect import signature, unwrap
from typing import Any, TypeVar

Function = TypeVar("Function", bound=Callable)

FOLDERS = {"cpu": "cpu", "gpu": "cuda"}  # in fast/, for the devices that have fast paths
BASE = {"gpu"}  # devices with a base: ops/base.py for the definitions in ops, optim/base.py for those in optim
enabled = {"cpu", *os.environ.get("TINYMP_FAST", "").split(",")} & {*FOLDERS.values()}
off: set[str] = set()  # names of definitions ("forward", "cast") whose fast paths do not run: for tests and comparisons
_found: dict[tuple[Callable, str], Callable] = {}


def enable_fast(folder: str, on: bool = True) -> None:
    """Use the fast paths of "cuda" or "cpu", or no longer (on=False).

    Those of the CPU are used from the start; those of CUDA are not until a GPU has shown what each gains (docs/gpu.md).
    The environment variable TINYMP_FAST=cuda does the same. ValueError for another name.
    """
    if folder not in FOLDERS.values():
        raise ValueError(f"enable_fast: expected 'cuda' or 'cpu', got {folder!r}")
    (enabled.add if on else enabled.discard)(folder)


def fast_path(definition: Callable, where: Callable[[Any], bool] | None = None) -> Callable[[Function], Function]:
    """Make the decorated function the fast path of `definition` on the device that its folder is named after.

    where: which ops (the first argument) it is for; the others it leaves to the definition. TypeError unless it has the
    parameters of the definition.
    """

    definition = unwrap(definition)

    def register(faster: Function) -> Function:
        mine, its = (list(signature(f).parameters)[1:] for f in (faster, definition))
        if mine != its:
            raise TypeError(f"{faster.__module__}.{faster.__name__}: expected the parameters {its}, got {mine}")

        @wraps(faster)
        def able(op: Any, *args: Any, **options: Any) -> Any:
            return faster(op, *args, **options) if where is None or where(op) else NotImplemented

        _found[definition, faster.__module__.split(".")[-2]] = faster if where is None else able
        return faster

    return register


def replaceable(device_of: Callable[[Any], str]) -> Callable[[Function], Function]:
    """For a function or method that is no phase of an op: a fast path may stand in for it, too.

    device_of: the name of the device, from the first argument.
    """

    def decorate(definition: Function) -> Function:
        @wraps(definition)
        def function(*args: Any, **options: Any) -> Any:
            faster = find(definition, device_of(args[0]))
            y = NotImplemented if faster is None else faster(*args, **options)
            return definition(*args, **options) if y is NotImplemented else y

        return function  # type: ignore[return-value]

    return decorate


@cache
def _load(definition: Callable, module: str) -> Callable | None:
    try:
        import_module(f"{__package__}.{module}")
    except ModuleNotFoundError as error:
        if not f"{__package__}.{module}".startswith(error.name or "?"):
            raise  # something that the file itself imports
    return _found.get((definition, module.split(".")[-2]))


@cache
def _find(definition: Callable, device: str, fast: bool) -> Callable | None:
    modules = [f"fast.{FOLDERS[device]}.{definition.__module__.rpartition('.')[2]}"] if fast else []
    modules += [f"{folder}.base" for folder in definition.__module__.split(".")[1:2] if device in BASE]
    ways = [way for module in modules if (way := _load(definition, module)) is not None]
    if len(ways) < 2:
        return ways[0] if ways else None

    def first_that_can(*args: Any, **options: Any) -> Any:
        y = ways[0](*args, **options)
        return ways[1](*args, **options) if y is NotImplemented else y

    return first_that_can


def find(definition: Callable, device: str) -> Callable | None:
    """The fast path of a definition on the device of this name, or None."""
    return None if definition.__name__ in off else _find(definition, device, FOLDERS.get(device) in enabled)
