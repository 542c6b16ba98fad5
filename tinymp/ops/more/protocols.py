"""Methods of a Tensor that Python and other libraries call, and what PyTorch's programs ask of one beside its shape."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from ... import backend
from ...arguments import axis, constant
from ...dtypes import FLOATING
from ...tensor import Tensor
from ..create import dtype_read


def __iter__(x: Tensor) -> Iterator[Tensor]:
    if not x.ndim:
        raise TypeError("iter: expected a tensor with an axis, got one of shape ()")
    return (x[i] for i in range(len(x)))


def __format__(x: Tensor, spec: str) -> str:
    return format(str(x) if x.ndim and not spec else x.item(), spec)  # f"{loss:.3f}"


def __float__(x: Tensor) -> float:
    return float(x.item())


def __bool__(x: Tensor) -> bool:
    if x.array.size != 1:
        raise ValueError(f"bool: expected one element, got shape {x.shape}; use .all() or .any()")
    return bool(x.item())


def __int__(x: Tensor) -> int:
    value = x.item()
    if not np.isfinite(value):
        raise ValueError(f"int: expected a finite number, got {value}")
    return int(value)


def __index__(x: Tensor) -> int:
    if x.dtype.kind not in "iu":
        raise TypeError(f"index: expected an integer tensor, got {x.dtype}")
    return int(x.item())


def __reduce_ex__(x: Tensor, protocol: Any) -> Any:
    if x.grad_fn is not None:
        raise TypeError(f"{x.grad_fn.name}: its result cannot be copied or pickled; write x.detach().clone()")
    return object.__reduce_ex__(x, protocol)


def __array__(x: Tensor, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
    if copy is False and backend.of(x.array) is not backend.cpu:
        raise ValueError("__array__: the data is on the GPU and can only be copied; leave out copy=False")
    # rounds: numpy.asarray(tensor, dtype), as the user asked for
    return np.array(backend.to_cpu(x.numbers), dtype=dtype, copy=copy)


def __array_function__(x: Tensor, function: Callable, types: Any, args: tuple, options: dict) -> Any:
    """numpy.mean(x) and its like: NumPy's result for NumPy's arrays, outside the graph."""
    return function(*map(_host, args), **{name: _host(x) for name, x in options.items()})


def __dlpack__(x: Tensor, **options: Any) -> Any:
    return x.array.__dlpack__(**options)


def __dlpack_device__(x: Tensor) -> tuple[int, int]:
    return x.array.__dlpack_device__()


def _host(x: Any) -> Any:
    """x with every Tensor in it as a NumPy array."""
    if isinstance(x, (list, tuple)) and not hasattr(x, "_fields"):
        return type(x)(map(_host, x))
    return x.numpy() if isinstance(x, Tensor) else x


def size(x: Tensor, dim: int | None = None) -> Any:
    """The shape, or the length of axis `dim`. TypeError or IndexError for what is no axis."""
    return x.shape if dim is None else x.shape[axis("size", dim, x.ndim)]


def dim(x: Tensor) -> int:
    """The number of axes."""
    return x.ndim


def zero_(x: Tensor) -> Tensor:
    """Overwrite the data with zeros. Only outside the graph."""
    return x.overwrite("zero_", backend.of(x.array).xp.zeros_like(x.array))


def fill_(x: Tensor, value: Any) -> Tensor:
    """Overwrite every element with a number. Only outside the graph."""
    value, dtype = value.item() if isinstance(value, Tensor) else value, dtype_read(x)
    return x.overwrite(
        "fill_", Tensor(backend.of(x.array).xp.full(x.shape, constant("fill_", "value", value, dtype), dtype))
    )


def assign(x: Tensor, value: Any) -> None:
    """`x.data = value`: a Tensor or an array of any shape, whose memory becomes that of x."""
    value = value if isinstance(value, Tensor) else Tensor(value)
    if x.requires_grad and value.dtype not in FLOATING:
        raise TypeError(f"data: expected floating values for a tensor that requires a gradient, got {value.dtype}")
    x.array, x._version = value.array, value._version  # ops that saved the old array keep its counter
