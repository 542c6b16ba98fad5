"""SparseRows: the gradient of a table of which a step reads few rows, such as the embedding of a large vocabulary."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from . import backend, precision
from .dtypes import FLOATING, float32
from .precision import scatter_add, store, widen

Array = Any


class SparseRows:
    """A gradient that is 0 but for some rows: row indices[i] of it is values[i].

    indices  (n,), int64, ascending. On the CPU each row comes once. On a GPU, which could not tell how many are left
             of repeated ones without making the host wait, a row may come several times, each time with the same values
    values   (n, ...), floating
    shape    of the whole gradient, (V, ...)

    An update may therefore read, compute and write a row as often as it comes, with the same result; a sum over all
    values must take `summable`. ValueError for indices and values that do not belong together.
    """

    __slots__ = ("indices", "shape", "values")

    def __init__(self, indices: Array, values: Array, shape: tuple[int, ...]) -> None:
        if not hasattr(indices, "ndim") or not hasattr(values, "shape") or not isinstance(shape, tuple):
            raise TypeError(
                "SparseRows: expected an array of indices, one of values and a tuple for the shape, got "
                f"{', '.join(type(x).__name__ for x in (indices, values, shape))}"
            )
        if indices.ndim != 1 or values.shape != (*indices.shape, *shape[1:]):
            raise ValueError(
                f"SparseRows: expected indices (n,) and values (n, {', '.join(map(str, shape[1:]))}) for rows of a "
                f"table {shape}, got {indices.shape} and {values.shape}"
            )
        self.indices, self.values, self.shape = indices, values, shape

    dtype = property(lambda self: self.values.dtype, doc="The NumPy dtype of the values.")
    ndim = property(lambda self: len(self.shape), doc="The number of axes of the table.")
    nbytes = property(lambda self: self.indices.nbytes + self.values.nbytes, doc="Of indices and values.")
    device = property(lambda self: backend.of(self.values).name, doc='Where it is: "cpu" or "gpu".')

    @classmethod
    def summed(cls, index: Array, rows: Array, shape: tuple[int, ...], add: Callable) -> SparseRows:
        """rows[i] (n, ...) added up by their row index[i] (n,); add(n, places, rows) gives n sums, as `scatter_add`."""
        xp = backend.of(rows).xp
        index = xp.asarray(index, "int64")
        exact = backend.of(rows) is backend.cpu
        indices = xp.unique(index) if exact else xp.sort(index)
        sums = add(len(indices), xp.searchsorted(indices, index), rows)  # where an index comes first
        return cls(indices, sums if exact else sums[xp.searchsorted(indices, indices)], shape)

    def __repr__(self) -> str:
        return f"SparseRows({len(self.indices)} rows of {self.shape}, dtype={self.dtype}, device={self.device})"

    def copy(self) -> SparseRows:
        """The same in new memory."""
        return with_values(self, self.values.copy())

    def dense(self) -> Array:
        """The whole table as an array, 0 where no row is given."""
        table = backend.of(self.values).xp.zeros(self.shape, self.dtype)
        put(table, self)
        return table

    def first_places(self) -> Array:
        """For each row, the place where it comes first."""
        return backend.of(self.indices).xp.searchsorted(self.indices, self.indices)


# -------------------------------------------------------------------- for gradients that may be arrays or SparseRows


def values_of(g: Any) -> Any:
    """The array that holds a gradient's numbers."""
    return g.values if isinstance(g, SparseRows) else g


def with_values(g: Any, values: Array) -> Any:
    """A gradient like g with other numbers: `values`, or its rows with these values."""
    return SparseRows(g.indices, values, g.shape) if isinstance(g, SparseRows) else values


def dense_of(g: Any) -> Any:
    """A gradient as an array."""
    return g.dense() if isinstance(g, SparseRows) else g


def rows_of(x: Array, g: Any) -> Array:
    """The part of x, a table, that the gradient g is for: x itself, or a copy of the rows that g names."""
    return x[g.indices] if isinstance(g, SparseRows) else x


def put(x: Array, g: Any) -> None:
    """x[...] = g in place, or only the rows that g names; of a repeated row, the values that come first."""
    if not isinstance(g, SparseRows):
        x[...] = g
    else:
        x[g.indices] = g.values if backend.of(x) is backend.cpu else g.values[g.first_places()]


def summable(g: Any) -> Array:
    """The array that holds a gradient's numbers, with 0 in place of repeated rows, so that it can be added up."""
    if not isinstance(g, SparseRows) or (device := backend.of(g.values)) is backend.cpu:
        return values_of(g)
    new = g.first_places() == device.xp.arange(len(g.indices))
    return device.select(new.reshape(-1, *[1] * (g.ndim - 1)), g.values)


def accumulate(total: Any, part: Any) -> Any:
    """total + part for two gradients of one tensor, in FP32. Sparse only where both are."""
    if isinstance(total, SparseRows) and isinstance(part, SparseRows):
        xp = backend.of(total.values).xp
        rows = xp.concatenate([widen(summable(total)), widen(summable(part))])
        index = xp.concatenate([total.indices, part.indices])
        return SparseRows.summed(index, rows, total.shape, lambda n, i, x: scatter_add(n, i, x, like=x))
    return precision.accumulate([dense_of(total), dense_of(part)])


def gather(parts: Sequence[Any], part: Any) -> list[Any]:
    """The gradients that a tensor has got so far, with one more. `joined` adds them up when they are complete.

    They wait for each other, so that they are read once, as long as they take no more memory than their sum in FP32.
    """
    found = [*parts, part]
    if any(isinstance(g, SparseRows) for g in found):
        total = found[0]
        for g in found[1:]:
            total = accumulate(total, g)
        return [total]
    wait = len(found) == 1 or sum(g.dtype.itemsize for g in found) <= float32.itemsize
    return found if wait else [precision.accumulate(found)]


def joined(parts: Sequence[Any], like: Any) -> Any:
    """The sum of what `gather` found, in FP32 and in its order, rounded once to the dtype of `like`."""
    if len(parts) == 1 and (parts[0].dtype == like.dtype or isinstance(parts[0], SparseRows)):
        return with_values(parts[0], store(values_of(parts[0]), like))
    return precision.accumulate(parts, like)


def sum_rows(index: Array, rows: Array, like: Any, sparse: bool) -> Any:
    """The gradient of a lookup: rows[i] (n, ...) added up in FP32, in order, at row index[i] of the table `like`.

    Each sum is rounded once, to the dtype of `like`.
    """

    def add(n: int, places: Array, rows: Array) -> Array:
        return store(scatter_add(n, places, rows, like), like)

    if sparse:
        return SparseRows.summed(index, rows, like.shape, add)
    return add(like.shape[0], index, rows)


def isfinite(g: Any) -> bool:
    """Whether a gradient, or any other array, holds neither an infinity nor a NaN. It waits for a GPU."""
    values = values_of(g)
    return backend.of(values).isfinite(values)


def array_in(x: Any) -> Any:
    """The array of a gradient, SparseRows or a Tensor; anything else as it is."""
    x = values_of(x)
    return x if hasattr(x, "strides") else getattr(x, "array", x)


def nonfinite(x: Any) -> int:
    """How many values of an array, a gradient, a Tensor or a number are infinite or NaN; 0 for what is not floating."""
    if isinstance(x, float):
        return int(not math.isfinite(x))
    x = array_in(x)
    if not hasattr(x, "dtype") or x.dtype not in FLOATING or isfinite(x):
        return 0
    xp = backend.of(x).xp
    return int(xp.count_nonzero(~xp.isfinite(widen(x))))
