"""Regions of interest against loops over their cells."""

import math

import numpy as np
import pytest

from examples.paper.regions import roi_pool
from oracle import check, device_array, distinct

# The image's number, then the corners; at a scale of 1/2 on an image of 6 x 8 places. Exact in FP32.
REGIONS = {
    "inside": [[0, 2, 1, 9, 10], [1, 0, 0, 15, 11], [0, 3.25, 2.5, 12.75, 4]],
    "across the border": [[1, -7, -3, 5, 4], [0, 10, 8, 25, 30], [0, -20, -20, 40, 40]],
    "outside": [[0, -40, 2, -30, 9], [1, 2, 40, 9, 60], [1, 4, 4, 9, 9]],
    "of no area": [[0, 3, 3, 3, 3], [1, 4, 2, 4, 9], [1, 0, 0, 0, 0]],
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


@pytest.mark.parametrize("regions", REGIONS)
def test_roi_pool(regions):
    rois = np.array(sorted(REGIONS[regions], key=lambda region: region[0]), "float32")
    boxes = [device_array(rois[rois[:, 0] == n, 1:]) for n in range(2)]
    check(
        lambda x: roi_pool(x, boxes, (2, 3), SCALE),
        lambda x: pool(x, rois.tolist(), (2, 3)),
        distinct(2, 2, 6, 8),
        roundings=0,
        length=-4,
        grad_length=5 * 49,
    )
