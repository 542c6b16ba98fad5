"""Methods of a Tensor that Python and other libraries call: iteration, formats, integers, NumPy's functions, DLPack."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from ...tensor import Tensor


def __iter__(x: Tensor) -> Iterator[Tensor]:
    if not x.ndim:
        raise TypeError("iter: expected a tensor with an axis, got one of shape ()")
    return (x[i] for i in range(len(x)))


def __format__(x: Tensor, spec: str) -> str:
    return format(str(x) if x.ndim and not spec else x.item(), spec)  # f"{loss:.3f}"


def __int__(x: Tensor) -> int:
    value = x.item()
    if not np.isfinite(value):
        raise ValueError(f"int: expected a finite number, got {value}")
    return int(value)


def __index__(x: Tensor) -> int:
    if x.dtype.kind not in "iu":
        raise TypeError(f"index: expected an integer tensor, got {x.dtype}")
    return int(x.item())


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
