"""unfold: every window of an image as a column."""

from __future__ import annotations

from math import prod
from typing import Any

from ...arguments import name_all
from ...autograd import Array, Op
from ...precision import MOVEMENT, REDUCTION, store, widen
from ...tensor import Tensor
from ..conv import Geometry, batch_first, columns, fold, geometry_of, pair
from ..pool import image


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
    x, unbatched = image("unfold", input)
    kernel = pair("unfold", "kernel_size", kernel_size, 2, 1)
    y = Unfold.apply(x, geometry=geometry_of("unfold", 2, x.shape[2:], kernel, 1, stride, padding, dilation))
    return y.squeeze(0) if unbatched else y


name_all(globals())
