"""Arguments that PyTorch has and tinymp has not, since they change no result here or say the same in other words. A
call with one fails as any wrong call does, and only then is it looked up here, and the call made again without it.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from inspect import signature
from typing import Any

import numpy as np

from .. import backend, ops
from ..autograd import is_grad_enabled, no_grad
from ..backend.extras import held
from ..dtypes import float32, float64
from ..nn import Module
from ..ops.more import errors
from ..optim.schedule import Schedule
from ..tensor import Gradient, Tensor, from_numpy
from . import methods

_KEYWORD = re.compile(r"got an unexpected keyword argument '(\w+)'")
_POSITION = re.compile(r"too many positional arguments|takes .*positional arguments? but \d+ (were|was) given")

# Without effect on a result -> the functions and classes that have it in PyTorch
IGNORED = {
    "non_blocking": "cuda cpu copy_",
    "memory_format": """clone contiguous empty_like zeros_like ones_like full_like rand_like randn_like cuda cpu
        bfloat16 bool double float half int long""",
    "layout": "normal zeros ones full empty rand randn arange eye linspace zeros_like ones_like full_like empty_like",
    "pin_memory": "tensor zeros ones full empty rand randn randint arange randperm DataLoader",
    """pin_memory_device persistent_workers prefetch_factor multiprocessing_context timeout worker_init_fn
        in_order""": "DataLoader",
    "enable_nested_tensor mask_check": "TransformerEncoder",
    "foreach capturable differentiable": "SGD Adam AdamW RMSprop Adagrad Adadelta Adamax NAdam RAdam",
    "foreach": "clip_grad_norm_ clip_grad_value_",
    "fused": "SGD Adam AdamW Adagrad",
    "verbose": "StepLR MultiStepLR LambdaLR ExponentialLR CosineAnnealingLR ReduceLROnPlateau OneCycleLR LinearLR",
    "recompute_scale_factor": "interpolate",
    "sparse_grad": "gather",
}
# Functions and classes with `inplace`, also by position
IN_PLACE = """
    relu relu6 leaky_relu elu selu celu silu mish hardtanh hardswish hardsigmoid threshold dropout dropout1d dropout2d
    ReLU ReLU6 LeakyReLU ELU SELU CELU SiLU Mish Hardtanh Hardswish Hardsigmoid Threshold Dropout Dropout1d Dropout2d
