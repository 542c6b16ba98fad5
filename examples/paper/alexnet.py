"""AlexNet (Krizhevsky et al., 2012), as Caffe trained it for the paper: two groups, local response normalisation."""

from __future__ import annotations

from tinymp.nn import AdaptiveAvgPool2d, Conv2d, LocalResponseNorm, Module, ReLU, Sequential
from tinymp.tensor import Tensor

from .scale import FULL, Scale, start
from .vgg import classifier


class AlexNet(Module):
    """Images (N, in_channels, 224, 224) -> logits (N, num_classes); 60,965,224 parameters for 1,000 classes.

    torchvision's AlexNet is another network: one tower, no normalisation, fewer channels.
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
