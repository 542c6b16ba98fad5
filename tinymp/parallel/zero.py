"""Optimizer state and masters divided among the processes (ZeRO stage 1, Rajbhandari et al., 2020, section 5.1)."""

from __future__ import annotations

from typing import Any

import numpy as np

from .. import backend
from ..arguments import instance, named_by_class, same_keys
from ..optim.optimizer import Optimizer
from ..optim.result import StepResult
from ..parameter import Parameter, replace
from .group import Group, from_root


class ZeroRedundancyOptimizer(Optimizer):
    """An optimizer of which every process keeps a part: of each parameter one process, its owner, has the FP32 master
    and the FP32 state. It makes the update, and sends the working copy to the others.

        ddp = mp.parallel.DistributedDataParallel(model, group)
        optimizer = mp.parallel.ZeroRedundancyOptimizer(model.parameters(), optim.Adam, group, lr=1e-3)

    With mixed precision the copies are FP16: half of what FP32 weights would take to send. With Adam, of the 16 bytes
    per weight (copy 2, gradient 2, master 4, state 8) 12 are divided by the number of processes.

    params, optimizer_class, options   as for that optimizer; parameters go to owners so that all have about as many
                                       weights. To be made after DistributedDataParallel, in all processes alike

    Its state_dict is whole: every process gets what all have, and so all must ask for it at once (mp.save does). It has
    the masters too, as the model's own has only those of this process: load the model first, then this. Any number of
    processes can take it over.
    """

    def __init__(self, params: Any, optimizer_class: type[Optimizer], group: Group, **options: Any) -> None:
        if not (isinstance(optimizer_class, type) and issubclass(optimizer_class, Optimizer)):
            raise TypeError(f"ZeroRedundancyOptimizer: expected a class of tinymp.optim, got {optimizer_class!r}")
        self.group = instance("ZeroRedundancyOptimizer", "group", group, Group)
        self.optimizer = optimizer_class(params, **options)
        self.owner: dict[Parameter, int] = {}
        self._assign()

    def _assign(self) -> None:
        """Each parameter without an owner to the process that has the fewest weights so far, the largest first."""
        load = [0] * self.group.size
        for p, owner in self.owner.items():
            load[owner] += p.array.size
        new = [p for p in self.parameters() if p not in self.owner]
        for p in sorted(new, key=lambda p: -p.array.size):
            self.owner[p] = load.index(min(load))
            load[self.owner[p]] += p.array.size
        replace([(p, {"_master": None}) for p in new if not self.mine(p) and p.master_nbytes])

    def mine(self, p: Parameter) -> bool:
        """Whether this process owns p."""
        return self.owner[p] == self.group.rank

    # ---- what it shares with the optimizer inside

    _name = property(lambda self: f"ZeroRedundancyOptimizer({type(self.optimizer).__name__})")
    param_groups = property(lambda self: self.optimizer.param_groups)
    state = property(lambda self: self.optimizer.state)
    defaults = property(lambda self: self.optimizer.defaults)

    def initial(self, group: dict[str, Any]) -> dict[str, float]:
        return self.optimizer.initial(group)

    def check_options(self, group: dict[str, Any]) -> None:
        self.optimizer.check_options(group)

    @named_by_class
    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """As every optimizer's; its parameters get owners, too."""
        self.optimizer.add_param_group(param_group)
        self._assign()

    # ---- the step

    def finish(self, ready: list, skip: Any) -> StepResult:
        own = [(group, p) for group, p in ready if self.mine(p)]
        result = self.optimizer.finish(own, skip)
        if skip is not True:
            self._send([p for _, p in ready])
        if own or not ready:
            return result
        return StepResult.SKIPPED if skip else StepResult.APPLIED

    def _send(self, params: list[Parameter]) -> None:
        """The new working copies, from their owners to all: one message for each owner and dtype."""
        together: dict[tuple[int, str], list[Parameter]] = {}
        for p in params:
            together.setdefault((self.owner[p], str(p.dtype)), []).append(p)
        for (owner, _), some in together.items():
            flat = backend.of(some[0].array).concatenate([p.array.reshape(-1) for p in some], 0)
            self.group.broadcast(flat, owner)
            if owner != self.group.rank:
                start = 0
                for p in some:
                    p.write(flat[start : start + p.array.size].reshape(p.shape))
                    start += p.array.size

    # ---- saving

    def state_dict(self) -> dict[str, Any]:
        own = self.optimizer.state_dict()
        found: dict[str, Any] = {"state": {}, "param_groups": own["param_groups"], "masters": {}}
        for i, p in enumerate(self.parameters()):
            arrays = {**own["state"].get(i, {})}
            step = arrays.pop("step", None)
            if p.master_nbytes and self.mine(p):
                arrays["master"] = backend.to_cpu(p.master)
            step, names = self.group.tell([step, [(k, x.dtype.name) for k, x in arrays.items()]])[self.owner[p]]
            owner = self.owner[p]
            got = {name: from_root(self.group, arrays.get(name), dtype, p.shape, owner) for name, dtype in names}
            if "master" in got:
                found["masters"][i] = got.pop("master")
            if step is not None:
                found["state"][i] = {"step": step, **got}
        return found

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over what `state_dict` returned, with any number of processes. Errors: as every optimizer's."""
        same_keys(f"{self._name}.load_state_dict", "state_dict", state_dict, {"state", "param_groups", "masters"})
        params, masters = self.parameters(), state_dict["masters"]
        rest = {name: value for name, value in state_dict.items() if name != "masters"}
        self.optimizer.load_state_dict(rest)  # checks all of it
        for p in [p for p in self.state if not self.mine(p)]:
            del self.state[p]
        for i, p in enumerate(params):
            if i in masters and self.mine(p) and p.master_nbytes:
                # rounds: never, FP32 masters, as they were saved
                p.master[...] = backend.of(p.array).asarray(np.asarray(masters[i]).reshape(p.shape))
