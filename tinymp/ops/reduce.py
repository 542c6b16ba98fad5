"""Reductions: read storage, accumulate in FP32, round once (MPT section 3.3: large sums belong in FP32)."""

from __future__ import annotations

from typing import Any, NamedTuple

from ..arguments import axes, axis, constant, flag, floating, refuse, tensor
from ..autograd import Array, Op
from ..dtypes import float16, float32
from ..precision import REDUCTION, reduce, store, widen
from ..tensor import Tensor
from .pointwise import exp, log, maximum, minimum


def _without(shape: tuple, dims: tuple) -> tuple:
    return tuple(n for i, n in enumerate(shape) if i not in dims)


class Sum(Op):
    """y = sum of x over dims;  dx = dy, spread over them."""

    kind = REDUCTION

    def forward(self, x: Array, *, dims: tuple) -> Array:
        self.shape = x.shape
        return store(reduce(x, dims, "sum"), like=x)

    def backward(self, dy: Array) -> Array:
        return self.xp.broadcast_to(dy, self.shape)


class Mean(Op):
    """y = sum of x over dims / n;  dx = dy / n, spread over them."""

    kind = REDUCTION

    def forward(self, x: Array, *, dims: tuple) -> Array:
        self.shape = x.shape
        return store(reduce(x, dims, "mean"), like=x)

    def backward(self, dy: Array) -> Array:
        n = self.device.count(self.xp.broadcast_to(dy, self.shape), self.dims)
        return self.xp.broadcast_to(store(widen(dy) / n, like=dy), self.shape)


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
    size = op.xp.maximum(size, op.xp.asarray(op.xp.finfo(d.dtype).tiny, d.dtype))
    return op.device.where(op.xp.isfinite(size), size, one)


def _degrees(op: Op, x: Array, dims: tuple, correction: float, dtype: Any) -> Array:
    """n - correction as an array: dividing by 0 gives PyTorch's nan and inf, not an exception."""
    n = op.device.count(x, dims) - correction
    return op.xp.asarray(n if n > 0 else 0, dtype)


class Extreme(Op):
    """y = max (or min) of x over dims, nan if one is;  the extreme elements (or the nans) share dy equally."""

    kind = REDUCTION
    name = "amax"

    def forward(self, x: Array, *, dims: tuple, how: str) -> Array:
        y = store(reduce(x, dims, how), like=x)
        self.save(x, y)
        self.name = f"a{how}"
        return y

    def backward(self, dy: Array) -> Array:
        x, y = self.saved
        hits = self.xp.equal(x, y) | self.xp.isnan(x)  # with a nan, y is nan and equals nothing
        n = reduce(hits, self.dims, "sum")
        return self.device.select(hits, store(widen(dy) / self.xp.asarray(n, widen(dy).dtype), like=dy))


class ExtremeIndex(Op):
    """The first index of the maximum (or minimum) of x along dim, as integers."""

    kind = REDUCTION
    name = "argmax"

    def forward(self, x: Array, *, dim: int, how: str) -> Array:
        self.name = f"arg{how}"
        return getattr(self.xp, f"arg{how}")(widen(x), axis=dim, keepdims=True)


class Take(Op):
    """y = the element of x at `index` along dim;  that element gets dy (PyTorch's max and min over one dim)."""

    kind = REDUCTION
    name = "max"

    def forward(self, x: Array, index: Array, *, dim: int, how: str) -> Array:
        self.save(index)
        self.shape, self.name = x.shape, how
        return self.xp.take_along_axis(x, index, self.dim)

    def backward(self, dy: Array) -> tuple:
        (index,) = self.saved
        dx = self.xp.zeros(self.shape, dy.dtype)
        self.xp.put_along_axis(dx, index, dy, self.dim)
        return dx, None


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


class CumSum(Op):
    """y_i = x_0 + ... + x_i along dim;  dx_i = dy_i + dy_(i+1) + ..."""

    kind = REDUCTION
    name = "cumsum"

    def forward(self, x: Array, *, dim: int) -> Array:
        return store(reduce(x, dim, "cumsum"), like=x)

    def backward(self, dy: Array) -> Array:
        flip = self.xp.flip
        return store(flip(reduce(flip(dy, self.dim), self.dim, "cumsum"), self.dim), like=dy)


