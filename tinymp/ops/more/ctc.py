"""Connectionist temporal classification (Graves et al., 2006): labels for a sequence whose alignment is not known."""

from __future__ import annotations

from typing import Any

import numpy as np

from ... import backend
from ...arguments import flag, floating, integer, name_all
from ...autograd import Array
from ...precision import reduce, scatter_add, store, widen
from ...tensor import Tensor, array_of
from ..loss import Loss, check_each, check_reduction

IMPOSSIBLE = -1e30  # ln 0: below all that can be reached, and still a number, of which differences can be taken


class CTCLoss(Loss):
    """l = -ln sum over all alignments of product_t y_t(alignment_t), with y = e^log_probs.

    An alignment has a class for every frame; merging repetitions and then dropping blanks makes the target of it. It
    walks through the states b_0, k_1, b_1, ..., k_S, b_S: labels k_i, and blanks around them. alpha_t(s), the
    probability of all ways to be in state s in frame t, is 1 at b_0 before the first frame, and then

        b_i <- y(blank) (b_i + k_i),    k_i <- y(label i) (k_i + b_(i-1) + k_(i-1)), the last only if the labels differ.

    beta is the alpha of frames and labels in reverse; both run in one loop. The share of all alignments that are in
    state s in frame t goes with alpha_t(s) beta_t(s) / y_t(s); dx_t(c) = -dl times that of the states of class c.

    All of them are logarithms, for the states through which most alignments pass may hold 1e-40 of alpha, and of beta.
    The largest of a frame is subtracted and noted: else they would grow as large as the loss, and FP32 had few digits
    left for their differences. Beyond an input's length come frames in which the blank has y = 1 and labels have 0: in
    the last one every sequence ends, at b_S or, without such frames, at k_S.
    """

    name = "ctc_loss"
    fp32 = ()
    arguments = ("log_probs", "targets", "input_lengths", "target_lengths")

    def forward(
        self, log_probs: Array, targets: Array, input_lengths: Array, target_lengths: Array, **options: Any
    ) -> Array:
        xp, n = self.xp, log_probs.shape[1]
        classes, blanks, labels = self.read(log_probs, targets, input_lengths, target_lengths)
        states = xp.full((2, len(classes) + 1, n), IMPOSSIBLE, blanks.dtype)  # b_0 ... b_S, and before each of them k_i
        states[0, 0] = 0
        keep = True in self.needs
        if keep:  # beside each sequence its mirror image
            mirrored = xp.full_like(states, IMPOSSIBLE)
            mirrored[0, len(classes) - target_lengths, xp.arange(n)] = 0
            classes, states = xp.concatenate([classes, classes[::-1]], 1), xp.concatenate([states, mirrored], 2)
            blanks, labels = (xp.concatenate([e, e[::-1, ::-1]], 2) for e in (blanks, labels))
        equal = classes == xp.concatenate([classes[:1] - 1, classes[:-1]])  # to the label before it
        alpha = xp.empty((len(blanks) if keep else 2, *states.shape), blanks.dtype)
        alpha[:, 1, 0] = IMPOSSIBLE  # there is no k_0
        top = xp.empty((len(blanks), states.shape[2]), blanks.dtype)
        reached, spare = xp.empty_like(states[0]), xp.empty_like(states[0])
        for t in range(len(blanks)):
            (b, k), states = states, alpha[t % len(alpha)]
            self.add_logs(b, k, reached, spare)
            xp.add(reached, blanks[t], out=states[0])  # rounds: never, FP32 in an FP32 buffer
            xp.copyto(reached[:-1], b[:-1], where=equal)  # rounds: never, FP32 in an FP32 buffer
            self.add_logs(k[1:], reached[:-1], states[1, 1:], spare[1:])
            states[1, 1:] += labels[t]
            states.max((0, 1), out=top[t])  # rounds: never, FP32 in an FP32 buffer
            states -= top[t]
        b, k = states[:, target_lengths, xp.arange(n)]
        loss = -(xp.logaddexp(b, k) + reduce(top[:, :n], 0, "sum").reshape(n))
        return self.finish(loss, alpha, log_probs, targets, input_lengths, target_lengths)

    def backward(self, dy: Array) -> tuple:
        (log_probs, targets, input_lengths, target_lengths), (alpha, *_) = self.saved, self.statistics
        xp, (frames, n, c) = self.xp, log_probs.shape
        classes, blanks, labels = self.read(log_probs, targets, input_lengths, target_lengths)
        s, beta = len(classes), alpha[::-1, :, :, n:]
        share = xp.empty((frames, 2 * s + 1, n), alpha.dtype)  # of blanks, then of labels
        for part, a, b, y in (
            (share[:, : s + 1], alpha[:, 0, :, :n], beta[:, 0, ::-1], blanks),
            (share[:, s + 1 :], alpha[:, 1, 1:, :n], beta[:, 1, :0:-1], labels),
        ):
            xp.add(a, b, out=part)  # rounds: never, FP32 in an FP32 buffer
            part -= y
        share -= reduce(share, 1, "max")
        xp.exp(share, out=share)
        total = reduce(share, 1, "sum").reshape(frames, n)
        index = xp.concatenate([xp.full((s + 1, n), self.blank), classes]) + c * xp.arange(n)
        rows = xp.ascontiguousarray(xp.moveaxis(share, 0, 2)).reshape(-1, frames)
        share = scatter_add(n * c, index.reshape(-1), rows, like=rows).reshape(n, c, frames)
        dl = xp.where(xp.arange(frames)[:, None] < input_lengths, -self.gradient_of_loss(dy) / total, 0)
        dx = xp.ascontiguousarray(xp.moveaxis(share, 2, 0))
        dx *= dl[:, :, None]
        return store(dx, like=log_probs), None, None, None

    def finish(self, loss: Array, alpha: Array, *given: Array) -> Array:
        """The losses, reduced; saves for backward."""
        xp, target_lengths = self.xp, given[3]
        impossible = loss > -IMPOSSIBLE / 10
        divisor = len(loss) * xp.maximum(xp.asarray(target_lengths, loss.dtype), 1)  # rounds: never, counts
        self.save(*given, statistics=(alpha, impossible, divisor))
        return self.reduced(xp.where(impossible, 0 if self.zero_infinity else xp.inf, loss), divisor)

    def gradient_of_loss(self, dy: Array) -> Array:
        """dl of each sequence; nan, or 0, of those with an infinite loss."""
        _, impossible, divisor = self.statistics
        return self.xp.where(impossible, 0 if self.zero_infinity else self.xp.nan, self.dl(dy, divisor))

    def read(self, log_probs: Array, targets: Array, input_lengths: Array, target_lengths: Array) -> tuple:
        """The labels' classes (S, N), 0 beyond a target's end; ln y of the blank (T, 1, N) and the labels (T, S, N)."""
        xp, (frames, n, c) = self.xp, log_probs.shape
        exist = xp.arange(targets.shape[1])[:, None] < target_lengths
        within = (xp.arange(frames)[:, None] < input_lengths)[:, None]
        classes = xp.where(exist, xp.clip(targets.T, 0, c - 1), 0)
        labels = widen(xp.take(log_probs.reshape(frames, n * c), classes + c * xp.arange(n), axis=1))
        labels = xp.where(exist & within, xp.maximum(labels, IMPOSSIBLE), IMPOSSIBLE)
        blanks = xp.where(within, xp.maximum(widen(log_probs[:, None, :, self.blank]), IMPOSSIBLE), 0)
        return classes, blanks, labels

    def add_logs(self, a: Array, b: Array, out: Array, spare: Array) -> None:
        """out = ln(e^a + e^b), ten times as fast as NumPy's logaddexp."""
        xp = self.xp
        xp.maximum(a, b, out=out)  # rounds: never, FP32 in an FP32 buffer
        xp.minimum(a, b, out=spare)  # rounds: never, FP32 in an FP32 buffer
        spare -= out
        xp.exp(spare, out=spare)
        xp.log1p(spare, out=spare)
        out += spare

    def reduced(self, loss: Array, divisor: Any) -> Array:
        """A mean is over losses divided by the lengths of their targets."""
        if self.reduction == "mean":
            return reduce(loss / divisor, 0, "sum").reshape(())
        return super().reduced(loss, divisor)


