"""Pointwise arithmetic: read storage, compute each element in FP32, round once (MPT section 3.3)."""

from __future__ import annotations

from typing import Any

import numpy as np

from .. import backend
from ..arguments import constant, number, tensor
from ..autograd import Array, Op, Target
from ..backend.extras import held
from ..dtypes import FLOATING, float32, require_fit
from ..events import quietly, type_name
from ..precision import MOVEMENT, POINTWISE, REDUCTION, reduce, scalar, store, to_dtype, widen
from ..tensor import Tensor

__all__ = ["add", "clamp", "clip", "div", "masked_fill", "maximum", "minimum", "mul", "neg", "pow", "sub", "where"]


def sum_to(g: Array, like: Target) -> Array:
    """The gradient g of a broadcast operand: summed in FP32 over the axes that were broadcast, then stored."""
    return store(g if g.shape == like.shape else _summed(g, like), like)


def _summed(g: Array, like: Target) -> Array:
    """g summed to the shape of like, in FP32."""
    lead = g.ndim - len(like.shape)
    axes = tuple(i for i, n in enumerate(g.shape) if i < lead or like.shape[i - lead] != n)
    return reduce(g, axes, "sum", like=like).reshape(like.shape)


def operands(op: str, *inputs: Any, stores: bool = True) -> list:
    """The operands of an op, of which some may be numbers: those are checked against FP16 (if the op `stores` them),
    and an integer or boolean tensor beside a floating one takes its dtype, as in PyTorch.
    """
    tensors = [x for x in inputs if isinstance(x, Tensor)] or [tensor(op, "input", inputs[0])]
    broadcastable(op, *tensors)
    given = [x.item() if isinstance(x, np.generic) else x for x in inputs]
    dtypes = [x.array.dtype for x in tensors]
    # integers beside a fraction become FP32, as in PyTorch
    dtype = next((d for d in dtypes if d in FLOATING), float32 if float in map(type, given) else None)
    for i, x in enumerate(given):
        if isinstance(x, Tensor):
            given[i] = x if dtype is None or x.array.dtype in FLOATING else Tensor(_floating(op, x.array, dtype))
        elif not isinstance(x, (int, float)):
            raise TypeError(f"{op}: expected Tensors and numbers, got {type_name(x)}; wrap it with tinymp.tensor(...)")
        elif dtype is not None and stores:
            require_fit(op, x, dtype)
        elif dtype is None and (stores or all(d.kind == "b" for d in dtypes)):  # NumPy would not name what was called
            kind = np.result_type(*dtypes)
            limits = np.iinfo(kind if kind.kind in "iu" else int)
            if not limits.min <= x <= limits.max:
                raise ValueError(f"{op}: expected a number that fits {limits.dtype}, got {x}")
    return given


def _floating(op: str, x: Array, dtype: Any) -> Array:
    """Integers in a floating dtype. ValueError for those beyond FP16."""
    y, device = quietly(to_dtype, x, dtype), backend.of(x)
    if not np.can_cast(x.dtype, dtype):
        message = f"{op}: a value of the {x.dtype} tensor does not fit FP16 (65504 is its largest; use .float())"
        device.require(device.xp.isfinite(y), ValueError, message, x)
    return y


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


# ------------------------------------------------------------------------------------------------------ two operands
# In backward, `like` is None for an operand that wants no gradient: a number, a constant.


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
        dx = sum_to(dz, x) if x else None
        if y is None or factor == 1:
            return dx, sum_to(dz, y) if y else None
        return dx, self.device.map(lambda dz, factor: sum_to(factor * widen(dz), y), dz, factor)


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
            dy = sum_to(-dx * (widen(x) / widen(y)), like_y) if like_y else None
            return sum_to(dx, like_x) if like_x else None, dy

        return self.device.map(gradients, dz, *self.saved)


class Pow(Op):
    """z = x^p;  dx = p x^(p-1) dz, dp = z log(x) dz, both 0 where the limit is (p = 0; x = 0 with p >= 0)."""

    kind = POINTWISE
    arguments = ("input", "exponent")

    def forward(self, x: Array, p: Array) -> Array:
        self.save(x, p)
        if stored(x, p).dtype.kind in "iub":
            message = "pow: expected exponents of at least 0 for integers; convert the input with .float()"
            self.device.require(self.xp.asarray(p) >= 0, ValueError, message)
        return self.device.map(lambda x, p: store(self.xp.power(widen(x), widen(p)), like=stored(x, p)), x, p)

    def backward(self, dz: Array) -> tuple:
        like_x, like_p = self.targets

        def gradients(dz: Array, x: Any, p: Any) -> tuple:
            xp, dz, x, p, select = self.xp, widen(dz), widen(x), widen(p), self.device.select
            dx, dp = None, None
            if like_x:
                dx = sum_to(select(xp.not_equal(p, 0), dz * p * xp.power(x, p - 1)), like_x)
            if like_p:
                inside = xp.not_equal(x, 0) | ~xp.greater_equal(p, 0)
                # rounds: whole numbers beyond 2^24; floating ones are as wide as dz
                dp = sum_to(select(inside, dz * xp.power(x, p) * xp.log(xp.asarray(x, dz.dtype))), like_p)
            return dx, dp

        return self.device.map(gradients, dz, *self.saved)


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


# ------------------------------------------------------------------------------------------------------- one operand


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


# ---------------------------------------------------------------------------------------------------------- functions


def add(input: Any, other: Any, *, alpha: float = 1) -> Tensor:
    """input + alpha * other, broadcast. One of them may be a number."""
    pair = operands("add", input, other)
    return Add.apply(*pair, alpha=_factor("add", alpha, pair))


def sub(input: Any, other: Any, *, alpha: float = 1) -> Tensor:
    """input - alpha * other, broadcast. One of them may be a number."""
    pair = operands("sub", input, other)
    if not any(isinstance(x, Tensor) and x.dtype in FLOATING for x in pair):
        pair = [numeric("sub", x) for x in pair]
    return Sub.apply(*pair, alpha=_factor("sub", alpha, pair))


def numeric(op: str, x: Any) -> Any:
    """x, if it is a number or a tensor of numbers; TypeError for truths, of which NumPy knows no difference."""
    if isinstance(x, Tensor) and x.dtype.kind == "b":
        raise TypeError(f"{op}: expected numbers, got bool; see logical_not and ne, or convert it with .int()")
    return x


def _factor(op: str, alpha: Any, pair: list) -> Any:
    if type(alpha) is int and alpha == 1:
        return 1
    dtype = stored(*pair).dtype
    factor = number(op, "alpha", alpha)  # never stored: need not fit FP16
    return factor if dtype in FLOATING else constant(op, "alpha", alpha, dtype)


def mul(input: Any, other: Any) -> Tensor:
    """input * other, broadcast. One of them may be a number; ValueError if it does not fit FP16."""
    return Mul.apply(*operands("mul", input, other))


def div(input: Any, other: Any, *, rounding_mode: str | None = None) -> Tensor:
    """input / other, broadcast. One of them may be a number. Integers divide as float32.

    rounding_mode: "floor" or "trunc" (towards 0) round the quotient to a whole number, without a gradient; TypeError
    for integers.
    """
    pair = operands("div", input, other)
    if rounding_mode is not None:
        return held("ops.pointwise.div_rounded")(pair, rounding_mode)
    return Div.apply(*[x.float() if isinstance(x, Tensor) and x.dtype not in FLOATING else x for x in pair])


def pow(input: Any, exponent: Any) -> Tensor:
    """input to the power of exponent, broadcast. One of them may be a number."""
    return Pow.apply(*operands("pow", input, exponent))


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
