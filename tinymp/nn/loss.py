"""Losses as modules: forward(input, target) calls the op of that name, in FP32 (NVG section 2.3.1)."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass

from ..tensor import Tensor
from .functions import Function


class _Loss(Function):
    """Tensors among the fields (weight, pos_weight) become buffers, as in PyTorch."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, value in self._options().items():
            if isinstance(value, Tensor):
                del vars(self)[name]
                self.register_buffer(name, value)


@dataclass(eq=False, repr=False)
class CrossEntropyLoss(_Loss):
    """-ln softmax(input) at the target class, or against target probabilities. See `ops.cross_entropy`."""

    op = "cross_entropy"
    weight: Tensor | None = None
    _: KW_ONLY
    ignore_index: int = -100
    reduction: str = "mean"
    label_smoothing: float = 0.0


@dataclass(eq=False, repr=False)
class NLLLoss(_Loss):
    """-input at the target class, for log-probabilities. See `ops.nll_loss`."""

    op = "nll_loss"
    weight: Tensor | None = None
    _: KW_ONLY
    ignore_index: int = -100
    reduction: str = "mean"


@dataclass(eq=False, repr=False)
class MSELoss(_Loss):
    """(input - target)^2. See `ops.mse_loss`."""

    op = "mse_loss"
    _: KW_ONLY
    reduction: str = "mean"


@dataclass(eq=False, repr=False)
class L1Loss(_Loss):
    """|input - target|. See `ops.l1_loss`."""

    op = "l1_loss"
    _: KW_ONLY
    reduction: str = "mean"


@dataclass(eq=False, repr=False)
class SmoothL1Loss(_Loss):
    """Quadratic below beta, linear above, with slope 1. See `ops.smooth_l1_loss`."""

    op = "smooth_l1_loss"
    _: KW_ONLY
    reduction: str = "mean"
    beta: float = 1.0


@dataclass(eq=False, repr=False)
class HuberLoss(_Loss):
    """Quadratic below delta, linear above, with slope delta. See `ops.huber_loss`."""

    op = "huber_loss"
    reduction: str = "mean"
    delta: float = 1.0


@dataclass(eq=False, repr=False)
class BCEWithLogitsLoss(_Loss):
    """Binary cross entropy of sigmoid(input). See `ops.binary_cross_entropy_with_logits`."""

    op = "binary_cross_entropy_with_logits"
    weight: Tensor | None = None
    _: KW_ONLY
    reduction: str = "mean"
    pos_weight: Tensor | None = None


@dataclass(eq=False, repr=False)
class BCELoss(_Loss):
    """Binary cross entropy of probabilities. See `ops.binary_cross_entropy`."""

    op = "binary_cross_entropy"
    weight: Tensor | None = None
    _: KW_ONLY
    reduction: str = "mean"
