"""SparseRows: the gradient of a table of which a step reads few rows, such as the embedding of a large vocabulary."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .. import backend
from ..gradients import added
from ..precision import scatter_add, widen

Array = Any


class SparseRows:
    """A gradient that is 0 but for some rows: row indices[i] of it is values[i].

    indices  (n,), int64, ascending. On the CPU each row comes once; on a GPU, where the host would have to wait to know
    how
             many are left, one may come several times, each time with the same values: a sum over all takes `summable`
    values   (n, ...), floating
    shape    of the whole gradient, (V, ...)

    It stands in a leaf's `grad` for an array (autograd.py). ValueError for indices and values that do not belong
    together.
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
    nbytes = property(lambda self: self.indices.nbytes + self.values.nbytes, doc="Bytes of indices and values.")
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
        return self.like(self.values.copy())

    def like(self, values: Array) -> SparseRows:
        """The same rows with these values."""
        return SparseRows(self.indices, values, self.shape)

    def dense(self) -> Array:
        """The whole table as an array, 0 where no row is given."""
        table = backend.of(self.values).xp.zeros(self.shape, self.dtype)
        self.put(table)
        return table

    def first_places(self) -> Array:
        """For each row, the place where it comes first."""
        return backend.of(self.indices).xp.searchsorted(self.indices, self.indices)

    def rows(self, x: Array) -> Array:
        """A copy of its rows of x, a table."""
        return x[self.indices]

    def put(self, x: Array) -> None:
        """Overwrite its rows of x; of a repeated row, with the values that come first."""
        x[self.indices] = self.values if backend.of(x) is backend.cpu else self.values[self.first_places()]

    def summable(self) -> Array:
        """The values, with 0 in place of repeated rows, so that they can be added up."""
        device = backend.of(self.values)
        if device is backend.cpu:
            return self.values
        new = self.first_places() == device.xp.arange(len(self.indices))
        return device.select(new.reshape(-1, *[1] * (self.ndim - 1)), self.values)

    def add(self, other: Any) -> Any:
        """The sum in FP32; an array where `other` is one."""
        if not isinstance(other, SparseRows):
            return added(self.dense(), other)
        xp = backend.of(self.values).xp
        rows = xp.concatenate([widen(self.summable()), widen(other.summable())])
        index = xp.concatenate([self.indices, other.indices])
        return SparseRows.summed(index, rows, self.shape, lambda n, i, x: scatter_add(n, i, x, like=x))
