"""Errors of public functions begin with the name that the user called, and PyTorch's face may answer a call instead."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...events import NAMES

# Answers a call whose arguments do not fit (its name, function, arguments and error), or returns NotImplemented. Set by
# tinymp/torch, which knows PyTorch's arguments
otherwise: Callable[[str, Callable, tuple, dict, Exception], Any] | None = None

TOO_LARGE = ("Maximum allowed ", "array is too big")  # NumPy's words, beyond what has an address
RAISED = (IndexError, TypeError, ValueError, RuntimeError, MemoryError)


def answered(error: Exception, name: str, call: Callable, args: tuple, options: dict) -> Any:
    """The face's answer to a call that failed, if it has one; else the error is raised in the name of the call."""
    if isinstance(error, (TypeError, RuntimeError)) and otherwise is not None:
        y = otherwise(name, call, args, options, error)
        if y is not NotImplemented:
            return y
    rename(error, name)
    raise error


def rename(error: Exception, name: str) -> None:
    """Have the message of an error begin with `name`, which the user called, in place of the op that raised it; raise a
    new error where this one is of none of the kinds RAISED.
    """
    message = str(error)
    NAMES.add(name)
    if isinstance(error, OSError):  # its file and number are for programs: the words alone change
        if error.strerror is not None and error.filename is not None and ": " not in error.strerror:
            error.strerror = f"{name}: {error.strerror}"
    # not FloatingPointError: of an observer that was asked to stop there, or of np.errstate
    elif isinstance(error, (*RAISED, OverflowError, ZeroDivisionError, AttributeError)):
        own = message.startswith((f"{name}:", f"{name}()", f"{name}.", f"{name} "))
        if own or message.endswith("in an earlier call)"):  # of a GPU: another call's
            return
        first, _, rest = message.partition(": ")
        text = f"{name}: {rest if first in NAMES else message}"
        # the others: an AttributeError of None or a str, an OverflowError of an integer too large for its dtype
        nearest = TypeError if isinstance(error, AttributeError) else ValueError
        kind = next((kind for kind in RAISED if isinstance(error, kind)), nearest)
        kind = MemoryError if message.startswith(TOO_LARGE) else kind
        if type(error) is not kind or error.args != (message,):
            raise kind(text) from error
        error.args = (text,)
