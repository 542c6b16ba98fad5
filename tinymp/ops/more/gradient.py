"""Programs change a leaf's `grad`, and read an FP16 one as FP32: docs/policies.md has the table."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from typing import Any

from ...autograd import Array, Op, Variable
from ...dtypes import HALVES
from ...precision import widen
from ...tensor import Gradient, Tensor
from ..index import setitem


def assign(self: Gradient, value: Any) -> None:
    """`p.grad.data = value` becomes the gradient of the leaf."""
    self.leaf.grad = value
    self.array = self.leaf.grad_array


def wide(self: Gradient, op: Any = None) -> Tensor:
    """The same in FP32, exactly."""
    return Tensor(widen(self.array))


class Part(Gradient):
    """A part of an FP16 gradient, as an op has selected it: a gradient that is read and changed in FP32."""

    __slots__ = ("of", "select")
    of: Gradient
    select: Callable[[Array], Array]

    def become_fp32(self) -> None:
        """Have the whole gradient be FP32, and this be the same part of it."""
        self.of.become_fp32()
        self.array = self.select(self.of.array)


def selected(self: Gradient, op: Op, made: Tensor, indices: list[Tensor]) -> Tensor:
    """`made`, which op has selected of it."""
    part = Part.__new__(Part)
    Variable.__init__(part, made.array, False)
    part._version, part.leaf, part.grad_scale, part.of = made._version, self.leaf, self.grad_scale, self
    number = made.output_nr

    def select(whole: Array) -> Array:
        result = copy(op).run("forward", [whole, *(i.array for i in indices)], op.options)
        return result[number] if isinstance(result, tuple) else result

    part.select = select
    return part


def become_fp32(self: Gradient) -> None:
    """Have it be FP32, as what a scaler unscales is; and that of the leaf, unless it has another by now."""
    if self.dtype in HALVES:
        old, self.array = self.array, widen(self.array)
        self.leaf.grad_array = self.array if self.leaf.grad_array is old else self.leaf.grad_array


def _make_room(self: Gradient, value: Any) -> None:
    if self.dtype in HALVES and getattr(value, "dtype", None) != self.dtype:
        self.become_fp32()


def overwrite(self: Gradient, how: str, source: Any) -> Tensor:
    """As `Tensor.overwrite`, but nothing is rounded: FP16 becomes FP32 for FP32."""
    _make_room(self, source)
    return Tensor.overwrite(self, how, source)


def __setitem__(self: Gradient, index: Any, value: Any) -> None:
    """`p.grad[index] = value`, likewise."""
    _make_room(self, value)
    setitem(self, index, value)


def __reduce__(self: Gradient) -> tuple:
    return Tensor, (self.array,)  # a copy is no leaf's gradient
