"""torch.save and torch.load, of state_dicts and what holds them, as files of safetensors. No pickle anywhere."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

import numpy as np

from .. import backend
from ..arguments import file, name_all
from ..checkpoint.saving import packed, safetensors_module, unpacked
from ..checkpoint.writing import present, write
from ..dtypes import as_dtype
from ..events import type_name
from ..nn.loading import exact
from ..tensor import Tensor

KEY = "tinymp.torch"  # of the file's metadata: what holds the arrays, and which of them were Tensors, as JSON
ALONE = "tensor"  # the name of what nothing holds


def save(obj: Any, f: Any) -> None:
    """Write `obj` to f, a path or a binary file to write to, as a file of safetensors.

    obj: Tensors, arrays, numbers, text, booleans and None, in dicts, lists and tuples. A state_dict's names are those
    of the file's tensors. A Parameter is written as its FP32 master, another Tensor in its dtype. What was at a path
    stays whole until the new file is.

    TypeError for a Module, an optimizer or another object; ValueError for two arrays under one name; ImportError
    without safetensors; OSError where nothing can be written.
    """
    marks: dict[str, list] = {}
    arrays: dict[str, np.ndarray] = {}
    where = ALONE if isinstance(obj, (Tensor, np.ndarray)) else ""
    tree = packed(_plain(obj, where, marks), where, arrays)
    content = safetensors_module().numpy.save(arrays, {KEY: json.dumps({"tree": tree, "marks": marks})})
    if hasattr(f, "write"):
        f.write(content)
    else:
        write(file("save", "f", f), content)


def load(f: Any, map_location: Any = None, weights_only: bool = True) -> Any:
    """Read from f, a path or a binary file, what `save` wrote there: a Tensor where one was, an array where one was. A
    file of safetensors that others wrote is a dict of Tensors. weights_only changes nothing: no file is run.

    map_location: the device of the Tensors, by default each one's own; or a dict from the one to the other, or a
    function of
        a Tensor on the CPU and of the name of its device, which returns the Tensor, or None for the default

    ValueError for a file of PyTorch's, with the lines that convert it, and for what is no safetensors; RuntimeError for
    a device that is not there; OSError for an unreadable file.
    """
    safetensors = safetensors_module()
    content = f.read() if hasattr(f, "read") else present(file("load", "f", f)).read_bytes()
    name = os.fspath(f) if isinstance(f, (str, os.PathLike)) else "model.pt"
    if content[:2] == b"PK" or content[:1] == b"\x80":
        new = f"{os.path.splitext(name)[0]}.safetensors"
        raise ValueError(
            f"load: expected a file of tinymp.torch.save or of safetensors, got a pickle of PyTorch ({name}), which "
            "could run anything. Convert it once, with PyTorch:\n"
            f"    state = torch.load({name!r}, map_location='cpu', weights_only=True)\n"
            f"    safetensors.torch.save_file({{k: x.contiguous().clone() for k, x in state.items()}}, {new!r})\n"
            f"and load {new!r}"
        )
    try:
        arrays: dict[str, Any] = {k: x.copy() for k, x in safetensors.numpy.load(content).items()}
    except (safetensors.SafetensorError, TypeError, KeyError, AttributeError) as error:  # the others: BF16, FP8
        also = "; load_weights reads more dtypes" if isinstance(error, KeyError) else ""
        raise ValueError(f"load: expected {name} to be a file of safetensors: {error}{also}") from None
    header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
    if KEY not in header.get("__metadata__", {}):
        return {k: _tensor(x, map_location) for k, x in arrays.items()}
    said = json.loads(header["__metadata__"][KEY])
    for where, (dtype, *tensor) in said["marks"].items():
        arrays[where] = arrays[where].view(as_dtype(dtype))
        if tensor:
            arrays[where] = _tensor(arrays[where], map_location, *tensor)
    return unpacked(said["tree"], arrays)


def _plain(value: Any, where: str, marks: dict[str, list]) -> Any:
    """`value` with arrays in place of Tensors. `marks` takes, by the names that `packed` gives them, their dtypes,
    devices and whether they require a gradient; and the dtype of an array that safetensors does not know: BF16.
    """
    if isinstance(value, Tensor):
        x = backend.to_cpu(exact(value))
        marks[where] = [x.dtype.name, value.device, value.requires_grad and value.is_leaf]
        return _plain(np.asarray(x), where, marks)
    if isinstance(value, np.ndarray) and value.dtype.name == "bfloat16":
        marks.setdefault(where, ["bfloat16"])
        return np.ascontiguousarray(value).reshape(value.shape).view("uint16")
    if isinstance(value, Mapping):
        return {key: _plain(one, f"{where}/{key}".strip("/"), marks) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        items = [_plain(one, f"{where}/{i}".strip("/"), marks) for i, one in enumerate(value)]
        return tuple(items) if isinstance(value, tuple) else items
    if hasattr(value, "state_dict"):
        raise TypeError(
            f"save: expected state_dicts, and dicts of them with numbers, text and Tensors, got {type_name(value)}"
            f"{where and f' for `{where}`'}; write `torch.save(model.state_dict(), path)`"
        )
    return value


def _tensor(x: np.ndarray, map_location: Any, device: str = "cpu", requires_grad: bool = False) -> Tensor:
    if callable(map_location):
        made = map_location(Tensor(x), device)
        if made is not None:
            return made
    elif map_location is not None:
        device = map_location.get(device, device) if isinstance(map_location, Mapping) else map_location
    device = "gpu" if str(device).startswith("cuda") else str(device)
    return Tensor(backend.get(device).asarray(x), requires_grad=requires_grad)


name_all(globals())
