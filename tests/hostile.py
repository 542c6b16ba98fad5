"""Arguments of the calls in hostile.txt."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

import around
import tinymp as mp
from tinymp import data, nn, ops, optim, parallel

MAKERS: dict[str, Callable[[], Any]] = {
    "x": lambda: mp.ones(2, 3),
    "h": lambda: mp.ones(2, 3, dtype="float16"),
    "v": lambda: mp.ones(3),
    "whole": lambda: mp.ones(2, 3, dtype="int64"),
    "bytes8": lambda: mp.ones(2, dtype="int8"),
    "truths": lambda: mp.tensor([[True, False, True], [True, True, False]]),
    "signal": lambda: mp.ones(1, 2, 4),
    "image": lambda: mp.ones(1, 2, 4, 4),
    "kernel1": lambda: mp.ones(2, 2, 3),
    "kernel": lambda: mp.ones(2, 2, 3, 3),
    "p": lambda: nn.Parameter(np.ones((2, 2), "float32")),
    "q": lambda: nn.Parameter([1.0]),
    "frozen": lambda: nn.Parameter([1.0], requires_grad=False),
    "scaled": lambda: _with_gradients(scale=8.0),
    "model": around.a_model,
    "state": lambda: around.a_model().state_dict(),
    "sgd": lambda: optim.SGD(_with_gradients(), 0.1),
    "sgd_scaled": lambda: optim.SGD(_with_gradients(scale=8.0), 0.1),
    "sgd_partly": lambda: optim.SGD([*_with_gradients(), nn.Parameter([1.0])], 0.1),
    "schedule": lambda: optim.StepLR(optim.SGD(_with_gradients(), 0.1), 2),
    "plateau": lambda: optim.ReduceLROnPlateau(optim.SGD(_with_gradients(), 0.1)),
    "scaler": optim.DynamicLossScaler,
    "loader": lambda: data.DataLoader([1, 2]),
    "group": parallel.Group,
    "kept": lambda: mp.Checkpointer("runs", model=around.a_model()),
}


class Names(dict):
    """The names of the table: modules, functions of ops, layers of nn, and new values of MAKERS."""

    def __missing__(self, name: str) -> Any:
        if name not in MAKERS:
            raise KeyError(name)
        self[name] = MAKERS[name]()
        return self[name]


def _with_gradients(gradient: Any = None, scale: float = 1.0) -> list[nn.Parameter]:
    p = nn.Parameter(np.ones((2, 2), "float32"))
    p.grad, p.grad_scale = np.ones((2, 2), "float32") if gradient is None else gradient, scale
    return [p]


def entered(block: Any) -> None:
    with block:
        pass


@functools.cache
def _fixed() -> dict[str, Any]:
    layers = {name: getattr(nn, name) for name in nn.__all__}
    functions = {name: f for name in dir(ops) if hasattr(f := getattr(ops, name), "__named__")}
    return {
        **functions,
        **layers,
        "mp": mp,
        "np": np,
        "optim": optim,
        "data": data,
        "parallel": parallel,
        "tensor": mp.tensor,
        "Tensor": mp.Tensor,
        "entered": entered,
        "float": float,
        "int": int,
        "bool": bool,
    }


def names() -> Names:
    """New ones for each call, which may change them."""
    return Names(_fixed())
