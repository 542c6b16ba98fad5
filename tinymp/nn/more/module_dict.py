"""ModuleDict: a dict of modules."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from ...arguments import name_all
from ..module import Module

__all__ = ["ModuleDict"]


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


name_all(globals())
