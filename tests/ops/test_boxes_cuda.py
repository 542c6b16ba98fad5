"""Boxes on a GPU: the kernels of suppression, and the functions that are made of array operations."""

import numpy as np
import pytest

import tinymp as mp
from oracle import rng
from tinymp import ops
from twins import launches, on_device

pytestmark = pytest.mark.usefixtures("gpu")


def some_boxes(n, seed=0):
    """Boxes in an image of 100 x 100."""
    corner, sides = rng(seed).uniform(0, 60, (n, 2)), rng(seed + 9).uniform(1, 40, (n, 2))
    return np.concatenate([corner, corner + sides], 1).astype("float32")


@pytest.mark.parametrize("threshold", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("n", [0, 1, 64, 200])
def test_nms(n, threshold):
    """The same indices as on the CPU: of few and of several words, of one group and of several."""
    boxes, scores = some_boxes(n), (rng(1).permutation(n) // 2).astype("float32")
    groups = rng(2).integers(0, 3, n).astype("int32")
    for op, given in ((ops.nms, (boxes, scores)), (ops.batched_nms, (boxes, scores, groups))):
        got = op(*map(on_device, given), threshold)
        assert got.dtype == "int64"
        np.testing.assert_array_equal(mp.backend.to_cpu(got), op(*given, threshold))
    if launches() is not None and n:
        assert {"nms_masks", "nms_keep"} <= set(launches()[-20:])


def test_other_functions():
    a, b = some_boxes(9), some_boxes(9, 1)
    codes = rng(3).standard_normal((9, 8)).astype("float32")
    for function, *given in (
        (ops.box_iou, a, b),
        (lambda a: ops.clip_boxes_to_image(a, (50, 60)), a),
        (lambda a: ops.remove_small_boxes(a, 10.0), a),
        (lambda a, b: ops.encode_boxes(a, b, (1, 2, 3, 4)), a, b),
        (lambda a, b: ops.decode_boxes(a, b, (1, 2, 3, 4)), codes, b),
    ):
        got = mp.backend.to_cpu(function(*map(on_device, given)))
        np.testing.assert_allclose(got, function(*given), rtol=2.0**-20, atol=2.0**-16)


def test_bad_boxes_are_reported():
    good, bad = some_boxes(2), np.array([[3, 0, 2, 1], [0, 0, np.nan, 1]], "float32")
    ops.box_iou(on_device(good), on_device(bad))
    with pytest.raises(ValueError, match=r"box_iou: expected every box of `boxes2` .*\(seen on the GPU"):
        mp.backend.synchronize()
    ops.nms(on_device(bad), on_device(np.ones(2, "float32")), 0.5)
    with pytest.raises(ValueError, match=r"nms: expected every box of `boxes` to be finite.*\(seen on the GPU"):
        mp.backend.synchronize()


def test_arrays_of_two_devices():
    with pytest.raises(
        ValueError, match="box_iou: expected arrays on one device, got `boxes1` is on cpu, `boxes2` is on gpu"
    ):
        ops.box_iou(some_boxes(2), on_device(some_boxes(2)))
