"""Sequences of different lengths: batches of similar ones, so that little is padding, and the padding."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from ...arguments import constant, count, flag, listed, name_all, same_keys
from ...tensor import Tensor, array_of
from ..dataset import item_numbers, random_generator, without_graph
from .position import require_state


class BucketBatchSampler:
    """The item numbers of batches of similar lengths: `DataLoader(dataset, batch_sampler=BucketBatchSampler(...))`.

    lengths     of every item: (N,), or (N, k) for items of k sequences, such as a sentence and its translation
    batch_size  items per batch; one batch has what is left
    shuffle     in every epoch the items that are equally long change places, and so do the batches. Without it, both
                are in order of length
    drop_last   leave out a batch that is not full: in every epoch other items, for the last ones would be the longest
    generator   a numpy.random.Generator that draws the orders, or
    seed        the number to make one from. Without either each epoch's order follows tinymp.manual_seed

    Items are sorted by length, pairs by the first length, then by the second. TypeError or ValueError for lengths that
    are not integers of at least 0, or that have another shape.
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
        self.lengths = _lengths("BucketBatchSampler", lengths)
        self.batch_size = count("BucketBatchSampler", "batch_size", batch_size)
        self.shuffle = flag("BucketBatchSampler", "shuffle", shuffle)
        self.drop_last = flag("BucketBatchSampler", "drop_last", drop_last)
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
        """Take over what `state_dict` returned. ValueError where that is the state of another generator."""
        same_keys("BucketBatchSampler.load_state_dict", "state_dict", state_dict, {"generator"})
        require_state("BucketBatchSampler.load_state_dict", self.generator, state_dict["generator"])
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


def padding_share(lengths: Any, batches: Iterable[Sequence[int]]) -> float:
    """Which share of all padded batches is padding: 1 - sum of lengths / sum of (longest of the batch * its items).

    lengths: as in BucketBatchSampler; batches: the item numbers of each.
    """
    lengths = _lengths("padding_share", lengths)
    parts = [
        lengths[item_numbers("padding_share", "batches", batch, len(lengths))]
        for batch in listed("padding_share", "batches", batches)
    ]
    padded = sum(len(part) * longest for part in parts if len(part) for longest in part.max(0).tolist())
    return 1 - sum(n for part in parts for n in part.ravel().tolist()) / padded if padded else 0.0


def pad_sequence(sequences: Sequence[Any], batch_first: bool = False, padding_value: float = 0.0) -> Tensor:
    """Arrays or Tensors of shapes (T_b, ...) as one Tensor (max T, B, ...), or with batch_first (B, max T, ...).

    What lies behind a sequence is padding_value. TypeError or ValueError where dtypes, or shapes after the first axis,
    differ, and for no sequences at all.
    """
    op = "pad_sequence"
    arrays = [array_of(op, without_graph(op, x)) for x in listed(op, "sequences", sequences)]
    if not arrays:
        raise ValueError("pad_sequence: expected at least one sequence, got none")
    first = arrays[0]
    for i, x in enumerate(arrays):
        if not x.ndim or x.shape[1:] != first.shape[1:]:
            raise ValueError(
                f"pad_sequence: expected sequences that differ in their first axis alone, got {first.shape} as "
                f"sequence 0 and {x.shape} as sequence {i}"
            )
        if x.dtype != first.dtype:
            raise TypeError(f"pad_sequence: expected one dtype, got {first.dtype} as sequence 0 and {x.dtype} as {i}")
    padding_value = constant("pad_sequence", "padding_value", padding_value, first.dtype)
    padded = np.full((max(map(len, arrays)), len(arrays), *first.shape[1:]), padding_value, first.dtype)
    for i, x in enumerate(arrays):
        padded[: len(x), i] = x
    return Tensor(
        np.ascontiguousarray(padded.swapaxes(0, 1)) if flag("pad_sequence", "batch_first", batch_first) else padded
    )


def _lengths(op: str, lengths: Any) -> np.ndarray:
    """(N, k) of (N,) or (N, k)."""
    given = np.asarray(array_of(op, lengths.array if isinstance(lengths, Tensor) else lengths))
    if given.ndim not in (1, 2):
        raise ValueError(
            f"{op}: expected `lengths` of shape (N,), or (N, k) for k sequences per item, got {given.shape}"
        )
    if given.dtype.kind not in "iu" and given.size:
        raise TypeError(f"{op}: expected `lengths` to be integers, got {given.dtype}")
    for i in np.argwhere(given < 0)[:1]:
        raise ValueError(f"{op}: expected `lengths` of at least 0, got {given[tuple(i)]} for item {i[0]}")
    return np.asarray(given if given.ndim == 2 else given[:, None], int)


name_all(globals())
