"""Changes in place: outside the graph; and as PyTorch's programs mean them, a tensor that becomes an op's result."""

from __future__ import annotations

import operator
from collections.abc import Callable
from contextlib import nullcontext
from opcode import opname
from sys import _getframe, getrefcount
from typing import Any

from ...arguments import named
from ...autograd import enable_grad, is_grad_enabled, no_grad
from ...dtypes import FLOATING, HALVES
from ...events import NAMES
from ...tensor import Tensor, tensor
from ..pointwise import add, div, mul, sub
from .pointwise import clamp, masked_fill


def in_place(function: Any) -> Any:
    """The method that writes the function of a tensor into it, outside the graph.

    Of a weight it is that of the master, of an FP16 gradient that of its numbers in FP32; FP16 operands are widened.
    """

    def method(self: Any, *args: Any, **options: Any) -> Any:
        self.require_outside_graph(method.__name__, *args, *options.values())
        with no_grad():
            if self.weight is not None:
                args = tuple([x.float() if getattr(x, "dtype", None) in HALVES else x for x in args])
            own = self.array if self.weight is None else self.wide().array
            value = function(self.result(own, False), *args, **options)
        if value.dtype in FLOATING and self.dtype not in FLOATING:
            raise TypeError(f"{method.__name__}: the result is {value.dtype}, which {self.dtype} does not hold")
        return self.overwrite(method.__name__, value)

    method.__name__ = f"{function.__name__}_"
    return named(method)


# x.add_(y) writes add(x, y) into x
add_, sub_, mul_, div_, clamp_, masked_fill_ = map(in_place, (add, sub, mul, div, clamp, masked_fill))


def alone(x: Tensor, *others: Any) -> bool:
    """True if no other tensor shares x's memory, and no op has saved it for backward: they would hold its count of
    changes. The ops that made x and `others` may: what they saved is left as it is.
    """
    makers = {id(op): op for one in (x, *others) if (op := getattr(one, "grad_fn", None)) is not None}
    saved = sum(counter is x._version for op in makers.values() for counter, _ in op.versions)
    return getrefcount(x._version) - saved <= _ALONE


def recorded(x: Tensor, *others: Any) -> bool:
    """True where an op on these is part of a graph."""
    return is_grad_enabled() and any(getattr(one, "requires_grad", False) for one in (x, *others))


def change(x: Tensor, how: str, make: Callable, *args: Any, **options: Any) -> Tensor:
    """Have x be make(x, *args, **options) from here on, and return it.

    Outside of a graph that is written into x's memory, for all that share it. In a graph, x becomes the result of the
    op; RuntimeError where another would have to learn of it (a view, an op that saved x), for a leaf, and for another
    shape.
    """
    if not recorded(x, *args, *options.values()):
        in_place(make)(x if x.grad_fn is None else x.detach(), *args, **options)
        return x
    _no_leaf(x, how)
    before = alone(x, *args, *options.values())  # the op may save x itself
    y = make(x, *args, **options)
    if y is x:
        return x
    if not before:
        raise RuntimeError(
            f"{how}: this tensor is part of a graph, and shares its memory with another tensor, or an op saved it for "
            "backward; build a new tensor (x = x + y, where, masked_fill, cat, pad), or change a clone()"
        )
    y = y.to(x.dtype) if y.dtype in FLOATING and x.dtype in FLOATING else y
    if (y.shape, y.dtype) != (x.shape, x.dtype):
        raise RuntimeError(f"{how}: expected a result like the tensor, {x.dtype} {x.shape}, got {y.dtype} {y.shape}")
    x.array, x.requires_grad, x.grad_fn, x.output_nr = y.array, y.requires_grad, y.grad_fn, y.output_nr
    x._version = y._version
    return x


def updated(x: Tensor, how: str, make: Callable, other: Any) -> Tensor:
    """The tensor that `x += other` leaves in x: x itself, after `change`. Of `z[i] += other` in a graph, x is a view of
    z that is stored again, and z then becomes the result; unless z is a list or dict of tensors.
    """
    part = x.array.base is not None if x.grad_fn is None else x.grad_fn.selects
    if part and recorded(x, other) and not alone(x, other) and _is_stored(_getframe(2)):
        return make(x, other)
    return change(x, how, make, other)


def _operator(name: str) -> Callable[[Tensor, Any], Tensor]:
    operate = getattr(operator, f"__{name}__")

    def function(x: Tensor, other: Any) -> Tensor:
        return operate(x, other)

    def method(x: Tensor, other: Any) -> Tensor:
        return updated(x, f"{name}_", function, other)

    function.__name__ = name
    NAMES.add(name)  # of errors, which name the method instead
    return method


for _name in ("add", "and", "floordiv", "matmul", "mod", "mul", "or", "pow", "sub", "truediv"):
    globals()[f"__i{_name}__"] = _operator(_name)


def _is_stored(caller: Any) -> bool:
    """True if the frame runs `z[i] += y`: the instruction behind the operator brings z and i back to where the result
    is stored.
    """
    code, at = caller.f_code.co_code, caller.f_lasti + 2
    while not code[at]:  # a cache
        at += 2
    return opname[code[at]] == "ROT_THREE" or (opname[code[at]] == "SWAP" and code[at + 1] >= 3)


def renamed(x: Tensor, how: str, make: Callable, *args: Any, **options: Any) -> Tensor:
    """Have x be the view of itself that make(x, *args, **options) gives: its axes change, its memory does not."""
    if is_grad_enabled():
        _no_leaf(x, how)
    with nullcontext() if x.grad_fn is None else enable_grad():
        y = make(x, *args, **options)
    x.array, x.grad_fn, x.output_nr = y.array, y.grad_fn, y.output_nr
    return x


def _no_leaf(x: Tensor, how: str) -> None:
    if x.requires_grad and x.grad_fn is None:
        raise RuntimeError(f"{how}: a leaf that requires a gradient changes inside `with no_grad():`, or as a clone()")


_only = tensor(0.0)
_ALONE = getrefcount(_only._version)  # as that of a tensor whose memory nobody shares or has saved
