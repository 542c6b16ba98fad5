"""Schedules beyond those of optim/schedule.py: most follow t, SequentialLR runs others one after the other,
ReduceLROnPlateau follows a metric.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Sequence
from functools import partial
from inspect import Parameter, Signature
from itertools import pairwise
from typing import Any

from ...arguments import choice, count, flag, function, instance, listed, named, number, same_keys, whole
from ..optimizer import Optimizer
from ..result import StepResult, any_applied
from ..schedule import Schedule

__all__ = [
    "ConstantLR",
    "CosineAnnealingWarmRestarts",
    "ExponentialLR",
    "LambdaLR",
    "LinearLR",
    "MultiStepLR",
    "StepLR",
]
__all__ += ["SWALR", "MultiplicativeLR", "OneCycleLR", "PolynomialLR", "ReduceLROnPlateau", "SequentialLR"]


def _milestones(op: str, name: str, milestones: Any) -> list[int]:
    return [count(op, name, m) for m in listed(op, name, milestones)]


def _row(name: str, says: str, rate: Callable, **options: tuple) -> Any:
    """The schedule with this rate(self, base, t), whose constructor takes these options: (check, *default) by name."""
    kind, none = Parameter.POSITIONAL_OR_KEYWORD, [Parameter.empty]
    fields = [Parameter(field, kind, default=(default or none)[0]) for field, (_, *default) in options.items()]

    def __init__(self: Any, optimizer: Optimizer, *args: Any, **kwargs: Any) -> None:
        given = Signature(fields).bind(*args, **kwargs)
        given.apply_defaults()
        for field, value in given.arguments.items():
            setattr(self, field, options[field][0](name, field, value))
        Schedule.__init__(self, optimizer)

    contents = {"__init__": __init__, "__signature__": Signature([Parameter("optimizer", kind), *fields])}
    contents |= {"__doc__": says, "__module__": __name__, "rate": lambda self, base, t, group: rate(self, base, t)}
    return type(name, (Schedule,), contents)


_from_0, _up_to_1 = partial(number, least=0), partial(number, least=0, most=1)

# fmt: off
StepLR = _row("StepLR", "base gamma^floor(t / step_size).",
    lambda s, base, t: base * s.gamma ** (t // s.step_size), step_size=(count,), gamma=(_from_0, 0.1))
MultiStepLR = _row("MultiStepLR", "base gamma^(how many milestones are <= t).",
    lambda s, base, t: base * s.gamma ** sum(m <= t for m in s.milestones), milestones=(_milestones,),
    gamma=(_from_0, 0.1))
ExponentialLR = _row("ExponentialLR", "base gamma^t.", lambda s, base, t: base * s.gamma**t, gamma=(_from_0,))
LinearLR = _row("LinearLR", "base times a factor from start_factor to end_factor in total_iters steps: a warm-up.",
    lambda s, base, t: base * (s.start_factor + (s.end_factor - s.start_factor) * min(t / s.total_iters, 1.0)),
    start_factor=(partial(_up_to_1, above=True), 1 / 3), end_factor=(_up_to_1, 1.0), total_iters=(count, 5))
ConstantLR = _row("ConstantLR", "base times factor until t = total_iters, base from there on.",
    lambda s, base, t: base * s.factor if t < s.total_iters else base, factor=(_up_to_1, 1 / 3), total_iters=(count, 5))
PolynomialLR = _row("PolynomialLR", "base (1 - t / total_iters)^power, and 0 from t = total_iters on.",
    lambda s, base, t: base * (1 - min(t / s.total_iters, 1.0)) ** s.power,
    total_iters=(count, 5), power=(partial(number, least=0, above=True), 1.0))
# fmt: on


class LambdaLR(Schedule):
    """base times lr_lambda(t); lr_lambda is one function, or a list with one for each group."""

    def __init__(self, optimizer: Optimizer, lr_lambda: Callable[[int], float] | Sequence[Callable]) -> None:
        groups = len(getattr(optimizer, "param_groups", ()))
        self.lr_lambdas = [lr_lambda] * groups if callable(lr_lambda) else listed("LambdaLR", "lr_lambda", lr_lambda)
        if len(self.lr_lambdas) != groups:
            raise ValueError(f"LambdaLR: expected a function for each of {groups} groups, got {len(self.lr_lambdas)}")
        for one in self.lr_lambdas:
            function("LambdaLR", "lr_lambda", one)
        super().__init__(optimizer)

    def rate(self, base: float, t: int, group: int) -> float:
        return base * self.lr_lambdas[group](t)


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
        self.milestones = _milestones("SequentialLR", "milestones", milestones)
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


class OneCycleLR(Schedule):
    """From max_lr / div_factor up to max_lr in pct_start of all steps, then down to the first rate / final_div_factor.

    (Smith & Topin, 2018.) With three_phase the rate first falls back to the first one. There are total_steps steps, or
    epochs times steps_per_epoch; ValueError beyond. anneal_strategy: "cos" or "linear". cycle_momentum: momentum
    (beta1) moves the other way, from max_momentum to base_momentum and back. max_lr and momenta may be lists, one per
    group.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        max_lr: float | Sequence[float],
        total_steps: int | None = None,
        epochs: int | None = None,
        steps_per_epoch: int | None = None,
        pct_start: float = 0.3,
        anneal_strategy: str = "cos",
        cycle_momentum: bool = True,
        base_momentum: float | Sequence[float] = 0.85,
        max_momentum: float | Sequence[float] = 0.95,
        div_factor: float = 25.0,
        final_div_factor: float = 1e4,
        three_phase: bool = False,
    ) -> None:
        name, groups = "OneCycleLR", getattr(optimizer, "param_groups", [])
        given = {"epochs": epochs, "steps_per_epoch": steps_per_epoch}
        factors = [count(name, field, n) for field, n in given.items() if n is not None]
        if total_steps is None and len(factors) < 2:
            raise ValueError(f"{name}: expected total_steps, or epochs and steps_per_epoch")
        self.total_steps = count(name, "total_steps", math.prod(factors) if total_steps is None else total_steps)
        self.pct_start = number(name, "pct_start", pct_start, 0, 1)
        self.three_phase = flag(name, "three_phase", three_phase)
        self.anneal_strategy = choice(name, "anneal_strategy", anneal_strategy, ("cos", "linear"))
        self.div_factor = number(name, "div_factor", div_factor, 0, above=True)
        self.final_div_factor = number(name, "final_div_factor", final_div_factor, 0, above=True)
        self.max_lrs = _per_group(name, "max_lr", max_lr, len(groups))
        low = _per_group(name, "base_momentum", base_momentum, len(groups), 1)
        high = _per_group(name, "max_momentum", max_momentum, len(groups), 1)
        self.momenta = list(zip(low, high)) if flag(name, "cycle_momentum", cycle_momentum) else []
        if self.momenta and any("momentum" not in g and "betas" not in g for g in groups):
            raise ValueError(f"{name}: expected an optimizer with momentum or betas for cycle_momentum=True")
        if isinstance(optimizer, Optimizer):
            for group, rate in zip(groups, self.max_lrs):
                group["initial_lr"] = rate / self.div_factor
        super().__init__(optimizer)

    def rate(self, base: float, t: int, group: int) -> float:
        return self._along(t, base, self.max_lrs[group], base / self.final_div_factor)

    def _along(self, t: int, first: float, top: float, last: float) -> float:
        """The value at t of a quantity that goes from `first` to `top` to `last`."""
        if t > self.total_steps:
            raise ValueError(f"OneCycleLR: expected at most {self.total_steps} steps, got {t}")
        up, end = self.pct_start * self.total_steps - 1, self.total_steps - 1
        back = [(2 * up, first)] if self.three_phase else []
        points = [(0.0, first), (up, top), *back, (float(end), last)]
        start, a, until, b = next((*x, *y) for x, y in pairwise(points) if t <= y[0] or y is points[-1])
        done = min((t - start) / (until - start), 1.0) if until > start else 1.0
        return a + (b - a) * _eased(self.anneal_strategy, done)

    def _set(self, t: int, base_lrs: list[float]) -> None:
        super()._set(t, base_lrs)
        for group, (low, high) in zip(self.optimizer.param_groups, self.momenta):
            momentum = self._along(t, high, low, high)
            if "betas" in group:
                group["betas"] = (momentum, *group["betas"][1:])
            else:
                group["momentum"] = momentum


