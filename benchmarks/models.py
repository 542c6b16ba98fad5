"""The networks that are trained on both sides: tinymp speaks PyTorch's names, so one definition serves both.

Each function takes the module with the layers, `tinymp.nn` or `torch.nn`. The last one is tinymp's training step.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tinymp as mp
from tinymp import ops, optim


def cnn(nn: Any, channels: int = 1, size: int = 28, width: int = 32, classes: int = 10) -> Any:
    """The network of examples/cnn.py, for images of size x size; its layers are width to 4 width wide."""
    return nn.Sequential(
        nn.Conv2d(channels, width, 3, padding=1, bias=False),
        nn.BatchNorm2d(width),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(width, 2 * width, 3, padding=1, bias=False),
        nn.BatchNorm2d(2 * width),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(2 * width * (size // 4) ** 2, 4 * width),
        nn.ReLU(),
        nn.Linear(4 * width, classes),
    )


def resnet(nn: Any, blocks: int = 3, width: int = 16, classes: int = 10) -> Any:
    """A ResNet for small images (He et al., 2015, section 4.2): 6 blocks + 2 layers, so 20 by default.

    Three stages of `blocks` residual blocks with width, 2 width and 4 width channels; where the size of the image
    halves, the shortcut is a 1x1 convolution.
    """

    class Block(nn.Module):
        def __init__(self, inputs: int, outputs: int, stride: int) -> None:
            super().__init__()
            self.body = nn.Sequential(
                nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False),
                nn.BatchNorm2d(outputs),
                nn.ReLU(),
                nn.Conv2d(outputs, outputs, 3, padding=1, bias=False),
                nn.BatchNorm2d(outputs),
            )
            self.shortcut = nn.Identity()
            if stride != 1 or inputs != outputs:
                convolution = nn.Conv2d(inputs, outputs, 1, stride=stride, bias=False)
                self.shortcut = nn.Sequential(convolution, nn.BatchNorm2d(outputs))
            self.relu = nn.ReLU()

        def forward(self, x: Any) -> Any:
            return self.relu(self.body(x) + self.shortcut(x))

    layers = [nn.Conv2d(3, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
    inputs = width
    for stage in range(3):
        outputs = width * 2**stage
        for block in range(blocks):
            layers.append(Block(inputs, outputs, 2 if stage and not block else 1))
            inputs = outputs
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, classes))


def resnet50(nn: Any, classes: int = 1000) -> Any:
    """The ResNet for images of 224 x 224 with 50 layers (He et al., 2015, table 1): bottlenecks of 1x1, 3x3 and 1x1
    convolutions, in four stages of 3, 4, 6 and 3. The stride is that of the 3x3 convolution, as in PyTorch's.
    """

    class Block(nn.Module):
        def __init__(self, inputs: int, width: int, stride: int) -> None:
            super().__init__()
            sizes = [(inputs, width, 1, 1), (width, width, 3, stride), (width, 4 * width, 1, 1)]
            parts = [(nn.Conv2d(i, o, k, s, k // 2, bias=False), nn.BatchNorm2d(o), nn.ReLU()) for i, o, k, s in sizes]
            self.body = nn.Sequential(*[layer for part in parts for layer in part][:-1])  # the last ReLU comes below
            self.shortcut = nn.Identity()
            if stride != 1 or inputs != 4 * width:
                convolution = nn.Conv2d(inputs, 4 * width, 1, stride, bias=False)
                self.shortcut = nn.Sequential(convolution, nn.BatchNorm2d(4 * width))
            self.relu = nn.ReLU()

        def forward(self, x: Any) -> Any:
            return self.relu(self.body(x) + self.shortcut(x))

    layers = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    inputs = 64
    for stage, blocks in enumerate((3, 4, 6, 3)):
        width = 64 * 2**stage
        for block in range(blocks):
            layers.append(Block(inputs, width, 2 if stage and not block else 1))
            inputs = 4 * width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, classes))


def language_model(nn: Any, vocabulary: int, embedding: int = 128, hidden: int = 256, layers: int = 2) -> Any:
    """Words (T, B) -> scores of the word that follows each, (T B, vocabulary)."""

    class LanguageModel(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(vocabulary, embedding)
            self.lstm = nn.LSTM(embedding, hidden, layers)
            self.output = nn.Linear(hidden, vocabulary)

        def forward(self, words: Any) -> Any:
            return self.output(self.lstm(self.embedding(words))[0].reshape(-1, hidden))

    return LanguageModel()


def training_step(model: mp.nn.Module, policy: mp.Policy) -> Callable[[mp.Tensor, mp.Tensor], mp.Tensor]:
    """A step of SGD with momentum on a batch and its labels, with a dynamic loss scale unless all is FP32."""
    optimizer = optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    scaler = optim.NoLossScaler() if policy is mp.FP32 else optim.DynamicLossScaler()

    def step(images: mp.Tensor, labels: mp.Tensor) -> mp.Tensor:
        with mp.use(policy):
            loss = ops.cross_entropy(model(images), labels)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
        return loss

    return step
