"""What became of a step: known at once on the host, and when somebody asks on a GPU."""

from __future__ import annotations

from enum import Enum

from .. import backend
from ..autograd import Array


class StepResult(Enum):
    """What became of a step. Truthy when it was applied; schedules, averages and statistics follow it."""

    APPLIED = "applied"
    SKIPPED = "skipped: the loss or the gradients were not finite"
    NO_GRADIENTS = "no gradients"

    @property
    def applied(self) -> bool:
        """Whether the parameters were updated."""
        return self is StepResult.APPLIED

    def __bool__(self) -> bool:
        return self.applied


class PendingResult:
    """The StepResult of a step on a GPU, which the host has not looked at: each look (`applied`, bool, ==) waits.

    After a step that was captured in a CUDA graph it tells of the last replay.
    """

    def __init__(self, skipped: Array) -> None:
        self._skipped = skipped

    def result(self) -> StepResult:
        """APPLIED or SKIPPED. Waits for the GPU."""
        return StepResult.SKIPPED if backend.to_cpu(self._skipped).any() else StepResult.APPLIED

    applied = property(lambda self: self.result().applied, doc="Whether the parameters were updated.")
    name = property(lambda self: self.result().name, doc="The name of the StepResult.")
    value = property(lambda self: self.result().value, doc="The value of the StepResult.")

    def __bool__(self) -> bool:
        return self.applied

    def __eq__(self, other: object) -> bool:
        if isinstance(other, PendingResult):
            return self.result() is other.result()
        return self.result() is other

    def __hash__(self) -> int:
        return hash(self.result())

    def __repr__(self) -> str:
        return f"PendingResult({self.result()})"
