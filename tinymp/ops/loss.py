"""Losses: they read storage and compute, accumulate and write FP32 (NVG section 2.3.1).

The loss of FP16 tensors is FP32: a scalar, or one value per element with reduction="none". So is the gradient dy that
comes back to it, which carries the loss scale (MPT section 3.2): it is multiplied in before dx is rounded to storage,
once. No policy makes a loss accumulate in FP16 unless its `only` names the loss. Targets and weights may be FP32 beside
an FP16 input, since widening the input is exact. Unlike PyTorch's, these losses do not broadcast input against target.
"""

from __future__ import annotations

from typing import Any, ClassVar

from .. import backend
from ..arguments import choice, floating, integer, number, shaped, tensor
from ..autograd import Array, Op
from ..backend.extras import held
from ..dtypes import FLOATING
from ..precision import LOSS, reduce, store, widen
from ..tensor import Tensor

__all__ = ["binary_cross_entropy", "binary_cross_entropy_with_logits", "cross_entropy", "mse_loss"]


class Loss(Op):
    """What all losses share: the reduction of their values l_i, and dl_i = dL/dl_i."""

    kind = LOSS
    fp32: ClassVar[tuple[str, ...]] = ("target", "weight", "pos_weight")
    reduction: str

    def reduced(self, loss: Array, divisor: Any) -> Array:
        """divisor: of a mean: a count, or a sum of weights."""
        if self.reduction == "none":
            return loss
        return total(loss) / divisor if self.reduction == "mean" else total(loss)

    def dl(self, dy: Array, divisor: Any) -> Array:
        """In FP32; without axes where all are equal."""
        return dy / divisor if self.reduction == "mean" else dy


def total(x: Array) -> Array:
    return reduce(x, tuple(range(x.ndim)), "sum").reshape(())


# ------------------------------------------------------------------------------------------------------ over classes
# x is (N, C, d1, ...) or (C,); a row is what lies along the class axis C. Arrays with one value per row keep that axis
# with length 1. w_c is the weight of class c (1 without weights).


def class_axis(x: Any) -> int:
    return 1 if x.ndim > 1 else 0


def per_class(weight: Array, x: Array) -> Array:
    """weight (C,), widened, with axes that broadcast against x."""
    return widen(weight).reshape((-1,) + (1,) * (x.ndim - class_axis(x) - 1))


class Labelled(Loss):
    """A loss of rows with a label t each. Rows labelled `ignore_index` count 0 whatever they hold."""

    def read(self, x: Array, target: Array, weight: Array | None, ignore_index: int) -> tuple:
        """Per row: the label, which are not ignored, and its weight in the dtype of x, 0 where ignored, as is the
        label; and the divisor of a mean.
        """
        self.axis = class_axis(x)
        classes = x.shape[self.axis]
        kept = self.xp.not_equal(target, ignore_index)
        t = self.xp.asarray(target, dtype="int64") * kept
        check_each(self.name, "target", target, (t >= 0) & (t < classes), self.labels(classes, ignore_index))
        t, kept = self.xp.expand_dims(t, self.axis), self.xp.expand_dims(kept, self.axis)
        w = self.xp.asarray(kept, widen(x[:0]).dtype)  # rounds: never, 0 or 1
        if weight is not None:
            w = self.device.select(kept, self.xp.take(widen(weight), t))
        return t, kept, w, total(w) if self.reduction == "mean" else None

    def labels(self, classes: int, ignore_index: int) -> str:
        """What targets must hold, for messages."""
        return f"to be a class in [0, {classes - 1}] or ignore_index ({ignore_index})"

    def reduced_rows(self, loss: Array, kept: Array, divisor: Any) -> Array:
        return self.reduced(self.device.select(kept, loss).squeeze(self.axis), divisor)

    def dl_rows(self, dy: Array, kept: Array, divisor: Any) -> Array:
        dl = self.dl(dy, divisor)
        return self.device.select(kept, self.xp.expand_dims(dl, self.axis) if dl.ndim else dl)


