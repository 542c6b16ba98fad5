"""Functions of one tensor on a CPU: of FP16 by a table, of FP32 in parts.

FP16 has 65,536 values. The definition computes each once; looking it up takes as long as two passes over an array, and
GELU makes forty. The bits are the definition's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

import numpy as np

from ...autograd import Array
from ...dtypes import float16
from ...events import here
from ...fast_path import fast_path
from ...ops.unary import Unary
from ...precision import policy_in_use, store, widen
from .threads import LEAST, elementwise

_ALL = np.arange(1 << 16, dtype=np.uint16).view(float16)


@fast_path(Unary.forward)
def forward(op: Unary, x: Array, **options: Any) -> Array:
    f = looked_up(op, "f", options) if tabled(x) else lambda x: store(op.f(widen(x), **options), like=x)
    y = elementwise(f, x)
    if y is not NotImplemented:
        op.save(x if op.of == "x" else y)
    return y


@fast_path(Unary.backward)
def backward(op: Unary, dy: Array) -> Array:
    df = looked_up(op, "df", op.options) if tabled(dy) else lambda v: op.df(widen(v), **op.options)
    return elementwise(lambda dy, v: store(widen(dy) * df(v), like=dy), dy, *op.saved)


def tabled(x: Array) -> bool:
    """True for large FP16 arrays whose results are rounded to nearest, while no observer listens."""
    nearest = policy_in_use.get().rounding == "nearest"
    return x.dtype == float16 and x.size >= LEAST and nearest and not here.inside


def looked_up(op: Unary, function: str, options: Mapping[str, Any]) -> Callable[[Array], Array]:
    """The function that looks up the values of `op.f`, as they are stored, or of `op.df`."""
    cls: Any = type(op)
    values = table(cls, op.device, function, tuple(options.items()))
    return lambda x: np.take(values, x.view(np.uint16), mode="wrap")


@lru_cache(16)
def table(cls: type[Unary], device: Any, function: str, options: tuple) -> Array:
    op = cls()
    op.device = device
    y = np.full(1 << 16, getattr(op, function)(widen(_ALL), **dict(options)), np.float32)  # rounds: never; df may be 1
    return store(y, like=_ALL) if function == "f" else y
