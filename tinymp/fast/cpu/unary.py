"""Functions of one tensor on a CPU: by several threads, in parts whose intermediate values stay in the cache."""

from __future__ import annotations

from typing import Any

from ...autograd import Array
from ...fast_path import fast_path
from ...ops.unary import Unary
from ...precision import store, widen
from .threads import elementwise


@fast_path(Unary.forward)
def forward(op: Unary, x: Array, **options: Any) -> Array:
    y = elementwise(lambda x: store(op.f(widen(x), **options), like=x), x)
    if y is not NotImplemented:
        op.save(x if op.of == "x" else y)
    return y


@fast_path(Unary.backward)
def backward(op: Unary, dy: Array) -> Array:
    return elementwise(lambda dy, v: store(widen(dy) * op.df(widen(v), **op.options), like=dy), dy, *op.saved)
