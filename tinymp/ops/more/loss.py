"""Further losses, of log-probabilities, distances and margins; like all of them FP32 (NVG section 2.3.1)."""

from __future__ import annotations

import math
from typing import Any

from ...arguments import choice, flag, floating, name_all, number, tensor
from ...autograd import Array
from ...grad_mode import no_grad
from ...precision import reduce, store, widen
from ...tensor import Tensor
from ..loss import (
    Elementwise,
    Labelled,
    Loss,
    check_labels,
    check_reduction,
    check_rows,
    class_axis,
    elementwise,
    per_class,
)
from ..pointwise import add, broadcastable, div, mul, sub
from ..reduce import mean
from ..reduce import sum as total
from ..unary import exp, log, square
from .arithmetic import cosine_similarity, pairwise_distance, wide
from .compare import any as some
from .compare import eq, lt, ne
from .pointwise import clamp, masked_fill, minimum, neg, where
from .unary import softplus
from .views import unsqueeze

__all__ = ["cosine_embedding_loss", "gaussian_nll_loss", "hinge_embedding_loss", "huber_loss", "kl_div", "l1_loss"]
__all__ += ["margin_ranking_loss", "nll_loss", "smooth_l1_loss", "soft_margin_loss", "triplet_margin_loss"]


class NLLLoss(Labelled):
    """l = -w_t x_t, "mean" dividing by the sum of w_t;  dx_t = -w_t dl, else 0."""

    name = "nll_loss"

    def forward(self, input: Array, target: Array, weight: Array | None, *, reduction: str, ignore_index: int) -> Array:
        x = widen(input)
        t, kept, w, divisor = self.read(x, target, weight, ignore_index)
        self.save(t, kept, statistics=(w, divisor))
        return self.reduced_rows(-w * self.xp.take_along_axis(x, t, self.axis), kept, divisor)

    def backward(self, dy: Array) -> tuple:
        (t, kept), (w, divisor), like = self.saved, self.statistics, self.targets[0]
        dx = self.xp.zeros(like.shape, like.dtype)
        self.xp.put_along_axis(dx, t, store(-w * self.dl_rows(dy, kept, divisor), like), self.axis)
        return dx, None, None


class CrossEntropyWithProbabilities(Loss):
    """l = -sum_c q_c y_c with y = ln softmax(x) and q_c = w_c ((1 - s) t_c + s/C); "mean" divides by the rows.

    dx_c = dl (softmax(x)_c sum_k q_k - q_c),  dt_c = -dl (1 - s) w_c y_c.
    """

    name = "cross_entropy"

    def forward(self, x: Array, target: Array, w: Array | None, *, reduction: str, label_smoothing: float) -> Array:
        wide, self.axis = widen(x), class_axis(x)
        rows, q = x.size // x.shape[self.axis], self.q(x, target, w)
        top = reduce(wide, self.axis, "max")
        z = wide - top
        q_sum, loss = reduce(q, self.axis, "sum"), -reduce(q * z, self.axis, "sum")
        z_sum = reduce(self.xp.exp(z, out=z), self.axis, "sum")
        self.save(x, target, w, statistics=(top, z_sum, q_sum, rows))
        return self.reduced((loss + q_sum * self.xp.log(z_sum)).squeeze(self.axis), rows)

    def q(self, x: Array, target: Array, w: Array | None) -> Array:
        q = widen(target)
        if self.label_smoothing:
            q = (1 - self.label_smoothing) * q + self.label_smoothing / x.shape[self.axis]
        return q if w is None else q * per_class(w, x)

    def backward(self, dy: Array) -> tuple:
        (x, target, w), (top, z_sum, q_sum, rows) = self.saved, self.statistics
        (like_x, like_t, _), dl, dx, dt = self.targets, self.dl(dy, rows), None, None
        dl = self.xp.expand_dims(dl, self.axis) if dl.ndim else dl
        z = widen(x) - top
        if like_t:
            dt = (1 - self.label_smoothing) * dl * (self.xp.log(z_sum) - z)
            dt = store(dt if w is None else dt * per_class(w, x), like_t)
        if like_x:
            dx = store(self.xp.exp(z) * (dl * q_sum / z_sum) - dl * self.q(x, target, w), like_x)
        return dx, dt, None


class L1Loss(Elementwise):
    """f = |d| with d = x - t;  f_x = sign d, 0 at 0."""

    name = "l1_loss"
    weighted_mean = True

    def f(self, x: Array, t: Array, c: Any) -> Array:
        return self.xp.abs(x - t)

    def f_x(self, x: Array, t: Array, c: Any) -> Array:
        return self.xp.sign(x - t)


