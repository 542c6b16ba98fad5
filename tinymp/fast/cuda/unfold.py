"""unfold on a GPU: the columns of a convolution, and their sum."""

from __future__ import annotations

from math import prod

from ...autograd import Array
from ...ops.conv import Geometry, batch_first
from ...ops.more.unfold import Unfold
from . import kernel
from .conv import LIMIT, col2im, every_row, im2col


@kernel(Unfold.forward)
def unfold_forward(op: Unfold, x: Array, *, geometry: Geometry) -> Array:
    n, _, h, w = x.shape
    positions = prod(geometry.output(h, w))
    if not x.size or max(x.size, n * positions) >= LIMIT:
        return NotImplemented
    op.shape = x.shape
    y = im2col(op.xp, x.transpose(1, 2, 3, 0), geometry, every_row(geometry, h, w))
    return y.reshape(-1, positions, n).transpose(2, 0, 1)


@kernel(Unfold.backward)
def unfold_backward(op: Unfold, dy: Array) -> Array:
    (n, c, h, w), g = op.shape, op.geometry
    if not 0 < prod(op.shape) < LIMIT:
        return NotImplemented
    return batch_first(col2im(op.xp, dy.transpose(1, 2, 0), (c, h, w, n), g, every_row(g, h, w)))
