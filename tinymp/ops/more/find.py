"""Ops without gradients: they find elements that are not 0, count values, and compare tensors within a tolerance."""

from __future__ import annotations

from typing import Any

import numpy as np

from ... import backend
from ...arguments import axes, axis, choice, flag, integers, number, tensor
from ...dtypes import FLOATING, HALVES, float32
from ...precision import scatter_add
from ...tensor import Tensor
from ..create import dtype_read
from ..pointwise import add, mul, sub
from ..reduce import sum as total
from ..shape import reshape
from ..unary import abs
from .compare import all as every
from .compare import eq, isfinite, isnan, le, logical_and, logical_not, logical_or, ne

__all__ = ["allclose", "bincount", "count_nonzero", "equal", "isclose", "logical_xor", "nonzero", "one_hot", "unique"]
__all__ += ["bucketize", "searchsorted"]
_SIDES = ("left", "right")


def nonzero(input: Tensor, *, as_tuple: bool = False) -> Any:
    """The places where input is not 0, in row-major order: (number, ndim) integers; with as_tuple a tensor of those
    along each axis, by which input can be indexed.
    """
    x = tensor("nonzero", "input", input)
    several = flag("nonzero", "as_tuple", as_tuple)
    xp = backend.of(x.array).xp
    found = xp.nonzero(ne(x, 0).array.reshape(x.shape or 1))
    if several:
        return tuple(map(Tensor, found))
    return Tensor(xp.stack(found, 1)[:, : x.ndim])


def count_nonzero(input: Tensor, dim: Any = None) -> Tensor:
    """The number of elements that are not 0, over `dim` (an axis, several, or None for all), as int64."""
    dims = axes("count_nonzero", dim, tensor("count_nonzero", "input", input).ndim)
    return total(ne(input, 0), dims)


def logical_xor(input: Tensor, other: Tensor) -> Tensor:
    """True where one of input and other is true (not 0) and the other is not; broadcast, as bool."""
    pair = tensor("logical_xor", "input", input), tensor("logical_xor", "other", other)
    return ne(*map(logical_not, pair))


def searchsorted(
    sorted_sequence: Tensor,
    input: Any,
    *,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: Tensor | None = None,
) -> Tensor:
    """The place in the last axis of sorted_sequence for each number of input: before those equal to it, or with right
    or side="right" behind them; int64, or int32 with out_int32. sorted_sequence has one axis, or all but the last are
    those of input; sorter: the order that sorts it, where it is not sorted. ValueError for shapes that do not fit.
    """
    op = "searchsorted"
    s = tensor(op, "sorted_sequence", sorted_sequence)
    if sorter is not None:
        if (order := tensor(op, "sorter", sorter)).dtype.kind != "i" or order.shape != s.shape or not s.ndim:
            raise ValueError(
                f"{op}: expected `sorter` to be integers of shape {s.shape}, got {order.dtype} {order.shape}"
            )
        s = Tensor(backend.of(s.array).xp.take_along_axis(s.array, order.array, -1))
    x = Tensor(input).to(s.device) if isinstance(input, (int, float)) else tensor(op, "input", input)
    side = choice(op, "side", _SIDES[flag(op, "right", right)] if side is None else side, _SIDES)
    dtype = "int32" if flag(op, "out_int32", out_int32) else "int64"
    if s.ndim != 1 and (not s.ndim or s.ndim != x.ndim or s.shape[:-1] != x.shape[:-1]):
        raise ValueError(f"{op}: expected one axis, or those of `input` {x.shape} but the last, got {s.shape}")
    xp = backend.of(s.array).xp
    if not x.numel():
        return Tensor(xp.zeros(x.shape, dtype))
    pairs = [(s.array, x.array)] if s.ndim == 1 else [(s.array[i], x.array[i]) for i in np.ndindex(s.shape[:-1])]
    found = [xp.searchsorted(a, b, side=side) for a, b in pairs]
    return Tensor(xp.stack(found).reshape(x.shape).astype(dtype))


def bucketize(input: Tensor, boundaries: Tensor, *, out_int32: bool = False, right: bool = False) -> Tensor:
    """The number of the interval between sorted boundaries (n,) that holds each number: `searchsorted`."""
    if tensor("bucketize", "boundaries", boundaries).ndim != 1:
        raise ValueError(f"bucketize: expected boundaries of one axis, got shape {boundaries.shape}")
    return searchsorted(boundaries, input, out_int32=out_int32, right=right)


def equal(input: Tensor, other: Tensor) -> bool:
    """True if two tensors have one shape and the same elements. TypeError for tensors of two dtypes."""
    pair = _of_one_dtype("equal", input, other)
    return input.shape == other.shape and bool(every(eq(*pair)).item())


