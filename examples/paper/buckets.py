"""Batches of sequences of similar lengths, so that little of them is padding."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np


class BucketBatchSampler:
    """The item numbers of batches of similar lengths: `DataLoader(dataset, batch_sampler=BucketBatchSampler(...))`.

    lengths     of every item: (N,), or (N, k) for items of k sequences, such as a sentence and its translation
    batch_size  items per batch; one batch has what is left
    generator   in every epoch it draws an order for the items that are equally long, and for the batches. Without one,
                both are in order of length
    drop_last   leave out a batch that is not full: in every epoch other items, for the last ones would be the longest

    Items are sorted by length, pairs by the first length, then by the second.
    """

    def __init__(
        self, lengths: Any, batch_size: int, generator: np.random.Generator | None = None, drop_last: bool = False
    ) -> None:
        self.lengths = np.asarray(lengths, int).reshape(len(lengths), -1)
        self.batch_size, self.generator, self.drop_last = batch_size, generator, drop_last

    def state_dict(self) -> dict[str, Any]:
        """{"generator": its state, or None}."""
        return {"generator": None if self.generator is None else self.generator.bit_generator.state}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over what `state_dict` returned."""
        if self.generator is not None:
            self.generator.bit_generator.state = state_dict["generator"]

    def __len__(self) -> int:
        """The number of batches."""
        n = len(self.lengths)
        return n // self.batch_size if self.drop_last else -(-n // self.batch_size)

    def __iter__(self) -> Iterator[np.ndarray]:
        order, size = np.arange(len(self.lengths)), self.batch_size
        if self.generator is not None:
            self.generator.shuffle(order)
        if self.drop_last:
            order = order[: len(self) * size]
        order = order[np.lexsort(self.lengths[order].T[::-1])]  # stable
        starts = np.arange(0, len(order), size)
        if self.generator is not None:
            self.generator.shuffle(starts)
        return (order[i : i + size] for i in starts)
