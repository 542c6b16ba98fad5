"""unfold: every window of an image as a column."""

from __future__ import annotations

from math import prod
from typing import Any

from ...arguments import floating, integers, name_all
from ...autograd import Array, Op
from ...precision import MOVEMENT, REDUCTION, store, widen
from ...tensor import Tensor
from ..conv import Geometry, batch_first, columns, fold, geometry_of


class Unfold(Op):
    """y (N, C kh kw, L): every window as a column;  dx adds them back where they overlap, in FP32."""

    kind = MOVEMENT
    gradient = REDUCTION

    def forward(self, x: Array, *, geometry: Geometry) -> Array:
        self.shape = n, c, h, w = x.shape
        y = columns(self.xp, x.transpose(1, 2, 3, 0), geometry)
        return y.reshape(c * prod(geometry.kernel), prod(geometry.output(h, w)), n).transpose(2, 0, 1)

    def backward(self, dy: Array) -> Array:
        n, *rest = self.shape
        return store(batch_first(fold(self.xp, widen(dy).transpose(1, 2, 0), (*rest, n), self.geometry, dy)), like=dy)


def unfold(input: Tensor, kernel_size: Any, dilation: Any = 1, padding: Any = 0, stride: Any = 1) -> Tensor:
    """Every kernel-sized window of input (N, C, H, W) or (C, H, W) as a column: (N, C kh kw, number of windows)."""
    x = floating("unfold", "input", input)
    if x.ndim not in (3, 4) or 0 in x.shape[-3:]:
        raise ValueError(
            f"unfold: expected `input` to be (N, C, H, W) or (C, H, W), of which N may be 0, got {x.shape}"
        )
    batched = x if x.ndim == 4 else x.unsqueeze(0)
    kernel = integers("unfold", "kernel_size", kernel_size, 2, 1)
    geometry = geometry_of("unfold", 2, x.shape[-2:], kernel, stride, padding, dilation, 1)
    y = Unfold.apply(batched, geometry=geometry)
    return y if batched is x else y.squeeze(0)


name_all(globals())
