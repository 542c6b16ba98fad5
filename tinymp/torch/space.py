"""Modules of the face find their names in a table, at their first use (PEP 562)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from ..arguments import no_attribute
from ..backend.extras import held
from ..tensor import Tensor
from . import different


def fill(
    module: dict[str, Any], title: str, table: dict[str, str], parts: str = "", changed: Callable = lambda found: found
) -> None:
    """Have the module with these globals find the names of `table`, which gives each its place below tinymp
    ("ops.relu"), as `changed` makes of them, and the modules `parts` below it. `title`: PyTorch's name of the module.
    """
    here, root = module["__name__"], __package__.partition(".")[0]
    module.setdefault("__path__", [])  # imports ask `different` for the modules that PyTorch has inside this one
    below = {name for name in parts.split() if find_spec(f"{here}.{name}") is not None}
    inside = different.INSIDE.get(title.removeprefix("torch."), "").split()

    def __getattr__(name: str) -> Any:
        if name in below or name in inside:
            return import_module(f"{here}.{name}")
        if name == "__all__":
            of = {name: getattr(x, "__module__", None) or type(x).__module__ for name, x in module.items()}
            return [*table, *below, *(n for n, x in of.items() if x.startswith((root, "numpy")) and x != __name__)]
        if name not in table:
            if (path := f"{title}.{name}".partition(".")[2]) in different.PRESENT or different.reason(path):
                return different.absent(path)
            raise no_attribute(f"{title} has no attribute '{name}' in tinymp; {different.MISSING}")
        owner, _, last = table[name].rpartition(".")
        made = last[-1] == "_" and owner == "ops"  # relu_, which writes what relu gives
        module[name] = found = changing(last[:-1]) if made else changed(getattr(import_module(f"{root}.{owner}"), last))
        return found

    def __dir__() -> list[str]:
        return sorted({*module, *table, *below})

    module.update(__getattr__=__getattr__, __dir__=__dir__)


def changing(name: str) -> Any:
    """The function of this name that changes its input in place: `torch.relu_`."""

    def function(input: Tensor, *args: Any, **options: Any) -> Tensor:
        return held("ops.more.in_place.change")(input, f"{name}_", held(f"ops.{name}"), *args, **options)

    function.__name__, function.__doc__ = f"{name}_", f"`{name}`, in place."
    return function


def names(owner: str, listed: str | Iterable[str]) -> dict[str, str]:
    """A table of the names listed, all in one module below tinymp."""
    return {name: f"{owner}.{name}" for name in (listed.split() if isinstance(listed, str) else listed)}
