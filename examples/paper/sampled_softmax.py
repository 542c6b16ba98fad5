"""Sampled softmax: training a softmax over a large vocabulary on the target and a sample of the other classes.

Jean et al. (2015) and Jozefowicz et al. (2016); the language model of MPT section 4.5 is trained so. For evaluation
take the full softmax: `cross_entropy(linear(hidden, weight, bias), target)`.

The two ops here are added from outside the package: each is a class with its formula, forward and backward.
"""

from __future__ import annotations

from math import inf, log, prod
from typing import NamedTuple

import numpy as np

from tinymp import Tensor, backend, nn, ops
from tinymp.arguments import floating, integers, named, tensor
from tinymp.autograd import Array, Op
from tinymp.dtypes import float64
from tinymp.ops.embedding import sum_rows
from tinymp.ops.loss import Loss, check_each, check_reduction
from tinymp.precision import DOT, FP32, gemm, reduce, store, unrounded, widen


class Sample(NamedTuple):
    """What a sampler gives to `sampled_softmax_loss`.

    classes   (n,), int64: the classes drawn, none of them twice
    expected  (V,), FP32: how often each class of the vocabulary was to be expected among them, at most 1
    """

    classes: Tensor
    expected: Tensor


def log_uniform_sample(n: int, classes: int, *, device: str | None = None) -> Sample:
    """n distinct classes: those that come first when classes are drawn with P(c) = ln((c + 2) / (c + 1)) / ln(V + 1).

    That is nearly Zipf's law, for V = `classes` words numbered from the most frequent to the rarest, and the
    distribution of TensorFlow's log_uniform_candidate_sampler (unique=True), which draws until it has n.

    Here the draws are a race. If they come at the times of a Poisson process of rate 1, then class c comes first at a
    time of its own, exponential with rate P(c), independent of the others, and the n earliest are the sample. Before
    T, the time of the next class after them, c comes with probability 1 - e^(-P(c) T): that is `expected`
    (TensorFlow's is 1 - (1 - P)^draws). With n == V all of it is 1. The sum of f(c) / expected(c) over the sample has
    the expectation of the sum of f over all classes (Duffield et al., 2007).

    The classes are in ascending order. device: where the sample lies, by default that of `mp.device`; a GPU draws
    there, and nothing waits for it. ValueError unless 1 <= n <= classes.
    """
    if not 1 <= n <= classes:
        raise ValueError(f"log_uniform_sample: expected `n` in [1, {classes}], the number of classes, got {n}")
    where = backend.default() if device is None else backend.get(device)
    xp, dtype = where.xp, FP32.storage
    if n == classes:
        return Sample(Tensor(xp.arange(classes)), Tensor(xp.ones(classes, dtype)))
    p = xp.log1p(1 / xp.arange(1, classes + 1, dtype=dtype)) / log(classes + 1)
    u = where.uniform((classes,))
    with np.errstate(divide="ignore"):  # u may round to 1: a time that never comes
        time = -xp.log1p(-(u + 2.0**-25)) / p  # u is a multiple of 2^-24: from the middle of its interval
    order = smallest(time, n + 1) if where is backend.cpu else xp.argsort(time, kind="stable")
    return Sample(Tensor(xp.sort(order[:n])), Tensor(-xp.expm1(-p * time[order[n : n + 1]])))


class SampledLogits(Op):
    """t_n = x_n w_j + b_j for each row's target j, and s_nc = x_n w_c + b_c for the sampled classes c.

    dx_n = dt_n w_j + sum_c ds_nc w_c;  row j of dw gets dt_n x_n, row c sum_n ds_nc x_n, and db alike: added up in FP32
    and rounded once. With `sparse`, dw and db hold only these rows.
    """

    kind = DOT
    arguments = ("hidden", "weight", "bias", "target", "sampled")

    def forward(self, x: Array, w: Array, b: Array | None, target: Array, sampled: Array, *, sparse: bool) -> tuple:
        self.save(x, w, target, sampled)
        b_target, b_sampled = (None, None) if b is None else (b[target][:, None, None], b[sampled])
        t = gemm(x[:, None], w[target][:, :, None], b_target)
        return t.reshape(-1), gemm(x, w[sampled].T, b_sampled)

    def backward(self, dt: Array, ds: Array) -> tuple:
        (x, w, target, sampled), (like_x, like_w, like_b, *_), xp = self.saved, self.targets, self.xp
        dt, dx, dw, db = widen(dt)[:, None], None, None, None
        index = xp.concatenate([target, sampled])
        if like_x:
            dx = store(gemm(ds, w[sampled], acc=dt * widen(w[target]), wide=True), like_x)
        if like_w:
            rows = xp.concatenate([dt * widen(x), gemm(ds.T, x, wide=True)])
            dw = sum_rows(index, rows, like_w, self.sparse)
        if like_b:
            rows = xp.concatenate([dt.reshape(-1), reduce(unrounded(ds), 0, "sum").reshape(-1)])
            db = sum_rows(index, rows, like_b, self.sparse)
        return dx, dw, db, None, None


