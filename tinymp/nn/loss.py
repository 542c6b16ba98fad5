"""Losses as modules: forward(input, target) calls the op of that name, in FP32 (NVG section 2.3.1)."""

from __future__ import annotations

from .. import ops
from .functions import Function

__all__ = ["BCEWithLogitsLoss", "CrossEntropyLoss", "MSELoss"]


class CrossEntropyLoss(Function, op=ops.cross_entropy, inputs=2):
    """-ln softmax(input) at the target class, or against target probabilities. See `ops.cross_entropy`."""


class MSELoss(Function, op=ops.mse_loss, inputs=2, without=("weight",)):
    """(input - target)^2. See `ops.mse_loss`."""


class BCEWithLogitsLoss(Function, op=ops.binary_cross_entropy_with_logits, inputs=2):
    """Binary cross entropy of sigmoid(input). See `ops.binary_cross_entropy_with_logits`."""
