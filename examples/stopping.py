"""How programs end early: on Ctrl-C or SIGTERM a training ends the step that it is in, and what ran is reported.

The exit code is then that of a program which the signal has ended, 128 and its number. A second signal ends at once.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

_asked: signal.Signals | None = None


@contextmanager
def noted() -> Iterator[None]:
    """Within the block (or the function that it decorates) the first such signal is noted, and `asked` tells of it."""
    global _asked
    before = {}

    def note(number: int, frame: FrameType | None) -> None:
        global _asked
        _asked = signal.Signals(number)
        for one, handler in before.items():
            signal.signal(one, handler)

    _asked = None
    try:
        if threading.current_thread() is threading.main_thread():  # no other hears signals
            for one in (signal.SIGINT, signal.SIGTERM):
                before[one] = signal.signal(one, note)
        yield
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)
        _asked = None


def asked(group: Any = None) -> str | None:
    """The name of the signal that has come, if one has; with a group, to any of its processes."""
    name = _asked.name if _asked else None
    return name if group is None else group.agreed(name)[0]


def code() -> int:
    """What the program exits with because of it, or 0."""
    return 128 + _asked if _asked else 0