def _of_one_dtype(op: str, input: Any, other: Any) -> tuple[Tensor, Tensor]:
    if tensor(op, "input", input).dtype != tensor(op, "other", other).dtype and dtype_read(input) != dtype_read(other):
        raise TypeError(f"{op}: expected tensors of one dtype, got {input.dtype} and {other.dtype}")
    return input.detach(), other.detach()


def isclose(input: Tensor, other: Tensor, rtol: float = 1e-05, atol: float = 1e-08, equal_nan: bool = False) -> Tensor:
    """True where |input - other| <= atol + rtol |other|, broadcast; computed in FP32 (FP64 for integers).

    Equal infinities are close; nan is close to nan where `equal_nan`. TypeError for tensors of two dtypes; ValueError
    for negative tolerances.
    """
    op = "isclose"
    x, y = _of_one_dtype(op, input, other)
    relative, absolute = number(op, "rtol", rtol, 0), number(op, "atol", atol, 0)
    x, y = (v.float() if v.dtype in HALVES else v if v.dtype in FLOATING else v.double() for v in (x, y))
    difference = abs(sub(x, y))
    near = logical_and(isfinite(difference), le(difference, add(mul(abs(y), relative), absolute)))
    close = logical_or(eq(x, y), near)
    return logical_or(close, logical_and(isnan(x), isnan(y))) if flag(op, "equal_nan", equal_nan) else close


def allclose(input: Tensor, other: Tensor, rtol: float = 1e-05, atol: float = 1e-08, equal_nan: bool = False) -> bool:
    """True if all elements are close, as `isclose` says."""
    return bool(every(isclose(input, other, rtol, atol, equal_nan)).item())


def one_hot(tensor: Tensor, num_classes: int = -1) -> Tensor:
    """int64 zeros with one 1 along a new last axis, at the class that each of the integers names.

    num_classes: its length; -1 for the largest class and 1. ValueError for negative classes and for those beyond it.
    """
    op = "one_hot"
    if _tensor(op, "tensor", tensor).dtype.kind not in "iu":
        raise TypeError(f"{op}: expected integers, got {tensor.dtype}")
    (n,) = integers(op, "num_classes", num_classes, 1, -1)
    device = backend.of(tensor.array)
    if n == -1:
        if not tensor.numel():
            raise ValueError(f"{op}: expected `num_classes` for a tensor without elements")
        n = max(int(tensor.array.max()), 0) + 1
    inside = (tensor.array >= 0) & (tensor.array < n)
    device.require(inside, ValueError, f"{op}: expected classes in [0, {n - 1}]", tensor.array)
    return eq(reshape(tensor, (*tensor.shape, 1)), Tensor(device.xp.arange(n))).long()


def bincount(input: Tensor, weights: Tensor | None = None, minlength: int = 0) -> Tensor:
    """The counts of 0, 1, 2, ... among the integers `input` (one axis), as int64; at least `minlength` of them.

    weights: of input's shape; their sums come in place of counts, in float32 for those of float32, else in float64.
    ValueError for negative integers and other shapes.
    """
    op = "bincount"
    x, (least,) = tensor(op, "input", input), integers(op, "minlength", minlength, 1, 0)
    if x.dtype.kind not in "iu" or x.ndim != 1:
        raise ValueError(f"{op}: expected integers along one axis, got {x.dtype} of shape {x.shape}")
    if weights is not None and tensor(op, "weights", weights).shape != x.shape:
        raise ValueError(f"{op}: expected weights.shape == {x.shape}, got {weights.shape}")
    if x.numel() and int(x.array.min()) < 0:
        raise ValueError(f"{op}: expected integers of at least 0, got {int(x.array.min())}")
    if weights is None:
        return Tensor(backend.of(x.array).xp.bincount(x.array, minlength=least)).long()
    w = weights.detach() if weights.dtype == float32 else weights.detach().double()
    n = max(least, int(x.array.max()) + 1 if x.numel() else 0)
    return Tensor(scatter_add(n, x.long().array, w.array, like=w.array))


def unique(
    input: Tensor, sorted: bool = True, return_inverse: bool = False, return_counts: bool = False, dim: Any = None
) -> Any:
    """The different elements of input, in order (also without `sorted`); with dim its different slices along that axis.

    return_inverse: also where among them each element is; return_counts: also how often each occurs. Found on the host.
    """
    op = "unique"
    x, along = tensor(op, "input", input), None
    if dim is not None:
        along = axis(op, dim, x.ndim)
    flag(op, "sorted", sorted)
    asked = flag(op, "return_inverse", return_inverse), flag(op, "return_counts", return_counts)
    values, places, counts = np.unique(
        backend.to_cpu(x.array), return_inverse=True, return_counts=True, axis=along, equal_nan=False
    )
    places = places.reshape(x.shape if along is None else -1)
    device = backend.of(x.array)
    some = [values, *[found for found, wanted in zip((places, counts), asked) if wanted]]
    return tuple([Tensor(device.asarray(v)) for v in some]) if len(some) > 1 else Tensor(device.asarray(values))


_tensor = tensor
