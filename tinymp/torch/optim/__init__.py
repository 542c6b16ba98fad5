"""torch.optim: tinymp's rules with PyTorch's step."""

from __future__ import annotations

from collections import defaultdict as _defaultdict
from copy import deepcopy as _deepcopy
from typing import Any

from ... import optim as _optim
from ... import statistics as _statistics
from ...autograd import enable_grad
from ...optim.optimizer import unscaled as _unscaled
from ...optim.result import StepResult as _StepResult
from ...parameter import Parameter as _Parameter
from ...tensor import Tensor
from ..space import fill
from ..states import from_pytorch
from . import lr_scheduler

_RULES = "SGD Adam AdamW RMSprop Adagrad Adadelta Adamax NAdam RAdam"


class Optimizer(_optim.Optimizer):
    """PyTorch's step: parameters without a gradient keep their value, and a closure is called first. Any leaf may be
    updated.

    Also the base of a program's own rule, which has a `step` of its own: options and `state[p]` are what it puts there.
    With a loss scale it sees the gradients without it.
    """

    _own = property(lambda self: type(self).update is _optim.Optimizer.update)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        if self._own and not self.param_groups:
            self.state: Any = _defaultdict(dict)
        super().add_param_group(param_group)

    def check_options(self, group: dict[str, Any]) -> None:
        """The options of a program's own rule may be anything; a group of any may have more, which have no effect."""
        if not self._own:
            known = {name: x for name, x in group.items() if name in {*self.defaults, "initial_lr", "params"}}
            super().check_options(known)
            group.update(known)

    def _parameter(self, entry: Any) -> Any:
        if isinstance(entry, Tensor) and not isinstance(entry, _Parameter):
            from ...optim.more.leaf import leaf

            entry = leaf(entry)
        return super()._parameter(entry)

    def step(self, closure: Any = None) -> Any:  # type: ignore[override]
        """Update; returns closure's loss where there is one, else tinymp's StepResult."""
        if closure is None:
            return super().step(allow_missing=True)
        with enable_grad():
            loss = closure()
        super().step(allow_missing=True)
        return loss

    def finish(self, ready: list, skip: Any) -> Any:
        """See Optimizer.finish. `made` is the number of steps, and the result of the last, for schedules."""
        if self._own and ready and not skip:
            for _, p in ready:
                p.replace_grad(_unscaled(p), 1.0)
            self.step()
            _statistics.settle(False, self.parameters())
            result = _StepResult.APPLIED
        else:
            result = super().finish(ready, skip)
        self.made = getattr(self, "made", (0, None))[0] + 1, result
        return result

    def state_dict(self) -> dict[str, Any]:
        """See Optimizer.state_dict. A program's own rule gives the values themselves, as in PyTorch."""
        if not self._own:
            return super().state_dict()
        index = {p: i for i, p in enumerate(self.parameters())}
        groups = [{**group, "params": [index[p] for p in group["params"]]} for group in self.param_groups]
        return {"state": {index[p]: x for p, x in self.state.items()}, "param_groups": groups}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over what `state_dict` returned, here or in PyTorch."""
        if not self._own:
            return super().load_state_dict(from_pytorch(self, state_dict))
        params, found = self.parameters(), _deepcopy(state_dict)
        self.state = _defaultdict(dict, {params[i]: x for i, x in found["state"].items()})
        for group, new in zip(self.param_groups, found["param_groups"]):
            group.update({**new, "params": group["params"]})


def _made(name: str) -> Any:
    base = getattr(_optim, name)
    return type(name, (Optimizer, base), {"__module__": __name__, "__doc__": base.__doc__})


for _name in _RULES.split():
    if hasattr(_optim, _name):
        globals()[_name] = _made(_name)
fill(globals(), "torch.optim", {}, "lr_scheduler swa_utils")
