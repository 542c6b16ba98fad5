"""torch.optim.lr_scheduler: tinymp's schedules."""

from ... import optim as _optim
from ...optim.schedule import Schedule as LRScheduler
from ..space import fill, names

_LRScheduler = LRScheduler
_NAMES = [name for name in _optim.__all__ if name.endswith(("LR", "Restarts", "Plateau"))]
fill(globals(), "torch.optim.lr_scheduler", names("optim", _NAMES))
