"""Resizing images: interpolate and pixel_shuffle."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ..precision import MOVEMENT, POINTWISE, REDUCTION, add_to, float32, store, to_dtype, widen
from ..tensor import Array, Op, Tensor
from ._arguments import choice, floating, integers, refuse

# How one axis is resized: for each tap, the input place and the weight of every output place.
Taps = list[tuple[list[int], list[float]]]


class Nearest(Op):
    """y_ij = x at the places (rows_i, cols_j);  dx adds up the dy of all the places that took it, in FP32."""

    kind = MOVEMENT
    gradient = REDUCTION
    name = "interpolate"

    def forward(self, x: Array, *, rows: Taps, cols: Taps) -> Array:
        self.rows, self.cols = rows, cols
        return x[:, :, rows[0][0]][:, :, :, cols[0][0]]

    def backward(self, dy: Array) -> Array:
        return store(_untaken(self, _untaken(self, widen(dy), self.cols, 3), self.rows, 2), like=dy)


class Bilinear(Op):
    """y = the weighted mean of the 4 neighbours, one axis after the other;  dx by the transposed weights."""

    kind = POINTWISE
    name = "interpolate"

    def forward(self, x: Array, *, rows: Taps, cols: Taps) -> Array:
        self.rows, self.cols = rows, cols
        return store(_taken(self, _taken(self, widen(x), rows, 2), cols, 3), like=x)

    def backward(self, dy: Array) -> Array:
        return store(_untaken(self, _untaken(self, widen(dy), self.cols, 3), self.rows, 2), like=dy)


def _weights(op: Op, weights: list[float], x: Array, axis: int) -> Array:
    return op.xp.asarray(weights, x.dtype).reshape(-1, *[1] * (x.ndim - 1 - axis))


def _taken(op: Op, x: Array, taps: Taps, axis: int) -> Array:
    """Each output place along axis as the weighted sum of its taps."""
    total = None
    for index, weights in taps:
        part = op.xp.take(x, index, axis=axis) * _weights(op, weights, x, axis)
        total = part if total is None else total + part
    return total


def _untaken(op: Op, dy: Array, taps: Taps, axis: int) -> Array:
    """The transpose of _taken: every output place gives its gradient to its taps, in order."""
    shape = list(dy.shape)
    shape[axis] = op.like[0].shape[axis]
    dx = op.xp.zeros(shape, dy.dtype)
    into = op.xp.moveaxis(dx, axis, 0)
    for index, weights in taps:
        part = op.xp.moveaxis(dy * _weights(op, weights, dy, axis), axis, 0)
        for o, i in enumerate(index):
            add_to(into[i : i + 1], part[o : o + 1], like=op.like[0])
    return dx


def interpolate(
    input: Tensor,
    size: Any = None,
    scale_factor: Any = None,
    mode: str = "nearest",
    align_corners: bool | None = None,
    recompute_scale_factor: bool | None = None,
    antialias: bool = False,
) -> Tensor:
    """input (N, C, H, W) resized to `size` or by `scale_factor` (a number or two); mode "nearest" or "bilinear".

    With align_corners (bilinear) the corner pixels keep their values; else pixels are areas, and the edge is repeated.
    ValueError unless exactly one of size and scale_factor is given, or for an empty result.
    """
    refuse("interpolate", antialias=antialias)
    choice("interpolate", "mode", mode, ("nearest", "bilinear"))
    x = floating("interpolate", "input", input)
    if x.ndim != 4 or 0 in x.shape:
        raise ValueError(f"interpolate: expected `input` (N, C, H, W) without empty axes, got shape {x.shape}")
    if (size is None) == (scale_factor is None):
        raise ValueError("interpolate: expected exactly one of `size` and `scale_factor`")
    if align_corners is not None and mode == "nearest":
        raise ValueError('interpolate: `align_corners` has a meaning only with mode="bilinear"')
    if size is not None:
        sizes = integers("interpolate", "size", size, 2, 1)
        steps = [n / o for n, o in zip(x.shape[2:], sizes)]
    else:
        factors = tuple(scale_factor) if isinstance(scale_factor, (tuple, list)) else (scale_factor,) * 2
        if len(factors) != 2 or not all(f > 0 for f in factors):
            raise ValueError(f"interpolate: expected `scale_factor` to be positive, one or two, got {scale_factor!r}")
        sizes = tuple(math.floor(n * f) for n, f in zip(x.shape[2:], factors))
        if min(sizes) < 1:
            raise ValueError(f"interpolate: scale_factor {scale_factor!r} leaves nothing of {x.shape}")
        steps = [n / o for n, o in zip(x.shape[2:], sizes)] if recompute_scale_factor else [1 / f for f in factors]
    steps = [1.0 if n == o else step for n, o, step in zip(x.shape[2:], sizes, steps)]  # as PyTorch, also for 1.1
    if mode == "nearest":
        rows, cols = [_nearest(n, o, s) for n, o, s in zip(x.shape[2:], sizes, steps)]
        return Nearest.apply(x, rows=rows, cols=cols)
    rows, cols = [_linear(n, o, s, bool(align_corners)) for n, o, s in zip(x.shape[2:], sizes, steps)]
    return Bilinear.apply(x, rows=rows, cols=cols)


def _nearest(n: int, out: int, step: float) -> Taps:
    step = 0.5 if out == 2 * n else step
    # PyTorch's places to the last digit: where i * step is nearly whole, its FP32 product decides
    return [([min(int(i), n - 1) for i in to_dtype(np.arange(out), float32) * step], [1.0] * out)]


def _linear(n: int, out: int, step: float, align_corners: bool) -> Taps:
    if align_corners:
        step = (n - 1) / (out - 1) if out > 1 else 0.0
        places = [i * step for i in range(out)]
    else:
        places = [max((i + 0.5) * step - 0.5, 0.0) for i in range(out)]
    low = [min(int(p), n - 1) for p in places]
    part = [min(max(p - i, 0.0), 1.0) for p, i in zip(places, low)]
    return [(low, [1 - f for f in part]), ([min(i + 1, n - 1) for i in low], part)]


def pixel_shuffle(input: Tensor, upscale_factor: int) -> Tensor:
    """(..., C r^2, H, W) rearranged to (..., C, H r, W r), r = upscale_factor (Shi et al., 2016)."""
    x = floating("pixel_shuffle", "input", input)
    (r,) = integers("pixel_shuffle", "upscale_factor", upscale_factor, 1, 1)
    if x.ndim < 3 or x.shape[-3] % (r * r):
        raise ValueError(
            f"pixel_shuffle: expected input.shape[-3] to be a multiple of upscale_factor^2 = {r * r}, got {x.shape}"
        )
    *lead, c, h, w = x.shape
    k = len(lead)
    parts = x.reshape(*lead, c // (r * r), r, r, h, w)
    order = [*range(k), k, k + 3, k + 1, k + 4, k + 2]
    return parts.permute(*order).reshape(*lead, c // (r * r), h * r, w * r)
