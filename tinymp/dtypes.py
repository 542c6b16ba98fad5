"""dtypes as users name them: NumPy's, strings, Python's types, and those of PyTorch."""

from __future__ import annotations

from typing import Any

import numpy as np

NAMES = ("float16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8", "bool")


def as_dtype(dtype: Any) -> np.dtype:
    """dtype as NumPy's; `torch.float16` and its like by their names. TypeError for anything but a known dtype.

    PyTorch is not imported: its dtypes are recognised by how they print.
    """
    name = str(dtype)
    if name.startswith("torch.") and not isinstance(dtype, str):
        if name[6:] not in NAMES:
            raise TypeError(f"dtype: expected one of {', '.join(NAMES)}, got {name}")
        return np.dtype(name[6:])
    return np.dtype(dtype)
