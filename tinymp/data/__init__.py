"""Datasets and a loader. They decide nothing about precision: `policy.cast(batch)` is the user's line."""

from ..arguments import name_all as _name_all
from .dataset import Dataset, Subset, TensorDataset, random_split
from .folder import ImageFolder
from .idx import load_idx_folder, read_idx
from .loader import DataLoader, default_collate
from .picture import PICTURES, read_picture
from .sequences import BucketBatchSampler, pad_sequence, padding_share

__all__ = [
    "PICTURES",
    "BucketBatchSampler",
    "DataLoader",
    "Dataset",
    "ImageFolder",
    "Subset",
    "TensorDataset",
    "default_collate",
    "load_idx_folder",
    "pad_sequence",
    "padding_share",
    "random_split",
    "read_idx",
    "read_picture",
]

_name_all(globals())
