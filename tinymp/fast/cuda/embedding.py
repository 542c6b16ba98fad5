"""The gradient of a whole table, summed in FP32 registers and rounded there; the definition writes FP32 sums first."""

from __future__ import annotations

from ...autograd import Array
from ...ops.embedding import Embedding
from . import kernel, row_sums


@kernel(Embedding.backward)
def embedding_backward(op: Embedding, dy: Array) -> tuple:
    if op.sparse:
        return NotImplemented
    (index,), (_, like) = op.saved, op.targets
    dw = row_sums.sum_rows(like.shape[0], index.reshape(-1), dy.reshape(index.size, like.shape[1]))
    if op.padding is not None:
        dw[op.padding] = 0
    return None, dw
