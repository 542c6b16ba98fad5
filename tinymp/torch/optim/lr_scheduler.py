"""torch.optim.lr_scheduler: tinymp's schedules."""

from ...optim.schedule import Schedule as LRScheduler
from ..space import fill, names

_LRScheduler = LRScheduler
_NAMES = """
    ConstantLR CosineAnnealingLR CosineAnnealingWarmRestarts ExponentialLR LambdaLR LinearLR MultiStepLR
    MultiplicativeLR OneCycleLR PolynomialLR ReduceLROnPlateau SequentialLR StepLR
"""
fill(globals(), "torch.optim.lr_scheduler", names("optim", _NAMES))
