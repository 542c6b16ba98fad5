"""torch.Tensor, FloatTensor, LongTensor, ...: classes that make Tensors and tell them by isinstance; Size; the
Generator.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from .. import backend
from ..dtypes import float32
from ..ops.create import zeros
from ..tensor import Tensor as _Tensor
from ..tensor import tensor

_KINDS = "Float:float32 Double:float64 Half:float16 Long:int64 Int:int32 Short:int16 Char:int8 Byte:uint8 Bool:bool"
DTYPES = {f"{kind}Tensor": np.dtype(dtype) for kind, _, dtype in (pair.partition(":") for pair in _KINDS.split())}
__all__ = ["Generator", "Size", "Tensor", *DTYPES]


class Size(tuple):
    """The lengths of axes, as `x.shape` and `x.size()` give them: FloatTensor(x.shape) has that shape."""

    __slots__ = ()

    def numel(self) -> int:
        """The number of elements."""
        return math.prod(self)

    def __getitem__(self, key: Any) -> Any:
        found = tuple.__getitem__(self, key)
        return found if found.__class__ is int else Size(found)

    def __add__(self, other: tuple) -> Size:
        return Size(tuple(self) + tuple(other))


def lengths(data: tuple) -> Any:
    """The lengths of axes in `Tensor(2, 3)` or `Tensor(x.shape)`; None for values, which another tuple holds."""
    given = data[0] if len(data) == 1 and isinstance(data[0], Size) else data
    return (given or (0,)) if all(isinstance(n, (int, np.integer)) for n in given) else None


class _Typed(type(_Tensor)):  # type: ignore[misc]
    """A class whose instances are all Tensors of its dtype."""

    def __call__(cls: Any, *data: Any) -> _Tensor:
        """Tensor(2, 3) has that shape, and zeros for PyTorch's uninitialised memory; Tensor(values) has these."""
        dtype = cls.holds or float32
        if (shape := lengths(data)) is not None:
            return zeros(*shape, dtype=dtype)
        if len(data) != 1:
            raise TypeError(f"{cls.__name__}: expected lengths of axes, or one list or array of values, got {data!r}")
        return tensor(data[0].detach() if isinstance(data[0], _Tensor) else data[0], dtype=dtype)

    def __instancecheck__(cls: Any, x: Any) -> bool:
        return isinstance(x, _Tensor) and (cls.holds is None or x.dtype == cls.holds)


class Tensor(_Tensor, metaclass=_Typed):
    """Tensor(2, 3) or Tensor(values), in FP32. `isinstance(x, Tensor)` is true of all Tensors."""

    __slots__ = ()
    holds: Any = None


globals().update(
    {
        name: _Typed(name, (_Tensor,), {"__slots__": (), "holds": dtype, "__doc__": f"A Tensor of {dtype}."})
        for name, dtype in DTYPES.items()
    }
)


class Generator(np.random.Generator):
    """Random numbers of its own, for `generator=`: NumPy's generator with PyTorch's methods."""

    def __init__(self, device: Any = "cpu") -> None:
        super().__init__(np.random.PCG64(0))
        self.device = device
        self._kept: list = []

    def manual_seed(self, seed: int) -> Generator:
        """Begin again from this seed."""
        self._seed = seed
        self.bit_generator.state = np.random.PCG64(seed).state
        return self

    def initial_seed(self) -> int:
        """The number that `manual_seed` was last given; 0 before."""
        return vars(self).get("_seed", 0)

    def get_state(self) -> dict:
        """The place in its random numbers, for `set_state`."""
        return dict(self.bit_generator.state)

    def set_state(self, state: Any) -> Generator:
        """Go on where another, or this one, was."""
        self.bit_generator.state = state
        return self

    def __reduce__(self) -> tuple:
        return _generator, (self.device, vars(self).get("_seed", 0), self.get_state())

    def __enter__(self) -> None:
        self._kept.append(backend.cpu.generator)
        backend.cpu.generator = self

    def __exit__(self, *error: Any) -> None:
        backend.cpu.generator = self._kept.pop()


def _generator(device: Any, seed: int, state: dict) -> Generator:
    return Generator(device).manual_seed(seed).set_state(state)