class SampledSoftmaxLoss(Loss):
    """l = ln(e^t + sum_c e^s_c) - t with logits t, s_c less ln of how often their class was expected in the sample.

    A sampled class that is the row's target (an accidental hit) is left out. dt = -dl sum_c p_c, ds_c = dl p_c with
    p_c = e^(s_c - t - l). All in FP32, the logarithms too.
    """

    arguments = ("target_logits", "sampled_logits", "target", "sampled", "expected")
    fp32 = ("expected",)

    def forward(self, t: Array, s: Array, target: Array, sampled: Array, expected: Array, *, reduction: str) -> Array:
        log_q = [self.xp.log(widen(expected[index])) for index in (target[:, None], sampled)]
        self.save(t, s, target, sampled, statistics=tuple(log_q))
        own, others = self.corrected()
        top = self.xp.maximum(own, reduce(others, 1, "max"))
        own -= top
        z = reduce(self.xp.exp(others - top, out=others), 1, "sum")  # rounds: never, FP32 in an FP32 buffer
        total = z + self.xp.exp(own)
        self.statistics = (*log_q, top, z, total)
        return self.reduced((self.xp.log(total) - own).reshape(-1), len(t))

    def corrected(self) -> tuple[Array, Array]:
        """The corrected logits of the target (N, 1) and of the sampled classes (N, n), -inf at accidental hits."""
        (t, s, target, sampled), (log_q_target, log_q_sampled, *_) = self.saved, self.statistics
        others = widen(s) - log_q_sampled
        self.xp.copyto(others, -inf, where=target[:, None] == sampled)  # rounds: never, -infinity in an FP32 buffer
        return widen(t)[:, None] - log_q_target, others

    def backward(self, dy: Array) -> tuple:
        (t, s, *_), (_, _, top, z, total) = self.saved, self.statistics
        dl = self.dl(dy, len(t))
        dl = (dl[:, None] if dl.ndim else dl) / total
        _, p = self.corrected()
        p -= top
        self.xp.exp(p, out=p)
        p *= dl
        return store((-z * dl).reshape(-1), t), store(p, s), None, None, None


def sampled_softmax_loss(
    hidden: Tensor,
    target: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    negatives: int,
    *,
    sampled: Sample | None = None,
    sparse: bool = True,
    reduction: str = "mean",
) -> Tensor:
    """The cross entropy of `target` under a softmax over the target and `negatives` sampled classes, in FP32.

    hidden: (N, D), target: (N,), integers in [0, V), weight: (V, D), bias: (V,) or None. All rows share one sample. The
    logits hidden @ weight[c] + bias[c], stored like all activations, are corrected by -ln(expected(c)), so that
    training moves towards the full softmax; samples equal to a row's target are left out. With negatives == V it is the
    full softmax.

    sampled: what to use instead of `log_uniform_sample(negatives, V)`: classes (negatives,) and expected (V,).
    sparse: the gradients of weight and bias are SparseRows, of the targets and the sample, where these are leaves.
    reduction: "mean" (over rows), "sum" or "none" (one loss per row).

    ValueError for shapes that do not match, a target outside [0, V), more negatives than classes, or a "mean" over
    nothing.
    """
    op = "sampled_softmax_loss"
    x, w = floating(op, "hidden", hidden), floating(op, "weight", weight)
    if x.ndim != 2 or w.ndim != 2 or x.shape[1] != w.shape[1] or tensor(op, "target", target).shape != x.shape[:1]:
        raise ValueError(
            f"{op}: expected `hidden` (N, D), `weight` (V, D) and `target` (N,), got {x.shape}, {w.shape} and "
            f"{target.shape}; flatten the axes of time and batch first"
        )
    check_reduction(op, reduction, x)
    classes, labels = w.shape[0], target.array
    check_each(op, "target", labels, (labels >= 0) & (labels < classes), f"to be a class in [0, {classes - 1}]")
    if sampled is None:
        sampled = log_uniform_sample(negatives, classes, device=x.device)
    index = target.to(np.int64), sampled.classes.to(np.int64)
    expected = sampled.expected.double() if x.dtype == float64 else sampled.expected
    logits = SampledLogits.apply(x, w, bias, *index, sparse=sparse)
    return SampledSoftmaxLoss.apply(*logits, *index, expected, reduction=reduction)


def smallest(x: Array, n: int) -> Array:
    """The places of the n smallest elements of the vector x, in rising order, of equal ones the first."""
    some = np.flatnonzero(x <= np.partition(x, n - 1)[n - 1]) if n < x.size else np.arange(x.size)
    return some[np.argsort(x[some], kind="stable")][:n]


class SampledSoftmax(nn.Linear):
    """The output layer of a large vocabulary and its loss: -ln softmax(input W^T + b) at the target class.

    forward(input (..., in_features), target (...)) gives the mean over all targets, FP32. In training the softmax is
    over the targets and `negatives` sampled classes (number the classes from the most frequent to the rarest), after
    `eval()` over all. weight: (num_classes, in_features), bias: (num_classes,), as in Linear; their gradients hold only
    the rows of the targets and samples (see `optim.Optimizer`).
    """

    def __init__(self, in_features: int, num_classes: int, negatives: int, bias: bool = True) -> None:
        super().__init__(in_features, num_classes, bias)
        (self.negatives,) = integers("SampledSoftmax", "negatives", negatives, 1, 1)

    @named
    def logits(self, input: Tensor) -> Tensor:
        """input W^T + b: (..., num_classes), the logits of all classes."""
        return super().forward(input)

    def forward(self, input: Tensor, target: Tensor) -> Tensor:  # type: ignore[override]
        rows, target = input.reshape(prod(input.shape[:-1]), self.in_features), target.reshape(-1)
        if self.training:
            return sampled_softmax_loss(rows, target, self.weight, self.bias, self.negatives)
        return ops.cross_entropy(self.logits(rows), target)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, negatives={self.negatives}"
