"""Further schedules: MultiStepLR, LinearLR and SequentialLR."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import Any

from ...arguments import count, instance, listed, name_all, number
from ..optimizer import Optimizer
from ..schedule import Schedule


def _milestones(op: str, milestones: Any) -> list[int]:
    return [count(op, "milestones", m) for m in listed(op, "milestones", milestones)]


class MultiStepLR(Schedule):
    """base gamma^(how many milestones are <= t)."""

    def __init__(self, optimizer: Optimizer, milestones: Sequence[int], gamma: float = 0.1) -> None:
        self.milestones = sorted(_milestones("MultiStepLR", milestones))
        self.gamma = number("MultiStepLR", "gamma", gamma, 0)
        super().__init__(optimizer)

    def rate(self, base: float, t: int, group: int) -> float:
        return base * self.gamma ** bisect_right(self.milestones, t)


class LinearLR(Schedule):
    """base times a factor that goes from start_factor to end_factor in total_iters steps and stays there: a warm-up."""

    def __init__(
        self,
        optimizer: Optimizer,
        start_factor: float = 1 / 3,
        end_factor: float = 1.0,
        total_iters: int = 5,
    ) -> None:
        self.start_factor = number("LinearLR", "start_factor", start_factor, 0, above=True)
        self.end_factor = number("LinearLR", "end_factor", end_factor, 0)
        self.total_iters = count("LinearLR", "total_iters", total_iters)
        if max(self.start_factor, self.end_factor) > 1:
            raise ValueError(f"LinearLR: expected factors up to 1, got {start_factor!r} and {end_factor!r}")
        super().__init__(optimizer)

    def rate(self, base: float, t: int, group: int) -> float:
        done = min(t, self.total_iters) / self.total_iters
        return base * (self.start_factor + (self.end_factor - self.start_factor) * done)


class SequentialLR(Schedule):
    """schedulers[0] until t = milestones[0], then schedulers[1], ...; each counts from 0 from where it takes over."""

    def __init__(self, optimizer: Optimizer, schedulers: Sequence[Schedule], milestones: Sequence[int]) -> None:
        self.schedulers = listed("SequentialLR", "schedulers", schedulers)
        for one in self.schedulers:
            instance("SequentialLR", "schedulers", one, Schedule)
        self.milestones = _milestones("SequentialLR", milestones)
        if len(self.schedulers) != len(self.milestones) + 1 or self.milestones != sorted(set(self.milestones)):
            raise ValueError(
                f"SequentialLR: expected n schedulers and n - 1 rising milestones, got {len(self.schedulers)} and "
                f"{self.milestones}"
            )
        if any(s.optimizer is not optimizer for s in self.schedulers):
            raise ValueError("SequentialLR: expected all schedulers to be made for its own optimizer")
        super().__init__(optimizer)

    def _at(self, t: int) -> tuple[Schedule, int]:
        """The schedule that rules at t, and its own t."""
        i = bisect_right(self.milestones, t)
        return self.schedulers[i], t - (self.milestones[i - 1] if i else 0)

    def rate(self, base: float, t: int, group: int) -> float:
        one, own = self._at(t)
        return one.rate(base, own, group)

    def _set(self, t: int, base_lrs: list[float]) -> None:
        one, own = self._at(t)
        one._set(own, base_lrs)  # OneCycleLR sets more than rates


name_all(globals())
