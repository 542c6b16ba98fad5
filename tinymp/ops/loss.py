"""Losses: they read storage and compute, accumulate and write FP32 (NVG section 2.3.1).

The loss of FP16 tensors is FP32: a scalar, or one value per element with reduction="none". Its gradient dy is FP32 as
well and carries the loss scale (MPT section 3.2), which is multiplied in before dx is rounded to storage, once. No
policy of the core changes the accumulator of a loss; a study may (`only`). Targets and weights may be FP32 with an FP16
input, because widening the input is exact. Unlike in PyTorch, input and target do not broadcast. Losses with weights,
smoothed labels, or gradients of their targets are in more/loss.py.
"""

from __future__ import annotations

from typing import Any, ClassVar

from .. import backend
from ..arguments import choice, floating, integer, shaped, tensor
from ..autograd import Array, Op
from ..backend.extras import held
from ..dtypes import FLOATING
from ..precision import LOSS, reduce, store, widen
from ..tensor import Tensor

__all__ = ["binary_cross_entropy_with_logits", "cross_entropy", "mse_loss"]


class Loss(Op):
    """The base of all losses: the reduction of their values l_i, and dl_i = dL/dl_i."""

    kind = LOSS
    fp32: ClassVar[tuple[str, ...]] = ("target", "weight", "pos_weight")
    reduction: str

    def reduced(self, loss: Array, divisor: Any) -> Array:
        """The reduced loss. divisor: of a "mean", a count or a sum of weights."""
        loss = loss if self.reduction == "none" else total(loss)
        return loss / divisor if self.reduction == "mean" else loss

    def dl(self, dy: Array, divisor: Any) -> Array:
        """dL/dl_i in FP32; without axes if all are equal."""
        return dy / divisor if self.reduction == "mean" else dy


def total(x: Array) -> Array:
    return reduce(x, tuple(range(x.ndim)), "sum").reshape(())


# ------------------------------------------------------------------------------------------------------ over classes
# x is (N, C, d1, ...) or (C,); a row runs along the class axis C. Arrays with one value per row keep that axis, with
# length 1.


def class_axis(x: Any) -> int:
    return 1 if x.ndim > 1 else 0


def labels(classes: int, ignore_index: int) -> str:
    """The values that targets may hold, for messages."""
    return f"to be a class in [0, {classes - 1}] or ignore_index ({ignore_index})"


class Labelled(Loss):
    """A loss of rows with a label t each. Rows labelled `ignore_index` count 0, whatever their values."""

    def read(self, x: Array, target: Array, ignore_index: int) -> tuple[Array, Array]:
        """Per row: the label (0 if it is ignored), and True if it is not ignored."""
        self.axis = class_axis(x)
        classes = x.shape[self.axis]
        kept = self.xp.not_equal(target, ignore_index)
        t = self.xp.asarray(target, dtype="int64") * kept
        check_each(self.name, "target", target, (t >= 0) & (t < classes), labels(classes, ignore_index))
        return self.xp.expand_dims(t, self.axis), self.xp.expand_dims(kept, self.axis)

    def reduced_rows(self, loss: Array, kept: Array, divisor: Any) -> Array:
        return self.reduced(self.device.select(kept, loss).squeeze(self.axis), divisor)

    def dl_rows(self, dy: Array, kept: Array, divisor: Any) -> Array:
        dl = self.dl(dy, divisor)
        return self.device.select(kept, self.xp.expand_dims(dl, self.axis) if dl.ndim else dl)


class CrossEntropy(Labelled):
    """l = -y_t with y = ln softmax(x) and the label t; "mean" divides by the number of rows that are not ignored.

    dx_c = dl (softmax(x)_c - [c = t]).
    """

    def forward(self, x: Array, target: Array, *, ignore_index: int, reduction: str) -> Array:
        t, kept = self.read(x, target, ignore_index)
        wide, counted = widen(x), self.xp.asarray(kept, widen(x[:0]).dtype)  # rounds: never, 0 or 1
        top, divisor = reduce(wide, self.axis, "max"), total(counted) if reduction == "mean" else None
        z = wide - top  # at most 0: nothing overflows, and logits of 65504 keep their digits
        z_sum = reduce(self.xp.exp(z), self.axis, "sum")
        self.save(x, t, kept, statistics=(top, 1 / z_sum, divisor))
        return self.reduced_rows(self.xp.log(z_sum) - self.xp.take_along_axis(z, t, self.axis), kept, divisor)

    def backward(self, dy: Array) -> tuple:
        (x, t, kept), (top, scale, divisor) = self.saved, self.statistics
        dl = self.dl_rows(dy, kept, divisor)
        dx = self.xp.exp(widen(x) - top) * (dl * scale)
        self.xp.put_along_axis(dx, t, self.xp.take_along_axis(dx, t, self.axis) - dl, self.axis)
        # 0 times a value of an ignored row may be NaN
        return store(dx if self.device.every(kept) else self.device.select(kept, dx), like=x), None


# ------------------------------------------------------------------------------------------------------ over elements


class Elementwise(Loss):
    """l_i = f(x_i, t_i), "mean" dividing by their number;  dx = f_x dl.

    Subclasses give f and its derivative f_x on FP32 values.
    """

    f: Any
    f_x: Any

    def forward(self, x: Array, target: Array, *, reduction: str) -> Array:
        self.save(x, target)
        return self.reduced(self.device.map(lambda x, t: self.f(widen(x), widen(t)), x, target), x.size)

    def backward(self, dy: Array) -> tuple:
        def gradient(x: Array, t: Array, dl: Array, divisor: Any) -> Array:
            return store(self.f_x(widen(x), widen(t)) * (dl if divisor is None else dl / divisor), like)

        like, (x, t) = self.targets[0], self.saved
        return self.device.map(gradient, x, t, dy, x.size if self.reduction == "mean" else None), None


