"""Boxes: overlap, suppression and codes, against loops in float64."""

import math

import numpy as np
import pytest

from examples.paper import boxes as ops
from oracle import device_array, host, rng


def some_boxes(n, seed=0, size=40.0):
    """Boxes in an image of 100 x 100, as float32."""
    generator = rng(seed)
    corner, sides = generator.uniform(0, 100 - size, (n, 2)), generator.uniform(1, size, (n, 2))
    return np.concatenate([corner, corner + sides], 1).astype("float32")


def iou(a, b):
    shared = max(min(a[2], b[2]) - max(a[0], b[0]), 0) * max(min(a[3], b[3]) - max(a[1], b[1]), 0)
    both = sum((x[2] - x[0]) * (x[3] - x[1]) for x in (a, b)) - shared
    return shared / both if both else 0.0


def greedy(boxes, scores, threshold):
    """Non-maximum suppression as its definition says."""
    kept = []
    for i in sorted(range(len(boxes)), key=lambda i: (-scores[i], i)):
        if all(iou(boxes[i], boxes[j]) <= threshold for j in kept):
            kept.append(i)
    return kept


def call(function, *args):
    """The function on arrays where the tests' tensors lie; the result on the host."""
    return host(function(*[device_array(a) if isinstance(a, np.ndarray) else a for a in args]))


def test_box_iou():
    a, b = some_boxes(5), np.concatenate([some_boxes(6, 1), some_boxes(5)[:1], some_boxes(5)[:1] + 200])
    got = call(ops.box_iou, a, b)
    assert got.shape == (5, 8) and got.dtype == "float32"
    # areas below 2^14 of three products, and the division: 8 roundings in FP32 of numbers below 2^14 / the union
    wide = [[iou(x, y) for y in b.astype(float)] for x in a.astype(float)]
    np.testing.assert_allclose(got, wide, rtol=8 * 2.0**-24 * 100, atol=1e-6)
    assert got[0, 6] == 1 and got[0, 7] == 0


@pytest.mark.parametrize(("n", "threshold"), [(1, 0.3), (150, 0.3), (150, 1.0)])
def test_nms(n, threshold):
    boxes, scores = some_boxes(n), (rng(1).permutation(n) // 2).astype("float32")  # pairs of equal scores
    expected = greedy(boxes.astype(float), scores, threshold)
    np.testing.assert_array_equal(call(ops.nms, boxes, scores, threshold), expected)


def test_nms_at_the_threshold_of_equals_and_of_none():
    boxes = np.array([[0, 0, 10, 1], [0, 0, 5, 1], [0, 0, 10, 1], [3, 3, 3, 9], [3, 3, 3, 9]], "float32")
    scores = np.array([1, np.inf, 1, -np.inf, 2])
    for dtype in ("float16", "float32"):
        assert call(ops.nms, boxes, scores.astype(dtype), 0.5).tolist() == [1, 4, 0, 3]  # no area: no overlap
    # An IoU that equals the threshold is not above it: torchvision's documentation, too, says "IoU > iou_threshold".
    # But it keeps only the first of the second pair (pytorch/vision, issue 7165): FP32's 1/5 is above float64's 0.2.
    for pair, threshold in (([[0, 0, 10, 1], [0, 0, 3, 1]], 0.3), ([[1, 1, 2, 3], [0, 0, 2, 2]], 0.2)):
        one, other = np.array(pair, "float32")
        assert call(ops.nms, np.stack([one, other]), np.array([3, 2], "float32"), threshold).tolist() == [0, 1]
        assert float(np.float32(iou(one, other))) == float(np.float32(threshold)) > threshold


def test_codes_there_and_back():
    """The codes of a hand-worked pair; and back to the boxes within FP32's roundings of numbers up to 128."""
    p, g = np.array([[0, 0, 10, 20]], "float32"), np.array([[10, 0, 30, 10]], "float32")
    np.testing.assert_allclose(
        call(ops.encode_boxes, g, p, (10.0, 10.0, 5.0, 5.0)),
        [[10 * 15 / 10, 10 * -5 / 20, 5 * math.log(2), 5 * math.log(0.5)]],
        rtol=2.0**-22,
    )
    wanted, proposals = some_boxes(50), some_boxes(50, 1)
    for weights in ((1, 1, 1, 1), (10.0, 10.0, 5.0, 5.0)):
        codes = call(ops.encode_boxes, wanted, proposals, weights)
        np.testing.assert_allclose(call(ops.decode_boxes, codes, proposals, weights), wanted, atol=128 * 2.0**-20)
