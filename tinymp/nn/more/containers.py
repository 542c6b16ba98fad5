"""Modules or parameters by number or name: ModuleList, ModuleDict, ParameterList, ParameterDict."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from ...arguments import called, instance, listed
from ...parameter import Parameter
from ...tensor import Tensor
from ..module import Module

if TYPE_CHECKING:
    pass

__all__ = ["ModuleDict", "ModuleList", "ParameterDict", "ParameterList"]


def append(self: Any, part: Any) -> Any:
    """Add a part at the end, under the next free number."""
    name = f"{self.kind.__name__.lower()}s[{len(self)}]"
    part = instance(type(self).__name__, name, as_parameter(part), self.kind)
    self._register(str(len(self)), part, self.kind)
    return self


def extend(self: Any, parts: Iterable) -> Any:
    """Append each of `parts`."""
    if hasattr(parts, "dtype"):  # a tensor would give its rows
        what = f"several {self.kind.__name__.lower()}s"
        raise TypeError(f"{type(self).__name__}: expected {what}, got {type(parts).__name__}")
    for part in listed(type(self).__name__, "parts", parts):
        self.append(part)
    return self


def length(self: Any) -> int:
    """len(self)."""
    return len(self._own(self.kind))


def replace_part(self: Any, index: int, part: Any) -> None:
    """self[index] = part."""
    setattr(self, list(self._own(self.kind))[index], as_parameter(part))


def delete_part(self: Any, index: int | slice) -> None:
    """del self[index]; the others are numbered anew."""
    own = self._own(self.kind)
    names, kept = list(own), list(own.values())
    del kept[index]
    for name in names:
        delattr(self, name)
    for number, part in enumerate(kept):
        self._register(str(number), part, self.kind)


class PartList(Module):
    """The base of ModuleList and ParameterList: parts of one kind under the numbers from 0 on."""

    kind: ClassVar[type]
    append, extend, __iadd__, __len__, __setitem__ = append, extend, extend, length, replace_part
    __delitem__ = delete_part

    def __getitem__(self, index: int | slice) -> Any:
        found = list(self)[index]
        return type(self)().extend(found) if isinstance(index, slice) else found

    def __iter__(self) -> Iterator:
        return iter(self._own(self.kind).values())


class ModuleList(PartList):
    """A list of modules, whose parameters count as its own. Indexing, slicing, `append`, `extend`, `len`.

    TypeError for an item that is not a Module.
    """

    kind = Module

    def __init__(self, modules: Iterable[Module] | None = None) -> None:
        super().__init__()
        self.extend(() if modules is None else modules)


class ParameterList(PartList):
    """A list of parameters, which count as its own. Indexing, slicing, `append`, `extend`, `len`.

    A Tensor becomes a Parameter, which copies it. TypeError for anything else.
    """

    kind = Parameter

    def __init__(self, values: Iterable[Tensor] | None = None) -> None:
        super().__init__()
        self.extend(() if values is None else values)


def as_parameter(value: Any) -> Any:
    """A Parameter of a Tensor; anything else as it is."""
    return Parameter(value) if isinstance(value, Tensor) and not isinstance(value, Parameter) else value


def _of_dict(name: str, says: str) -> Any:
    return called(lambda self, *args: getattr(self._own(self.kind), name)(*args), name, says, __name__)


class _Dict(Module):
    kind: ClassVar[type]  # of what it holds

    def __init__(self, parts: Mapping[str, Any] | None) -> None:
        super().__init__()
        if parts is not None and not isinstance(parts, Mapping):
            what = f"a dict of {self.kind.__name__.lower()}s"
            raise TypeError(f"{type(self).__name__}: expected {what}, got {type(parts).__name__}")
        self.update(parts or {})

    def __getitem__(self, key: str) -> Any:
        try:
            return self._own(self.kind)[key]
        except KeyError:
            raise KeyError(f"{type(self).__name__}: expected one of {list(self)}, got {key!r}") from None

    def __setitem__(self, key: str, part: Any) -> None:
        self._register(key, as_parameter(part), self.kind)

    def __delitem__(self, key: str) -> None:
        self[key]  # a KeyError that says what there is
        delattr(self, key)

    def update(self, parts: Mapping[str, Any]) -> None:
        """Add parts by their names, or put them in the place of others."""
        for name, part in parts.items():
            self[name] = part

    keys, values = _of_dict("keys", "Its names."), _of_dict("values", "Its parts, in order.")
    items, __contains__ = _of_dict("items", "(name, part) pairs."), _of_dict("__contains__", "key in self.")
    __len__, __iter__ = _of_dict("__len__", "len(self)."), _of_dict("__iter__", "Over its names.")


class ModuleDict(_Dict):
    """A dict of modules, whose parameters count as its own, in the order of insertion."""

    kind = Module

    def __init__(self, modules: Mapping[str, Module] | None = None) -> None:
        super().__init__(modules)


class ParameterDict(_Dict):
    """A dict of parameters, which count as its own. A Tensor becomes a Parameter, which copies it."""

    kind = Parameter

    def __init__(self, parameters: Mapping[str, Tensor] | None = None) -> None:
        super().__init__(parameters)
