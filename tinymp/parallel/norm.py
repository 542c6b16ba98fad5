"""Batch norm over the batches of all processes."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from .. import backend
from ..arguments import instance
from ..autograd import Array
from ..nn.module import Module
from ..nn.norm import BatchNorm as Layer
from ..ops import batch_norm
from ..ops.norm import BatchNorm, Running, all_but_channel, per_channel
from ..precision import reduce, store, widen
from ..tensor import Tensor
from .group import Group, entered


class SyncBatchNormOp(BatchNorm):
    """`ops.norm.BatchNorm` with mean, variance and n over the batches of all processes, each a sum that is exchanged.

    dx = w rstd (dy - db / n - xhat dw / n) with the sums db and dw of all. What is returned for w and b are this
    process's own sums: DistributedDataParallel takes their mean, as of every gradient.
    """

    name = "sync_batch_norm"

    def forward(self, x: Array, w: Array | None, b: Array | None, *, eps: float, running: Running) -> Array:
        axes, wide = all_but_channel(x), widen(x)
        count = backend.of(x).asarray(np.array([x.size / x.shape[1]]))
        _group().all_reduce(count)
        self.n = float(backend.to_cpu(count)[0])
        mean = _of_all(reduce(wide, axes, "sum", like=x)) / self.n
        y = wide - mean
        var = _of_all(reduce(y * y, axes, "sum", like=x)) / self.n
        rstd = 1 / self.xp.sqrt(var + eps)
        y *= rstd if w is None else rstd * per_channel(w, x)
        if b is not None:
            y += per_channel(b, x)
        self.save(x, w, statistics=(mean, rstd))
        running.update(mean, var, int(self.n))
        return store(y, like=x)

    def backward(self, dy: Array) -> tuple:
        (x, w), (mean, rstd), (like_x, like_w, like_b) = self.saved, self.statistics, self.targets
        axes, wide, centered = all_but_channel(x), widen(dy), widen(x) - mean
        db = reduce(wide, axes, "sum", like=x)
        dw = reduce(wide * centered, axes, "sum", like=x) * rstd
        scale = rstd if w is None else rstd * per_channel(w, x)
        dx = scale * (wide - _of_all(db.copy()) / self.n - centered * rstd * _of_all(dw.copy()) / self.n)
        return (
            like_x and store(dx, like=like_x),
            like_w and store(dw.reshape(like_w.shape), like=like_w),
            like_b and store(db.reshape(like_b.shape), like=like_b),
        )


def _group() -> Group:
    if entered.group is None:
        raise RuntimeError("sync_batch_norm: expected its backward in the `with` block of the group")
    return entered.group


def _of_all(x: Array) -> Array:
    """The sum of all processes' x."""
    x = backend.of(x).xp.ascontiguousarray(x)
    _group().all_reduce(x)
    return x


def sync_batch_norm(
    input: Tensor,
    mean: Any,
    var: Any,
    weight: Any,
    bias: Any,
    training: bool,
    momentum: Any,
    eps: float,
    *,
    num_batches_tracked: Any = None,
) -> Tensor:
    """`ops.batch_norm`; in training, with the statistics of all processes' batches together."""
    if not training or entered.group is None:
        arguments = mean, var, weight, bias, training, momentum, eps
        return batch_norm(input, *arguments, num_batches_tracked=num_batches_tracked)
    given = mean, var, num_batches_tracked
    moved, variance, count = (None if v is None else v.array for v in given)
    running = Running(moved, variance, count, momentum)
    y = SyncBatchNormOp.apply(input, weight, bias, eps=eps, running=running)
    for v in given:
        if v is not None:
            v.bump_version()
    return y


class SyncBatchNorm(Layer):
    """`nn.BatchNorm1d` and `2d` whose training statistics are those of all processes' batches together.

    Outside of a group it is the ordinary one. Its running statistics are the same in all processes.
    """

    layouts: ClassVar = {2: "(N, C)", 3: "(N, C, L)", 4: "(N, C, H, W)"}

    def forward(self, input: Tensor) -> Tensor:
        if isinstance(input, Tensor) and input.ndim in self.layouts and input.shape[1] != self.num_features:
            raise ValueError(f"SyncBatchNorm: expected {self.num_features} channels, got shape {input.shape}")
        return self.normalised(input, sync_batch_norm)

    @classmethod
    def convert_sync_batchnorm(cls, module: Module) -> Module:
        """`module` with every batch norm in it replaced by one of this class that has its parameters and buffers.

        Layers that are derived from a batch norm and have a forward of their own (InstanceNorm1d, FrameNorm) stay.
        """
        instance("convert_sync_batchnorm", "module", module, Module)
        if isinstance(module, Layer) and type(module).forward is Layer.forward:
            new = cls(module.num_features, affine=False, track_running_stats=False)
            vars(new).update(vars(module))
            return new
        for name, child in list(module.named_children()):
            setattr(module, name, cls.convert_sync_batchnorm(child))
        return module
