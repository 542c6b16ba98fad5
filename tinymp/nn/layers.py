"""Linear, convolutions of images, Embedding. Built in FP32; `policy.cast(model)` sets the storage."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, ClassVar

from .. import ops
from ..arguments import choice, count, flag, integers
from ..backend.extras import Held
from ..ops.embedding import row
from ..parameter import Parameter
from ..tensor import Tensor
from . import init
from .init import parameter
from .module import Module

__all__ = ["Conv2d", "ConvTranspose2d", "Embedding", "Linear"]


class Linear(Module):
    """y = x W^T + b. weight: (out_features, in_features), bias: (out_features,); input: (..., in_features).

    Both start uniform on [-r, r), r = 1 / sqrt(in_features). See `ops.linear`.
    """

    def __init__(self, in_features: int, out_features: int, bias: bool = True) -> None:
        super().__init__()
        name = type(self).__name__
        (self.in_features,) = integers(name, "in_features", in_features, 1, 0)
        (self.out_features,) = integers(name, "out_features", out_features, 1, 0)
        self.weight = parameter(self.out_features, self.in_features)
        self.bias = parameter(self.out_features) if flag(name, "bias", bias) else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw weight and bias anew."""
        _reset(self.weight, self.bias)

    def forward(self, input: Tensor) -> Tensor:
        return ops.linear(input, self.weight, self.bias)


def _reset(*parameters: Parameter | None) -> None:
    """A weight and its bias uniform on [-r, r), r = 1 / sqrt(fan_in): PyTorch's kaiming_uniform_ with a = sqrt(5)."""
    r = 1 / math.sqrt(max(1, math.prod(parameters[0].shape[1:])))  # type: ignore[union-attr]
    for p in parameters:
        if p is not None:
            init.uniform_(p, -r, r)


class Conv(Module):
    """A convolution over one or two axes."""

    op: ClassVar[Callable[..., Tensor]]
    axes: ClassVar[int]  # spatial axes
    transposed: ClassVar[bool] = False
    output_padding: tuple[int, ...] = ()

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Any,
        stride: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
        groups: int = 1,
        bias: bool = True,
        padding_mode: str = "zeros",
    ) -> None:
        super().__init__()
        name, n = type(self).__name__, self.axes
        choice(name, "padding_mode", padding_mode, ("zeros",))
        self.in_channels = count(name, "in_channels", in_channels)
        self.out_channels = count(name, "out_channels", out_channels)
        self.kernel_size = integers(name, "kernel_size", kernel_size, n, 1)
        self.stride = integers(name, "stride", stride, n, 1)
        self.dilation = integers(name, "dilation", dilation, n, 1)
        self.groups = count(name, "groups", groups)
        words = isinstance(padding, str) and not self.transposed
        self.padding = (
            choice(name, "padding", padding, ("same", "valid")) if words else integers(name, "padding", padding, n, 0)
        )
        for field, channels in (("in_channels", self.in_channels), ("out_channels", self.out_channels)):
            if channels % self.groups:
                raise ValueError(f"{name}: expected {field} to be a multiple of groups, got {channels} and {groups}")
        ends = (self.in_channels, self.out_channels) if self.transposed else (self.out_channels, self.in_channels)
        self.weight = parameter(ends[0], ends[1] // self.groups, *self.kernel_size)
        self.bias = parameter(self.out_channels) if flag(name, "bias", bias) else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw weight and bias anew."""
        _reset(self.weight, self.bias)

    def forward(self, input: Tensor) -> Tensor:
        return self.op(input, self.weight, self.bias, *self._options())

    def _options(self) -> tuple:
        return self.stride, self.padding, self.dilation, self.groups


class Conv2d(Conv):
    """2-d cross-correlation. weight: (out_channels, in_channels / groups, kh, kw); input: (N, C, H, W).

    See `ops.conv2d`. Weight and bias start uniform on [-r, r), r = 1 / sqrt(in_channels / groups * kh kw).
    padding_mode: only "zeros".
    """

    axes, op = 2, staticmethod(ops.conv2d)


class ConvTranspose(Conv):
    """A transposed convolution, whose options come in another order."""

    transposed = True

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Any,
        stride: Any = 1,
        padding: Any = 0,
        output_padding: Any = 0,
        groups: int = 1,
        bias: bool = True,
        dilation: Any = 1,
        padding_mode: str = "zeros",
    ) -> None:
        self.output_padding = integers(type(self).__name__, "output_padding", output_padding, self.axes, 0)
        super().__init__(in_channels, out_channels, kernel_size, stride, padding, dilation, groups, bias, padding_mode)

    def _options(self) -> tuple:
        return self.stride, self.padding, self.output_padding, self.groups, self.dilation


class ConvTranspose2d(ConvTranspose):
    """The transposed convolution. weight: (in_channels, out_channels / groups, kh, kw). See `ops.conv_transpose2d`.

    Weight and bias start uniform on [-r, r), r = 1 / sqrt(out_channels / groups * kh kw). padding_mode: only "zeros".
    forward has no output_size: give output_padding.
    """

    axes, op = 2, staticmethod(ops.conv_transpose2d)


class Embedding(Module):
    """weight[input], for integers in [0, num_embeddings). weight: (num_embeddings, embedding_dim). See `ops.embedding`.

    weight starts standard normal; the row padding_idx starts at zero and gets no gradient. sparse: the gradient holds
    only the rows that the input names, and optimizers update only those (see `optim.Optimizer`).
    """

    def __init__(
        self, num_embeddings: int, embedding_dim: int, padding_idx: int | None = None, *, sparse: bool = False
    ) -> None:
        super().__init__()
        self.num_embeddings = count("Embedding", "num_embeddings", num_embeddings)
        self.embedding_dim = count("Embedding", "embedding_dim", embedding_dim)
        self.padding_idx = row("Embedding", padding_idx, self.num_embeddings)
        self.sparse = flag("Embedding", "sparse", sparse)
        self.weight = parameter(self.num_embeddings, self.embedding_dim)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw rows standard normal, but for the one of padding, which is zero."""
        init.normal_(self.weight)
        self.weight.data[slice(0) if self.padding_idx is None else self.padding_idx] = 0  # no row, or this

    def forward(self, input: Tensor) -> Tensor:
        return ops.embedding(input, self.weight, self.padding_idx, sparse=self.sparse)

    from_pretrained = Held("nn.layers.from_pretrained")