class HuberLoss(Elementwise):
    """f = d^2 / 2 where |d| <= delta, else delta (|d| - delta / 2), with d = x - t;  f_x = d within [-delta, delta].

    With c = min(|d|, delta) both branches are c (|d| - c / 2).
    """

    name = "huber_loss"

    def f(self, x: Array, t: Array, delta: Any) -> Array:
        d = self.xp.abs(x - t)
        c = self.xp.minimum(d, delta)
        return c * (d - 0.5 * c)

    def f_x(self, x: Array, t: Array, delta: Any) -> Array:
        return self.xp.clip(x - t, -delta, delta)


class SmoothL1Loss(HuberLoss):
    """Huber's f and f_x divided by delta, here called beta."""

    name = "smooth_l1_loss"

    def f(self, x: Array, t: Array, delta: Any) -> Array:
        return super().f(x, t, delta) / delta

    def f_x(self, x: Array, t: Array, delta: Any) -> Array:
        return super().f_x(x, t, delta) / delta


def nll_loss(
    input: Tensor, target: Tensor, weight: Tensor | None = None, *, ignore_index: int = -100, reduction: str = "mean"
) -> Tensor:
    """-weight[target] * input[target] along the class axis, for log-probabilities input, in FP32.

    Shapes, reductions and errors as for `cross_entropy` with class indices. FP16 log-probabilities have been rounded:
    `cross_entropy` on the logits is more exact, and faster.
    """
    op = "nll_loss"
    check_rows(op, input, weight, reduction)
    check_labels(op, input, target, ignore_index)
    return NLLLoss.apply(input, target, weight, reduction=reduction, ignore_index=ignore_index)


def l1_loss(input: Tensor, target: Tensor, *, reduction: str = "mean", weight: Tensor | None = None) -> Tensor:
    """weight |input - target| in FP32; all of one shape, else ValueError. "mean" divides by the sum of the weights.

    Its gradient where they are equal is 0. weight gets no gradient (ValueError if it requires one).
    """
    return elementwise(L1Loss, input, target, weight, reduction)


def smooth_l1_loss(input: Tensor, target: Tensor, *, reduction: str = "mean", beta: float = 1.0) -> Tensor:
    """d^2 / (2 beta) where d = |input - target| < beta, else d - beta / 2, in FP32 (Girshick, 2015).

    beta = 0 is `l1_loss`. ValueError unless both have one shape and beta is at least 0.
    """
    op = "smooth_l1_loss"
    beta = number(op, "beta", beta, 0)
    if beta == 0:
        return elementwise(L1Loss, input, target, None, reduction)
    return elementwise(SmoothL1Loss, input, target, None, reduction, delta=beta)


def huber_loss(
    input: Tensor, target: Tensor, reduction: str = "mean", delta: float = 1.0, weight: Tensor | None = None
) -> Tensor:
    """weight d^2 / 2 where d = |input - target| <= delta, else weight delta (d - delta / 2), in FP32 (Huber, 1964).

    "mean" divides by the number of elements, also with weights (as in PyTorch). weight gets no gradient. ValueError
    unless all have one shape and delta is positive.
    """
    op = "huber_loss"
    delta = number(op, "delta", delta, 0, above=True)
    return elementwise(HuberLoss, input, target, weight, reduction, delta=delta)


def kl_div(input: Tensor, target: Tensor, *, reduction: str = "mean", log_target: bool = False) -> Tensor:
    """target (ln target - input), the terms of the Kullback-Leibler divergence, for log-probabilities input; in FP32.

    target: of input's shape, probabilities, or with log_target their logarithms. A term with target 0 is 0.
    reduction: "none", "sum", "mean" over all elements, or "batchmean", the sum divided by input.shape[0]: the
    divergence itself.
    ValueError for other shapes. PyTorch broadcasts; losses here do not.
    """
    op = "kl_div"
    choice(op, "reduction", reduction, ("none", "mean", "sum", "batchmean"))
    if floating(op, "input", input).shape != floating(op, "target", target).shape:
        raise ValueError(f"{op}: expected target.shape == input.shape, got {target.shape} and {input.shape}")
    x, t = wide(input, target)
    if flag(op, "log_target", log_target):
        terms = mul(exp(t), sub(t, x))
    else:
        none = eq(t, 0)  # there the term is 0 (1 ln 1 - 0), whatever the input is
        terms = mul(t, sub(log(masked_fill(t, none, 1)), masked_fill(x, none, 0)))
    if reduction != "batchmean":
        return _reduced(op, terms, reduction)
    return div(total(terms), max(input.shape[0], 1) if input.ndim else 1)


def _inputs(op: str, *named: tuple[str, Any]) -> list[Tensor]:
    """Floating Tensors whose shapes broadcast, those of FP16 and BF16 in FP32."""
    found = [floating(op, name, x) for name, x in named]
    broadcastable(op, *found)
    return wide(*found)


def _signs(op: str, target: Any, like: Tensor) -> Tensor:
    """A target of 1 and -1 in the dtype of `like`."""
    return tensor(op, "target", target).to(like.dtype)


def _reduced(op: str, terms: Tensor, reduction: Any) -> Tensor:
    check_reduction(op, reduction, terms)
    return terms if reduction == "none" else mean(terms) if reduction == "mean" else total(terms)


