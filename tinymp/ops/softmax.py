"""softmax and log_softmax: FP16 in and out (MPT section 3.3), exponentials and sums in FP32 (NVG section 2.3.1)."""

from __future__ import annotations

from typing import Any, NamedTuple

from ..arguments import axis, floating, refuse
from ..autograd import Array, Op
from ..backend.kernels import Kernels
from ..backend.layout import ENOUGH, LONGEST, THREADS, ceil_div, channels, compact, matching, power_of_two, row_lanes
from ..precision import FP32, REDUCTION, reduce, store, widen
from ..tensor import Tensor

KERNELS = Kernels(__file__)


class Softmax(Op):
    """y_i = exp(x_i - max x) / sum_j exp(x_j - max x) along dim;  dx = y (dy - sum_j y_j dy_j)."""

    kind = REDUCTION

    def forward(self, x: Array, *, dim: int) -> Array:
        e = self.xp.exp(widen(x) - reduce(x, dim, "max"))
        y = store(e / reduce(e, dim, "sum", like=x), like=x)
        self.save(y)  # the stored FP16 y, never an FP32 copy
        return y

    def backward(self, dy: Array) -> Array:
        (y,) = self.saved
        g = widen(y) * widen(dy)
        return store(g - widen(y) * reduce(g, self.dim, "sum", like=y), like=y)

    def forward_cuda(self, x: Array, *, dim: int) -> Array:
        x = compact(self.xp, x)
        if (plan := _plan(x, dim)) is None:
            return NotImplemented
        y = self.xp.empty_like(x)
        plan.launch("softmax_forward", x, y)
        self.save(y)
        return y

    def backward_cuda(self, dy: Array) -> Array:
        y = compact(self.xp, self.saved[0])
        if (plan := _plan(y, self.dim)) is None:
            return NotImplemented
        dx = self.xp.empty_like(y)
        plan.launch("softmax_backward", y, matching(self.xp, dy, y), dx)
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
        if (plan := _plan(dense, dim)) is None:
            return NotImplemented
        y, m, s = self.xp.empty_like(dense), _reduced(self.xp, dense, dim), _reduced(self.xp, dense, dim)
        plan.launch("log_softmax_forward", dense, y, m, s)
        self.save(x, statistics=(m, s))
        return y

    def backward_cuda(self, dy: Array) -> Array:
        x = compact(self.xp, self.saved[0])
        if (plan := _plan(x, self.dim)) is None:
            return NotImplemented
        dx, like = self.xp.empty_like(x), _reduced(self.xp, x, self.dim)
        m, s = (matching(self.xp, v, like) for v in self.statistics)  # the definition may have laid them out otherwise
        plan.launch("log_softmax_backward", x, matching(self.xp, dy, x), m, s, dx)
        return dx


# --------------------------------------------------------------------------------------------------- on blocks of a GPU


class _Plan(NamedTuple):
    """How blocks share x, seen as (outer, n, run) around the axis to sum over."""

    outer: int
    n: int
    run: int
    lanes: int  # neighbouring threads that walk along one run of memory; a power of two
    blocks: int

    def launch(self, kernel: str, x: Array, *others: Array) -> None:
        name = kernel if self.run == 1 else f"{kernel}_columns"
        KERNELS.launch(name, x.dtype, self.blocks, THREADS, x, *others, *self[:-1])


def _plan(x: Array, dim: int) -> _Plan | None:
    """The plan for the dense x; None where an axis is too long."""
    outer, n, run = channels(x, dim)
    if not 0 < max(n, run) <= LONGEST:
        return None
    pack = 16 // x.itemsize
    if run == 1:
        lanes = row_lanes(n, pack)
        return _Plan(outer, n, run, lanes, ceil_div(outer * lanes, THREADS))
    lanes = min(THREADS, power_of_two(ceil_div(run, pack)))
    while lanes > 8 and outer * ceil_div(run, lanes * pack) < ENOUGH and n * lanes >= 4 * THREADS:
        lanes //= 2  # too few blocks: narrower ones, with more threads along n
    return _Plan(outer, n, run, lanes, outer * ceil_div(run, lanes * pack))


def _reduced(xp: Any, x: Array, dim: int) -> Array:
    """Room for an FP32 statistic of x along dim, in x's memory order."""
    return xp.empty_like(x[tuple([slice(0, 1) if a == dim else slice(None) for a in range(x.ndim)])], FP32.storage)


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
