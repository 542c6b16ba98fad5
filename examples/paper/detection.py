"""Code shared by SSD and Faster R-CNN: the objects of an image, their assignment to boxes, and detections.

Boxes are FP32 (n, 4) as x1, y1, x2, y2 in pixels under every policy. Objects are assigned on the host, in NumPy arrays,
as in the originals; losses and coding are ops.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from tinymp import ops
from tinymp.autograd import Array
from tinymp.tensor import Tensor

from .boxes import box_iou, clip_boxes_to_image, nms

BACKGROUND, NEITHER = -1, -2


class Objects(NamedTuple):
    """The objects in an image: boxes FP32 (n, 4) and labels int64 (n,), on the host."""

    boxes: Array
    labels: Array


def objects_of(op: str, targets: Any) -> list[Objects]:
    """The objects of each image. targets: for each image a dict with "boxes" (n, 4), FP32 x1, y1, x2, y2 in pixels, and
    "labels" (n,), integers above 0, which is the background; arrays. n may be 0. ValueError without targets.
    """
    if targets is None:
        raise ValueError(f"{op}: expected `targets` in training: a dict of boxes and labels for each image; see eval()")
    return [Objects(target["boxes"].reshape(-1, 4), target["labels"]) for target in targets]


def match(objects: Array, boxes: Array, high: float, low: float, best: bool = True) -> Array:
    """For each box the number of the object that it shall find, or BACKGROUND, or NEITHER.

    objects: FP32 (m, 4), boxes: FP32 (n, 4). A box shall find the object with which its intersection over union is
    largest, if that is at least `high`; below `low` it is background. With `best`, each object has a box in any case:
    of all pairs the closest one is taken, then the closest of the other objects and boxes, and so on.
    """
    found = np.full(len(boxes), BACKGROUND)
    if not len(objects) or not len(boxes):
        return found
    iou = box_iou(objects, boxes)
    closest = iou.max(0)
    found[closest >= low] = NEITHER
    found[closest >= high] = iou.argmax(0)[closest >= high]
    if best:
        left = iou.copy()
        for _ in range(len(objects)):
            i, j = np.unravel_index(left.argmax(), left.shape)
            if left[i, j] <= 0:
                break
            found[j], left[i], left[:, j] = i, 0, 0
    return found


def sample(found: Array, number: int, share: float, random: np.random.Generator) -> Array:
    """The places of `number` boxes: at most this share of them with objects, the others background."""
    positive = random.permutation(np.flatnonzero(found >= 0))[: int(number * share)]
    negative = random.permutation(np.flatnonzero(found == BACKGROUND))[: number - len(positive)]
    return np.concatenate([positive, negative])


def per_box(y: Tensor, columns: int) -> Tensor:
    """A map (N, boxes * columns, H, W) as (N, H * W * boxes, columns): a row for each box of each place."""
    n, channels, h, w = y.shape
    y = y.reshape(n, channels // columns, columns, h, w).permute(0, 3, 4, 1, 2)
    return y.reshape(n, h * w * (channels // columns), columns)


def detections(
    boxes: Tensor, scores: Tensor, size: tuple[int, int], threshold: float, overlap: float, each: int, most: int
) -> dict[str, Tensor]:
    """The objects found in an image of this size (H, W), best first: "boxes", "labels", "scores".

    boxes: FP32 (n, 4), or (n, classes, 4) if each class has its own; scores: FP32 (n, classes), class 0 the background.
    Of each class, the best `each` boxes with scores above `threshold` go through NMS at `overlap`; `most` in all stay.
    """
    found: list[tuple[Tensor, Tensor, Tensor]] = []
    for label in range(1, scores.shape[1]):
        s = scores[:, label]
        b = clip_boxes_to_image(boxes if boxes.ndim == 2 else boxes[:, label], size)
        good = ops.gt(s, threshold) & ops.isfinite(b).all(1)  # of a network that diverges, some are not
        s, b = s[good], b[good]
        best = ops.topk(s, min(each, len(s)))
        b = b[best.indices]
        keep = nms(b, best.values, overlap)
        found.append((b[keep], ops.full_like(keep, label), best.values[keep]))
    b, labels, s = (ops.cat(column) for column in zip(*found))
    best = ops.topk(s, min(most, len(s)))
    return {"boxes": b[best.indices], "labels": labels[best.indices], "scores": best.values}
