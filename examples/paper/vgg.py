"""AlexNet (Krizhevsky et al., 2012) and VGG (Simonyan & Zisserman, 2015): convolutions, then three dense layers."""

from __future__ import annotations

from tinymp.nn import AdaptiveAvgPool2d, Conv2d, Dropout, Linear, LocalResponseNorm, Module, ReLU, Sequential
from tinymp.tensor import Tensor

from .scale import FULL, Scale, start

STAGES = ((64, 64), (128, 128), (256, 256, 256), (512, 512, 512), (512, 512, 512))  # column D of their table 1


def features(in_channels: int, scale: Scale, ceil_mode: bool = False) -> Sequential:
    """VGG-D's convolutions: a pooling ends each of the five stages. ceil_mode: it rounds odd sides up, as Caffe's."""
    layers: list[Module] = []
    for i, stage in enumerate(STAGES):
        for channels in map(scale.channels, scale.layers(stage)):
            layers += [Conv2d(in_channels, channels, 3, padding=1), ReLU()]
            in_channels = channels
        layers.append(scale.pool(i, kernel=2, ceil_mode=ceil_mode))
    return Sequential(*layers)


def classifier(inputs: int, num_classes: int, dropout: float, scale: Scale) -> Sequential:
    """The three dense layers in which both end."""
    wide = scale.channels(4096)
    hidden: list[Module] = []
    for n in (inputs, wide):
        hidden += [Linear(n, wide), ReLU(), Dropout(dropout)]
    return Sequential(*hidden, Linear(wide, num_classes))


class AlexNet(Module):
    """Images (N, in_channels, 224, 224) -> logits (N, num_classes); 60,965,224 parameters for 1,000 classes.

    As Caffe trained it for the paper: two groups, local response normalisation. torchvision's AlexNet is another
    network: one tower, no normalisation, fewer channels.
    """

    def __init__(
        self, num_classes: int = 1000, dropout: float = 0.5, *, in_channels: int = 3, scale: Scale = FULL
    ) -> None:
        super().__init__()
        a, b, c = map(scale.channels, (96, 256, 384))
        stride = scale.stride(0) * scale.stride(1)  # 4: two halvings
        self.features = Sequential(
            Conv2d(in_channels, a, 11, stride, padding=2 if stride == 4 else 5),
            ReLU(),
            LocalResponseNorm(5),
            scale.pool(2),
            Conv2d(a, b, 5, padding=2, groups=2),
            ReLU(),
            LocalResponseNorm(5),
            scale.pool(3),
            Conv2d(b, c, 3, padding=1),
            ReLU(),
            Conv2d(c, c, 3, padding=1, groups=2),
            ReLU(),
            Conv2d(c, b, 3, padding=1, groups=2),
            ReLU(),
            scale.pool(4),
        )
        self.avgpool = AdaptiveAvgPool2d(6)  # photographs of 224 pixels are 6 x 6 here already
        self.classifier = classifier(b * 36, num_classes, dropout, scale)
        start(self, self.classifier[-1])

    def forward(self, x: Tensor) -> Tensor:
        """The logits."""
        return self.classifier(self.avgpool(self.features(x)).flatten(1))


class VGG(Module):
    """VGG-D: images (N, in_channels, 224, 224) -> logits (N, num_classes); 138,357,544 parameters for 1,000 classes.

    Parameters have torchvision's names, whose vgg16 this is.
    """

    def __init__(
        self, num_classes: int = 1000, dropout: float = 0.5, *, in_channels: int = 3, scale: Scale = FULL
    ) -> None:
        super().__init__()
        self.features = features(in_channels, scale)
        self.avgpool = AdaptiveAvgPool2d(7)  # photographs of 224 pixels are 7 x 7 here already
        self.classifier = classifier(scale.channels(STAGES[-1][-1]) * 49, num_classes, dropout, scale)
        start(self, self.classifier[-1])

    def forward(self, x: Tensor) -> Tensor:
        """The logits."""
        return self.classifier(self.avgpool(self.features(x)).flatten(1))
