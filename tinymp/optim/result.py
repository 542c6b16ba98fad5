"""The result of a step."""

from __future__ import annotations

from enum import Enum
from typing import Any


class StepResult(Enum):
    """The result of a step. Truthy when it was applied; schedules, averages and statistics follow it.

    On a GPU a step may return an object that looks up its StepResult when it is read.
    """

    APPLIED = "applied"
    SKIPPED = "skipped: the loss or the gradients were not finite"
    NO_GRADIENTS = "no gradients"

    applied = property(lambda self: self is StepResult.APPLIED, doc="True if the parameters were updated.")

    def __bool__(self) -> bool:
        return self is StepResult.APPLIED


def any_applied(where: str, results: tuple[Any, ...]) -> bool:
    """True if one of these results of steps is APPLIED, or none is given; TypeError for anything else."""
    for result in results:
        if not isinstance(getattr(result, "applied", None), bool):
            raise TypeError(f"{where}: expected what step(...) returned, a StepResult, got {result!r}")
    return not results or any(results)
