"""Statistics that follow the optimizer's step: a skipped step leaves no trace in the model.

A training forward of a batch norm changes its running statistics at once, but its layer keeps what they were until the
iteration ends. Each thread has iterations of its own:

    scaler.step(optimizer)  settles the layers that the optimizer trains: if the step was applied, their statistics
                            stay; if it was skipped, they go back to what they were before the iteration
    scaler.update()         settles the others (frozen layers, layers without parameters or in no optimizer that
                            stepped) by the last step of the iteration
    optimizer.step()        cannot be skipped: the statistics of all layers stay

No step undoes what the user did to a buffer in the meantime (loaded, cast, moved, reset or overwrote it). Forward
passes under `no_grad` (calibration) are no part of a step.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from weakref import WeakSet

from . import backend
from .autograd import Array, is_grad_enabled
from .tensor import Tensor


class _Iteration(threading.local):
    """The layers whose statistics moved in the current iteration of this thread, as their `Undo`s."""

    def __init__(self) -> None:
        self.open: WeakSet[Undo] = WeakSet()


_iteration = _Iteration()


class Undo:
    """What it takes to undo the changes of one layer's buffers. The layer owns it."""

    __slots__ = ("__weakref__", "_noted", "_trained", "_versions")

    def __init__(self) -> None:
        self._noted: list[tuple[Tensor, Array, Array]] = []  # buffer, its array, a copy of that at the start
        self._versions: list[int] = []  # of the buffers, when the layer changed them last
        self._trained: Tensor | None = None

    def __reduce__(self) -> tuple:
        return Undo, ()  # a copied or unpickled layer begins anew

    @contextmanager
    def moving(self, buffers: Sequence[Tensor], trained: Tensor | None) -> Iterator[None]:
        """Within the block the layer changes its buffers, in place: a captured CUDA graph finds them where they were.

        trained: a parameter of the layer, by which an optimizer knows whether it trains the layer.
        """
        if self in _iteration.open and not self._untouched():
            _iteration.open.discard(self)  # the user has set the buffers: their earlier values must not come back
        if buffers and is_grad_enabled() and self not in _iteration.open:
            device = backend.of(buffers[0].data)
            copies = [device.xp.empty_like(b.data) for b in buffers]
            device.copy_all([b.data for b in buffers], copies)
            self._noted = [(b, b.data, copy) for b, copy in zip(buffers, copies)]
            self._trained = trained
            _iteration.open.add(self)
        try:
            yield
        finally:
            self._versions = [b.version for b, _, _ in self._noted]

    def _untouched(self) -> bool:
        """Whether nothing but the layer has changed the buffers."""
        return all(b.data is x and b.version == n for (b, x, _), n in zip(self._noted, self._versions))


@contextmanager
def set_aside() -> Iterator[None]:
    """Within the block, this thread is in another iteration: for a step that is not part of the training."""
    aside, _iteration.open = _iteration.open, WeakSet()
    try:
        yield
    finally:
        _iteration.open = aside


def settle(skipped: Any, params: list | None = None) -> None:
    """Keep or (skipped) undo what this iteration changed in the layers of these parameters; None: in all layers.

    skipped: a bool, or a boolean array of one element on the GPU, which the host does not read.
    """
    stepped = None if params is None else {id(p) for p in params}
    undone: dict[Any, list[tuple[Array, Tensor]]] = {}  # per device
    for undo in list(_iteration.open):
        if stepped is None or id(undo._trained) in stepped:
            _iteration.open.discard(undo)
            if skipped is not False and undo._untouched():
                for buffer, _, before in undo._noted:
                    undone.setdefault(backend.of(before), []).append((before, buffer))
            undo._noted = []
    wanted = skipped.reshape(()) if hasattr(skipped, "reshape") else skipped
    for device, noted in undone.items():
        device.copy_all([before for before, _ in noted], [buffer.data for _, buffer in noted], wanted)
        for _, buffer in noted:
            buffer.bump_version()
