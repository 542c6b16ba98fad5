"""Indexing: elements picked by slices, integers, masks and arrays. Repeated indices add up in the gradient."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod
from typing import Any

import numpy as np

from .. import backend
from ..arguments import tensor
from ..autograd import Array, Op
from ..precision import MOVEMENT, REDUCTION, scatter_add, store
from ..tensor import Tensor, array_of, value_for


class Slice(Op):
    """y = the view of x that integers, slices and new axes select;  dx = dy there, 0 elsewhere."""

    kind = MOVEMENT
    selects = True
    name = "getitem"

    def forward(self, x: Array, *, index: tuple) -> Array:
        self.index = (*index, ...)  # with an ellipsis NumPy returns a view even where a single element is left
        return x[self.index]

    def backward(self, dy: Array) -> Array:
        dx = self.xp.zeros(self.targets[0].shape, self.targets[0].dtype)
        dx[self.index] = dy
        return dx


class Index(Op):
    """y = the elements of x at the places that integer arrays (broadcast together) name along `axes`.

    The arrays' axes replace x's: in place where `axes` are neighbours, else in front. dx: dy added up at those places
    in FP32 and rounded once, in the order of y.
    """

    kind = MOVEMENT
    selects = True
    gradient = REDUCTION
    name = "getitem"

    def forward(self, x: Array, *index: Array, axes: Sequence[int]) -> Array:
        self.save(*index)
        return x[_at(x, axes, index)]

    def backward(self, dy: Array) -> tuple:
        shape, axes, xp = self.targets[0].shape, self.axes, self.xp
        place: Any = 0  # the index arrays as one number, counted over `axes` in row-major order
        for a, i in zip(axes, self.saved or ()):
            place = place * shape[a] + i
        picked = [shape[a] for a in axes]
        kept = [n for a, n in enumerate(shape) if a not in axes]
        first = axes[0] if axes[-1] - axes[0] < len(axes) else 0
        rows = xp.moveaxis(dy, range(first, first + place.ndim), range(place.ndim))
        total = scatter_add(prod(picked), place.reshape(-1), rows.reshape(place.size, *kept), like=dy)
        dx = xp.moveaxis(total.reshape(picked + kept), range(len(axes)), axes)
        return store(dx, like=dy), *[None] * len(axes)


def _at(x: Array, axes: Iterable[int], index: Iterable[Array]) -> tuple:
    """NumPy's index of the elements of x that integer arrays name along axes."""
    where: list = [slice(None)] * x.ndim
    for a, i in zip(axes, index):
        where[a] = i
    return tuple(where)


# ---------------------------------------------------------------------------------------------------------- functions


