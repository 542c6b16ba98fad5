"""Statistics that follow the optimizer's step: a skipped step leaves no trace in the model.

A training forward of a batch norm changes its running statistics at once, but notes first what they were. The next
step of an optimizer that trains the layer settles the notes: applied, and they are dropped; skipped, and the buffers go
back to what they were. Forward passes under `no_grad` (calibration) are no part of a step and are not noted.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from .. import backend
from ..tensor import Array, Tensor, is_grad_enabled

# id of buffer -> (the buffer, a copy of its data at the first note, a parameter of its layer or None)
_before: dict[int, tuple[weakref.ref[Tensor], Array, Tensor | None]] = {}


def note(buffers: Sequence[Tensor], trained: Tensor | None) -> None:
    """Remember the data of buffers of a layer that are about to change, until `settle`.

    trained: a parameter of the layer; without one, the next step of any optimizer settles the note. Changes are made in
    place: a captured CUDA graph finds the buffers where they were.
    """
    new = [b for b in buffers if id(b) not in _before] if is_grad_enabled() else []
    if not new:
        return
    device = backend.of(new[0].data)
    copies = [device.xp.empty_like(b.data) for b in new]
    device.copy_all([b.data for b in new], copies)
    for b, copy in zip(new, copies):
        gone = functools.partial(_forget, id(b))
        _before[id(b)] = weakref.ref(b, gone), copy, trained


def forget(buffer: Tensor) -> None:
    """Drop the note of a buffer that was set on the user's word (loaded, cast, reset): no step may undo that."""
    _forget(id(buffer))


def _forget(key: int, _: Any = None) -> None:
    _before.pop(key, None)


@contextmanager
def set_aside() -> Iterator[None]:
    """Within the block, steps find only the notes made there, which end with it: for a step beside the training."""
    notes = dict(_before)
    _before.clear()
    try:
        yield
    finally:
        _before.clear()
        _before.update({key: noted for key, noted in notes.items() if noted[0]() is not None})


def settle(skipped: Any, params: list) -> None:
    """Keep or (skipped) undo every noted change in the layers of these parameters, or of no parameters.

    skipped: a bool, or a boolean array without axes on the GPU, which the host does not look at.
    """
    stepped = {id(p) for p in params}
    undone: dict[Any, list[tuple[Array, Tensor]]] = {}  # per device
    for key, (ref, data, trained) in list(_before.items()):
        buffer = ref()
        if trained is None or id(trained) in stepped:
            del _before[key]
            if buffer is not None and skipped is not False:
                undone.setdefault(backend.of(data), []).append((data, buffer))
    for device, noted in undone.items():
        device.copy_all([data for data, _ in noted], [buffer.data for _, buffer in noted], skipped)
        for _, buffer in noted:
            buffer._version[0] += 1
