"""Datasets that are made of others."""

import numpy as np
import pytest

from tinymp.data import random_split

Y = np.arange(10)


@pytest.mark.parametrize(
    ("n", "lengths", "expected"),
    [
        (10, [7, 3], [7, 3]),
        (10, [10, 0], [10, 0]),
        (10, [0.8, 0.2], [8, 2]),
        (11, [0.5, 0.25, 0.25], [6, 3, 2]),  # floor: 5, 2, 2; the two that are left go to the first two
        (10, [0.7, 0.2, 0.1], [7, 2, 1]),  # their floating sum is just below 1
        (0, [0, 0], [0, 0]),
        (0, [0.5, 0.5], [0, 0]),
    ],
)
def test_random_split_covers_every_item_once(n, lengths, expected):
    parts = random_split(list(range(n)), lengths, seed=1)
    assert [len(part) for part in parts] == expected
    assert sorted(i for part in parts for i in part) == list(range(n))
