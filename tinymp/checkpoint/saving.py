"""Checkpoints: all that a run needs to resume as if never stopped, in one safetensors file. No pickle anywhere."""

from __future__ import annotations

import hashlib
import json
import os
import re
import zlib
from collections.abc import Collection, Iterator
from contextlib import suppress
from typing import Any

import numpy as np

from .. import backend
from ..arguments import file, name_all
from ..backend import __version__
from ..backend.extras import hint
from ..dtypes import HALVES, KNOWN, masked
from ..events import here, type_name
from .writing import present, replacing

FORMAT = "2"
SAVED = (*KNOWN, "uint16", "uint32", "uint64", "complex64")  # the dtypes of arrays that `load` reads
KEY = "tinymp"  # of the file's metadata: the tree of names and values, as JSON, its arrays by number
# their names in safetensors
_NAMES = "F64:<f8 F32:<f4 F16:<f2 I64:<i8 I32:<i4 I16:<i2 I8:i1 U16:<u2 U8:u1 BOOL:? BF16:<u2"
_DTYPES = dict(pair.split(":") for pair in _NAMES.split())


def bytes_of(x: Any) -> memoryview:
    """The bytes of x in the order of its elements; for a contiguous array on the CPU without a copy. Python's buffers
    do not know BF16.
    """
    return np.ascontiguousarray(backend.to_cpu(x)).reshape(-1).view(np.uint8).data


def save(path: str | os.PathLike, **parts: Any) -> None:
    """Write `parts` and the state of all random generators to `path`, a safetensors file.

    parts: by name, objects with a state_dict (a model, an optimizer, a scaler, a schedule, a loader), NumPy's random
    generators, or plain values: dicts, lists and tuples of NumPy arrays, numbers, strings, booleans and None. Arrays
    keep dtype and shape, and are exact.

    An existing file stays until the new one is complete. FloatingPointError, without a new file, if the state of an
    object has a NaN, an infinity that is not in a buffer, or weights that FP16 cannot hold. All of several processes
    call this; rank 0 writes, with the generators of all. TypeError for any other part, and for arrays that do not hold
    numbers; ValueError for two arrays under one name; ImportError without safetensors; OSError if nothing can be
    written.
    """
    path = file("save", "path", path)
    arrays: dict[str, np.ndarray] = {}
    states = {name: _state(part) for name, part in parts.items()}
    own = {name: x for name, x in states.items() if x is not parts[name]}
    looked_at = [*own.items(), *((name, _copies(part)) for name, part in parts.items())]
    for found in (found for name, x in looked_at for found in _nonfinite(name, x, _masks(name, parts[name]))):
        raise FloatingPointError(f"save: {found}: the run has diverged, and {path} stays what it was")
    random = packed(here.agree([backend.get_rng_state()], "all"), "random", arrays)
    if not here.rank:
        tree = json.dumps({"parts": packed(states, "", arrays), "random": random})
        metadata = {"format": FORMAT, "version": __version__, KEY: tree, "sha256": _checksum(tree, arrays)}
        put(path, arrays, metadata)


def load(path: str | os.PathLike, **objects: Any) -> dict[str, Any]:
    """Read a file of `save`: the state of each of `objects` by its `load_state_dict`, and of tinymp's own generators.

    Returns the other parts by name. ValueError for a file that is not an unchanged checkpoint, that lacks the name of
    one of `objects`, or whose state for them has an infinity or NaN; an object's own error if its state does not fit;
    TypeError for objects without state; OSError for an unreadable file. After an error or interrupt nothing has
    changed, except weights that were infinite or NaN before.
    """
    metadata, arrays = _opened(path := file("load", "path", path))
    if metadata["sha256"] != _checksum(metadata[KEY], arrays):
        raise ValueError(f"load: {path} is not as it was written (its checksum differs): use an earlier checkpoint")
    tree = unpacked({"dict": json.loads(metadata[KEY]).items()}, arrays)
    parts, random = tree["parts"], tree["random"]
    if missing := objects.keys() - parts.keys():
        raise ValueError(f"load: expected {path} to hold {sorted(missing)}, got {sorted(parts)}")
    require_state("load", objects)
    for found in (found for name, one in objects.items() for found in _nonfinite(name, parts[name], _masks(name, one))):
        raise ValueError(f"load: {path}: {found}: use a checkpoint from before the run diverged")
    before = {name: (_state(one), dict(getattr(one, "__dict__", {}))) for name, one in objects.items()}
    generators, taken = backend.get_rng_state(), []
    try:
        for name, one in objects.items():
            taken.append(name)
            _take(one, parts.pop(name))
        backend.set_rng_state(random[_place(random)])
        if _place(random) < here.rank:  # one of more processes than were saved
            backend.manual_seed(zlib.crc32(str(random).encode()) + here.rank)
        return parts
    except BaseException as error:
        for name in taken:
            state, attributes = before[name]
            with suppress(TypeError, ValueError):  # infinite weights, which no load takes
                _take(objects[name], state)
            getattr(objects[name], "__dict__", {}).update(attributes)  # where a loader is, in a loop under way
        backend.set_rng_state(generators)  # last: a part may have drawn to take its state
        if isinstance(error, (TypeError, ValueError)):
            kind = TypeError if isinstance(error, TypeError) else ValueError
            raise kind(f"load: `{taken[-1]}` of {path}: {error}") from error
        raise


