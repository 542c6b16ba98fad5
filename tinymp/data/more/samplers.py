"""Samplers, which give a DataLoader the order of its items, and datasets one after the other."""

from __future__ import annotations

import copy
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, islice
from typing import Any

import numpy as np

from ...arguments import count, flag, listed, name_all, number
from ..dataset import Dataset, in_epoch, length_of, random_generator
from ..loader import in_batches

__all__ = ["BatchSampler", "ConcatDataset", "RandomSampler", "Sampler", "SequentialSampler"]
__all__ += ["SubsetRandomSampler", "WeightedRandomSampler"]


class Sampler:
    """The base of samplers: an iterable of item numbers, with a length."""

    def __iter__(self) -> Iterator:
        raise NotImplementedError(f"{type(self).__name__} has no __iter__")


class SequentialSampler(Sampler):
    """0, 1, ..., len(data_source) - 1."""

    def __init__(self, data_source: Any) -> None:
        self.data_source, _ = data_source, length_of("SequentialSampler", data_source)

    def __iter__(self) -> Iterator[int]:
        return iter(range(len(self)))

    def __len__(self) -> int:
        return len(self.data_source)


class RandomSampler(Sampler):
    """num_samples numbers (by default len(data_source)) in random order: each at most once in a round of all of them,
    or with `replacement` each drawn from all.

    generator: a numpy.random.Generator; without one the numbers follow tinymp.manual_seed.
    """

    def __init__(
        self,
        data_source: Any,
        replacement: bool = False,
        num_samples: int | None = None,
        generator: np.random.Generator | None = None,
    ) -> None:
        name = type(self).__name__
        self.data_source, n = data_source, length_of(name, data_source)
        self.replacement = flag(name, "replacement", replacement)
        self.num_samples = count(name, "num_samples", n if num_samples is None else num_samples)
        self.generator = generator

    def __iter__(self) -> Iterator[int]:
        n, draw = len(self.data_source), random_generator(type(self).__name__, self.generator, None)
        if self.replacement:  # a number of samples may stand for no end: as in PyTorch, 32 at once
            parts = (draw.integers(n, size=min(32, self.num_samples - k)) for k in range(0, self.num_samples, 32))
        else:
            parts = (draw.permutation(n) for _ in range(0, self.num_samples, n))
        return islice((i for part in parts for i in part.tolist()), self.num_samples)

    def __len__(self) -> int:
        return self.num_samples


class SubsetRandomSampler(Sampler):
    """The numbers `indices` in random order. generator: as for RandomSampler."""

    def __init__(self, indices: Sequence[int], generator: np.random.Generator | None = None) -> None:
        self.indices, self.generator = listed(type(self).__name__, "indices", indices), generator

    def __iter__(self) -> Iterator[int]:
        order = random_generator(type(self).__name__, self.generator, None).permutation(len(self))
        return iter([int(self.indices[i]) for i in order])

    def __len__(self) -> int:
        return len(self.indices)


class WeightedRandomSampler(Sampler):
    """num_samples numbers i, each with a probability in proportion to weights[i]; without `replacement` each at most
    once. generator: as for RandomSampler. ValueError for weights that are negative, not finite or all 0.
    """

    def __init__(
        self,
        weights: Sequence[float],
        num_samples: int,
        replacement: bool = True,
        generator: np.random.Generator | None = None,
    ) -> None:
        name = type(self).__name__
        self.weights = [number(name, "weights", w, 0) for w in listed(name, "weights", weights)]
        self.num_samples = count(name, "num_samples", num_samples)
        self.replacement, self.generator = flag(name, "replacement", replacement), generator
        positive = sum(w > 0 for w in self.weights)
        if positive < (1 if self.replacement else self.num_samples):
            needed = "one" if self.replacement else f"num_samples == {self.num_samples}"
            raise ValueError(f"{name}: expected at least {needed} of the `weights` to be above 0, got {positive}")

    def __iter__(self) -> Iterator[int]:
        draw, total = random_generator(type(self).__name__, self.generator, None), sum(self.weights)
        p = [w / total for w in self.weights]
        return iter(draw.choice(len(p), self.num_samples, self.replacement, p).tolist())

    def __len__(self) -> int:
        return self.num_samples


class BatchSampler(Sampler):
    """Lists of batch_size numbers of `sampler`; the last one has what is left, or with drop_last is left out."""

    def __init__(self, sampler: Iterable[int], batch_size: int, drop_last: bool) -> None:
        self.sampler, self.batch_size = sampler, count("BatchSampler", "batch_size", batch_size)
        self.drop_last = flag("BatchSampler", "drop_last", drop_last)

    def __iter__(self) -> Iterator[list[int]]:
        return in_batches(iter(self.sampler), self.batch_size, self.drop_last)

    def __len__(self) -> int:
        n = len(self.sampler)  # type: ignore[arg-type]
        return n // self.batch_size if self.drop_last else -(-n // self.batch_size)


class ConcatDataset(Dataset):
    """The items of several datasets, one dataset after the other."""

    def __init__(self, datasets: Iterable[Any]) -> None:
        self.datasets = listed("ConcatDataset", "datasets", datasets)
        if not self.datasets:
            raise ValueError("ConcatDataset: expected at least one dataset, got none")
        self.cumulative_sizes = [*accumulate(length_of("ConcatDataset", one) for one in self.datasets)]

    def in_epoch(self, epoch: int) -> Any:
        other = copy.copy(self)
        other.datasets = [in_epoch(one, epoch) for one in self.datasets]
        return other

    def __getitem__(self, index: int) -> Any:
        i = index + len(self) if index < 0 else index
        if not 0 <= i < len(self):
            raise IndexError(f"ConcatDataset: expected an index in [{-len(self)}, {len(self) - 1}], got {index}")
        part = bisect_right(self.cumulative_sizes, i)
        return self.datasets[part][i - (self.cumulative_sizes[part - 1] if part else 0)]

    def __len__(self) -> int:
        return self.cumulative_sizes[-1]


name_all(globals())
