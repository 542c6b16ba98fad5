"""Checkpoints: what a run needs to go on as if it had never stopped, in one safetensors file. No pickle anywhere."""

from __future__ import annotations

import json
import os
from typing import Any

import numpy as np

from . import backend
from .info import __version__
from .writing import replacing

FORMAT = "1"
KEY = "tinymp"  # of the file's metadata: the tree of names and values, as JSON, its arrays by number


def save(path: str | os.PathLike, **parts: Any) -> None:
    """Write `parts` and the state of all random generators to `path`, a safetensors file.

    parts: by name, objects with a state_dict (a model, an optimizer, a scaler, a schedule), or plain values: dicts,
    lists and tuples of NumPy arrays, numbers, strings, booleans and None. Arrays keep dtype and shape, and are exact.

    What was there before stays whole until the new file is; see writing.py.
    TypeError for what is neither; ValueError for two arrays under one name; ImportError without safetensors; OSError
    where nothing can be written.
    """
    numpy = _safetensors("numpy")
    arrays: dict[str, np.ndarray] = {}
    states = {name: part.state_dict() if hasattr(part, "state_dict") else part for name, part in parts.items()}
    tree = {"parts": _packed(states, "", arrays), "random": _packed(backend.get_rng_state(), "random", arrays)}
    metadata = {"format": FORMAT, "version": __version__, KEY: json.dumps(tree)}
    with replacing(path) as temporary:
        numpy.save_file(arrays, temporary, metadata)


def load(path: str | os.PathLike, **objects: Any) -> dict[str, Any]:
    """Read what `save` wrote: the state of each of `objects` by its `load_state_dict`, and of the random generators.

    Returns the other parts, by name, as they were. ValueError for a file that is not such a checkpoint, and where the
    names of `objects` are not in it; an object's own error where its state does not fit; OSError for an unreadable one.
    """
    safetensors = _safetensors()
    try:
        with safetensors.safe_open(path, "np") as file:
            metadata = file.metadata() or {}
            if metadata.get("format") != FORMAT or KEY not in metadata:
                raise ValueError(
                    f"load: expected {path} to be a checkpoint of tinymp in format {FORMAT}, got {metadata}"
                )
            tree = json.loads(metadata[KEY])
            parts, random = (_unpacked(tree[name], file) for name in ("parts", "random"))
    except safetensors.SafetensorError as error:
        raise ValueError(f"load: expected {path} to be a checkpoint of tinymp: {error}") from None
    missing = objects.keys() - parts.keys()
    if missing:
        raise ValueError(f"load: expected {path} to hold {sorted(missing)}, got {sorted(parts)}")
    for name, one in objects.items():
        one.load_state_dict(parts.pop(name))
    backend.set_rng_state(random)
    return parts


def _packed(value: Any, where: str, arrays: dict[str, np.ndarray]) -> Any:
    """`value` for JSON, its arrays moved to `arrays` under names that say where they were.

    What JSON has no form for becomes {kind: content}: arrays, tuples, and all dicts, whose keys may be numbers.
    """
    if isinstance(value, np.ndarray):
        if where in arrays:
            raise ValueError(f"save: expected names without a slash, got two arrays `{where}`")
        arrays[where] = np.asarray(value, order="C")
        return {"array": where}
    if isinstance(value, dict):
        return {"dict": [[key, _packed(one, f"{where}/{key}".strip("/"), arrays)] for key, one in value.items()]}
    if isinstance(value, (list, tuple)):
        content = [_packed(one, f"{where}/{i}".strip("/"), arrays) for i, one in enumerate(value)]
        return {"tuple": content} if isinstance(value, tuple) else content
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise TypeError(f"save: expected `{where}` to be an array, a number or text, got {type(value).__name__}")


def _unpacked(packed: Any, file: Any) -> Any:
    """The inverse of `_packed`."""
    if isinstance(packed, list):
        return [_unpacked(one, file) for one in packed]
    if not isinstance(packed, dict):
        return packed
    ((kind, content),) = packed.items()
    if kind == "array":
        return file.get_tensor(content)
    if kind == "dict":
        return {key: _unpacked(one, file) for key, one in content}
    return tuple(_unpacked(one, file) for one in content)


def _safetensors(part: str = "") -> Any:
    try:
        import safetensors.numpy
    except ImportError:
        raise ImportError("checkpoints are safetensors files: pip install 'tinymp[checkpoint]'") from None
    return getattr(safetensors, part) if part else safetensors