def peek(path: str | os.PathLike) -> dict[str, Any]:
    """The parts of a checkpoint without arrays, by name, from the header alone: the rest of the file is not checked.
    ValueError and OSError as for `load`.
    """
    found = {}
    for name, packed in json.loads(_opened(path, arrays=False)[0][KEY])["parts"]["dict"]:
        with suppress(KeyError):  # it names an array
            found[name] = unpacked(packed, {})
    return found


def put(path: str | os.PathLike, arrays: dict[str, np.ndarray], metadata: dict[str, str]) -> None:
    safetensors = safetensors_module()
    if "__metadata__" in arrays:
        raise ValueError("expected another name than `__metadata__`, which files of safetensors keep for themselves")
    with replacing(path) as temporary:
        try:
            safetensors.numpy.save_file(arrays, temporary, metadata)
        except (safetensors.SafetensorError, TypeError, AttributeError) as error:  # the others: FP8
            if found := re.search(r"\(os error (\d+)\)", str(error)):
                raise OSError(int(found[1]), os.strerror(int(found[1])), str(path)) from None
            raise ValueError(f"expected what a file of safetensors can hold: {error}") from None


def _opened(path: str | os.PathLike, arrays: bool = True) -> tuple[dict[str, str], dict[str, np.ndarray]]:
    safetensors = safetensors_module()
    try:
        with safetensors.safe_open(present(path), "np") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()} if arrays else {}  # noqa: SIM118
    except (safetensors.SafetensorError, TypeError, AttributeError) as error:  # the others: BF16, FP8
        raise ValueError(f"load: expected {path} to be a checkpoint of tinymp: {error}") from None
    if not {"format", "version", "sha256", KEY} <= metadata.keys():
        raise ValueError(f"load: expected {path} to be a checkpoint of tinymp, got safetensors with {metadata}")
    if metadata["format"] != FORMAT:
        made = f"got format {metadata['format']}, written by tinymp {metadata['version']}"
        raise ValueError(f"load: expected {path} to be in format {FORMAT}, which tinymp {__version__} reads, {made}")
    return metadata, tensors


def _checksum(tree: str, arrays: dict[str, np.ndarray]) -> str:
    digest = hashlib.sha256(tree.encode())
    for name, x in sorted(arrays.items()):
        digest.update(f"{name} {x.dtype.str} {x.shape}".encode())
        digest.update(bytes_of(x))
    return digest.hexdigest()


def _state(part: Any) -> Any:
    if isinstance(part, np.random.Generator):
        return here.agree([part.bit_generator.state], "all")
    return part.state_dict() if hasattr(part, "state_dict") else part


def require_state(op: str, objects: dict[str, Any]) -> None:
    for name, one in objects.items():
        if not isinstance(one, np.random.Generator) and not hasattr(one, "load_state_dict"):
            what = f"{op}: expected `{name}` to have state_dict and load_state_dict, or to be a NumPy Generator"
            raise TypeError(f"{what}, got {type_name(one)}; values are given to save, and returned by load")


def _take(part: Any, state: Any) -> None:
    if not isinstance(part, np.random.Generator):
        part.load_state_dict(state)
        return
    part.bit_generator.state = state[_place(state)]
    if more := here.rank - _place(state):  # of more processes than were saved each has numbers of its own
        part.bit_generator.state = part.bit_generator.jumped(more).state  # type: ignore[attr-defined]


def _place(states: list[Any]) -> int:
    """The one of this process, or the last."""
    return min(here.rank, len(states) - 1)


