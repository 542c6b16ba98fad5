"""Embedding: rows of a table."""

from __future__ import annotations

from typing import Any

from ..arguments import flag, floating, integers, tensor
from ..autograd import Array, Op
from ..backend.extras import held
from ..precision import MOVEMENT, REDUCTION, scatter_add, store
from ..tensor import Tensor
from .index import in_range


class Embedding(Op):
    """y = the rows of w that `index` names;  dw = each row's gradients, summed in FP32 in order, stored once.

    With `sparse`, dw holds only the rows that `index` names: see SparseRows.
    """

    kind = MOVEMENT
    selects = True
    gradient = REDUCTION
    arguments = ("input", "weight")

    def forward(self, index: Array, w: Array, *, padding: int | None, sparse: bool) -> Array:
        self.save(index)
        return w[index]

    def backward(self, dy: Array) -> tuple:
        index, like = self.saved[0].reshape(-1), self.targets[1]
        rows = dy.reshape(index.size, like.shape[1])
        kept = None if self.padding is None else self.xp.not_equal(index, self.padding)[:, None]
        return None, sum_rows(index, rows if kept is None else self.device.select(kept, rows), like, self.sparse)


def sum_rows(index: Array, rows: Array, like: Any, sparse: bool) -> Any:
    """The gradient of a lookup: rows[i] (n, ...) added up in FP32, in order, at row index[i] of the table `like`.

    Each sum is rounded once, to the dtype of `like`.
    """

    def add(n: int, places: Array, rows: Array) -> Array:
        return store(scatter_add(n, places, rows, like), like)

    return held("SparseRows").summed(index, rows, like.shape, add) if sparse else add(like.shape[0], index, rows)


def row(op: str, padding_idx: Any, n: int) -> int | None:
    """padding_idx as a row number in [0, n). ValueError if it is outside the table."""
    return None if padding_idx is None else integers(op, "padding_idx", padding_idx, 1, -n, n - 1)[0] % n


def embedding(input: Tensor, weight: Tensor, padding_idx: int | None = None, *, sparse: bool = False) -> Tensor:
    """weight[input]: input (any shape, integers in [0, V)), weight (V, D); returns input's shape + (D,).

    The row padding_idx gets no gradient. With sparse=True the gradient of a leaf `weight` is SparseRows: the rows that
    `input` names, not a whole table. IndexError for an index outside the table.
    """
    index, w = tensor("embedding", "input", input), floating("embedding", "weight", weight)
    if index.dtype.kind not in "iu":
        raise TypeError(f"embedding: expected integers for `input`, got {index.dtype}")
    if w.ndim != 2:
        raise ValueError(f"embedding: expected `weight` to be (V, D), got shape {w.shape}")
    rows = w.shape[0]
    in_range("embedding", index.array, rows, "the table `weight`")
    sparse = flag("embedding", "sparse", sparse) and bool(held("SparseRows"))  # raises now, not in backward
    return Embedding.apply(index, w, padding=row("embedding", padding_idx, rows), sparse=sparse)
