"""Datasets that are made of others."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Any

import numpy as np

from ...arguments import integer, listed, number
from ...tensor import Tensor, array_of
from ..dataset import Dataset, length_of, random_generator
from ..loader import load

__all__ = ["ConcatDataset", "Subset", "random_split"]


class Subset(Dataset):
    """The items of `dataset` at `indices`, in that order (integers; -1 is the last item).

    TypeError for anything but integers (a boolean mask, for one), IndexError for a number beyond the dataset.
    """

    def __init__(self, dataset: Any, indices: Any) -> None:
        self.dataset = dataset
        self.indices = item_numbers("Subset", "indices", indices, length_of("Subset", dataset))

    def __getitem__(self, index: Any) -> Any:
        return self.dataset[int(self.indices[index])]

    def batch(self, numbers: np.ndarray) -> Any:
        """The batch of these items, of a TensorDataset by one indexing operation per tensor."""
        return load(self.dataset, self.indices[numbers], None)

    def __len__(self) -> int:
        return len(self.indices)


def random_split(
    dataset: Any, lengths: Sequence[float], generator: np.random.Generator | None = None, *, seed: int | None = None
) -> list[Subset]:
    """Subsets of the given lengths that share no item and have, together, every item; drawn at random.

    lengths: integers whose sum is len(dataset), or fractions whose sum is 1, of which the first parts get what is left,
    as in PyTorch. `generator` or `seed`: else tinymp.manual_seed's. ValueError for lengths that do not add up.
    """
    n, parts = length_of("random_split", dataset), listed("random_split", "lengths", lengths)
    for k in parts:
        number("random_split", "lengths", k)
    if any(isinstance(k, (float, np.floating)) for k in parts):
        if min(parts) < 0 or not math.isclose(sum(parts), 1):
            raise ValueError(f"random_split: expected fractions >= 0 whose sum is 1, got {parts} (sum {sum(parts):g})")
        parts = [math.floor(n * fraction) for fraction in parts]
        for i in range(n - sum(parts)):
            parts[i % len(parts)] += 1
    if any(integer(k) is None or k < 0 for k in parts) or sum(parts) != n:
        raise ValueError(
            f"random_split: expected integers >= 0 whose sum is len(dataset) == {n}, got {parts}; "
            "or give fractions, such as [0.8, 0.2]"
        )
    order = random_generator("random_split", generator, seed).permutation(n)
    return [Subset(dataset, order[end - k : end]) for k, end in zip(parts, accumulate(parts))]


class ConcatDataset(Dataset):
    """The items of several datasets, one dataset after the other."""

    def __init__(self, datasets: Iterable[Any]) -> None:
        self.datasets = listed("ConcatDataset", "datasets", datasets)
        if not self.datasets:
            raise ValueError("ConcatDataset: expected at least one dataset, got none")
        self.cumulative_sizes = [*accumulate(length_of("ConcatDataset", one) for one in self.datasets)]

    def __getitem__(self, index: int) -> Any:
        i = index + len(self) if index < 0 else index
        if not 0 <= i < len(self):
            raise IndexError(f"ConcatDataset: expected an index in [{-len(self)}, {len(self) - 1}], got {index}")
        part = bisect_right(self.cumulative_sizes, i)
        return self.datasets[part][i - (self.cumulative_sizes[part - 1] if part else 0)]

    def __len__(self) -> int:
        return self.cumulative_sizes[-1]


def item_numbers(op: str, name: str, values: Any, n: int) -> np.ndarray:
    """`values` as an array of integers in [-n, n), or an error that says which one is not."""
    values = values.array if isinstance(values, Tensor) else values
    numbers = values if isinstance(values, np.ndarray) else array_of(op, listed(op, name, values))
    if numbers.size == 0:
        return np.zeros(0, int)
    if numbers.ndim != 1 or numbers.dtype.kind not in "iu":
        hint = "; for a mask, give numpy.flatnonzero(mask)" if numbers.dtype == bool else ""
        raise TypeError(f"{op}: expected `{name}` to be integers, got {numbers.dtype} of shape {numbers.shape}{hint}")
    outside = (numbers < -n) | (numbers >= n)
    if outside.any():
        raise IndexError(f"{op}: expected `{name}` in [{-n}, {n - 1}] for {n} items, got {numbers[outside][0]}")
    return numbers