# ---------------------------------------------------------------------------------------------------------- functions


def _finish(y: Tensor, dims: tuple, keepdim: bool) -> Tensor:
    return y if keepdim or not dims else y.reshape(_without(y.shape, dims))


def _nonempty(op: str, input: Tensor, dims: tuple) -> None:
    if any(input.shape[d] == 0 for d in dims):
        raise ValueError(f"{op}: expected at least one element to reduce, got shape {input.shape} over axes {dims}")


def sum(input: Tensor, dim: Any = None, keepdim: bool = False, *, dtype: None = None, out: None = None) -> Tensor:
    """The sum over `dim` (an axis, several, or None for all), accumulated in FP32 and stored in input's dtype.

    In FP16 a total above 65504 is infinite: use .float() first. Integers and booleans give int64.
    """
    refuse("sum", dtype=dtype, out=out)
    dims = axes("sum", dim, tensor("sum", "input", input).ndim)
    return _finish(Sum.apply(input, dims=dims), dims, flag("sum", "keepdim", keepdim))


def mean(input: Tensor, dim: Any = None, keepdim: bool = False, *, dtype: None = None, out: None = None) -> Tensor:
    """The mean over `dim` (an axis, several, or None for all), accumulated in FP32. nan over no elements."""
    refuse("mean", dtype=dtype, out=out)
    dims = axes("mean", dim, floating("mean", "input", input).ndim)
    return _finish(Mean.apply(input, dims=dims), dims, flag("mean", "keepdim", keepdim))


def _spread(op: str, input: Tensor, dim: Any, unbiased: Any, correction: Any) -> tuple[tuple, float]:
    """The axes and the correction of var and std, in any of the ways in which PyTorch takes them."""
    if isinstance(dim, bool) and unbiased is None:  # var(x, False)
        dim, unbiased = None, dim
    if unbiased is not None and correction is not None:
        raise TypeError(f"{op}: expected one of `unbiased` and `correction`, got {unbiased!r} and {correction!r}")
    if unbiased is not None:
        correction = int(flag(op, "unbiased", unbiased))
    dims = axes(op, dim, floating(op, "input", input).ndim)
    return dims, 1 if correction is None else constant(op, "correction", correction, float32)


def var(
    input: Tensor,
    dim: Any = None,
    unbiased: bool | None = None,
    keepdim: bool = False,
    *,
    correction: float | None = None,
    out: None = None,
) -> Tensor:
    """The variance over `dim`, divided by n - correction; two passes in FP32. nan where n <= correction.

    correction: 1 unless given; unbiased=False is another way to say 0, and may stand in the place of dim.
    Nothing cancels where x lies far from 0. Where the variance itself is beyond FP32, `std` may still be finite.
    """
    refuse("var", out=out)
    dims, less = _spread("var", input, dim, unbiased, correction)
    return _finish(Var.apply(input, dims=dims, correction=less), dims, flag("var", "keepdim", keepdim))


def std(
    input: Tensor,
    dim: Any = None,
    unbiased: bool | None = None,
    keepdim: bool = False,
    *,
    correction: float | None = None,
    out: None = None,
) -> Tensor:
    """The square root of `var`."""
    refuse("std", out=out)
    dims, less = _spread("std", input, dim, unbiased, correction)
    return _finish(Std.apply(input, dims=dims, correction=less), dims, flag("std", "keepdim", keepdim))


def amax(input: Tensor, dim: Any = (), keepdim: bool = False, *, out: None = None) -> Tensor:
    """The maximum over `dim` (an axis, several, or () for all); equal maxima share the gradient. nan where one is."""
    refuse("amax", out=out)
    dims = axes("amax", dim, tensor("amax", "input", input).ndim)
    _nonempty("amax", input, dims)
    return _finish(Extreme.apply(input, dims=dims, how="max"), dims, flag("amax", "keepdim", keepdim))


def amin(input: Tensor, dim: Any = (), keepdim: bool = False, *, out: None = None) -> Tensor:
    """The minimum over `dim` (an axis, several, or () for all); equal minima share the gradient. nan where one is."""
    refuse("amin", out=out)
    dims = axes("amin", dim, tensor("amin", "input", input).ndim)
    _nonempty("amin", input, dims)
    return _finish(Extreme.apply(input, dims=dims, how="min"), dims, flag("amin", "keepdim", keepdim))


