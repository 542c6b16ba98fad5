"""Datasets: things with a length whose items are found by number."""

from __future__ import annotations

import copy
import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import numpy as np

from ..arguments import integer, listed, number
from ..autograd import Array
from ..backend import cpu
from ..events import type_name
from ..tensor import Tensor, array_of


class Dataset(ABC):
    """Items by number: `len(dataset)` of them, `dataset[i]` for 0 <= i < len.

    The loader takes anything with these two methods (a list, for one); this class says so and insists on both.
    """

    @abstractmethod
    def __getitem__(self, index: Any) -> Any: ...

    @abstractmethod
    def __len__(self) -> int: ...

    def in_epoch(self, epoch: int) -> Any:
        """The dataset whose items are those of this epoch: itself, or a copy if they change from epoch to epoch.

        A DataLoader asks for it when an epoch begins. It is a copy because threads may still load in another epoch. A
        dataset that is made of others passes the question on, as Subset does.
        """
        return self


class TensorDataset(Dataset):
    """Item i is the tuple of rows i of the tensors; a batch of it is one indexing operation per tensor.

    tensors: Tensors or NumPy arrays of one first dimension; shared, not copied, but for another machine's byte order.
    TypeError for other things; ValueError where the first dimensions differ, and for a Tensor that requires a gradient
    (it would get none).
    """

    def __init__(self, *tensors: Any) -> None:
        if not tensors:
            raise ValueError("TensorDataset: expected at least one Tensor or array")
        for i, x in enumerate(tensors):
            if not isinstance(x, (Tensor, np.ndarray)):
                raise TypeError(
                    f"TensorDataset: expected Tensors or arrays, got {type_name(x)} as argument {i}; "
                    "pass them one by one, as in TensorDataset(x, y)"
                )
        self.tensors = tuple([Tensor(without_graph("TensorDataset", x)) for x in tensors])
        shapes = [x.shape for x in self.tensors]
        if not all(shapes) or len({shape[0] for shape in shapes}) > 1:
            raise ValueError(
                f"TensorDataset: expected tensors of one first dimension, got shapes {', '.join(map(str, shapes))}"
            )

    def __getitem__(self, index: Any) -> tuple[Tensor, ...]:
        return tuple([Tensor(x.array[index]) for x in self.tensors])

    def __len__(self) -> int:
        return len(self.tensors[0])


class Subset(Dataset):
    """The items of `dataset` at `indices`, in that order (integers; -1 is the last item).

    TypeError for anything but integers (a boolean mask, for one), IndexError for a number beyond the dataset.
    """

    def __init__(self, dataset: Any, indices: Any) -> None:
        self.dataset = dataset
        self.indices = item_numbers("Subset", "indices", indices, length_of("Subset", dataset))

    def in_epoch(self, epoch: int) -> Any:
        other = copy.copy(self)
        other.dataset = in_epoch(self.dataset, epoch)
        return other

    def __getitem__(self, index: Any) -> Any:
        return self.dataset[int(self.indices[index])]

    def __len__(self) -> int:
        return len(self.indices)


def random_split(
    dataset: Any, lengths: Sequence[float], generator: np.random.Generator | None = None, *, seed: int | None = None
) -> list[Subset]:
    """Subsets of the given lengths that share no item and have, together, every item; drawn at random.

    lengths: integers whose sum is len(dataset), or fractions whose sum is 1: then part i has floor(n f_i) items and
    what is left goes one by one to the first parts, as in PyTorch. `generator` or `seed` make the split repeatable;
    without them it follows tinymp.manual_seed. ValueError for lengths that do not add up.
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


# ------------------------------------------------------------------------------------------- shared with the loader


def length_of(op: str, dataset: Any) -> int:
    """len(dataset); TypeError for what has no length or no items."""
    if not (hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")):
        raise TypeError(f"{op}: expected `dataset` with a length and items, got {type_name(dataset)}")
    if getattr(dataset, "shape", None) == ():
        raise TypeError(f"{op}: expected `dataset` with items, got {type_name(dataset)} without axes")
    return len(dataset)


def in_epoch(dataset: Any, epoch: int) -> Any:
    """dataset.in_epoch(epoch); the dataset itself if it has no such method (a list, for one)."""
    return dataset.in_epoch(epoch) if hasattr(dataset, "in_epoch") else dataset


def random_generator(op: str, generator: np.random.Generator | None, seed: int | None) -> np.random.Generator:
    """`generator`, or one made from `seed`, or one made from a seed that tinymp's own generator draws."""
    if generator is not None:
        if seed is not None:
            raise ValueError(f"{op}: expected generator or seed, got both")
        if not isinstance(generator, np.random.Generator):
            raise TypeError(
                f"{op}: expected `generator` to be a numpy.random.Generator, got {type(generator).__name__}; "
                "for a number, write seed="
            )
        return generator
    if seed is None:
        return np.random.default_rng(cpu.generator.integers(2**63))
    if integer(seed) is None or seed < 0:
        raise ValueError(f"{op}: expected `seed` to be a non-negative integer, got {seed!r}")
    return np.random.default_rng(integer(seed))


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


def without_graph(op: str, x: Any) -> Array:
    """The array of a Tensor (or the array itself); ValueError if the Tensor expects a gradient."""
    if not isinstance(x, Tensor):
        return x
    if x.requires_grad:
        raise ValueError(f"{op}: a tensor of shape {x.shape} requires a gradient, but batches are copies; .detach() it")
    return x.array
