"""softmax and log_softmax: FP16 in and out (MPT section 3.3), exponentials and sums in FP32 (NVG section 2.3.1)."""

from __future__ import annotations

from typing import Any

from ..precision import REDUCTION, reduce, store, widen
from ..tensor import Array, Op, Tensor
from ._arguments import axis, floating, refuse


class Softmax(Op):
    """y_i = exp(x_i - max x) / sum_j exp(x_j - max x) along dim;  dx = y (dy - sum_j y_j dy_j)."""

    kind = REDUCTION

    def forward(self, x: Array, *, dim: int) -> Array:
        e = self.xp.exp(widen(x) - reduce(x, dim, "max"))
        y = store(e / reduce(e, dim, "sum", like=x), like=x)
        self.save(y)  # the stored FP16 y, never an FP32 copy
        self.dim = dim
        return y

    def backward(self, dy: Array) -> Array:
        (y,) = self.saved
        g = widen(y) * widen(dy)
        return store(g - widen(y) * reduce(g, self.dim, "sum", like=y), like=y)


class LogSoftmax(Op):
    """y_i = x_i - ln sum_j exp(x_j) along dim, shifted by max x;  dx = dy - softmax(x) sum_j dy_j."""

    kind = REDUCTION

    def forward(self, x: Array, *, dim: int) -> Array:
        m = reduce(x, dim, "max")
        shifted = widen(x) - m
        s = reduce(self.xp.exp(shifted), dim, "sum", like=x)
        self.save(x, statistics=(m, s))  # not m + ln s: beside a large m, FP32 would lose digits of ln s
        self.dim = dim
        return store(shifted - self.xp.log(s), like=x)

    def backward(self, dy: Array) -> Array:
        (x,), (m, s) = self.saved, self.statistics
        total = reduce(dy, self.dim, "sum")
        return store(widen(dy) - self.xp.exp(widen(x) - m) * (total / s), like=dy)


# ---------------------------------------------------------------------------------------------------------- functions


def _along(op: str, input: Any, dim: Any) -> int:
    x = floating(op, "input", input)
    if dim is None:
        raise TypeError(f"{op}: expected `dim`, the axis that sums to one (PyTorch's guess for None is deprecated)")
    return axis(op, dim, x.ndim or 1)


def softmax(input: Tensor, dim: int, dtype: None = None) -> Tensor:
    """exp(input) divided by its sum along dim; in FP32 and without overflow, rounded once."""
    refuse("softmax", dtype=dtype)
    d = _along("softmax", input, dim)
    return Softmax.apply(input, dim=d) if input.numel() else input


def log_softmax(input: Tensor, dim: int, dtype: None = None) -> Tensor:
    """ln softmax(input) along dim; in FP32 and without overflow, rounded once."""
    refuse("log_softmax", dtype=dtype)
    d = _along("log_softmax", input, dim)
    return LogSoftmax.apply(input, dim=d) if input.numel() else input
