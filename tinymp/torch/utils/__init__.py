"""torch.utils: `data`, `tensorboard`."""

from ..space import fill
from . import data

fill(globals(), "torch.utils", {}, "data")
