"""Normalisation layers. Their parameters and running statistics stay FP32 under MIXED (NVG section 2.3.1)."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from .. import backend, ops, statistics
from ..arguments import count, flag, number
from ..parameter import Parameter
from ..precision import FP32, to_dtype
from ..tensor import Tensor
from . import init
from .init import parameter
from .module import Module

__all__ = ["BatchNorm1d", "BatchNorm2d"]


class Affine(Module):
    """A normalisation with a weight and a bias, either of them or None, in FP32 under MIXED."""

    normalisation = True
    weight: Parameter | None
    bias: Parameter | None

    def _begin(self, *shape: int, weight: bool, bias: bool) -> None:
        self.weight = parameter(*shape, normalisation=True) if weight else None
        self.bias = parameter(*shape, normalisation=True) if weight and bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """weight 1, bias 0."""
        if self.weight is not None:
            init.ones_(self.weight)
        if self.bias is not None:
            init.zeros_(self.bias)


class BatchNorm(Affine):
    """Normalise each channel of a batch, then y = x weight + bias, both (num_features,); see `ops.batch_norm`.

    Training uses the statistics of the batch and moves the running ones towards them by `momentum`, from 0 to 1 (None:
    their plain average over all batches). Evaluation uses the running ones, or without track_running_stats also the
    batch's. The buffers running_mean, running_var (num_features,) and num_batches_tracked follow the optimizer: a
    skipped step restores them, also if the layer is frozen (see `tinymp.statistics`).
    """

    layouts: ClassVar[dict[int, str]]  # number of axes -> the input's layout
    running_mean: Tensor | None
    running_var: Tensor | None
    num_batches_tracked: Tensor | None

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-05,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        *,
        bias: bool = True,
    ) -> None:
        super().__init__()
        name = type(self).__name__
        self.num_features = count(name, "num_features", num_features)
        self.eps = number(name, "eps", eps, 0)
        self.momentum = None if momentum is None else number(name, "momentum", momentum, 0, 1)
        self.affine, bias = flag(name, "affine", affine), flag(name, "bias", bias)
        self.track_running_stats = flag(name, "track_running_stats", track_running_stats)
        xp = backend.default().xp
        for buffer in ("running_mean", "running_var"):
            statistic = Tensor(xp.zeros(self.num_features, FP32.storage))
            self.register_buffer(buffer, statistic if track_running_stats else None)
        self.register_buffer("num_batches_tracked", Tensor(xp.zeros((), "int64")) if track_running_stats else None)
        self._undo = statistics.Undo()
        self._begin(self.num_features, weight=affine, bias=bias)

    def reset_parameters(self) -> None:
        """weight 1, bias 0, and the running statistics as for a new layer."""
        self.reset_running_stats()
        super().reset_parameters()

    def reset_running_stats(self) -> None:
        """running_mean 0, running_var 1, num_batches_tracked 0."""
        for buffer, start in ((self.running_mean, 0), (self.running_var, 1), (self.num_batches_tracked, 0)):
            if buffer is not None:
                buffer.overwrite("reset_running_stats", backend.of(buffer.array).xp.full_like(buffer.array, start))

    def forward(self, input: Tensor) -> Tensor:
        return self.normalised(input, ops.batch_norm)

    def normalised(self, input: Tensor, batch_norm: Callable[..., Tensor]) -> Tensor:
        """`forward`, with a function that has the arguments of `ops.batch_norm`."""
        if isinstance(input, Tensor) and input.ndim not in self.layouts:
            expected = " or ".join(self.layouts.values())
            raise ValueError(f"{type(self).__name__}: expected input {expected}, got shape {input.shape}")
        mean, var, count = self.running_mean, self.running_var, self.num_batches_tracked
        if self.training and self.track_running_stats and mean is not None and var is not None and count is not None:
            momentum = 1 / to_dtype(count.array + 1, mean.dtype) if self.momentum is None else self.momentum
            arguments = mean, var, self.weight, self.bias, True, momentum, self.eps
            with self._undo.moving((mean, var, count), self.weight):
                return batch_norm(input, *arguments, num_batches_tracked=count)
        mean, var = (None, None) if self.training else (mean, var)
        return batch_norm(input, mean, var, self.weight, self.bias, mean is None, 0.0, self.eps)


class BatchNorm1d(BatchNorm):
    """`nn.norm.BatchNorm` of inputs (N, C) or (N, C, L)."""

    layouts: ClassVar = {2: "(N, C)", 3: "(N, C, L)"}


class BatchNorm2d(BatchNorm):
    """`nn.norm.BatchNorm` of images (N, C, H, W)."""

    layouts: ClassVar = {4: "(N, C, H, W)"}
