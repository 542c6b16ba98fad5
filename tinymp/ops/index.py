"""Indexing: views by slices, integers and new axes; masks and arrays are ops/more's."""

from __future__ import annotations

from operator import index as as_integer
from types import EllipsisType, NoneType
from typing import Any

import numpy as np

from .. import backend
from ..arguments import tensor
from ..autograd import Array, Op
from ..backend.extras import held
from ..precision import MOVEMENT
from ..tensor import Tensor, value_for


class Slice(Op):
    """y = the view of x that integers, slices and new axes select;  dx = dy there, 0 elsewhere."""

    kind = MOVEMENT
    selects = True
    name = "getitem"

    def forward(self, x: Array, *, index: tuple) -> Array:
        return x[index]

    def backward(self, dy: Array) -> Array:
        dx = self.xp.zeros(self.targets[0].shape, self.targets[0].dtype)
        dx[self.index] = dy
        return dx


# ---------------------------------------------------------------------------------------------------------- functions


def in_range(op: str, index: Array, n: int, what: str, least: int = 0) -> None:
    """IndexError unless every element of an integer array is in [least, n - 1], the indices of an axis of length n.

    On a GPU it is raised later, when the host waits for the GPU.
    """
    message, device = f"{op}: expected indices in [{least}, {n - 1}] for {what} of length {n}", backend.of(index)
    good = device.map(lambda i, least, n: (i >= least) & (i < n), index, least, n)
    device.require(good, IndexError, message, index)


def getitem(input: Tensor, index: Any) -> Tensor:
    """input[index], with PyTorch's meaning: integers, slices, None, `...`, boolean masks, integer arrays, lists and
    Tensors, and tuples that mix them.

    Integers, slices and None give a view; masks and arrays a copy. Integers are applied before arrays (NumPy treats
    them as arrays, which moves axes in x[0, :, [1, 2]]). Negative indices count from the end. IndexError for an index
    out of range, too many indices and masks that do not fit; ValueError for a negative step.
    """
    tensor("getitem", "input", input)
    at = _of_view("getitem", index)
    return held("ops.index.picked")(input, index) if at is None else Slice.apply(input, index=at)


def setitem(input: Tensor, index: Any, value: Any) -> None:
    """input[index] = value, in place and outside the graph; `x[index] = value` calls this. index: as for `getitem`.

    value: a number, tensor, array or nested lists that broadcast to input[index]. A number is rounded to nearest, other
    values as the policy in use says. ValueError for one that input's dtype cannot hold; RuntimeError for a tensor that
    is part of a graph, and for a value that requires a gradient, which would be lost.
    """
    op = "setitem"
    tensor(op, "input", input).require_outside_graph(op, value)
    at = _of_view(op, index)
    target, places = held("ops.index.places")(input, index) if at is None else (input.array[at], ...)
    new = value_for(op, value, target)
    try:
        target[places] = new
    except ValueError as error:
        shape = target[places].shape
        raise ValueError(f"{op}: expected a value that broadcasts to {shape}, got shape {np.shape(new)}") from error
    input.bump_version()


_BASIC = (int, np.integer, slice, NoneType, EllipsisType)


def _of_view(op: str, index: Any) -> tuple | None:
    """The index with an ellipsis, which makes NumPy return a view even of a single element; None if it has anything but
    integers, slices, None and `...`.
    """
    items = index if isinstance(index, tuple) else (index,)
    if any(isinstance(i, slice) and i.step is not None and as_integer(i.step) < 1 for i in items):
        raise ValueError(f"{op}: expected a positive step in a slice, got {index}; use flip to reverse an axis")
    of_view = all(isinstance(i, _BASIC) and not isinstance(i, bool) for i in items)
    return (items if ... in items else (*items, ...)) if of_view else None