def _eased(strategy: str, done: float) -> float:
    return done if strategy == "linear" else (1 - math.cos(math.pi * done)) / 2


def _per_group(name: str, field: str, value: Any, groups: int, most: float = math.inf) -> list[float]:
    values = list(value) if isinstance(value, (list, tuple)) else [value] * groups
    if len(values) != groups:
        raise ValueError(f"{name}: expected a {field} for each of {groups} groups, got {len(values)}")
    return [number(name, field, v, 0, most) for v in values]


class ReduceLROnPlateau(Schedule):
    """Multiplies the rates by `factor` when a metric has not become better for more than `patience` calls of `step`.

    mode: "min" (smaller is better) or "max". A metric is better if it beats `best` by more than threshold, relative to
    it (threshold_mode "rel") or absolute ("abs"). After a cut, `cooldown` calls do not count in `num_bad_epochs`.
    min_lr: a floor, or one per group; a cut by less than eps is not made.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        mode: str = "min",
        factor: float = 0.1,
        patience: int = 10,
        threshold: float = 1e-4,
        threshold_mode: str = "rel",
        cooldown: int = 0,
        min_lr: float | Sequence[float] = 0.0,
        eps: float = 1e-8,
    ) -> None:
        name = "ReduceLROnPlateau"
        super().__init__(optimizer)
        self.mode = choice(name, "mode", mode, ("min", "max"))
        self.threshold_mode = choice(name, "threshold_mode", threshold_mode, ("rel", "abs"))
        self.factor, self.threshold = number(name, "factor", factor, 0), number(name, "threshold", threshold, 0)
        if self.factor >= 1:
            raise ValueError(f"{name}: expected factor below 1, got {factor!r}")
        self.patience, self.cooldown = whole(name, "patience", patience), whole(name, "cooldown", cooldown)
        self.min_lr = min_lr
        _per_group(name, "min_lr", min_lr, len(optimizer.param_groups))
        self.eps = number(name, "eps", eps, 0)
        self.best = math.inf if mode == "min" else -math.inf
        self.num_bad_epochs = self.cooldown_counter = 0

    def _set(self, t: int, base_lrs: list[float]) -> None:
        """The rates follow the metric, not t."""

    @named
    def step(self, metrics: Any, *results: StepResult) -> None:  # type: ignore[override]
        """Look at a metric (a number or a tensor of one element); given results of steps, only if one is APPLIED."""
        if not any_applied("ReduceLROnPlateau.step", results):
            return
        if not hasattr(metrics, "__float__"):
            raise TypeError(f"ReduceLROnPlateau.step: expected `metrics` to be a number, got {metrics!r}")
        metric = float(metrics)
        self.last_epoch += 1
        if self._better(metric):
            self.best, self.num_bad_epochs = metric, 0
        else:
            self.num_bad_epochs += 1
        if self.cooldown_counter > 0:
            self.cooldown_counter, self.num_bad_epochs = self.cooldown_counter - 1, 0
        if self.num_bad_epochs > self.patience:
            self.cooldown_counter, self.num_bad_epochs = self.cooldown, 0
            groups = self.optimizer.param_groups
            for group, floor in zip(groups, _per_group("ReduceLROnPlateau", "min_lr", self.min_lr, len(groups))):
                rate = max(group["lr"] * self.factor, floor)
                group["lr"] = rate if group["lr"] - rate > self.eps else group["lr"]

    def _better(self, metric: float) -> bool:
        sign, best = 1 if self.mode == "min" else -1, self.best
        bound = best - sign * self.threshold if self.threshold_mode == "abs" else best * (1 - sign * self.threshold)
        return sign * metric < sign * bound

    _STATE = ("best", "num_bad_epochs", "cooldown_counter", "last_epoch")

    def state_dict(self) -> dict[str, Any]:
        """The best value, counts of epochs, and the rates; patience and the other options belong to the constructor."""
        return {name: getattr(self, name) for name in self._STATE} | {"lrs": self.get_last_lr()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over what `state_dict` returned, and set the rates. ValueError if keys or groups differ."""
        where = "ReduceLROnPlateau.load_state_dict"
        same_keys(where, "state_dict", state_dict, {*self._STATE, "lrs"})
        rates = _per_group(where, "lrs", listed(where, "lrs", state_dict["lrs"]), len(self.optimizer.param_groups))
        counts = {name: whole(where, name, state_dict[name]) for name in self._STATE[1:]}
        best = state_dict["best"]  # infinite before the first step
        best = best if isinstance(best, float) and math.isinf(best) else number(where, "best", best)
        vars(self).update(counts, best=float(best))
        for group, rate in zip(self.optimizer.param_groups, rates):
            group["lr"] = rate


