"""torch.utils.data: tinymp's datasets, samplers and loader."""

from ... import data as _data
from ..space import fill, names

fill(globals(), "torch.utils.data", names("data", [name for name in _data.__all__ if name != "pad_sequence"]))
