"""logsumexp: ln of a sum of exponentials, without overflow."""

from __future__ import annotations

from typing import Any

from ...arguments import axes, flag, floating, name_all
from ...autograd import Array, Op
from ...precision import REDUCTION, reduce, store, widen
from ...tensor import Tensor
from ..reduce import finish
from ..reduce import sum as total
from ..unary import exp, log


class LogSumExp(Op):
    """y = m + ln s, with m = max x and s = sum exp(x - m) over dims;  dx = exp(x - m) dy / s, 0 where all x = -inf."""

    kind = REDUCTION
    name = "logsumexp"

    def forward(self, x: Array, *, dims: tuple) -> Array:
        m = reduce(x, dims, "max")
        m = self.device.select(self.xp.isfinite(m), m)  # all -inf gives -inf, not nan
        s = reduce(self.xp.exp(widen(x) - m), dims, "sum", like=x)
        self.save(x, statistics=(m, s))  # not y: beside a large m, FP32 would lose digits of ln s
        return store(m + self.xp.log(s), like=x)

    def backward(self, dy: Array) -> Array:
        (x,), (m, s) = self.saved, self.statistics
        p = self.device.select(self.xp.not_equal(s, 0), self.xp.exp(widen(x) - m) / s)
        return store(p * widen(dy), like=dy)


def logsumexp(input: Tensor, dim: Any, keepdim: bool = False) -> Tensor:
    """ln of the sum of exp(input) over dim, computed in FP32 without overflow. -inf over no elements."""
    dims = axes("logsumexp", dim, floating("logsumexp", "input", input).ndim)
    if not input.numel():  # it has no maximum
        return log(total(exp(input), dims, keepdim))
    return finish(LogSumExp.apply(input, dims=dims), dims, flag("logsumexp", "keepdim", keepdim))


name_all(globals())