class CrossEntropy(Labelled):
    """l = -(1 - s) w_t y_t - s/C sum_c w_c y_c with y = ln softmax(x) and label smoothing s; "mean" divides by sum w_t.

    dx_c = dl (q softmax(x)_c - (1 - s) w_t [c = t] - s/C w_c) with q = (1 - s) w_t + s/C sum_c w_c.
    """

    def forward(
        self, x: Array, target: Array, w: Array | None, *, ignore_index: int, reduction: str, label_smoothing: float
    ) -> Array:
        t, kept, w_t, divisor = self.read(x, target, w, ignore_index)
        self.hard, self.share = 1 - label_smoothing, label_smoothing / x.shape[self.axis]
        wide, q = widen(x), self.hard * w_t
        top = reduce(wide, self.axis, "max")
        z = wide - top  # at most 0: nothing overflows, and logits of 65504 keep their digits
        score = q * self.xp.take_along_axis(z, t, self.axis)
        if self.share:
            score += self.share * reduce(z if w is None else z * per_class(w, x), self.axis, "sum")
            q = q + (label_smoothing if w is None else self.share * total(widen(w)))
        z_sum = reduce(self.xp.exp(z), self.axis, "sum")
        self.save(x, t, w, kept, statistics=(w_t, top, q / z_sum, divisor))
        return self.reduced_rows(q * self.xp.log(z_sum) - score, kept, divisor)

    def backward(self, dy: Array) -> tuple:
        (x, t, w, kept), (w_t, top, scale, divisor) = self.saved, self.statistics
        dl = self.dl_rows(dy, kept, divisor)
        dx = self.xp.exp(widen(x) - top) * (dl * scale)
        if self.share:
            dx -= dl * self.share if w is None else dl * self.share * per_class(w, x)
        self.xp.put_along_axis(dx, t, self.xp.take_along_axis(dx, t, self.axis) - dl * (self.hard * w_t), self.axis)
        dx = store(dx, like=x)
        if not self.device.every(kept):
            self.xp.moveaxis(dx, self.axis, -1)[~kept.squeeze(self.axis)] = 0  # 0 times what they hold may be NaN
        return dx, None, None


# ------------------------------------------------------------------------------------------------------ over elements


class Elementwise(Loss):
    """l_i = w_i f(x_i, t_i), "mean" dividing by their number;  dx = w f_x dl, dt = w f_t dl.

    Subclasses give f and its derivatives f_x and f_t on FP32 values; f_t = -f_x where f depends on x - t. All take x, t
    and c, what else a loss depends on: a pos_weight, or 1; Huber's delta.
    """

    weighted_mean: ClassVar[bool] = False  # whether a mean divides by sum w_i
    weight_broadcasts: ClassVar[bool] = False  # whether weights may be smaller than input

    f: Any
    f_x: Any

    def forward(self, x: Array, target: Array, w: Array | None, pos_weight: Array | None, **options: Any) -> Array:
        divisor = x.size if w is None or not self.weighted_mean else total(widen(w))
        self.save(x, target, w, options.get("delta", pos_weight), statistics=(divisor,))

        def losses(x: Array, t: Array, w: Array | None, c: Any) -> Array:
            loss = self.f(widen(x), widen(t), 1 if c is None else widen(c))
            return loss if w is None else loss * widen(w)

        return self.reduced(self.device.map(losses, *self.saved), divisor)

    def backward(self, dy: Array) -> tuple:
        like_x, like_t, *_ = self.targets

        def gradients(x: Array, t: Array, w: Array | None, c: Any, dl: Array, divisor: Any) -> tuple:
            dl = dl if divisor is None else dl / divisor
            dl, xtc = dl if w is None else dl * widen(w), (widen(x), widen(t), 1 if c is None else widen(c))
            dx = store(self.f_x(*xtc) * dl, like_x) if like_x else None
            return dx, store(self.f_t(*xtc) * dl, like_t) if like_t else None

        (divisor,) = self.statistics if self.reduction == "mean" else (None,)
        return *self.device.map(gradients, *self.saved, dy, divisor), None, None

    def f_t(self, x: Array, t: Array, c: Any) -> Array:
        return -self.f_x(x, t, c)


class MSELoss(Elementwise):
    """f = d^2 with d = x - t;  f_x = 2 d."""

    name = "mse_loss"
    weighted_mean = True

    def f(self, x: Array, t: Array, c: Any) -> Array:
        return self.xp.square(x - t)

    def f_x(self, x: Array, t: Array, c: Any) -> Array:
        return 2 * (x - t)


