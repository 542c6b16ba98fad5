"""What SSD and Faster R-CNN share: the objects of an image, which box shall find which of them, and detections.

Boxes are FP32 (n, 4) as x1, y1, x2, y2 in pixels under every policy. Which box learns what is decided on the host, in
arrays of NumPy, as in the originals; losses and coding are ops.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from tinymp import ops
from tinymp.arguments import floating
from tinymp.autograd import Array
from tinymp.backend import to_cpu
from tinymp.dtypes import HALVES
from tinymp.precision import FP32, to_dtype
from tinymp.tensor import Tensor, array_of

BACKGROUND, NEITHER = -1, -2


class Objects(NamedTuple):
    """What an image shows: boxes FP32 (n, 4) and labels int64 (n,), on the host."""

    boxes: Array
    labels: Array


# ----------------------------------------------------------------------------------------------------------- checks


def check_images(op: str, images: Any, in_channels: int, size: tuple[int, int] | None = None) -> None:
    """ValueError unless images are (N, in_channels, H, W), with (H, W) == size where that is given."""
    expected = f"(N, {in_channels}, {', '.join(map(str, size or 'HW'))})"
    shape = floating(op, "images", images).shape
    if len(shape) != 4 or shape[1] != in_channels or (size and shape[2:] != size):
        raise ValueError(f"{op}: expected `images` of shape {expected}, got {shape}; resize them, and their boxes")


def check_targets(op: str, targets: Any, images: Tensor, num_classes: int) -> list[Objects]:
    """The objects of each image. Errors name the image, and the box or label in it.

    targets: for each image a dict with "boxes" (n, 4), which lie in the image and have an area, and "labels" (n,), with
    1 <= label < num_classes (0 is the background); Tensors, arrays or lists. n may be 0.
    """
    if targets is None:
        raise ValueError(f"{op}: expected `targets` in training: a dict of boxes and labels for each image; see eval()")
    if not isinstance(targets, Sequence) or len(targets) != len(images):
        got = len(targets) if isinstance(targets, Sequence) else type(targets).__name__
        raise ValueError(f"{op}: expected `targets` to be a list of {len(images)} dicts, one per image, got {got}")
    if not targets:
        raise ValueError(f"{op}: expected at least one image in training, got `images` of shape {images.shape}")
    height, width = images.shape[2:]
    return [_objects(f"{op}: targets[{i}]", t, (width, height), num_classes) for i, t in enumerate(targets)]


def _objects(where: str, target: Any, limits: tuple[int, int], num_classes: int) -> Objects:
    if not isinstance(target, Mapping) or not {"boxes", "labels"} <= target.keys():
        got = sorted(map(str, target)) if isinstance(target, Mapping) else type(target).__name__
        raise ValueError(f'{where}: expected a dict with "boxes" and "labels", got {got}')
    given = (target["boxes"], target["labels"])
    boxes, labels = (x.numpy() if isinstance(x, Tensor) else to_cpu(array_of(where, x)) for x in given)
    if boxes.dtype in HALVES:
        raise TypeError(
            f"{where}: expected FP32 boxes, got {boxes.dtype}, whose grid is coarse; leave them out of policy.cast"
        )
    boxes = boxes.reshape(0, 4) if not boxes.size else to_dtype(_numbers(where, boxes), FP32.storage)
    if boxes.ndim != 2 or boxes.shape[1] != 4:
        raise ValueError(f"{where}: expected boxes of shape (n, 4) as x1, y1, x2, y2, got {boxes.shape}")
    if labels.shape != (len(boxes),):
        raise ValueError(f"{where}: expected one label for each of {len(boxes)} boxes, got shape {labels.shape}")
    if labels.size and labels.dtype.kind not in "iu":
        raise TypeError(f"{where}: expected labels to be integers, got {labels.dtype}")
    low, high = boxes[:, :2], boxes[:, 2:]
    for j in np.flatnonzero(~((low >= 0) & (low < high) & (high <= limits)).all(1)):
        raise ValueError(
            f"{where}: expected boxes with 0 <= x1 < x2 <= {limits[0]} and 0 <= y1 < y2 <= {limits[1]}, got "
            f"{boxes[j].tolist()} at index {j}"
        )
    for j in np.flatnonzero((labels < 1) | (labels >= num_classes)):
        raise ValueError(f"{where}: expected labels in [1, {num_classes - 1}], got {labels[j]} at index {j}")
    return Objects(boxes, np.asarray(labels, "int64"))


def _numbers(where: str, x: Array) -> Array:
    if x.dtype.kind not in "iuf":
        raise TypeError(f"{where}: expected boxes to be numbers, got {x.dtype}")
    return np.asarray(x, float) if x.dtype.kind != "f" else x  # rounds: never, boxes in whole numbers


# --------------------------------------------------------------------------------------------- which box learns what


def match(objects: Array, boxes: Array, high: float, low: float, best: bool = True) -> Array:
    """For each box the number of the object that it shall find, or BACKGROUND, or NEITHER.

    objects: FP32 (m, 4), boxes: FP32 (n, 4). A box shall find the object with which its intersection over union is
    largest, if that is at least `high`; below `low` it is background. With `best`, each object has a box in any case:
    of all pairs the closest one is taken, then the closest of the other objects and boxes, and so on.
    """
    found = np.full(len(boxes), BACKGROUND)
    if not len(objects) or not len(boxes):
        return found
    iou = ops.box_iou(objects, boxes)
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


# ------------------------------------------------------------------------------------------------------- predictions


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
        b = ops.clip_boxes_to_image(boxes if boxes.ndim == 2 else boxes[:, label], size)
        good = ops.gt(s, threshold) & ops.isfinite(b).all(1)  # of a network that diverges, some are not
        s, b = s[good], b[good]
        best = ops.topk(s, min(each, len(s)))
        b = b[best.indices]
        keep = ops.nms(b, best.values, overlap)
        found.append((b[keep], ops.full_like(keep, label), best.values[keep]))
    b, labels, s = (ops.cat(column) for column in zip(*found))
    best = ops.topk(s, min(most, len(s)))
    return {"boxes": b[best.indices], "labels": labels[best.indices], "scores": best.values}
