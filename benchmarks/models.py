"""The networks that are trained on both sides: tinymp speaks PyTorch's names, so one definition serves both.

Each function takes the module with the layers, `tinymp.nn` or `torch.nn`. The last two are tinymp's training steps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
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


Sizes = list[tuple[int, int, int, int]]  # of convolutions: channels in and out, kernel, stride


def _stages(nn: Any, blocks: Sequence[int], width: int, wider: int, sizes: Callable[[int, int, int], Sizes]) -> list:
    """Residual blocks (He et al., 2015) of the convolutions sizes(channels in, width, stride), `blocks` in each stage.

    The first block of a stage takes as many channels as the one before it gives, `wider` times its width, and from the
    second stage on halves the image; its shortcut is a 1x1 convolution where the shape changes.
    """

    class Block(nn.Module):
        def __init__(self, inputs: int, outputs: int, stride: int) -> None:
            super().__init__()
            every = sizes(inputs, outputs // wider, stride)
            parts = [(nn.Conv2d(i, o, k, s, k // 2, bias=False), nn.BatchNorm2d(o), nn.ReLU()) for i, o, k, s in every]
            self.body = nn.Sequential(*[layer for part in parts for layer in part][:-1])  # the last ReLU comes below
            self.shortcut = nn.Identity()
            if stride != 1 or inputs != outputs:
                convolution = nn.Conv2d(inputs, outputs, 1, stride, bias=False)
                self.shortcut = nn.Sequential(convolution, nn.BatchNorm2d(outputs))
            self.relu = nn.ReLU()

        def forward(self, x: Any) -> Any:
            return self.relu(self.body(x) + self.shortcut(x))

    layers, inputs = [], width
    for stage, count in enumerate(blocks):
        outputs = width * wider * 2**stage
        for block in range(count):
            layers.append(Block(inputs, outputs, 2 if stage and not block else 1))
            inputs = outputs
    return layers


def resnet(nn: Any, blocks: int = 3, width: int = 16, classes: int = 10) -> Any:
    """A ResNet for small images (He et al., 2015, section 4.2): 6 blocks + 2 layers, so 20 by default; three stages.

    Their channels are width, 2 width and 4 width.
    """
    stages = _stages(nn, [blocks] * 3, width, 1, lambda i, w, stride: [(i, w, 3, stride), (w, w, 3, 1)])
    stem = nn.Conv2d(3, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU()
    return nn.Sequential(*stem, *stages, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4 * width, classes))


def resnet50(nn: Any, classes: int = 1000) -> Any:
    """The ResNet for images of 224 x 224 with 50 layers (He et al., 2015, table 1): bottlenecks of 1x1, 3x3 and 1x1
    convolutions, in four stages of 3, 4, 6 and 3. The stride is that of the 3x3 convolution, as in PyTorch's.
    """

    def bottleneck(inputs: int, width: int, stride: int) -> Sizes:
        return [(inputs, width, 1, 1), (width, width, 3, stride), (width, 4 * width, 1, 1)]

    stages = _stages(nn, (3, 4, 6, 3), 64, 4, bottleneck)
    stem = nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1)
    return nn.Sequential(*stem, *stages, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2048, classes))


def language_model(
    nn: Any, vocabulary: int, embedding: int = 128, hidden: int = 256, layers: int = 2, projection: int = 0
) -> Any:
    """Words (T, B) -> scores of the word that follows each, (T B, vocabulary). projection: of `hidden`, or 0."""

    class LanguageModel(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(vocabulary, embedding)
            self.lstm = nn.LSTM(embedding, hidden, layers, proj_size=projection)
            self.output = nn.Linear(projection or hidden, vocabulary)

        def forward(self, words: Any) -> Any:
            return self.output(self.lstm(self.embedding(words))[0].flatten(0, 1))

    return LanguageModel()


def training_step(
    model: mp.nn.Module, loss: Callable[..., mp.Tensor], policy: mp.Policy, rule: Any = optim.Adam, **options: Any
) -> Callable[..., mp.Tensor]:
    """A step on what it is called with, of which `loss` makes the loss; a dynamic loss scale unless all is FP32."""
    optimizer = rule(model.parameters(), **options)
    scaler = optim.NoLossScaler() if policy is mp.FP32 else optim.DynamicLossScaler()

    def step(*batch: mp.Tensor) -> mp.Tensor:
        with mp.use(policy):
            value = loss(*batch)
            scaler.scale(value).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
        return value

    return step


def momentum_step(model: mp.nn.Module, policy: mp.Policy) -> Callable[[mp.Tensor, mp.Tensor], mp.Tensor]:
    """A step of SGD with momentum on a batch and its labels."""

    def loss(inputs: mp.Tensor, labels: mp.Tensor) -> mp.Tensor:
        return ops.cross_entropy(model(inputs), labels)

    return training_step(model, loss, policy, optim.SGD, lr=0.01, momentum=0.9)
