"""MPT table 2: two detectors on VGG-16, in FP32, and in mixed precision without a loss scale and with two."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import tinymp as mp
from tinymp import data, nn, ops, optim

from .. import measure, paper
from . import scenes, trials
from .average_precision import mean_average_precision

SCALE = paper.Scale(width=1 / 8, depth=1 / 2, halvings=1)


# For scenes of 128 x 128 and 10 classes of objects
ssd = partial(paper.SSD, 11, 128, scale=SCALE)
faster_rcnn = partial(  # with anchors and numbers of proposals for 1 to 4 objects of up to 56 pixels
    paper.FasterRCNN,
    11,
    anchor_sizes=(16, 28, 48),
    rpn_pre_nms_top_n=(600, 300),
    rpn_post_nms_top_n=(100, 50),
    rpn_batch_size_per_image=64,
    box_batch_size_per_image=32,
    dropout=0.0,
    scale=SCALE,
)


class Network(NamedTuple):
    """A row: the network, its learning rate here, and what the paper reports, per cent or in words."""

    make: Callable[[], nn.Module]
    lr: float
    paper: dict[str, float | str]


NETWORKS = {
    "Faster R-CNN": Network(faster_rcnn, 0.05, {"FP32": 69.1, "mixed, not scaled": 68.6, "mixed, scaled by 8": 69.7}),
    "Multibox SSD": Network(ssd, 0.02, {"FP32": 76.9, "mixed, not scaled": "diverges", "mixed, scaled by 8": 77.1}),
}
SETTINGS = trials.settings("none", "8", "dynamic")
TITLE = __doc__
MEASURE, FACTOR = "Mean average precision at an IoU of 0.5 (VOC 2007), %", 100
SOURCES, UNIT = ("mnist",), "scenes"
BATCH, STEPS = 8, 400
BEGINNING = 1000  # steps that the backbone is trained for before
TESTED = 200  # scenes
SHOWN = 6  # of these, in the picture


def label(source: str) -> str:
    """Its name in the table."""
    return f"scenes of {'MNIST' if source == 'mnist' else Path(source).name}"


def _tested(source: str) -> scenes.Scenes:
    return scenes.Scenes(TESTED, 0, train=False, data=source)  # the same for all seeds


def run(
    name: str, source: str, setting: trials.Setting, seed: int, steps: int, batch: int, device: str
) -> trials.Trial:
    """Train one detector under one setting, each step on new scenes. The seed fixes weights and scenes."""
    network, policy = NETWORKS[name], setting.policy
    backbone = trained_backbone(source, seed, device)
    mp.manual_seed(seed)
    train, test = scenes.Scenes(steps * batch, seed, train=True, data=source), _tested(source)
    model = network.make()
    begin(model, backbone)
    model = policy.cast(model).to(device)
    loader = data.DataLoader(train, batch, collate_fn=scenes.batch, prefetch=2)

    def batches() -> Iterator[tuple]:
        for images, targets in loader:
            yield policy.cast(mp.from_numpy(images)).to(device), targets

    def loss_of(model: nn.Module, batch: tuple) -> mp.Tensor:
        return sum(model(*batch).values())

    how = {"optimizer": sgd(model, network.lr), "clip": 10.0, "batch": batch}
    trial = trials.train(model, policy, setting.scaler(), batches(), loss_of, steps, **how)
    found = detected(model, policy, test, batch, device)
    trial.score = mean_average_precision(found, [test[i][1] for i in range(len(test))])
    trial.kept["found"] = [sure(one) for one in found[:SHOWN]]
    return trial


def sgd(model: nn.Module, lr: float) -> optim.SGD:
    """The optimizer of both detectors."""
    return optim.SGD(model.parameters(), lr=lr, momentum=0.9, weight_decay=5e-4)


@cache  # for all settings of a seed that run in this process
def trained_backbone(source: str, seed: int, device: str) -> list[Any]:
    """VGG's convolutions after some training, in FP32, to tell single objects apart: the originals begin with those of
    an ImageNet classifier.
    """
    mp.manual_seed(seed)
    model = paper.VGG(10, dropout=0.0, scale=SCALE).to(device)
    train = scenes.Scenes(32 * BEGINNING, seed, train=True, data=source, size=40, most=1)

    def batches() -> Iterator[tuple]:
        for images, targets in data.DataLoader(train, 32, collate_fn=scenes.batch, prefetch=2):
            labels = np.concatenate([target["labels"] for target in targets]) - 1
            yield mp.from_numpy(images).to(device), mp.from_numpy(labels).to(device)

    def loss_of(model: nn.Module, batch: tuple) -> mp.Tensor:
        return ops.cross_entropy(model(batch[0]), batch[1])

    how = {"optimizer": sgd(model, 0.1), "clip": 1.0, "batch": 32}
    trials.train(model, mp.FP32, optim.NoLossScaler(), batches(), loss_of, BEGINNING, **how)
    return list(model.features.state_dict().values())


def begin(model: nn.Module, backbone: list[Any]) -> None:
    """Give VGG's convolutions in a detector these weights. In SSD they have other names, but the same order."""
    names = [name for name, _ in model.backbone.named_parameters() if name != "scale_weight"]
    model.backbone.load_state_dict(dict(zip(names, backbone)), strict=False)


