"""Normalisation: FP16 in and out, statistics and the adjustment of values in FP32 (NVG section 2.3.1, MPT section 3.3).

Weights, biases and running statistics stay in FP32 under MIXED (`Policy.norm`); they are small, and their gradients
are sums over the whole batch.
"""

from __future__ import annotations

from typing import Any

from ..precision import POINTWISE, REDUCTION, add_to, reduce, store, widen
from ..tensor import Array, Op, Tensor
from ._arguments import axis, floating, integers


class BatchNorm(Op):
    """y = (x - mean) rstd w + b per channel, with rstd = 1 / sqrt(var + eps) over the batch (Ioffe & Szegedy, 2015).

    db = sum dy, dw = sum dy xhat, dx = w rstd (dy - db / n - xhat dw / n), with xhat = (x - mean) rstd.
    x: (N, C, ...), w, b: (C,) or None. The variance is the mean of (x - mean)^2: two passes, but nothing cancels.
    """

    kind = REDUCTION
    name = "batch_norm"
    fp32 = ("weight", "bias")

    def forward(self, x: Array, w: Array | None, b: Array | None, *, eps: float, batch: dict) -> Array:
        axes, wide = _all_but_channel(x), widen(x)
        mean = reduce(wide, axes, "mean", like=x)
        y = wide - mean
        var = reduce(y * y, axes, "mean", like=x)
        rstd = 1 / self.xp.sqrt(var + eps)
        self.save(x, w, statistics=(mean, rstd))
        batch["mean"], batch["var"] = mean, var
        y *= rstd if w is None else rstd * _per_channel(w, x)
        if b is not None:
            y += _per_channel(b, x)
        return store(y, like=x)

    def backward(self, dy: Array) -> tuple:
        (x, w), (mean, rstd), (like_x, like_w, like_b) = self.saved, self.statistics, self.like
        axes = _all_but_channel(x)
        wide, centered = widen(dy), widen(x) - mean
        db = reduce(wide, axes, "sum", like=x)
        dw = reduce(wide * centered, axes, "sum", like=x) * rstd
        if like_x:
            scale, n = rstd if w is None else rstd * _per_channel(w, x), self.device.count(x, axes)
            dx = wide * scale
            centered *= scale * rstd * dw / -n
            centered -= scale * db / n
            dx += centered
        return (
            like_x and store(dx, like=like_x),
            like_w and store(dw.reshape(like_w.shape), like=like_w),
            like_b and store(db.reshape(like_b.shape), like=like_b),
        )


class FixedNorm(Op):
    """y = (x - mean) rstd w + b with running statistics (evaluation): an affine map;  dx = w rstd dy."""

    kind = POINTWISE
    name = "batch_norm"
    arguments = ("input", "running_mean", "running_var", "weight", "bias")
    fp32 = ("running_mean", "running_var", "weight", "bias")

    def forward(self, x: Array, mean: Array, var: Array, w: Array | None, b: Array | None, *, eps: float) -> Array:
        mean = _per_channel(mean, x)
        rstd = 1 / self.xp.sqrt(_per_channel(var, x) + eps)
        self.save(x, w, statistics=(mean, rstd))
        y = widen(x) - mean
        y *= rstd if w is None else rstd * _per_channel(w, x)
        if b is not None:
            y += _per_channel(b, x)
        return store(y, like=x)

    def backward(self, dy: Array) -> tuple:
        (x, w), (mean, rstd), (like_x, _, _, like_w, like_b) = self.saved, self.statistics, self.like
        axes, wide = _all_but_channel(x), widen(dy)
        dx = like_x and store(wide * (rstd if w is None else rstd * _per_channel(w, x)), like=like_x)
        dw = like_w and reduce(wide * ((widen(x) - mean) * rstd), axes, "sum", like=x).reshape(like_w.shape)
        db = like_b and reduce(wide, axes, "sum", like=x).reshape(like_b.shape)
        return dx, None, None, like_w and store(dw, like=like_w), like_b and store(db, like=like_b)


def _all_but_channel(x: Array) -> tuple[int, ...]:
    return (0, *range(2, x.ndim))


def _per_channel(v: Array, x: Array) -> Array:
    """v (C,) in FP32, shaped to broadcast against x (N, C, ...)."""
    return widen(v).reshape(1, -1, *[1] * (x.ndim - 2))


