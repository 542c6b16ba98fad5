"""Modules without parameters beyond those of nn/functions.py; each calls the op of its name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ...arguments import name_all
from ..functions import Function


@dataclass(eq=False, repr=False)
class LocalResponseNorm(Function):
    """x_c (k + alpha / size * sum of x^2 over `size` channels around c)^-beta. See `ops.local_response_norm`."""

    op = "local_response_norm"
    size: int
    alpha: float = 1e-4
    beta: float = 0.75
    k: float = 1.0


@dataclass(eq=False, repr=False)
class Upsample(Function):
    """Resize images to `size` or by `scale_factor`. See `ops.interpolate`."""

    op = "interpolate"
    size: Any = None
    scale_factor: Any = None
    mode: str = "nearest"
    align_corners: bool | None = None
    recompute_scale_factor: bool | None = None


@dataclass(eq=False, repr=False)
class PixelShuffle(Function):
    """(N, C r^2, H, W) to (N, C, H r, W r) for r = upscale_factor. See `ops.pixel_shuffle`."""

    op = "pixel_shuffle"
    upscale_factor: int


name_all(globals())
