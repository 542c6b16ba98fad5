"""The batches of a DataLoader shared by the processes of a group."""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from typing import Any

import numpy as np

from ..checkpoint.saving import bytes_of
from ..data.loader import DataLoader
from ..data.more.datasets import Subset
from ..data.more.loading import check_length
from ..events import type_name


class SharedBatches:
    """The part of each batch of a loader that this process trains on: the items rank, rank + size, ... So the batches
    are the same with any number of processes, and so is the state.

    All must have the same data (ValueError: of as many items, and of a TensorDataset or a Subset of one the same bits),
    the same seed, and in every epoch the same order, which is compared when all begin it. A loader needs a seed or
    generator where it shuffles, drop_last where the last batch is not full, and a batch_size that the number of
    processes divides.
    """

    def __init__(self, loader: DataLoader, seed: int | None) -> None:
        group = loader.group
        if not hasattr(group, "rank"):
            raise TypeError(f"DataLoader: expected `group` to be a tinymp.parallel.Group, got {type_name(group)}")
        self.group, self.rank, self.size = group, group.rank, group.size
        if self.size == 1:
            return
        if loader.shuffle and loader.generator is None:
            raise ValueError(
                f"DataLoader: expected `seed` where {self.size} processes share shuffled batches, got none"
            )
        check_length(f"DataLoader of {self.size} processes", loader)
        state = None if loader.generator is None else zlib.crc32(repr(loader.generator.bit_generator.state).encode())
        group.first(
            "DataLoader",
            items=len(loader.dataset),
            data=_checksums(loader.dataset),
            batch_size=loader.batch_size,
            seed=state if seed is None else int(seed),
        )

    def part(self, cut: Iterable[np.ndarray], epoch: int) -> Iterable[np.ndarray]:
        """This process's item numbers of each batch of an epoch."""
        if self.size == 1:
            return cut
        cut = list(cut)
        if uneven := next((len(numbers) for numbers in cut if len(numbers) % self.size), 0):
            raise ValueError(
                f"DataLoader: expected batches that {self.size} processes can share evenly, got one of {uneven} items: "
                "give a batch_size that they divide, and drop_last=True"
            )
        order = np.concatenate([np.array([*map(len, cut)], int), *cut])
        self.group.first("DataLoader", epoch=epoch, order=zlib.crc32(order.data))
        return [numbers[self.rank :: self.size] for numbers in cut]


def _checksums(dataset: Any) -> list[int]:
    """Checksums of the arrays of a TensorDataset, and of the indices of its Subsets."""
    subsets = []
    while type(dataset) is Subset:
        subsets.append(zlib.crc32(np.ascontiguousarray(dataset.indices).data))
        dataset = dataset.dataset
    return subsets + [zlib.crc32(bytes_of(x.array)) for x in getattr(dataset, "tensors", ())]
