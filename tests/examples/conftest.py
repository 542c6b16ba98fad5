"""A small data set for the programs."""

import numpy as np
import pytest


def write_idx(path, array):
    """array (uint8) in MNIST's format."""
    header = bytes([0, 0, 8, array.ndim]) + b"".join(n.to_bytes(4, "big") for n in array.shape)
    path.write_bytes(header + array.tobytes())


@pytest.fixture
def undrawn(monkeypatch):
    """Pictures of curves are empty files: Matplotlib takes longer than a few steps do. test_three.py draws."""
    monkeypatch.setattr("examples.measure.draw", lambda path, *_: path.touch())


@pytest.fixture
def digits(tmp_path):
    """A small data set with MNIST's file names: the class is where the bright square lies."""
    rng = np.random.default_rng(0)
    for prefix, n in (("train", 96), ("t10k", 32)):
        labels = rng.integers(0, 4, n).astype(np.uint8)
        images = rng.integers(0, 50, (n, 28, 28)).astype(np.uint8)
        for image, label in zip(images, labels):
            image[label // 2 * 14 :, label % 2 * 14 :][:14, :14] += 150
        write_idx(tmp_path / f"{prefix}-images-idx3-ubyte", images)
        write_idx(tmp_path / f"{prefix}-labels-idx1-ubyte", labels)
    return tmp_path
