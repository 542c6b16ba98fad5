"""Losses as modules beyond those of nn/loss.py; each calls the op of its name, in FP32 (NVG section 2.3.1)."""

from __future__ import annotations

from ... import ops
from ...arguments import name_all
from ..functions import Function

__all__ = ["CTCLoss", "HuberLoss", "KLDivLoss", "SmoothL1Loss"]


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


name_all(globals())
