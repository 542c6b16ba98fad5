"""Further losses, of log-probabilities, distances and margins; like all of them FP32 (NVG section 2.3.1)."""

from __future__ import annotations

import math
from typing import Any

from ...arguments import choice, flag, floating, number, shaped, tensor
from ...autograd import Array, no_grad
from ...dtypes import FLOATING
from ...precision import reduce, store, widen
from ...tensor import Tensor
from .. import loss as core
from ..index import getitem
from ..loss import Labelled, Loss, MSELoss, check_labels, check_reduction, class_axis
from ..pointwise import add, broadcastable, div, mul, sub
from ..reduce import sum as total
from ..shape import reshape
from ..unary import abs, exp, log, square
from .arithmetic import cosine_similarity, pairwise_distance, wide
from .compare import any as some
from .compare import eq, logical_not, lt, ne
from .index import gather
from .log_softmax import log_softmax
from .pointwise import clamp, masked_fill, minimum, neg, where
from .unary import logsigmoid, softplus
from .views import squeeze, unsqueeze

__all__ = ["cosine_embedding_loss", "gaussian_nll_loss", "hinge_embedding_loss", "huber_loss", "kl_div", "l1_loss"]
__all__ += ["margin_ranking_loss", "nll_loss", "smooth_l1_loss", "soft_margin_loss", "triplet_margin_loss"]
__all__ += ["binary_cross_entropy"]


def per_class(weight: Array, x: Array) -> Array:
    """weight (C,), widened, with axes that broadcast against x."""
    return widen(weight).reshape((-1,) + (1,) * (x.ndim - class_axis(x) - 1))


class WeightedCrossEntropy(Labelled):
    """`CrossEntropy` with weights and smoothed labels.

    l = -(1 - s) w_t y_t - s/C sum_c w_c y_c with y = ln softmax(x) and label smoothing s; "mean" divides by sum w_t.

    dx_c = dl (q softmax(x)_c - (1 - s) w_t [c = t] - s/C w_c) with q = (1 - s) w_t + s/C sum_c w_c.
    """

    name = "cross_entropy"

    def forward(
        self, x: Array, target: Array, w: Array | None, *, ignore_index: int, reduction: str, label_smoothing: float
    ) -> Array:
        t, kept = self.read(x, target, ignore_index)
        w_t = self.xp.asarray(kept, widen(x[:0]).dtype)  # rounds: never, 0 or 1
        if w is not None:
            w_t = self.device.select(kept, self.xp.take(widen(w), t))
        divisor = core.total(w_t) if reduction == "mean" else None
        self.hard, self.share = 1 - label_smoothing, label_smoothing / x.shape[self.axis]
        wide, q = widen(x), self.hard * w_t
        top = reduce(wide, self.axis, "max")
        z = wide - top  # at most 0: nothing overflows, and logits of 65504 keep their digits
        score = q * self.xp.take_along_axis(z, t, self.axis)
        if self.share:
            score += self.share * reduce(z if w is None else z * per_class(w, x), self.axis, "sum")
            q = q + (label_smoothing if w is None else self.share * core.total(widen(w)))
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


class Reduced(Loss):
    """The sum of a loss's terms, or that divided by a divisor (for "mean"), or the terms themselves.

    What makes a loss of small ops: a module that is kept in another policy leaves it in FP32.
    """

    name = "loss"

    def forward(self, terms: Array, divisor: Any, *, reduction: str) -> Array:
        self.divisor = divisor
        return self.reduced(terms, divisor)

    def backward(self, dy: Array) -> tuple:
        return self.xp.broadcast_to(self.dl(dy, self.divisor), self.targets[0].shape), None


class BCE(Loss):
    """l = -t ln x - (1 - t) ln(1 - x), both logarithms at least -100; of FP32 x and t.

    dx = dl (x - t) / max(x (1 - x), 1e-12),  dt = dl (ln(1 - x) - ln x) (not limited, as in PyTorch).
    """

    name = "binary_cross_entropy"

    def forward(self, x: Array, target: Array) -> Array:
        self.save(x, target)
        log, log_not = self.xp.log(x), self.xp.log1p(-x)
        return (target - 1) * self.xp.maximum(log_not, -100) - target * self.xp.maximum(log, -100)

    def backward(self, dy: Array) -> tuple:
        (x, t), (like_x, like_t) = self.saved, self.targets
        dx = dy * ((x - t) / self.xp.maximum(x * (1 - x), 1e-12)) if like_x else None
        return dx, dy * (self.xp.log1p(-x) - self.xp.log(x)) if like_t else None


def _check_constant(op: str, name: str, weight: Any) -> None:
    """Check that weight is a floating Tensor that wants no gradient."""
    if floating(op, name, weight).requires_grad:
        raise ValueError(f"{op}: a gradient for `{name}` is not supported; pass {name}.detach()")


