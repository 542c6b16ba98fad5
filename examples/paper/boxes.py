"""Boxes of detectors: how much they overlap, which of them to keep, and how networks code them.

A box is x1, y1, x2, y2 in pixels, FP32 under every policy: at 1,024 pixels FP16's numbers are a pixel apart. These
functions have no gradients. They take Tensors or arrays, all on one device, and return a Tensor if the first argument
is one, else an array. The names, and where it is not said otherwise the results, are torchvision's.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from tinymp import backend
from tinymp.arguments import FP32_TINY
from tinymp.autograd import Array
from tinymp.precision import widen
from tinymp.tensor import Tensor

MOST_GROWTH = math.log(1000 / 16)  # `decode_boxes` makes no box larger than that: exp would overflow


def _array(x: Any) -> Array:
    return x.array if isinstance(x, Tensor) else x


def _like(x: Any, y: Array) -> Any:
    return Tensor(y) if isinstance(x, Tensor) else y


def box_iou(boxes1: Any, boxes2: Any) -> Any:
    """(n, m): the area that box i of boxes1 (n, 4) and box j of boxes2 (m, 4) share, divided by that of both together.

    0 for two boxes without area, of which torchvision makes nan.
    """
    first, second = _sides(_array(boxes1)), _sides(_array(boxes2))
    return _like(boxes1, _overlap(*first[:, :, None], *second[:, None]))


def _sides(boxes: Array) -> Array:
    """x1, y1, x2, y2 and the area of boxes (n, 4), as (5, n)."""
    x1, y1, x2, y2 = boxes.T
    return backend.of(boxes).xp.stack([x1, y1, x2, y2, (x2 - x1) * (y2 - y1)])


def _overlap(*sides: Array) -> Array:
    """The intersection over union of boxes that broadcast: the five of `_sides` of each."""
    (a_x1, a_y1, a_x2, a_y2, a), (b_x1, b_y1, b_x2, b_y2, b) = sides[:5], sides[5:]
    xp = backend.of(a).xp
    shared = xp.maximum(xp.minimum(a_x2, b_x2) - xp.maximum(a_x1, b_x1), 0)
    shared *= xp.maximum(xp.minimum(a_y2, b_y2) - xp.maximum(a_y1, b_y1), 0)
    return shared / xp.maximum(a + b - shared, FP32_TINY)


def nms(boxes: Any, scores: Any, iou_threshold: float) -> Any:
    """Non-maximum suppression: the indices (int64) of the boxes to keep, the best score first.

    From the best on, a box is kept unless it overlaps one that was kept before by an IoU above iou_threshold, both in
    FP32: an IoU of 3/10 is not above 0.3. (On a CPU torchvision compares an FP32 IoU with a float64 threshold: it drops
    that box.) Of equal scores the one with the smaller index comes first. boxes: (n, 4); scores: (n,), floating. It
    waits for a GPU: how many are kept must be known.
    """
    b, s = _array(boxes), _array(scores)
    xp = backend.of(b).xp
    order = xp.argsort(-widen(s), kind="stable")
    sides = backend.to_cpu(_sides(b[order]))  # on the host, the best score first
    left, kept = np.arange(len(b)), []
    while len(left):
        kept.append(left[0])
        rest = left[1:]
        # np.asarray: on the device "meta" nothing is known, and all boxes are kept
        left = rest[~np.asarray(_overlap(*sides[:, left[0]], *sides[:, rest]) > iou_threshold)]
    return _like(boxes, order[xp.asarray(kept, int)])


def clip_boxes_to_image(boxes: Any, size: tuple[int, int]) -> Any:
    """boxes (n, 4) cut off at the borders of an image of size (height, width)."""
    b, (height, width) = _array(boxes), size
    xp = backend.of(b).xp
    # rounds: the size of an image, exact up to 2^24
    return _like(boxes, xp.minimum(xp.maximum(b, 0), xp.asarray([width, height, width, height], b.dtype)))


def remove_small_boxes(boxes: Any, min_size: float) -> Any:
    """The indices (int64) of the boxes (n, 4) of which no side is shorter than min_size."""
    b = _array(boxes)
    return _like(boxes, backend.of(b).xp.flatnonzero((b[:, 2:] - b[:, :2] >= min_size).all(1)))


def encode_boxes(reference_boxes: Any, proposals: Any, weights: Sequence[float]) -> Any:
    """Codes (n, 4) of the shift and stretch from proposals (n, 4) to reference_boxes (n, 4), of ordinary size:

    (g_x - p_x) / p_w, (g_y - p_y) / p_h, log(g_w / p_w), log(g_h / p_h), times the four `weights`, with the centres x,
    y and the sizes w, h of the proposal p and the reference g (Ren et al., 2015, equation 2), which have areas.
    """
    (g, wanted), (p, size) = _centres(_array(reference_boxes)), _centres(_array(proposals))
    xp = backend.of(p).xp
    codes = xp.concatenate([(g - p) / size, xp.log(wanted / size)], 1)
    return _like(reference_boxes, codes * xp.asarray(weights, codes.dtype))  # rounds: weights, from FP64


def decode_boxes(rel_codes: Any, boxes: Any, weights: Sequence[float]) -> Any:
    """The boxes (n, 4 k) that codes (n, 4 k), as of `encode_boxes`, make of boxes (n, 4).

    k: 1, or the number of classes, each of which has its own codes. rel_codes may have any floating dtype; the result
    is FP32. The logarithms are cut off at log(1000 / 16), before exp overflows.
    """
    codes, b = _array(rel_codes), _array(boxes)
    xp = backend.of(b).xp
    # rounds: the weights of box codes, from Python's FP64 to FP32
    wide = widen(codes).reshape(len(b), codes.shape[1] // 4, 4) / xp.asarray(weights, b.dtype)
    centre, size = (v[:, None] for v in _centres(b))
    with np.errstate(all="ignore"):  # of a network that diverges, codes are not finite
        centre = centre + wide[..., :2] * size
        half = 0.5 * size * xp.exp(xp.minimum(wide[..., 2:], MOST_GROWTH))
        return _like(rel_codes, xp.concatenate([centre - half, centre + half], 2).reshape(codes.shape))


def _centres(boxes: Array) -> tuple[Array, Array]:
    """The centres (n, 2) and sizes (n, 2) of boxes."""
    size = boxes[:, 2:] - boxes[:, :2]
    return boxes[:, :2] + 0.5 * size, size