class BCEWithLogits(Elementwise):
    """f = (1 - t) s(x) + c t s(-x) with s(x) = ln(1 + e^x) and c the pos_weight; no term is negative, none cancels.

    f_x = (1 - t) / (1 + e^-x) - c t / (1 + e^x),  f_t = c s(-x) - s(x).
    """

    name = "binary_cross_entropy_with_logits"
    weight_broadcasts = True

    def terms(self, x: Array, c: Any) -> tuple[Array, Array]:
        """s(x) and c s(-x)."""
        small = self.xp.log1p(self.xp.exp(-self.xp.abs(x)))
        inf = self.xp.inf
        return self.xp.clip(x, 0, inf) + small, c * (small - self.xp.clip(x, -inf, 0))

    def f(self, x: Array, t: Array, c: Any) -> Array:
        negative, positive = self.terms(x, c)
        return (1 - t) * negative + t * positive

    def f_x(self, x: Array, t: Array, c: Any) -> Array:
        return (1 - t) / (1 + self.xp.exp(-x)) - c * t / (1 + self.xp.exp(x))

    def f_t(self, x: Array, t: Array, c: Any) -> Array:
        negative, positive = self.terms(x, c)
        return positive - negative


class BCE(Elementwise):
    """f = -t ln x - (1 - t) ln(1 - x), both logarithms at least -100.

    f_x = (x - t) / max(x (1 - x), 1e-12),  f_t = ln(1 - x) - ln x (not limited, as in PyTorch).
    """

    name = "binary_cross_entropy"
    weight_broadcasts = True

    def f(self, x: Array, t: Array, c: Any) -> Array:
        log, log_not = self.xp.log(x), self.xp.log1p(-x)
        return (t - 1) * self.xp.maximum(log_not, -100) - t * self.xp.maximum(log, -100)

    def f_x(self, x: Array, t: Array, c: Any) -> Array:
        return (x - t) / self.xp.maximum(x * (1 - x), 1e-12)

    def f_t(self, x: Array, t: Array, c: Any) -> Array:
        return self.xp.log1p(-x) - self.xp.log(x)


# ------------------------------------------------------------------------------------------------------------- checks

ALIKE = "input (losses do not broadcast, and class indices are integers)"


def check_reduction(op: str, reduction: Any, input: Tensor) -> None:
    choice(op, "reduction", reduction, ("none", "mean", "sum"))
    if reduction == "mean" and not input.numel():
        raise ValueError(
            f'{op}: expected at least one element for reduction="mean", got input of shape {input.shape}; skip the '
            'empty batch or use reduction="sum"'
        )


def check_each(op: str, name: str, x: Array, good: Array, expected: str) -> None:
    """ValueError for the first element of x that is not good; on a GPU some time later, and without its place."""
    backend.of(good).require(good, ValueError, f"{op}: expected every value of `{name}` {expected}", x)


def _check_constant(op: str, name: str, weight: Any) -> None:
    """Check that weight is a floating Tensor that wants no gradient."""
    if floating(op, name, weight).requires_grad:
        raise ValueError(f"{op}: a gradient for `{name}` is not supported; pass {name}.detach()")


def check_rows(op: str, input: Any, weight: Any, reduction: str) -> None:
    """Check that input has classes, and weight a value for each of them."""
    shape = floating(op, "input", input).shape
    if not shape or not shape[class_axis(input)]:
        raise ValueError(f"{op}: expected `input` to be (C,), (N, C) or (N, C, d1, ...), C > 0, got shape {shape}")
    if weight is not None:
        _check_constant(op, "weight", weight)
        shaped(op, "weight", weight, (shape[class_axis(input)],), "the classes")
    check_reduction(op, reduction, input)


def check_labels(op: str, input: Tensor, target: Any, ignore_index: Any) -> None:
    """Check class indices against input, except for their values, which `Labelled` checks."""
    if integer(ignore_index) is None or not -(2**63) <= ignore_index < 2**63:
        raise TypeError(f"{op}: expected `ignore_index` to be an integer that fits int64, got {ignore_index!r}")
    if tensor(op, "target", target).dtype.kind not in "iu":
        raise TypeError(f"{op}: expected `target` to hold class indices (integers), got {target.dtype}")
    axis = class_axis(input)
    rows = input.shape[:axis] + input.shape[axis + 1 :]
    if target.shape != rows:
        raise ValueError(f"{op}: expected target.shape == {rows}, a label per row of {input.shape}, got {target.shape}")


