"""torch.optim.lr_scheduler: tinymp's schedules with PyTorch's step, and the base of a program's own."""

from __future__ import annotations

from types import FunctionType as _FunctionType
from typing import Any

from ... import optim as _optim
from ...optim.result import StepResult as _StepResult
from ...optim.schedule import Schedule as _Schedule
from ..nn.module import Every as _Every
from ..space import fill

# Where PyTorch's rate follows from the one before, also one that the program or another schedule has set
_CHAINED = "ConstantLR CosineAnnealingLR ExponentialLR LinearLR MultiStepLR MultiplicativeLR PolynomialLR StepLR"


_OF_THE_LOOP = ("optimizer", "_name", "_seen", "base_lrs", "last_epoch")


def _state_of(one: Any) -> dict[str, Any]:
    return one.state_dict() if isinstance(one, _Schedule) else {} if isinstance(one, _FunctionType) else dict(vars(one))


class _Following(_Schedule):
    """PyTorch's step. Without the results of steps the rate stays where the optimizer was stepped once since the last
    call, by a scaler that skipped the step.
    """

    _seen = 0
    schedulers: Any  # of a SequentialLR, which has `_at`
    lr_lambdas: Any
    _at: Any

    def __init__(self, optimizer: Any, *args: Any, **options: Any) -> None:
        found = [group["lr"] for group in getattr(optimizer, "param_groups", ())]
        super().__init__(optimizer, *args, **options)
        self._follow(found, self.base_lrs)

    def step(self, *args: Any, **options: Any) -> None:
        made, last = getattr(self.optimizer, "made", (0, None))
        args += (last,) if made - self._seen == 1 and last == _StepResult.SKIPPED else ()
        self._seen, found, t = made, self.get_last_lr(), self.last_epoch
        super().step(*args, **options)
        if self.last_epoch != t and self._chained() is not None:
            self._follow(found, self._rates(t, self.base_lrs))

    def _chained(self) -> Any:
        """The schedule that rules now, if PyTorch's rate follows from the one before; else None. A SequentialLR begins
        anew with each of its own.
        """
        one, t = self._at(self.last_epoch) if hasattr(self, "schedulers") else (self, 1)
        return one if t > 0 and type(one).__name__ in _CHAINED.split() else None

    def _follow(self, found: list[float], before: list[float]) -> None:
        """Move the rates that were `found`, where the schedule alone would have had `before`, in its proportion."""
        if (one := self._chained()) is None:
            return
        end = getattr(one, "eta_min", 0)
        for group, rate, own in zip(self.optimizer.param_groups, found, before):
            if rate != own:
                step = group["lr"] - own
                group["lr"] = rate + (step if own == end else step * (rate - end) / (own - end))

    def state_dict(self) -> dict[str, Any]:
        """t and the initial rates, and as in PyTorch the options; those of a function (LambdaLR) if it is an object."""
        state = {name: x for name, x in vars(self).items() if name not in _OF_THE_LOOP and not callable(x)}
        for name in {"schedulers", "lr_lambdas"} & state.keys():
            state[name] = [_state_of(one) for one in state[name]]
        return {**super().state_dict(), **state}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over what `state_dict` returned. The rates are the optimizer's state."""
        found, own = self.get_last_lr(), super().state_dict()
        super().load_state_dict({name: x for name, x in state_dict.items() if name in own or name not in vars(self)})
        for name, x in state_dict.items():
            if name == "schedulers":
                for one, state in zip(self.schedulers, x):
                    one.load_state_dict(state)
            elif name == "lr_lambdas":
                for one, state in zip(self.lr_lambdas, x):
                    vars(one).update(state)
            elif name not in own:
                setattr(self, name, x)
        for group, rate in zip(self.optimizer.param_groups, found):
            group["lr"] = rate

    def get_lr(self) -> list[float]:
        """get_last_lr(), which PyTorch recommends in its place."""
        return self.get_last_lr()


class LRScheduler(_Following, metaclass=_Every):
    """The base of a schedule that a program writes: `get_lr()` is the list of the groups' rates at `last_epoch`.
    Schedules of tinymp are instances of it, too. ValueError for a last_epoch but -1: `load_state_dict` resumes.
    """

    every = _Schedule

    def __init__(self, optimizer: Any, last_epoch: int = -1, verbose: Any = None) -> None:
        if last_epoch != -1:
            raise ValueError(f"{type(self).__name__}: expected last_epoch=-1, got {last_epoch}; see load_state_dict")
        super().__init__(optimizer)

    def get_lr(self) -> list[float]:
        """The groups' rates at `last_epoch`, which may depend on those before."""
        raise NotImplementedError(f"{type(self).__name__} has no get_lr")

    def _rates(self, t: int, base_lrs: list[float]) -> list[float]:
        return self.get_lr()

    def state_dict(self) -> dict[str, Any]:
        """All attributes but the optimizer, as in PyTorch."""
        return {name: x for name, x in vars(self).items() if name != "optimizer"}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over what `state_dict` returned. The rates are the optimizer's state."""
        vars(self).update(state_dict)


_LRScheduler = LRScheduler
for _name in [name for name in _optim.__all__ if name.endswith(("LR", "Restarts", "Plateau")) and name != "SWALR"]:
    _base = getattr(_optim, _name)
    globals()[_name] = type(_name, (_Following, _base), {"__module__": __name__, "__doc__": _base.__doc__})
fill(globals(), "torch.optim.lr_scheduler", {})
