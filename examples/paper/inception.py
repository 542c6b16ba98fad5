"""GoogLeNet (Inception v1: Szegedy et al., 2015), Inception v2 (Ioffe & Szegedy, 2015) and v3 (Szegedy et al., 2016).

An Inception module runs several paths side by side and joins their channels.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from tinymp import ops
from tinymp.arguments import flag, number
from tinymp.nn import (
    AdaptiveAvgPool2d,
    AvgPool2d,
    BatchNorm2d,
    Conv2d,
    Dropout,
    Linear,
    LocalResponseNorm,
    MaxPool2d,
    Module,
    ModuleList,
    ReLU,
    Sequential,
)
from tinymp.tensor import Tensor

from .scale import FULL, Scale, check
from .start import start


class Paths(Module):
    """Paths side by side, whose results are joined along the channels. Each is a row of layers, given by name; a name
    such as "a+b" runs the layers a and b on the same input and joins their results.
    """

    def __init__(self, layers: Mapping[str, Module], *paths: str) -> None:
        super().__init__()
        for name, layer in layers.items():
            self.add_module(name, layer)
        self.paths = [[step.split("+") for step in path.split()] for path in paths]

    def forward(self, x: Tensor) -> Tensor:
        """x: (N, C, H, W)."""
        results = []
        for path in self.paths:
            y = x
            for step in path:
                y = ops.cat([getattr(self, name)(y) for name in step], 1) if step[1:] else getattr(self, step[0])(y)
            results.append(y)
        return ops.cat(results, 1)


class BasicConv2d(Module):
    """Convolution, batch norm, ReLU."""

    def __init__(self, inputs: int, outputs: int, kernel: Any, stride: int = 1, padding: Any = 0, eps: float = 1e-3):
        super().__init__()
        self.conv = Conv2d(inputs, outputs, kernel, stride, padding, bias=False)
        self.bn = BatchNorm2d(outputs, eps=eps)

    def forward(self, x: Tensor) -> Tensor:
        """x: (N, inputs, H, W)."""
        return ops.relu(self.bn(self.conv(x)))


class Outputs(NamedTuple):
    """What a network with auxiliary heads gives in training: the logits, and those of each head."""

    logits: Tensor
    aux_logits: tuple[Tensor, ...]


def loss(outputs: Any, target: Tensor, *, label_smoothing: float = 0.0, aux_weight: float = 0.3) -> Tensor:
    """The cross entropy of logits, or of `Outputs`, whose heads count with aux_weight (Szegedy et al., 2015: 0.3)."""
    number("loss", "aux_weight", aux_weight)
    logits, heads = outputs if isinstance(outputs, Outputs) else (outputs, ())
    total = ops.cross_entropy(logits, target, label_smoothing=label_smoothing)
    for head in heads:
        total = total + aux_weight * ops.cross_entropy(head, target, label_smoothing=label_smoothing)
    return total


# ------------------------------------------------------------------------------------------------------------ GoogLeNet


def _conv(inputs: int, outputs: int, kernel: int, padding: int = 0, stride: int = 1) -> Sequential:
    return Sequential(Conv2d(inputs, outputs, kernel, stride, padding), ReLU())


class _Head(Module):
    """An auxiliary classifier of GoogLeNet, of images (N, inputs, 14, 14)."""

    def __init__(self, inputs: int, num_classes: int, dropout: float, scale: Scale) -> None:
        super().__init__()
        narrow, wide = scale.channels(128), scale.channels(1024)
        self.pool = AvgPool2d(5, 3)
        self.conv = _conv(inputs, narrow, 1)
        self.fc1 = Linear(narrow * 16, wide)
        self.dropout = Dropout(dropout)
        self.fc2 = Linear(wide, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(self.dropout(ops.relu(self.fc1(self.conv(self.pool(x)).flatten(1)))))


class GoogLeNet(Module):
    """Images (N, in_channels, 224, 224) -> logits (N, num_classes), in training `Outputs` with two heads.

    6,998,552 parameters for 1,000 classes, 13,378,280 with the heads. torchvision's has batch norm, and other kernels.
    """

    # channels: 1x1; 3x3 after 1x1; 5x5 after 1x1; 1x1 after pooling (table 1 of the paper)
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
        self,
        num_classes: int = 1000,
        aux_logits: bool = True,
        dropout: float = 0.4,
        dropout_aux: float = 0.7,
        *,
        in_channels: int = 3,
        scale: Scale = FULL,
    ) -> None:
        super().__init__()
        check(
            "GoogLeNet",
            scale,
            num_classes=num_classes,
            dropout=dropout,
            dropout_aux=dropout_aux,
            in_channels=in_channels,
        )
        flag("GoogLeNet", "aux_logits", aux_logits)
        a, b = scale.channels(64), scale.channels(192)
        self.stem = Sequential(
            _conv(in_channels, a, 7, 3, scale.stride(0)),
            scale.pool(1, ceil_mode=True),
            LocalResponseNorm(5),
            _conv(a, a, 1),
            _conv(a, b, 3, 1),
            LocalResponseNorm(5),
            scale.pool(2, ceil_mode=True),
        )
        inputs, places = b, []
        self.stages = ModuleList()
        for stage in self.STAGES:
            self.stages.append(ModuleList())
            for widths in scale.layers(stage):
                places.append(inputs)
                module, inputs = self._module(inputs, *map(scale.channels, widths))
                self.stages[-1].append(module)
        self.pools = ModuleList([scale.pool(3, ceil_mode=True), scale.pool(4, ceil_mode=True)])
        first, last = (len(self.stages[0]) + i for i in (1, len(self.stages[1]) - 1))
        heads = [places[first], places[last]] if aux_logits else []
        self.aux = ModuleList([_Head(n, num_classes, dropout_aux, scale) for n in heads])
        self.avgpool = AdaptiveAvgPool2d(1)
        self.dropout = Dropout(dropout)
        self.fc = Linear(inputs, num_classes)
        start(self, self.fc, *[head.fc2 for head in self.aux])

    @staticmethod
    def _module(inputs: int, one: int, narrow3: int, three: int, narrow5: int, five: int, pooled: int) -> tuple:
        layers = {
            "branch1": _conv(inputs, one, 1),
            "branch2": Sequential(_conv(inputs, narrow3, 1), _conv(narrow3, three, 3, 1)),
            "branch3": Sequential(_conv(inputs, narrow5, 1), _conv(narrow5, five, 5, 2)),
            "branch4": Sequential(MaxPool2d(3, 1, 1), _conv(inputs, pooled, 1)),
        }
        return Paths(layers, *layers), one + three + five + pooled

    def forward(self, x: Tensor) -> Any:
        """The logits; in training `Outputs`. The heads see what the second and the last module of stage 4 see."""
        x = self.stem(x)
        heads: list[Tensor] = []
        for i, stage in enumerate(self.stages):
            for j, module in enumerate(stage):
                if self.training and i == 1 and len(self.aux) and j in (1, len(stage) - 1):
                    heads.append(self.aux[len(heads)](x))
                x = module(x)
            x = self.pools[i](x) if i < 2 else x
        logits = self.fc(self.dropout(self.avgpool(x).flatten(1)))
        return Outputs(logits, tuple(heads)) if heads else logits


# --------------------------------------------------------------------------------------------------------- Inception v2


class InceptionV2(Module):
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
        super().__init__()
        check("InceptionV2", scale, num_classes=num_classes, in_channels=in_channels)
        a, b = scale.channels(64), scale.channels(192)
        layers: list[Module] = [
            BasicConv2d(in_channels, a, 7, scale.stride(0), 3, eps=1e-5),
            scale.pool(1, ceil_mode=True),
            BasicConv2d(a, a, 1, eps=1e-5),
            BasicConv2d(a, b, 3, 1, 1, eps=1e-5),
            scale.pool(2, ceil_mode=True),
        ]
        inputs = b
        for i, stage in enumerate(self.STAGES):
            same = [module for module in stage if module[0]]
            for *widths, pool in (*scale.layers(same), *stage[len(same) :]):
                stride = 1 if widths[0] else scale.stride(3 + i)
                module, inputs = self._module(inputs, stride, pool, *(w and scale.channels(w) for w in widths))
                layers.append(module)
        self.features = Sequential(*layers)
        self.avgpool = AdaptiveAvgPool2d(1)
        self.fc = Linear(inputs, num_classes)
        start(self, self.fc)

    @staticmethod
    def _module(
        inputs: int, stride: int, pool: str, one: int, narrow3: int, three: int, narrow5: int, five: int, pooled: int
    ) -> tuple:
        def unit(n: int, m: int, kernel: int, stride: int = 1) -> BasicConv2d:
            return BasicConv2d(n, m, kernel, stride, kernel // 2, eps=1e-5)

        layers: dict[str, Module] = {"branch1": unit(inputs, one, 1)} if one else {}
        layers["branch2"] = Sequential(unit(inputs, narrow3, 1), unit(narrow3, three, 3, stride))
        layers["branch3"] = Sequential(unit(inputs, narrow5, 1), unit(narrow5, five, 3), unit(five, five, 3, stride))
        pooling = (AvgPool2d if pool == "avg" else MaxPool2d)(3, stride, 1)
        layers["branch4"] = Sequential(pooling, unit(inputs, pooled, 1)) if pooled else pooling
        return Paths(layers, *layers), one + three + five + (pooled or inputs)

    def forward(self, x: Tensor) -> Tensor:
        """The logits."""
        return self.fc(self.avgpool(self.features(x)).flatten(1))


# --------------------------------------------------------------------------------------------------------- Inception v3


def _module_a(n: int, pooled: int, c: Callable[[int], int]) -> tuple:
    layers = {
        "branch1x1": BasicConv2d(n, c(64), 1),
        "branch5x5_1": BasicConv2d(n, c(48), 1),
        "branch5x5_2": BasicConv2d(c(48), c(64), 5, padding=2),
        "branch3x3dbl_1": BasicConv2d(n, c(64), 1),
        "branch3x3dbl_2": BasicConv2d(c(64), c(96), 3, padding=1),
        "branch3x3dbl_3": BasicConv2d(c(96), c(96), 3, padding=1),
        "pool": AvgPool2d(3, 1, 1),
        "branch_pool": BasicConv2d(n, c(pooled), 1),
    }
    paths = ("branch1x1", "branch5x5_1 branch5x5_2", "branch3x3dbl_1 branch3x3dbl_2 branch3x3dbl_3", "pool branch_pool")
    return Paths(layers, *paths), c(64) + c(64) + c(96) + c(pooled)


def _module_b(n: int, c: Callable[[int], int]) -> tuple:
    layers = {
        "branch3x3": BasicConv2d(n, c(384), 3, 2),
        "branch3x3dbl_1": BasicConv2d(n, c(64), 1),
        "branch3x3dbl_2": BasicConv2d(c(64), c(96), 3, padding=1),
        "branch3x3dbl_3": BasicConv2d(c(96), c(96), 3, 2),
        "pool": MaxPool2d(3, 2),
    }
    return Paths(layers, "branch3x3", "branch3x3dbl_1 branch3x3dbl_2 branch3x3dbl_3", "pool"), c(384) + c(96) + n


def _module_c(n: int, inner: int, c: Callable[[int], int]) -> tuple:
    m = c(inner)
    wide: dict[str, Any] = {"kernel": (1, 7), "padding": (0, 3)}
    tall: dict[str, Any] = {"kernel": (7, 1), "padding": (3, 0)}
    layers = {
        "branch1x1": BasicConv2d(n, c(192), 1),
        "branch7x7_1": BasicConv2d(n, m, 1),
        "branch7x7_2": BasicConv2d(m, m, **wide),
        "branch7x7_3": BasicConv2d(m, c(192), **tall),
        "branch7x7dbl_1": BasicConv2d(n, m, 1),
        "branch7x7dbl_2": BasicConv2d(m, m, **tall),
        "branch7x7dbl_3": BasicConv2d(m, m, **wide),
        "branch7x7dbl_4": BasicConv2d(m, m, **tall),
        "branch7x7dbl_5": BasicConv2d(m, c(192), **wide),
        "pool": AvgPool2d(3, 1, 1),
        "branch_pool": BasicConv2d(n, c(192), 1),
    }
    double = " ".join(f"branch7x7dbl_{i}" for i in range(1, 6))
    return Paths(layers, "branch1x1", "branch7x7_1 branch7x7_2 branch7x7_3", double, "pool branch_pool"), 4 * c(192)


def _module_d(n: int, c: Callable[[int], int]) -> tuple:
    m = c(192)
    layers = {
        "branch3x3_1": BasicConv2d(n, m, 1),
        "branch3x3_2": BasicConv2d(m, c(320), 3, 2),
        "branch7x7x3_1": BasicConv2d(n, m, 1),
        "branch7x7x3_2": BasicConv2d(m, m, (1, 7), padding=(0, 3)),
        "branch7x7x3_3": BasicConv2d(m, m, (7, 1), padding=(3, 0)),
        "branch7x7x3_4": BasicConv2d(m, m, 3, 2),
        "pool": MaxPool2d(3, 2),
    }
    path = "branch7x7x3_1 branch7x7x3_2 branch7x7x3_3 branch7x7x3_4"
    return Paths(layers, "branch3x3_1 branch3x3_2", path, "pool"), c(320) + m + n


def _module_e(n: int, c: Callable[[int], int]) -> tuple:
    m = c(384)
    layers = {
        "branch1x1": BasicConv2d(n, c(320), 1),
        "branch3x3_1": BasicConv2d(n, m, 1),
        "branch3x3_2a": BasicConv2d(m, m, (1, 3), padding=(0, 1)),
        "branch3x3_2b": BasicConv2d(m, m, (3, 1), padding=(1, 0)),
        "branch3x3dbl_1": BasicConv2d(n, c(448), 1),
        "branch3x3dbl_2": BasicConv2d(c(448), m, 3, padding=1),
        "branch3x3dbl_3a": BasicConv2d(m, m, (1, 3), padding=(0, 1)),
        "branch3x3dbl_3b": BasicConv2d(m, m, (3, 1), padding=(1, 0)),
        "pool": AvgPool2d(3, 1, 1),
        "branch_pool": BasicConv2d(n, c(192), 1),
    }
    double = "branch3x3dbl_1 branch3x3dbl_2 branch3x3dbl_3a+branch3x3dbl_3b"
    paths = ("branch1x1", "branch3x3_1 branch3x3_2a+branch3x3_2b", double, "pool branch_pool")
    return Paths(layers, *paths), c(320) + 4 * m + c(192)


class _HeadV3(Module):
    """The auxiliary classifier, of images (N, inputs, 17, 17); others are averaged to the same 5 x 5."""

    def __init__(self, inputs: int, num_classes: int, scale: Scale) -> None:
        super().__init__()
        self.pool = AdaptiveAvgPool2d(5) if scale.halvings else AvgPool2d(5, 3)
        self.conv0 = BasicConv2d(inputs, scale.channels(128), 1)
        self.conv1 = BasicConv2d(scale.channels(128), scale.channels(768), 5)
        self.avgpool = AdaptiveAvgPool2d(1)
        self.fc = Linear(scale.channels(768), num_classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.avgpool(self.conv1(self.conv0(self.pool(x)))).flatten(1))


class InceptionV3(Module):
    """Images (N, in_channels, 299, 299) -> logits (N, num_classes), in training `Outputs` with a head.

    27,161,264 parameters for 1,000 classes, 23,834,568 without the head. They have torchvision's names, whose
    inception_v3 this is (with transform_input=False).
    """

    def __init__(
        self,
        num_classes: int = 1000,
        aux_logits: bool = True,
        dropout: float = 0.5,
        *,
        in_channels: int = 3,
        scale: Scale = FULL,
    ) -> None:
        super().__init__()
        check("InceptionV3", scale, num_classes=num_classes, dropout=dropout, in_channels=in_channels)
        flag("InceptionV3", "aux_logits", aux_logits)
        c = scale.channels
        self.Conv2d_1a_3x3 = BasicConv2d(in_channels, c(32), 3, scale.stride(0))
        self.Conv2d_2a_3x3 = BasicConv2d(c(32), c(32), 3)
        self.Conv2d_2b_3x3 = BasicConv2d(c(32), c(64), 3, padding=1)
        self.maxpool1 = scale.pool(1)
        self.Conv2d_3b_1x1 = BasicConv2d(c(64), c(80), 1)
        self.Conv2d_4a_3x3 = BasicConv2d(c(80), c(192), 3)
        self.maxpool2 = scale.pool(2)
        n = c(192)
        stages: tuple = (
            [(f"Mixed_5{name}", _module_a, pooled) for name, pooled in zip("bcd", (32, 64, 64))],
            [("Mixed_6a", _module_b)],
            [(f"Mixed_6{name}", _module_c, inner) for name, inner in zip("bcde", (128, 160, 160, 192))],
            [("Mixed_7a", _module_d)],
            [(f"Mixed_7{name}", _module_e) for name in "bc"],
        )
        self.mixed: list[list[str]] = []
        for i, stage in enumerate(stages):
            kept = scale.layers(stage)
            for name, make, *widths in kept:
                module, n = make(n, *widths, c)
                self.add_module(name, module)
            self.mixed.append([name for name, *_ in kept])
            if i == 2 and aux_logits:
                self.AuxLogits = _HeadV3(n, num_classes, scale)
        self.avgpool = AdaptiveAvgPool2d(1)
        self.dropout = Dropout(dropout)
        self.fc = Linear(n, num_classes)
        start(self, self.fc, *([self.AuxLogits.fc] if aux_logits else []))

    def forward(self, x: Tensor) -> Any:
        """The logits; in training `Outputs`."""
        x = self.maxpool1(self.Conv2d_2b_3x3(self.Conv2d_2a_3x3(self.Conv2d_1a_3x3(x))))
        x = self.maxpool2(self.Conv2d_4a_3x3(self.Conv2d_3b_1x1(x)))
        heads = []
        for i, stage in enumerate(self.mixed):
            for name in stage:
                x = getattr(self, name)(x)
            if i == 2 and self.training and hasattr(self, "AuxLogits"):
                heads.append(self.AuxLogits(x))
        logits = self.fc(self.dropout(self.avgpool(x).flatten(1)))
        return Outputs(logits, tuple(heads)) if heads else logits


googlenet, inception_v2, inception_v3 = GoogLeNet, InceptionV2, InceptionV3
