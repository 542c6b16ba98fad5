"""What the calls of hostile.txt are made with."""

from __future__ import annotations

import ast
import enum
import functools
import inspect
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
    "frames": lambda: mp.zeros(3, 1, 4),
    "boxes": lambda: mp.tensor([[0.0, 0, 1, 1], [0, 0, 2, 2]]),
    "p": lambda: nn.Parameter(np.ones((2, 2), "float32")),
    "q": lambda: nn.Parameter([1.0]),
    "frozen": lambda: nn.Parameter([1.0], requires_grad=False),
    "scaled": lambda: _with_gradients(scale=8.0),
    "model": around.a_model,
    "state": lambda: around.a_model().state_dict(),
    "encoder_layer": lambda: nn.TransformerEncoderLayer(3, 1, 8),
    "decoder_layer": lambda: nn.TransformerDecoderLayer(3, 1, 8),
    "sgd": lambda: optim.SGD(_with_gradients(), 0.1),
    "sgd_scaled": lambda: optim.SGD(_with_gradients(scale=8.0), 0.1),
    "sgd_partly": lambda: optim.SGD([*_with_gradients(), nn.Parameter([1.0])], 0.1),
    "schedule": lambda: optim.StepLR(optim.SGD(_with_gradients(), 0.1), 2),
    "plateau": lambda: optim.ReduceLROnPlateau(optim.SGD(_with_gradients(), 0.1)),
    "scaler": optim.DynamicLossScaler,
    "loader": lambda: data.DataLoader([1, 2]),
    "group": parallel.Group,
    "ddp": lambda: parallel.DistributedDataParallel(around.a_model(), parallel.Group()),
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


# ---------------------------------------------------------------------------------------------- what has to be called

HOMES = {
    "ops": ops,
    "nn": nn,
    "init": nn.init,
    "optim": optim,
    "data": data,
    "parallel": parallel,
    "mp": mp,
}


@functools.cache
def public() -> dict[str, Any]:
    """Everything public that can be called with arguments, by name: functions, classes, and what classes add to the
    classes that they are made from. Operators of Tensor, too.
    """
    found: dict[str, Any] = {}
    seen: set[int] = set()

    def add(name: str, x: Any) -> None:
        if id(x) not in seen and inspect.signature(x).parameters.keys() - {"self"}:
            seen.add(id(x))
            found[name] = x

    for home, module in HOMES.items():
        for name, x in around.members(module):
            own = str(getattr(x, "__module__", "")).startswith(module.__name__) or name in getattr(
                module, "__all__", ()
            )
            if name.startswith("_") or not own or isinstance(x, type(mp)) or not callable(x):
                continue
            if inspect.isfunction(x):
                add(f"{home}.{name}", x)
                continue
            if inspect.isclass(x) and not issubclass(x, enum.Enum):
                add(f"{home}.{name}", x)
                for cls in x.__mro__:
                    for method, f in vars(cls).items() if cls.__module__.startswith("tinymp") else ():
                        f = getattr(f, "__func__", f)  # of a static or class method
                        f = getattr(cls, method) if type(f).__name__ == "_Held" else f  # a function of ops/more
                        if inspect.isfunction(f) and is_public(cls, method):
                            add(f"{cls.__name__}.{method}", f)
    return found


def is_public(cls: type, method: str) -> bool:
    """Whether users call a method, by its name or as an operator; `forward` is called by calling the layer."""
    if cls is mp.Tensor and method in (*OPERATORS.values(), "__getitem__"):
        return True
    return not method.startswith("_") and method != "forward"


OPERATORS = {
    **{ast.Add: "__add__", ast.Sub: "__sub__", ast.Mult: "__mul__", ast.Div: "__truediv__", ast.Pow: "__pow__"},
    **{ast.MatMult: "__matmul__", ast.Eq: "__eq__", ast.NotEq: "__ne__", ast.Lt: "__lt__", ast.LtE: "__le__"},
    **{ast.Gt: "__gt__", ast.GtE: "__ge__", ast.BitAnd: "__and__", ast.BitOr: "__or__"},
}


def called(call: str, names: Names) -> str:
    """The name in `public` of what a call of the table calls; empty for the others: float(x), a block."""
    node: Any = ast.parse(call, mode="eval").body
    if isinstance(node, (ast.BinOp, ast.Compare)):
        return f"Tensor.{OPERATORS[type(node.op if isinstance(node, ast.BinOp) else node.ops[0])]}"
    if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "entered":
        node = node.args[0]
    while isinstance(node, ast.Call) and isinstance(node.func, ast.Call):  # Linear(2, 3)(x)
        node = node.func
    subscript = isinstance(node, ast.Subscript)
    if not subscript and not isinstance(node, ast.Call):
        return ""
    x = eval(compile(ast.Expression(node.value if subscript else node.func), "", "eval"), names)
    if subscript:
        return "Tensor.__getitem__" if isinstance(x, mp.Tensor) else ""
    if inspect.ismethod(x):
        own = x.__self__ if isinstance(x.__self__, type) else type(x.__self__)
        cls = next(cls for cls in own.__mro__ if x.__name__ in vars(cls))
        held = type(vars(cls)[x.__name__]).__name__ == "_Held"
        x = x.__func__ if held else getattr(vars(cls)[x.__name__], "__func__", vars(cls)[x.__name__])
    elif isinstance(x, nn.Module):
        x = type(x)
    x = mp.audit.audit if x is mp.audit else x
    return next((name for name, y in public().items() if y is x), "")
