"""SSD and Faster R-CNN: boxes, matches and losses worked by hand; small ones learn."""

import numpy as np
import pytest

import tinymp as mp
from examples import paper as models
from examples.paper import detection, ssd
from oracle import host, randn, rng
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


def total(losses):
    return sum(losses.values())


def test_default_boxes():
    sides = ssd.map_sides(300)
    assert sides == [38, 19, 10, 5, 3, 1]
    x1, y1, x2, y2 = ssd.default_boxes(sides, 300).T.astype("float64") / 300
    centre, size = np.stack([x1 + x2, y1 + y2], 1) / 2, np.stack([x2 - x1, y2 - y1], 1)
    first = [[0.1, 0.1], [np.sqrt(0.02)] * 2, [0.1 * 2**0.5, 0.1 / 2**0.5], [0.1 / 2**0.5, 0.1 * 2**0.5]]
    np.testing.assert_allclose(size[:4], first, rtol=1e-5)
    np.testing.assert_allclose(centre[[0, 4]], [[0.5 / 38] * 2, [1.5 / 38, 0.5 / 38]], rtol=1e-5)  # x runs first
    starts = np.cumsum([0, *(n * n * k for n, k in zip(sides, (4, 6, 6, 6, 4, 4)))])
    assert starts[-1] == len(size)
    s = np.array([0.1, 0.2, 0.37, 0.54, 0.71, 0.88, 1.05])
    np.testing.assert_allclose(size[starts[:-1], 0], s[:-1], rtol=1e-5)
    np.testing.assert_allclose(size[starts[:-1] + 1, 0], np.sqrt(s[:-1] * s[1:]), rtol=1e-5)


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


def log_softmax(x):
    x = x - x.max(-1, keepdims=True)
    return x - np.log(np.exp(x).sum(-1, keepdims=True))


def smooth_l1(d, beta=1.0):
    return np.where(np.abs(d) < beta, d * d / (2 * beta), np.abs(d) - beta / 2).sum()


def codes_of(objects, boxes, weights):
    """Ren et al. (2015), equation 2."""
    (centre, size), (a, s) = (((b[:, :2] + b[:, 2:]) / 2, b[:, 2:] - b[:, :2]) for b in (objects, boxes))
    return np.concatenate([(centre - a) / s, np.log(size / s)], 1) * weights


def test_losses_of_ssd():
    """Against float64, with the mining written as Liu et al. (2016), section 2.2, say it."""
    model = small_ssd()
    boxes, n = model.default_boxes.astype("float64"), len(model.default_boxes)
    logits, codes = randn(2, n, 4).astype("float32"), randn(2, n, 4, seed=1).astype("float32")
    y = log_softmax(logits.astype("float64"))
    named = shifted = positives = 0
    for i, target in enumerate((OBJECTS, NOTHING)):
        found = detection.match(target["boxes"], model.default_boxes, 0.5, 0.5)
        good = np.flatnonzero(found >= 0)
        truth = target["boxes"][found[good]].astype("float64")
        shifted += smooth_l1(codes[i, good] - codes_of(truth, boxes[good], [10, 10, 5, 5]))
        others = sorted((-y[i, j, 0] for j in range(n) if found[j] < 0), reverse=True)
        named += sum(-y[i, j, target["labels"][found[j]]] for j in good) + sum(others[: 3 * len(good)])
        positives += len(good)
    assert positives > 2
    x, shift = mp.tensor(logits, requires_grad=True), mp.tensor(codes, requires_grad=True)
    objects = [detection.Objects(t["boxes"], t["labels"]) for t in (OBJECTS, NOTHING)]
    losses = model.losses(x, shift, objects)
    assert {name: loss.dtype for name, loss in losses.items()} == dict.fromkeys(losses, np.dtype("float32"))
    assert losses["bbox_regression"].item() == pytest.approx(shifted / positives, rel=1e-5)
    assert losses["classification"].item() == pytest.approx(named / positives, rel=1e-5)
    total(losses).backward()
    assert np.count_nonzero(np.abs(host(x.grad)).sum(2)) == 4 * positives  # three negatives for each
    assert np.count_nonzero(np.abs(host(x.grad)[1])) == 0
    assert np.count_nonzero(np.abs(host(shift.grad)).sum(2)) == positives


