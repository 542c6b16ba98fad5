"""torch.optim.lr_scheduler: tinymp's schedules with PyTorch's step."""

from typing import Any

from ... import optim as _optim
from ...optim.result import StepResult as _StepResult
from ...optim.schedule import Schedule as _Schedule
from ..space import fill


class _Following:
    """PyTorch's step. Programs call it without the results of steps: then the rate stays where the optimizer was
    stepped once since the last call, by a scaler that skipped the step.
    """

    optimizer: Any
    _seen = 0

    def step(self, *args: Any, **options: Any) -> None:
        """See Schedule.step."""
        made, last = getattr(self.optimizer, "made", (0, None))
        args += (last,) if made - self._seen == 1 and last == _StepResult.SKIPPED else ()
        self._seen = made
        super().step(*args, **options)  # type: ignore[misc]


class LRScheduler(_Following, _Schedule):
    """The base of schedules."""


_LRScheduler = LRScheduler
for _name in [name for name in _optim.__all__ if name.endswith(("LR", "Restarts", "Plateau")) and name != "SWALR"]:
    _base = getattr(_optim, _name)
    globals()[_name] = type(_name, (LRScheduler, _base), {"__module__": __name__, "__doc__": _base.__doc__})
fill(globals(), "torch.optim.lr_scheduler", {})
