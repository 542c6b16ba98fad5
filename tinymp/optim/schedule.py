"""Learning-rate schedules: the rate as a function of t, the number of applied steps (or of epochs).

Each is a closed form, never a product over the past: a resumed run has the same rates as one that never stopped. The
values are PyTorch's, but a schedule that receives the StepResult of an iteration does not advance for a skipped step.
(NVG section 2.3.2 lets schedules ignore skips as long as these are rare.)
"""

from __future__ import annotations

import math
from typing import Any

from ..arguments import count, instance, listed, number, same_keys, whole
from .optimizer import Optimizer
from .result import StepResult, any_applied


class Schedule:
    """Sets the learning rate of every parameter group to `rate(initial rate, t)`, from t = 0 on.

    base_lrs    the groups' initial rates: a group's "initial_lr", or its "lr" when the first schedule is made or, of a
                group that is added later, at the next step
    last_epoch  t
    """

    def __init__(self, optimizer: Optimizer) -> None:
        self._name = type(self).__name__
        self.optimizer = instance(self._name, "optimizer", optimizer, Optimizer)
        for group in optimizer.param_groups:
            group.setdefault("initial_lr", group["lr"])
        self.base_lrs: list[float] = [group["initial_lr"] for group in optimizer.param_groups]
        self.last_epoch = 0
        self._set(self.last_epoch, self.base_lrs)

    def rate(self, base: float, t: int, group: int) -> float:
        """The learning rate at t of the group with that index, whose initial rate is `base`."""
        raise NotImplementedError(f"{self._name} has no rate")

    def step(self, *results: StepResult) -> None:
        """Advance t by one; with the results of an iteration's steps, only if one is APPLIED (this waits for a GPU).

        Without arguments it always advances, for schedules that count epochs. TypeError for anything else.
        """
        if any_applied(f"{self._name}.step", results):
            for group in self.optimizer.param_groups[len(self.base_lrs) :]:
                group.setdefault("initial_lr", group["lr"])
                self.base_lrs.append(group["initial_lr"])
            self.last_epoch += 1
            self._set(self.last_epoch, self.base_lrs)

    def _set(self, t: int, base_lrs: list[float]) -> None:
        for group, rate in zip(self.optimizer.param_groups, self._rates(t, base_lrs), strict=True):
            group["lr"] = rate

    def _rates(self, t: int, base_lrs: list[float]) -> list[float]:
        return [number(self._name, "lr", self.rate(base, t, i), 0) for i, base in enumerate(base_lrs)]

    def get_last_lr(self) -> list[float]:
        """The groups' rates now."""
        return [group["lr"] for group in self.optimizer.param_groups]

    def state_dict(self) -> dict[str, Any]:
        """t and the initial rates; the other options belong to the constructor."""
        return {"last_epoch": self.last_epoch, "base_lrs": list(self.base_lrs)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore a result of `state_dict`, and set the rates.

        ValueError or TypeError if keys or the number of groups differ or a value is invalid; then nothing has changed.
        """
        where = f"{self._name}.load_state_dict"
        same_keys(where, "state_dict", state_dict, {"last_epoch", "base_lrs"})
        rates = [number(where, "base_lrs", rate, 0) for rate in listed(where, "base_lrs", state_dict["base_lrs"])]
        if len(rates) != len(self.base_lrs):
            raise ValueError(f"{where}: expected rates of {len(self.base_lrs)} groups, got {len(rates)}")
        t = whole(where, "last_epoch", state_dict["last_epoch"])
        self._rates(t, rates)  # raises for invalid values, before anything changes
        self.last_epoch, self.base_lrs = t, rates
        self._set(self.last_epoch, self.base_lrs)


class CosineAnnealingLR(Schedule):
    """eta_min + (base - eta_min) (1 + cos(pi t / T_max)) / 2; it rises again after T_max (Loshchilov, Hutter, 2017)."""

    def __init__(self, optimizer: Optimizer, T_max: int, eta_min: float = 0.0) -> None:
        self.T_max = count("CosineAnnealingLR", "T_max", T_max)
        self.eta_min = number("CosineAnnealingLR", "eta_min", eta_min, 0)
        super().__init__(optimizer)
        if self.eta_min > max(self.base_lrs):
            raise ValueError(f"CosineAnnealingLR: expected `eta_min` up to {max(self.base_lrs):g}, got {eta_min!r}")

    def rate(self, base: float, t: int, group: int) -> float:
        return self.eta_min + (base - self.eta_min) * (1 + math.cos(math.pi * t / self.T_max)) / 2