def _weight(op: str, name: str, weight: Any, input: Tensor, broadcasts: bool = False) -> Tensor:
    """The weight in FP32; ValueError unless it has the shape of input, or broadcasts to it where it may."""
    _check_constant(op, name, weight)
    fits = weight.ndim <= input.ndim and all(n in (1, m) for n, m in zip(weight.shape[::-1], input.shape[::-1]))
    if weight.shape != input.shape and not (fits and broadcasts):
        how = "broadcast to" if broadcasts else "equal"
        raise ValueError(f"{op}: expected {name}.shape to {how} input.shape {input.shape}, got {weight.shape}")
    return wide(weight)[0]


def weighted(loss: Any, weight: Any = None, pos_weight: Any = None) -> Any:
    """`mse_loss` or `binary_cross_entropy_with_logits` with weights, or with gradients of targets."""
    op = loss.name

    def apply(input: Tensor, target: Tensor, *, reduction: str) -> Tensor:
        x, t = wide(input, target)
        if loss is MSELoss:
            return _weighed(op, square(sub(x, t)), input, weight, reduction, "weights")
        positive = t if pos_weight is None else mul(_weight(op, "pos_weight", pos_weight, input, True), t)
        # -logsigmoid(x) = ln(1 + e^-x): no term is negative, none cancels
        terms = neg(add(mul(sub(1.0, t), logsigmoid(neg(x))), mul(positive, logsigmoid(x))))
        return _weighed(op, terms, input, weight, reduction, "broadcasts")

    return apply


def _weighed(op: str, terms: Tensor, input: Tensor, weight: Any, reduction: str, how: str = "") -> Tensor:
    """The reduction of terms times a weight. how: "weights", a mean divides by their sum; "broadcasts", they may."""
    if weight is None:
        return _reduced(op, terms, reduction)
    w = _weight(op, "weight", weight, input, how == "broadcasts")
    if how == "weights" and reduction == "mean":
        return _reduced(op, mul(terms, w), reduction, total(w))
    return _reduced(op, mul(terms, w), reduction)


def _distance(op: str, input: Any, target: Any, reduction: str) -> Tensor:
    """|input - target| in FP32."""
    core.check_alike(op, input, target, reduction)
    return abs(sub(*wide(input, target)))


def _huber(distance: Tensor, delta: float) -> Tensor:
    """d^2 / 2 up to delta, then delta (d - delta / 2): with c = min(d, delta) both are c (d - c / 2)."""
    c = clamp(distance, max=delta)
    return mul(c, sub(distance, mul(c, 0.5)))


def _check_class_weights(op: str, input: Tensor, weight: Any) -> None:
    if weight is not None:
        _check_constant(op, "weight", weight)
        shaped(op, "weight", weight, (input.shape[class_axis(input)],), "the classes")


def cross_entropy_of(weight: Any, label_smoothing: Any) -> Any:
    """`cross_entropy` with weights, smoothed labels, or class probabilities as targets: a function of the rest."""
    op = "cross_entropy"
    smoothing = number(op, "label_smoothing", label_smoothing, 0, 1)

    def loss(input: Tensor, target: Tensor, *, ignore_index: int, reduction: str) -> Tensor:
        _check_class_weights(op, input, weight)
        options: Any = {"reduction": reduction, "label_smoothing": smoothing}
        if target.dtype not in FLOATING:
            return WeightedCrossEntropy.apply(input, target, weight, ignore_index=ignore_index, **options)
        shaped(op, "target", target, input.shape, core.ALIKE)
        if ignore_index != -100:
            raise ValueError(f"{op}: expected no ignore_index beside class probabilities, got {ignore_index!r}")
        (x, q), d = wide(input, target), class_axis(input)
        q = add(mul(q, 1 - smoothing), smoothing / x.shape[d]) if smoothing else q
        q = q if weight is None else mul(q, reshape(wide(weight)[0], (-1,) + (1,) * (x.ndim - d - 1)))
        return _reduced(op, neg(total(mul(q, log_softmax(x, d)), d)), reduction)

    return loss