class Extremes(NamedTuple):
    """What `max` and `min` along an axis return."""

    values: Tensor
    indices: Tensor


def _extreme(op: str, input: Tensor, dim: Any, keepdim: bool) -> Any:
    if flag(op, "keepdim", keepdim) and dim is None:
        raise TypeError(f"{op}: expected `dim` together with keepdim=True; a{op} keeps the axes without one")
    if dim is None:
        return amax(input) if op == "max" else amin(input)
    if isinstance(dim, Tensor):
        return (maximum if op == "max" else minimum)(input, dim)
    x, d, keep = _lined(op, input, dim, keepdim)
    index = _index(op, x, d, True)
    values = Take.apply(x, index, dim=d, how=op)
    return Extremes(_finish(values, (d,), keep), _finish(index, (d,), keep))


def max(input: Tensor, dim: Any = None, keepdim: bool = False, *, out: None = None) -> Any:
    """Without dim: the largest element. With dim: its (values, indices) along that axis; the first of equals counts.

    With a tensor as second argument: `maximum`.
    """
    refuse("max", out=out)
    return _extreme("max", tensor("max", "input", input), dim, keepdim)


def min(input: Tensor, dim: Any = None, keepdim: bool = False, *, out: None = None) -> Any:
    """Without dim: the smallest element. With dim: (values, indices) along that axis; the first of equals counts.

    With a tensor as second argument: `minimum`.
    """
    refuse("min", out=out)
    return _extreme("min", tensor("min", "input", input), dim, keepdim)


def _lined(op: str, input: Tensor, dim: int, keepdim: bool) -> tuple[Tensor, int, bool]:
    """input, the axis, and keepdim; a tensor without axes (dim 0 or -1) is given one, which no result keeps."""
    if input.ndim:
        return input, axis(op, dim, input.ndim), keepdim
    return input.reshape(1), axis(op, dim, 1), False


def _index(op: str, input: Tensor, dim: int, keepdim: bool) -> Tensor:
    x, d, keep = _lined(op, input, dim, keepdim)
    _nonempty(op, x, (d,))
    return _finish(ExtremeIndex.apply(x, dim=d, how=op[-3:]), (d,), keep)


def _arg(op: str, input: Tensor, dim: int | None, keepdim: bool) -> Tensor:
    keep = flag(op, "keepdim", keepdim)
    if dim is not None:
        return _index(op, input, dim, keep)
    index = _index(op, input.detach().reshape(-1), 0, False)
    return index.reshape((1,) * input.ndim) if keep else index


def argmax(input: Tensor, dim: int | None = None, keepdim: bool = False) -> Tensor:
    """The index of the first maximum along dim, or in the flattened tensor if dim is None. Integers, no gradient."""
    return _arg("argmax", tensor("argmax", "input", input), dim, keepdim)


def argmin(input: Tensor, dim: int | None = None, keepdim: bool = False) -> Tensor:
    """The index of the first minimum along dim, or in the flattened tensor if dim is None. Integers, no gradient."""
    return _arg("argmin", tensor("argmin", "input", input), dim, keepdim)


def logsumexp(input: Tensor, dim: Any, keepdim: bool = False, *, out: None = None) -> Tensor:
    """ln of the sum of exp(input) over dim, computed in FP32 without overflow. -inf over no elements."""
    refuse("logsumexp", out=out)
    dims = axes("logsumexp", dim, floating("logsumexp", "input", input).ndim)
    if not input.numel():  # it has no maximum
        return log(sum(exp(input), dims, keepdim))
    return _finish(LogSumExp.apply(input, dims=dims), dims, flag("logsumexp", "keepdim", keepdim))


def cumsum(input: Tensor, dim: int, *, dtype: None = None, out: None = None) -> Tensor:
    """The running sum along dim, accumulated in FP32; every partial sum is rounded once."""
    refuse("cumsum", dtype=dtype, out=out)
    x, d, _ = _lined("cumsum", tensor("cumsum", "input", input), dim, True)
    y = CumSum.apply(x, dim=d)
    return y if input.ndim else y.reshape(())
