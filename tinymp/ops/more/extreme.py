"""The largest and smallest elements of a tensor, and where they are."""

from __future__ import annotations

from typing import Any, NamedTuple

from ...arguments import axes, flag, name_all, tensor
from ...autograd import Array, Op
from ...precision import REDUCTION, reduce, store, widen
from ...tensor import Tensor
from ..reduce import ArgMax, finish, index_of, lined, nonempty
from .pointwise import maximum, minimum

__all__ = ["amax", "amin", "argmin", "max", "min"]


class Extreme(Op):
    """y = max (or min) of x over dims, nan if one is;  the extreme elements (or the nans) share dy equally."""

    kind = REDUCTION
    name = "amax"

    def forward(self, x: Array, *, dims: tuple, how: str) -> Array:
        self.name = f"a{how}"
        y = store(reduce(x, dims, how), like=x)
        self.save(x, y)
        return y

    def backward(self, dy: Array) -> Array:
        x, y = self.saved
        hits = self.xp.equal(x, y) | self.xp.isnan(x)  # with a nan, y is nan and equals nothing
        n = reduce(hits, self.dims, "sum")
        # rounds: never, a count, exact up to 2^24
        return self.device.select(hits, store(widen(dy) / self.xp.asarray(n, widen(dy).dtype), like=dy))


class ArgMin(ArgMax):
    """The first index of the minimum of x along dim, as integers."""

    name = "argmin"


class Take(Op):
    """y = the element of x at `index` along dim;  that element gets dy (PyTorch's max and min over one dim)."""

    kind = REDUCTION
    name = "max"

    def forward(self, x: Array, index: Array, *, dim: int, how: str) -> Array:
        self.save(index)
        self.name = how
        return self.xp.take_along_axis(x, index, dim)

    def backward(self, dy: Array) -> tuple:
        (index,) = self.saved
        dx = self.xp.zeros(self.targets[0].shape, dy.dtype)
        self.xp.put_along_axis(dx, index, dy, self.dim)
        return dx, None


# ---------------------------------------------------------------------------------------------------------- functions


def amax(input: Tensor, dim: Any = (), keepdim: bool = False) -> Tensor:
    """The maximum over `dim` (an axis, several, or () for all); equal maxima share the gradient. nan where one is."""
    dims = axes("amax", dim, tensor("amax", "input", input).ndim)
    nonempty("amax", input, dims)
    return finish(Extreme.apply(input, dims=dims, how="max"), dims, flag("amax", "keepdim", keepdim))


def amin(input: Tensor, dim: Any = (), keepdim: bool = False) -> Tensor:
    """The minimum over `dim` (an axis, several, or () for all); equal minima share the gradient. nan where one is."""
    dims = axes("amin", dim, tensor("amin", "input", input).ndim)
    nonempty("amin", input, dims)
    return finish(Extreme.apply(input, dims=dims, how="min"), dims, flag("amin", "keepdim", keepdim))


class Extremes(NamedTuple):
    """What `max` and `min` along an axis return."""

    values: Tensor
    indices: Tensor


def _extreme(op: str, input: Tensor, dim: Any, keepdim: bool) -> Any:
    if flag(op, "keepdim", keepdim) and dim is None:
        raise TypeError(f"{op}: expected `dim` together with keepdim=True; a{op} keeps the axes without one")
    if dim is None:
        return amax(input) if op == "max" else amin(input)
    if isinstance(dim, Tensor):
        return (maximum if op == "max" else minimum)(input, dim)
    x, d, keep = lined(op, input, dim, keepdim)
    nonempty(op, x, (d,))
    index = (ArgMax if op == "max" else ArgMin).apply(x, dim=d)
    values = Take.apply(x, index, dim=d, how=op)
    return Extremes(finish(values, (d,), keep), finish(index, (d,), keep))


def max(input: Tensor, dim: Any = None, keepdim: bool = False) -> Any:
    """Without dim: the largest element. With dim: its (values, indices) along that axis; the first of equals counts.

    With a tensor as second argument: `maximum`.
    """
    return _extreme("max", tensor("max", "input", input), dim, keepdim)


def min(input: Tensor, dim: Any = None, keepdim: bool = False) -> Any:
    """Without dim: the smallest element. With dim: (values, indices) along that axis; the first of equals counts.

    With a tensor as second argument: `minimum`.
    """
    return _extreme("min", tensor("min", "input", input), dim, keepdim)


def argmin(input: Tensor, dim: int | None = None, keepdim: bool = False) -> Tensor:
    """The index of the first minimum along dim, or in the flattened tensor if dim is None. Integers, no gradient."""
    return index_of(ArgMin, tensor("argmin", "input", input), dim, keepdim)


name_all(globals())
