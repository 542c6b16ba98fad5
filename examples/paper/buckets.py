"""Batches of sequences of similar lengths, so that little of them is padding."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from tinymp.data.dataset import random_generator


class BucketBatchSampler:
    """The item numbers of batches of similar lengths: `DataLoader(dataset, batch_sampler=BucketBatchSampler(...))`.

    lengths     of every item: (N,), or (N, k) for items of k sequences, such as a sentence and its translation
    batch_size  items per batch; one batch has what is left
    shuffle     in every epoch the items that are equally long change places, and so do the batches. Without it, both
                are in order of length
    drop_last   leave out a batch that is not full: in every epoch other items, for the last ones would be the longest
    generator   a numpy.random.Generator that draws the orders, or
    seed        the number to make one from. Without either each epoch's order follows tinymp.manual_seed

    Items are sorted by length, pairs by the first length, then by the second.
    """

    def __init__(
        self,
        lengths: Any,
        batch_size: int,
        shuffle: bool = True,
        drop_last: bool = False,
        *,
        generator: np.random.Generator | None = None,
        seed: int | None = None,
    ) -> None:
        self.lengths = np.asarray(lengths, int).reshape(len(lengths), -1)
        self.batch_size, self.shuffle, self.drop_last = batch_size, shuffle, drop_last
        seeded = generator is not None or seed is not None
        self.generator = random_generator("BucketBatchSampler", generator, seed) if seeded else None

    def __len__(self) -> int:
        """The number of batches."""
        n = len(self.lengths)
        return n // self.batch_size if self.drop_last else -(-n // self.batch_size)

    def state_dict(self) -> dict[str, Any]:
        """{"generator": the state of its own, or None}."""
        return {"generator": None if self.generator is None else self.generator.bit_generator.state}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over what `state_dict` returned."""
        if self.generator is not None:
            self.generator.bit_generator.state = state_dict["generator"]

    def __iter__(self) -> Iterator[np.ndarray]:
        order, size = np.arange(len(self.lengths)), self.batch_size
        random = (self.generator or random_generator("BucketBatchSampler", None, None)) if self.shuffle else None
        if random is not None:
            random.shuffle(order)
        if self.drop_last:
            order = order[: len(self) * size]
        order = order[np.lexsort(self.lengths[order].T[::-1])]  # stable
        starts = np.arange(0, len(order), size)
        if random is not None:
            random.shuffle(starts)
        return (order[i : i + size] for i in starts)
