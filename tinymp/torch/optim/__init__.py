"""torch.optim: tinymp's rules with PyTorch's step."""

from __future__ import annotations

from typing import Any

from ... import optim as _optim
from ...grad_mode import enable_grad
from ...parameter import Parameter as _Parameter
from ...tensor import Tensor
from ..space import fill, names
from ..states import from_pytorch
from . import lr_scheduler

_RULES = "SGD Adam AdamW RMSprop Adagrad Adadelta Adamax NAdam RAdam"


class _Stepping:
    """PyTorch's step: parameters without a gradient keep their value, and a closure is called first. Any leaf may be
    updated.
    """

    def _parameter(self, entry: Any) -> Any:
        if isinstance(entry, Tensor) and not isinstance(entry, _Parameter):
            from ...optim.more.leaf import leaf

            entry = leaf(entry)
        return super()._parameter(entry)  # type: ignore[misc]

    def step(self, closure: Any = None) -> Any:
        """Update; returns closure's loss where there is one, else tinymp's StepResult."""
        if closure is None:
            return super().step(allow_missing=True)  # type: ignore[misc]
        with enable_grad():
            loss = closure()
        super().step(allow_missing=True)  # type: ignore[misc]
        return loss

    def finish(self, ready: list, skip: Any) -> Any:
        """See Optimizer.finish. `made` is the number of steps, and the result of the last, for schedules."""
        result = super().finish(ready, skip)  # type: ignore[misc]
        self.made = getattr(self, "made", (0, None))[0] + 1, result
        return result

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over what `state_dict` returned, here or in PyTorch."""
        super().load_state_dict(from_pytorch(self, state_dict))  # type: ignore[misc,arg-type]


def _made(name: str) -> Any:
    base = getattr(_optim, name)
    return type(name, (_Stepping, base), {"__module__": __name__, "__doc__": base.__doc__})


for _name in _RULES.split():
    if hasattr(_optim, _name):
        globals()[_name] = _made(_name)
fill(globals(), "torch.optim", names("optim", "Optimizer"), "lr_scheduler swa_utils")
