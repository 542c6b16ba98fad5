"""norm: the p-norm of vectors, computed in FP32 without overflow and rounded once."""

from __future__ import annotations

from typing import Any

from ..arguments import axes, floating, refuse
from ..autograd import Array, Op
from ..precision import REDUCTION, reduce, store, widen
from ..tensor import Tensor
from .shape import reshape

INF = float("inf")


class VectorNorm(Op):
    """y = (sum |x|^p)^(1/p) over dims;  dx = sign(x) (|x| / y)^(p-1) dy, 0 where x or y is 0.

    p = inf (-inf): max (min) |x|, whose places share dy; p = 0: how many x are not 0, and dx = 0. The sum is of
    |x| / s, where s is the largest |x| (the smallest for p < 0), and y is s times its root: no power overflows.
    """

    kind = REDUCTION
    name = "norm"

    def forward(self, x: Array, *, dims: tuple, p: float) -> Array:
        xp, size = self.xp, self.xp.abs(widen(x))
        if abs(p) == INF:
            y = reduce(size, dims, "max" if p > 0 else "min", like=x)
        elif p == 0:
            y = reduce(xp.asarray(xp.not_equal(size, 0), size.dtype), dims, "sum", like=x)
        elif p == 1 or not x.size:
            y = reduce(size, dims, "sum", like=x)
        else:
            s = reduce(size, dims, "max" if p > 0 else "min", like=x)
            s = self.device.where(xp.isfinite(s) & (s > 0), s, s.dtype.type(1))
            size = size / s
            powers = size * size if p == 2 else xp.power(size, p)
            y = s * xp.power(reduce(powers, dims, "sum", like=x), 1 / p)
        self.save(x, statistics=(y,))
        return store(y, like=x)

    def backward(self, dy: Array) -> Array:
        (x,), (y,), p, select = self.saved, self.statistics, self.p, self.device.select
        wide, dy = widen(x), widen(dy)
        if p == 0:
            return store(self.xp.zeros_like(wide), like=x)
        if p == 2:
            return store(select(self.xp.not_equal(wide, 0) & self.xp.not_equal(y, 0), wide / y * dy), like=x)
        sign, size = self.xp.sign(wide), self.xp.abs(wide)
        if abs(p) == INF:
            hits = self.xp.equal(size, y)
            n = reduce(hits, self.dims, "sum")
            return store(select(hits, sign * (dy / self.xp.asarray(n, dy.dtype))), like=x)
        if p == 1:
            return store(sign * dy, like=x)
        slope = sign * self.xp.power(size / y, p - 1)
        return store(select(self.xp.not_equal(wide, 0) & self.xp.not_equal(y, 0), slope * dy), like=x)


def norm(
    input: Tensor, p: Any = "fro", dim: Any = None, keepdim: bool = False, out: None = None, dtype: None = None
) -> Tensor:
    """(sum |input|^p)^(1/p) over `dim` (an axis, several, or None for all); "fro" is p = 2. inf, -inf and 0 as limits.

    Summed in FP32 and rounded once. Its gradient where the norm is 0 is 0. ValueError for "nuc", and for the extreme
    of no elements.
    """
    refuse("norm", out=out, dtype=dtype)
    x = floating("norm", "input", input)
    power = 2.0 if p in ("fro", None) else p
    if isinstance(power, str) or not isinstance(power, (int, float)):
        raise ValueError(f'norm: expected `p` to be a number or "fro", got {p!r}')
    dims = axes("norm", dim, x.ndim)
    if any(not x.shape[d] for d in dims) and (power < 0 or power == INF):
        raise ValueError(f"norm: expected at least one element for p={p}, got shape {x.shape} over axes {dims}")
    y = VectorNorm.apply(x, dims=dims, p=float(power))
    return y if keepdim else reshape(y, tuple(n for i, n in enumerate(x.shape) if i not in dims))
