"""Datasets and a loader. They decide nothing about precision: `policy.cast(batch)` is the user's line."""

from typing import TYPE_CHECKING

from ..arguments import name_all as _name_all
from .dataset import Dataset, Subset, TensorDataset, random_split
from .loader import DataLoader, default_collate

if TYPE_CHECKING:
    from .more.samplers import *
    from .more.sequences import pad_sequence

__all__ = ["DataLoader", "Dataset", "Subset", "TensorDataset", "default_collate", "random_split"]

_name_all(globals())
