"""VOC's average precision: a case worked by hand, and COCO's own program."""

import contextlib
import io

import numpy as np
import pytest

from examples.paper.average_precision import average_precision

pytestmark = pytest.mark.cpu


def entry(boxes, labels, scores=None):
    one = {"boxes": np.array(boxes, np.float32).reshape(-1, 4), "labels": np.array(labels, int)}
    return one if scores is None else {**one, "scores": np.array(scores, np.float32)}


def test_as_coco_where_no_true_boxes_overlap():
    """There both give a found box to the same true one. COCO reads 101 recalls; scores are all different."""
    pycocotools = pytest.importorskip("pycocotools.coco")
    evaluation = pytest.importorskip("pycocotools.cocoeval")
    rng = np.random.default_rng(0)
    true, found = [], []
    corners = np.stack(np.meshgrid([0, 40, 80], [0, 40, 80]), -1).reshape(-1, 2)
    for _ in range(30):
        low = corners[rng.random(9) < 0.4] + rng.uniform(0, 10, 2)
        boxes = np.concatenate([low, low + rng.uniform(15, 30, low.shape)], 1)
        labels = rng.integers(1, 4, len(boxes))
        true.append(entry(boxes, labels))
        others = rng.uniform(0, 40, (3, 4)) + np.array([0, 0, 60, 60])
        moved = np.concatenate([boxes + rng.normal(0, 3, boxes.shape), others])
        wrong = np.where(rng.random(len(boxes)) < 0.2, rng.integers(1, 4, len(boxes)), labels)
        found.append(entry(moved, [*wrong, *rng.integers(1, 4, 3)], rng.random(len(moved))))

    def rows(images):
        rows = []
        for i, one in enumerate(images):
            for j, ((x1, y1, x2, y2), label) in enumerate(zip(one["boxes"].astype(float).tolist(), one["labels"])):
                row = {"id": 1000 * i + j + 1, "image_id": i, "category_id": int(label), "iscrowd": 0}
                row |= {"bbox": [x1, y1, x2 - x1, y2 - y1], "area": (x2 - x1) * (y2 - y1)}
                rows.append(row | ({"score": float(one["scores"][j])} if "scores" in one else {}))
        return rows

    coco = pycocotools.COCO()
    coco.dataset = {"info": {}, "images": [{"id": i} for i in range(30)], "annotations": rows(true)}
    coco.dataset["categories"] = [{"id": c} for c in (1, 2, 3)]
    with contextlib.redirect_stdout(io.StringIO()):
        coco.createIndex()
        run = evaluation.COCOeval(coco, coco.loadRes(rows(found)), "bbox")
        run.params.iouThrs = np.array([0.5])
        run.evaluate()
        run.accumulate()
    expected = run.eval["precision"][0, :, :, 0, 2].mean(0)  # of all sizes, 100 boxes per image; (classes,)
    assert expected.min() > 0.3
    ours = [average_precision(found, true, c, points=101) for c in (1, 2, 3)]
    np.testing.assert_allclose(ours, expected, atol=1e-9)
