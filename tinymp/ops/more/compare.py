"""Comparisons and tests: boolean results, no gradient."""

from __future__ import annotations

import math
import operator as _operator
from collections.abc import Callable
from typing import Any

from ...arguments import axes, called, flag, name_all, tensor
from ...autograd import Array, Op
from ...dtypes import FLOATING
from ...precision import POINTWISE, REDUCTION, scalar, widen
from ...tensor import Tensor
from ..pointwise import broadcastable, operands, stored

__all__ = ["all", "any", "eq", "ge", "gt", "isfinite", "isinf", "isnan"]
__all__ += ["le", "logical_and", "logical_not", "logical_or", "lt", "ne"]


class Compare(Op):
    """z = whether x (and y) satisfy what the name says, element by element, as bool."""

    kind = POINTWISE
    arguments = ("input", "other")
    ufunc = "equal"

    def forward(self, *x: Array) -> Array:
        dtype = stored(*x).dtype
        if dtype in FLOATING:
            x = tuple([v if hasattr(v, "dtype") else self._constant(v, dtype) for v in x])
        return self.device.map(lambda *x: getattr(self.xp, self.ufunc)(*map(widen, x)), *x)

    def _constant(self, value: float, dtype: Any) -> Array:
        """A number, rounded to the dtype of the tensor that it is compared with: 0.1 equals a stored 0.1, as in
        PyTorch. One beyond that dtype is not rounded, so that it lies between the largest number and infinity.
        """
        rounded = scalar(value, dtype)
        return rounded if math.isfinite(rounded) or not math.isfinite(value) else self.xp.asarray(float(value))


class AllTrue(Op):
    """y = whether all (or any) elements of x over dims are not 0, as bool; nan is not 0."""

    kind = REDUCTION
    name = "all"

    def forward(self, x: Array, *, dims: tuple, keepdim: bool, how: str) -> Array:
        self.name = how
        return getattr(self.xp, how)(widen(x), axis=dims, keepdims=keepdim)


OPS: dict[str, Any] = {}  # one per name, so that messages and reports say "lt" and not "compare"


def _op(name: str, ufunc: str) -> Any:
    OPS[name] = type(name, (Compare,), {"__doc__": Compare.__doc__, "name": name, "ufunc": ufunc})
    return OPS[name]


def _of_two(name: str, ufunc: str, says: str, second: Callable = lambda op, name, x: x) -> Callable[[Any, Any], Tensor]:
    op = _op(name, ufunc)

    def function(input: Tensor, other: Any) -> Tensor:
        pair = tensor(name, "input", input), second(name, "other", other)
        return op.apply(*operands(name, *pair, stores=False))

    return called(function, name, says, __name__)


def _of_one(name: str, says: str) -> Callable[[Any], Tensor]:
    op = _op(name, name)

    def function(input: Tensor) -> Tensor:
        return op.apply(tensor(name, "input", input))

    return called(function, name, says, __name__)


eq = _of_two("eq", "equal", "input == other (a tensor or a number), broadcast, as bool.")
ne = _of_two("ne", "not_equal", "input != other (a tensor or a number), broadcast, as bool.")
lt = _of_two("lt", "less", "input < other (a tensor or a number), broadcast, as bool.")
le = _of_two("le", "less_equal", "input <= other (a tensor or a number), broadcast, as bool.")
gt = _of_two("gt", "greater", "input > other (a tensor or a number), broadcast, as bool.")
ge = _of_two("ge", "greater_equal", "input >= other (a tensor or a number), broadcast, as bool.")
_both = "True where input and other are both true (not 0), broadcast, as bool."
_either = "True where input or other or both are true (not 0), broadcast, as bool."
logical_and = _of_two("logical_and", "logical_and", _both, tensor)
logical_or = _of_two("logical_or", "logical_or", _either, tensor)
logical_not = _of_one("logical_not", "True where input is false (0), as bool.")
isnan = _of_one("isnan", "True where input is not a number, as bool.")
isinf = _of_one("isinf", "True where input is infinite (of either sign), as bool.")
isfinite = _of_one("isfinite", "True where input is neither infinite nor nan, as bool.")


def all(input: Tensor, dim: Any = None, keepdim: bool = False) -> Tensor:
    """True if every element over `dim` (an axis, several, or None for all) is true (not 0), as bool; true of none."""
    dims = axes("all", dim, tensor("all", "input", input).ndim)
    return AllTrue.apply(input, dims=dims, keepdim=flag("all", "keepdim", keepdim), how="all")


def any(input: Tensor, dim: Any = None, keepdim: bool = False) -> Tensor:
    """True if some element over `dim` (an axis, several, or None for all) is true (not 0), as bool; false of none."""
    dims = axes("any", dim, tensor("any", "input", input).ndim)
    return AllTrue.apply(input, dims=dims, keepdim=flag("any", "keepdim", keepdim), how="any")


def _of_masks(symbol: str, function: Any) -> Any:
    """The operator of booleans, and of the bits of integers; TypeError for other numbers."""

    def operator(*masks: Any) -> Any:
        kinds = {x.dtype.kind if hasattr(x, "dtype") else "f" if isinstance(x, float) else "b" for x in masks}
        if kinds - {*"biu"}:
            got = ", ".join(str(getattr(x, "dtype", x)) for x in masks)
            raise TypeError(f"{symbol}: expected booleans or integers, got {got}; see ops.{function.__name__}")
        broadcastable(symbol, *[x for x in masks if isinstance(x, Tensor)])
        bits = getattr(_operator, f"__{symbol}__")
        return function(*masks) if kinds == {"b"} else type(masks[0])(bits(*(getattr(x, "array", x) for x in masks)))

    return operator


name_all(globals())  # what follows is named as these are


def equal_or_none(input: Tensor, other: Any) -> Any:
    """input == other; False beside None, for which PyTorch and programs that ask `x in [None]` expect an answer."""
    return other is not None and eq(input, other)


def different_or_none(input: Tensor, other: Any) -> Any:
    """input != other; True beside None."""
    return other is None or ne(input, other)


invert, both, either = _of_masks("invert", logical_not), _of_masks("and", logical_and), _of_masks("or", logical_or)
