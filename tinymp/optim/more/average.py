"""Averages of weights: of the last ones (Izmailov et al., 2018) and exponential ones; PyTorch's torch.optim.swa_utils.

An average is made outside of every module's call, so it reads and writes FP32 masters, and its FP16 copy follows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from copy import deepcopy
from typing import Any

from ... import ops
from ...arguments import choice, flag, function, instance, listed, number, whole
from ...grad_mode import no_grad
from ...nn.module import Module
from ...nn.norm import BatchNorm
from ...tensor import Tensor
from ..schedule import Schedule

__all__ = ["SWALR", "AveragedModel", "get_ema_avg_fn", "get_swa_avg_fn", "update_bn"]


def get_swa_avg_fn() -> Callable:
    """average + (weight - average) / (n + 1), for n models averaged so far: their mean."""
    return lambda average, weight, n: average + (weight - average) / (n + 1)


def get_ema_avg_fn(decay: float = 0.999) -> Callable:
    """decay average + (1 - decay) weight. ValueError unless decay is in [0, 1]."""
    decay = number("get_ema_avg_fn", "decay", decay, 0, 1)
    return lambda average, weight, n: decay * average + (1 - decay) * weight


class AveragedModel(Module):
    """A copy of a model, `module`, that holds the average of its weights; calling it calls the copy.

    n_averaged  a buffer: how many times `update_parameters` was called

    avg_fn(average, weight, n) -> the new average, of one Tensor; by default the mean (`get_swa_avg_fn`).
    use_buffers: whether floating buffers are averaged too; else each update copies them.
    """

    def __init__(
        self, model: Module, device: Any = None, avg_fn: Callable | None = None, use_buffers: bool = False
    ) -> None:
        super().__init__()
        self.module = deepcopy(instance("AveragedModel", "model", model, Module))
        self.avg_fn = get_swa_avg_fn() if avg_fn is None else function("AveragedModel", "avg_fn", avg_fn)
        self.use_buffers = flag("AveragedModel", "use_buffers", use_buffers)
        self.register_buffer("n_averaged", ops.zeros((), dtype="int64"))
        if device is not None:
            self.to(device)

    def forward(self, *args: Any, **options: Any) -> Any:
        return self.module(*args, **options)

    def update_parameters(self, model: Module) -> None:
        """Take the weights of `model`, whose parameters and buffers are those of `module`, into the average."""
        n = int(self.n_averaged.item())
        with no_grad():
            for average, weight in zip(self.module.parameters(), model.parameters(), strict=True):
                average.copy_(self.avg_fn(average, weight, n) if n else weight)
            for own, buffer in zip(self.module.buffers(), model.buffers(), strict=True):
                averaged = self.use_buffers and n and buffer.dtype.kind == "f"
                own.copy_(self.avg_fn(own, buffer, n) if averaged else buffer)
            self.n_averaged.add_(1)


def update_bn(loader: Iterable, model: Module, device: Any = None) -> None:
    """Set the running statistics of the model's batch norms to the means over a loader's batches: Tensors, or tuples or
    lists that begin with one.
    """
    layers = [layer for layer in model.modules() if isinstance(layer, BatchNorm)]
    kept = [(layer, layer.momentum) for layer in layers]
    training = model.training
    for layer in layers:
        layer.reset_running_stats()
        layer.momentum = None  # the mean over all batches
    try:
        model.train()
        with no_grad():
            for batch in loader:
                x: Tensor = batch[0] if isinstance(batch, (list, tuple)) else batch
                model(x if device is None else x.to(device))
    finally:
        for layer, momentum in kept:
            layer.momentum = momentum
        model.train(training)


class SWALR(Schedule):
    """From the rate that a group has at the first step to swa_lr, a number or one for each group, in anneal_epochs
    steps; anneal_strategy: "cos" or "linear". Other schedules may run before.
    """

    def __init__(
        self, optimizer: Any, swa_lr: Any, anneal_epochs: int = 10, anneal_strategy: str = "cos", last_epoch: int = -1
    ) -> None:
        groups = len(getattr(optimizer, "param_groups", ()))
        rates = listed("SWALR", "swa_lr", swa_lr) if isinstance(swa_lr, (list, tuple)) else [swa_lr] * groups
        self.swa_lrs = [number("SWALR", "swa_lr", rate, 0) for rate in rates]
        if len(self.swa_lrs) != groups:
            raise ValueError(f"SWALR: expected a rate for each of {groups} groups, got {len(self.swa_lrs)}")
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
        part = min(t / self.anneal_epochs, 1.0) if self.anneal_epochs else 1.0
        return part if self.anneal_strategy == "linear" else (1 - math.cos(math.pi * part)) / 2

    def rate(self, base: float, t: int, group: int) -> float:
        now, before, after = self.optimizer.param_groups[group]["lr"], self._share(t - 1) if t else 0.0, self._share(t)
        if before == 1:
            return self.swa_lrs[group]
        start = (now - before * self.swa_lrs[group]) / (1 - before)
        return after * self.swa_lrs[group] + (1 - after) * start
