"""ResNet-50 with pre-activation (He et al., 2016b): normalise and rectify before each convolution."""

from __future__ import annotations

from tinymp import ops
from tinymp.nn import AdaptiveAvgPool2d, BatchNorm2d, Conv2d, Identity, Linear, MaxPool2d, Module, Sequential
from tinymp.tensor import Tensor

from .scale import FULL, Scale, start


class Bottleneck(Module):
    """x + f(x) with f of 1x1, 3x3 and 1x1 convolutions; where shapes differ, a 1x1 convolution stands in for x.

    The shortcut, too, starts from the normalised values where it has a convolution.
    """

    def __init__(self, inputs: int, width: int, stride: int, first: bool) -> None:
        super().__init__()
        outputs = 4 * width
        self.bn1 = Identity() if first else BatchNorm2d(inputs)  # the first one's is that of the stem
        self.conv1 = Conv2d(inputs, width, 1, bias=False)
        self.bn2 = BatchNorm2d(width)
        self.conv2 = Conv2d(width, width, 3, stride, padding=1, bias=False)
        self.bn3 = BatchNorm2d(width)
        self.conv3 = Conv2d(width, outputs, 1, bias=False)
        same = inputs == outputs and stride == 1
        self.downsample = None if same else Conv2d(inputs, outputs, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """x: (N, inputs, H, W)."""
        y = ops.relu(self.bn1(x))
        x = x if self.downsample is None else self.downsample(y)
        y = self.conv2(ops.relu(self.bn2(self.conv1(y))))
        return x + self.conv3(ops.relu(self.bn3(y)))


class PreActResNet(Module):
    """Images (N, in_channels, 224, 224) -> logits (N, num_classes); 25,549,352 parameters for 1,000 classes."""

    def __init__(self, num_classes: int = 1000, *, in_channels: int = 3, scale: Scale = FULL) -> None:
        super().__init__()
        inputs = scale.channels(64)
        self.conv1 = Conv2d(in_channels, inputs, 7, scale.stride(0), padding=3, bias=False)
        self.bn1 = BatchNorm2d(inputs)
        self.maxpool = MaxPool2d(3, 2, padding=1) if scale.stride(1) == 2 else Identity()
        for i, blocks in enumerate((3, 4, 6, 3)):
            width, stage = scale.channels(64 * 2**i), []
            for block in scale.layers(range(blocks)):
                stage.append(Bottleneck(inputs, width, 1 if block or not i else scale.stride(1 + i), i == block == 0))
                inputs = 4 * width
            setattr(self, f"layer{i + 1}", Sequential(*stage))
        self.bn = BatchNorm2d(inputs)
        self.avgpool = AdaptiveAvgPool2d(1)
        self.fc = Linear(inputs, num_classes)
        start(self, self.fc)

    def forward(self, x: Tensor) -> Tensor:
        """The logits."""
        x = self.maxpool(ops.relu(self.bn1(self.conv1(x))))
        for stage in (self.layer1, self.layer2, self.layer3, self.layer4):
            x = stage(x)
        return self.fc(self.avgpool(ops.relu(self.bn(x))).flatten(1))
