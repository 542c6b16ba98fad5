"""Programs change a leaf's `grad`, and read an FP16 one as FP32: docs/policies.md has the table."""

from __future__ import annotations

from typing import Any

from ...autograd import Op
from ...dtypes import HALVES
from ...precision import widen
from ...tensor import Gradient, Tensor


def assign(self: Gradient, value: Any) -> None:
    """`p.grad.data = value` becomes the gradient of the leaf."""
    self.leaf.grad = value
    self.array = self.leaf.grad_array


def wide(self: Gradient) -> Tensor:
    """The same in FP32, exactly."""
    return Tensor(widen(self.array))


def selected(self: Gradient, op: Op, made: Tensor) -> Tensor:
    """`made`, which op has selected of it: it is FP16 as well."""
    return made


def overwrite(self: Gradient, how: str, source: Any) -> Tensor:
    """As `Tensor.overwrite`, but nothing is rounded: FP16 becomes FP32 for FP32, as what a scaler unscales does."""
    if self.dtype in HALVES and getattr(source, "dtype", None) != self.dtype:
        assign(self, widen(self.array))
    return Tensor.overwrite(self, how, source)


def __reduce__(self: Gradient) -> tuple:
    return Tensor, (self.array,)  # a copy is no leaf's gradient
