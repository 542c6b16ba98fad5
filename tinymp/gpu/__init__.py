"""A GPU's own kernels, each next to the Python file that launches it; all else is done by CuPy and cuBLAS. Pointwise
ops are compiled from their definitions (elementwise.py); by hand are written what sums along an axis and what moves
data. Each file stands in for the definitions of the file of its name.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from functools import wraps
from typing import Any

from .. import backend
from ..autograd import Array, Op
from ..dtypes import float16, float32
from ..events import Observer, here, observe, tell, unobserved
from ..fast_path import Function, fast_path
from ..ops.norm import Running
from ..precision import plain


def kernel(definition: Callable) -> Callable[[Function], Function]:
    """`fast_path` for a phase of an op, on FP16 or FP32 storage. It tells observers what it rounds and multiplies; what
    it sums they hear as the definition would tell it.
    """

    def register(faster: Function) -> Function:
        @wraps(faster)
        def heard(op: Op, *args: Any, **options: Any) -> Any:
            if not here.inside:
                return faster(op, *args, **options)
            sums, listeners = _sums(definition, op, args, options), here.inside
            try:
                here.inside = [_NoSums(listeners)]
                y = faster(op, *args, **options)
            finally:
                here.inside = listeners
            for event in sums if y is not NotImplemented else ():
                tell(*event)
            return y

        fast_path(definition, where=lambda op: op.storage in (float16, float32) and plain(op.storage))(heard)
        return faster

    return register


class _Sums(Observer):
    def __init__(self) -> None:
        self.found: list[tuple] = []

    def reduced(self, *what: Any) -> None:
        self.found.append(("reduced", *what))

    def added(self, *what: Any) -> None:
        self.found.append(("added", *what))


class _NoSums(Observer):
    def __init__(self, listeners: list[Observer]) -> None:
        self.listeners = listeners

    def rounded(self, *what: Any) -> None:
        for one in self.listeners:
            one.rounded(*what)

    def product(self, *what: Any) -> None:
        for one in self.listeners:
            one.product(*what)


def _sums(definition: Callable, op: Op, args: tuple, options: dict) -> list[tuple]:
    """The events by which the definition tells of sums. It runs on arrays without memory (audit/meta.py)."""
    meta, twin = backend.get("meta"), copy(op)

    def hollow(x: Any) -> Any:
        if isinstance(x, Running):
            return Running(*[hollow(v) for v in vars(x).values()])
        return meta.asarray(x) if hasattr(x, "strides") else x

    twin.device = meta
    twin.saved, twin.statistics = (tuple([hollow(x) for x in some]) for some in (op.saved, op.statistics))
    sums = _Sums()
    with unobserved(), observe(sums):
        definition(twin, *[hollow(x) for x in args], **{name: hollow(x) for name, x in options.items()})
    return sums.found


def made(x: Array, shape: tuple[int, ...] | None = None) -> Array:
    """An array for results, as x lies or C-contiguous in another shape; in FP32 while an observer listens."""
    return backend.of(x).xp.empty_like(x, float32 if here.inside else x.dtype, order="C" if shape else "K", shape=shape)