class SWALR(Schedule):
    """From the rate that a group has at the first step to swa_lr, a number or one for each group, in anneal_epochs
    steps; anneal_strategy: "cos" or "linear". Other schedules may run before.
    """

    def __init__(
        self, optimizer: Any, swa_lr: Any, anneal_epochs: int = 10, anneal_strategy: str = "cos", last_epoch: int = -1
    ) -> None:
        self.swa_lrs = _per_group("SWALR", "swa_lr", swa_lr, len(getattr(optimizer, "param_groups", ())))
        self.anneal_epochs = whole("SWALR", "anneal_epochs", anneal_epochs)
        self.anneal_strategy = choice("SWALR", "anneal_strategy", anneal_strategy, ("cos", "linear"))
        super().__init__(optimizer)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """See Schedule.load_state_dict. The rates stay: they are in the optimizer's state."""
        rates = self.get_last_lr()
        super().load_state_dict(state_dict)
        for group, rate in zip(self.optimizer.param_groups, rates):
            group["lr"] = rate

    def _share(self, t: int) -> float:
        """The share of swa_lr at t."""
        return _eased(self.anneal_strategy, min(t / self.anneal_epochs, 1.0) if self.anneal_epochs else 1.0)

    def rate(self, base: float, t: int, group: int) -> float:
        now, before, after = self.optimizer.param_groups[group]["lr"], self._share(t - 1) if t else 0.0, self._share(t)
        if before == 1:
            return self.swa_lrs[group]
        start = (now - before * self.swa_lrs[group]) / (1 - before)
        return after * self.swa_lrs[group] + (1 - after) * start
