"""GoogLeNet (Inception v1: Szegedy et al., 2015), Inception v2 (Ioffe & Szegedy, 2015) and v3 (Szegedy et al., 2016).

An Inception module runs several paths side by side and joins their channels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, NamedTuple

from tinymp import nn, ops
from tinymp.tensor import Tensor

from .scale import FULL, Scale, start

# Of a path's layers: (outputs, kernel), (outputs, kernel, stride), a pooling, or a list of paths to go on with.
Step = Any
Unit = Callable[..., nn.Module]


class Paths(nn.Module):
    """Paths side by side, whose results are joined along the channels."""

    def __init__(self, paths: list[nn.Module]) -> None:
        super().__init__()
        self.paths = nn.ModuleList(paths)

    def forward(self, x: Tensor) -> Tensor:
        """x: (N, C, H, W)."""
        return ops.cat([path(x) for path in self.paths], 1)


def row(unit: Unit, scale: Scale, n: int, steps: Iterable[Step]) -> tuple[nn.Sequential, int]:
    """Layers in a row, and the channels that come out. unit(inputs, outputs, kernel, ...) makes a convolution."""
    layers: list[nn.Module] = []
    for step in steps:
        if isinstance(step, nn.Module):
            layer = step
        elif isinstance(step, list):
            layer, n = module(unit, scale, n, *step)
        else:
            outputs = scale.channels(step[0])
            layer, n = unit(n, outputs, *step[1:]), outputs
        layers.append(layer)
    return nn.Sequential(*layers), n


def module(unit: Unit, scale: Scale, inputs: int, *paths: list[Step]) -> tuple[Paths, int]:
    """An Inception module of these paths, and its channels."""
    made = [row(unit, scale, inputs, path) for path in paths]
    return Paths([layers for layers, _ in made]), sum(n for _, n in made)


def same(kernel: Any) -> Any:
    """The padding that keeps the size of an image."""
    return tuple(k // 2 for k in kernel) if isinstance(kernel, tuple) else kernel // 2


def plain(inputs: int, outputs: int, kernel: int, stride: int = 1) -> nn.Sequential:
    """Convolution, ReLU: GoogLeNet's."""
    return nn.Sequential(nn.Conv2d(inputs, outputs, kernel, stride, same(kernel)), nn.ReLU())


def normalised(
    eps: float, inputs: int, outputs: int, kernel: Any, stride: int = 1, padding: Any = None
) -> nn.Sequential:
    """Convolution, batch norm, ReLU: Inception v2's and v3's. By default the padding keeps the size."""
    padding = same(kernel) if padding is None else padding
    convolution = nn.Conv2d(inputs, outputs, kernel, stride, padding, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(outputs, eps=eps), nn.ReLU())


class Outputs(NamedTuple):
    """Outputs of a network with auxiliary heads in training: its logits, and those of each head."""

    logits: Tensor
    aux_logits: tuple[Tensor, ...]


def loss(outputs: Any, target: Tensor, *, label_smoothing: float = 0.0, aux_weight: float = 0.3) -> Tensor:
    """The cross entropy of logits, or of `Outputs`, whose heads count with aux_weight (Szegedy et al., 2015: 0.3)."""
    logits, heads = outputs if isinstance(outputs, Outputs) else (outputs, ())
    total = ops.cross_entropy(logits, target, label_smoothing=label_smoothing)
    for head in heads:
        total = total + aux_weight * ops.cross_entropy(head, target, label_smoothing=label_smoothing)
    return total


