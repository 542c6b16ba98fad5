"""Datasets and a loader. They decide nothing about precision: `policy.cast(batch)` is the user's line."""

from typing import TYPE_CHECKING

from ..arguments import name_all as _name_all
from .dataset import Dataset, TensorDataset
from .loader import DataLoader

if TYPE_CHECKING:
    from .more.collate import *
    from .more.datasets import *
    from .more.samplers import *
    from .more.sequences import pad_sequence

__all__ = ["DataLoader", "Dataset", "TensorDataset"]

_name_all(globals())
