"""Pointwise arithmetic: read storage, compute each element in FP32, round once (MPT section 3.3)."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..arguments import constant, number, tensor
from ..autograd import Array, Op
from ..backend.extras import held
from ..dtypes import FLOATING, float32, require_fit
from ..events import type_name
from ..gradients import Target
from ..precision import POINTWISE, reduce, store, widen
from ..tensor import Tensor

__all__ = ["add", "div", "mul", "pow", "sub"]


def sum_to(g: Array, like: Target) -> Array:
    """The gradient g of a broadcast operand: summed in FP32 over the axes that were broadcast, then stored. None if
    `like` is None: a number or a constant needs no gradient.
    """
    return store(g if like is None or g.shape == like.shape else _summed(g, like), like)


def _summed(g: Array, like: Target) -> Array:
    """g summed to the shape of like, in FP32."""
    lead = g.ndim - len(like.shape)
    axes = tuple(i for i, n in enumerate(g.shape) if i < lead or like.shape[i - lead] != n)
    return reduce(g, axes, "sum", like=like).reshape(like.shape)


def operands(op: str, *inputs: Any, stores: bool = True) -> list:
    """The operands of an op. Some may be numbers, which must fit FP16 if the op `stores` them. An integer or boolean
    tensor takes the dtype of a floating one, as in PyTorch.
    """
    tensors = [x for x in inputs if isinstance(x, Tensor)] or [tensor(op, "input", inputs[0])]
    broadcastable(op, *tensors)
    given = [x.item() if isinstance(x, np.generic) else x for x in inputs]
    # integers with a fraction become FP32, as in PyTorch
    dtype = next((x.dtype for x in tensors if x.dtype in FLOATING), float32 if float in map(type, given) else None)
    if dtype is None and len({x.dtype for x in tensors}) > 1:
        given = held("ops.pointwise.of_one_kind")(given)
    for i, x in enumerate(given):
        if isinstance(x, Tensor):
            given[i] = x if dtype is None or x.dtype in FLOATING else held("ops.pointwise.floating")(op, x, dtype)
        elif not isinstance(x, (int, float)):
            raise TypeError(f"{op}: expected Tensors and numbers, got {type_name(x)}; wrap it with tinymp.tensor(...)")
        elif dtype is not None and stores:
            require_fit(op, x, dtype)
    return given


def broadcastable(op: str, *tensors: Tensor) -> None:
    """ValueError unless the shapes broadcast."""
    if len({x.array.shape for x in tensors}) > 1:
        try:
            np.broadcast_shapes(*[x.shape for x in tensors])
        except ValueError:
            shapes = " and ".join(str(x.shape) for x in tensors)
            raise ValueError(
                f"{op}: expected shapes that broadcast (equal from the right, or 1), got {shapes}"
            ) from None


def stored(*operands: Any) -> Array:
    """The first operand that is an array (the others may be numbers)."""
    return next(x for x in operands if hasattr(x, "dtype"))


class Add(Op):
    """z = x + alpha y;  dx = dz, dy = alpha dz."""

    kind = POINTWISE
    sign = 1

    def forward(self, x: Array, y: Array, *, alpha: float) -> Array:
        def total(x: Any, y: Any, alpha: Any = None) -> Array:
            wide, part = widen(x), widen(y) if alpha is None else alpha * widen(y)
            return store(wide + part if self.sign == 1 else wide - part, like=stored(x, y))

        return self.device.map(total, x, y, *(() if alpha == 1 else (alpha,)))

    def backward(self, dz: Array) -> tuple:
        (x, y), factor = self.targets, self.sign * self.alpha
        if y is not None and factor != 1:
            return sum_to(dz, x), self.device.map(lambda dz, factor: sum_to(factor * widen(dz), y), dz, factor)
        return sum_to(dz, x), sum_to(dz, y)


class Sub(Add):
    """z = x - alpha y;  dx = dz, dy = -alpha dz."""

    sign = -1


class Mul(Op):
    """z = x y;  dx = y dz, dy = x dz."""

    kind = POINTWISE

    def forward(self, x: Array, y: Array) -> Array:
        need_x, need_y = self.needs or (False, False)
        self.save(x if need_y else None, y if need_x else None)
        return self.device.map(lambda x, y: store(widen(x) * widen(y), like=stored(x, y)), x, y)

    def backward(self, dz: Array) -> tuple:
        like_x, like_y = self.targets

        def gradients(dz: Array, x: Any, y: Any) -> tuple:
            dz = widen(dz)
            dx = sum_to(dz * widen(y), like_x) if like_x else None
            return dx, sum_to(dz * widen(x), like_y) if like_y else None

        return self.device.map(gradients, dz, *self.saved)


class Div(Op):
    """z = x / y;  dx = dz / y, dy = -dz x / y^2."""

    kind = POINTWISE

    def forward(self, x: Array, y: Array) -> Array:
        self.save(x if self.needs[1:] == (True,) else None, y)
        return self.device.map(lambda x, y: store(widen(x) / widen(y), like=stored(x, y)), x, y)

    def backward(self, dz: Array) -> tuple:
        like_x, like_y = self.targets

        def gradients(dz: Array, x: Any, y: Any) -> tuple:
            dx = widen(dz) / widen(y)
            return sum_to(dx, like_x), sum_to(-dx * (widen(x) / widen(y)), like_y) if like_y else None

        return self.device.map(gradients, dz, *self.saved)


class Pow(Op):
    """z = x^p;  dx = p x^(p-1) dz, dp = z log(x) dz, both 0 where the limit is (p = 0; x = 0 with p >= 0)."""

    kind = POINTWISE
    arguments = ("input", "exponent")

    def forward(self, x: Array, p: Array) -> Array:
        self.save(x, p)
        return self.device.map(lambda x, p: store(self.xp.power(widen(x), widen(p)), like=stored(x, p)), x, p)

    def backward(self, dz: Array) -> tuple:
        like_x, like_p = self.targets

        def gradients(dz: Array, x: Any, p: Any) -> tuple:
            xp, dz, x, p, select = self.xp, widen(dz), widen(x), widen(p), self.device.select
            dx = sum_to(select(xp.not_equal(p, 0), dz * p * xp.power(x, p - 1)), like_x) if like_x else None
            inside = like_p and xp.not_equal(x, 0) | ~xp.greater_equal(p, 0)
            # rounds: whole numbers beyond 2^24; floating ones are as wide as dz
            log = xp.log(xp.asarray(x, dz.dtype)) if like_p else None
            return dx, sum_to(select(inside, dz * xp.power(x, p) * log), like_p) if like_p else None

        return self.device.map(gradients, dz, *self.saved)


# ---------------------------------------------------------------------------------------------------------- functions


def add(input: Any, other: Any, *, alpha: float = 1) -> Tensor:
    """input + alpha * other, broadcast. One of them may be a number."""
    pair = operands("add", input, other)
    return Add.apply(*pair, alpha=_factor("add", alpha, pair))


def sub(input: Any, other: Any, *, alpha: float = 1) -> Tensor:
    """input - alpha * other, broadcast. One of them may be a number."""
    pair = operands("sub", input, other)
    return Sub.apply(*[numeric("sub", x) for x in pair], alpha=_factor("sub", alpha, pair))


def numeric(op: str, x: Any) -> Any:
    """x, if it is a number or a tensor of numbers; TypeError for booleans, which NumPy cannot subtract."""
    if isinstance(x, Tensor) and x.dtype.kind == "b":
        raise TypeError(f"{op}: expected numbers, got bool; see logical_not and ne, or convert it with .int()")
    return x


def _factor(op: str, alpha: Any, pair: list) -> Any:
    dtype = stored(*pair).dtype  # a factor of floating numbers is never stored: it need not fit FP16
    return number(op, "alpha", alpha) if dtype in FLOATING else constant(op, "alpha", alpha, dtype)


def mul(input: Any, other: Any) -> Tensor:
    """input * other, broadcast. One of them may be a number; ValueError if it does not fit FP16."""
    return Mul.apply(*operands("mul", input, other))


def div(input: Any, other: Any, *, rounding_mode: str | None = None) -> Tensor:
    """input / other, broadcast. One of them may be a number. Integers divide as float32.

    rounding_mode: "floor" or "trunc" (towards 0) round the quotient to a whole number, without a gradient; that of
    integers is one.
    """
    pair = operands("div", input, other)
    floats = [x.float() if isinstance(x, Tensor) and x.dtype not in FLOATING else x for x in pair]
    return Div.apply(*floats) if rounding_mode is None else held("ops.pointwise.div_rounded")(pair, rounding_mode)


def pow(input: Any, exponent: Any) -> Tensor:
    """input to the power of exponent, broadcast. One of them may be a number."""
    return Pow.apply(*operands("pow", input, exponent))
