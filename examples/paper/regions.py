"""Regions of interest: every region (box) of an image as a small image of one size. Boxes stay FP32, see boxes.py.

Sums are FP32, and the gradients of regions that overlap add up in FP32 and are rounded once.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import Any

import numpy as np

from tinymp import backend
from tinymp.arguments import floating, integers, number
from tinymp.autograd import Array, Op
from tinymp.ops.conv import Pair
from tinymp.precision import FP32, MOVEMENT, REDUCTION, scatter_add, store, widen
from tinymp.tensor import Tensor

from .boxes import arrays, require_all, require_boxes

FARTHEST = 1 << 16  # places of the input, from its corner to that of a region: more must be a mistake


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


# ---------------------------------------------------------------------------------------------------------- functions


def _regions(op: str, input: Any, boxes: Any, output_size: Any, spatial_scale: Any) -> tuple[Tensor, dict[str, Any]]:
    """The checked input, and the options of the op; the boxes as one array (K, 5) of their own."""
    x = floating(op, "input", input)
    if x.ndim != 4 or 0 in x.shape[1:]:
        raise ValueError(f"{op}: expected `input` to be (N, C, H, W), of which N may be 0, got {x.shape}")
    size = integers(op, "output_size", output_size, 2, 1)
    scale = number(op, "spatial_scale", spatial_scale, 0, above=True)
    device = backend.of(x.array)
    xp = device.xp
    if isinstance(boxes, (tuple, list)):
        if len(boxes) != len(x):
            raise ValueError(f"{op}: expected boxes of each of the {len(x)} images of `input`, got {len(boxes)}")
        given = arrays(op, input=x, **{f"boxes[{i}]": b for i, b in enumerate(boxes)})[1:]
        for i, b in enumerate(given):
            require_boxes(op, f"boxes[{i}]", b)
        numbered = [xp.concatenate([xp.full((len(b), 1), i, b.dtype), b], 1) for i, b in enumerate(given)]
        rois = device.concatenate([xp.empty((0, 5), FP32.storage), *numbered], 0)
    else:
        _, rois = arrays(op, input=x, boxes=boxes)
        require_boxes(op, "boxes", rois, columns=5)
        images = rois[:, 0]
        good = (images >= 0) & (images < len(x)) & (images == xp.floor(images))
        require_all(good, f"{op}: expected `boxes` to begin with the number of an image, one of {len(x)}", rois)
        rois = rois.copy()
    near = (abs(rois[:, 1:]) * scale <= FARTHEST).all(1)
    require_all(near, f"{op}: expected `boxes` within {FARTHEST} places of the corner of `input`", rois)
    return x, {"rois": rois, "size": size, "scale": scale}


def roi_pool(input: Tensor, boxes: Any, output_size: Any, spatial_scale: float = 1.0) -> Tensor:
    """Every box of input (N, C, H, W) in cells, as (K, C, *output_size): the maximum of each, 0 where it is empty.

    boxes: FP32 Tensors or arrays, one (L, 4) for each image, or (K, 5) with the image's number first; in pixels, of
    which input has spatial_scale times as many. Cells are cut by integers; torchvision does it in FP32, which for a few
    sizes takes in one place more. Gradients are input's alone.
    ValueError that names the index of a box with x2 < x1 or y2 < y1, one that is not finite, or that of no image.
    """
    x, options = _regions("roi_pool", input, boxes, output_size, spatial_scale)
    return RoIPool.apply(x, **options)
