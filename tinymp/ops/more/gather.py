"""gather and index_select: elements and slices along one axis, at places that a tensor holds."""

from __future__ import annotations

from typing import Any

import numpy as np

from ... import backend
from ...arguments import axis, name_all, tensor
from ...tensor import Tensor
from ..index import Index, in_range


class Gather(Index):
    """y[.., i, ..] = x[.., index[.., i, ..], ..] along one axis;  dx: dy added up at those places."""


class IndexSelect(Index):
    """y = the slices of x at `index` along one axis;  dx: dy added up at those places."""


def places_along(op: str, index: Any, input: Tensor, dim: int) -> Tensor:
    """The integer Tensor `index` as int64, checked against axis dim of input. An int64 one keeps its memory and its
    change counter.
    """
    if tensor(op, "index", index).dtype.kind not in "iu":
        raise TypeError(f"{op}: expected `index` to hold integers, got {index.dtype}")
    in_range(op, index.array, input.shape[dim], f"axis {dim}")
    return index.to(np.int64)


def within(index: Tensor, x: Tensor, free: int | None = None) -> bool:
    """True if index has x's axes and is nowhere longer, but along the one that is free."""
    return index.ndim == x.ndim and all(m <= n for a, (m, n) in enumerate(zip(index.shape, x.shape)) if a != free)


def gather(input: Tensor, dim: int, index: Tensor) -> Tensor:
    """result[i][j] = input[index[i][j]][j] for dim 0, input[i][index[i][j]] for dim 1, and so on.

    index: integers in [0, input.shape[dim]), as many axes as input, along the others no longer than it. Returns
    index's shape. IndexError for an index out of range; ValueError for a shape that does not fit.
    """
    x, i = tensor("gather", "input", input), tensor("gather", "index", index)
    if not (x.ndim and i.ndim):  # as PyTorch, which takes a tensor without axes as one of one element
        return gather(x if x.ndim else x.reshape(1), dim, i if i.ndim else i.reshape(1)).reshape(i.shape)
    d = axis("gather", dim, x.ndim)
    place = places_along("gather", index, input, d)
    if not within(place, x, d):
        raise ValueError(
            f"gather: expected index.shape to be at most input.shape except along axis {d}, got {place.shape} and "
            f"{input.shape}"
        )
    grid = list(map(Tensor, backend.of(place.array).xp.ogrid[tuple(slice(n) for n in place.shape)]))
    grid[d] = place
    return Gather.apply(input, *grid, axes=range(input.ndim))


def index_select(input: Tensor, dim: int, index: Tensor) -> Tensor:
    """The slices of input at `index` (one axis, integers in [0, input.shape[dim])) along dim, in a new tensor.

    IndexError for an index out of range.
    """
    x = tensor("index_select", "input", input)
    if not x.ndim:  # as PyTorch, which takes a tensor without axes as one of one element
        y = index_select(x.reshape(1), dim, index)
        if y.numel() != 1:
            raise ValueError(f"index_select: expected one index for an input without axes, got {y.numel()}")
        return y.reshape(())
    d = axis("index_select", dim, x.ndim)
    place = places_along("index_select", index, input, d)
    if place.ndim > 1:
        raise ValueError(f"index_select: expected `index` to have one axis, got shape {place.shape}")
    return IndexSelect.apply(input, place if place.ndim else place.reshape(1), axes=(d,))


name_all(globals())
