"""EmbeddingBag: sums, means or maxima of the rows of a table."""

from __future__ import annotations

from ... import ops
from ...arguments import choice, flag, integers, name_all
from ...ops.embedding import row
from ...tensor import Tensor
from ..functions import described
from ..init import parameter
from ..layers import draw_rows
from ..module import Module

__all__ = ["EmbeddingBag"]


class EmbeddingBag(Module):
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
        super().__init__()
        name = "EmbeddingBag"
        (self.num_embeddings,) = integers(name, "num_embeddings", num_embeddings, 1, 1)
        (self.embedding_dim,) = integers(name, "embedding_dim", embedding_dim, 1, 1)
        self.padding_idx = row(name, padding_idx, self.num_embeddings)
        self.mode = choice(name, "mode", mode, ("sum", "mean", "max"))
        self.sparse = flag(name, "sparse", sparse)
        self.include_last_offset = flag(name, "include_last_offset", include_last_offset)
        self.weight = parameter(self.num_embeddings, self.embedding_dim)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the weight anew."""
        draw_rows(self.weight, self.padding_idx)

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

    def extra_repr(self) -> str:
        return described(self, "num_embeddings", "embedding_dim")


name_all(globals())
