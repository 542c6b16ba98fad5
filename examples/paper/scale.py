"""One rule that makes the networks of the paper small, and one that initialises them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from tinymp.nn import Conv2d, Identity, Linear, MaxPool2d, Module, init

T = TypeVar("T")


@dataclass(frozen=True)
class Scale:
    """The rule by which a network for images of 224 pixels becomes one for small images.

    width     hidden layers have this share of their channels, rounded up to a multiple of 8 (Tensor Cores want that)
    depth     of layers in a row that do the same, this share stays, rounded up
    halvings  so many of the first steps that halve the image are left out, strides of convolutions and whole poolings:
              with 3, the 28 pixels of a digit are where those of a photograph of 224 are after the first layers, and
              from there on images are as large as in the full network. Kernels stay as they are.
    """

    width: float = 1.0
    depth: float = 1.0
    halvings: int = 0

    def channels(self, n: int) -> int:
        """The number of channels that n become."""
        return n if self.width == 1 else math.ceil(n * self.width / 8) * 8

    def layers(self, row: Sequence[T]) -> Sequence[T]:
        """The layers of a row that are kept."""
        return row[: math.ceil(len(row) * self.depth)]

    def stride(self, halving: int) -> int:
        """The stride of a convolution that halves the image: the first step of its network to do so is 0."""
        return 1 if halving < self.halvings else 2

    def pool(self, halving: int, kernel: int = 3, ceil_mode: bool = False) -> Module:
        """The max pooling that halves the image, counted likewise."""
        return Identity() if halving < self.halvings else MaxPool2d(kernel, 2, ceil_mode=ceil_mode)


FULL = Scale()
SMALL = Scale(width=1 / 8, depth=1 / 2, halvings=3)


def start(model: Module, *last: Conv2d | Linear) -> None:
    """Draw the weights anew, for a network without batch norm learns nothing from PyTorch's default ones.

    They are from N(0, 2 / fan_in), which keeps the size of what ReLUs let pass (He et al., 2015); those of the `last`
    layers, which give logits, from N(0, 0.01^2). Biases are 0.
    """
    for layer in model.modules():
        if isinstance(layer, (Conv2d, Linear)):
            init.kaiming_normal_(layer.weight, nonlinearity="relu")
            if layer.bias is not None:
                init.zeros_(layer.bias)
    for layer in last:
        init.normal_(layer.weight, 0.0, 0.01)
