"""Resizing signals, images and volumes: interpolate and pixel_shuffle."""

from __future__ import annotations

import math
from math import prod
from numbers import Real
from typing import Any

import numpy as np

from ..arguments import choice, flag, floating, integers, refuse
from ..autograd import Array, Op
from ..precision import MOVEMENT, POINTWISE, REDUCTION, add_to, float32, store, to_dtype, widen
from ..tensor import Tensor
from .pool import adaptive_avg_pool2d

# How one axis is resized: for each tap, the input place and the weight of every output place.
Taps = list[tuple[list[int], list[float]]]


class Nearest(Op):
    """y = x at the one tap of each output place;  dx adds up the dy of all places that took it, in FP32."""

    kind = MOVEMENT
    gradient = REDUCTION
    name = "interpolate"

    def forward(self, x: Array, *, taps: list[Taps]) -> Array:
        for a, [(index, _)] in enumerate(taps, 2):
            x = self.xp.take(x, self.xp.asarray(index), axis=a)
        return x

    def backward(self, dy: Array) -> Array:
        return _given_back(self, dy)


class Resample(Op):
    """y = the sum of the taps times their weights, one axis after the other;  dx by the transposed weights."""

    kind = POINTWISE
    name = "interpolate"

    def forward(self, x: Array, *, taps: list[Taps]) -> Array:
        y = widen(x)
        for a, along in enumerate(taps, 2):
            parts = [self.xp.take(y, index, axis=a) * _weights(self, w, y, a) for index, w in along]
            y = sum(parts[1:], parts[0])
        return store(y, like=x)

    def backward(self, dy: Array) -> Array:
        return _given_back(self, dy)


def _weights(op: Op, weights: list[float], x: Array, axis: int) -> Array:
    return op.xp.asarray(weights, x.dtype).reshape(-1, *[1] * (x.ndim - 1 - axis))


def _given_back(op: Any, dy: Array) -> Array:
    """The transpose of forward: the gradient of every output place is added to its taps, in order."""
    like, dx = op.targets[0], widen(dy)
    for a, taps in reversed([*enumerate(op.taps, 2)]):
        dy, dx = dx, op.xp.zeros((*dx.shape[:a], like.shape[a], *dx.shape[a + 1 :]), dx.dtype)
        into = op.xp.moveaxis(dx, a, 0)
        for index, weights in taps:
            part = op.xp.moveaxis(dy * _weights(op, weights, dy, a), a, 0)
            for o, i in enumerate(index):
                add_to(into[i : i + 1], part[o : o + 1], like=like)
    return store(dx, like=like)


MOST_PLACES = 1 << 24  # along an axis: more must be a mistake

# mode -> the numbers of axes after (N, C) that it resizes, as in PyTorch
MODES = {
    "nearest": (1, 2, 3),
    "nearest-exact": (1, 2, 3),
    "linear": (1,),
    "bilinear": (2,),
    "trilinear": (3,),
    "bicubic": (2,),
    "area": (1, 2, 3),
}


