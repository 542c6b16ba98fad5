"""Connectionist temporal classification (Graves et al., 2006): labels for a sequence whose alignment is not known."""

from __future__ import annotations

from typing import Any

import numpy as np

from ... import backend
from ...arguments import flag, floating, integers
from ...autograd import Array
from ...precision import reduce, scatter_add, store, widen
from ...tensor import Tensor, array_of
from ..loss import Loss, check_each, check_reduction, total

IMPOSSIBLE = -1e30  # ln 0: below all that can be reached, and still a number, of which differences can be taken


class CTCLoss(Loss):
    """l = -ln sum over all alignments of product_t y_t(alignment_t), with y = e^log_probs.

    An alignment has a class for every frame; merging repetitions and then dropping blanks makes the target of it. It
    walks through the states 0 ... 2S: labels at odd places, blanks around them. alpha_t(s), the probability of all ways
    to be in state s in frame t, is 1 at state 0 before the first frame, and then

        alpha_t(s) = y_t(class of s) (alpha(s) + alpha(s - 1) + alpha(s - 2)) of the frame before, the last only if s is
        a label, and another one than that at s - 2.

    beta is the alpha of frames and states in reverse; alpha_t(s) beta_t(s) / y_t(s) goes with the share of all
    alignments that are in state s in frame t; dx_t(c) = -dl times that of the states of class c. All are logarithms,
    less the largest of a frame: FP32 has few digits for differences of large ones. Beyond an input's length come frames
    in which the blank has y = 1 and labels 0: in the last one every sequence ends, at state 2S or, without such frames,
    2S - 1.
    """

    name = "ctc_loss"
    fp32 = ()
    arguments = ("log_probs", "targets", "input_lengths", "target_lengths")

    def forward(
        self, log_probs: Array, targets: Array, input_lengths: Array, target_lengths: Array, **options: Any
    ) -> Array:
        xp, n = self.xp, log_probs.shape[1]
        classes, y = self.read(log_probs, targets, input_lengths, target_lengths)
        alpha, top = self.walk(classes, y, 0)
        ends = xp.concatenate([xp.full((1, n), IMPOSSIBLE, y.dtype), alpha[-1]])  # without labels, 2S - 1 is no state
        own = self.add_logs(ends[2 * target_lengths, xp.arange(n)], ends[2 * target_lengths + 1, xp.arange(n)])
        loss = -(own + reduce(top, 0, "sum").reshape(n))
        impossible = loss > -IMPOSSIBLE / 10
        divisor = n * xp.maximum(xp.asarray(target_lengths, loss.dtype), 1)  # rounds: never, counts
        given = log_probs, targets, input_lengths, target_lengths
        self.save(*given, statistics=(alpha, impossible, divisor))
        loss = xp.where(impossible, 0 if self.zero_infinity else xp.inf, loss)
        return total(loss / divisor) if self.reduction == "mean" else self.reduced(loss, divisor)

    def backward(self, dy: Array) -> tuple:
        (log_probs, *given), (alpha, impossible, divisor) = self.saved, self.statistics
        xp, (frames, n, c), (_, input_lengths, target_lengths) = self.xp, log_probs.shape, given
        classes, y = self.read(log_probs, *given)
        beta, _ = self.walk(classes[::-1], y[::-1, ::-1], len(classes) - 1 - 2 * target_lengths)
        share = alpha + beta[::-1, ::-1] - y
        share = xp.exp(share - reduce(share, 1, "max"))
        share = share / reduce(share, 1, "sum")
        dl = xp.where(impossible, 0 if self.zero_infinity else xp.nan, self.dl(dy, divisor))
        rows = xp.ascontiguousarray(xp.moveaxis(share, 0, 2)).reshape(-1, frames)
        index = (classes + c * xp.arange(n)).reshape(-1)
        dx = xp.moveaxis(scatter_add(n * c, index, rows, like=rows).reshape(n, c, frames), 2, 0)
        dl = xp.where(xp.arange(frames)[:, None] < input_lengths, -dl, 0)
        return store(dx * dl[:, :, None], like=log_probs), None, None, None

    def walk(self, classes: Array, y: Array, start: Any) -> tuple[Array, Array]:
        """ln alpha (T, states, N) less the largest of each frame, and these, (T, N), of ways that begin at `start`."""
        xp, n = self.xp, y.shape[2]
        skips = xp.zeros(classes.shape, bool)
        skips[3::2] = xp.not_equal(classes[3::2], classes[1:-2:2])
        alpha, top = xp.empty_like(y), xp.empty((len(y), n), y.dtype)
        before = xp.full((len(classes) + 2, n), IMPOSSIBLE, y.dtype)  # two rows first that nothing reaches
        before[start + 2, xp.arange(n)] = 0
        for t in range(len(y)):
            ways = self.add_logs(before[2:], before[1:-1])
            ways = y[t] + self.add_logs(ways, xp.where(skips, before[:-2], IMPOSSIBLE))
            top[t] = ways.max(0)
            before[2:] = alpha[t] = ways - top[t]
        return alpha, top

    def read(self, log_probs: Array, targets: Array, input_lengths: Array, target_lengths: Array) -> tuple:
        """The states' classes (states, N), and ln y of them (T, states, N)."""
        xp, (frames, n, c) = self.xp, log_probs.shape
        exist = xp.arange(targets.shape[1])[:, None] < target_lengths
        classes = xp.full((2 * len(exist) + 1, n), self.blank)
        classes[1::2] = xp.where(exist, xp.clip(targets.T, 0, c - 1), self.blank)
        y = xp.take(log_probs.reshape(frames, n * c), classes + c * xp.arange(n), axis=1)
        y = xp.maximum(widen(y), IMPOSSIBLE)
        beyond = xp.arange(frames)[:, None, None] >= input_lengths
        y[:, ::2] = xp.where(beyond, 0, y[:, ::2])
        y[:, 1::2] = xp.where(beyond | ~exist, IMPOSSIBLE, y[:, 1::2])
        return classes, y

    def add_logs(self, a: Array, b: Array) -> Array:
        """ln(e^a + e^b), several times as fast as NumPy's logaddexp."""
        top = self.xp.maximum(a, b)
        return top + self.xp.log1p(self.xp.exp(self.xp.minimum(a, b) - top))