def test_detections_worked_by_hand():
    boxes = np.array([[0, 0, 10, 10], [0, 0, 10, 9], [40, 40, 80, 80], [5, 5, 6, 6], [np.nan] * 4], "float32")
    scores = np.array([[0, 0.9, 0.1], [0, 0.8, 0.3], [0, 0.2, 0.7], [1, 0, 0], [0, 0.5, 0.5]], "float32")
    found = detection.detections(mp.tensor(boxes), mp.tensor(scores), (60, 50), 0.15, 0.5, 10, 3)
    assert found["scores"].numpy() == pytest.approx([0.9, 0.7, 0.3])  # 0.8 and less overlaps 0.9; 0.2 is the fourth
    assert found["labels"].tolist() == [1, 2, 2]
    assert found["boxes"].tolist() == [[0, 0, 10, 10], [40, 40, 50, 60], [0, 0, 10, 9]]
    few = detection.detections(mp.tensor(boxes), mp.tensor(scores), (60, 50), 0.15, 0.5, 1, 9)
    assert few["scores"].numpy() == pytest.approx([0.9, 0.7])


def test_faster_rcnn_learns_what_it_detects():
    """With both of its networks: of outputs that move regions to the objects, all losses are 0."""
    model, (truth, labels) = small_faster_rcnn(), OBJECTS.values()
    maps, size, objects = mp.zeros(1, 8, 8, 8), (64, 64), [detection.Objects(**OBJECTS)]
    boxes, inside = model.rpn.anchors(maps, size)
    assert 0 < sum(inside) < len(boxes)
    found = detection.match(truth, boxes[inside], 0.7, 0.3)
    good = np.flatnonzero(inside)[found >= 0]
    logits, codes = np.zeros((1, len(boxes), 2), "float32"), np.full((1, len(boxes), 4), 9, "float32")
    logits[0, :, 0], logits[0, good, 1] = 10, 20
    codes[0, good] = codes_of(truth[found[found >= 0]], boxes[good], [1, 1, 1, 1])
    x, shift = mp.tensor(logits), mp.tensor(codes)
    assert max(loss.item() for loss in model.rpn.losses(x, shift, boxes, inside, objects, rng())) < 1e-3
    (proposed,) = proposals = model.rpn.propose(x, shift, boxes, size)
    np.testing.assert_allclose(sorted(proposed.tolist()[:2]), truth, atol=1e-3)

    def perfect(maps, regions):
        regions = np.concatenate([r.numpy() for r in regions])
        found = detection.match(truth, regions, 0.5, 0.5, best=False)
        good = np.flatnonzero(found >= 0)
        logits, codes = np.zeros((len(regions), 4), "float32"), np.full((len(regions), 4, 4), 9, "float32")
        logits[:, 0], logits[good, labels[found[good]]] = 10, 20
        codes[good, labels[found[good]]] = codes_of(truth[found[good]], regions[good], [10, 10, 5, 5])
        return mp.tensor(logits), mp.tensor(codes)

    model.roi_heads.forward = perfect
    assert max(loss.item() for loss in model.roi_heads.losses(maps, proposals, objects, rng())) < 1e-3
    (seen,) = model.roi_heads.detect(maps, proposals, size)
    order = np.argsort(seen["labels"].numpy())
    assert seen["labels"].numpy()[order].tolist() == [1, 2]
    np.testing.assert_allclose(seen["boxes"].numpy()[order], truth, atol=1e-3)


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
            loss = total(model(policy.cast(x), targets))
            losses.append(loss.item())
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
        assert np.mean(losses[-3:]) < 0.6 * losses[0], losses
        found = model.eval()(policy.cast(x))
    assert all((np.diff(one["scores"].numpy()) <= 0).all() for one in found)