def in_range(op: str, index: Array, n: int, what: str, least: int = 0) -> None:
    """IndexError unless every element of an integer array is in [least, n - 1], the indices of an axis of length n.

    On a GPU it is raised some time later, at a moment that waits for the GPU.
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
    view, arrays = _parse("getitem", tensor("getitem", "input", input), index)
    if any(not isinstance(i, slice) or i != slice(None) for i in view) or not arrays:
        input = Slice.apply(input, index=tuple(view))
    return Index.apply(input, *map(Tensor, arrays.values()), axes=tuple(arrays)) if arrays else input


def setitem(input: Tensor, index: Any, value: Any) -> None:
    """input[index] = value, in place and outside the graph: what `x[index] = value` calls. index: as for `getitem`.

    value: a number, tensor, array or nested lists that broadcast to input[index]. A number is rounded to nearest, other
    values as the policy in use says. ValueError for one that input's dtype cannot hold; RuntimeError for a tensor that
    is part of a graph, and for a value that requires a gradient, which would be lost.
    """
    op = "setitem"
    tensor(op, "input", input).require_outside_graph(op, value)
    view, arrays = _parse(op, input, index)
    basic: tuple = (*view, ...)
    target = input.array[basic]
    new = value_for(op, value, target)
    at: Any = _at(target, arrays, arrays.values()) if arrays else ...
    try:
        target[at] = new
    except ValueError as error:
        shape = target[at].shape
        raise ValueError(f"{op}: expected a value that broadcasts to {shape}, got shape {np.shape(new)}") from error
    input.bump_version()


def _parse(op: str, x: Tensor, index: Any) -> tuple[list, dict[int, Array]]:
    """An index as two steps: integers, slices and None that make a view of x, and integer arrays for axes of it."""
    xp = backend.of(x.array).xp
    items = [_item(op, i, xp) for i in (index if isinstance(index, tuple) else (index,))]
    missing = x.ndim - sum(map(_axes_taken, items))
    if missing < 0:
        raise IndexError(f"{op}: expected at most {x.ndim} indices for shape {x.shape}, got {x.ndim - missing}")
    dots = [k for k, i in enumerate(items) if i is ...]
    if len(dots) > 1:
        raise IndexError(f"{op}: expected at most one `...` in an index")
    for k in dots:
        items[k : k + 1] = [slice(None)] * missing

    view: list = []
    arrays: dict[int, Array] = {}
    axis = 0  # of x
    for item in items:
        if isinstance(item, int):
            in_range(op, np.asarray(item), x.shape[axis], f"axis {axis}", -x.shape[axis])
        if item is None or isinstance(item, (int, slice)):
            view.append(item)
        else:
            to = sum(not isinstance(i, int) for i in view)  # the axis of the view, where integers leave no axis
            if item.dtype == bool:
                expected = x.shape[axis : axis + item.ndim]
                if item.shape != expected:
                    where = f"from axis {axis} on of shape {x.shape}"
                    raise IndexError(f"{op}: expected a mask of shape {expected} {where}, got {item.shape}")
                view += [slice(None)] * item.ndim or [None]  # True and False select all or none of a new axis
                arrays.update(enumerate(xp.nonzero(xp.asarray(item).reshape(item.shape or 1)), to))
            else:
                n = x.shape[axis]
                in_range(op, item, n, f"axis {axis}", -n)
                view.append(slice(None))
                place = xp.asarray(item, dtype="int64")
                arrays[to] = place + n * (place < 0)
        axis += _axes_taken(item)
    try:
        np.broadcast_shapes(*[i.shape for i in arrays.values()])
    except ValueError:
        shapes = ", ".join(str(i.shape) for i in arrays.values())
        raise IndexError(f"{op}: expected index arrays that broadcast together, got shapes {shapes}") from None
    return view, arrays


def _axes_taken(item: Any) -> int:
    """How many axes an item of an index stands for."""
    if item is None or item is ...:
        return 0
    return 1 if isinstance(item, (int, slice)) or item.dtype.kind != "b" else item.ndim


def _item(op: str, i: Any, xp: Any) -> Any:
    """One item of an index as None, `...`, a slice, an int, or an array of booleans or integers."""
    if i is None or i is ...:
        return i
    if isinstance(i, slice):
        if not all(v is None or hasattr(v, "__index__") for v in (i.start, i.stop, i.step)):
            raise TypeError(f"{op}: expected integers in a slice, got {i}")
        if i.step is not None and i.step.__index__() < 1:
            raise ValueError(f"{op}: expected a positive step in a slice, got {i.step}; use flip to reverse an axis")
        return slice(*[None if v is None else v.__index__() for v in (i.start, i.stop, i.step)])  # also of Tensors
    if isinstance(i, (int, np.integer)) and not isinstance(i, bool):
        return int(i)  # a GPU need not be asked
    array = i.array if isinstance(i, Tensor) else array_of(op, i)
    if array.dtype.kind in "iu" and not array.ndim:
        return int(array)
    if array.dtype == bool:
        return array
    if isinstance(i, (list, tuple)) and not array.size:
        return xp.asarray(array, dtype="int64")
    if array.dtype.kind not in "iu":
        raise TypeError(
            f"{op}: expected integers, slices, None, `...`, boolean masks or integer arrays, got {type(i).__name__}"
            f" with dtype {array.dtype}"
        )
    if array.dtype == "uint8":
        raise TypeError(f"{op}: uint8 means a mask to PyTorch and an index to NumPy; convert it to bool or to int64")
    return array
