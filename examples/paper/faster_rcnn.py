"""Faster R-CNN (Ren et al., 2015): one network proposes regions, one on the same map names and shifts them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from tinymp import backend, ops
from tinymp.autograd import Array
from tinymp.nn import Conv2d, Dropout, Flatten, Linear, Module, ReLU, Sequential
from tinymp.precision import FP32, to_dtype
from tinymp.tensor import Tensor, tensor

from .boxes import clip_boxes_to_image, decode_boxes, encode_boxes, nms, remove_small_boxes
from .detection import NEITHER, Objects, detections, match, objects_of, per_box, sample
from .regions import roi_pool
from .scale import FULL, Scale, start
from .vgg import features

RATIOS = (0.5, 1.0, 2.0)  # height / width of anchors
OBJECT, NO_OBJECT = 0.7, 0.3  # an anchor whose overlap lies between learns nothing
RPN_BETA = 1 / 9  # of smooth L1: where the authors' program has a sigma of 3
SAME = 0.7  # proposals that overlap more than this are one
NO_WEIGHTS = (1.0, 1.0, 1.0, 1.0)
WEIGHTS = (10.0, 10.0, 5.0, 5.0)  # of the coordinates: 1 / the standard deviations 0.1 and 0.2 of what is learnt


def anchor_boxes(height: int, width: int, stride: int, sizes: Sequence[float]) -> Array:
    """FP32 (height * width * 3 * sizes, 4): around each place of a map, boxes of area size^2 with each of RATIOS."""
    roots = [(size, math.sqrt(ratio)) for ratio in RATIOS for size in sizes]
    w, h = np.array([(size / root, size * root) for size, root in roots]).T / 2
    x, y = (np.arange(width)[:, None] + 0.5) * stride, (np.arange(height)[:, None, None] + 0.5) * stride
    return to_dtype(np.stack(np.broadcast_arrays(x - w, y - h, x + w, y + h), -1).reshape(-1, 4), FP32.storage)


def selected(x: Tensor, columns: int, rows: Array) -> Tensor:
    """These rows of x, which has so many columns."""
    return ops.index_select(x.reshape(-1, columns), 0, tensor(rows, device=x.device))


def mean_losses(logits: Tensor, codes: Tensor, labels: Array, wanted: Array, beta: float) -> tuple[Tensor, Tensor]:
    """Cross entropy of sampled boxes, logits (n, classes), and smooth L1 of those with objects, codes (m, 4); each is a
    sum divided by n.
    """
    n, here = max(len(labels), 1), logits.device
    named = ops.cross_entropy(logits, tensor(labels, device=here), reduction="sum")
    return named / n, ops.smooth_l1_loss(codes, tensor(wanted, device=here), reduction="sum", beta=beta) / n


class RegionProposalNetwork(Module):
    """Proposes boxes that may hold an object. Arguments as of FasterRCNN; pairs are for training and evaluation."""

    def __init__(
        self, channels: int, stride: int, sizes: Sequence[float], before: Sequence, after: Sequence, batch: int
    ) -> None:
        super().__init__()
        self.stride, self.sizes, self.before, self.after, self.batch = stride, sizes, before, after, batch
        per_place = len(RATIOS) * len(sizes)
        self.conv = Conv2d(channels, channels, 3, padding=1)
        self.cls_logits, self.bbox_pred = (Conv2d(channels, per_place * n, 1) for n in (2, 4))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """A map -> for each anchor logits (N, anchors, 2) of background and object, and codes (N, anchors, 4)."""
        x = ops.relu(self.conv(x))
        return per_box(self.cls_logits(x), 2), per_box(self.bbox_pred(x), 4)

    def anchors(self, features: Tensor, size: tuple[int, int]) -> tuple[Array, Array]:
        """The anchors of a map, and which of them lie in the image. ValueError if it has room for none."""
        height, width = features.shape[2:]
        found = anchor_boxes(height, width, self.stride, self.sizes)
        inside = (found[:, :2] >= 0).all(1) & (found[:, 2:] <= size[::-1]).all(1)
        if not inside.any():
            raise ValueError(
                f"FasterRCNN: expected `images` with room for an anchor of {min(self.sizes)} pixels, got {size}; make "
                "them larger, or anchor_sizes smaller"
            )
        return found, inside

    def propose(self, logits: Tensor, codes: Tensor, boxes: Array, size: tuple[int, int]) -> list[Tensor]:
        """The best boxes of each image, FP32 (n, 4), in the image and no smaller than the stride, after NMS."""
        before, after = (pair[not self.training] for pair in (self.before, self.after))
        scores, references, found = ops.softmax(logits.detach().float(), 2), tensor(boxes, device=logits.device), []
        for s, shift in zip(scores[:, :, 1], codes.detach()):
            b = clip_boxes_to_image(decode_boxes(shift.float(), references, NO_WEIGHTS), size)
            good = ops.isfinite(b).all(1) & ops.isfinite(s)  # of a network that diverges, some are not
            b, s = b[good], s[good]
            large = remove_small_boxes(b, self.stride)
            best = ops.topk(s[large], min(before, len(large)))
            b = b[large][best.indices]
            found.append(b[nms(b, best.values, SAME)[:after]])
        return found

    def losses(
        self, logits: Tensor, codes: Tensor, boxes: Array, inside: Array, objects: list[Objects], random: Any
    ) -> tuple[Tensor, Tensor]:
        """Losses of objectness and of boxes, over anchors inside their image: up to half of them with an object."""
        sampled = []
        for i, (truth, _) in enumerate(objects):
            found = np.full(len(boxes), NEITHER)
            found[inside] = match(truth, boxes[inside], OBJECT, NO_OBJECT)
            chosen = sample(found, self.batch, 0.5, random)
            at = chosen[found[chosen] >= 0]
            wanted = encode_boxes(truth[found[at]], boxes[at], NO_WEIGHTS)
            sampled.append((i * len(boxes) + chosen, i * len(boxes) + at, found[chosen] >= 0, wanted))
        rows, positive, labels, wanted = map(np.concatenate, zip(*sampled))
        logits, codes = selected(logits, 2, rows), selected(codes, 4, positive)
        return mean_losses(logits, codes, np.asarray(labels, "int64"), wanted, RPN_BETA)


class RoIHeads(Module):
    """Fast R-CNN (Girshick, 2015): regions of a map -> what they show and where exactly."""

    def __init__(self, channels: int, stride: int, wide: int, num_classes: int, dropout: float, batch: int) -> None:
        super().__init__()
        self.stride, self.batch = stride, batch
        # VGG's first two dense layers, of pooled regions (n, channels, 7, 7)
        hidden = Linear(channels * 49, wide), ReLU(), Dropout(dropout), Linear(wide, wide), ReLU(), Dropout(dropout)
        self.box_head = Sequential(Flatten(), *hidden)
        # each class shifts a region in its own way
        self.cls_score, self.bbox_pred = Linear(wide, num_classes), Linear(wide, 4 * num_classes)

    def forward(self, features: Tensor, regions: list[Tensor]) -> tuple[Tensor, Tensor]:
        """Logits (n, classes) and codes (n, classes, 4) of the regions, FP32 (n, 4) for each image, one after the
        other.
        """
        x = self.box_head(roi_pool(features, regions, (7, 7), 1 / self.stride))
        logits = self.cls_score(x)
        return logits, self.bbox_pred(x).reshape(*logits.shape, 4)

    def losses(
        self, features: Tensor, proposals: list[Tensor], objects: list[Objects], random: Any
    ) -> tuple[Tensor, Tensor]:
        """Losses of classes and of boxes. The objects' own boxes are also proposals. Up to a quarter of the regions
        show an object, with an overlap of half or more.
        """
        regions, sampled, total = [], [], 0
        for proposed, (truth, classes) in zip(proposals, objects):
            boxes = np.concatenate([truth, np.asarray(proposed)])
            found = match(truth, boxes, 0.5, 0.5, best=False)
            chosen = sample(found, self.batch, 0.25, random)
            at = np.flatnonzero(found[chosen] >= 0)  # of the chosen
            regions.append(tensor(boxes[chosen], device=features.device))
            label = np.zeros(len(chosen), "int64")
            label[at] = classes[found[chosen[at]]]
            sampled.append((total + at, label, encode_boxes(truth[found[chosen[at]]], boxes[chosen[at]], WEIGHTS)))
            total += len(chosen)
        logits, codes = self(features, regions)
        at, label, wanted = map(np.concatenate, zip(*sampled))
        codes = selected(codes, 4, at * logits.shape[1] + label[at])  # of the right class
        return mean_losses(logits, codes, label, wanted, 1.0)

    def detect(self, features: Tensor, proposals: list[Tensor], size: tuple[int, int]) -> list[dict[str, Tensor]]:
        """The best 100 boxes of all classes, with scores above 0.05, after NMS at 0.3 within each class."""
        logits, codes = (y.detach().float() for y in self(features, proposals))
        scores, found, start = ops.softmax(logits, 1), [], 0
        for boxes in proposals:
            here = slice(start, start := start + len(boxes))
            of_class = boxes.unsqueeze(1).expand(codes[here].shape).reshape(-1, 4)
            shifted = decode_boxes(codes[here].reshape(-1, 4), of_class, WEIGHTS).reshape(codes[here].shape)
            found.append(detections(shifted, scores[here], size, 0.05, 0.3, len(boxes), 100))
        return found


class FasterRCNN(Module):
    """Faster R-CNN with VGG-D; 137,078,239 parameters for the 21 classes of PASCAL VOC, of which 0 is the background.

    model(images, targets) in training gives FP32 losses, a dict whose sum is trained; model(images) in evaluation a
    dict for each image: "boxes" FP32 (n, 4), "labels" int64 (n,) and "scores" FP32 (n,), best first.

    images: (N, in_channels, H, W), in the paper with a shorter side of 600; ValueError where no anchor has room.
    targets: see `objects_of`. What is sampled is drawn from `manual_seed`'s generator, in the same way under every
    policy.

    anchor_sizes               roots of the anchors' areas, in pixels; by default 8, 16 and 32 times the stride of the
                               map, which is 16
    rpn_pre_nms_top_n, rpn_post_nms_top_n      so many proposals of an image before and after NMS, in training and in
                               evaluation
    rpn_batch_size_per_image, box_batch_size_per_image     so many anchors and regions of an image are trained
    """

    def __init__(
        self,
        num_classes: int = 21,
        *,
        in_channels: int = 3,
        anchor_sizes: Sequence[float] | None = None,
        rpn_pre_nms_top_n: tuple[int, int] = (12000, 6000),
        rpn_post_nms_top_n: tuple[int, int] = (2000, 300),
        rpn_batch_size_per_image: int = 256,
        box_batch_size_per_image: int = 128,
        dropout: float = 0.5,
        scale: Scale = FULL,
    ) -> None:
        super().__init__()
        channels, stride = scale.channels(512), math.prod(scale.stride(i) for i in range(4))
        sizes = anchor_sizes or [8 * 2**i * stride for i in range(3)]
        self.backbone = features(in_channels, scale, ceil_mode=True)[:-1]
        self.rpn = RegionProposalNetwork(
            channels, stride, sizes, rpn_pre_nms_top_n, rpn_post_nms_top_n, rpn_batch_size_per_image
        )
        wide = scale.channels(4096)
        self.roi_heads = RoIHeads(channels, stride, wide, num_classes, dropout, box_batch_size_per_image)
        rpn, regions = self.rpn, self.roi_heads
        start(self, rpn.conv, rpn.cls_logits, rpn.bbox_pred, regions.cls_score, regions.bbox_pred)

    def forward(self, images: Tensor, targets: Any = None) -> Any:
        """Losses in training, detections in evaluation, where targets are not read."""
        objects = objects_of("FasterRCNN", targets) if self.training else []
        size, maps = images.shape[2:], self.backbone(images)
        boxes, inside = self.rpn.anchors(maps, size)
        logits, codes = self.rpn(maps)
        proposals = self.rpn.propose(logits, codes, boxes, size)
        if not self.training:
            return self.roi_heads.detect(maps, proposals, size)
        random = np.random.default_rng(backend.cpu.generator.integers(2**63))  # one draw, whatever is proposed
        first = self.rpn.losses(logits, codes, boxes, inside, objects, random)
        names = "loss_classifier", "loss_box_reg", "loss_objectness", "loss_rpn_box_reg"
        return dict(zip(names, (*self.roi_heads.losses(maps, proposals, objects, random), *first)))
