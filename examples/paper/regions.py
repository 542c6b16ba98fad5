"""Regions of interest: every region (box) of an image as a small image of one size. Boxes stay FP32, see boxes.py.

Sums are FP32, and the gradients of regions that overlap add up in FP32 and are rounded once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod
from typing import Any

import numpy as np

from tinymp import backend
from tinymp.autograd import Array, Op
from tinymp.ops.conv import Pair
from tinymp.precision import FP32, MOVEMENT, REDUCTION, scatter_add, store, widen
from tinymp.tensor import Tensor


class RoIPool(Op):
    """y = the largest x of each cell of a region (Girshick, 2015; nan if one is), 0 if it is empty;  its place gets dy.

    The corners are rounded to places of x; the last place belongs to the region. Cell p of P begins at floor(p n / P)
    and ends before ceil((p + 1) n / P). Gradients add up in FP32.
    """

    kind = MOVEMENT
    gradient = REDUCTION
    name = "roi_pool"

    def forward(self, x: Array, *, rois: Array, size: Pair, scale: float) -> Array:
        self.shape, xp = x.shape, self.xp
        _, c, h, w = x.shape
        planes, index = widen(x).reshape(len(x), c, h * w), xp.empty((len(rois), c, *size), "int32")
        for k, (n, starts, lengths) in enumerate(_corners(rois, scale)):
            sides = zip(starts, lengths, size, (h, w))
            (rows, no_rows), (cols, no_cols) = (_cells(*side) for side in sides)
            places = (rows[:, None, :, None] * w + cols[:, None]).reshape(*size, -1)  # of every cell
            if places.size:
                places, (p, q) = xp.asarray(places), xp.ogrid[: size[0], : size[1]]
                best = xp.take(planes[n], places, 1).argmax(3)  # the first of equals, and of nans
                index[k] = places[p, q, best]
            index[k][:, xp.asarray(no_rows[:, None] | no_cols)] = -1
        self.save(index)
        return self.device.select(index >= 0, xp.take(x.reshape(-1), xp.maximum(self._places(), 0)))

    def backward(self, dy: Array) -> Array:
        places, found = self._places(), self.saved[0] >= 0
        dx = scatter_add(prod(self.shape), places[found], dy[found], like=dy)
        return store(dx.reshape(self.shape), like=dy)

    def _places(self) -> Array:
        """Where in x the maxima are, counted in row-major order. Empty cells have none."""
        (index,), (_, c, h, w), xp = self.saved, self.shape, self.xp
        image = xp.asarray(self.rois[:, 0], "int64")[:, None, None, None]
        return (image * c + xp.arange(c)[:, None, None]) * (h * w) + index


def _corners(rois: Array, scale: float) -> Iterator[tuple]:
    """The image of every region, and in y and x its first place and how many it has; halves are rounded away from 0."""
    rois = backend.to_cpu(rois)
    at = rois[:, 1:] * scale
    corners = np.trunc(2 * at) - np.trunc(at)
    for n, x1, y1, x2, y2 in np.concatenate([rois[:, :1], corners], 1).tolist():
        yield int(n), (int(y1), int(x1)), (int(y2 - y1) + 1, int(x2 - x1) + 1)


def _cells(start: int, length: int, cells: int, n: int) -> tuple[np.ndarray, np.ndarray]:
    """The places of each cell (cells, most), of which the last is repeated where it has fewer, and which have none."""
    p = np.arange(cells)
    begin, end = (np.clip(start + v, 0, n) for v in (p * length // cells, -(-(p + 1) * length // cells)))
    places = np.minimum(begin[:, None] + np.arange((end - begin).max()), end[:, None] - 1)
    return np.maximum(places, 0), end <= begin


def roi_pool(input: Tensor, boxes: Sequence[Any], output_size: tuple[int, int], spatial_scale: float) -> Tensor:
    """Every box of input (N, C, H, W) in cells, as (K, C, *output_size): the maximum of each, 0 where it is empty.

    boxes: FP32 Tensors or arrays, one (L, 4) for each image; in pixels, of which input has spatial_scale times as many.
    Cells are cut by integers; torchvision does it in FP32, which for a few sizes takes in one place more. Gradients are
    input's alone.
    """
    device = backend.of(input.array)
    given = [b.array if isinstance(b, Tensor) else b for b in boxes]
    numbered = [device.xp.concatenate([device.xp.full((len(b), 1), i, b.dtype), b], 1) for i, b in enumerate(given)]
    rois = device.concatenate([device.xp.empty((0, 5), FP32.storage), *numbered], 0)
    return RoIPool.apply(input, rois=rois, size=output_size, scale=spatial_scale)
