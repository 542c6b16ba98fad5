"""Datasets and a loader. They decide nothing about precision: `policy.cast(batch)` is the user's line."""

from .dataset import Dataset, Subset, TensorDataset, random_split
from .idx import load_idx_folder, read_idx
from .loader import DataLoader, default_collate

__all__ = [
    "DataLoader",
    "Dataset",
    "Subset",
    "TensorDataset",
    "default_collate",
    "load_idx_folder",
    "random_split",
    "read_idx",
]