def _nonfinite(where: str, value: Any, masks: Collection[str] = ()) -> Iterator[str]:
    """Complaints about floating arrays that are not finite, with which no run can go on. masks: the names of arrays
    that may be infinite.
    """
    floating = isinstance(value, np.ndarray) and (value.dtype.kind in "fc" or value.dtype in HALVES)
    if floating and (bad := np.count_nonzero(np.isnan(value) if where in masks else ~np.isfinite(value))):
        yield f"expected the numbers of `{where}` to be finite, got {bad} of {value.size} that are infinite or NaN"
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, (list, tuple)) else ()
    for key, one in items:
        yield from _nonfinite(f"{where}/{key}", one, masks)


def _copies(part: Any) -> dict[str, np.ndarray]:
    """The working copies of a model's masters. Where a master has left the range of FP16, `load` would refuse it."""
    parameters: Any = getattr(part, "named_parameters", tuple)()
    return {name: backend.to_cpu(p.array) for name, p in parameters if p.master is not p.array}


def _masks(where: str, part: Any) -> set[str]:
    """The buffers of a model that may be infinite: all but the statistics of normalisation layers."""
    modules = part.named_modules(remove_duplicate=False) if hasattr(part, "named_modules") else ()
    found = (m.named_buffers(path, recurse=False, remove_duplicate=False) for path, m in modules if not m.normalisation)
    return {f"{where}/{name}" for buffers in found for name, _ in buffers}


def packed(value: Any, where: str, arrays: dict[str, np.ndarray]) -> Any:
    """`value` for JSON, its arrays moved to `arrays` under names that say where they were.

    Values without a form in JSON become {kind: content}: arrays, tuples, and all dicts, whose keys may be numbers.
    """
    if isinstance(value, np.ndarray):
        if where in arrays:
            raise ValueError(f"save: expected names without a slash, got two arrays `{where}`")
        if value.dtype.name not in SAVED or masked(value):
            got = "masked places" if value.dtype.name in SAVED else value.dtype
            raise TypeError(f"save: expected `{where}` to hold numbers of {', '.join(SAVED)}, got {got}")
        native = value.dtype.newbyteorder("=")
        arrays[where] = np.asarray(value, native, order="C")  # rounds: never, the order of bytes changes alone
        return {"array": where}
    if isinstance(value, dict):
        keys = {key.item() if isinstance(key, np.generic) else key: one for key, one in value.items()}
        if wrong := [key for key in keys if not isinstance(key, (str, int, float, type(None)))]:
            raise TypeError(f"save: expected the keys of `{where}` to be text or numbers, got {wrong[0]!r}")
        return {"dict": [[key, packed(one, f"{where}/{key}".strip("/"), arrays)] for key, one in keys.items()]}
    if isinstance(value, (list, tuple)):
        content = [packed(one, f"{where}/{i}".strip("/"), arrays) for i, one in enumerate(value)]
        return {"tuple": content} if isinstance(value, tuple) else content
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise TypeError(f"save: expected `{where or 'obj'}` to be an array, a number or text, got {type_name(value)}")


def unpacked(packed: Any, arrays: dict[str, np.ndarray]) -> Any:
    if isinstance(packed, list):
        return [unpacked(one, arrays) for one in packed]
    if not isinstance(packed, dict):
        return packed
    ((kind, content),) = packed.items()
    if kind == "dict":
        return {key: unpacked(one, arrays) for key, one in content}
    return arrays[content] if kind == "array" else tuple(unpacked(content, arrays))


def safetensors_module() -> Any:
    try:
        import safetensors.numpy
    except ImportError:
        raise ImportError(f"checkpoints need pip install safetensors, or {hint('checkpoint')}") from None
    return safetensors


def load_weights(path: str | os.PathLike) -> dict[str, np.ndarray]:
    """The tensors of a safetensors file, by name: `model.load_state_dict(mp.load_weights("resnet50.safetensors"))`.

    BF16 becomes FP32, which holds it exactly. ValueError for a file that is not safetensors, and for other dtypes;
    OSError for an unreadable one.
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
    """Write a model's parameters (their FP32 masters) and buffers under PyTorch's names, for
    `safetensors.torch.load_file`. To resume training use `save`.
    """
    if not hasattr(model, "state_dict"):
        raise TypeError(f"save_weights: expected `model` to be a Module, got {type_name(model)}")
    state = model.state_dict()
    copies = {f"{name}.copy" for name in state}
    arrays = {name: np.asarray(x, order="C") for name, x in state.items() if name not in copies}
    put(file("save_weights", "path", path), arrays, {})


name_all(globals(), require_state, put, safetensors_module, packed, unpacked)
