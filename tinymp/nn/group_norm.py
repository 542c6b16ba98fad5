"""GroupNorm, RMSNorm, InstanceNorm. Their parameters and statistics stay FP32 under MIXED (NVG section 2.3.1)."""

from __future__ import annotations

from typing import Any, ClassVar

from .. import ops
from ..arguments import flag, integers, number
from ..parameter import parameter
from ..tensor import Tensor
from . import init
from .module import Module, refuse_placement
from .norm import BatchNorm


class GroupNorm(Module):
    """Normalise each of num_groups groups of channels, then y = x weight + bias, both (num_channels,).

    affine=False leaves out both, bias=False the bias alone. See `ops.group_norm`.
    """

    normalisation = True

    def __init__(
        self,
        num_groups: int,
        num_channels: int,
        eps: float = 1e-5,
        affine: bool = True,
        device: None = None,
        dtype: None = None,
        *,
        bias: bool = True,
    ) -> None:
        super().__init__()
        refuse_placement("GroupNorm", device, dtype)
        (self.num_groups,) = integers("GroupNorm", "num_groups", num_groups, 1, 1)
        (self.num_channels,) = integers("GroupNorm", "num_channels", num_channels, 1, 1)
        if num_channels % num_groups:
            raise ValueError(
                f"GroupNorm: expected num_channels to be a multiple of num_groups, got {num_channels} and {num_groups}"
            )
        self.eps = number("GroupNorm", "eps", eps, 0)
        self.affine, bias = flag("GroupNorm", "affine", affine), flag("GroupNorm", "bias", bias)
        self.weight = parameter(num_channels, normalisation=True) if affine else None
        self.bias = parameter(num_channels, normalisation=True) if affine and bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """weight 1, bias 0."""
        if self.weight is not None:
            init.ones_(self.weight)
        if self.bias is not None:
            init.zeros_(self.bias)

    def forward(self, input: Tensor) -> Tensor:
        return ops.group_norm(input, self.num_groups, self.weight, self.bias, self.eps)

    def extra_repr(self) -> str:
        changed = [f"eps={self.eps}"] * (self.eps != 1e-5) + ["affine=False"] * (not self.affine)
        return ", ".join([f"{self.num_groups}, {self.num_channels}", *changed])


class RMSNorm(Module):
    """x divided by its root mean square over the last axes, whose lengths are normalized_shape, times weight.

    eps None: the epsilon of the dtype that computes. See `ops.rms_norm`.
    """

    normalisation = True

    def __init__(
        self,
        normalized_shape: Any,
        eps: float | None = None,
        elementwise_affine: bool = True,
        device: None = None,
        dtype: None = None,
    ) -> None:
        super().__init__()
        refuse_placement("RMSNorm", device, dtype)
        shape = normalized_shape if isinstance(normalized_shape, (tuple, list)) else (normalized_shape,)
        self.normalized_shape = integers("RMSNorm", "normalized_shape", shape, max(1, len(shape)), 1)
        self.eps = None if eps is None else number("RMSNorm", "eps", eps, 0)
        self.elementwise_affine = flag("RMSNorm", "elementwise_affine", elementwise_affine)
        self.weight = parameter(*self.normalized_shape, normalisation=True) if elementwise_affine else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """weight 1."""
        if self.weight is not None:
            init.ones_(self.weight)

    def forward(self, input: Tensor) -> Tensor:
        return ops.rms_norm(input, self.normalized_shape, self.weight, self.eps)

    def extra_repr(self) -> str:
        return f"{self.normalized_shape}" + (f", eps={self.eps}" if self.eps is not None else "")


class InstanceNorm(BatchNorm):
    """Normalise each channel of each example; see `ops.instance_norm`.

    Without affine (the default) there are no weight and bias; without track_running_stats (the default) no running
    statistics, and evaluation, too, uses those of the input.
    """

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float = 0.1,
        affine: bool = False,
        track_running_stats: bool = False,
        device: None = None,
        dtype: None = None,
        *,
        bias: bool = True,
    ) -> None:
        if momentum is None:
            raise TypeError(f"{type(self).__name__}: expected `momentum` to be a number, got None")
        super().__init__(num_features, eps, momentum, affine, track_running_stats, device, dtype, bias=bias)

    def forward(self, input: Tensor) -> Tensor:
        if isinstance(input, Tensor) and input.ndim not in self.layouts:
            expected = " or ".join(self.layouts.values())
            raise ValueError(f"{type(self).__name__}: expected input {expected}, got shape {input.shape}")
        unbatched = isinstance(input, Tensor) and input.ndim == min(self.layouts)
        x = input.unsqueeze(0) if unbatched else input
        mean, var, affine = self.running_mean, self.running_var, (self.weight, self.bias)
        fixed = not self.training and mean is not None
        moving = (mean, var) if self.training and mean is not None and var is not None else ()
        with self._undo.moving(moving, self.weight):
            y = ops.instance_norm(x, mean, var, *affine, not fixed, self.momentum or 0.0, self.eps)
        return y.squeeze(0) if unbatched else y

    def extra_repr(self) -> str:
        defaults = {"eps": 1e-5, "momentum": 0.1, "affine": False, "track_running_stats": False}
        changed = [f"{k}={getattr(self, k)}" for k, v in defaults.items() if getattr(self, k) != v]
        return ", ".join([str(self.num_features), *changed])


class InstanceNorm1d(InstanceNorm):
    """`nn.group_norm.InstanceNorm` of inputs (N, C, L) or (C, L)."""

    layouts: ClassVar = {2: "(C, L)", 3: "(N, C, L)"}


class InstanceNorm2d(InstanceNorm):
    """`nn.group_norm.InstanceNorm` of images (N, C, H, W) or (C, H, W)."""

    layouts: ClassVar = {3: "(C, H, W)", 4: "(N, C, H, W)"}
