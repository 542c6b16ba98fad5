"""VOC's mean average precision: how well found boxes fit the true ones (Everingham et al., 2010, section 4.2).

A found box is right if it overlaps a true box of its class by an IoU of at least a half; a second one on the same true
box is wrong. Precision is the share of right ones among those found so far, best score first; recall the share of true
boxes found. Average precision is the mean, over recalls from 0 to 1, of the best precision at that recall or above.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .boxes import box_iou

Boxes = dict[str, np.ndarray]  # "boxes" (n, 4) as x1, y1, x2, y2, "labels" (n,), and of found ones "scores" (n,)


def mean_average_precision(found: Sequence[Boxes], true: Sequence[Boxes], points: int = 11, iou: float = 0.5) -> float:
    """The mean of the average precision over the classes that have true boxes; one entry per image in each list.

    points: at how many recalls precision is read: 11 in VOC 2007, whose test set the paper used; 101 in COCO.
    ValueError if the lists differ in length, or nothing is to be found in any image.
    """
    if len(found) != len(true):
        raise ValueError(f"mean_average_precision: expected an entry per image, got {len(found)} and {len(true)}")
    classes = sorted({int(label) for image in true for label in image["labels"]})
    if not classes:
        raise ValueError("mean_average_precision: expected at least one true box, got none in any image")
    return float(np.mean([average_precision(found, true, c, points, iou) for c in classes]))


def average_precision(
    found: Sequence[Boxes], true: Sequence[Boxes], label: int, points: int = 11, iou: float = 0.5
) -> float:
    """Average precision of one class."""
    scores, right = [np.zeros(0)], [np.zeros(0, bool)]
    total = 0
    for image, truth in zip(found, true):
        mine, there = image["labels"] == label, truth["labels"] == label
        order = np.argsort(-image["scores"][mine], kind="stable")
        total += int(there.sum())
        scores.append(image["scores"][mine][order])
        right.append(_right(image["boxes"][mine][order], truth["boxes"][there], iou))
    order = np.argsort(-np.concatenate(scores), kind="stable")
    hits = np.cumsum(np.concatenate(right)[order])
    precision = hits / np.arange(1, len(hits) + 1)
    # the best precision at a recall or above: a running maximum from the end
    best = np.append(np.maximum.accumulate(precision[::-1])[::-1], 0.0)
    # recall >= k / (points - 1) in integers: 0.3 is less than np.linspace's 3 / 10
    return float(best[np.searchsorted(hits * (points - 1), np.arange(points) * total)].mean())


def _right(boxes: np.ndarray, truth: np.ndarray, iou: float) -> np.ndarray:
    """True for each correct box of one image, best first: VOC compares a box with the true box that overlaps most."""
    right = np.zeros(len(boxes), bool)
    if len(boxes) and len(truth):
        overlaps, taken = box_iou(boxes, truth), set()
        for i, j in enumerate(overlaps.argmax(1)):
            if overlaps[i, j] >= iou and j not in taken:
                right[i] = True
                taken.add(j)
    return right
