"""Samplers, which give a DataLoader the order of its items."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

import numpy as np

from ...arguments import count, flag, listed, number
from ..dataset import length_of, random_generator
from ..loader import DataLoader
from .datasets import item_numbers

__all__ = ["BatchSampler", "RandomSampler", "Sampler", "SequentialSampler"]
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

    def __init__(self, sampler: Any, batch_size: int, drop_last: bool) -> None:
        self.sampler, self.batch_size = sampler, count("BatchSampler", "batch_size", batch_size)
        self.drop_last = flag("BatchSampler", "drop_last", drop_last)

    def __iter__(self) -> Iterator[list[int]]:
        return in_batches(iter(self.sampler), self.batch_size, self.drop_last)

    def __len__(self) -> int:
        n = len(self.sampler)
        return n // self.batch_size if self.drop_last else -(-n // self.batch_size)


class GivenBatches:
    """The item numbers of each batch of an epoch, as a loader's sampler or batch_sampler gives them.

    It is read as the loop goes on, by the loop's thread, so it may be as long as it likes.
    """

    def __init__(self, loader: DataLoader) -> None:
        self.n, self.name = len(loader.dataset), "sampler" if loader.batch_sampler is None else "batch_sampler"
        for name, given in (("sampler", loader.sampler), ("batch_sampler", loader.batch_sampler)):
            sized = hasattr(given, "__len__") and hasattr(given, "__iter__") and getattr(given, "shape", None) != ()
            if given is not None and not sized:
                raise TypeError(
                    f"DataLoader: expected `{name}` to be an iterable with a length, got {type(given).__name__}"
                    " (a generator would be used up after one epoch)"
                )
        if loader.batch_sampler is None:
            if loader.shuffle:
                raise ValueError("DataLoader: expected shuffle or sampler, got both; the sampler decides the order")
            self.given: Any = BatchSampler(loader.sampler, loader.batch_size, loader.drop_last)
            return
        if loader.batch_size != 1 or loader.shuffle or loader.sampler is not None or loader.drop_last:
            raise ValueError(
                "DataLoader: expected batch_sampler alone, without batch_size, shuffle, sampler and drop_last: it "
                "decides all of that"
            )
        self.given = loader.batch_sampler

    def __len__(self) -> int:
        return len(self.given)

    def __iter__(self) -> Iterator[np.ndarray]:
        return (item_numbers("DataLoader", self.name, numbers, self.n) for numbers in self.given)


def in_batches(numbers: Iterator, size: int, drop_last: bool) -> Iterator[list]:
    """Lists of `size` of the numbers, each read when it is asked for; the last one has what is left, or is left out."""
    while len(batch := [*islice(numbers, size)]) >= (size if drop_last else 1):
        yield batch
