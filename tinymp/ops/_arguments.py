"""Checks of arguments that many ops share. Nothing here computes."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..precision import FLOATING, require_fit
from ..tensor import Tensor, type_name

_WHY = {
    "out": "ops never write into an existing array",
    "dtype": "precision is the policy's decision; convert the input with .to(dtype)",
    "inplace": "ops never write into their input",
    "size_average": "PyTorch deprecated it; use reduction=",
    "reduce": "PyTorch deprecated it; use reduction=",
    "memory_format": "the memory order is chosen by the ops",
    "layout": "all tensors are dense",
    "device": "the result lives where its input does",
    "requires_grad": "the result requires a gradient when an input does",
    "batch_sampler": "give batch_size= and, for the order, sampler=",
    "num_workers": "one thread loads ahead; set prefetch=, the number of batches",
    "pin_memory": "batches are ordinary arrays",
}


def refuse(op: str, **given: Any) -> None:
    """Raise TypeError for an argument that PyTorch documents and tinymp does not support, when it is set."""
    for name, value in given.items():
        if value is not None and value is not False:
            why = f": {_WHY[name]}" if name in _WHY else ""
            raise TypeError(f"{op}: argument `{name}` is not supported{why} (got {name}={value!r})")


def tensor(op: str, name: str, x: Any) -> Tensor:
    """x, if it is a Tensor; else TypeError."""
    if isinstance(x, Tensor):
        return x
    raise TypeError(f"{op}: expected a Tensor for `{name}`, got {type_name(x)}; wrap it with tinymp.tensor(...)")


def floating(op: str, name: str, x: Any) -> Tensor:
    """x, if it is a floating Tensor; else TypeError."""
    if tensor(op, name, x).dtype not in FLOATING:
        raise TypeError(f"{op}: expected `{name}` to be floating, got {x.dtype}; convert it with .float() or .half()")
    return x


def axis(op: str, dim: Any, ndim: int, name: str = "dim") -> int:
    """`dim` as a non-negative axis; IndexError if the tensor has no such axis."""
    if isinstance(dim, bool) or not hasattr(dim, "__index__"):
        raise TypeError(f"{op}: expected `{name}` to be an integer, got {dim!r}")
    i = dim.__index__()
    if not ndim:
        raise IndexError(f"{op}: expected a tensor with at least one axis for {name}={i}, got one of shape ()")
    if not -ndim <= i < ndim:
        raise IndexError(f"{op}: expected {name} in [{-ndim}, {ndim - 1}] for a tensor with {ndim} axes, got {i}")
    return i % ndim


def axes(op: str, dim: Any, ndim: int) -> tuple[int, ...]:
    """`dim` (None for all, an integer, or a sequence) as sorted axes; ValueError for one that is named twice."""
    if dim is None:
        return tuple(range(ndim))
    if not isinstance(dim, (tuple, list)):
        return (axis(op, dim, ndim),) if ndim else _no_axes(op, dim)
    found = sorted(axis(op, d, ndim) for d in dim) if ndim else [a for d in dim for a in _no_axes(op, d)]
    if len(set(found)) != len(found):
        raise ValueError(f"{op}: expected every axis once in dim, got {tuple(dim)}")
    return tuple(found) or tuple(range(ndim))  # PyTorch reads an empty dim as "all"


def _no_axes(op: str, dim: Any) -> tuple[int, ...]:
    if dim not in (0, -1):
        raise IndexError(f"{op}: expected dim 0 or -1 for a tensor without axes, got {dim!r}")
    return ()


def integers(op: str, name: str, value: Any, n: int, least: int) -> tuple[int, ...]:
    """An integer or a sequence of n integers as a tuple of n, each at least `least`."""
    values = (value,) * n if hasattr(value, "__index__") else value
    if not isinstance(values, (tuple, list)) or not all(hasattr(v, "__index__") for v in values):
        raise TypeError(f"{op}: expected `{name}` to be an integer or {n} of them, got {value!r}")
    if len(values) == 1:
        values = tuple(values) * n
    if len(values) != n:
        raise ValueError(f"{op}: expected `{name}` to have {n} values, got {len(values)}: {value!r}")
    result = tuple(v.__index__() for v in values)
    if min(result) < least:
        raise ValueError(f"{op}: expected `{name}` to be at least {least}, got {value!r}")
    return result


def sizes(op: str, name: str, shape: tuple, keyword: dict) -> tuple[int, ...]:
    """The sizes of reshape(2, 3), reshape((2, 3)) or reshape(shape=(2, 3)) as one tuple of integers."""
    if keyword:
        if list(keyword) != [name] or shape:
            raise TypeError(f"{op}: expected {name} once, got positions {shape} and keywords {sorted(keyword)}")
        shape = (keyword[name],)
    if len(shape) == 1 and isinstance(shape[0], (tuple, list)):
        shape = tuple(shape[0])
    if not all(hasattr(n, "__index__") for n in shape):
        raise TypeError(f"{op}: expected integers for `{name}`, got {shape!r}")
    return tuple(n.__index__() for n in shape)


def flag(op: str, name: str, value: Any) -> bool:
    """value as a bool, if it is True or False (or NumPy's); TypeError for "False", 0.5 and whatever else is truthy."""
    if not isinstance(value, (bool, np.bool_)):
        raise TypeError(f"{op}: expected `{name}` to be True or False, got {value!r}")
    return bool(value)


def choice(op: str, name: str, value: Any, allowed: tuple) -> Any:
    """value, if it is one of `allowed`; else ValueError that lists them."""
    if value not in allowed:
        raise ValueError(f"{op}: expected `{name}` to be one of {', '.join(map(repr, allowed))}, got {value!r}")
    return value


def constant(op: str, name: str, value: Any, dtype: Any) -> Any:
    """value, if it is a number that an array of dtype can hold (FP16: rounded, but not to infinity)."""
    value = value.item() if hasattr(value, "item") and not isinstance(value, Tensor) else value
    if not isinstance(value, (int, float)):
        raise TypeError(f"{op}: expected `{name}` to be a number, got {type(value).__name__}")
    if dtype not in FLOATING:
        low, high = (0, 1) if dtype.kind == "b" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
        if not low <= value <= high or value % 1:
            raise ValueError(f"{op}: expected `{name}` to fit {dtype}, got {value!r}")
    require_fit(op, value, dtype)
    return value
