"""Embedding: rows of a table."""

from __future__ import annotations

from ..backend import scatter
from ..precision import MOVEMENT, scatter_add, store
from ..tensor import Array, Op, Tensor
from ._arguments import floating, refuse, tensor
from .index import in_range


class Embedding(Op):
    """y = the rows of w that `index` names;  dw = each row's gradients, summed in FP32 in order, stored once."""

    kind = MOVEMENT
    arguments = ("input", "weight")

    def forward(self, index: Array, w: Array, *, padding: int | None) -> Array:
        self.save(index)
        self.padding = padding
        return w[index]

    def backward(self, dy: Array) -> tuple:
        (index,), (_, like) = self.saved, self.like
        dw = scatter_add(like.shape[0], index.reshape(-1), dy.reshape(-1, like.shape[1]), like)
        if self.padding is not None:
            dw[self.padding] = 0
        return None, store(dw, like=like)

    def backward_cuda(self, dy: Array) -> tuple:
        (index,), (_, like) = self.saved, self.like
        dw = scatter.sum_rows(like.shape[0], index.reshape(-1), dy.reshape(-1, like.shape[1]))
        if self.padding is not None:
            dw[self.padding] = 0
        return None, dw


def embedding(
    input: Tensor,
    weight: Tensor,
    padding_idx: int | None = None,
    max_norm: None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Tensor:
    """weight[input]: input (any shape, integers in [0, V)), weight (V, D); returns input's shape + (D,).

    The row padding_idx gets no gradient. IndexError for an index outside the table.
    """
    refuse("embedding", max_norm=max_norm, scale_grad_by_freq=scale_grad_by_freq, sparse=sparse)
    index, w = tensor("embedding", "input", input), floating("embedding", "weight", weight)
    if index.dtype.kind not in "iu":
        raise TypeError(f"embedding: expected integers for `input`, got {index.dtype}")
    if w.ndim != 2:
        raise ValueError(f"embedding: expected `weight` to be (V, D), got shape {w.shape}")
    rows = w.shape[0]
    in_range("embedding", index.data, rows, "the table `weight`")
    if padding_idx is not None:
        if not -rows <= padding_idx < rows:
            raise IndexError(f"embedding: expected padding_idx in [{-rows}, {rows - 1}], got {padding_idx}")
        padding_idx %= rows
    return Embedding.apply(index, w, padding=padding_idx)
