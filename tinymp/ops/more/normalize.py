"""normalize: vectors of length 1, by any p-norm."""

from __future__ import annotations

from ...arguments import axis, floating, name_all, number
from ...autograd import Array, Op
from ...precision import REDUCTION, reduce, store, widen
from ...tensor import Tensor


class Normalize(Op):
    """y = x / max(n, eps) with n = (sum |x|^p)^(1/p) along one axis.

    dx = (dy - sign(y) |y|^(p-1) sum dy y) / n;  dx = dy / eps where n < eps. No |y| is above 1: no power overflows.
    """

    kind = REDUCTION

    def forward(self, x: Array, *, p: float, dim: int, eps: float) -> Array:
        wide = widen(x)
        norm = self._norm(wide, x)
        self.save(x, statistics=(norm,))
        return store(wide / self.xp.maximum(norm, eps), like=x)

    def backward(self, dy: Array) -> Array:
        (x,), (norm,), p = self.saved, self.statistics, self.p
        n, dy = self.xp.maximum(norm, self.eps), widen(dy)
        y = widen(x) / n
        slope = y if p == 2 else self.xp.sign(y) * self.xp.power(self.xp.abs(y), p - 1)
        pull = reduce(dy * y, self.dim, "sum", like=x) * (norm >= self.eps)
        return store((dy - slope * pull) / n, like=x)

    def _norm(self, x: Array, like: Array) -> Array:
        """n; for p > 2, of which high powers leave FP32's range, as m (sum |x / m|^p)^(1/p) with m = max |x|."""
        if self.p == 2:
            return self.xp.sqrt(reduce(x * x, self.dim, "sum", like=like))
        size, top = self.xp.abs(x), 1
        if self.p > 2 and x.size:
            top = reduce(size, self.dim, "max")
            top = self.device.where((top > 0) & (top < float("inf")), top, self.xp.asarray(1, top.dtype))
            size /= top
        return top * self.xp.power(reduce(self.xp.power(size, self.p), self.dim, "sum", like=like), 1 / self.p)


def normalize(input: Tensor, p: float = 2.0, dim: int = 1, eps: float = 1e-12) -> Tensor:
    """input / max(its p-norm along dim, eps). eps acts in FP32, where it is not 0. ValueError unless 1 <= p < inf."""
    x = floating("normalize", "input", input)
    p, eps = number("normalize", "p", p), number("normalize", "eps", eps, 0)
    if not p >= 1:
        raise ValueError(f"normalize: expected 1 <= p < inf, got {p!r}")
    d = axis("normalize", dim, x.ndim or 1)
    y = Normalize.apply(x if x.ndim else x.reshape(1), p=float(p), dim=d, eps=eps)
    return y if x.ndim else y.reshape(())


name_all(globals())
