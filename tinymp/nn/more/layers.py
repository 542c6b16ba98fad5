"""Convolutions over one axis, EmbeddingBag, and LazyLinear, which learns in_features from its first input."""

from __future__ import annotations

from typing import Any

from ... import backend, ops
from ...arguments import choice, flag, floating, with_axes
from ...parameter import replace
from ...tensor import Tensor
from ..layers import Conv, ConvTranspose, Embedding, Linear

__all__ = ["Conv1d", "ConvTranspose1d", "EmbeddingBag", "LazyLinear"]


class Conv1d(Conv):
    """1-d cross-correlation. weight: (out_channels, in_channels / groups, k); input: (N, C, L).

    See `ops.conv1d`. Weight and bias start uniform on [-r, r), r = 1 / sqrt(in_channels / groups * k).
    padding_mode: only "zeros".
    """

    axes, op = 1, staticmethod(ops.conv1d)


class ConvTranspose1d(ConvTranspose):
    """The transposed convolution over one axis. weight: (in_channels, out_channels / groups, k); input: (N, C, L).

    See `ops.conv_transpose1d` and `ConvTranspose2d`.
    """

    axes, op = 1, staticmethod(ops.conv_transpose1d)


@classmethod  # type: ignore[misc]  # of Embedding
def from_pretrained(cls: Any, embeddings: Tensor, freeze: bool = True, padding_idx: Any = None, **options: Any) -> Any:
    """A layer whose weight is a copy of embeddings (num_embeddings, embedding_dim), in FP32.

    freeze: the weight takes no gradient. options: those of the constructor.
    """
    x = with_axes("from_pretrained", "embeddings", embeddings, 2)
    layer = cls(x.shape[0], x.shape[1], padding_idx=padding_idx, **options)
    layer.weight.data.copy_(x)
    layer.weight.requires_grad_(not flag("from_pretrained", "freeze", freeze))
    return layer


class EmbeddingBag(Embedding):
    """The "sum", "mean" or "max" of the rows of weight (num_embeddings, embedding_dim) that each bag names.

    weight starts standard normal; the row padding_idx starts at zero, counts in no bag and gets no gradient. See
    `ops.embedding_bag`, also for forward's arguments.
    """

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        *,
        mode: str = "mean",
        sparse: bool = False,
        include_last_offset: bool = False,
        padding_idx: int | None = None,
    ) -> None:
        super().__init__(num_embeddings, embedding_dim, padding_idx, sparse=sparse)
        self.mode = choice("EmbeddingBag", "mode", mode, ("sum", "mean", "max"))
        self.include_last_offset = flag("EmbeddingBag", "include_last_offset", include_last_offset)

    def forward(self, input: Tensor, offsets: Tensor | None = None, per_sample_weights: Tensor | None = None) -> Tensor:
        options = {name: getattr(self, name) for name in ("mode", "sparse", "include_last_offset", "padding_idx")}
        return ops.embedding_bag(input, self.weight, offsets, per_sample_weights=per_sample_weights, **options)


class LazyLinear(Linear):
    """A Linear whose in_features is the length of the last axis of its first input, at which it becomes a Linear.

    Until then its weight is (out_features, 0). Parameters stay the same objects, with their device and policy: an
    optimizer and `policy.cast` may come before the first input; `load_state_dict`, which refuses the weight's shape,
    may not.
    """

    def __init__(self, out_features: int, bias: bool = True) -> None:
        super().__init__(0, out_features, bias)

    def forward(self, input: Tensor) -> Tensor:
        if floating("LazyLinear", "input", input).ndim == 0:
            raise ValueError("LazyLinear: expected `input` to have at least 1 axis, got shape ()")
        made = Linear(input.shape[-1], self.out_features, self.bias is not None)
        for p, drawn in zip(self.parameters(), made.parameters()):
            replace([(drawn, drawn.moved_to(backend.of(p.array).name))])
            replace([(p, drawn.cast_to(p.policy))])
        y = super().forward(input)  # where it fails, the layer stays lazy
        self.in_features, self.__class__ = made.in_features, Linear  # type: ignore[assignment]
        return y
