"""Weights of other programs, and for them: files of safetensors without anything else."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from ..arguments import file, name_all
from ..events import type_name
from .saving import put, safetensors_module
from .writing import present

# what safetensors calls them
_DTYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "I64": "<i8", "I32": "<i4", "I16": "<i2", "I8": "i1"}
_DTYPES |= {"U16": "<u2", "U8": "u1", "BOOL": "?", "BF16": "<u2"}


def load_weights(path: str | os.PathLike) -> dict[str, np.ndarray]:
    """The tensors of a safetensors file, by name: `model.load_state_dict(mp.load_weights("resnet50.safetensors"))`.

    Such files are written by PyTorch, torchvision and Hugging Face. BF16 becomes FP32, which holds it exactly, and so
    FP32 masters. ValueError for a file that is not safetensors, and for other dtypes; OSError for an unreadable one.
    """
    safetensors, path = safetensors_module(), file("load_weights", "path", path)
    try:
        tensors = safetensors.deserialize(present(path).read_bytes())
    except safetensors.SafetensorError as error:
        raise ValueError(f"load_weights: expected {path} to be a file of safetensors: {error}") from None
    weights = {}
    for name, one in sorted(tensors, key=lambda tensor: tensor[0]):  # they come in any order
        if (kind := one["dtype"]) not in _DTYPES:
            raise ValueError(f"load_weights: expected `{name}` in {path} to be one of {', '.join(_DTYPES)}, got {kind}")
        x = np.frombuffer(one["data"], _DTYPES[kind]).copy()
        if kind == "BF16":  # the upper half of FP32, and the lower one comes first
            x = np.stack([np.zeros_like(x), x], -1).reshape(-1).view(_DTYPES["F32"])
        weights[name] = x.reshape(one["shape"])
    return weights


def save_weights(path: str | os.PathLike, model: Any) -> None:
    """Write a model's parameters (their FP32 masters) and buffers, by PyTorch's names: `safetensors.torch.load_file`
    reads them there. What else it takes to go on training is in `save`.
    """
    if not hasattr(model, "state_dict"):
        raise TypeError(f"save_weights: expected `model` to be a Module, got {type_name(model)}")
    state = model.state_dict()
    copies = {f"{name}.copy" for name in state}
    arrays = {name: np.asarray(x, order="C") for name, x in state.items() if name not in copies}
    put(file("save_weights", "path", path), arrays, {})


name_all(globals())
