"""Methods of Module that a program which trains does without: its text, its parts by hand, hints about names."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from difflib import get_close_matches
from functools import lru_cache
from inspect import signature
from typing import Any

from ...arguments import function
from ..module import Module


def add_module(self: Module, name: str, module: Module | None) -> None:
    """Add a sub-module; the same as `self.name = module`, for names known only at run time."""
    self._register(name, module, Module)


def named_children(self: Module) -> Iterator[tuple[str, Module]]:
    """(name, module) for each direct sub-module; shared ones once."""
    seen = set()
    for name, part in vars(self).items():
        if isinstance(part, Module) and id(part) not in seen:
            seen.add(id(part))
            yield name, part


def children(self: Module) -> Iterator[Module]:
    """Its direct sub-modules."""
    return (m for _, m in self.named_children())


def apply(self: Module, fn: Callable[[Module], Any]) -> Module:
    """Call fn(module) on every module in it, parts before wholes, itself last."""
    function("apply", "fn", fn)
    for child in self.children():
        child.apply(fn)
    fn(self)
    return self


def extra_repr(self: Module) -> str:
    """The text between the parentheses in its line of `repr`: of a layer of tinymp its constructor's arguments, but for
    defaults.
    """
    shown = []
    kind = next(cls for cls in type(self).__mro__ if cls.__module__.startswith("tinymp."))
    for name, option in signature(kind).parameters.items():
        value = vars(self).get(name, self)
        if value is None and option.default is True:  # a bias that is not there
            value = False
        usual = option.default, *[(option.default,) * len(value) for _ in "." if isinstance(value, tuple)]
        if name == "bias" and vars(self).get("weight", self) is None:  # nor is a weight, which is said already
            continue
        if isinstance(value, (int, float, str, tuple, type(None))) and value not in usual:
            bare = option.default is option.empty and isinstance(value, int)
            shown.append(str(value) if bare else f"{name}={value!r}")
    return ", ".join(shown)


def _tree(module: Module) -> str:
    weights = ", ".join(f"{name} {p.shape} {p.dtype}" for name, p in module.named_parameters(recurse=False))
    head, lines = f"{type(module).__name__}({module.extra_repr()}", [")" + (f"  {weights}" if weights else "")]
    parts = [(name, part) for name, part in vars(module).items() if isinstance(part, Module)]
    if parts:
        lines = ["", *[f"  ({name}): {_tree(m)}".replace("\n", "\n  ") for name, m in parts], *lines]
    return head + "\n".join(lines)


def text(self: Module) -> str:
    """`repr`: every module and its weights in a line of its own, and their bytes."""
    parameters = list(self.parameters())
    if not parameters:
        return _tree(self)
    n, data, master = (sum(x) for x in zip(*[(p.array.size, p.nbytes, p.master_nbytes) for p in parameters]))
    return f"{_tree(self)}\n{n:,} parameters: {data:,} bytes of weights, {master:,} bytes of masters"


@lru_cache(256)  # hasattr asks often
def _similar(name: str, names: tuple[str, ...]) -> list[str]:
    return get_close_matches(name, names)


def missing(self: Module, name: str) -> Any:
    """The AttributeError for an attribute that is not there, with names that are."""
    owner = type(self).__name__
    if "_persistent" not in vars(self):
        raise AttributeError(f"{owner} has no attribute '{name}' (yet): super().__init__() was not called")
    near = _similar(name, tuple(dir(self)))
    hint = f"; did you mean {', '.join(near)}?" if near else ""
    raise AttributeError(f"{owner} has no attribute '{name}'{hint}")
