"""Losses as modules: forward(input, target) calls the op of that name, in FP32 (NVG section 2.3.1)."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from math import prod
from typing import Any

from .. import ops
from ..arguments import flag, floating, integers, named, tensor
from ..tensor import Tensor
from .functions import Function
from .layers import Linear


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


@dataclass(eq=False, repr=False)
class KLDivLoss(_Loss):
    """target (ln target - input), for log-probabilities input. See `ops.kl_div`."""

    op = "kl_div"
    _: KW_ONLY
    reduction: str = "mean"
    log_target: bool = False


@dataclass(eq=False, repr=False)
class CTCLoss(_Loss):
    """-ln of the probability of targets under all alignments with log_probs. See `ops.ctc_loss`."""

    op = "ctc_loss"
    blank: int = 0
    reduction: str = "mean"
    zero_infinity: bool = False

    def forward(self, log_probs: Tensor, targets: Any, input_lengths: Any, target_lengths: Any) -> Tensor:
        """The loss of log_probs (T, N, C)."""
        return super().forward(log_probs, targets, input_lengths, target_lengths)


class SampledSoftmaxLoss(Linear):
    """The output layer of a large vocabulary and its loss: -ln softmax(input W^T + b) at the target class.

    forward(input (..., in_features), target (...)) gives the mean over all targets, FP32. In training the softmax is
    over the targets and `negatives` sampled classes (`ops.sampled_softmax_loss`; number the classes from the most
    frequent to the rarest), after `eval()` over all. weight: (num_classes, in_features), bias: (num_classes,), as in
    Linear. sparse: their gradients hold only the rows of the targets and samples (see `optim.Optimizer`).

    ValueError for more negatives than classes.
    """

    def __init__(
        self, in_features: int, num_classes: int, negatives: int, bias: bool = True, sparse: bool = True
    ) -> None:
        super().__init__(in_features, num_classes, bias)
        (self.negatives,) = integers("SampledSoftmaxLoss", "negatives", negatives, 1, 1)
        if self.negatives > self.out_features:
            raise ValueError(f"SampledSoftmaxLoss: expected at most {self.out_features} negatives, got {negatives}")
        self.sparse = flag("SampledSoftmaxLoss", "sparse", sparse)

    @named
    def logits(self, input: Tensor) -> Tensor:
        """input W^T + b: (..., num_classes), the logits of all classes."""
        return super().forward(input)

    def forward(self, input: Tensor, target: Tensor) -> Tensor:  # type: ignore[override]
        name = "SampledSoftmaxLoss"
        if not floating(name, "input", input).ndim or input.shape[-1] != self.in_features:
            raise ValueError(f"{name}: expected `input` to be (..., {self.in_features}), got shape {input.shape}")
        target = tensor(name, "target", target).reshape(-1)
        rows = input.reshape(prod(input.shape[:-1]), self.in_features)
        if self.training:
            return ops.sampled_softmax_loss(rows, target, self.weight, self.bias, self.negatives, sparse=self.sparse)
        return ops.cross_entropy(self.logits(rows), target)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, negatives={self.negatives}" + ("" if self.sparse else ", sparse=False")
