"""Pointwise functions beyond those of ops/pointwise.py: choices between elements, and limits.

Read storage, compute each element in FP32, round once.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ... import backend
from ...arguments import constant, tensor
from ...autograd import Array, Op
from ...dtypes import FLOATING, float32
from ...events import quietly
from ...precision import MOVEMENT, POINTWISE, REDUCTION, scalar, store, to_dtype, widen
from ...tensor import Tensor
from ..pointwise import broadcastable, numeric, operands, sum_to

__all__ = ["clamp", "clip", "masked_fill", "maximum", "minimum", "neg", "where"]


class Maximum(Op):
    """z = max(x, y), nan if either is;  the larger operand gets dz, equal ones half each, both all of it at nan."""

    kind = POINTWISE
    larger = "greater"

    def forward(self, x: Array, y: Array) -> Array:
        self.save(x, y)
        return self.device.map(lambda x, y: store(getattr(self.xp, self.name)(widen(x), widen(y)), like=x), x, y)

    def backward(self, dz: Array) -> tuple:
        like_x, like_y = self.targets

        def gradients(dz: Array, x: Array, y: Array) -> tuple:
            dz, x, y, wins, select = widen(dz), widen(x), widen(y), getattr(self.xp, self.larger), self.device.select
            share = self.device.where(self.xp.equal(x, y), 0.5 * dz, dz)
            dx = sum_to(select(~wins(y, x), share), like_x) if like_x else None
            return dx, sum_to(select(~wins(x, y), share), like_y) if like_y else None

        return self.device.map(gradients, dz, *self.saved)


class Minimum(Maximum):
    """z = min(x, y), nan if either is;  the smaller operand gets dz, equal ones half each, both all of it at nan."""

    larger = "less"


class Where(Op):
    """z = x where the condition holds, else y;  each gets dz where it was taken."""

    kind = MOVEMENT
    gradient = REDUCTION

    def forward(self, condition: Array, x: Array, y: Array) -> Array:
        self.save(condition)
        dtype = self.storage or self.xp.result_type(x, y)  # differs from x's or y's only among integers
        chosen = scalar(x, dtype), scalar(y, dtype)
        return self.device.map(lambda condition, x, y: self.device.where(condition, x, y), condition, *chosen)

    def backward(self, dz: Array) -> tuple:
        _, like_x, like_y = self.targets

        def gradients(dz: Array, condition: Array) -> tuple:
            dx = sum_to(self.device.select(condition, dz), like_x) if like_x else None
            return None, dx, sum_to(self.device.select(~condition, dz), like_y) if like_y else None

        return self.device.map(gradients, dz, *self.saved)


class Neg(Op):
    """y = -x;  dx = -dy."""

    kind = POINTWISE

    def forward(self, x: Array) -> Array:
        return self.device.map(lambda x: store(-widen(x), like=x), x)

    def backward(self, dy: Array) -> Array:
        return self.device.map(lambda dy: store(-widen(dy), like=dy), dy)


class Clamp(Op):
    """y = min(max(x, low), high);  dx = dy where low <= x <= high (bounds included), else 0.

    A bound that is a tensor gets dy where it took x's place.
    """

    kind = POINTWISE

    def forward(self, x: Array, low: Array | None, high: Array | None) -> Array:
        self.save(x, low, high)

        def limited(x: Array, low: Any, high: Any) -> Array:
            y = widen(x) if low is None else self.xp.maximum(widen(x), widen(low))
            return store(y if high is None else self.xp.minimum(y, widen(high)), like=x)

        return self.device.map(limited, x, low, high)

    def backward(self, dy: Array) -> tuple:
        like_x, like_low, like_high = self.targets

        def gradients(dy: Array, x: Array, low: Any, high: Any) -> tuple:
            x, unlimited, select = widen(x), high is None, self.device.select
            low = -float("inf") if low is None else widen(low)
            high = float("inf") if high is None else widen(high)
            dx = sum_to(select((x >= low) & (x <= high), dy), like_x) if like_x else None
            dlow = sum_to(select((x < low) & (unlimited or low < high), dy), like_low) if like_low else None
            return dx, dlow, sum_to(select((x > high) | (high < low), dy), like_high) if like_high else None

        return self.device.map(gradients, dy, *self.saved)


def floating(op: str, input: Tensor, dtype: Any) -> Tensor:
    """Integers in a floating dtype, beside which they stand in `op`. ValueError for those beyond FP16."""
    x = input.array
    y, device = quietly(to_dtype, x, dtype), backend.of(x)
    if not np.can_cast(x.dtype, dtype):
        message = f"{op}: a value of the {x.dtype} tensor does not fit FP16 (65504 is its largest; use .float())"
        device.require(device.xp.isfinite(y), ValueError, message, x)
    return Tensor(y)


def of_one_kind(given: list) -> list:
    """Integers and booleans of several dtypes: a tensor without axes takes the dtype of those with axes, unless these
    are booleans and it is not, as in PyTorch.
    """
    dtypes = {x.dtype for x in given if isinstance(x, Tensor) and x.ndim}
    if len(dtypes) != 1:
        return given
    dtype = dtypes.pop()
    takes = [isinstance(x, Tensor) and not x.ndim and (dtype.kind != "b" or x.dtype.kind == "b") for x in given]
    return [x.to(dtype) if take else x for x, take in zip(given, takes)]


def maximum(input: Tensor, other: Tensor) -> Tensor:
    """The larger of two tensors, element by element; nan where either is. Ties share the gradient."""
    return Maximum.apply(*operands("maximum", tensor("maximum", "input", input), tensor("maximum", "other", other)))


def minimum(input: Tensor, other: Tensor) -> Tensor:
    """The smaller of two tensors, element by element; nan where either is. Ties share the gradient."""
    return Minimum.apply(*operands("minimum", tensor("minimum", "input", input), tensor("minimum", "other", other)))


def clamp(input: Tensor, min: Any = None, max: Any = None) -> Tensor:
    """input limited to [min, max]; each a number, a tensor, or None (not both None)."""
    if min is None and max is None:
        raise ValueError("clamp: expected at least one of `min` and `max`, got neither")
    bounds = [bound for bound in (min, max) if bound is not None]
    given = iter(operands("clamp", tensor("clamp", "input", input), *bounds))
    return Clamp.apply(next(given), *[None if bound is None else next(given) for bound in (min, max)])


def where(condition: Tensor, input: Any, other: Any) -> Tensor:
    """input where condition (bool) holds, else other; all broadcast. input, other or both may be numbers.

    Two numbers give float32, int64 or bool, after the wider of them. TypeError if condition is not boolean.
    """
    if tensor("where", "condition", condition).dtype != bool:
        raise TypeError(f"where: expected `condition` to be bool, got {condition.dtype}; compare it with something")
    if not isinstance(input, Tensor) and not isinstance(other, Tensor):
        numbers = [constant("where", name, v, float32) for name, v in (("input", input), ("other", other))]
        input, other = Tensor(numbers).to(condition.device)
    pair = operands("where", input, other)
    broadcastable("where", condition, *[x for x in pair if isinstance(x, Tensor)])
    return Where.apply(condition, *pair)


def masked_fill(input: Tensor, mask: Tensor, value: Any) -> Tensor:
    """input with `value` (a number or a tensor without axes) where mask (bool) holds; both are broadcast.

    ValueError if the value does not fit FP16: use float("-inf") before a softmax.
    """
    tensor("masked_fill", "input", input)
    if tensor("masked_fill", "mask", mask).dtype != bool:
        raise TypeError(f"masked_fill: expected `mask` to be bool, got {mask.dtype}")
    if isinstance(value, Tensor) and value.ndim:
        raise ValueError(f"masked_fill: expected `value` to be a number, got a tensor of shape {value.shape}")
    if isinstance(value, Tensor) and not (input.dtype in FLOATING and value.dtype in FLOATING):
        value = value.item()
    if not isinstance(value, Tensor):
        value = constant("masked_fill", "value", value, input.dtype)
        value = value if input.dtype in FLOATING else input.dtype.type(value)
    broadcastable("masked_fill", mask, input)
    return Where.apply(mask, *operands("masked_fill", value, input))


def neg(input: Tensor) -> Tensor:
    """-input."""
    return Neg.apply(numeric("neg", tensor("neg", "input", input)))


def clip(input: Tensor, min: Any = None, max: Any = None) -> Tensor:
    """input limited to [min, max]: another name of `clamp`."""
    return clamp(input, min, max)
