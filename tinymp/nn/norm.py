"""Normalisation layers. Their parameters and running statistics stay FP32 under MIXED (NVG section 2.3.1)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from .. import backend, ops, statistics
from ..arguments import flag, integers, number
from ..parameter import Parameter
from ..precision import to_dtype
from ..tensor import Tensor
from . import init
from .init import parameter
from .loading import overwrite
from .module import Module

__all__ = ["BatchNorm1d", "BatchNorm2d", "LayerNorm"]


def _reset(weight: Parameter | None, bias: Parameter | None) -> None:
    if weight is not None:
        init.ones_(weight)
    if bias is not None:
        init.zeros_(bias)


class BatchNorm(Module):
    """Normalise each channel of a batch, then y = x weight + bias, both (num_features,); see `ops.batch_norm`.

    Training uses the statistics of the batch and moves the running ones towards them by `momentum`, from 0 to 1 (None:
    their plain average over all batches); evaluation uses the running ones, or without track_running_stats the batch's
    again. The buffers running_mean, running_var (num_features,) and num_batches_tracked follow the optimizer: a skipped
    step restores them, also where the layer is frozen (see `tinymp.statistics`).
    """

    normalisation = True
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
        (self.num_features,) = integers(name, "num_features", num_features, 1, 1)
        self.eps = number(name, "eps", eps, 0)
        self.momentum = None if momentum is None else number(name, "momentum", momentum, 0, 1)
        self.affine, bias = flag(name, "affine", affine), flag(name, "bias", bias)
        self.track_running_stats = flag(name, "track_running_stats", track_running_stats)
        self.weight = parameter(self.num_features, normalisation=True) if affine else None
        self.bias = parameter(self.num_features, normalisation=True) if affine and bias else None
        xp = backend.default().xp
        for buffer in ("running_mean", "running_var"):
            statistic = Tensor(parameter(self.num_features).array)  # a MemoryError for more than any memory holds
            self.register_buffer(buffer, statistic if track_running_stats else None)
        self.register_buffer("num_batches_tracked", Tensor(xp.zeros((), int)) if track_running_stats else None)
        self._undo = statistics.Undo()
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """weight 1, bias 0, and the running statistics as for a new layer."""
        self.reset_running_stats()
        _reset(self.weight, self.bias)

    def reset_running_stats(self) -> None:
        """running_mean 0, running_var 1, num_batches_tracked 0."""
        for buffer, start in ((self.running_mean, 0), (self.running_var, 1), (self.num_batches_tracked, 0)):
            if buffer is not None:
                overwrite([(buffer, backend.of(buffer.array).xp.full_like(buffer.array, start), None)])

    def forward(self, input: Tensor) -> Tensor:
        return self.normalised(input, ops.batch_norm)

    def normalised(self, input: Tensor, batch_norm: Callable[..., Tensor]) -> Tensor:
        """`forward`, by a function that has the arguments of `ops.batch_norm`."""
        if isinstance(input, Tensor) and input.ndim not in self.layouts:
            expected = " or ".join(self.layouts.values())
            raise ValueError(f"{type(self).__name__}: expected input {expected}, got shape {input.shape}")
        mean, var, count = self.running_mean, self.running_var, self.num_batches_tracked
        if self.training and self.track_running_stats and mean is not None and var is not None and count is not None:
            momentum: Any = self.momentum
            if momentum is None:
                momentum = 1 / to_dtype(count.array + 1, mean.dtype)
            arguments = mean, var, self.weight, self.bias, True, momentum, self.eps
            with self._undo.moving((mean, var, count), self.weight):
                return batch_norm(input, *arguments, num_batches_tracked=count)
        if self.training:
            mean = var = None
        return batch_norm(input, mean, var, self.weight, self.bias, mean is None, 0.0, self.eps)

    def extra_repr(self) -> str:
        defaults = {"eps": 1e-5, "momentum": 0.1, "affine": True, "track_running_stats": True}
        changed = [f"{k}={getattr(self, k)}" for k, v in defaults.items() if getattr(self, k) != v]
        return ", ".join([str(self.num_features), *changed])


class BatchNorm1d(BatchNorm):
    """`nn.norm.BatchNorm` of inputs (N, C) or (N, C, L)."""

    layouts: ClassVar = {2: "(N, C)", 3: "(N, C, L)"}


class BatchNorm2d(BatchNorm):
    """`nn.norm.BatchNorm` of images (N, C, H, W)."""

    layouts: ClassVar = {4: "(N, C, H, W)"}


class LayerNorm(Module):
    """Normalise over the last axes, whose lengths are normalized_shape, then y = x weight + bias of that shape.

    elementwise_affine=False leaves out weight and bias, bias=False the bias alone. See `ops.layer_norm`.
    """

    normalisation = True

    def __init__(
        self, normalized_shape: Any, eps: float = 1e-05, elementwise_affine: bool = True, bias: bool = True
    ) -> None:
        super().__init__()
        shape = normalized_shape if isinstance(normalized_shape, (tuple, list)) else (normalized_shape,)
        self.normalized_shape = integers("LayerNorm", "normalized_shape", shape, max(1, len(shape)), 1)
        self.eps, bias = number("LayerNorm", "eps", eps, 0), flag("LayerNorm", "bias", bias)
        self.elementwise_affine = flag("LayerNorm", "elementwise_affine", elementwise_affine)
        self.weight = parameter(*self.normalized_shape, normalisation=True) if elementwise_affine else None
        self.bias = parameter(*self.normalized_shape, normalisation=True) if elementwise_affine and bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """weight 1, bias 0."""
        _reset(self.weight, self.bias)

    def forward(self, input: Tensor) -> Tensor:
        return ops.layer_norm(input, self.normalized_shape, self.weight, self.bias, self.eps)

    def extra_repr(self) -> str:
        return f"{self.normalized_shape}" + (f", eps={self.eps}" if self.eps != 1e-5 else "")
