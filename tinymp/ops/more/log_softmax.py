"""log_softmax: FP16 in and out, exponentials and sums in FP32."""

from __future__ import annotations

from ...arguments import axis, floating
from ...autograd import Array, Op
from ...precision import REDUCTION, reduce, store, widen
from ...tensor import Tensor

__all__ = ["log_softmax"]


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


def log_softmax(input: Tensor, dim: int) -> Tensor:
    """ln softmax(input) along dim; in FP32 and without overflow, rounded once."""
    d = axis("log_softmax", dim, floating("log_softmax", "input", input).ndim or 1)
    return LogSoftmax.apply(input, dim=d) if input.numel() else input