class Inception(nn.Module):
    """A stem, modules, auxiliary heads before some of them, and the logits."""

    def __init__(self, unit: Unit, scale: Scale, in_channels: int, dropout: float, *stem: Step) -> None:
        super().__init__()
        self.unit, self.scale = unit, scale
        self.stem, self.n = row(unit, scale, in_channels, stem)
        self.body, self.aux = nn.ModuleList(), nn.ModuleList()
        self.heads: list[int] = []  # the numbers of the modules before which the heads are
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.dropout = nn.Dropout(dropout)

    def add(self, *paths: list[Step]) -> None:
        """Go on with a module of these paths."""
        layer, self.n = module(self.unit, self.scale, self.n, *paths)
        self.body.append(layer)

    def end(self, num_classes: int) -> None:
        """Make the last layer, and draw all weights."""
        self.fc = nn.Linear(self.n, num_classes)
        start(self, self.fc, *[list(head)[-1] for head in self.aux])

    def forward(self, x: Tensor) -> Any:
        """The logits; in training of a network with heads `Outputs`."""
        seen: list[Tensor] = []
        x = self.stem(x)
        for i, layer in enumerate(self.body):
            if self.training and i in self.heads:
                seen.append(self.aux[len(seen)](x))
            x = layer(x)
        logits = self.fc(self.dropout(self.avgpool(x).flatten(1)))
        return Outputs(logits, tuple(seen)) if seen else logits


class GoogLeNet(Inception):
    """Images (N, in_channels, 224, 224) -> logits (N, num_classes), in training `Outputs` with two heads.

    13,378,280 parameters for 1,000 classes. The heads see what the second and the last module of stage 4 see.
    """

    # 1x1; 3x3 after 1x1; 5x5 after 1x1; 1x1 after pooling (table 1 of the paper)
    STAGES = (
        ((64, 96, 128, 16, 32, 32), (128, 128, 192, 32, 96, 64)),
        (
            (192, 96, 208, 16, 48, 64),
            (160, 112, 224, 24, 64, 64),
            (128, 128, 256, 24, 64, 64),
            (112, 144, 288, 32, 64, 64),
            (256, 160, 320, 32, 128, 128),
        ),
        ((256, 160, 320, 32, 128, 128), (384, 192, 384, 48, 128, 128)),
    )

    def __init__(
        self, num_classes: int = 1000, dropout: float = 0.4, *, in_channels: int = 3, scale: Scale = FULL
    ) -> None:
        first, norm = (64, 7, scale.stride(0)), nn.LocalResponseNorm(5)
        pools = [scale.pool(i, ceil_mode=True) for i in range(1, 5)]
        super().__init__(plain, scale, in_channels, dropout, first, pools[0], norm, (64, 1), (192, 3), norm, pools[1])
        seen = []  # the channels that each module sees
        for i, stage in enumerate(self.STAGES):
            for one, narrow3, three, narrow5, five, pooled in scale.layers(stage):
                seen.append(self.n)
                pool = [nn.MaxPool2d(3, 1, 1), (pooled, 1)]
                self.add([(one, 1)], [(narrow3, 1), (three, 3)], [(narrow5, 1), (five, 5)], pool)
            if i == 1:
                self.heads = [len(seen) - len(scale.layers(stage)) + 1, len(seen) - 1]
            if i < 2:
                seen.append(self.n)
                self.body.append(pools[2 + i])
        narrow, wide = scale.channels(128), scale.channels(1024)
        for place in self.heads:  # of images of 14 x 14
            dense = nn.Linear(narrow * 16, wide), nn.ReLU(), nn.Dropout(0.7), nn.Linear(wide, num_classes)
            self.aux.append(nn.Sequential(nn.AvgPool2d(5, 3), plain(seen[place], narrow, 1), nn.Flatten(), *dense))
        self.end(num_classes)


