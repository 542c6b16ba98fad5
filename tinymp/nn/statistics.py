"""Statistics that follow the optimizer's step: a skipped step leaves no trace in the model.

A training forward of a batch norm changes its running statistics at once, but notes first what they were. The next
step settles all notes: applied, and they are dropped; skipped, and the buffers go back to what they were.
"""

from __future__ import annotations

from ..tensor import Array, Tensor

_before: dict[int, tuple[Tensor, Array]] = {}  # id of buffer -> (buffer, its data at the first note)


def note(buffer: Tensor) -> None:
    """Remember the data of a buffer that is about to change, until the next `settle`.

    The array itself is kept, so the change must put a new one in its place: `buffer.data = ...`, never in place.
    """
    _before.setdefault(id(buffer), (buffer, buffer.data))


def forget(buffer: Tensor) -> None:
    """Drop the note of a buffer that was set on the user's word (loaded, cast, reset): no step may undo that."""
    _before.pop(id(buffer), None)


def settle(applied: bool) -> None:
    """Keep (applied) or undo (skipped) every change noted since the last call. Called by every optimizer step."""
    if not applied:
        for buffer, data in _before.values():
            buffer.data = data
            buffer._version += 1
    _before.clear()
