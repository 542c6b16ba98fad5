"""EmbeddingBag: sums, means or maxima of the rows of a table."""

from __future__ import annotations

from ... import ops
from ...arguments import choice, flag, name_all
from ...tensor import Tensor
from ..layers import Embedding

__all__ = ["EmbeddingBag"]


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
        return ops.embedding_bag(
            input,
            self.weight,
            offsets,
            mode=self.mode,
            sparse=self.sparse,
            per_sample_weights=per_sample_weights,
            include_last_offset=self.include_last_offset,
            padding_idx=self.padding_idx,
        )


name_all(globals())
