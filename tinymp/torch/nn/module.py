"""torch.nn.Module and every layer: tinymp's, whose state_dict holds the Tensors themselves, as PyTorch's does."""

from __future__ import annotations

from typing import Any

from ... import nn
from ...tensor import Tensor


class Every(type):
    """A class of which all of tinymp's own, `every`, are instances and subclasses, too."""

    def __instancecheck__(cls: Any, x: Any) -> bool:
        return isinstance(x, vars(cls).get("every", ())) or type.__instancecheck__(cls, x)

    def __subclasscheck__(cls: Any, kind: type) -> bool:
        return issubclass(kind, vars(cls).get("every", ())) or type.__subclasscheck__(cls, kind)


class Module(nn.Module, metaclass=Every):
    __doc__ = nn.Module.__doc__
    every = nn.Module

    def state_dict(self) -> dict[str, Any]:
        """Name -> Tensor outside the graph, which shares its memory with the parameter or buffer: what is written into
        it is written into the module. Use copy.deepcopy to keep it as it is now.
        """
        own = self._state()
        return {name: own[name].data if name in own else Tensor(x) for name, x in super().state_dict().items()}

    def __getattr__(self, name: str) -> Any:
        """Also asked by name for what is there: `self.__getattr__("conv1")`."""
        return vars(self)[name] if name in vars(self) else super().__getattr__(name)


def layer(kind: Any) -> Any:
    """A class of tinymp's as torch.nn has it; what is no Module as it is."""
    if not (isinstance(kind, type) and issubclass(kind, nn.Module)):
        return kind
    own = {"every": kind, "__doc__": kind.__doc__, "__module__": __package__}
    return Every(kind.__name__, (Module, kind), own)
