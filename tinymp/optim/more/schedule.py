"""Further schedules, and SequentialLR, which runs others one after the other."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from typing import Any

from ...arguments import count, instance, listed, name_all, number
from ..optimizer import Optimizer
from ..schedule import LambdaLR, Schedule

__all__ = ["ConstantLR", "CosineAnnealingWarmRestarts", "ExponentialLR", "LinearLR", "MultiStepLR", "MultiplicativeLR"]
__all__ += ["PolynomialLR", "SequentialLR"]


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


class ExponentialLR(Schedule):
    """base gamma^t."""

    def __init__(self, optimizer: Optimizer, gamma: float) -> None:
        self.gamma = number("ExponentialLR", "gamma", gamma, 0)
        super().__init__(optimizer)

    def rate(self, base: float, t: int, group: int) -> float:
        return base * self.gamma**t


class ConstantLR(Schedule):
    """base times factor until t = total_iters, base from there on."""

    def __init__(self, optimizer: Optimizer, factor: float = 1 / 3, total_iters: int = 5) -> None:
        self.factor = number("ConstantLR", "factor", factor, 0, 1)
        self.total_iters = count("ConstantLR", "total_iters", total_iters)
        super().__init__(optimizer)

    def rate(self, base: float, t: int, group: int) -> float:
        return base * self.factor if t < self.total_iters else base


class PolynomialLR(Schedule):
    """base (1 - t / total_iters)^power, and 0 from t = total_iters on."""

    def __init__(self, optimizer: Optimizer, total_iters: int = 5, power: float = 1.0) -> None:
        self.total_iters = count("PolynomialLR", "total_iters", total_iters)
        self.power = number("PolynomialLR", "power", power, 0, above=True)
        super().__init__(optimizer)

    def rate(self, base: float, t: int, group: int) -> float:
        return base * (1 - min(t, self.total_iters) / self.total_iters) ** self.power


class MultiplicativeLR(LambdaLR):
    """base lr_lambda(1) lr_lambda(2) ... lr_lambda(t); lr_lambda is one function, or a list with one for each group."""

    def rate(self, base: float, t: int, group: int) -> float:
        return base * math.prod(map(self.lr_lambdas[group], range(1, t + 1)))


class CosineAnnealingWarmRestarts(Schedule):
    """eta_min + (base - eta_min) (1 + cos(pi s / T)) / 2 at step s of a cycle; T is T_0, T_0 T_mult, T_0 T_mult^2, ...

    Each cycle starts from base again (Loshchilov and Hutter, 2017).
    """

    def __init__(self, optimizer: Optimizer, T_0: int, T_mult: int = 1, eta_min: float = 0.0) -> None:
        self.T_0 = count("CosineAnnealingWarmRestarts", "T_0", T_0)
        self.T_mult = count("CosineAnnealingWarmRestarts", "T_mult", T_mult)
        self.eta_min = number("CosineAnnealingWarmRestarts", "eta_min", eta_min, 0)
        super().__init__(optimizer)

    def rate(self, base: float, t: int, group: int) -> float:
        s, length = t, self.T_0
        if self.T_mult == 1:
            s = t % length
        while s >= length:
            s, length = s - length, length * self.T_mult
        return self.eta_min + (base - self.eta_min) * (1 + math.cos(math.pi * s / length)) / 2


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
