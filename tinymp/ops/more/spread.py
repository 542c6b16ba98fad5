"""Variances and standard deviations: two passes in FP32, rounded once."""

from __future__ import annotations

from typing import Any

from ...arguments import axes, flag, floating, name_all, number
from ...autograd import Array, Op
from ...dtypes import float16
from ...precision import REDUCTION, reduce, store, widen
from ...tensor import Tensor
from ..reduce import finish

__all__ = ["std", "var"]


class Var(Op):
    """y = sum of (x - mean)^2 over dims / (n - correction);  dx = 2 (x - mean) dy / (n - correction)."""

    kind = REDUCTION

    def forward(self, x: Array, *, dims: tuple, correction: float) -> Array:
        mean, d = _distances(self, x, dims)
        self.save(x, statistics=(mean,))
        self.n = _degrees(self, x, dims, correction, mean.dtype)
        return store(reduce(d * d, dims, "sum", like=x) / self.n, like=x)

    def backward(self, dy: Array) -> Array:
        (x,), (mean,) = self.saved, self.statistics
        return store((widen(x) - mean) * (widen(dy) * (2 / self.n)), like=dy)


class Std(Op):
    """y = sqrt(var x);  dx = (x - mean) dy / (y (n - correction)), 0 where y = 0."""

    kind = REDUCTION

    def forward(self, x: Array, *, dims: tuple, correction: float) -> Array:
        mean, d = _distances(self, x, dims)
        scale = _size(self, d, dims, x)
        d *= 1 / scale  # exact, and d * d is in range although y^2 may not be
        self.n = _degrees(self, x, dims, correction, mean.dtype)
        std = self.xp.sqrt(reduce(d * d, dims, "sum", like=x) / self.n) * scale
        self.save(x, statistics=(mean, std))
        return store(std, like=x)

    def backward(self, dy: Array) -> Array:
        (x,), (mean, std) = self.saved, self.statistics
        shared = self.device.select(self.xp.not_equal(std, 0), widen(dy) / self.n)
        std = self.device.where(self.xp.equal(std, 0), self.xp.asarray(1, std.dtype), std)
        return store((widen(x) - mean) / std * shared, like=dy)


def _distances(op: Op, x: Array, dims: tuple) -> tuple:
    """The mean over dims, and x - mean.

    Where x is far from 0, the error of its FP32 mean is not small compared with the distances from it: so their own
    mean, which should be 0, is subtracted too. For FP16 x the distances are coarser than that error.
    """
    mean = reduce(x, dims, "mean")
    d = widen(x) - mean
    if x.dtype == float16:
        return mean, d
    rest = reduce(d, dims, "mean", like=x)
    rest = op.device.select(op.xp.isfinite(rest), rest)
    d -= rest
    return mean + rest, d


def _size(op: Op, d: Array, dims: tuple, x: Array) -> Array:
    """The largest power of two up to max |d| that is a normal number; 1 where there is none.

    FP32 cannot hold the squares of numbers above 1e19 or below 1e-19. It can hold those of FP16 numbers: for FP16, 1.
    """
    one = op.xp.asarray(1, d.dtype)
    if x.dtype == float16 or not x.size:
        return one
    top = op.xp.maximum(reduce(d, dims, "max"), -reduce(d, dims, "min"))
    size = top / (2 * op.xp.frexp(top)[0])  # exact: top is frexp's mantissa, in [0.5, 1), times a power of two
    size = op.xp.maximum(size, op.xp.asarray(op.xp.finfo(d.dtype).tiny, d.dtype))  # rounds: never, a power of two
    return op.device.where(op.xp.isfinite(size), size, one)


def _degrees(op: Op, x: Array, dims: tuple, correction: float, dtype: Any) -> Array:
    """n - correction as an array: dividing by 0 gives PyTorch's nan and inf, not an exception."""
    n = op.device.count(x, dims) - correction
    return op.xp.asarray(n if n > 0 else 0, dtype)  # rounds: n - correction, from Python's FP64 to FP32


# ---------------------------------------------------------------------------------------------------------- functions


def _spread(op: str, input: Tensor, dim: Any, unbiased: Any, correction: Any) -> tuple[tuple, float]:
    """The axes and the correction of var and std, in any of the ways in which PyTorch takes them."""
    if isinstance(dim, bool) and unbiased is None:  # var(x, False)
        dim, unbiased = None, dim
    if unbiased is not None and correction is not None:
        raise TypeError(f"{op}: expected one of `unbiased` and `correction`, got {unbiased!r} and {correction!r}")
    if unbiased is not None:
        correction = int(flag(op, "unbiased", unbiased))
    dims = axes(op, dim, floating(op, "input", input).ndim)
    return dims, 1 if correction is None else number(op, "correction", correction)


def var(
    input: Tensor,
    dim: Any = None,
    unbiased: bool | None = None,
    keepdim: bool = False,
    *,
    correction: float | None = None,
) -> Tensor:
    """The variance over `dim`, divided by n - correction; two passes in FP32. nan where n <= correction.

    correction: 1 unless given; unbiased=False is another way to say 0, and may stand in the place of dim.
    Nothing cancels where x lies far from 0. Where the variance itself is beyond FP32, `std` may still be finite.
    """
    dims, less = _spread("var", input, dim, unbiased, correction)
    return finish(Var.apply(input, dims=dims, correction=less), dims, flag("var", "keepdim", keepdim))


def std(
    input: Tensor,
    dim: Any = None,
    unbiased: bool | None = None,
    keepdim: bool = False,
    *,
    correction: float | None = None,
) -> Tensor:
    """The square root of `var`."""
    dims, less = _spread("std", input, dim, unbiased, correction)
    return finish(Std.apply(input, dims=dims, correction=less), dims, flag("std", "keepdim", keepdim))


name_all(globals())
