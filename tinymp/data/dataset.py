"""Datasets: things with a length whose items are found by number."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np

from ..arguments import instance, integers
from ..autograd import Array
from ..backend import cpu
from ..events import type_name
from ..tensor import Tensor


class Dataset(ABC):
    """Items by number: `len(dataset)` of them, `dataset[i]` for 0 <= i < len.

    The loader takes anything with these two methods, such as a list; this class requires both.
    """

    @abstractmethod
    def __getitem__(self, index: Any) -> Any: ...

    @abstractmethod
    def __len__(self) -> int: ...


class TensorDataset(Dataset):
    """Item i is the tuple of rows i of the tensors; a batch of it is one indexing operation per tensor.

    tensors: Tensors or NumPy arrays with equal first dimensions; shared, and copied only if their byte order is that of
    another machine. TypeError for other things; ValueError if the first dimensions differ, and for a Tensor that
    requires a gradient (it would get none).
    """

    def __init__(self, *tensors: Any) -> None:
        for i, x in enumerate(tensors):
            if not isinstance(x, (Tensor, np.ndarray)):
                raise TypeError(f"TensorDataset: expected Tensors or arrays, got {type_name(x)} as argument {i}")
        self.tensors = tuple([Tensor(without_graph("TensorDataset", x)) for x in tensors])
        shapes = [x.shape for x in self.tensors]
        if not all(shapes) or len({shape[0] for shape in shapes}) != 1:
            raise ValueError(f"TensorDataset: expected tensors of one first dimension, got shapes {shapes}")

    def __getitem__(self, index: Any) -> tuple[Tensor, ...]:
        return tuple([Tensor(x.array[index]) for x in self.tensors])

    batch = __getitem__

    def __len__(self) -> int:
        return len(self.tensors[0])


def length_of(op: str, dataset: Any) -> int:
    """len(dataset); TypeError if it has no length or no items."""
    if not (hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")):
        raise TypeError(f"{op}: expected `dataset` with a length and items, got {type_name(dataset)}")
    return len(dataset)


def random_generator(op: str, generator: np.random.Generator | None, seed: int | None) -> np.random.Generator:
    """`generator`, or one made from `seed`, or one made from a seed that tinymp's own generator draws."""
    if generator is not None and seed is not None:
        raise ValueError(f"{op}: expected generator or seed, got both")
    if generator is not None:
        return instance(op, "generator", generator, np.random.Generator)
    drawn = cpu.generator.integers(2**63) if seed is None else integers(op, "seed", seed, 1, 0)[0]
    return np.random.default_rng(drawn)


def without_graph(op: str, x: Any) -> Array:
    """The array of a Tensor (or the array itself); ValueError if the Tensor expects a gradient."""
    if isinstance(x, Tensor) and x.requires_grad:
        raise ValueError(f"{op}: a tensor of shape {x.shape} requires a gradient, but batches are copies; .detach() it")
    return x.array if isinstance(x, Tensor) else x
