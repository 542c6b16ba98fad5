"""Optimizers with FP32 master weights, loss scalers, gradient clipping and learning-rate schedules."""

from typing import TYPE_CHECKING, Any

from ..arguments import name_all as _name_all
from ..instead import missing as _missing
from .clip import clip_grad_norm_, clip_grad_value_
from .cycle import OneCycleLR, ReduceLROnPlateau
from .observed import ObservedLossScaler
from .optimizer import Optimizer
from .result import StepResult
from .rules import SGD, Adagrad, Adam, AdamW, RMSprop
from .scaler import DynamicLossScaler, LossScaler, NoLossScaler, StaticLossScaler
from .schedule import CosineAnnealingLR, LambdaLR, LinearLR, MultiStepLR, Schedule, SequentialLR, StepLR

__all__ = [
    "SGD",
    "Adagrad",
    "Adam",
    "AdamW",
    "CosineAnnealingLR",
    "DynamicLossScaler",
    "LambdaLR",
    "LinearLR",
    "LossScaler",
    "MultiStepLR",
    "NoLossScaler",
    "ObservedLossScaler",
    "OneCycleLR",
    "Optimizer",
    "RMSprop",
    "ReduceLROnPlateau",
    "Schedule",
    "SequentialLR",
    "StaticLossScaler",
    "StepLR",
    "StepResult",
    "clip_grad_norm_",
    "clip_grad_value_",
]

_name_all(globals())

if not TYPE_CHECKING:  # type checkers report missing names themselves

    def __getattr__(name: str) -> Any:  # only called for names that do not exist
        raise _missing("tinymp.optim", name, __all__)