def detected(model: nn.Module, policy: mp.Policy, test: scenes.Scenes, batch: int, device: str) -> list[dict[str, Any]]:
    """Detections in each scene: arrays "boxes", "labels" and "scores"."""
    model.eval()
    found = []
    with mp.no_grad(), mp.use(policy):
        for images, _ in data.DataLoader(test, batch, collate_fn=scenes.batch, prefetch=2):
            for one in model(policy.cast(mp.from_numpy(images)).to(device)):
                found.append({name: x.numpy() for name, x in one.items()})
    return found


def sure(found: dict[str, np.ndarray]) -> dict[str, list]:
    """Detections with scores above 0.5, for drawing."""
    return {name: values[found["scores"] > 0.5].tolist() for name, values in found.items()}


def draw(folder: Path, done: dict[Any, trials.Trial]) -> None:
    """figure3.png: SSD's activation gradients; boxes.png: what was found."""
    counted = {c.name: t.kept["activation gradients"] for c, t in done.items() if "activation gradients" in t.kept}
    if counted:
        draw_gradients(folder / "figure3.png", counted)
    draw_boxes(folder / "boxes.png", done)


def draw_gradients(path: Path, counted: dict[str, dict]) -> None:
    """MPT's figure 3 for each detector: where FP16 would leave its activation gradients."""
    with trials.figure(path, 1, len(counted), (7 * len(counted), 5)) as axes:
        for one, (name, kept) in zip(axes.flat, counted.items()):
            run = {"gradient_exponents": kept["exponents"], "zero_gradients": kept["zeros"], "loss_scale": 1}
            measure.draw_exponents(one, {"FP32": run})
            shares = {float(scale): lost["zero"] for scale, lost in kept["lost"].items()}
            lost = ", ".join(f"{shares[scale]:.2%} at S = {scale:g}" for scale in (1.0, 8.0, 1024.0))
            one.set_title(f"{name}, activation gradients in FP32\nzero in FP16, of those not zero: {lost}", fontsize=10)
            one.set(ylabel="share of all activation gradients, %")
            one.legend(loc="center right", fontsize=9)


def draw_boxes(path: Path, done: dict[Any, trials.Trial]) -> None:
    """A row for each detector in FP32 and under each setting: what the first seed found with scores above 0.5."""
    first = min(cell.seed for cell in done)
    rows = {(c.name, c.setting): t for c, t in done.items() if c.seed == first}
    rows = {(n, s): rows[n, s].kept["found"] for n in NETWORKS for s in SETTINGS if (n, s) in rows}
    test = _tested(next(iter(done)).source)
    with trials.figure(path, len(rows), SHOWN, (2.1 * SHOWN, 2.25 * len(rows)), dpi=75) as axes:
        for line, ((name, setting), found) in zip(axes, rows.items()):
            for i, (one, boxes) in enumerate(zip(line, found)):
                one.imshow(test.painted(i)[0] / 255)
                one.set(xticks=[], yticks=[])
                for (x1, y1, x2, y2), of in zip(boxes["boxes"], boxes["labels"]):
                    one.plot([x1, x2, x2, x1, x1], [y1, y1, y2, y2, y1], color="lime", linewidth=1.2)
                    one.text(x1, y1 - 2, str(of - 1), fontsize=8, color="lime", weight="bold")
                one.set(xlim=(0, test.size), ylim=(test.size, 0))
            line[0].set_ylabel(f"{name}\n{setting}", fontsize=8)
