"""Scenes: exact boxes around what was painted, the same for the same seed, other photographs and digits for tests."""

import importlib.util

import numpy as np
import pytest

from examples.paper import scenes

pytest.importorskip("PIL")
pytest.importorskip("skimage")  # its photographs
pytestmark = pytest.mark.cpu


@pytest.fixture(scope="module")
def train():
    return scenes.Scenes(60, 3, train=True)


def test_items(train):
    counts = set()
    for i in range(20):
        image, target = train[i]
        boxes, labels = target["boxes"], target["labels"]
        counts.add(len(boxes))
        assert image.shape == (3, 128, 128)
        assert image.dtype == boxes.dtype == np.float32
        assert labels.dtype == np.int64
        assert ((labels >= 1) & (labels <= 10)).all()
        assert (boxes[:, :2] < boxes[:, 2:]).all()
        assert (boxes >= 0).all() and (boxes <= 128).all()
        assert (boxes[:, 2:] - boxes[:, :2] <= scenes.LARGEST).all()
    assert counts == {1, 2, 3, 4}


def test_boxes_are_exact(train, monkeypatch):
    """Against the same scene without objects: what differs reaches from one end of the box to the other."""
    painted = [train.painted(i) for i in range(10)]
    monkeypatch.setattr(scenes.Scenes, "_paint", staticmethod(lambda *_: None))
    drawn = 0
    for i, (canvas, target) in enumerate(painted):
        if len(target["boxes"]) > 1:
            continue  # of several, the colours were drawn between the places
        changed = (canvas != train.painted(i)[0]).any(2)
        (x1, y1, x2, y2), *_ = target["boxes"].astype(int)
        rows, columns = (np.flatnonzero(changed.any(axis)) for axis in (1, 0))
        assert [columns[0], rows[0], columns[-1] + 1, rows[-1] + 1] == [x1, y1, x2, y2]
        drawn += 1
    assert drawn


def test_a_scene_depends_on_seed_and_index_alone(train):
    again = scenes.Scenes(5, 3, train=True)
    np.testing.assert_array_equal(train[4][0], again[4][0])
    np.testing.assert_array_equal(train[4][1]["boxes"], again[4][1]["boxes"])
    assert (train[4][0] != train[5][0]).any()
    assert (train[4][0] != scenes.Scenes(5, 4, train=True)[4][0]).any()
    assert not set(scenes.PHOTOGRAPHS[True]) & set(scenes.PHOTOGRAPHS[False])


def test_a_batch(train):
    images, targets = scenes.batch([train[i] for i in range(3)])
    assert images.shape == (3, 3, 128, 128)
    np.testing.assert_array_equal(targets[2]["boxes"], train[2][1]["boxes"])


def test_photographs_that_are_missing(monkeypatch, tmp_path):
    monkeypatch.setattr(scenes, "PHOTOGRAPHS", {True: ["nothing.png"], False: []})
    with pytest.raises(FileNotFoundError, match=r"the photographs should be in .*nothing.png; pip install --force"):
        scenes.Scenes(1, 0, train=True)
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(ModuleNotFoundError, match=r"come with the package scikit-image, .* pip install scikit-image"):
        scenes._photograph("coffee.png")
