"""DataLoader: batches of a dataset, in order or shuffled, loaded ahead by a thread."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from contextvars import copy_context
from queue import SimpleQueue
from threading import RLock, Thread
from typing import Any

import numpy as np

from ..arguments import choice, refuse
from ..tensor import Tensor
from .dataset import Subset, TensorDataset, item_numbers, random_generator, without_graph


class DataLoader:
    """Batches of `dataset`, epoch after epoch: `for x, y in DataLoader(dataset, 64, shuffle=True): ...`

    dataset     anything with `len(dataset)` and `dataset[i]`
    batch_size  items per batch; the last batch has what is left
    shuffle     another order in every epoch
    sampler     instead of shuffle: an iterable with a length that gives the item numbers of an epoch, in order
    collate_fn  called with the list of a batch's items, gives the batch; by default `default_collate`
    drop_last   leave out a last batch that is not full
    generator   a numpy.random.Generator that draws the orders, or
    seed        the number to make one from. Without either each epoch's order follows tinymp.manual_seed
    prefetch    how many batches a background thread may load ahead; 0: each when it is asked for. The order is drawn
                when the epoch begins and does not depend on it

    The dtype of the data stays: `policy.cast(batch)` is where a batch takes a policy's storage. A TensorDataset (or a
    Subset of one) is indexed once per batch, not item by item.

    The thread belongs to one epoch and ends with it: after the last batch, on an error, or after the batch in
    progress when the loop is left. Errors of the dataset are raised in the loop, with their traceback and a note that
    names the item (under a Subset: its number in the dataset beneath). A dataset that draws random numbers should
    have its own generator: the thread would draw from tinymp's at unpredictable moments.

    Unlike in PyTorch, there are no worker processes and no iterable datasets, and Python floats become float32.
    """

    def __init__(
        self,
        dataset: Any,
        batch_size: int = 1,
        shuffle: bool = False,
        sampler: Iterable[int] | None = None,
        batch_sampler: None = None,
        num_workers: int = 0,
        collate_fn: Callable[[list], Any] | None = None,
        pin_memory: bool = False,
        drop_last: bool = False,
        *,
        generator: np.random.Generator | None = None,
        seed: int | None = None,
        prefetch: int = 2,
    ) -> None:
        refuse("DataLoader", batch_sampler=batch_sampler, num_workers=num_workers or None, pin_memory=pin_memory)
        choice("DataLoader", "shuffle", shuffle, (False, True, None))
        choice("DataLoader", "drop_last", drop_last, (False, True))
        if not (hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")):
            raise TypeError(f"DataLoader: expected `dataset` with a length and items, got {type(dataset).__name__}")
        if sampler is not None and not (hasattr(sampler, "__len__") and hasattr(sampler, "__iter__")):
            raise TypeError(
                f"DataLoader: expected `sampler` to be an iterable with a length, got {type(sampler).__name__}"
                " (a generator would be used up after one epoch)"
            )
        if shuffle and sampler is not None:
            raise ValueError("DataLoader: expected shuffle or sampler, got both; the sampler decides the order")
        if collate_fn is not None and not callable(collate_fn):
            raise TypeError(f"DataLoader: expected `collate_fn` to be callable, got {type(collate_fn).__name__}")
        self.dataset = dataset
        self.batch_size = _at_least(1, "batch_size", batch_size)
        self.shuffle = shuffle
        self.sampler = sampler
        self.collate_fn = collate_fn
        self.drop_last = drop_last
        seeded = generator is not None or seed is not None
        self.generator = random_generator("DataLoader", generator, seed) if seeded else None
        self.prefetch = _at_least(0, "prefetch", prefetch)
        self._loading = RLock()  # a thread whose loop was left may still load while the next epoch begins

    def __len__(self) -> int:
        """The number of batches."""
        n = len(self.dataset if self.sampler is None else self.sampler)  # type: ignore[arg-type]
        return n // self.batch_size if self.drop_last else -(-n // self.batch_size)

    def __iter__(self) -> Iterator[Any]:
        n = len(self.dataset)
        if self.shuffle:
            order = (self.generator or random_generator("DataLoader", None, None)).permutation(n)
        else:
            order = np.arange(n) if self.sampler is None else item_numbers("DataLoader", "sampler", self.sampler, n)
        if self.drop_last:
            order = order[: len(order) - len(order) % self.batch_size]
        dataset = self.dataset
        while type(dataset) is Subset:  # exactly: a class derived from it may have its own __getitem__
            dataset, order = dataset.dataset, dataset.indices[order]
        batches = (self._load(dataset, order[i : i + self.batch_size]) for i in range(0, len(order), self.batch_size))
        return _ahead(batches, self.prefetch) if self.prefetch else batches

    def _load(self, dataset: Any, order: np.ndarray) -> Any:
        if type(dataset) is TensorDataset and self.collate_fn is None:
            return dataset[order]
        items, numbers = [], order.tolist()
        with self._loading:
            for i in numbers:
                try:
                    items.append(dataset[i])
                except Exception as error:
                    _note(error, f"DataLoader: raised by item {i} of the {type(dataset).__name__}")
                    raise
            return _collate(items, numbers, "") if self.collate_fn is None else self.collate_fn(items)


def _ahead(batches: Iterator, depth: int) -> Iterator:
    """The same batches, up to `depth` of them loaded ahead by a thread that ends when this iterator does.

    The `finally` below may run in a garbage collection, at any point of any thread, where waiting for a lock may never
    end: so no Queue, Event or join there. SimpleQueue.put never waits.
    """
    loaded: SimpleQueue = SimpleQueue()  # (batch,), then the error or None
    permits: SimpleQueue = SimpleQueue()  # one for each batch that was taken: load another
    wanted = [True]

    def work() -> None:
        try:
            for i, batch in enumerate(batches, 1):
                loaded.put((batch,))
                if i >= depth:
                    permits.get()
                if not wanted:
                    return
            loaded.put(None)
        except BaseException as error:  # whatever it is, the loop raises it
            loaded.put(error)

    # In a copy of this context, so that the dataset sees the policy and the no_grad of the loop.
    thread = Thread(target=copy_context().run, args=(work,), name="DataLoader prefetch", daemon=True)
    try:
        thread.start()
        while isinstance(got := loaded.get(), tuple):
            permits.put(None)
            yield got[0]
        thread.join()
        if got is not None:
            raise got
    finally:
        got = None  # an error's traceback holds this frame: break the cycle, or the error would live on
        wanted.clear()
        permits.put(None)


def default_collate(batch: list) -> Any:
    """One batch from a list of items of one structure.

    Arrays and Tensors of one shape and dtype are stacked along a new first axis; Python numbers become a Tensor of
    one axis (float: float32, int: int64, bool); strings stay a list; tuples, named tuples, lists and dicts are
    collated field by field. TypeError or ValueError names the first item that differs from item 0.
    """
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
        arrays = [without_graph("DataLoader", x) for x in items]
        _same(arrays, numbers, field, "shape", lambda x: x.shape)
        _same(arrays, numbers, field, "dtype", lambda x: x.dtype, TypeError)
        return Tensor(np.stack(arrays))
    if isinstance(first, (bool, int, float)):
        return Tensor(items)
    if isinstance(first, (str, bytes)):
        return items
    raise TypeError(
        f"DataLoader: expected items{field} to be arrays, Tensors, numbers, strings or tuples and dicts of them, got "
        f"{type(first).__name__} at item {numbers[0]}; convert it in the dataset or give collate_fn="
    )


def _same(items: list, numbers: list[int], field: str, what: str, key: Callable, error: type = ValueError) -> None:
    expected = key(items[0])
    for i, item in zip(numbers, items):
        if key(item) != expected:
            raise error(
                f"DataLoader: expected items{field} of one {what} to make a batch, got {expected} at item "
                f"{numbers[0]} and {key(item)} at item {i}; make them equal in the dataset or give collate_fn="
            )


def _note(error: Exception, text: str) -> None:
    if sys.version_info >= (3, 11):
        error.add_note(text)
    else:  # Python 3.10 has no notes: append to the message
        error.args = (f"{error}\n{text}",)


def _at_least(least: int, name: str, value: Any) -> int:
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(f"DataLoader: expected `{name}` to be an integer, got {value!r}")
    if value < least:
        raise ValueError(f"DataLoader: expected `{name}` to be at least {least}, got {value}")
    return value.__index__()