"""
# The value with which an argument of PyTorch's says nothing, where that is not None
_NOTHING = {"norm_type": 2.0, "scale_grad_by_freq": False, "_freeze": False, "last_epoch": -1}
# Arguments with which None says nothing, and why another value is refused
REFUSED = {
    "dtype": "precision is the policy's decision: policy.cast(model), or convert a tensor with .to(dtype)",
    "out": "an op of tinymp makes a new tensor, which is copied into a Tensor alone",
    "device": "the result lives where its input does; move a model with .to(device)",
    "decimals": "write round(x * 10**n) / 10**n",
    "enable_gqa": "repeat key and value",
    "antialias": "images are not smoothed before they are resized",
    **dict.fromkeys(["max_norm", "norm_type", "scale_grad_by_freq"], "rows of a table are not rescaled"),
    "_weight": "load a table with layer.weight.copy_(...) under no_grad",
    "output_size": "use output_padding=",
    "decoupled_weight_decay": "use AdamW",
    **dict.fromkeys(["memory_format", "layout"], "all tensors are dense"),
    **dict.fromkeys(["foreach", "fused", "capturable", "differentiable"], "updates need no option"),
    "last_epoch": "load_state_dict resumes a schedule",
    "new_scale": "make a new scaler",
}
_EMBEDDING = ["max_norm", "norm_type", "scale_grad_by_freq"]
# In other words
RENAMED = {"axis": "dim", "keepdims": "keepdim", "axes": "dims"}
_CASTING = {"sum", "mean", "prod", "cumprod", "cumsum", "softmax", "log_softmax", "normalize"}
_ARITHMETIC = {"add", "sub", "mul", "div", "pow", "maximum", "minimum"}
RANDOM = ["rand", "randn", "randint", "randperm", "rand_like", "randn_like", "normal", "bernoulli", "multinomial"]
_FUNCTIONS: dict[str, set] = {}
for _arguments, _names in IGNORED.items():
    for _argument in _arguments.split():
        _FUNCTIONS.setdefault(_argument, set()).update(_names.split())


def _positions(kind: type | None, name: str, call: Callable, args: tuple, options: dict[str, Any]) -> Any:
    """The same call with its last positions, which tinymp does not have, by their names in PyTorch."""
    known = signature(kind or call).parameters.values()
    taken = sum(p.kind is p.POSITIONAL_OR_KEYWORD for p in known) + (kind is not None)
    named = [p.name for p in known if p.kind is p.KEYWORD_ONLY]
    beyond = ["device", "dtype"] if kind is not None and issubclass(kind, Module) else []
    if "reduction" in named:
        index = ["ignore_index"] if "ignore_index" in named else []
        beyond = ["size_average", *index, "reduce", *[x for x in named if x not in index]]
    elif "padding_idx" in named:  # EmbeddingBag
        beyond = [*_EMBEDDING, "mode", "sparse", "_weight", "include_last_offset", "padding_idx", *beyond]
    elif "sparse" in named:
        beyond = [*_EMBEDDING, "sparse", "_weight", "_freeze", *beyond]
    elif kind is not None and issubclass(kind, Schedule):
        beyond = ["last_epoch", "verbose"]
    more = dict(zip(beyond, args[taken:]))
    if not 0 < len(args) - taken <= len(beyond) or more.keys() & options.keys():
        return NotImplemented
    return call(*args[:taken], **options, **more)


def _reduction(options: dict[str, Any]) -> dict[str, Any]:
    average, each = options.pop("size_average", None), options.pop("reduce", None)
    if each is not None or average is not None:
        options["reduction"] = "none" if each is False else "sum" if average is False else "mean"
    return options


def _promoted(name: str, x: Any, y: Any) -> tuple | None:
    """x and y, where PyTorch takes an array for a Tensor, or a 0-dim FP32 or FP64 Tensor for a number of the other's
    dtype, and where one is a result of autocast; else None.
    """
    if isinstance(y, np.ndarray) or not (isinstance(x, Tensor) and isinstance(y, Tensor)):
        return (x, from_numpy(y)) if isinstance(y, np.ndarray) else None
    rule: Any = next((t.grad_fn.policy.arguments for t in (x, y) if t.grad_fn and t.grad_fn.policy.arguments), None)
    if rule is None and {x.dtype, y.dtype} == {float32, float64} and not (x.ndim and y.ndim):
        rule = held("torch.amp.Autocast")("").arguments
    return rule and tuple(rule(name, (x, y), {}))


def _in_graph(name: str, call: Callable, x: Any = None, *args: Any, **options: Any) -> Any:
    """A change in place of a tensor in a graph, as far as that comes to a new one (`change`); under no_grad of its
    values alone.
    """
    make = held("ops.index_put") if name == "setitem" else getattr(ops, name[:-1], None) if name[-1:] == "_" else None
    if make is None or not isinstance(x, Tensor) or (x.is_leaf and (x.requires_grad or not is_grad_enabled())):
        return NotImplemented
    if isinstance(x, Gradient):  # the leaf's array, which has no graph: there are no second derivatives
        with no_grad():
            return call(x, *args, **options)
    if not is_grad_enabled():
        call(x.detach(), *args, **options)
        return x
    return held("ops.more.in_place.change")(x, name, make, *args, **options)


def _viewed(call: Callable, x: Tensor, *shape: Any, **options: Any) -> Tensor:
    """`view` of results that are row-major in PyTorch, and here in the order in which an op left them: x is put in
    row-major order; where others share its memory, or an op saved it, the view is a copy that nobody can write to.
    """
    if held("ops.more.in_place.alone")(x):
        x.array = backend.of(x.array).xp.ascontiguousarray(x.array)
        return call(x, *shape, **options)
    y = call(x.contiguous(), *shape, **options)
    y._version = x._version
    if isinstance(y.array, np.ndarray):
        y.array.flags.writeable = False
    return y


def _in_place(name: str, call: Callable, on: Any, args: tuple, options: dict[str, Any]) -> Any:
    """A call with `inplace`: a layer notes it, and a function changes its input."""
    if not on:
        return call(*args, **options)
    if isinstance(args[0], Module):
        call(*args, **options)
        args[0].inplace = True
        return None
    return held("ops.more.in_place.change")(args[0], f"{name}, inplace=True", call, *args[1:], **options)


def otherwise(name: str, call: Callable, args: tuple, options: dict[str, Any], error: Exception) -> Any:
    """The result of a call whose arguments do not fit, without or with other words for those that PyTorch has; else
    NotImplemented. TypeError for an argument that is REFUSED.
    """
    message = str(error)
    if call.__name__ == "forward":  # a call in it has asked
        return NotImplemented
    if isinstance(error, RuntimeError):
        return (_viewed if name == "view" else partial(_in_graph, name))(call, *args, **options)
    found = _KEYWORD.search(message)
    made = call.__name__ == "__init__"  # also one of a subclass of the program's
    kind = next((c for c in type(args[0]).__mro__ if c.__module__.startswith("tinymp.")), None) if made else None
    name = kind.__name__ if kind is not None else name
    if name in ("to", "Module.to") and (found or _POSITION.search(message) or "name of a device" in message):
        return methods.to(*args, **options)
    if name.lower().replace("_", "") in ("softmax", "logsoftmax") and "`dim`" in message.replace("'", "`"):
        warnings.warn(f"{name}: without dim it is chosen from the number of axes, as PyTorch once did", stacklevel=3)
        return call(args[0], 0 if args[0].ndim in (0, 1, 3) else 1)
    if name in _ARITHMETIC and len(args) == 2 and (pair := _promoted(name, *args)):
        return call(*pair, **options)
    if found is None or found[1] not in options:
        if not _POSITION.search(message):
            return NotImplemented
        if args and isinstance(args[-1], bool) and name in IN_PLACE.split():
            return _in_place(name, call, args[-1], args[:-1], options)
        return _positions(kind, name, call, args, options)
    argument = found[1]
    rest = {key: x for key, x in options.items() if key != argument}
    if argument == "inplace" and name in IN_PLACE.split():
        args = args or (rest.pop("input"),)
        return _in_place(name, call, options["inplace"], args, rest)
    value, layer = options[argument], kind is not None and issubclass(kind, Module)
    nothing = (value is None and argument in REFUSED) or (argument in _NOTHING and value == _NOTHING[argument])
    if nothing or name in _FUNCTIONS.get(argument, ()) or (layer and argument == "dtype" and value == "float32"):
        return call(*args, **rest)
    if layer and argument == "device":
        with backend.device(value):
            return call(*args, **rest)
    if argument in RENAMED and RENAMED[argument] not in options:
        return call(*args, **rest, **{RENAMED[argument]: value})
    loss = name.lower().endswith(("loss", "entropy", "logits", "div"))
    if loss and argument in ("size_average", "reduce") and isinstance(value, (bool, type(None))):
        return call(*args, **_reduction(dict(options)))
    if argument == "dtype" and args and name in _CASTING:
        y = call(args[0] if value is None else args[0].to(value), *args[1:], **rest)
        return y if value is None else y.to(value)
    if argument == "generator" and name in RANDOM:
        with value or nullcontext():
            return call(*args, **rest)
    if argument == "size" and not args:
        return call(value, **rest)
    if argument == "out" and isinstance(value, Tensor):
        y = call(*args, **rest)
        return (value if value.numel() else methods.resize_(value, y.shape)).copy_(y)
    if argument not in REFUSED:
        return NotImplemented
    raise TypeError(f"{name}: argument `{argument}` is not supported: {REFUSED[argument]}") from error


def install() -> None:
    errors.otherwise = otherwise
