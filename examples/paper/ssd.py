"""SSD (Liu et al., 2016): one network scores and shifts default boxes, on maps of several resolutions."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tinymp import ops
from tinymp.autograd import Array
from tinymp.nn import Conv2d, MaxPool2d, Module, ModuleList, ReLU, Sequential, init
from tinymp.precision import FP32, to_dtype
from tinymp.tensor import Tensor, tensor

from .boxes import decode_boxes, encode_boxes
from .detection import Objects, detections, match, objects_of, per_box
from .scale import FULL, Scale, start
from .vgg import STAGES, features

WEIGHTS = (10.0, 10.0, 5.0, 5.0)  # of the coordinates in the loss: 1 / variances of 0.1 and 0.2
OVERLAP = 0.5  # at which a default box shall find an object
NEGATIVES = 3  # so many boxes of background learn, for each with an object


def map_sides(size: int, scale: Scale = FULL) -> list[int]:
    """The sides of the maps that have default boxes, for images of size x size: 38, 19, 10, 5, 3, 1 for 300.

    conv4_3 comes after three of VGG's poolings, fc7 after four. Then each map has half the side of the one before, but
    3 and 5 lose 2, as those convolutions have no padding.
    """
    sides = [size]
    for i in range(4):
        sides.append(-(-sides[-1] // scale.stride(i)))
    while sides[-1] > 1:
        sides.append(sides[-1] - 2 if sides[-1] in (3, 5) else -(-sides[-1] // 2))
    return sides[3:]


def boxes_per_place(maps: int) -> list[int]:
    """Number of default boxes per place of each map: 4, 6, 6, 6, 4, 4 for six maps."""
    return [4 if i in (0, maps - 2, maps - 1) else 6 for i in range(maps)]


def default_boxes(sides: list[int], size: int) -> Array:
    """FP32 (n, 4), map by map, row by row; 8,732 for SSD300.

    They are centred in their places. On map k they have the side s_k, and sqrt(s_k s_k+1), and the area s_k^2 with
    aspect ratios of 2, 1/2, and where they are six, 3, 1/3. s_0 is 10 % of the image, s_1 20 %, and the others grow in
    equal steps of whole per cents to 90 % at most, as in the authors' program.
    """
    step = 70 // (len(sides) - 2)
    s = [size * percent / 100 for percent in (10, *range(20, 20 + step * len(sides), step))]
    found = []
    for k, (side, n) in enumerate(zip(sides, boxes_per_place(len(sides)))):
        shapes = [(s[k], s[k]), (math.sqrt(s[k] * s[k + 1]),) * 2]
        for root in map(math.sqrt, (2, 3)[: n // 2 - 1]):
            shapes += [(s[k] * root, s[k] / root), (s[k] / root, s[k] * root)]
        at = (np.arange(side) + 0.5) * size / side
        y, x, (w, h) = at[:, None, None], at[:, None], np.array(shapes).T / 2
        corners = np.stack(np.broadcast_arrays(x - w, y - h, x + w, y + h), -1)
        found.append(corners.reshape(-1, 4))
    return to_dtype(np.concatenate(found), FP32.storage)


class Backbone(Module):
    """Images -> maps. VGG-D to conv4_3, whose values are normalised, to fc7, and on by steps that halve the image."""

    def __init__(self, in_channels: int, sides: list[int], scale: Scale) -> None:
        super().__init__()
        vgg = features(in_channels, scale, ceil_mode=True)
        conv4_3 = sum(2 * len(scale.layers(stage)) + 1 for stage in STAGES[:4]) - 1
        c4, c7 = scale.channels(512), scale.channels(1024)
        self.scale_weight = init.constant_(init.parameter(c4), 20.0)
        self.features = Sequential(*vgg[:conv4_3])
        fc6 = Conv2d(c4, c7, 3, padding=6, dilation=6)
        fc = Sequential(MaxPool2d(3, 1, padding=1), fc6, ReLU(), Conv2d(c7, c7, 1), ReLU())
        self.extra = ModuleList([Sequential(*vgg[conv4_3:-1], fc)])
        self.channels = [c4, c7]
        for i, side in enumerate(sides[1:-1]):
            narrow, wide = (256, 512) if i == 0 else (128, 256)
            how = (1, 0) if side in (3, 5) else (2, 1)
            reduced = Conv2d(self.channels[-1], scale.channels(narrow), 1)
            self.channels.append(scale.channels(wide))
            smaller = Conv2d(scale.channels(narrow), self.channels[-1], 3, *how)
            self.extra.append(Sequential(reduced, ReLU(), smaller, ReLU()))

    def forward(self, x: Tensor) -> list[Tensor]:
        """The maps, largest first."""
        x = self.features(x)
        maps = [ops.normalize(x) * self.scale_weight.reshape(-1, 1, 1)]
        for step in self.extra:
            x = step(x)
            maps.append(x)
        return maps


class SSD(Module):
    """SSD300 with VGG-D; 26,285,486 parameters for the 21 classes of PASCAL VOC, of which 0 is the background.

    model(images, targets) in training gives FP32 losses, a dict whose sum is trained; model(images) in evaluation a
    dict for each image: "boxes" FP32 (n, 4), "labels" int64 (n,) and "scores" FP32 (n,), best first.

    images: (N, in_channels, size, size). targets: see `objects_of`.
    """

    def __init__(self, num_classes: int = 21, size: int = 300, *, in_channels: int = 3, scale: Scale = FULL) -> None:
        super().__init__()
        self.num_classes, self.size = num_classes, size
        sides = map_sides(size, scale)
        self.default_boxes = default_boxes(sides, size)  # no buffer: they stay FP32 under every policy
        self.backbone = Backbone(in_channels, sides, scale)
        per_place = boxes_per_place(len(sides))
        # for each map logits (N, boxes, classes), and codes (N, boxes, 4) that shift each default box
        self.logits, self.codes = (
            ModuleList([Conv2d(c, n * columns, 3, padding=1) for c, n in zip(self.backbone.channels, per_place)])
            for columns in (num_classes, 4)
        )
        start(self, *self.logits, *self.codes)

    def forward(self, images: Tensor, targets: Any = None) -> Any:
        """Losses in training, detections in evaluation, where targets are not read."""
        maps = self.backbone(images)
        logits = ops.cat([per_box(layer(x), self.num_classes) for layer, x in zip(self.logits, maps)], 1)
        codes = ops.cat([per_box(layer(x), 4) for layer, x in zip(self.codes, maps)], 1)
        return self.losses(logits, codes, objects_of("SSD", targets)) if self.training else self.detect(logits, codes)

    def matched(self, objects: list[Objects]) -> tuple[Array, Array]:
        """Targets of default boxes: labels int64 (N, boxes), 0 for background, and the codes (n, 4) of the others."""
        labels, codes = np.zeros((len(objects), len(self.default_boxes)), "int64"), []
        for one, (boxes, classes) in zip(labels, objects):
            found = match(boxes, self.default_boxes, OVERLAP, OVERLAP)
            at = np.flatnonzero(found >= 0)
            one[at] = classes[found[at]]
            codes.append(encode_boxes(boxes[found[at]], self.default_boxes[at], WEIGHTS))
        return labels, np.concatenate(codes)

    def losses(self, logits: Tensor, codes: Tensor, objects: list[Objects]) -> dict[str, Tensor]:
        """ "bbox_regression", smooth L1 of boxes with objects, and "classification", the cross entropy of these and of
        the boxes of background with the largest loss, NEGATIVES for each in the same image.

        Both are sums, divided by the number of boxes with objects, or by 1 if there are none.
        """
        labels, wanted = self.matched(objects)
        n = max(np.count_nonzero(labels), 1)
        here = logits.device
        codes = ops.index_select(codes.reshape(-1, 4), 0, tensor(np.flatnonzero(labels), device=here))
        shift = ops.smooth_l1_loss(codes, tensor(wanted, device=here), reduction="sum")
        truth = tensor(labels, device=here)
        positive = ops.gt(truth, 0)
        flat = ops.cross_entropy(logits.reshape(-1, self.num_classes), truth.reshape(-1), reduction="none")
        each = flat.reshape(truth.shape)
        negatives = NEGATIVES * tensor(np.count_nonzero(labels, 1)[:, None], device=here)
        hardest = ops.argsort(each.detach().masked_fill(positive, -1.0), 1, descending=True)
        learns = ops.logical_or(positive, ops.lt(ops.argsort(hardest, 1), negatives))
        return {
            "bbox_regression": shift / n,
            "classification": ops.sum(each.masked_fill(ops.logical_not(learns), 0.0)) / n,
        }

    def detect(self, logits: Tensor, codes: Tensor) -> list[dict[str, Tensor]]:
        """The best 200 boxes of all classes: per class those with scores above 0.01, at most 400, after NMS at 0.45."""
        boxes = tensor(self.default_boxes, device=logits.device)
        found = []
        for x, shift in zip(logits.detach(), codes.detach()):
            shifted, scores = decode_boxes(shift.float(), boxes, WEIGHTS), ops.softmax(x.float(), 1)
            found.append(detections(shifted, scores, (self.size, self.size), 0.01, 0.45, 400, 200))
        return found
