"""The host's share of a CUDA graph: while one is captured, uploads wait, and work before each replay is noted.

`capture.py` begins and ends a recording; the modules of this backend ask here whether one is under way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

Array = Any


class Recording:
    """What the host has to do beside a CUDA graph that is being captured; see `after_capture` and `before_replay`."""

    def __init__(self) -> None:
        self.after: list[Callable[[], None]] = []
        self.kept: list[Any] = []
        self.before_replay: list[Callable[[], None]] = []
        self.mailboxes: dict[Mailbox, None] = {}  # a set in order


_recording: Recording | None = None


@contextmanager
def record() -> Iterator[Recording]:
    """Within the block, a graph is captured (`capture.py` begins and ends it)."""
    global _recording
    _recording = Recording()
    try:
        yield _recording
    finally:
        _recording = None


def capturing() -> bool:
    """Whether a CUDA graph is being captured: nothing runs now, it will at each replay."""
    return _recording is not None


def after_capture(work: Callable[[], None]) -> None:
    """Do `work` now, or, while a graph is captured, after the capture.

    For uploads from the host. A copy that is captured would read host memory again at each replay; what a captured
    kernel reads from a fixed address may as well be written once, before the first replay.
    """
    if _recording is None:
        work()
    else:
        _recording.after.append(work)


def keep(x: Array) -> None:
    """While a graph is captured: keep x alive as long as the graph, whose kernels use its address."""
    if _recording is not None:
        _recording.kept.append(x)


def before_replay(work: Callable[[], None]) -> None:
    """While a graph is captured: do `work` before each of its replays (a learning rate may have changed)."""
    if _recording is not None:
        _recording.before_replay.append(work)


class Mailbox:
    """A small device array that the host looks at without waiting: copied to it now and then, read when it is there.

    array: integers on the device; arrived(values): called with what the host gets, some steps late. It may raise.
    """

    def __init__(self, array: Array, arrived: Callable[[np.ndarray], None]) -> None:
        import cupy

        self.array, self.arrived = array, arrived
        self._pinned = cupy.cuda.alloc_pinned_memory(array.nbytes)
        self._host = np.frombuffer(self._pinned, array.dtype, array.size)
        self._event = cupy.cuda.Event(disable_timing=True)
        self._sent = False

    def poll(self) -> None:
        """Call `arrived` with what has arrived, and send again. Never waits. In a capture: do so after each replay."""
        if _recording is not None:
            _recording.mailboxes[self] = None
            return
        if self._sent and not self._event.done:
            return
        import cupy

        values = self._host.copy() if self._sent else None
        stream, runtime = cupy.cuda.get_current_stream(), cupy.cuda.runtime
        runtime.memcpyAsync(
            self._host.ctypes.data, self.array.data.ptr, self.array.nbytes, runtime.memcpyDeviceToHost, stream.ptr
        )
        self._event.record(stream)
        self._sent = True
        if values is not None:
            self.arrived(values)
