"""Scenes: exact boxes around what was painted, and the same for the same seed."""

import numpy as np
import pytest

from examples.paper import scenes

pytest.importorskip("PIL")
pytest.importorskip("skimage")  # its photographs
pytestmark = pytest.mark.cpu


def test_boxes_are_exact(monkeypatch):
    """Against the same scene without objects: what differs reaches from one end of the box to the other."""
    train = scenes.Scenes(60, 3, train=True)
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


def test_a_scene_depends_on_seed_and_index_alone():
    train, again = scenes.Scenes(60, 3, train=True), scenes.Scenes(5, 3, train=True)
    np.testing.assert_array_equal(train[4][0], again[4][0])
    np.testing.assert_array_equal(train[4][1]["boxes"], again[4][1]["boxes"])
    assert (train[4][0] != train[5][0]).any()
    assert (train[4][0] != scenes.Scenes(5, 4, train=True)[4][0]).any()
    assert not set(scenes.PHOTOGRAPHS[True]) & set(scenes.PHOTOGRAPHS[False])
