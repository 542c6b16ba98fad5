"""Checks of values, such as the range of labels, that do not wait for the device: a failed one raises at the next
moment that waits for it anyway, or some steps later.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from .. import backend
from ..backend.devices import Array, Device
from ..fast_path import fast_path
from .layout import contiguous
from .many import Many
from .recording import AsyncCallback, after_capture, capturing, lasting

_MOST_CHECKS = 256
_notes: dict[Any, int] = {}  # what is checked -> its place in the flags
_errors: list[Exception] = []
_flags: Array = None  # int32, (_MOST_CHECKS,): at the place of each entry of _notes, whether it failed
_flags_callback: AsyncCallback | None = None


@fast_path(Device.require)
def require(device: Device, good: Array, error: type[Exception], message: str, values: Any = None) -> None:
    """Note on the device whether all of `good` holds; if not, the error is raised later: see `flag`."""
    failed = flag(message, error(f"{message} (seen on the GPU in an earlier call)"))
    _looking().launch(device.xp, [[contiguous(device.xp, good)]], failed)


@cache
def _looking() -> Many:
    """Sets `failed` to 1 where not all are true."""
    many = Many("require", {"good": np.dtype(np.bool_)}, shared={"failed": "int*"})
    many.trace.lines.append(f"fine = fine && {many.symbols['good'].name};")
    return many.write({}, begin=["bool fine = true;"], end=["if (!fine) atomicOr(failed, 1);"])


def flag(key: Any, error: Exception) -> Array:
    """An int32 array of one element, which a kernel sets to 1 if a check fails. `error` is then raised at the next read
    from the device, or by a check some steps later. So kernels must not trust values that are checked.

    key tells checks apart: the same check in every step takes one flag. RuntimeError where a graph is captured and
    there are too many already.
    """
    global _flags, _flags_callback
    if _flags is None:
        made = _flags = lasting((_MOST_CHECKS,), "int32")
        after_capture(lambda: made.fill(0))  # not in each replay, and also if the capture fails
        _flags_callback = AsyncCallback(_flags, _raise_first)
    if key not in _notes:
        if len(_notes) == _MOST_CHECKS:
            if capturing():
                raise RuntimeError(
                    f"capture: this program makes more than {_MOST_CHECKS} different checks (of labels, indices, ...) "
                    "on the device, which is all that a captured step can report: capture it before the others run, "
                    "or a smaller part of it"
                )
            backend.gpu.synchronize()
            _notes.clear()
            _errors.clear()
        _notes[key] = len(_errors)
        _errors.append(error)
    assert _flags_callback is not None
    _flags_callback.poll()
    i = _notes[key]
    return _flags[i : i + 1]


def raise_noted() -> None:
    """Raise the error of the first check that failed; for callers that have waited for the device."""
    if _notes and not capturing():
        _raise_first(backend.gpu.xp.asnumpy(_flags))


def _raise_first(flags: np.ndarray) -> None:
    failed = np.flatnonzero(flags[: len(_errors)])
    if failed.size and _flags_callback:
        _flags.fill(0)
        _flags_callback.forget()  # an error is raised once
        raise _errors[failed[0]]