class LayerNorm(Op):
    """y = (x - mean) rstd w + b over the last axes (Ba et al., 2016);  gradients as in BatchNorm."""

    kind = REDUCTION
    name = "layer_norm"
    fp32 = ("weight", "bias")

    def forward(self, x: Array, w: Array | None, b: Array | None, *, axes: tuple, eps: float) -> Array:
        mean = reduce(x, axes, "mean")
        y = widen(x) - mean
        rstd = 1 / self.xp.sqrt(reduce(y * y, axes, "mean", like=x) + eps)
        self.save(x, w, statistics=(mean, rstd))
        self.axes = axes
        y *= rstd
        if w is not None:
            y *= widen(w)
        if b is not None:
            y += widen(b)
        return store(y, like=x)

    def backward(self, dy: Array) -> tuple:
        (x, w), (mean, rstd), (like_x, like_w, like_b) = self.saved, self.statistics, self.like
        outer, wide = tuple(range(x.ndim - len(self.axes))), widen(dy)
        xhat = (widen(x) - mean) * rstd
        dw = like_w and store(reduce(wide * xhat, outer, "sum", like=x).reshape(like_w.shape), like=like_w)
        db = like_b and store(reduce(wide, outer, "sum", like=x).reshape(like_b.shape), like=like_b)
        g = wide if w is None else wide * widen(w)
        along = xhat * reduce(g * xhat, self.axes, "mean", like=x)
        dx = like_x and store((g - reduce(g, self.axes, "mean", like=x) - along) * rstd, like=like_x)
        return dx, dw, db


