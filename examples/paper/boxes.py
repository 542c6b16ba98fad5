"""Boxes of detectors: how much they overlap, which of them to keep, and how networks code them.

A box is x1, y1, x2, y2 in pixels, FP32 under every policy: at 1,024 pixels FP16's numbers are a pixel apart. These
functions have no gradients. They take Tensors or arrays, all on one device, and return a Tensor if the first argument
is one, else an array. The names, and where it is not said otherwise the results, are torchvision's.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tinymp import backend
from tinymp.arguments import FP32_TINY, number
from tinymp.autograd import Array
from tinymp.dtypes import FLOATING, float32
from tinymp.events import type_name
from tinymp.precision import widen
from tinymp.tensor import Tensor

__all__ = ["box_iou", "clip_boxes_to_image", "decode_boxes", "encode_boxes", "nms", "remove_small_boxes"]

FEW = 64  # boxes that are compared with all others at once
MOST_GROWTH = math.log(1000 / 16)  # `decode_boxes` makes no box larger than that: exp would overflow


# ------------------------------------------------------------------------------------------------------------- checks


def arrays(op: str, **given: Any) -> list[Array]:
    """The arrays of Tensors or arrays. TypeError for anything else, ValueError for those of several devices."""
    found = [x.array if isinstance(x, Tensor) else x for x in given.values()]
    for name, x in zip(given, found):
        if not (hasattr(x, "ndim") and hasattr(x, "dtype")):
            raise TypeError(f"{op}: expected a Tensor or an array for `{name}`, got {type_name(x)}")
    if len({backend.of(x) for x in found}) > 1:
        seen = ", ".join(f"`{name}` is on {backend.of(x).name}" for name, x in zip(given, found))
        raise ValueError(f"{op}: expected arrays on one device, got {seen}; move them with .to(device)")
    return found


def require_boxes(op: str, name: str, boxes: Array, columns: int = 4) -> None:
    """TypeError unless boxes are FP32; ValueError unless they are (n, columns), of which the last four are finite with
    x1 <= x2 and y1 <= y2.
    """
    require_shape(op, name, boxes, columns)
    x = boxes[:, -4:]
    good = backend.of(x).xp.isfinite(x).all(1) & (x[:, :2] <= x[:, 2:]).all(1)
    require_all(good, f"{op}: expected every box of `{name}` to be finite, with x1 <= x2 and y1 <= y2", boxes)


def require_shape(op: str, name: str, boxes: Array, columns: int = 4) -> None:
    """TypeError unless boxes are FP32, ValueError unless they are (n, columns)."""
    if boxes.dtype != float32:
        raise TypeError(
            f"{op}: expected `{name}` to be float32 under every policy, got {boxes.dtype}; convert it with .float()"
        )
    if boxes.ndim != 2 or boxes.shape[1] != columns:
        raise ValueError(f"{op}: expected `{name}` of shape (n, {columns}), got {boxes.shape}")


def require_all(good: Array, message: str, values: Array) -> None:
    """ValueError with the first index at which good (n,) does not hold, and the values there.

    On a GPU it is raised some time later, at a moment that waits for the GPU, and does not know them.
    """
    backend.of(good).require(good, ValueError, message, values)


def _weights(op: str, weights: Any) -> list[float]:
    given = list(weights) if isinstance(weights, (tuple, list)) else [weights]
    if len(given) != 4:
        raise ValueError(f"{op}: expected `weights` to be four numbers (x, y, width, height), got {weights!r}")
    return [number(op, "weights", w, 0, above=True) for w in given]


def _like(x: Any, y: Array) -> Any:
    return Tensor(y) if isinstance(x, Tensor) else y


# ------------------------------------------------------------------------------------------------------------ overlap


def box_iou(boxes1: Any, boxes2: Any) -> Any:
    """(n, m): the area that box i of boxes1 (n, 4) and box j of boxes2 (m, 4) share, divided by that of both together.

    0 for two boxes without area, of which torchvision makes nan. ValueError for a box with x2 < x1 or y2 < y1.
    """
    first, second = arrays("box_iou", boxes1=boxes1, boxes2=boxes2)
    for name, boxes in (("boxes1", first), ("boxes2", second)):
        require_boxes("box_iou", name, boxes)
    with np.errstate(all="ignore"):
        return _like(boxes1, _overlap(*_sides(first)[:, :, None], *_sides(second)[:, None]))


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


# -------------------------------------------------------------------------------------------------------- suppression


def nms(boxes: Any, scores: Any, iou_threshold: float) -> Any:
    """Non-maximum suppression: the indices (int64) of the boxes to keep, the best score first.

    From the best on, a box is kept unless it overlaps one that was kept before by an IoU above iou_threshold, both in
    FP32: an IoU of 3/10 is not above 0.3. (On a CPU torchvision compares an FP32 IoU with a float64 threshold: it drops
    that box.) Of equal scores the one with the smaller index comes first. boxes: (n, 4); scores: (n,), floating. It
    waits for a GPU: how many are kept must be known.
    ValueError for a score that is nan and for a box that is not finite or has x2 < x1 or y2 < y1.
    """
    threshold = number("nms", "iou_threshold", iou_threshold, 0, 1)
    b, s = arrays("nms", boxes=boxes, scores=scores)
    require_boxes("nms", "boxes", b)
    if s.dtype not in FLOATING or s.shape != (len(b),):
        raise ValueError(f"nms: expected a floating score for each of {len(b)} boxes, got {s.dtype} {s.shape}")
    require_all(s == s, "nms: expected no nan among `scores`", s)
    xp = backend.of(b).xp
    order = xp.argsort(-widen(s), kind="stable")
    kept = _kept(backend.to_cpu(_sides(b[order])), threshold)
    return _like(boxes, order[xp.asarray(np.sort(kept))])


def _kept(sides: np.ndarray, threshold: float) -> np.ndarray:
    """The places of the boxes to keep, found on the host; sides (5, n) as by `_sides`, the best score first.

    The next few boxes that are left are compared with all others at once: what that makes stays in the cache.
    """
    places, kept = np.arange(sides.shape[1]), []
    while len(places):
        few = range(min(FEW, len(places)))
        with np.errstate(all="ignore"):
            apart = ~(_overlap(*sides[:, : len(few), None], *sides[:, None]) > threshold)
        left = np.ones(len(places), bool)
        for i in few:
            if left[i]:
                kept.append(places[i])
                left &= apart[i]
        left[: len(few)] = False
        places, sides = places[left], sides[:, left]
    return np.asarray(kept, places.dtype)  # rounds: never, whole numbers


# ------------------------------------------------------------------------------------------------ cutting and picking


def clip_boxes_to_image(boxes: Any, size: Any) -> Any:
    """boxes (n, 4) cut off at the borders of an image of size (height, width)."""
    (b,) = arrays("clip_boxes_to_image", boxes=boxes)
    require_shape("clip_boxes_to_image", "boxes", b)
    if not isinstance(size, (tuple, list)) or len(size) != 2:
        raise ValueError(f"clip_boxes_to_image: expected `size` (height, width), got {size!r}")
    height, width = [number("clip_boxes_to_image", "size", s, 0) for s in size]
    xp = backend.of(b).xp
    # rounds: the size of an image, exact up to 2^24
    return _like(boxes, xp.minimum(xp.maximum(b, 0), xp.asarray([width, height, width, height], b.dtype)))


def remove_small_boxes(boxes: Any, min_size: float) -> Any:
    """The indices (int64) of the boxes (n, 4) of which no side is shorter than min_size."""
    (b,) = arrays("remove_small_boxes", boxes=boxes)
    require_shape("remove_small_boxes", "boxes", b)
    least = number("remove_small_boxes", "min_size", min_size)
    return _like(boxes, backend.of(b).xp.flatnonzero((b[:, 2:] - b[:, :2] >= least).all(1)))


# -------------------------------------------------------------------------------------------------------------- codes


def encode_boxes(reference_boxes: Any, proposals: Any, weights: Any) -> Any:
    """How to move and stretch proposals (n, 4) to get reference_boxes (n, 4), as numbers of ordinary size (n, 4).

    (g_x - p_x) / p_w, (g_y - p_y) / p_h, log(g_w / p_w), log(g_h / p_h), times `weights`, with the centres x, y and the
    sizes w, h of the proposal p and the reference g (Ren et al., 2015, equation 2).
    ValueError for a box without area, of which there is no logarithm.
    """
    op = "encode_boxes"
    reference, proposal = arrays(op, reference_boxes=reference_boxes, proposals=proposals)
    for name, boxes in (("reference_boxes", reference), ("proposals", proposal)):
        require_boxes(op, name, boxes)
        require_all(
            (boxes[:, :2] < boxes[:, 2:]).all(1), f"{op}: expected every box of `{name}` to have an area", boxes
        )
    if len(reference) != len(proposal):
        raise ValueError(
            f"{op}: expected one reference box for each proposal, got {len(reference)} for {len(proposal)}"
        )
    xp, scales = backend.of(proposal).xp, _weights(op, weights)
    p, size = _centres(proposal)
    g, wanted = _centres(reference)
    codes = xp.concatenate([(g - p) / size, xp.log(wanted / size)], 1)
    return _like(reference_boxes, codes * xp.asarray(scales, codes.dtype))  # rounds: weights, from FP64


def decode_boxes(rel_codes: Any, boxes: Any, weights: Any) -> Any:
    """The boxes (n, 4 k) that codes (n, 4 k), as of `encode_boxes`, make of boxes (n, 4).

    k: 1, or the number of classes, each of which has its own codes. rel_codes may have any floating dtype; the result
    is FP32. The logarithms are cut off at log(1000 / 16), before exp overflows.
    """
    op = "decode_boxes"
    codes, b = arrays(op, rel_codes=rel_codes, boxes=boxes)
    require_boxes(op, "boxes", b)
    if codes.dtype not in FLOATING:
        raise TypeError(f"{op}: expected `rel_codes` to be floating, got {codes.dtype}")
    if codes.ndim != 2 or len(codes) != len(b) or codes.shape[1] % 4 or not codes.shape[1]:
        raise ValueError(f"{op}: expected `rel_codes` of shape ({len(b)}, 4 k) for {len(b)} boxes, got {codes.shape}")
    xp, scales = backend.of(b).xp, _weights(op, weights)
    # rounds: the weights of box codes, from Python's FP64 to FP32
    wide = widen(codes).reshape(len(b), codes.shape[1] // 4, 4) / xp.asarray(scales, b.dtype)
    centre, size = (v[:, None] for v in _centres(b))
    with np.errstate(all="ignore"):
        centre = centre + wide[..., :2] * size
        half = 0.5 * size * xp.exp(xp.minimum(wide[..., 2:], MOST_GROWTH))
        return _like(rel_codes, xp.concatenate([centre - half, centre + half], 2).reshape(codes.shape))


def _centres(boxes: Array) -> tuple[Array, Array]:
    """The centres (n, 2) and sizes (n, 2) of boxes."""
    size = boxes[:, 2:] - boxes[:, :2]
    return boxes[:, :2] + 0.5 * size, size
