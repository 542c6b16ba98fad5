"""group_norm, rms_norm and instance_norm: FP16 in and out, statistics in FP32, one rounding (NVG section 2.3.1)."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from ... import backend
from ...arguments import flag, floating, integers, name_all, number, shaped
from ...autograd import Array, Op
from ...precision import REDUCTION, reduce, store, to_dtype, widen
from ...tensor import Tensor
from ..norm import batch_norm
from ..shape import repeat, reshape


class GroupNorm(Op):
    """y = (x - mean) rstd w + b, mean and rstd = 1 / sqrt(var + eps) over each group of channels (Wu & He, 2018).

    With xhat = (x - mean) rstd and g = w dy: dx = rstd (g - mean g - xhat mean(g xhat)) over the group,
    dw = sum dy xhat and db = sum dy over all but the channel. x: (N, C, ...), of which (C / G, ...) is a group;
    w, b: (C,) or None.
    """

    kind = REDUCTION
    name = "group_norm"
    fp32 = ("weight", "bias")

    def forward(self, x: Array, w: Array | None, b: Array | None, *, groups: int, eps: float) -> Array:
        wide = self._grouped(widen(x))
        mean = reduce(wide, (2, 3), "mean", like=x)
        y = wide - mean
        rstd = 1 / self.xp.sqrt(reduce(y * y, (2, 3), "mean", like=x) + eps)
        self.save(x, w, statistics=(mean, rstd))
        y *= rstd
        if w is not None:
            y *= self._per_channel(w)
        if b is not None:
            y += self._per_channel(b)
        return store(y.reshape(x.shape), like=x)

    def backward(self, dy: Array) -> tuple:
        (x, w), (mean, rstd), (like_x, like_w, like_b) = self.saved, self.statistics, self.targets
        wide, xhat = self._grouped(widen(dy)), (self._grouped(widen(x)) - mean) * rstd
        db, dw = (reduce(g, (3,), "sum", like=x) for g in (wide, wide * xhat))  # of each sample
        v, n = 1 if w is None else self._per_channel(w), wide.shape[2] * wide.shape[3]
        pull, mean = (reduce(v * d, (2,), "sum", like=x) / n for d in (dw, db))
        dx = (v * wide - xhat * pull - mean) * rstd
        return (
            store(dx.reshape(x.shape), like=dy) if like_x else None,
            store(reduce(dw, (0,), "sum", like=x).reshape(like_w.shape), like=like_w) if like_w else None,
            store(reduce(db, (0,), "sum", like=x).reshape(like_b.shape), like=like_b) if like_b else None,
        )

    def _grouped(self, x: Array) -> Array:
        """x as (N, G, C / G, the rest)."""
        n, c, *rest = x.shape
        return x.reshape(n, self.groups, c // self.groups, prod(rest))

    def _per_channel(self, v: Array) -> Array:
        return widen(v).reshape(1, self.groups, -1, 1)


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
        dw = like_w and store(reduce(wide * xhat, outer, "sum", like=x).reshape(like_w.shape), like=like_w)
        g = wide if w is None else wide * widen(w)
        dx = like_x and store((g - xhat * reduce(g * xhat, self.axes, "mean", like=x)) * r, like=like_x)
        return dx, dw


# ---------------------------------------------------------------------------------------------------------- functions


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
    return GroupNorm.apply(x, weight, bias, groups=groups, eps=number("group_norm", "eps", eps, 0))


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


name_all(globals())
