"""ParameterList: a list of parameters."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from ...arguments import name_all
from ...parameter import Parameter
from ...tensor import Tensor
from ..module import Module

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["ParameterList"]


class ParameterList(Module):
    """A list of parameters, which count as its own. Indexing, slicing, `append`, `extend`, `len`.

    A Tensor becomes a Parameter, which copies it. TypeError for anything else.
    """

    def __init__(self, values: Iterable[Tensor] | None = None) -> None:
        super().__init__()
        self.extend(() if values is None else values)

    def append(self, value: Tensor) -> Self:
        """Add a parameter at the end, under the next free number."""
        if not isinstance(value, Tensor):
            raise TypeError(
                f"ParameterList: expected a Parameter or a Tensor at place {len(self)}, got {type(value).__name__}"
            )
        self.register_parameter(str(len(self)), as_parameter(value))
        return self

    def extend(self, values: Iterable[Tensor]) -> Self:
        """Append each of `values`."""
        if not isinstance(values, Iterable) or isinstance(values, Tensor):
            raise TypeError(f"ParameterList: expected several parameters, got {type(values).__name__}")
        for value in values:
            self.append(value)
        return self

    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, slice):
            return ParameterList(list(self)[index])
        return list(self)[self._place(index)]

    def __setitem__(self, index: int, value: Tensor) -> None:
        self.register_parameter(str(range(len(self))[self._place(index)]), as_parameter(value))

    def __len__(self) -> int:
        return len(self._own(Parameter))

    def __iter__(self) -> Iterator[Parameter]:
        return iter(self._own(Parameter).values())

    def _place(self, index: int) -> int:
        n = len(self)
        if not hasattr(index, "__index__"):
            raise TypeError(f"ParameterList: expected an integer or a slice as index, got {index!r}")
        if not -n <= index < n:
            raise IndexError(f"ParameterList: expected an index in [{-n}, {n - 1}], got {index}")
        return index


def as_parameter(value: Any) -> Any:
    """A Parameter of a Tensor; anything else as it is."""
    return Parameter(value) if isinstance(value, Tensor) and not isinstance(value, Parameter) else value


name_all(globals())
