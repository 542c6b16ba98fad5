"""Modules that hold other modules."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from .module import Module

if TYPE_CHECKING:
    from typing_extensions import Self


class ModuleList(Module):
    """A list of modules, whose parameters count as its own. Indexing, slicing, `append`, `extend`, `len`.

    TypeError for an item that is not a Module.
    """

    def __init__(self, modules: Iterable[Module] | None = None) -> None:
        super().__init__()
        self.extend(modules or ())

    def append(self, module: Module) -> Self:
        """Add a module at the end, under the next free number."""
        if not isinstance(module, Module):
            raise TypeError(
                f"{type(self).__name__}: expected a Module at place {len(self)}, got {type(module).__name__}"
            )
        self.add_module(str(len(self)), module)
        return self

    def extend(self, modules: Iterable[Module]) -> Self:
        """Append each of `modules`."""
        try:
            each = iter(modules)
        except TypeError:  # also of a tensor or array without axes
            raise TypeError(f"{type(self).__name__}: expected several modules, got {type(modules).__name__}") from None
        for module in each:
            self.append(module)
        return self

    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, slice):
            return type(self)(self._items()[index])
        return self._items()[self._place(index)]

    def __setitem__(self, index: int, module: Module) -> None:
        setattr(self, list(self._own(Module))[self._place(index)], module)

    def __len__(self) -> int:
        return len(self._own(Module))

    def __iter__(self) -> Iterator[Module]:
        return iter(self._items())

    def _items(self) -> list[Module]:
        return list(self._own(Module).values())

    def _place(self, index: int) -> int:
        n = len(self)
        if not -n <= index < n:
            raise IndexError(f"{type(self).__name__}: expected an index in [{-n}, {n - 1}], got {index}")
        return index


class Sequential(ModuleList):
    """Modules that run one after the other: Sequential(a, b)(x) is b(a(x)).

    Sequential(a, b, ...) or Sequential(OrderedDict(name=a, ...)), whose names become attributes. A slice is a
    Sequential of the same modules under the same names.
    """

    def __init__(self, *args: Any) -> None:
        super().__init__()
        if len(args) == 1 and isinstance(args[0], Mapping):
            for name, module in args[0].items():
                self.add_module(name, module)
        else:
            self.extend(args)

    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, slice):
            return Sequential(dict(list(self._own(Module).items())[index]))
        return super().__getitem__(index)

    def forward(self, input: Any) -> Any:
        for module in self:
            input = module(input)
        return input


class ModuleDict(Module):
    """A dict of modules, whose parameters count as its own, in the order of insertion."""

    def __init__(self, modules: Mapping[str, Module] | None = None) -> None:
        super().__init__()
        if modules is not None and not isinstance(modules, Mapping):
            raise TypeError(f"ModuleDict: expected a dict of modules, got {type(modules).__name__}")
        for name, module in (modules or {}).items():
            self[name] = module

    def __getitem__(self, key: str) -> Module:
        try:
            return self._own(Module)[key]
        except KeyError:
            raise KeyError(f"ModuleDict: expected one of {list(self)}, got {key!r}") from None

    def __setitem__(self, key: str, module: Module) -> None:
        self.add_module(key, module)

    def __contains__(self, key: object) -> bool:
        return key in self._own(Module)

    def __len__(self) -> int:
        return len(self._own(Module))

    def __iter__(self) -> Iterator[str]:
        return iter(self._own(Module))

    def keys(self) -> Iterable[str]:
        """Its names."""
        return self._own(Module).keys()

    def values(self) -> Iterable[Module]:
        """Its modules."""
        return self._own(Module).values()

    def items(self) -> Iterable[tuple[str, Module]]:
        """(name, module) pairs."""
        return self._own(Module).items()
