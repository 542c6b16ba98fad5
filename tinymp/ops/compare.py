"""Comparisons and tests: boolean results, no gradient."""

from __future__ import annotations

import math
from typing import Any

from ..arguments import axes, flag, refuse, tensor
from ..autograd import Array, Op
from ..precision import FLOATING, POINTWISE, REDUCTION, scalar, widen
from ..tensor import Tensor
from .pointwise import operands, stored


class Compare(Op):
    """z = whether x (and y) satisfy the subclass's `ufunc`, element by element, as bool."""

    kind = POINTWISE
    arguments = ("input", "other")
    ufunc: str

    def forward(self, *x: Array) -> Array:
        dtype = stored(*x).dtype
        if dtype in FLOATING:
            x = tuple([widen(v if hasattr(v, "dtype") else self._constant(v, dtype)) for v in x])
        return getattr(self.xp, self.ufunc)(*x)

    def _constant(self, value: float, dtype: Any) -> Array:
        """A number, rounded to the dtype of the tensor that it is compared with: 0.1 equals a stored 0.1, as in
        PyTorch. One beyond that dtype is not rounded, so that it lies between the largest number and infinity.
        """
        rounded = scalar(value, dtype)
        return rounded if math.isfinite(rounded) or not math.isfinite(value) else self.xp.asarray(float(value))


# One op per name, so that messages and reports say "lt" and not "compare".
_OPS: dict[str, Any] = {
    name: type(name, (Compare,), {"__doc__": Compare.__doc__, "name": name, "ufunc": ufunc})
    for name, ufunc in {
        "eq": "equal",
        "ne": "not_equal",
        "lt": "less",
        "le": "less_equal",
        "gt": "greater",
        "ge": "greater_equal",
        "logical_not": "logical_not",
        "logical_and": "logical_and",
        "logical_or": "logical_or",
        "isnan": "isnan",
        "isinf": "isinf",
        "isfinite": "isfinite",
    }.items()
}


class AllTrue(Op):
    """y = whether all (or any) elements of x over dims are not 0, as bool; nan is not 0."""

    kind = REDUCTION
    name = "all"

    def forward(self, x: Array, *, dims: tuple, keepdim: bool, how: str) -> Array:
        self.name = how
        return getattr(self.xp, how)(widen(x), axis=dims, keepdims=keepdim)


# ---------------------------------------------------------------------------------------------------------- functions


def _compare(op: str, input: Any, other: Any, out: None) -> Tensor:
    refuse(op, out=out)
    return _OPS[op].apply(*operands(op, tensor(op, "input", input), other, stores=False))


def eq(input: Tensor, other: Any, *, out: None = None) -> Tensor:
    """input == other (a tensor or a number), broadcast, as bool."""
    return _compare("eq", input, other, out)


def ne(input: Tensor, other: Any, *, out: None = None) -> Tensor:
    """input != other (a tensor or a number), broadcast, as bool."""
    return _compare("ne", input, other, out)


def lt(input: Tensor, other: Any, *, out: None = None) -> Tensor:
    """input < other (a tensor or a number), broadcast, as bool."""
    return _compare("lt", input, other, out)


def le(input: Tensor, other: Any, *, out: None = None) -> Tensor:
    """input <= other (a tensor or a number), broadcast, as bool."""
    return _compare("le", input, other, out)


def gt(input: Tensor, other: Any, *, out: None = None) -> Tensor:
    """input > other (a tensor or a number), broadcast, as bool."""
    return _compare("gt", input, other, out)


def ge(input: Tensor, other: Any, *, out: None = None) -> Tensor:
    """input >= other (a tensor or a number), broadcast, as bool."""
    return _compare("ge", input, other, out)


def logical_and(input: Tensor, other: Tensor, *, out: None = None) -> Tensor:
    """Whether input and other are both true (not 0), broadcast, as bool."""
    return _compare("logical_and", input, tensor("logical_and", "other", other), out)


def logical_or(input: Tensor, other: Tensor, *, out: None = None) -> Tensor:
    """Whether input or other or both are true (not 0), broadcast, as bool."""
    return _compare("logical_or", input, tensor("logical_or", "other", other), out)


def logical_not(input: Tensor, *, out: None = None) -> Tensor:
    """Whether input is false (0), as bool."""
    refuse("logical_not", out=out)
    return _OPS["logical_not"].apply(tensor("logical_not", "input", input))


def isnan(input: Tensor) -> Tensor:
    """Where input is not a number, as bool."""
    return _OPS["isnan"].apply(tensor("isnan", "input", input))


def isinf(input: Tensor) -> Tensor:
    """Where input is infinite (of either sign), as bool."""
    return _OPS["isinf"].apply(tensor("isinf", "input", input))


def isfinite(input: Tensor) -> Tensor:
    """Where input is neither infinite nor nan, as bool."""
    return _OPS["isfinite"].apply(tensor("isfinite", "input", input))


def all(input: Tensor, dim: Any = None, keepdim: bool = False, *, out: None = None) -> Tensor:
    """Whether every element over `dim` (an axis, several, or None for all) is true (not 0), as bool; true of none."""
    refuse("all", out=out)
    dims = axes("all", dim, tensor("all", "input", input).ndim)
    return AllTrue.apply(input, dims=dims, keepdim=flag("all", "keepdim", keepdim), how="all")


def any(input: Tensor, dim: Any = None, keepdim: bool = False, *, out: None = None) -> Tensor:
    """Whether some element over `dim` (an axis, several, or None for all) is true (not 0), as bool; false of none."""
    refuse("any", out=out)
    dims = axes("any", dim, tensor("any", "input", input).ndim)
    return AllTrue.apply(input, dims=dims, keepdim=flag("any", "keepdim", keepdim), how="any")
