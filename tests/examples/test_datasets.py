"""The data of the examples: digits that are moved."""

import numpy as np

from examples import datasets


def test_shifted():
    images = np.arange(2 * 1 * 4 * 5, dtype="float32").reshape(2, 1, 4, 5)
    generator = np.random.default_rng(0)
    np.testing.assert_array_equal(datasets.shifted(images, 0, generator), images)
    seen = {datasets.shifted(images, 1, generator)[0].tobytes() for _ in range(200)}
    padded = np.pad(images[0, 0], 1, mode="edge")
    assert seen == {padded[i : i + 4, j : j + 5].tobytes() for i in range(3) for j in range(3)}