class LocalResponseNorm(Op):
    """y_c = x_c D_c^-beta with D_c = k + alpha / n sum of x^2 over the n channels around c (Krizhevsky et al., 2012).

    dx_c = dy_c D_c^-beta - 2 alpha beta / n x_c sum of dy_j x_j D_j^(-beta - 1) over the j whose window holds c.
    """

    kind = REDUCTION
    name = "local_response_norm"

    def forward(self, x: Array, *, size: int, alpha: float, beta: float, k: float) -> Array:
        self.save(x)
        self.size, self.alpha, self.beta, self.k = size, alpha, beta, k
        wide = widen(x)
        return store(wide * self.xp.power(self._denominator(wide, x), -beta), like=x)

    def backward(self, dy: Array) -> Array:
        (x,) = self.saved
        like, dy, x = x, widen(dy), widen(x)
        d = self._denominator(x, like)
        shrunk = self.xp.power(d, -self.beta)
        before = (self.size - 1) // 2  # the window of forward, mirrored
        spread = self._window(dy * x * shrunk / d, before, like)
        return store(dy * shrunk - (2 * self.alpha * self.beta / self.size) * x * spread, like=self.like[0])

    def _denominator(self, x: Array, like: Array) -> Array:
        return self.k + self.alpha / self.size * self._window(x * x, self.size // 2, like)

    def _window(self, x: Array, before: int, like: Array) -> Array:
        """For every channel the sum over `size` channels, of which `before` come before it; zeros outside."""
        c = x.shape[1]
        total = self.xp.zeros_like(x)
        for shift in range(-before, self.size - before):
            here, there = slice(max(-shift, 0), c - max(shift, 0)), slice(max(shift, 0), c - max(-shift, 0))
            if here.start < here.stop:
                add_to(total[:, here], x[:, there], like)
        return total


class Normalize(Op):
    """y = x / max(n, eps) with n = (sum |x|^p)^(1/p) along one axis.

    dx = dy / n - sign(x) |x|^(p-1) n^(-p-1) sum dy x;  dx = dy / eps where n < eps.
    """

    kind = REDUCTION

    def forward(self, x: Array, *, p: float, dim: int, eps: float) -> Array:
        wide = widen(x)
        powers = wide * wide if p == 2 else self.xp.power(self.xp.abs(wide), p)
        norm = self.xp.power(reduce(powers, dim, "sum", like=x), 1 / p)
        self.save(x, statistics=(norm,))
        self.p, self.dim, self.eps = p, dim, eps
        return store(wide / self.xp.maximum(norm, eps), like=x)

    def backward(self, dy: Array) -> Array:
        (x,), (norm,), p = self.saved, self.statistics, self.p
        wide, dy = widen(x), widen(dy)
        n = self.xp.maximum(norm, self.eps)
        slope = wide if p == 2 else self.xp.sign(wide) * self.xp.power(self.xp.abs(wide), p - 1)
        pull = reduce(dy * wide, self.dim, "sum", like=x) * self.xp.power(n, -p - 1) * (norm >= self.eps)
        return store(dy / n - slope * pull, like=x)


# ---------------------------------------------------------------------------------------------------------- functions


def batch_norm(
    input: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """Normalise every channel of input (N, C, ...) and apply weight and bias (C,).

    training: with the mean and (biased) variance of the batch; the running statistics, if given, then become
    (1 - momentum) running + momentum batch, with the unbiased variance. Otherwise: with the running statistics.
    Statistics are computed and kept in FP32, whatever the storage of input (NVG section 2.3.1).
    ValueError if shapes do not fit, if a training batch has one value per channel, or if statistics are missing.
    """
    x = floating("batch_norm", "input", input)
    if x.ndim < 2 or 0 in x.shape:
        raise ValueError(f"batch_norm: expected `input` (N, C, ...) without empty axes, got shape {x.shape}")
    given = {"running_mean": running_mean, "running_var": running_var, "weight": weight, "bias": bias}
    for name, v in given.items():
        if v is not None and floating("batch_norm", name, v).shape != (x.shape[1],):
            raise ValueError(f"batch_norm: expected {name}.shape == ({x.shape[1]},) like input.shape[1], got {v.shape}")
    if not training:
        if running_mean is None or running_var is None:
            raise ValueError("batch_norm: expected running_mean and running_var when training=False")
        return FixedNorm.apply(x, running_mean, running_var, weight, bias, eps=eps)
    n = x.numel() // x.shape[1]
    if n == 1:
        raise ValueError(f"batch_norm: expected more than one value per channel when training, got input {x.shape}")
    batch: dict[str, Array] = {}
    y = BatchNorm.apply(x, weight, bias, eps=eps, batch=batch)
    for running, value in ((running_mean, batch["mean"]), (running_var, batch["var"] * (n / (n - 1)))):
        if running is not None:  # new arrays: a skipped step can go back to the old ones (nn/statistics.py)
            old = running.data
            running.data = store((1 - momentum) * widen(old) + momentum * value.reshape(old.shape), like=old)
    return y


def layer_norm(
    input: Tensor, normalized_shape: Any, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5
) -> Tensor:
    """Normalise input over its last axes, whose lengths are normalized_shape; weight and bias have that shape too."""
    x = floating("layer_norm", "input", input)
    shape = tuple(normalized_shape) if isinstance(normalized_shape, (tuple, list)) else (normalized_shape,)
    shape = integers("layer_norm", "normalized_shape", shape, len(shape), 1)
    if x.shape[x.ndim - len(shape) :] != shape or not shape:
        raise ValueError(f"layer_norm: expected input.shape to end in normalized_shape {shape}, got {x.shape}")
    for name, v in (("weight", weight), ("bias", bias)):
        if v is not None and floating("layer_norm", name, v).shape != shape:
            raise ValueError(f"layer_norm: expected {name}.shape == normalized_shape {shape}, got {v.shape}")
    return LayerNorm.apply(x, weight, bias, axes=tuple(range(x.ndim - len(shape), x.ndim)), eps=eps)


def local_response_norm(input: Tensor, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0) -> Tensor:
    """Divide every value by (k + alpha mean(x^2))^beta, the mean over `size` neighbouring channels (axis 1)."""
    x = floating("local_response_norm", "input", input)
    if x.ndim < 3:
        raise ValueError(f"local_response_norm: expected `input` (N, C, ...) with at least 3 axes, got {x.shape}")
    (size,) = integers("local_response_norm", "size", size, 1, 1)
    return LocalResponseNorm.apply(x, size=size, alpha=alpha, beta=beta, k=k)


def normalize(input: Tensor, p: float = 2.0, dim: int = 1, eps: float = 1e-12, out: None = None) -> Tensor:
    """input / max(its p-norm along dim, eps). eps acts in FP32, where it is not 0. ValueError unless 1 <= p < inf."""
    x = floating("normalize", "input", input)
    if out is not None:
        raise TypeError("normalize: argument `out` is not supported: ops never write into an existing array")
    if not 1 <= p < float("inf"):
        raise ValueError(f"normalize: expected 1 <= p < inf, got {p!r}")
    return Normalize.apply(x, p=float(p), dim=axis("normalize", dim, x.ndim), eps=eps)
