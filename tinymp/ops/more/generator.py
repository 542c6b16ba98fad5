"""Generators that a setting decorates."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any


def each_step(setting: Any, function: Callable) -> Callable:
    """The generator function, each of whose steps runs within `setting`; what its caller does meanwhile does not."""

    @wraps(function)
    def generator(*args: Any, **options: Any) -> Any:
        steps, value = function(*args, **options), None
        step = steps.send
        while True:
            try:
                with setting:
                    found = step(value)
            except StopIteration as end:
                return end.value
            try:
                step, value = steps.send, (yield found)
            except BaseException as error:  # thrown into the generator, or the end of it
                step, value = steps.throw, error

    return generator
