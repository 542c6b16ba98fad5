"""Batch norm: FP16 in and out, statistics and the adjustment of values in FP32 (NVG section 2.3.1, MPT section 3.3).

Weights, biases and running statistics stay in FP32 under MIXED (`Policy.norm`); they are small, and their gradients
are sums over the whole batch. Other norms are in more/norm.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

from ..arguments import flag, floating, number, shaped, tensor
from ..autograd import Array, Op
from ..backend.extras import held
from ..dtypes import FLOATING, float64
from ..gradients import Target
from ..precision import REDUCTION, reduce, store, widen
from ..tensor import Tensor


@dataclass
class Running:
    """The running statistics, which evaluation uses. A training batch changes them in place, so that a captured CUDA
    graph still finds them.

    running <- (1 - momentum) running + momentum batch, with the unbiased variance, and count <- count + 1.
    """

    mean: Array | None
    var: Array | None
    count: Array | None
    momentum: Any  # a number, or an array without axes; None in evaluation

    def update(self, mean: Array, var: Array, n: int) -> None:
        """Update by a batch of n values per channel with this mean and (biased) variance."""
        for old, value in ((self.mean, mean), (self.var, var * (n / (n - 1)))):
            if old is not None:
                old[...] = store((1 - self.momentum) * widen(old) + self.momentum * value.reshape(old.shape), like=old)
        if self.count is not None:
            self.count += 1


class BatchNorm(Op):
    """y = (x - mean) rstd w + b per channel, with rstd = 1 / sqrt(var + eps) over the batch (Ioffe & Szegedy, 2015).

    db = sum dy, dw = sum dy xhat, dx = w rstd (dy - db / n - xhat dw / n), with xhat = (x - mean) rstd.
    x: (N, C, ...), w, b: (C,) or None. The variance is the mean of (x - mean)^2: two passes, but nothing cancels.
    In evaluation with the running statistics, which do not follow x: dx = w rstd dy.
    """

    kind = REDUCTION
    name = "batch_norm"
    fp32 = ("weight", "bias")

    def forward(self, x: Array, w: Array | None, b: Array | None, *, eps: float, running: Running) -> Array:
        axes, wide, moves = all_but_channel(x), widen(x), running.momentum is not None
        mean = reduce(wide, axes, "mean", like=x) if moves else per_channel(running.mean, x).copy()
        centered = wide - mean
        var = reduce(centered * centered, axes, "mean", like=x) if moves else per_channel(running.var, x)
        rstd = 1 / self.xp.sqrt(var + eps)
        self.save(x, w, statistics=(mean, rstd))
        if moves:
            running.update(mean, var, x.size // x.shape[1])
        centered *= rstd if w is None else rstd * per_channel(w, x)
        return store(centered if b is None else centered + per_channel(b, x), like=x)

    def backward(self, dy: Array) -> tuple:
        (x, w), (mean, rstd), (like_x, like_w, like_b) = self.saved, self.statistics, self.targets
        axes, wide, centered = all_but_channel(x), widen(dy), widen(x) - mean
        db = reduce(wide, axes, "sum", like=x)
        dw = reduce(wide * centered, axes, "sum", like=x) * rstd
        scale = rstd if w is None else rstd * per_channel(w, x)
        if self.running.momentum is None:
            centered = wide * scale
        else:
            n = x.size // x.shape[1]
            centered *= scale * rstd * dw / -n
            centered -= scale * db / n
            centered += wide * scale
        return store(centered, like=dy) if like_x else None, of_argument(dw, like_w), of_argument(db, like_b)


def all_but_channel(x: Array) -> tuple[int, ...]:
    """The axes of x (N, C, ...) over which a channel's values lie."""
    return (0, *range(2, x.ndim))


def per_channel(v: Array | None, x: Array) -> Any:
    """v (C,) in FP32, shaped to broadcast against x (N, C, ...)."""
    return None if v is None else widen(v).reshape(1, -1, *[1] * (x.ndim - 2))


def of_argument(g: Any, like: Target | None) -> Array | None:
    """The gradient g in the shape and dtype of its argument; None if it is not wanted."""
    return None if like is None else store(g.reshape(like.shape), like=like)


# ---------------------------------------------------------------------------------------------------------- functions


def batch_norm(
    input: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: Any = 0.1,
    eps: float = 1e-5,
    *,
    num_batches_tracked: Tensor | None = None,
) -> Tensor:
    """Normalise every channel of input (N, C, ...) and apply weight and bias (C,).

    training: with the mean and (biased) variance of the batch. The running statistics, if given, then become
    (1 - momentum) running + momentum batch, with the unbiased variance, in place, and num_batches_tracked increases by
    1; momentum is a number or an array without axes. Otherwise: with the running statistics.
    Statistics are computed and kept in FP32, whatever the storage of input (NVG section 2.3.1).
    An empty batch leaves the running statistics as they are, but is counted (as in PyTorch).
    ValueError if shapes do not fit, if a training batch has one value per channel, or if statistics are missing.
    """
    x = floating("batch_norm", "input", input)
    if x.ndim < 2:
        raise ValueError(f"batch_norm: expected `input` (N, C, ...), got shape {x.shape}")
    training, eps = flag("batch_norm", "training", training), number("batch_norm", "eps", eps, 0)
    if getattr(momentum, "shape", None) != () or momentum.dtype not in FLOATING:  # else the factor of a plain average
        momentum = number("batch_norm", "momentum", momentum, 0, 1)
    for name, v in {"running_mean": running_mean, "running_var": running_var, "weight": weight, "bias": bias}.items():
        shaped("batch_norm", name, v, (x.shape[1],), "input.shape[1]")
        if v is not None and x.dtype == float64 != v.dtype:
            raise TypeError(f"batch_norm: expected {name} to be float64 like input, got {v.dtype}")
    if not training and (running_mean is None or running_var is None):
        raise ValueError("batch_norm: expected running_mean and running_var when training=False")
    if training and prod((x.shape[0], *x.shape[2:])) == 1:
        raise ValueError(f"batch_norm: expected more than one value per channel when training, got input {x.shape}")
    moved = (running_mean, running_var, num_batches_tracked)
    mean, var, count = (None if v is None else tensor("batch_norm", "num_batches_tracked", v).array for v in moved)
    norm = BatchNorm.apply if x.numel() or not training else held("ops.norm.of_empty_batch")
    y = norm(x, weight, bias, eps=eps, running=Running(mean, var, count, momentum if training else None))
    for v in moved if training else ():
        if v is not None:
            v.bump_version()
    return y