class InceptionV2(Inception):
    """GoogLeNet with batch norm, and two 3 x 3 convolutions in place of a 5 x 5 one: images (N, in_channels, 224, 224)
    -> logits (N, num_classes). 11,285,224 parameters for 1,000 classes; Caffe's has 10,016 biases before batch norm.
    """

    # 1x1; 3x3 after 1x1; two 3x3 after 1x1; 1x1 after pooling by mean or max (figure 5 of the paper). A module without
    # 1x1 halves the image, and pools by max alone.
    STAGES = (
        ((64, 64, 64, 64, 96, 32, "avg"), (64, 64, 96, 64, 96, 64, "avg"), (0, 128, 160, 64, 96, 0, "max")),
        (
            (224, 64, 96, 96, 128, 128, "avg"),
            (192, 96, 128, 96, 128, 128, "avg"),
            (160, 128, 160, 128, 160, 128, "avg"),
            (96, 128, 192, 160, 192, 128, "avg"),
            (0, 128, 192, 192, 256, 0, "max"),
        ),
        ((352, 192, 320, 160, 224, 128, "avg"), (352, 192, 320, 192, 224, 128, "max")),
    )

    def __init__(self, num_classes: int = 1000, *, in_channels: int = 3, scale: Scale = FULL) -> None:
        first, pools = (64, 7, scale.stride(0)), [scale.pool(i, ceil_mode=True) for i in (1, 2)]
        stem = first, pools[0], (64, 1), (192, 3), pools[1]
        super().__init__(partial(normalised, 1e-5), scale, in_channels, 0.0, *stem)
        for i, stage in enumerate(self.STAGES):
            repeated = [widths for widths in stage if widths[0]]
            for one, narrow3, three, narrow5, five, pooled, kind in (*scale.layers(repeated), *stage[len(repeated) :]):
                stride = 1 if one else scale.stride(3 + i)
                pool = (nn.AvgPool2d if kind == "avg" else nn.MaxPool2d)(3, stride, 1)
                paths = [(narrow3, 1), (three, 3, stride)], [(narrow5, 1), (five, 3), (five, 3, stride)]
                narrow, last = ([[(one, 1)]], [pool, (pooled, 1)]) if one else ([], [pool])
                self.add(*narrow, *paths, last)
        self.end(num_classes)


class InceptionV3(Inception):
    """Images (N, in_channels, 299, 299) -> logits (N, num_classes), in training `Outputs` with a head.

    27,161,264 parameters for 1,000 classes, 23,834,568 without the head: torchvision's inception_v3 (with
    transform_input=False), under other names.
    """

    def __init__(
        self, num_classes: int = 1000, dropout: float = 0.5, *, in_channels: int = 3, scale: Scale = FULL
    ) -> None:
        unit, pools = partial(normalised, 1e-3), [scale.pool(1), scale.pool(2)]
        stem = (32, 3, scale.stride(0), 0), (32, 3, 1, 0), (64, 3), pools[0], (80, 1), (192, 3, 1, 0), pools[1]
        super().__init__(unit, scale, in_channels, dropout, *stem)
        wide, tall, halve, one = (1, 7), (7, 1), (3, 2, 0), (192, 1)  # halve: a kernel, its stride and padding
        mean, largest = nn.AvgPool2d(3, 1, 1), nn.MaxPool2d(3, 2)
        split = [[(384, (1, 3))], [(384, (3, 1))]]

        def a(pooled: int) -> tuple:
            return [(64, 1)], [(48, 1), (64, 5)], [(64, 1), (96, 3), (96, 3)], [mean, (pooled, 1)]

        def b(m: int) -> tuple:
            twice = [(m, 1), (m, tall), (m, wide), (m, tall), (192, wide)]
            return [one], [(m, 1), (m, wide), (192, tall)], twice, [mean, one]

        first = [(384, *halve)], [(64, 1), (96, 3), (96, *halve)], [largest]
        second = [one, (320, *halve)], [one, (192, wide), (192, tall), (192, *halve)], [largest]
        last = [(320, 1)], [(384, 1), split], [(448, 1), (384, 3), split], [mean, one]
        # the modules of each stage (figures 5, 6 and 7 of the paper, and between them those that halve the image)
        stages = [*map(a, (32, 64, 64))], [first], [*map(b, (128, 160, 160, 192))], [second], [last, last]
        for i, stage in enumerate(stages):
            for paths in scale.layers(stage):
                self.add(*paths)
            if i == 2:  # of images of 17 x 17; others are averaged to the same 5 x 5
                self.heads = [len(self.body)]
                pool = nn.AdaptiveAvgPool2d(5) if scale.halvings else nn.AvgPool2d(5, 3)
                steps = pool, (128, 1), (768, 5, 1, 0), nn.AdaptiveAvgPool2d(1), nn.Flatten()
                layers, inputs = row(unit, scale, self.n, steps)
                self.aux.append(nn.Sequential(*layers, nn.Linear(inputs, num_classes)))
        self.end(num_classes)
