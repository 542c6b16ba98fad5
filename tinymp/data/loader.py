"""DataLoader: batches of a dataset, in order or shuffled."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice, tee
from time import perf_counter
from typing import Any

import numpy as np

from ..arguments import flag, function, integers, listed
from ..backend.extras import held
from ..dtypes import real
from ..events import type_name
from ..tensor import Tensor
from .dataset import Subset, TensorDataset, in_epoch, item_numbers, length_of, random_generator, without_graph


class DataLoader:
    """Batches of `dataset`, epoch after epoch: `for x, y in DataLoader(dataset, 64, shuffle=True): ...`

    dataset     anything with `len(dataset)` and `dataset[i]`
    batch_size  items per batch; the last batch has what is left
    shuffle     another order in every epoch
    sampler     instead of shuffle: an iterable with a length that gives the item numbers of an epoch, in order. It is
                read as the loop goes on, by the loop's thread, so it may be as long as it likes
    batch_sampler instead of the four above and drop_last: an iterable with a length that gives the item numbers of each
                batch of an epoch, and is read as a sampler is
    num_workers how many threads, at most 1,024, load batches side by side. 0: one thread at most is in
                the dataset at any time. From 1 on there may be several, also of a loop that was left, so the dataset
                must be thread-safe: an item must depend on its number (and epoch) alone and change nothing that the
                items share. This is worth it where loading an item leaves Python (files, Pillow, NumPy)
    collate_fn  called with the list of a batch's items, gives the batch; by default `default_collate`
    drop_last   leave out a last batch that is not full
    generator   a numpy.random.Generator that draws the orders, or
    seed        the number to make one from. Without either each epoch's order follows tinymp.manual_seed
    group       the processes that share every batch (parallel.Group): batch_size is for all of them together, and this
                one loads the items rank, rank + size, ... of each batch. So the batches are the same with any number
                of processes, and so is the state. All must have the same data (ValueError: of as many items, and of a
                TensorDataset or a Subset of one the same bits), the same seed, and in every epoch the same order. It
                needs a seed or generator where it shuffles, drop_last where the last batch is not full, and a
                batch_size that the number of processes divides. All begin each epoch, for it is compared then
    prefetch    how many batches may be loaded ahead in the background, by all threads together (PyTorch's
                prefetch_factor is per worker), and at least num_workers; 0 without these: each when it is asked for.
                By default 2, or 0 where the threads are not installed

    The batches are the same, bit for bit, for every num_workers and prefetch: the order is drawn when the epoch begins,
    and a sampler that draws while it is read should have its own generator, for it is read as far ahead as they load.

    epoch       the number of the next epoch, from 0, for datasets whose items change (see `Dataset.in_epoch`)
    waited      seconds that the loop has waited for batches in the epoch that began last

    The dtype of the data stays: `policy.cast(batch)` is where a batch takes a policy's storage. A TensorDataset (or a
    Subset of one) is indexed once per batch, not item by item.

    The threads belong to one epoch and end with it: after the last batch, on an error, or after the batch that each is
    loading when the loop is left. In a forked process such a loop cannot go on
    (RuntimeError), and new ones can. Errors of the dataset are raised in the loop, with their
    traceback and a note that names the item (under a Subset: its number in the dataset beneath). A dataset that draws
    random numbers should have its own generator: a thread would draw from tinymp's at unpredictable moments.

    `state_dict` tells where the loop is, also in the middle of an epoch, and after `load_state_dict` the next loop goes
    on there, whatever num_workers and prefetch are then (as in torchdata's StatefulDataLoader).

    Unlike in PyTorch, there are no worker processes and no iterable datasets, and Python floats become float32.
    """

    def __init__(
        self,
        dataset: Any,
        batch_size: int = 1,
        shuffle: bool = False,
        sampler: Iterable[int] | None = None,
        batch_sampler: Iterable[Sequence[int]] | None = None,
        num_workers: int = 0,
        collate_fn: Callable[[list], Any] | None = None,
        *,
        drop_last: bool = False,
        generator: np.random.Generator | None = None,
        seed: int | None = None,
        group: Any = None,
        prefetch: int | None = None,
    ) -> None:
        self.shuffle = shuffle is not None and flag("DataLoader", "shuffle", shuffle)
        self.drop_last = flag("DataLoader", "drop_last", drop_last)
        length_of("DataLoader", dataset)
        for name, given in (("sampler", sampler), ("batch_sampler", batch_sampler)):
            sized = hasattr(given, "__len__") and hasattr(given, "__iter__") and getattr(given, "shape", None) != ()
            if given is not None and not sized:
                raise TypeError(
                    f"DataLoader: expected `{name}` to be an iterable with a length, got {type(given).__name__}"
                    " (a generator would be used up after one epoch)"
                )
        if batch_sampler is not None and (batch_size != 1 or shuffle or sampler is not None or drop_last):
            raise ValueError(
                "DataLoader: expected batch_sampler alone, without batch_size, shuffle, sampler and drop_last: it "
                "decides all of that"
            )
        if shuffle and sampler is not None:
            raise ValueError("DataLoader: expected shuffle or sampler, got both; the sampler decides the order")
        if collate_fn is not None:
            function("DataLoader", "collate_fn", collate_fn)
        self.dataset, self.sampler, self.batch_sampler, self.collate_fn = dataset, sampler, batch_sampler, collate_fn
        (self.batch_size,) = integers("DataLoader", "batch_size", batch_size, 1, 1)
        (self.num_workers,) = integers("DataLoader", "num_workers", num_workers, 1, 0)
        seeded = generator is not None or seed is not None
        self.generator = random_generator("DataLoader", generator, seed) if seeded else None
        self.group = group
        self.shared = None if group is None else held("data.loader.SharedBatches")(self, seed)
        try:
            self.threads = held("data.loader.LoadingThreads")(self.num_workers)
        except AttributeError:  # not installed
            if num_workers or prefetch:
                raise
            self.threads = prefetch = 0
        (self.prefetch,) = integers("DataLoader", "prefetch", 2 if prefetch is None else prefetch, 1, 0)
        self.epoch = 0
        self.waited = 0.0
        self.left: Iterable[np.ndarray] | None = None  # item numbers of the batches that this epoch has not given yet
        self.resumes = False  # True if the next loop begins with these

    def __len__(self) -> int:
        """The number of batches."""
        if self.batch_sampler is not None:
            return len(self.batch_sampler)  # type: ignore[arg-type]
        n = len(self.dataset if self.sampler is None else self.sampler)  # type: ignore[arg-type]
        return n // self.batch_size if self.drop_last else -(-n // self.batch_size)

    def __iter__(self) -> Iterator[Any]:
        left, cut = tee((self.left or []) if self.resumes else self._item_numbers(len(self.dataset)))
        mine = cut if self.shared is None else self.shared.part(cut, self.epoch)
        dataset = in_epoch(self.dataset, self.epoch)
        self.epoch, self.waited, self.left, self.resumes = self.epoch + 1, 0.0, left, False
        while type(dataset) is Subset:  # exactly: a class derived from it may have its own __getitem__
            dataset, mine = dataset.dataset, map(dataset.indices.__getitem__, mine)
        if self.threads:
            return self._timed(self.threads.batches(self, dataset, mine), left)
        return self._timed((load(dataset, numbers, self.collate_fn) for numbers in mine), left)

    def _item_numbers(self, n: int) -> Iterator[np.ndarray]:
        """Of each batch of the epoch that begins."""
        if self.batch_sampler is not None:
            return (item_numbers("DataLoader", "batch_sampler", numbers, n) for numbers in self.batch_sampler)
        size = self.batch_size
        if self.sampler is not None:
            cut = in_batches(iter(self.sampler), size, self.drop_last)
            return (item_numbers("DataLoader", "sampler", numbers, n) for numbers in cut)
        if self.shuffle:
            order = (self.generator or random_generator("DataLoader", None, None)).permutation(n)
        else:
            order = np.arange(n)
        return (order[i : i + size] for i in range(0, len(self) * size, size))

    def _timed(self, batches: Iterator, left: Iterator[np.ndarray]) -> Iterator:
        """The same; notes the time that each took to come, and which are left."""
        began = perf_counter()
        try:
            for batch in batches:
                self.waited += perf_counter() - began
                next(left)
                yield batch
                began = perf_counter()
        finally:
            if self.left is left:  # else another loop has begun
                self.left = None

    def state_dict(self) -> dict[str, Any]:
        """Where the loop is: to be called in its body, or between two epochs. A loop that was left has ended its epoch.

        {"epoch": its number, or the next one's, "left": the item numbers of the batches that it has not given yet, one
        after the other, or None, "sizes": how many each has, "items": of the dataset, "generator": the state of the
        loader's own, "sampler": of a (batch) sampler that has a state_dict}
        """
        return held("data.loader.position")(self)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over what `state_dict` returned: the next loop gives the batches that were left.

        TypeError and ValueError where it is of another dataset or loader; then nothing changes.
        """
        held("data.loader.go_to")(self, state_dict)


def in_batches(numbers: Iterator, size: int, drop_last: bool) -> Iterator[list]:
    """Lists of `size` of the numbers, each read when it is asked for; the last one has what is left, or is left out."""
    while len(batch := [*islice(numbers, size)]) >= (size if drop_last else 1):
        yield batch


def load(dataset: Any, numbers: np.ndarray, collate_fn: Callable | None) -> Any:
    """The batch of these items."""
    if type(dataset) is TensorDataset and collate_fn is None:
        return dataset[numbers]
    items = [item(dataset, i) for i in numbers.tolist()]
    return _collate(items, numbers.tolist(), "") if collate_fn is None else collate_fn(items)


def item(dataset: Any, i: int) -> Any:
    """dataset[i]; a note tells an error's item."""
    try:
        return dataset[i]
    except Exception as error:
        note = f"DataLoader: raised by item {i} of the {type(dataset).__name__}"
        if sys.version_info >= (3, 11):
            error.add_note(note)
        else:  # Python 3.10 has no notes: append to the message
            error.args = (f"{error}\n{note}",)
        raise


def default_collate(batch: list) -> Any:
    """One batch from a list of items of one structure.

    Arrays and Tensors of one shape and dtype are stacked along a new first axis; Python numbers become a Tensor of
    one axis (float: float32, int: int64, bool); strings stay a list; tuples, named tuples, lists and dicts are
    collated field by field. TypeError or ValueError names the first item that differs from item 0.
    """
    batch = listed("default_collate", "batch", batch)
    if not batch:
        raise ValueError("default_collate: expected at least one item, got none")
    return _collate(batch, list(range(len(batch))), "")


def _collate(items: list, numbers: list[int], field: str) -> Any:
    first = items[0]
    _same(items, numbers, field, "type", lambda x: type(x).__name__, TypeError)
    if isinstance(first, dict):
        _same(items, numbers, field, "set of keys", lambda x: sorted(x, key=str))
        return {key: _collate([item[key] for item in items], numbers, f"{field}[{key!r}]") for key in first}
    if isinstance(first, (tuple, list)):
        _same(items, numbers, field, "length", len)
        columns = [_collate(list(column), numbers, f"{field}[{i}]") for i, column in enumerate(zip(*items))]
        return type(first)(*columns) if hasattr(first, "_fields") else type(first)(columns)
    if isinstance(first, (np.ndarray, np.generic, Tensor)):  # before float: np.float64 is one
        arrays = [real("DataLoader", without_graph("DataLoader", x), x) for x in items]
        _same(arrays, numbers, field, "shape", lambda x: x.shape)
        _same(arrays, numbers, field, "dtype", lambda x: x.dtype, TypeError)
        return Tensor(np.stack(arrays))
    if isinstance(first, (bool, int, float)):
        return Tensor(items)
    if isinstance(first, (str, bytes)):
        return items
    raise TypeError(
        f"DataLoader: expected items{field} to be arrays, Tensors, numbers, strings or tuples and dicts of them, got "
        f"{type_name(first)} at item {numbers[0]}; convert it in the dataset or give collate_fn="
    )


def _same(items: list, numbers: list[int], field: str, what: str, key: Callable, error: type = ValueError) -> None:
    expected = key(items[0])
    for i, item in zip(numbers, items):
        if key(item) != expected:
            raise error(
                f"DataLoader: expected items{field} of one {what} to make a batch, got {expected} at item "
                f"{numbers[0]} and {key(item)} at item {i}; make them equal in the dataset or give collate_fn="
            )
