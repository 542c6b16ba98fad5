"""Losses as modules beyond those of nn/loss.py; each calls the op of its name, in FP32 (NVG section 2.3.1)."""

from __future__ import annotations

from math import prod

from ... import ops
from ...arguments import flag, floating, integers, name_all, named, tensor
from ...tensor import Tensor
from ..functions import Function
from ..layers import Linear

__all__ = ["CTCLoss", "HuberLoss", "KLDivLoss", "SampledSoftmaxLoss", "SmoothL1Loss"]


class SmoothL1Loss(Function, op=ops.smooth_l1_loss, inputs=2):
    """Quadratic below beta, linear above, with slope 1. See `ops.smooth_l1_loss`."""


class HuberLoss(Function, op=ops.huber_loss, inputs=2, without=("weight",)):
    """Quadratic below delta, linear above, with slope delta. See `ops.huber_loss`."""


class KLDivLoss(Function, op=ops.kl_div, inputs=2):
    """target (ln target - input), for log-probabilities input. See `ops.kl_div`."""


class CTCLoss(Function, op=ops.ctc_loss, inputs=4):
    """-ln of the probability of targets under all alignments with log_probs. See `ops.ctc_loss`.

    forward takes log_probs (T, N, C), targets, input_lengths and target_lengths.
    """


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


name_all(globals())
