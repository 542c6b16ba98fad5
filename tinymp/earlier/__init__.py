"""Pickles of earlier versions: where the classes that they name are now, and what became of their state."""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from ..optim.scaler import Iteration, LossScaler, Side, State
from ..parameter import Weights
from ..precision import MIXED, Policy
from ..tensor import Tensor

ROOT = __name__.partition(".")[0]
# Old name of a module -> where its contents are now.
MOVED = {
    "data.sequences": "data.more.sequences",
    "nn.activation": "nn",
    "nn.attention": "nn.more.attention",
    "nn.embedding_bag": "nn.more.layers",
    "nn.group_norm": "nn.more.group_norm",
    "nn.padding": "nn",
    "nn.pooling": "nn",
    "nn.rnn": "nn.more.recurrent",
    "nn.transformer": "nn.more.transformer",
    "ops.attention": "ops.more.attention",
    "ops.boxes": "vision.boxes",
    "ops.group_norm": "ops.more.norm",
    "ops.roi": "vision.roi",
    "ops.sort": "ops.more.sort",
    "optim.cycle": "optim.more.schedule",
}
# Where a name was, of modules that are there still -> where it is now.
HELD = {
    f"{module}.{name}": now
    for (module, now), names in {
        ("nn.functions", "nn.more.functions"): """AdaptiveAvgPool2d AvgPool2d ELU GELU Hardtanh LocalResponseNorm
            LogSigmoid PixelShuffle Softplus Unflatten Upsample ZeroPad2d""",
        ("nn.recurrent", "nn.more.recurrent"): "GRU GRUCell LSTMCell",
        ("nn.loss", "nn.more.functions"): "CTCLoss HuberLoss KLDivLoss L1Loss NLLLoss SmoothL1Loss",
        ("nn.containers", "nn.more.containers"): "ModuleDict",
        ("optim.rules", "optim.more.rules"): "Adagrad RMSprop",
        ("optim.schedule", "optim.more.schedule"): "LinearLR MultiStepLR SequentialLR",
    }.items()
    for name in names.split()
}


class Finder:
    """Finds a module under the name that it had before it moved, as a module with the same contents."""

    @classmethod
    def find_spec(cls, name: str, path: Any = None, target: Any = None) -> Any:
        return ModuleSpec(name, cls) if name.removeprefix(f"{ROOT}.") in MOVED else None  # type: ignore[arg-type]

    @staticmethod
    def create_module(spec: Any) -> None:
        """An empty one."""

    @staticmethod
    def exec_module(module: ModuleType) -> None:
        now = import_module(f"{ROOT}.{MOVED[module.__name__.removeprefix(f'{ROOT}.')]}")
        vars(module).update({key: x for key, x in vars(now).items() if key == "__getattr__" or key[:2] != "__"})


def _of_policy(policy: Policy, state: dict[str, Any]) -> None:
    """Take over a policy of a time when studies were fields of it."""
    if bits := state.pop("aligned", 0):  # after a wrong alignment
        state |= {"chunk": 4, "tensor_core": {24: "volta", 14: "hopper"}[bits]}
    if not state.keys() <= policy.__dataclass_fields__.keys():
        state = vars(import_module(f"{ROOT}.study").change(MIXED, **state))
    vars(policy).update(state)


def _of_scaler(scaler: LossScaler, state: dict[str, Any]) -> None:
    """There was no State."""
    if "_scale" in state:
        known = State(*(state.pop(name, 0) for name in ("_scale", "growth_tracker", "_skips", "_bad_losses")))
        state["_side"], state["_now"] = Side(known, state.pop("_iteration"), state.pop("_history")), Iteration()
        state.pop("_name")
    vars(scaler).update(state)


def _of_tensor(x: Tensor, state: tuple) -> None:
    for name, value in _of_today(state)[1].items():
        setattr(x, name, value)


def _of_today(state: tuple) -> tuple:
    """Arrays had the names that Tensors have now."""
    return None, {{"data": "array", "grad": "grad_array"}.get(name, name): value for name, value in state[1].items()}


def load_old_pickles(held: dict[str, str]) -> None:
    """Have pickle find what has moved, and take old states. held: public name -> the module that holds it."""
    held.update(HELD)
    sys.meta_path.append(Finder)
    taken: Any = Weights.__setstate__
    takes: Any = {Policy: _of_policy, LossScaler: _of_scaler, Tensor: _of_tensor}
    takes[Weights] = lambda x, state: taken(x, _of_today(state))
    for cls, take in takes.items():
        cls.__setstate__ = take