# ---------------------------------------------------------------------------------------------------------- functions


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
    as a list, array or Tensor, on any device; without a batch also one integer. blank: the class that is no label.
    reduction: "none" gives one loss per sequence, "sum" adds them up, "mean" divides each by the length of its target
    (by 1 if that is empty) and takes the mean.

    A target that its input is too short for has loss inf and gradients that are nan, or with zero_infinity 0 and 0. The
    gradient is the derivative with respect to log_probs; PyTorch's has e^log_probs added to it, which changes nothing
    behind log_softmax. FP16 log-probabilities have been rounded: `log_softmax(logits.float(), -1)` keeps their digits.

    The host waits for a GPU only if targets come one after the other and target_lengths lie there. It holds
    log_probs and, for backward, 4 T (S + 1) N FP32 values.

    TypeError for targets or lengths that are not integers. ValueError for log_probs without elements, shapes that do
    not match, lengths that are negative or too large, a blank or a class of targets outside [0, C), and a blank among
    the targets.
    """
    op = "ctc_loss"
    x = floating(op, "log_probs", log_probs)
    if x.ndim not in (2, 3) or not x.numel():
        raise ValueError(
            f"{op}: expected `log_probs` to be (T, N, C), or (T, C) without a batch, and not empty, got {x.shape}"
        )
    check_reduction(op, reduction, x)
    zero = flag(op, "zero_infinity", zero_infinity)
    i = require_blank(op, blank, x.shape[-1])
    batch = x if x.ndim == 3 else x.unsqueeze(1)
    frames, n, classes = batch.shape
    labels = _integers(op, "targets", targets)
    if labels.ndim not in (1, 2) or (labels.ndim == 2 and len(labels) != n):
        raise ValueError(f"{op}: expected `targets` to be ({n}, S), or (sum of target_lengths,), got {labels.shape}")
    width = labels.shape[-1]
    inputs = sequence_lengths(op, "input_lengths", input_lengths, x, frames, "the frames of `log_probs`")
    lengths = sequence_lengths(op, "target_lengths", target_lengths, x, width, "the labels of `targets`")
    if labels.ndim == 1:
        labels, lengths = _padded(op, labels, backend.to_cpu(lengths))
    elif backend.of(lengths) is backend.cpu:
        labels = labels[:, : lengths.max()]  # what no target reaches need not be computed
    device = backend.of(batch.array)
    if backend.of(lengths) is not backend.of(labels):
        labels, lengths = device.asarray(labels), device.asarray(lengths)
    beyond = backend.of(labels).xp.arange(labels.shape[1]) >= lengths[:, None]
    good = beyond | (labels >= 0) & (labels < classes) & (labels != i)
    check_each(op, "targets", labels, good, f"to be a class in [0, {classes - 1}] other than the blank, {i}")
    given = (Tensor(device.asarray(a)) for a in (labels, inputs, lengths))
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


def require_blank(op: str, blank: Any, classes: int) -> int:
    """blank as an int; TypeError or ValueError, in the name of op, unless it is one of the classes."""
    if (i := integer(blank)) is None:
        raise TypeError(f"{op}: expected `blank` to be an integer, got {blank!r}")
    if not 0 <= i < classes:
        raise ValueError(f"{op}: expected `blank` to be a class in [0, {classes - 1}], got {i}")
    return i


def _padded(op: str, targets: Array, lengths: np.ndarray) -> tuple[Array, np.ndarray]:
    """Targets that lie one after the other as (N, S), padded with zeros; and their lengths, on the host."""
    if sum(lengths.tolist()) != len(targets):
        raise ValueError(
            f"{op}: expected `targets` to have as many labels as target_lengths in sum, {sum(lengths.tolist())}, got "
            f"{len(targets)}; targets in rows are (N, S)"
        )
    xp, exist = backend.of(targets).xp, np.arange(lengths.max()) < lengths[:, None]
    padded = xp.zeros(exist.size, targets.dtype)
    padded[xp.asarray(np.flatnonzero(exist))] = targets
    return padded.reshape(exist.shape), lengths


name_all(globals())
