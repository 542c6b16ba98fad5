"""softmax and log_softmax: FP16 in and out (MPT section 3.3), exponentials and sums in FP32 (NVG section 2.3.1)."""

from __future__ import annotations

from typing import Any

from ..arguments import axis, floating, refuse
from ..autograd import Array, Op
from ..backend.kernels import Kernels
from ..backend.layout import compact, matching
from ..backend.rows import along, reduced
from ..precision import REDUCTION, reduce, store, widen
from ..tensor import Tensor

KERNELS = Kernels(__file__)


class Softmax(Op):
    """y_i = exp(x_i - max x) / sum_j exp(x_j - max x) along dim;  dx = y (dy - sum_j y_j dy_j)."""

    kind = REDUCTION

    def forward(self, x: Array, *, dim: int) -> Array:
        e = self.xp.exp(widen(x) - reduce(x, dim, "max"))
        e /= reduce(e, dim, "sum", like=x)
        y = store(e, like=x)
        self.save(y)  # the stored FP16 y, never an FP32 copy
        return y

    def backward(self, dy: Array) -> Array:
        y, dy = widen(self.saved[0]), widen(dy)
        dx = dy - reduce(y * dy, self.dim, "sum", like=self.saved[0])
        dx *= y
        return store(dx, like=self.saved[0])

    def forward_cuda(self, x: Array, *, dim: int) -> Array:
        x = compact(self.xp, x)
        if (plan := along(x, dim)) is None:
            return NotImplemented
        y = self.xp.empty_like(x)
        plan.launch(KERNELS, "softmax_forward", x, y)
        self.save(y)
        return y

    def backward_cuda(self, dy: Array) -> Array:
        y = compact(self.xp, self.saved[0])
        if (plan := along(y, self.dim)) is None:
            return NotImplemented
        dx = self.xp.empty_like(y)
        plan.launch(KERNELS, "softmax_backward", y, matching(self.xp, dy, y), dx)
        return dx


class LogSoftmax(Op):
    """y_i = x_i - ln sum_j exp(x_j) along dim, shifted by max x;  dx = dy - softmax(x) sum_j dy_j."""

    kind = REDUCTION

    def forward(self, x: Array, *, dim: int) -> Array:
        m = reduce(x, dim, "max")
        shifted = widen(x) - m
        s = reduce(self.xp.exp(shifted), dim, "sum", like=x)
        self.save(x, statistics=(m, s))  # not m + ln s: beside a large m, FP32 would lose digits of ln s
        return store(shifted - self.xp.log(s), like=x)

    def backward(self, dy: Array) -> Array:
        (x,), (m, s) = self.saved, self.statistics
        total = reduce(dy, self.dim, "sum")
        return store(widen(dy) - self.xp.exp(widen(x) - m) * (total / s), like=dy)

    def forward_cuda(self, x: Array, *, dim: int) -> Array:
        dense = compact(self.xp, x)
        if (plan := along(dense, dim)) is None:
            return NotImplemented
        y, m, s = self.xp.empty_like(dense), reduced(self.xp, dense, dim), reduced(self.xp, dense, dim)
        plan.launch(KERNELS, "log_softmax_forward", dense, y, m, s)
        self.save(x, statistics=(m, s))
        return y

    def backward_cuda(self, dy: Array) -> Array:
        x = compact(self.xp, self.saved[0])
        if (plan := along(x, self.dim)) is None:
            return NotImplemented
        dx, like = self.xp.empty_like(x), reduced(self.xp, x, self.dim)
        m, s = (matching(self.xp, v, like) for v in self.statistics)  # the definition may have laid them out otherwise
        plan.launch(KERNELS, "log_softmax_backward", x, matching(self.xp, dy, x), m, s, dx)
        return dx


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
