"""The host's share of a CUDA graph: while one is captured, uploads wait, and work before each replay is noted. A
recording belongs to its thread, like the stream that is captured: what another thread does meanwhile is done at once.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np

Array = Any


class Recording:
    """The host's tasks for a CUDA graph that is being captured; see `after_capture` and `before_replay`."""

    def __init__(self) -> None:
        self.after: list[Callable[[], None]] = []
        self.before_replay: list[Callable[[], None]] = []
        self.callbacks: dict[AsyncCallback, None] = {}  # a set in order


class _Here(threading.local):
    recording: Recording | None = None


_here = _Here()


@contextmanager
def record() -> Iterator[Recording]:
    """Within the block, this thread captures a graph (gpu/capture.py begins and ends it)."""
    try:
        _here.recording = Recording()
        yield _here.recording
    finally:
        _here.recording = None


def capturing() -> bool:
    """True if this thread captures a CUDA graph: nothing runs now, but at each replay."""
    return _here.recording is not None


def after_capture(work: Callable[[], None]) -> None:
    """Do `work` now, or, while a graph is captured, after the capture. For uploads from the host: a copy that is
    captured would read host memory again at each replay.
    """
    if _here.recording is None:
        work()
    else:
        _here.recording.after.append(work)


_under_way: list[tuple[Any, Any]] = []  # pinned memory that is being copied, behind the event that ends the copy


def _hold(memory: Any, event: Any) -> None:
    """Record the event behind a copy that was just started, and hold its pinned memory until it is done: CuPy's pool
    gives pinned memory to the next who asks as soon as nobody holds it. Without a lock, which Ctrl-C could leave
    locked.
    """
    event.record()
    _under_way.append((memory, event))
    for pair in _under_way[:]:
        if pair[1].done:
            with suppress(ValueError):  # another thread was first
                _under_way.remove(pair)


def upload(host: np.ndarray, array: Array) -> None:
    """Copy host into a C-contiguous device array of its size and dtype; not while a graph is captured. By way of pinned
    memory: before a copy from any other, the driver may wait until the device has done all its work.
    """
    import cupy

    if host.size:
        pinned = cupy.cuda.alloc_pinned_memory(host.nbytes)
        np.frombuffer(pinned, host.dtype, host.size)[:] = host.ravel()
        array.data.copy_from_host_async(pinned.ptr, host.nbytes)
        _hold(pinned, cupy.cuda.Event(disable_timing=True))


def lasting(shape: tuple[int, ...], dtype: str) -> Array:
    """An array whose content replays of a graph leave alone, also if it is made while the graph is captured: it has
    memory of its own then. A pool would hand out what an earlier kernel of the same graph has written to.
    """
    import cupy

    if _here.recording is None:
        return cupy.empty(shape, dtype)
    memory = cupy.cuda.Memory(max(math.prod(shape) * np.dtype(dtype).itemsize, 1))
    return cupy.ndarray(shape, dtype, cupy.cuda.MemoryPointer(memory, 0))


def before_replay(work: Callable[[], None]) -> None:
    """While a graph is captured: do `work` before each of its replays (a learning rate may have changed)."""
    if _here.recording is not None:
        _here.recording.before_replay.append(work)


reads = 0  # how often the host has waited for values of the device: a step that does so cannot be captured


def note_read() -> None:
    global reads
    reads += 1


class Outdated(RuntimeError):
    """Something has changed since a graph was captured that the graph cannot follow."""


class AsyncCallback:
    """Calls the host with a small device array of integers, without waiting: it is copied now and then, and read when
    it is there. arrived(values): called with what the host gets, some steps late. It may raise.
    """

    def __init__(self, array: Array, arrived: Callable[[np.ndarray], None]) -> None:
        import cupy

        self.array, self.arrived = array, arrived
        self._pinned = cupy.cuda.alloc_pinned_memory(array.nbytes)
        self._host = np.frombuffer(self._pinned, array.dtype, array.size)
        self._event = cupy.cuda.Event(disable_timing=True)
        self._sent = False

    def forget(self) -> None:
        """Do not look at what is under way: it was copied before the array changed."""
        self._sent = False

    def poll(self) -> None:
        """Call `arrived` with what has arrived, and send again. Never waits. In a capture: do so after each replay."""
        if _here.recording is not None:
            _here.recording.callbacks[self] = None
            return
        if self._sent and not self._event.done:
            return
        import cupy

        values = self._host.copy() if self._sent else None
        stream, runtime = cupy.cuda.get_current_stream(), cupy.cuda.runtime
        runtime.memcpyAsync(
            self._host.ctypes.data, self.array.data.ptr, self.array.nbytes, runtime.memcpyDeviceToHost, stream.ptr
        )
        _hold(self._pinned, self._event)
        self._sent = True
        if values is not None:
            self.arrived(values)
