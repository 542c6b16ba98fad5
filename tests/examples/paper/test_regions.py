"""Regions of interest against loops over their cells."""

import math

import numpy as np
import pytest

import tinymp as mp
from examples.paper.regions import roi_pool
from gpu.both_ways import on_device
from oracle import check, device_array, distinct, host, randn

# The image's number, then the corners; at a scale of 1/2 on an image of 6 x 8 places. Exact in FP32.
REGIONS = {
    "inside": [[0, 2, 1, 9, 10], [1, 0, 0, 15, 11], [0, 3.25, 2.5, 12.75, 4]],
    "across the border": [[1, -7, -3, 5, 4], [0, 10, 8, 25, 30], [0, -20, -20, 40, 40]],
    "outside": [[0, -40, 2, -30, 9], [1, 2, 40, 9, 60], [1, 4, 4, 9, 9]],
    "of no area": [[0, 3, 3, 3, 3], [1, 4, 2, 4, 9], [1, 0, 0, 0, 0]],
    "equal ones, and an image without any": [[1, 2, 1, 9, 10]] * 5,
    "at the last place": [[0, 15, 11, 16, 12], [1, -2, -2, 0, 0], [1, 12, 8, 16, 12]],
}
SCALE = 0.5


def cells(first, last, count, n):
    """The places within [0, n) of each cell of a side that reaches from place `first` to place `last`."""
    m = last - first + 1
    spans = [range(first + p * m // count, first - (-(p + 1) * m // count)) for p in range(count)]
    return [[a for a in span if 0 <= a < n] for span in spans]


def pool(x, regions, size):
    y = np.zeros((len(regions), x.shape[1], *size))
    for k, (n, *corners) in enumerate(regions):
        left, top, right, bottom = (int(math.copysign(math.floor(abs(SCALE * c) + 0.5), c)) for c in corners)
        for i, rows in enumerate(cells(top, bottom, size[0], x.shape[2])):
            for j, cols in enumerate(cells(left, right, size[1], x.shape[3])):
                if rows and cols:
                    y[k, :, i, j] = x[int(n)][:, rows][:, :, cols].max((1, 2))
    return y


@pytest.mark.parametrize("size", [(2, 3), (1, 1), (7, 7)])
@pytest.mark.parametrize("regions", REGIONS)
def test_roi_pool(regions, size):
    rois = np.array(REGIONS[regions], "float32")
    check(
        lambda x: roi_pool(x, device_array(rois), size, SCALE),
        lambda x: pool(x, REGIONS[regions], size),
        distinct(2, 2, 6, 8),
        roundings=0,
        length=-4,
        grad_length=5 * 49,
    )


def test_a_list_of_boxes_for_each_image():
    x, boxes = mp.tensor(randn(3, 2, 6, 8)), np.array([[2, 1, 9, 10], [0, 0, 15, 11], [4, 2, 8, 8]], "float32")
    listed = roi_pool(x, [mp.tensor(boxes[:2]), device_array(boxes[:0]), mp.tensor(boxes[2:])], 2, SCALE)
    numbered = np.concatenate([[[0], [0], [2]], boxes], 1).astype("float32")
    np.testing.assert_array_equal(listed.numpy(), roi_pool(x, mp.tensor(numbered), 2, SCALE).numpy())


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_no_regions_at_all(dtype):
    for n in (0, 2):
        x = mp.tensor(np.ones((n, 3, 4, 5), dtype), requires_grad=True)
        y = roi_pool(x, [device_array(np.zeros((0, 4), "float32"))] * n, 2, SCALE)
        assert y.shape == (0, 3, 2, 2) and y.dtype == dtype
        y.sum().backward()
        np.testing.assert_array_equal(host(x.grad), np.zeros(x.shape))


def test_gradients_of_overlapping_regions_add_up_in_fp32():
    """2,500 regions give one place a gradient of 1 each: FP16 would stall at 2,048."""
    box = [0, 2, 2, 2, 2]  # the place at (1, 1)
    x = mp.tensor(np.zeros((1, 1, 3, 3), "float16"), requires_grad=True)
    y = roi_pool(x, device_array(np.tile(np.array(box, "float32"), (2500, 1))), 1, SCALE)
    y.backward(np.ones(y.shape, "float16"))
    assert host(x.grad)[0, 0].tolist() == [[0, 0, 0], [0, 2500, 0], [0, 0, 0]]


def test_roi_pool_takes_the_first_of_equals_and_nan():
    x = mp.tensor(np.array([[[[1, 1, 0], [1, np.nan, 0], [-0.0, 0, np.nan]]]], "float16"), requires_grad=True)
    y = roi_pool(x, device_array(np.array([[0, 0, 0, 1, 0], [0, 0, 0, 2, 2], [0, 0, 2, 1, 2]], "float32")), 1)
    np.testing.assert_array_equal(y.numpy().reshape(-1), [1, np.nan, 0])
    y.backward(np.array([1, 2, 4], "float16").reshape(3, 1, 1, 1))
    np.testing.assert_array_equal(host(x.grad)[0, 0], [[1, 0, 0], [0, 2, 0], [4, 0, 0]])


X, ROIS = np.ones((2, 3, 4, 4), "float32"), np.array([[0, 0, 0, 2, 2], [1, 0, 0, 2, 2]], "float32")


def changed(place, value):
    rois = ROIS.copy()
    rois[1, place] = value
    return rois


@pytest.mark.cpu  # on a GPU the values are not looked at before somebody waits
@pytest.mark.parametrize(
    ("boxes", "message"),
    [
        (changed(1, 3), r"x1 <= x2 and y1 <= y2, got \[1.0, 3.0, 0.0, 2.0, 2.0\] at index 1"),
        (changed(4, np.inf), r"every box of `boxes` to be finite, .* at index 1"),
        (changed(0, 2), r"the number of an image, one of 2, got \[2.0, .* at index 1"),
        (changed(0, -1), "the number of an image"),
        (changed(0, 0.5), "the number of an image"),
        (changed(0, np.nan), "the number of an image"),
        (changed(4, 1e6), "within 65536 places of the corner of `input`, .* at index 1"),
        ([ROIS[:, 1:], changed(1, 3)[:, 1:]], r"every box of `boxes\[1\]` to be finite, .* at index 1"),
    ],
)
def test_refused_boxes_are_named(boxes, message):
    with pytest.raises(ValueError, match=message):
        roi_pool(mp.Tensor(X), boxes, 2)


@pytest.mark.cpu
@pytest.mark.parametrize(
    ("x", "boxes", "error", "message"),
    [
        (X, ROIS[:, 1:], ValueError, r"`boxes` of shape \(n, 5\), got \(2, 4\)"),
        (X, [ROIS, ROIS], ValueError, r"`boxes\[0\]` of shape \(n, 4\), got \(2, 5\)"),
        (X, [ROIS[:, 1:]], ValueError, "boxes of each of the 2 images of `input`, got 1"),
        (X, ROIS.astype("float16"), TypeError, "`boxes` to be float32 under every policy, got float16"),
        (X, "boxes", TypeError, "a Tensor or an array for `boxes`, got str"),
        (X[0], ROIS, ValueError, r"`input` to be \(N, C, H, W\)"),
        (X.astype(int), ROIS, TypeError, "`input` to be floating"),
    ],
)
def test_refused_arguments(x, boxes, error, message):
    with pytest.raises(error, match=message):
        roi_pool(mp.Tensor(x), boxes, 2)


@pytest.mark.parametrize(("place", "value"), [(place, value) for place in (0, 1, 4) for value in (np.nan, 1e30)])
def test_a_gpu_reports_bad_boxes_later(gpu, place, value):
    """Or at once, where the definition reads them: in either case before a result can be seen."""
    with pytest.raises(ValueError, match=r"^roi_pool: expected .*`boxes` .*\(seen on the GPU in an earlier call"):
        roi_pool(mp.Tensor(on_device(X)), on_device(changed(place, value)), 2).numpy()
