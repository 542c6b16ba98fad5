"""The networks that are trained on both sides: tinymp speaks PyTorch's names, so one definition serves both.

Each function takes the module with the layers, `tinymp.nn` or `torch.nn`.
"""

from __future__ import annotations

from typing import Any


def cnn(nn: Any, channels: int = 1, size: int = 28, width: int = 32, classes: int = 10) -> Any:
    """The network of examples/mnist.py, for images of size x size; its layers are width to 4 width wide."""
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
