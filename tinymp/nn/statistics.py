"""Statistics that follow the optimizer's step: a skipped step leaves no trace in the model.

A training forward of a batch norm changes its running statistics at once, but notes first what they were. The next
step of an optimizer that trains the layer settles the notes: applied, and they are dropped; skipped, and the buffers go
back to what they were. Forward passes under `no_grad` (calibration) are no part of a step and are not noted.
"""

from __future__ import annotations

import weakref

from ..tensor import Array, Tensor, is_grad_enabled

# id of buffer -> (the buffer, its data at the first note, a parameter of its layer or None)
_before: dict[int, tuple[weakref.ref[Tensor], Array, Tensor | None]] = {}


def note(buffer: Tensor, trained: Tensor | None) -> None:
    """Remember the data of a buffer that is about to change, until `settle`.

    trained: a parameter of the same layer; without one, the next step of any optimizer settles the note. The array
    itself is kept, so the change must put a new one in its place: `buffer.data = ...`, never in place.
    """
    if is_grad_enabled() and id(buffer) not in _before:
        key = id(buffer)
        _before[key] = weakref.ref(buffer, lambda _: _before.pop(key, None)), buffer.data, trained


def forget(buffer: Tensor) -> None:
    """Drop the note of a buffer that was set on the user's word (loaded, cast, reset): no step may undo that."""
    _before.pop(id(buffer), None)


def settle(applied: bool, params: list) -> None:
    """Keep (applied) or undo (skipped) every noted change in the layers of these parameters, or of no parameters."""
    stepped = {id(p) for p in params}
    for key, (ref, data, trained) in list(_before.items()):
        buffer = ref()
        if trained is None or id(trained) in stepped:
            del _before[key]
            if not applied and buffer is not None:
                buffer.data = data
