"""SSD and Faster R-CNN: matches worked by hand; small ones learn."""

import numpy as np
import pytest

import tinymp as mp
from examples import paper as models
from examples.paper import detection
from oracle import randn
from tinymp import optim

pytestmark = pytest.mark.cpu
OBJECTS = {"boxes": np.array([[4, 4, 24, 20], [30, 34, 62, 62]], "float32"), "labels": np.array([1, 2])}
NOTHING = {"boxes": np.zeros((0, 4), "float32"), "labels": np.zeros(0, int)}


def small_ssd():
    return models.SSD(4, 64, scale=models.Scale(width=1 / 64, depth=1 / 3))  # 8 or 16 channels


def small_faster_rcnn():
    options = {"rpn_pre_nms_top_n": (60, 40), "rpn_post_nms_top_n": (20, 10), "dropout": 0.0}
    options |= {"rpn_batch_size_per_image": 32, "box_batch_size_per_image": 8}
    scale = models.Scale(width=1 / 64, depth=1 / 3, halvings=1)
    return models.FasterRCNN(4, anchor_sizes=(16, 32), scale=scale, **options)


def test_matches_worked_by_hand():
    objects = np.array([[0, 0, 10, 10], [20, 0, 24, 4], [90, 90, 94, 94]], "float32")
    # 0.8, 0.5 and 0.4 of object 0; 0.16 of object 1, and its best; nothing; object 0 itself
    boxes = [[0, 0, 10, 8], [0, 0, 10, 5], [0, 0, 10, 4], [20, 0, 30, 10], [50, 50, 60, 60], [0, 0, 10, 10]]
    boxes = np.array(boxes, "float32")
    no, between = detection.BACKGROUND, detection.NEITHER
    assert detection.match(objects, boxes, 0.5, 0.5).tolist() == [0, 0, no, 1, no, 0]
    assert detection.match(objects, boxes, 0.7, 0.3).tolist() == [0, between, between, 1, no, 0]
    assert detection.match(objects, boxes, 0.5, 0.5, best=False).tolist() == [0, 0, no, no, no, 0]
    assert detection.match(objects[:0], boxes, 0.5, 0.5).tolist() == [no] * 6
    # two objects, of which both are closest to the same box: the closer one has it, the other the next best
    pair = np.array([[0, 0, 10, 9], [0, 0, 10, 8]], "float32")
    assert detection.match(pair, boxes[[5, 2]], 0.95, 0.1).tolist() == [0, 1]


@pytest.mark.parametrize("network", [small_ssd, small_faster_rcnn])
def test_small_ones_learn(network):
    """Two images by heart."""
    mp.manual_seed(0)
    policy = mp.MIXED
    model, x, targets = policy.cast(network()), mp.tensor(randn(2, 3, 64, 64).astype("float32")), [OBJECTS, NOTHING]
    optimizer, scaler = optim.Adam(model.parameters(), 3e-3), optim.DynamicLossScaler(2.0**10)
    losses = []
    with mp.use(policy):
        for _ in range(16):
            loss = sum(model(policy.cast(x), targets).values())
            losses.append(loss.item())
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
        assert np.mean(losses[-3:]) < 0.6 * losses[0], losses
        found = model.eval()(policy.cast(x))
    assert all((np.diff(one["scores"].numpy()) <= 0).all() for one in found)
