"""Averages of weights: of the last ones (Izmailov et al., 2018) and exponential ones; PyTorch's torch.optim.swa_utils.

An average is made outside of every module's call, so it reads and writes FP32 masters, and its FP16 copy follows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from copy import deepcopy
from typing import Any

from ... import ops
from ...arguments import flag, function, instance, number
from ...autograd import no_grad
from ...tensor import Tensor
from ..module import Module
from ..norm import BatchNorm

__all__ = ["AveragedModel", "get_ema_avg_fn", "get_swa_avg_fn", "update_bn"]


def get_swa_avg_fn() -> Callable:
    """average + (weight - average) / (n + 1), for n models averaged so far: their mean."""
    return lambda average, weight, n: average + (weight - average) / (n + 1)


def get_ema_avg_fn(decay: float = 0.999) -> Callable:
    """decay average + (1 - decay) weight. ValueError unless decay is in [0, 1]."""
    decay = number("get_ema_avg_fn", "decay", decay, 0, 1)
    return lambda average, weight, n: decay * average + (1 - decay) * weight


class AveragedModel(Module):
    """A copy of a model, `module`, that holds the average of its weights; calling it calls the copy.

    avg_fn(average, weight, n) -> the new average, of one Tensor; by default the mean (`get_swa_avg_fn`). use_buffers:
    average floating buffers, too; else each update copies them. n_averaged: a buffer, the calls of `update_parameters`.
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
        """Take the weights of `model`, whose parameters and buffers are those of `module`, into the average.

        ValueError for a model with other parameters or buffers.
        """
        instance("update_parameters", "model", model, Module)
        n, mine, given = int(self.n_averaged.item()), _shapes(self.module), _shapes(model)
        if mine != given:
            raise ValueError(f"update_parameters: expected the entries {', '.join(mine)}, got {', '.join(given)}")
        with no_grad():
            for average, weight in zip(self.module.parameters(), model.parameters(), strict=True):
                average.copy_(self.avg_fn(average, weight, n) if n else weight)
            for own, buffer in zip(self.module.buffers(), model.buffers(), strict=True):
                averaged = self.use_buffers and n and buffer.dtype.kind == "f"
                own.copy_(self.avg_fn(own, buffer, n) if averaged else buffer)
            self.n_averaged.add_(1)


def _shapes(model: Module) -> dict[str, tuple]:
    return {name: x.shape for name, x in (*model.named_parameters(), *model.named_buffers())}


def update_bn(loader: Iterable, model: Module, device: Any = None) -> None:
    """Set the running statistics of the model's batch norms to the means over a loader's batches: Tensors, or tuples or
    lists that begin with one. TypeError for another loader or model.
    """
    if not isinstance(loader, Iterable):
        raise TypeError(f"update_bn: expected `loader` to be iterable, got {type(loader).__name__}")
    instance("update_bn", "model", model, Module)
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