def ctc_loss(
    log_probs: Tensor,
    targets: Any,
    input_lengths: Any,
    target_lengths: Any,
    blank: int = 0,
    reduction: str = "mean",
    zero_infinity: bool = False,
) -> Tensor:
    """-ln of the probability of targets, over all ways to align them with the frames of log_probs, in FP32.

    log_probs: (T, N, C), or (T, C) without a batch, as of `log_softmax`. targets: classes (integers), (N, S) with
    whatever values beyond target_lengths, or one after the other, (sum of target_lengths,). Lengths: N integers each,
    as a list, array or Tensor; without a batch also one. blank: the class that is no label. reduction: "mean" divides
    each loss by the length of its target (at least 1) and takes the mean.

    A target that its input is too short for has loss inf and gradients nan, or with zero_infinity 0 and 0. The gradient
    is the derivative with respect to log_probs; PyTorch's has e^log_probs added, which changes nothing behind
    log_softmax. For backward T (2 S + 1) N FP32 values are kept.

    TypeError for targets or lengths that are not integers. ValueError for log_probs without elements, shapes that do
    not match, lengths that are negative or too large, a class outside [0, C), and a blank among the targets.
    """
    op = "ctc_loss"
    x = floating(op, "log_probs", log_probs)
    if x.ndim not in (2, 3) or not x.numel():
        raise ValueError(f"{op}: expected `log_probs` to be (T, N, C) or (T, C), and not empty, got {x.shape}")
    check_reduction(op, reduction, x)
    zero = flag(op, "zero_infinity", zero_infinity)
    batch = x if x.ndim == 3 else x.unsqueeze(1)
    frames, n, classes = batch.shape
    (i,) = integers(op, "blank", blank, 1, 0, classes - 1)
    labels = _integers(op, "targets", targets)
    if labels.ndim not in (1, 2) or (labels.ndim == 2 and len(labels) != n):
        raise ValueError(f"{op}: expected `targets` to be ({n}, S), or (sum of target_lengths,), got {labels.shape}")
    inputs = sequence_lengths(op, "input_lengths", input_lengths, x, frames, "the frames of `log_probs`")
    lengths = sequence_lengths(op, "target_lengths", target_lengths, x, labels.shape[-1], "the labels of `targets`")
    labels = labels if labels.ndim == 2 else _padded(op, labels, lengths)
    device = backend.of(batch.array)
    labels, inputs, lengths = (device.asarray(given) for given in (labels, inputs, lengths))
    beyond = device.xp.arange(labels.shape[1]) >= lengths[:, None]
    good = beyond | (labels >= 0) & (labels < classes) & (labels != i)
    check_each(op, "targets", labels, good, f"to be a class in [0, {classes - 1}] other than the blank, {i}")
    given = map(Tensor, (labels, inputs, lengths))
    loss = CTCLoss.apply(batch, *given, blank=i, reduction=reduction, zero_infinity=zero)
    return loss if x.ndim == 3 or not loss.ndim else loss.squeeze(0)


def _integers(op: str, name: str, x: Any) -> Array:
    """A copy of x, a Tensor, an array or a list, as int64 where it lies; TypeError unless it holds integers."""
    given = array_of(op, x.array if isinstance(x, Tensor) else x)
    if given.dtype.kind not in "iu" and given.size:
        raise TypeError(f"{op}: expected `{name}` to be integers, got {given.dtype}")
    return backend.of(given).xp.asarray(given, dtype="int64").copy()


def sequence_lengths(op: str, name: str, x: Any, log_probs: Any, most: int, what: str) -> Array:
    """Lengths as an array (N,), where they lie: one for each sequence of log_probs (T, N, C), or for the one of (T, C).

    TypeError or ValueError, in the name of op, for what are not N integers in [0, most]; `what` has as many.
    """
    given = _integers(op, name, x)
    n = log_probs.shape[1] if log_probs.ndim == 3 else 1
    if given.shape != (n,) and (given.shape or log_probs.ndim == 3):
        raise ValueError(f"{op}: expected `{name}` to have one entry for each of the {n} sequences, got {given.shape}")
    given = given.reshape(n)
    check_each(op, name, given, (given >= 0) & (given <= most), f"in [0, {most}], {what}")
    return given


def _padded(op: str, targets: Array, lengths: Array) -> np.ndarray:
    """Targets that lie one after the other as (N, S), padded with zeros, on the host."""
    labels, ends = backend.to_cpu(targets), backend.to_cpu(lengths)
    exist = np.arange(ends.max()) < ends[:, None]
    if np.count_nonzero(exist) != len(labels):
        raise ValueError(
            f"{op}: expected `targets` to have as many labels as target_lengths in sum, {np.count_nonzero(exist)}, got "
            f"{len(labels)}; targets in rows are (N, S)"
        )
    padded = np.zeros(exist.shape, int)
    padded[exist] = labels
    return padded
