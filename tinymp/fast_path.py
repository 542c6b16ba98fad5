"""Fast paths: faster implementations of definitions. The core names none of them, and runs without them.

The fast path of `Conv2d.forward` (ops/conv.py) on a CPU is in fast/cpu/conv.py: in a folder for the device, under the
name of the definition's file. That file is loaded when the definition first runs on the device:

    @fast_path(Conv2d.forward)
    def forward(op, x, w, b, *, geometry): ...

A fast path has the definition's arguments, saved arrays and roundings. It returns the definition's result, or
NotImplemented to leave a case to the definition. Under a policy that studies sums only definitions run
(`precision.plain`). Deleting the file deletes the fast path.

The fast paths of a GPU are CUDA kernels, in gpu/. For all other policies and cases definitions run on CuPy's arrays.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, wraps
from importlib import import_module
from inspect import signature, unwrap
from typing import Any, TypeVar

Function = TypeVar("Function", bound=Callable)

FOLDERS = {"cpu": "fast.cpu", "gpu": "gpu"}  # by the names of the devices that have fast paths
enabled = {*FOLDERS}  # the devices whose fast paths run; tests and comparisons may remove one
off: set[str] = set()  # the names of definitions ("forward", "cast") whose fast paths do not run
_found: dict[tuple[Callable, str], Callable] = {}


def fast_path(definition: Callable, where: Callable[[Any], bool] | None = None) -> Callable[[Function], Function]:
    """Make the decorated function the fast path of `definition` on the device that its folder is named after.

    where(op): True for the ops that it takes; for the others the definition runs. TypeError unless it has the
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
    """Let a fast path replace a function or method that is not a phase of an op.

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
def _find(definition: Callable, device: str) -> Callable | None:
    module = f"{__package__}.{FOLDERS[device]}.{definition.__module__.rpartition('.')[2]}"
    try:
        import_module(module)
    except ModuleNotFoundError as error:
        if not module.startswith(error.name or "?"):
            raise  # something that the file itself imports
    return _found.get((definition, module.split(".")[-2]))


def find(definition: Callable, device: str) -> Callable | None:
    """The fast path of a definition on the device of this name, or None."""
    return None if device not in enabled or definition.__name__ in off else _find(definition, device)