def margin_ranking_loss(
    input1: Tensor, input2: Tensor, target: Tensor, margin: float = 0, *, reduction: str = "mean"
) -> Tensor:
    """max(0, -target (input1 - input2) + margin): target is 1 where input1 should be larger, -1 where input2."""
    op = "margin_ranking_loss"
    a, b = _inputs(op, ("input1", input1), ("input2", input2))
    gap = mul(_signs(op, target, a), sub(b, a))
    return _reduced(op, clamp(add(gap, number(op, "margin", margin)), 0), reduction)


def hinge_embedding_loss(input: Tensor, target: Tensor, margin: float = 1.0, *, reduction: str = "mean") -> Tensor:
    """input where target is 1, max(0, margin - input) where it is -1, and their sum elsewhere, as in PyTorch."""
    op = "hinge_embedding_loss"
    (x,) = _inputs(op, ("input", input))
    t = _signs(op, target, x)
    near, far = where(ne(t, -1), x, 0.0), where(ne(t, 1), clamp(sub(number(op, "margin", margin), x), 0), 0.0)
    return _reduced(op, add(near, far), reduction)


def soft_margin_loss(input: Tensor, target: Tensor, *, reduction: str = "mean") -> Tensor:
    """ln(1 + exp(-target input)), without overflow; target: 1 and -1."""
    (x,) = _inputs("soft_margin_loss", ("input", input))
    terms = softplus(neg(mul(_signs("soft_margin_loss", target, x), x)))
    return _reduced("soft_margin_loss", terms, reduction)


def cosine_embedding_loss(
    input1: Tensor, input2: Tensor, target: Tensor, margin: float = 0, *, reduction: str = "mean"
) -> Tensor:
    """1 - c where target is 1, max(0, c - margin) where it is -1, with the cosines c of rows (..., k); else 0."""
    op = "cosine_embedding_loss"
    a, b = _inputs(op, ("input1", input1), ("input2", input2))
    c, t = cosine_similarity(a, b, -1, 1e-6), tensor(op, "target", target)
    near, far = sub(1.0, c), clamp(sub(c, number(op, "margin", margin)), 0)
    return _reduced(op, add(where(ne(t, 1), 0.0, near), where(ne(t, -1), 0.0, far)), reduction)


def triplet_margin_loss(
    anchor: Tensor,
    positive: Tensor,
    negative: Tensor,
    margin: float = 1.0,
    p: float = 2,
    eps: float = 1e-6,
    swap: bool = False,
    *,
    reduction: str = "mean",
) -> Tensor:
    """max(0, d(anchor, positive) - d(anchor, negative) + margin), d the `pairwise_distance` with p and eps.

    swap: d(positive, negative) in place of d(anchor, negative) where it is smaller (Balntas et al., 2016).
    """
    op = "triplet_margin_loss"
    a, near, far = _inputs(op, ("anchor", anchor), ("positive", positive), ("negative", negative))
    distance = pairwise_distance(a, far, p, eps)
    if flag(op, "swap", swap):
        distance = minimum(distance, pairwise_distance(near, far, p, eps))
    gap = sub(pairwise_distance(a, near, p, eps), distance)
    return _reduced(op, clamp(add(gap, number(op, "margin", margin, 0, above=True)), 0), reduction)


def gaussian_nll_loss(
    input: Tensor, target: Tensor, var: Any, full: bool = False, eps: float = 1e-6, *, reduction: str = "mean"
) -> Tensor:
    """(ln v + (input - target)^2 / v) / 2 with v = max(var, eps); `full` adds ln(2 pi) / 2.

    var: of input's shape, or with a last axis of length 1 or none; or a number. Its gradient passes the limit eps
    unchanged, as in PyTorch. ValueError for a negative variance.
    """
    op = "gaussian_nll_loss"
    x, t = _inputs(op, ("input", input), ("target", target))
    v = var if isinstance(var, Tensor) else add(mul(x.detach(), 0), number(op, "var", var))
    (v,) = _inputs(op, ("var", v))
    v = unsqueeze(v, -1) if v.shape == x.shape[:-1] and v.shape != x.shape else v
    if v.shape not in (x.shape, (*x.shape[:-1], 1)):
        raise ValueError(f"{op}: expected var.shape == {x.shape}, with a last axis of 1, or without, got {var.shape}")
    if some(lt(v.detach(), 0)).item():
        raise ValueError(f"{op}: expected variances of at least 0")
    with no_grad():
        lifted = sub(clamp(v.detach(), number(op, "eps", eps, 0, above=True)), v.detach())
    v = add(v, lifted)
    terms = mul(add(log(v), div(square(sub(x, t)), v)), 0.5)
    terms = add(terms, 0.5 * math.log(2 * math.pi)) if flag(op, "full", full) else terms
    return _reduced(op, terms, reduction)


name_all(globals())
