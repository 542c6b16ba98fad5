"""sort, argsort and topk: the order of the elements along an axis, and the elements in it. Nothing is rounded."""

from __future__ import annotations

from typing import Any, NamedTuple

from ..arguments import axis, flag, refuse, tensor
from ..autograd import Array, Op
from ..precision import MOVEMENT, widen
from ..tensor import Tensor
from .index import gather


class ArgSort(Op):
    """index: where along dim the elements of x stand, smallest (or largest) first, equal ones in their order."""

    kind = MOVEMENT
    name = "argsort"

    def forward(self, x: Array, *, dim: int, descending: bool) -> Array:
        xp, wide = self.xp, widen(x)
        if not descending:
            return xp.argsort(wide, axis=dim, kind="stable")
        # equal elements keep their order if the axis is reversed before the sort and after it
        return x.shape[dim] - 1 - xp.flip(xp.argsort(xp.flip(wide, dim), axis=dim, kind="stable"), dim)


class Ordered(NamedTuple):
    """What `sort` and `topk` return."""

    values: Tensor
    indices: Tensor


# ---------------------------------------------------------------------------------------------------------- functions


def _order(op: str, input: Any, dim: int, descending: bool, name: str = "descending") -> tuple[Tensor, Tensor, int]:
    """input (with one axis if it has none), the order of its elements along the axis, and the axis."""
    x = tensor(op, "input", input)
    d = axis(op, dim, max(x.ndim, 1))
    x = x if x.ndim else x.reshape(1)
    return x, ArgSort.apply(x, dim=d, descending=flag(op, name, descending)), d


def _ordered(input: Tensor, x: Tensor, index: Tensor, d: int) -> Ordered:
    values = gather(x, d, index)
    return Ordered(values, index) if input.ndim else Ordered(values.reshape(()), index.reshape(()))


def argsort(input: Tensor, dim: int = -1, descending: bool = False, stable: bool = False) -> Tensor:
    """The places along dim of input's elements in rising (or falling) order, as integers; see `sort`."""
    _, index, _ = _order("argsort", input, dim, descending)
    return index if input.ndim else index.reshape(())


def sort(input: Tensor, dim: int = -1, descending: bool = False, stable: bool = False, *, out: None = None) -> Ordered:
    """(values, indices): input's elements along dim in rising (or falling) order, and where they stood.

    nan counts as the largest. Equal elements always keep their order, whatever `stable` says. Each element gets the
    gradient of its value.
    """
    refuse("sort", out=out)
    return _ordered(input, *_order("sort", input, dim, descending))


def topk(
    input: Tensor, k: int, dim: int = -1, largest: bool = True, sorted: bool = True, *, out: None = None
) -> Ordered:
    """(values, indices) of the k largest (or smallest) elements along dim, always sorted, the first of equals first.

    ValueError for more elements than there are.
    """
    refuse("topk", out=out)
    x, index, d = _order("topk", input, dim, largest, "largest")
    if isinstance(k, bool) or not hasattr(k, "__index__"):
        raise TypeError(f"topk: expected `k` to be an integer, got {k!r}")
    if not 0 <= k <= x.shape[d]:
        raise ValueError(f"topk: expected `k` in [0, {x.shape[d]}], the length of axis {d}, got {k}")
    first = (slice(None),) * d + (slice(0, k.__index__()),)
    return _ordered(input if k or input.ndim else x, x, index[first], d)
