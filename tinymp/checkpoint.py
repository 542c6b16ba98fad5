"""Checkpoints: what a run needs to go on as if it had never stopped, in one safetensors file. No pickle anywhere."""

from __future__ import annotations

import hashlib
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
    tree = json.dumps(
        {"parts": _packed(states, "", arrays), "random": _packed(backend.get_rng_state(), "random", arrays)}
    )
    metadata = {"format": FORMAT, "version": __version__, KEY: tree, "sha256": _checksum(tree, arrays)}
    with replacing(path) as temporary:
        numpy.save_file(arrays, temporary, metadata)


def load(path: str | os.PathLike, **objects: Any) -> dict[str, Any]:
    """Read what `save` wrote: the state of each of `objects` by its `load_state_dict`, and of the random generators.

    Returns the other parts, by name, as they were. ValueError for a file that is not such a checkpoint, whole and as it
    was written, where the names of `objects` are not in it, and for an infinity or NaN in what they would take over; an
    object's own error where its state does not fit; OSError for an unreadable file. After an error nothing has changed.
    """
    parts, random = _read(path)
    missing = objects.keys() - parts.keys()
    if missing:
        raise ValueError(f"load: expected {path} to hold {sorted(missing)}, got {sorted(parts)}")
    for name in objects:
        _require_finite(path, name, parts[name])
    before = {name: one.state_dict() for name, one in objects.items()}
    taken = []
    try:
        for name, one in objects.items():
            taken.append(name)
            one.load_state_dict(parts.pop(name))
        backend.set_rng_state(random)
    except BaseException as error:
        for name in taken:
            objects[name].load_state_dict(before[name])
        if isinstance(error, (TypeError, ValueError)):
            kind = TypeError if isinstance(error, TypeError) else ValueError
            raise kind(f"load: `{taken[-1]}` of {path}: {error}") from error
        raise
    return parts


def _read(path: str | os.PathLike) -> tuple[dict[str, Any], dict]:
    """The parts and the state of the random generators."""
    safetensors = _safetensors()
    try:
        with safetensors.safe_open(path, "np") as file:
            metadata, arrays = file.metadata() or {}, {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (safetensors.SafetensorError, TypeError, AttributeError) as error:  # the others: BF16, FP8
        raise ValueError(f"load: expected {path} to be a checkpoint of tinymp: {error}") from None
    if not {"format", "version", "sha256", KEY} <= metadata.keys():
        raise ValueError(f"load: expected {path} to be a checkpoint of tinymp, got safetensors with {metadata}")
    if metadata["format"] != FORMAT:
        made = f"format {metadata['format']}, written by tinymp {metadata['version']}"
        raise ValueError(
            f"load: expected {path} to be in format {FORMAT}, which tinymp {__version__} reads, got {made}"
        )
    if metadata["sha256"] != _checksum(metadata[KEY], arrays):
        raise ValueError(f"load: {path} is not as it was written (its checksum differs): use an earlier checkpoint")
    tree = json.loads(metadata[KEY])
    return _unpacked(tree["parts"], arrays), _unpacked(tree["random"], arrays)


def _checksum(tree: str, arrays: dict[str, np.ndarray]) -> str:
    """Over all that a checkpoint says."""
    digest = hashlib.sha256(tree.encode())
    for name, x in sorted(arrays.items()):
        digest.update(f"{name} {x.dtype.str} {x.shape}".encode())
        digest.update(np.ascontiguousarray(x).reshape(-1).view(np.uint8).data)
    return digest.hexdigest()


def _require_finite(path: Any, where: str, value: Any) -> None:
    """ValueError for an array of floating numbers that are not all finite: a run that goes on from it is lost."""
    if isinstance(value, np.ndarray) and value.dtype.kind == "f" and not np.isfinite(value).all():
        bad = int(np.count_nonzero(~np.isfinite(value)))
        raise ValueError(
            f"load: expected the numbers of `{where}` in {path} to be finite, got {bad} of {value.size} that are "
            "infinite or NaN: use a checkpoint from before the run diverged"
        )
    for key, one in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        _require_finite(path, f"{where}/{key}", one)


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


def _unpacked(packed: Any, arrays: dict[str, np.ndarray]) -> Any:
    """The inverse of `_packed`."""
    if isinstance(packed, list):
        return [_unpacked(one, arrays) for one in packed]
    if not isinstance(packed, dict):
        return packed
    ((kind, content),) = packed.items()
    if kind == "array":
        return arrays[content]
    if kind == "dict":
        return {key: _unpacked(one, arrays) for key, one in content}
    return tuple(_unpacked(one, arrays) for one in content)


def _safetensors(part: str = "") -> Any:
    try:
        import safetensors.numpy
    except ImportError:
        raise ImportError("checkpoints are safetensors files: pip install 'tinymp[checkpoint]'") from None
    return getattr(safetensors, part) if part else safetensors