def nll_loss(
    input: Tensor, target: Tensor, weight: Tensor | None = None, *, ignore_index: int = -100, reduction: str = "mean"
) -> Tensor:
    """-weight[target] * input[target] along the class axis, for log-probabilities input, in FP32.

    Shapes, reductions and errors as for `cross_entropy` with class indices. FP16 log-probabilities have been rounded:
    `cross_entropy` on the logits is more exact, and faster.
    """
    op = "nll_loss"
    core.check_rows(op, input, reduction)
    check_labels(op, input, target, ignore_index)
    _check_class_weights(op, input, weight)
    (x,), d, classes = wide(input), class_axis(input), input.shape[class_axis(input)]
    kept = ne(target, ignore_index)
    good = ((target.array >= 0) & (target.array < classes)) | ~kept.array
    core.check_each(op, "target", target.array, good, core.labels(classes, ignore_index))
    ignored, t = logical_not(kept), where(kept, target, 0)
    w = kept.to(x.dtype) if weight is None else masked_fill(getitem(wide(weight)[0], t), ignored, 0)
    terms = neg(mul(masked_fill(squeeze(gather(x, d, unsqueeze(t, d)), d), ignored, 0), w))
    return _reduced(op, terms, reduction, total(w) if reduction == "mean" else None)


def l1_loss(input: Tensor, target: Tensor, *, reduction: str = "mean", weight: Tensor | None = None) -> Tensor:
    """weight |input - target| in FP32; all of one shape, else ValueError. "mean" divides by the sum of the weights.

    Its gradient where they are equal is 0. weight gets no gradient (ValueError if it requires one).
    """
    return _weighed("l1_loss", _distance("l1_loss", input, target, reduction), input, weight, reduction, "weights")


def smooth_l1_loss(input: Tensor, target: Tensor, *, reduction: str = "mean", beta: float = 1.0) -> Tensor:
    """d^2 / (2 beta) where d = |input - target| < beta, else d - beta / 2, in FP32 (Girshick, 2015).

    beta = 0 is `l1_loss`. ValueError unless both have one shape and beta is at least 0.
    """
    op = "smooth_l1_loss"
    beta = number(op, "beta", beta, 0)
    d = _distance(op, input, target, reduction)
    return _reduced(op, d if beta == 0 else div(_huber(d, beta), beta), reduction)


def huber_loss(
    input: Tensor, target: Tensor, reduction: str = "mean", delta: float = 1.0, weight: Tensor | None = None
) -> Tensor:
    """weight d^2 / 2 where d = |input - target| <= delta, else weight delta (d - delta / 2), in FP32 (Huber, 1964).

    "mean" divides by the number of elements, also with weights (as in PyTorch). weight gets no gradient. ValueError
    unless all have one shape and delta is positive.
    """
    op = "huber_loss"
    delta = number(op, "delta", delta, 0, above=True)
    return _weighed(op, _huber(_distance(op, input, target, reduction), delta), input, weight, reduction)


def binary_cross_entropy(
    input: Tensor, target: Tensor, weight: Tensor | None = None, *, reduction: str = "mean"
) -> Tensor:
    """-weight [target ln input + (1 - target) ln(1 - input)] in FP32, the logarithms limited to -100 from below.

    input: probabilities. FP16 has none between 0.9995 and 1, and gradients at 0 and 1 (up to 1e12) overflow it: prefer
    `binary_cross_entropy_with_logits`; shapes and weight as there. ValueError for input or target outside [0, 1], or
    nan.
    """
    op = "binary_cross_entropy"
    for name, x in (("input", input), ("target", target)):
        p = widen(floating(op, name, x).array)
        core.check_each(op, name, x.array, (p >= 0) & (p <= 1), "in [0, 1]")
    core.check_alike(op, input, target, reduction)
    return _weighed(op, BCE.apply(*wide(input, target)), input, weight, reduction, "broadcasts")


def kl_div(input: Tensor, target: Tensor, *, reduction: str = "mean", log_target: bool = False) -> Tensor:
    """target (ln target - input), the terms of the Kullback-Leibler divergence, for log-probabilities input; in FP32.

    target: of input's shape, probabilities, or with log_target their logarithms. A term with target 0 is 0. reduction:
    "batchmean", the sum divided by input.shape[0], is the divergence. ValueError for other shapes: losses do not
    broadcast.
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
    if reduction == "batchmean":
        return Reduced.apply(terms, max(input.shape[0], 1) if input.ndim else 1, reduction="mean")
    return _reduced(op, terms, reduction)


def _inputs(op: str, *named: tuple[str, Any]) -> list[Tensor]:
    """Floating Tensors whose shapes broadcast, those of FP16 and BF16 in FP32."""
    found = [floating(op, name, x) for name, x in named]
    broadcastable(op, *found)
    return wide(*found)


def _signs(op: str, target: Any, like: Tensor) -> Tensor:
    """A target of 1 and -1 in the dtype of `like`."""
    return tensor(op, "target", target).to(like.dtype)


def _reduced(op: str, terms: Tensor, reduction: Any, divisor: Tensor | None = None) -> Tensor:
    """divisor: of a mean; by default the number of terms."""
    check_reduction(op, reduction, terms)
    return Reduced.apply(terms, terms.numel() if divisor is None else divisor, reduction=reduction)


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
