"""Norms beyond those of ops/norm.py: FP16 in and out, statistics in FP32, one rounding (NVG section 2.3.1)."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from ... import backend
from ...arguments import flag, floating, integers, number, shaped
from ...autograd import Array, Op
from ...precision import REDUCTION, add_to, reduce, store, to_dtype, widen
from ...tensor import Tensor
from ..norm import BatchNorm, Running, batch_norm, of_argument
from ..shape import reshape
from .shape import repeat

__all__ = ["group_norm", "instance_norm", "layer_norm", "local_response_norm", "rms_norm"]


class LayerNorm(Op):
    """y = (x - mean) rstd w + b over the last axes (Ba et al., 2016);  gradients as in BatchNorm."""

    kind = REDUCTION
    name = "layer_norm"
    fp32 = ("weight", "bias")

    def forward(self, x: Array, w: Array | None, b: Array | None, *, axes: tuple, eps: float) -> Array:
        mean = reduce(x, axes, "mean")
        centered = widen(x) - mean
        rstd = 1 / self.xp.sqrt(reduce(centered * centered, axes, "mean", like=x) + eps)
        self.save(x, w, statistics=(mean, rstd))
        y = centered * rstd if w is None else centered * rstd * widen(w)
        return store(y if b is None else y + widen(b), like=x)

    def backward(self, dy: Array) -> tuple:
        (x, w), (mean, rstd), (like_x, like_w, like_b) = self.saved, self.statistics, self.targets
        outer, wide = self.outer(x), widen(dy)
        xhat, g = (widen(x) - mean) * rstd, wide if w is None else wide * widen(w)
        dw = reduce(wide * xhat, outer, "sum", like=x) if like_w else None
        db = reduce(wide, outer, "sum", like=x) if like_b else None
        dx = g - reduce(g, self.axes, "mean", like=x) - xhat * reduce(g * xhat, self.axes, "mean", like=x)
        return of_argument(dx * rstd, like_x), of_argument(dw, like_w), of_argument(db, like_b)

    def outer(self, x: Array) -> tuple[int, ...]:
        """The axes along which w and b do not change."""
        return tuple(range(x.ndim - len(self.axes)))


class GroupNorm(LayerNorm):
    """y = (x - mean) rstd w + b, mean and rstd over each group of channels (Wu & He, 2018): the layer norm of each.

    x: (N, G, C / G, the rest), w, b: (G, C / G, 1) or None.
    """

    name = "group_norm"

    def forward(self, x: Array, w: Array | None, b: Array | None, *, axes: tuple, eps: float) -> Array:
        return super().forward(x, w, b, axes=axes, eps=eps)  # fast paths of a layer norm have weights of another shape

    def backward(self, dy: Array) -> tuple:
        return super().backward(dy)

    def outer(self, x: Array) -> tuple[int, ...]:
        return 0, 3


class RMSNorm(Op):
    """y = x r w with r = 1 / sqrt(mean x^2 + eps) over the last axes (Zhang & Sennrich, 2019).

    With xhat = x r and g = w dy: dx = r (g - xhat mean(g xhat)), dw = sum dy xhat.
    """

    kind = REDUCTION
    name = "rms_norm"
    fp32 = ("weight",)

    def forward(self, x: Array, w: Array | None, *, axes: tuple, eps: float) -> Array:
        wide = widen(x)
        r = 1 / self.xp.sqrt(reduce(wide * wide, axes, "mean", like=x) + eps)
        self.save(x, w, statistics=(r,))
        y = wide * r
        return store(y if w is None else y * widen(w), like=x)

    def backward(self, dy: Array) -> tuple:
        (x, w), (r,), (like_x, like_w) = self.saved, self.statistics, self.targets
        outer, wide, xhat = tuple(range(x.ndim - len(self.axes))), widen(dy), widen(x) * r
        dw = reduce(wide * xhat, outer, "sum", like=x) if like_w else None
        g = wide if w is None else wide * widen(w)
        dx = (g - xhat * reduce(g * xhat, self.axes, "mean", like=x)) * r
        return of_argument(dx, like_x), of_argument(dw, like_w)


def layer_norm(
    input: Tensor, normalized_shape: Any, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5
) -> Tensor:
    """Normalise input over its last axes, whose lengths are normalized_shape; weight and bias have that shape too."""
    x = floating("layer_norm", "input", input)
    shape = tuple(normalized_shape) if isinstance(normalized_shape, (tuple, list)) else (normalized_shape,)
    shape = integers("layer_norm", "normalized_shape", shape, len(shape), 0)
    if x.shape[x.ndim - len(shape) :] != shape or not shape:
        raise ValueError(f"layer_norm: expected input.shape to end in normalized_shape {shape}, got {x.shape}")
    for name, v in (("weight", weight), ("bias", bias)):
        shaped("layer_norm", name, v, shape, "normalized_shape")
    eps = number("layer_norm", "eps", eps, 0)
    return LayerNorm.apply(x, weight, bias, axes=tuple(range(x.ndim - len(shape), x.ndim)), eps=eps)


def group_norm(
    input: Tensor, num_groups: int, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5
) -> Tensor:
    """Normalise each group of neighbouring channels of input (N, C, ...); weight and bias are (C,), FP32 beside FP16.

    ValueError unless num_groups divides C, and for other shapes.
    """
    x = floating("group_norm", "input", input)
    (groups,) = integers("group_norm", "num_groups", num_groups, 1, 1)
    if x.ndim < 2 or x.shape[1] % groups:
        raise ValueError(f"group_norm: expected `input` (N, C, ...) with C a multiple of {groups}, got shape {x.shape}")
    for name, v in (("weight", weight), ("bias", bias)):
        shaped("group_norm", name, v, (x.shape[1],), "input.shape[1]")
    shape = groups, x.shape[1] // groups
    w, b = (None if v is None else reshape(v, (*shape, 1)) for v in (weight, bias))
    eps = number("group_norm", "eps", eps, 0)
    y = GroupNorm.apply(reshape(x, (x.shape[0], *shape, prod(x.shape[2:]))), w, b, axes=(2, 3), eps=eps)
    return reshape(y, x.shape)


def of_empty_batch(input: Tensor, *parameters: Tensor | None, eps: float, running: Running) -> Tensor:
    """A training batch of no values: its own statistics would be nan, and any others will do. It is counted."""
    if running.count is not None:
        running.count[...] += 1
    ones = backend.of(input.array).xp.ones(input.shape[1], widen(input.array[:0]).dtype)
    return BatchNorm.apply(input, *parameters, eps=eps, running=Running(ones, ones, None, None))


def rms_norm(input: Tensor, normalized_shape: Any, weight: Tensor | None = None, eps: float | None = None) -> Tensor:
    """input divided by its root mean square over the last axes, whose lengths are normalized_shape, times weight.

    eps: added to the mean square; None: the epsilon of the dtype that computes, for FP16 FP32's 1.2e-7 (as in PyTorch).
    """
    x = floating("rms_norm", "input", input)
    given = tuple(normalized_shape) if isinstance(normalized_shape, (tuple, list)) else (normalized_shape,)
    shape = integers("rms_norm", "normalized_shape", given, len(given), 1)
    if x.shape[x.ndim - len(shape) :] != shape or not shape:
        raise ValueError(f"rms_norm: expected input.shape to end in normalized_shape {shape}, got {x.shape}")
    if weight is not None and floating("rms_norm", "weight", weight).shape != shape:
        raise ValueError(f"rms_norm: expected weight.shape == normalized_shape {shape}, got {weight.shape}")
    least = float(np.finfo(widen(x.array[:0]).dtype).eps) if eps is None else number("rms_norm", "eps", eps, 0)
    return RMSNorm.apply(x, weight, axes=tuple(range(x.ndim - len(shape), x.ndim)), eps=least)


def instance_norm(
    input: Tensor,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """Normalise each channel of each example of input (N, C, L, ...): `batch_norm` of N C channels.

    weight, bias, running statistics: (C,). With use_input_stats the statistics are the input's, and running ones move
    towards their mean over the examples; else the running ones are used. ValueError for one value per channel.
    """
    op, x = "instance_norm", floating("instance_norm", "input", input)
    eps, momentum = number(op, "eps", eps, 0), number(op, "momentum", momentum, 0, 1)
    if x.ndim < 3:
        raise ValueError(f"{op}: expected `input` (N, C, L, ...), got shape {x.shape}")
    n, c = x.shape[:2]
    given = {"running_mean": running_mean, "running_var": running_var, "weight": weight, "bias": bias}
    for name, v in given.items():
        shaped(op, name, v, (c,), "input.shape[1]")
    if not flag(op, "use_input_stats", use_input_stats):
        return batch_norm(x, running_mean, running_var, weight, bias, False, 0.0, eps)
    if x.numel() == n * c:
        raise ValueError(f"{op}: expected more than one value per channel of an example, got input {x.shape}")
    xp, moving = backend.of(x.array).xp, (running_mean, running_var)
    means, variances = [None if v is None else Tensor(xp.tile(v.array, n)) for v in moving]
    w, b = [None if v is None else repeat(v, n) for v in (weight, bias)]
    y = batch_norm(reshape(x, (1, n * c, *x.shape[2:])), means, variances, w, b, True, momentum, eps)
    for v, moved in ((running_mean, means), (running_var, variances)):
        if v is not None and moved is not None:
            v.array[...] = to_dtype(reduce(moved.array.reshape(n, c), 0, "mean").reshape(c), v.dtype)
            v.bump_version()
    return reshape(y, x.shape)


class LocalResponseNorm(Op):
    """y_c = x_c D_c^-beta with D_c = k + alpha / n sum of x^2 over the n channels around c (Krizhevsky et al., 2012).

    dx_c = dy_c D_c^-beta - 2 alpha beta / n x_c sum of dy_j x_j D_j^(-beta - 1) over the j whose window holds c.
    """

    kind = REDUCTION
    name = "local_response_norm"

    def forward(self, x: Array, *, size: int, alpha: float, beta: float, k: float) -> Array:
        self.save(x)
        wide = widen(x)
        return store(wide / self._power(self._denominator(wide, like=x)), like=x)

    def backward(self, dy: Array) -> Array:
        (x,) = self.saved
        wide = widen(x)
        d = self._denominator(wide, like=x)
        dx = widen(dy) / self._power(d)
        spread = self._window(dx * wide / d, (self.size - 1) // 2, like=x)  # the window of forward, mirrored
        return store(dx - spread * wide * (2 * self.alpha * self.beta / self.size), like=x)

    def _denominator(self, x: Array, like: Array) -> Array:
        d = self._window(x * x, self.size // 2, like)
        d *= self.alpha / self.size
        d += self.k
        return d

    def _power(self, d: Array) -> Array:
        """d^beta; for the usual 3/4 by square roots, 1.5 to 5 times as fast as NumPy's power."""
        if self.beta != 0.75:
            return self.xp.power(d, self.beta)
        root = self.xp.sqrt(d)
        root *= self.xp.sqrt(root)
        return root

    def _window(self, x: Array, before: int, like: Array) -> Array:
        """For every channel the sum over `size` channels, of which `before` come before it; zeros outside."""
        c, total = x.shape[1], x.copy(order="K")
        for shift in range(max(-before, 1 - c), min(self.size - before, c)):  # beyond them there are no channels
            if shift:
                here, there = slice(max(-shift, 0), c - max(shift, 0)), slice(max(shift, 0), c - max(-shift, 0))
                add_to(total[:, here], x[:, there], like)
        return total


def local_response_norm(input: Tensor, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0) -> Tensor:
    """Divide every value by (k + alpha mean(x^2))^beta, the mean over `size` neighbouring channels (axis 1)."""
    x = floating("local_response_norm", "input", input)
    if x.ndim < 3:
        raise ValueError(f"local_response_norm: expected `input` (N, C, ...) with at least 3 axes, got {x.shape}")
    (size,) = integers("local_response_norm", "size", size, 1, 1)
    given = {name: number("local_response_norm", name, v) for name, v in (("alpha", alpha), ("beta", beta), ("k", k))}
    return LocalResponseNorm.apply(x, size=size, **given)