def elementwise(
    loss: Any, input: Any, target: Any, weight: Any, reduction: str, pos_weight: Any = None, **constants: float
) -> Tensor:
    op = loss.name
    check_reduction(op, reduction, floating(op, "input", input))
    shaped(op, "target", floating(op, "target", target), input.shape, ALIKE)
    for name, w in (("weight", weight), ("pos_weight", pos_weight)):
        if w is None:
            continue
        _check_constant(op, name, w)
        broadcasts = w.ndim <= input.ndim and all(n in (1, m) for n, m in zip(w.shape[::-1], input.shape[::-1]))
        if w.shape != input.shape and not (broadcasts and loss.weight_broadcasts):
            how = "broadcast to" if loss.weight_broadcasts else "equal"
            raise ValueError(f"{op}: expected {name}.shape to {how} input.shape {input.shape}, got {w.shape}")
    return loss.apply(input, target, weight, pos_weight, reduction=reduction, **constants)


# ---------------------------------------------------------------------------------------------------------- functions


def cross_entropy(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    *,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Tensor:
    """The cross entropy between target and softmax(input) over the class axis (1, or 0 of a vector), in FP32.

    input: logits (C,), (N, C) or (N, C, d1, ...). target: class indices (integers; input's shape without C), or class
    probabilities (floating; input's shape; they need not sum to 1). weight: (C,), a factor for each class.
    label_smoothing: how much of the target is spread over all classes (Szegedy et al., 2016).
    reduction: "none" gives one loss per row. "mean" divides their sum by the weights of the target classes, without
    the ignored rows (nan where all are ignored, as in PyTorch), or by the number of rows for probabilities.

    TypeError for a target of another dtype. ValueError for a class outside [0, C) that is not ignore_index, shapes
    that do not match, label_smoothing outside [0, 1], or a "mean" over nothing.
    """
    op = "cross_entropy"
    check_rows(op, input, weight, reduction)
    options = {"reduction": reduction, "label_smoothing": number(op, "label_smoothing", label_smoothing, 0, 1)}
    if tensor(op, "target", target).dtype not in FLOATING:
        check_labels(op, input, target, ignore_index)
        return CrossEntropy.apply(input, target, weight, ignore_index=ignore_index, **options)
    shaped(op, "target", floating(op, "target", target), input.shape, ALIKE)
    if ignore_index != -100:
        raise ValueError(f"{op}: expected no ignore_index beside class probabilities, got {ignore_index!r}")
    return held("ops.loss.CrossEntropyWithProbabilities").apply(input, target, weight, **options)


def mse_loss(input: Tensor, target: Tensor, *, reduction: str = "mean", weight: Tensor | None = None) -> Tensor:
    """weight (input - target)^2 in FP32; all of one shape, else ValueError. "mean" divides by the sum of the weights.

    weight gets no gradient (ValueError if it requires one).
    """
    return elementwise(MSELoss, input, target, weight, reduction)


def binary_cross_entropy_with_logits(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    *,
    reduction: str = "mean",
    pos_weight: Tensor | None = None,
) -> Tensor:
    """-weight [pos_weight target ln p + (1 - target) ln(1 - p)] with p = sigmoid(input), in FP32 without overflow.

    target: input's shape. weight and pos_weight (the factor of positive examples) broadcast to it; neither gets a
    gradient. "mean" divides by the number of elements. ValueError for other shapes.
    """
    return elementwise(BCEWithLogits, input, target, weight, reduction, pos_weight)


def binary_cross_entropy(
    input: Tensor, target: Tensor, weight: Tensor | None = None, *, reduction: str = "mean"
) -> Tensor:
    """-weight [target ln input + (1 - target) ln(1 - input)] in FP32, the logarithms limited to -100 from below.

    input: probabilities. FP16 has none between 0.9995 and 1, and the gradient at 0 and 1 (up to 1e12) overflows it:
    prefer `binary_cross_entropy_with_logits`. Shapes and weight as there. ValueError for values of input or target
    outside [0, 1], or nan.
    """
    op = "binary_cross_entropy"
    for name, x in (("input", input), ("target", target)):
        p = widen(floating(op, name, x).array)
        check_each(op, name, x.array, (p >= 0) & (p <= 1), "in [0, 1]")
    return elementwise(BCE, input, target, weight, reduction)