def interpolate(
    input: Tensor,
    size: Any = None,
    scale_factor: Any = None,
    mode: str = "nearest",
    align_corners: bool | None = None,
    recompute_scale_factor: bool | None = None,
    antialias: bool = False,
) -> Tensor:
    """input (N, C, L), (N, C, H, W) or (N, C, D, H, W) resized to `size` or by `scale_factor` (one, or one per axis).

    mode: "nearest" (PyTorch's, off by half a pixel), "nearest-exact", "area" (means, see `adaptive_avg_pool2d`), and,
    each for its number of axes, "linear", "bilinear", "trilinear", and "bicubic" (Keys, 1981, with a = -3/4).
    With align_corners (linear and cubic modes) the corner pixels keep their values; else pixels are areas, and the edge
    is repeated. N may be 0.
    ValueError unless exactly one of size and scale_factor is given, for an empty result, or one longer than 2^24.
    """
    op = "interpolate"
    refuse(op, antialias=antialias)
    for name, value in (("align_corners", align_corners), ("recompute_scale_factor", recompute_scale_factor)):
        if value is not None:
            flag(op, name, value)
    axes = MODES[choice(op, "mode", mode, tuple(MODES))]
    x = floating(op, "input", input)
    n = x.ndim - 2
    if n not in axes or 0 in x.shape[1:]:
        expected = " or ".join(f"(N, C{', D, H, W'[-3 * k :] if k > 1 else ', L'})" for k in axes)
        raise ValueError(f"{op}: expected `input` {expected} with mode {mode!r}, of which N may be 0, got {x.shape}")
    if (size is None) == (scale_factor is None):
        raise ValueError(f"{op}: expected exactly one of `size` and `scale_factor`")
    if align_corners is not None and mode in ("nearest", "nearest-exact", "area"):
        raise ValueError(f"{op}: `align_corners` has a meaning only with linear and cubic modes, not with {mode!r}")
    if size is not None:
        sizes = integers(op, "size", size, n, 1)
        if max(sizes) > MOST_PLACES:
            raise ValueError(f"{op}: expected `size` to be at most {MOST_PLACES}, got {size!r}")
        steps = [m / o for m, o in zip(x.shape[2:], sizes)]
    else:
        factors = tuple(scale_factor) if isinstance(scale_factor, (tuple, list)) else (scale_factor,) * n
        if len(factors) != n or not all(isinstance(f, Real) and 0 < float(f) < math.inf for f in factors):
            raise ValueError(f"{op}: expected `scale_factor` to be positive, one or {n}, got {scale_factor!r}")
        factors = tuple(map(float, factors))
        sizes = tuple(math.floor(m * f) for m, f in zip(x.shape[2:], factors))
        if min(sizes) < 1:
            raise ValueError(f"{op}: scale_factor {scale_factor!r} leaves nothing of {x.shape}")
        if max(sizes) > MOST_PLACES:
            raise ValueError(
                f"{op}: scale_factor {scale_factor!r} makes an axis longer than {MOST_PLACES} of {x.shape}"
            )
        steps = [m / o for m, o in zip(x.shape[2:], sizes)] if recompute_scale_factor else [1 / f for f in factors]
    if mode == "area":
        return _area(x, sizes)
    if "nearest" in mode:
        half = 0.5 if mode == "nearest-exact" else 0.0
        return Nearest.apply(x, taps=[_nearest(m, o, s, half) for m, o, s in zip(x.shape[2:], sizes, steps)])
    if sizes == x.shape[2:]:
        steps = [1.0] * n  # as PyTorch, also for 1.1
    place = _cubic if mode == "bicubic" else _linear
    return Resample.apply(x, taps=[place(m, o, s, bool(align_corners)) for m, o, s in zip(x.shape[2:], sizes, steps)])


def _nearest(n: int, out: int, step: float, half: float) -> Taps:
    step = 1.0 if out == n else 0.5 if out == 2 * n and not half else step
    # PyTorch's places to the last digit: where i * step is nearly whole, its FP32 product decides
    return [([min(int(i), n - 1) for i in (to_dtype(np.arange(out), float32) + half) * step], [1.0] * out)]


def _places(n: int, out: int, step: float, align_corners: bool) -> list[float]:
    """Where in the input, in pixels, the centres of the output's pixels lie."""
    if align_corners:
        return [i * (n - 1) / (out - 1) if out > 1 else 0.0 for i in range(out)]
    return [(i + 0.5) * step - 0.5 for i in range(out)]


def _linear(n: int, out: int, step: float, align_corners: bool) -> Taps:
    places = [max(p, 0.0) for p in _places(n, out, step, align_corners)]
    low = [min(int(p), n - 1) for p in places]
    part = [min(max(p - i, 0.0), 1.0) for p, i in zip(places, low)]
    return [(low, [1 - f for f in part]), ([min(i + 1, n - 1) for i in low], part)]


def _cubic(n: int, out: int, step: float, align_corners: bool) -> Taps:
    """The kernel of Keys (1981): (a + 2) |t|^3 - (a + 3) t^2 + 1 up to 1, a (|t|^3 - 5 t^2 + 8 |t| - 4) up to 2."""
    a, places = -0.75, _places(n, out, step, align_corners)
    low = [math.floor(p) for p in places]

    def weight(t: float) -> float:
        t = abs(t)
        return ((a + 2) * t - (a + 3)) * t * t + 1 if t <= 1 else ((t - 5) * t + 8) * t * a - 4 * a

    return [
        ([min(max(i + k, 0), n - 1) for i in low], [weight(p - i - k) for p, i in zip(places, low)])
        for k in range(-1, 3)
    ]


def _area(x: Tensor, sizes: tuple[int, ...]) -> Tensor:
    """Means over a grid of cells; for volumes in two steps, each with its own rounding."""
    if x.ndim == 3:
        return adaptive_avg_pool2d(x.unsqueeze(2), (1, *sizes)).squeeze(2)
    if x.ndim == 4:
        return adaptive_avg_pool2d(x, sizes)
    n, c, d, h, w = x.shape
    depth, *size = sizes
    planes = adaptive_avg_pool2d(x.reshape(n, c * d, h, w), size).reshape(n, c, d, *size).permute(0, 1, 3, 4, 2)
    columns = adaptive_avg_pool2d(planes.reshape(n, c * prod(size), 1, d), (1, depth))
    return columns.reshape(n, c, *size, depth).permute(0, 1, 4, 2, 3)


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