class MSELoss(Elementwise):
    """f = d^2 with d = x - t;  f_x = 2 d."""

    name = "mse_loss"

    def f(self, x: Array, t: Array) -> Array:
        return self.xp.square(x - t)

    def f_x(self, x: Array, t: Array) -> Array:
        return 2 * (x - t)


class BCEWithLogits(Elementwise):
    """f = (1 - t) s(x) + t s(-x) with s(x) = ln(1 + e^x); no term is negative, none cancels.

    f_x = (1 - t) / (1 + e^-x) - t / (1 + e^x).
    """

    name = "binary_cross_entropy_with_logits"

    def f(self, x: Array, t: Array) -> Array:
        negative, positive = self.terms(x)
        return (1 - t) * negative + t * positive

    def terms(self, x: Array) -> tuple[Array, Array]:
        """s(x) and s(-x)."""
        small, inf = self.xp.log1p(self.xp.exp(-self.xp.abs(x))), self.xp.inf
        return self.xp.clip(x, 0, inf) + small, small - self.xp.clip(x, -inf, 0)

    def f_x(self, x: Array, t: Array) -> Array:
        return (1 - t) / (1 + self.xp.exp(-x)) - t / (1 + self.xp.exp(x))


# ------------------------------------------------------------------------------------------------------------- checks

ALIKE = "input (losses do not broadcast, and class indices are integers)"


def check_reduction(op: str, reduction: Any, input: Tensor) -> None:
    choice(op, "reduction", reduction, ("none", "mean", "sum"))
    if reduction == "mean" and not input.numel():
        fix = 'skip the empty batch or use reduction="sum"'
        raise ValueError(
            f'{op}: expected at least one element for reduction="mean", got input of shape {input.shape}; {fix}'
        )


def check_each(op: str, name: str, x: Array, good: Array, expected: str) -> None:
    """ValueError for the first element of x that is not good; on a GPU some time later, and without its place."""
    backend.of(good).require(good, ValueError, f"{op}: expected every value of `{name}` {expected}", x)


def check_rows(op: str, input: Any, reduction: str) -> None:
    shape = floating(op, "input", input).shape
    if not shape or not shape[class_axis(input)]:
        raise ValueError(f"{op}: expected `input` to be (C,), (N, C) or (N, C, d1, ...), C > 0, got shape {shape}")
    check_reduction(op, reduction, input)


def check_labels(op: str, input: Tensor, target: Any, ignore_index: Any) -> None:
    """Check class indices against input, except for their values, which `Labelled` checks."""
    if integer(ignore_index) is None:
        raise TypeError(f"{op}: expected `ignore_index` to be an integer, got {ignore_index!r}")
    if tensor(op, "target", target).dtype.kind not in "iu":
        raise TypeError(f"{op}: expected `target` to hold class indices (integers), got {target.dtype}")
    rows = input.shape[: class_axis(input)] + input.shape[class_axis(input) + 1 :]
    if target.shape != rows:
        raise ValueError(f"{op}: expected target.shape == {rows}, a label per row of {input.shape}, got {target.shape}")


def check_alike(op: str, input: Any, target: Any, reduction: str) -> None:
    check_reduction(op, reduction, floating(op, "input", input))
    shaped(op, "target", floating(op, "target", target), input.shape, ALIKE)


def elementwise(loss: Any, input: Any, target: Any, reduction: str, **weights: Tensor | None) -> Tensor:
    check_alike(loss.name, input, target, reduction)
    alone = not target.requires_grad and all(w is None for w in weights.values())
    return (loss.apply if alone else held("ops.loss.weighted")(loss, **weights))(input, target, reduction=reduction)


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
    label_smoothing: the share of the target that is spread over all classes (Szegedy et al., 2016).
    reduction: "none" gives one loss per row. "mean" divides their sum by the weights of the target classes, without
    the ignored rows (nan where all are ignored, as in PyTorch), or by the number of rows for probabilities.

    TypeError for a target of another dtype. ValueError for a class outside [0, C) that is not ignore_index, shapes
    that do not match, label_smoothing outside [0, 1], or a "mean" over nothing.
    """
    check_rows("cross_entropy", input, reduction)
    if hard := tensor("cross_entropy", "target", target).dtype not in FLOATING:
        check_labels("cross_entropy", input, target, ignore_index)
    plain = hard and weight is None and label_smoothing == 0
    loss = CrossEntropy.apply if plain else held("ops.loss.cross_entropy_of")(weight, label_smoothing)
    return loss(input, target, ignore_index=ignore_index, reduction=reduction)


def mse_loss(input: Tensor, target: Tensor, *, reduction: str = "mean", weight: Tensor | None = None) -> Tensor:
    """weight (input - target)^2 in FP32; all of one shape, else ValueError. "mean" divides by the sum of the weights.

    weight gets no gradient (ValueError if it requires one).
    """
    return elementwise(MSELoss, input, target, reduction, weight=weight)


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
    return elementwise(BCEWithLogits, input, target, reduction, weight=weight, pos_weight=pos_weight)
