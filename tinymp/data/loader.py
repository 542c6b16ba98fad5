"""DataLoader: batches of a dataset, in order or shuffled."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import tee
from typing import Any

import numpy as np

from ..arguments import count, flag, function
from ..backend.extras import held
from .dataset import length_of, random_generator


class DataLoader:
    """Batches of `dataset`, epoch after epoch: `for x, y in DataLoader(dataset, 64, shuffle=True): ...`

    dataset        anything with `len(dataset)` and `dataset[i]`; a TensorDataset is indexed once per batch
    batch_size     items per batch; the last batch may be smaller, and drop_last omits it then
    shuffle        another order in every epoch
    sampler        instead of shuffle: an iterable with a length that gives the item numbers of an epoch, in order
    batch_sampler  instead of these four: an iterable with a length that gives the item numbers of each batch
    num_workers    the number of threads that load batches; with more than one the dataset must be thread-safe
    collate_fn     makes a batch of the list of its items; by default `default_collate`
    generator      a numpy.random.Generator that draws the orders, or
    seed           the number to make one from. Without either each epoch's order follows tinymp.manual_seed
    group          the processes that share every batch (see docs/parallel.md): batch_size is for all of them together
    prefetch       the number of batches that threads load ahead; by default 2 with num_workers, else 0

    The batches are the same, bit for bit, for every num_workers and prefetch, and their dtypes are those of the data:
    `policy.cast(batch)` gives a batch a policy's storage. Errors of the dataset are raised in the loop.

    `state_dict` gives the position of the loop, also in the middle of an epoch; after `load_state_dict` the next loop
    continues there (as in torchdata's StatefulDataLoader). `epoch` is the number of the next epoch, from 0.

    Unlike in PyTorch, there are no worker processes and no iterable datasets, and Python floats become float32.
    """

    def __init__(
        self, dataset: Any, batch_size: int = 1, shuffle: bool = False, sampler: Iterable[int] | None = None,
        batch_sampler: Iterable[Sequence[int]] | None = None, num_workers: int = 0,
        collate_fn: Callable[[list], Any] | None = None, *, drop_last: bool = False,
        generator: np.random.Generator | None = None, seed: int | None = None, group: Any = None,
        prefetch: int | None = None,
    ) -> None:  # fmt: skip
        self.dataset, self.sampler, self.batch_sampler, self.group = dataset, sampler, batch_sampler, group
        self.batch_size = count("DataLoader", "batch_size", batch_size)
        self.shuffle = shuffle is not None and flag("DataLoader", "shuffle", shuffle)
        self.drop_last = flag("DataLoader", "drop_last", drop_last)
        self.collate_fn = collate_fn and function("DataLoader", "collate_fn", collate_fn)
        seeded = generator is not None or seed is not None
        self.generator = random_generator("DataLoader", generator, seed) if seeded else None
        length_of("DataLoader", dataset)
        given = sampler is not None or batch_sampler is not None
        self.batches = held("data.loader.GivenBatches")(self) if given else Batches(self)
        self.shared = None if group is None else held("data.loader.SharedBatches")(self, seed)
        ahead = num_workers != 0 or prefetch
        self.threads = held("data.loader.LoadingThreads")(num_workers, prefetch) if ahead else None
        self.epoch = 0
        self.left: Iterable[np.ndarray] | None = None  # item numbers of the batches that this epoch has not given yet
        self.resumes = False  # True if the next loop begins with these

    def __setattr__(self, name: str, value: Any) -> None:
        if hasattr(self, "resumes") and name in ("dataset", "batch_size", "shuffle", "sampler", "batch_sampler"):
            raise AttributeError(f"DataLoader: expected `{name}` to stay as it was given; make a new DataLoader")
        object.__setattr__(self, name, value)

    def __len__(self) -> int:
        """The number of batches."""
        return len(self.batches)

    def __iter__(self) -> Iterator[Any]:
        left, numbers = tee((self.left or []) if self.resumes else self.batches)
        mine = self.shared.part(numbers, self.epoch) if self.shared else numbers
        self.epoch, self.left, self.resumes = self.epoch + 1, left, False
        loaded = (load(self.dataset, some, self.collate_fn) for some in mine)
        return self._given(self.threads.batches(self, mine) if self.threads else loaded, left)

    def _given(self, batches: Iterable, left: Iterator[np.ndarray]) -> Iterator:
        """The batches; notes which are left."""
        try:
            for batch in batches:
                next(left)
                yield batch
        finally:
            if self.left is left:  # else another loop has begun
                self.left = None

    def state_dict(self) -> dict[str, Any]:
        """The position of the loop. Call this in its body, or between two epochs; leaving a loop ends its epoch.

        {"epoch": the number of this or the next epoch, "left": the item numbers of its remaining batches in one list,
        or None, "sizes": the sizes of these batches, "items": the length of the dataset, "generator": the state of the
        loader's own, "sampler": that of a (batch) sampler with a state_dict}
        """
        return held("data.loader.position")(self)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore a result of `state_dict`: the next loop gives the remaining batches.

        TypeError and ValueError for the state of another dataset or loader; then nothing changes.
        """
        held("data.loader.go_to")(self, state_dict)


class Batches:
    """The item numbers of each batch of an epoch, in order or shuffled."""

    def __init__(self, loader: DataLoader) -> None:
        self.dataset, self.size, self.drop_last = loader.dataset, loader.batch_size, loader.drop_last
        self.shuffle, self.generator = loader.shuffle, loader.generator

    def __len__(self) -> int:
        n = len(self.dataset)
        return n // self.size if self.drop_last else -(-n // self.size)

    def __iter__(self) -> Iterator[np.ndarray]:
        order = np.arange(len(self.dataset))
        if self.shuffle:
            order = (self.generator or random_generator("DataLoader", None, None)).permutation(len(order))
        # no generator, which an interrupt would end
        return iter([order[i : i + self.size] for i in range(0, len(self) * self.size, self.size)])


def load(dataset: Any, numbers: np.ndarray, collate_fn: Callable | None) -> Any:
    """The batch of these items."""
    if collate_fn is None and "batch" in vars(type(dataset)):  # a class derived from that may have items of its own
        return dataset.batch(numbers)
    return held("data.loader.collated")(dataset, numbers, collate_fn)
