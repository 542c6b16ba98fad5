"""Datasets and a loader. They decide nothing about precision: `policy.cast(batch)` is the user's line."""

from .dataset import Dataset, Subset, TensorDataset, random_split
from .folder import ImageFolder
from .idx import load_idx_folder, read_idx
from .loader import DataLoader, default_collate
from .picture import PICTURES, read_picture

__all__ = [
    "PICTURES",
    "DataLoader",
    "Dataset",
    "ImageFolder",
    "Subset",
    "TensorDataset",
    "default_collate",
    "load_idx_folder",
    "random_split",
    "read_idx",
    "read_picture",
]
