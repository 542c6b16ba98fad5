"""PyTorch's names for what a Tensor and a Module do: methods that tinymp's classes get when the face is imported."""

from __future__ import annotations

from typing import Any

import numpy as np

from .. import ops
from ..arguments import called
from ..backend.extras import Held, held
from ..dtypes import FLOATING, as_dtype
from ..nn import Embedding, init
from ..nn.functions import Function
from ..nn.module import Module
from ..precision import FP32, Policy
from ..tensor import Tensor
from .different import MISSING
from .types import DTYPES, Size, lengths

# Functions of `ops` that are methods of PyTorch's Tensor and not of tinymp's
METHODS = """
    acos addcdiv addcmul addmm allclose asin atan atan2 bernoulli bincount broadcast_to ceil cos cosh count_nonzero
    cumprod diag diagonal dot equal erf erfinv expm1 floor floor_divide fmod index_add index_fill isclose lerp log10
    log1p log2 logical_xor masked_select movedim multinomial mv narrow nonzero outer remainder repeat_interleave
    roll round scatter_add sin sinh swapaxes take_along_dim tan tile trunc unflatten unique
"""
# Functions of `ops` that PyTorch has in nn.functional, and not at its top
FUNCTIONAL = """
    adaptive_avg_pool2d adaptive_max_pool2d avg_pool2d binary_cross_entropy cosine_embedding_loss cross_entropy
    dropout1d dropout2d elu elu_ gaussian_nll_loss gelu glu hardsigmoid hardswish hardtanh hardtanh_ leaky_relu_
    gumbel_softmax hinge_embedding_loss huber_loss interpolate l1_loss leaky_relu linear local_response_norm
    logsigmoid mse_loss margin_ranking_loss mish nll_loss normalize one_hot pad pairwise_distance relu6
    scaled_dot_product_attention silu smooth_l1_loss soft_margin_loss softplus softsign triplet_margin_loss unfold
"""
# In place, like `add_`: the function's result is written into the tensor, outside the graph
IN_PLACE = """
    abs acos addcdiv addcmul addmm asin atan atan2 bernoulli ceil clip cos cosh cumprod cumsum eq erf erfinv exp
    expm1 floor floor_divide fmod ge gt index_add index_fill le lerp log log10 log1p log2 logical_and logical_not
    logical_or logical_xor lt maximum minimum ne neg pow reciprocal relu remainder round rsqrt scatter scatter_add
    sigmoid sign sin sinh softmax sqrt square tan tanh tril triu trunc
"""
_VIEWS = "squeeze unsqueeze t transpose swapaxes swapdims"
# PyTorch's further name -> the name, of functions and methods
_ALIASES = """
    absolute:abs arccos:acos arcsin:asin arctan:atan arctan2:atan2 divide:div fix:trunc ger:outer greater:gt
    greater_equal:ge less:lt less_equal:le moveaxis:movedim multiply:mul negative:neg not_equal:ne ravel:flatten
    subtract:sub swapdims:transpose true_divide:div
"""
ALIASES = dict(pair.split(":") for pair in _ALIASES.split())
_WRITTEN = {"add", "div", "mul", "sub", *IN_PLACE.split()}


def to(x: Any, *targets: Any, device: Any = None, dtype: Any = None, **ignored: Any) -> Any:
    """A Tensor or Module on another device, in another dtype, or like another Tensor.

    A Module takes no dtype but FP32: TypeError, which names the policy to cast it with.
    """
    for target in (*targets, device, dtype):
        if isinstance(target, Tensor):
            x = x.to(target.device).to(target.dtype)
        elif target is not None and not isinstance(target, bool):  # non_blocking, by position
            is_dtype = not isinstance(target, str) or target.startswith(("float", "int", "bool", "uint"))
            if isinstance(x, Module) and is_dtype:
                if (dtype := as_dtype(target, "to")) != FP32.storage:
                    raise TypeError(
                        f"Module.to: expected torch.float32, got {dtype}; write torch.amp.prepare(model, dtype)"
                    )
                x = FP32.cast(x)
            else:
                x = x.to(target)
    return x


def type_(x: Tensor, dtype: Any = None, non_blocking: bool = False) -> Any:
    """The name of its type in PyTorch ("torch.FloatTensor"), or x in another dtype."""
    if dtype is None:
        name = next(name for name, held in DTYPES.items() if held == x.dtype)
        return f"torch.{'' if x.device == 'cpu' else 'cuda.'}{name}"
    if isinstance(dtype, str) and dtype.rpartition(".")[2] in DTYPES:
        dtype = DTYPES[dtype.rpartition(".")[2]]
    return x.to(getattr(dtype, "holds", dtype))


def t(input: Tensor) -> Tensor:
    """The transposed matrix; a vector or a number is its own. RuntimeError for more axes."""
    if input.ndim > 2:
        raise RuntimeError(f"t: expected at most 2 axes, got shape {input.shape}; see mT and permute")
    return input.T


def is_floating_point(input: Tensor) -> bool:
    """True for a Tensor of a floating dtype."""
    return input.dtype in FLOATING


def resize_(x: Tensor, *size: Any, memory_format: Any = None) -> Tensor:
    """x itself in another shape: its elements in their order, and zeros for more of them. Outside the graph."""
    x.require_outside_graph("resize_")
    full = ops.zeros(*size, dtype=x.dtype, device=x.device)
    n = min(full.numel(), x.numel())
    full.array.reshape(-1)[:n] = x.array.reshape(-1)[:n]
    x.array = full.array
    return x


def _drawn(name: str, fill: Any) -> Any:
    def method(x: Tensor, *args: Any, generator: Any = None, **options: Any) -> Tensor:
        x.require_outside_graph(name)
        return fill(x, *args, generator=generator, **options)

    return called(method, name, f"Overwrite with random numbers: `nn.init.{name}`. Outside the graph.", __name__)


def random_(x: Tensor, low: int = 0, high: Any = None) -> Tensor:
    """Overwrite with integers from low to high - 1 (one number: from 0)."""
    low, high = (low, high) if high is not None else (0, low or 2**24)
    return x.overwrite("random_", ops.randint(low, high, x.shape, device=x.device).to(x.dtype))


def _new(name: str) -> Any:
    make = getattr(ops, name)

    def method(x: Tensor, *size: Any, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Tensor:
        there = {"dtype": x.dtype if dtype is None else dtype, "device": device or x.device}
        return make(*size, **there, requires_grad=requires_grad)

    return called(method, f"new_{name}", f"`torch.{name}` with the dtype and device of this tensor.", __name__)


def new_tensor(x: Tensor, data: Any, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Tensor:
    """`torch.tensor` with the dtype and device of this tensor."""
    made = held("tensor")(data, x.dtype if dtype is None else dtype, device=device or x.device)
    return made.requires_grad_(requires_grad)


def new(x: Tensor, *data: Any) -> Tensor:
    """`new_empty(2, 3)`, or `new_tensor(values)`."""
    return new_tensor(x, *data) if (shape := lengths(data)) is None else _new("zeros")(x, *shape)


def _reflected(name: str) -> Any:
    def method(x: Tensor, other: Any) -> Tensor:
        return held(f"ops.{name}")(other if isinstance(other, Tensor) else ops.full_like(x, other), x)

    return method


def _renamed(name: str) -> Any:
    return lambda x, *args, **options: held("ops.more.in_place.renamed")(
        x, f"{name}_", getattr(Tensor, name), *args, **options
    )


def _of_held(name: str, in_place: bool = False) -> Any:
    """The function of this name in `ops`, loaded when called, as a method, or as one that changes its tensor."""

    def method(x: Tensor, *args: Any, **options: Any) -> Any:
        function = held(f"ops.{name}")
        return (held("ops.pointwise.in_place")(function) if in_place else function)(x, *args, **options)

    return called(method, name, f"`torch.{name}` of this tensor.", __name__)


def _to(dtype: str) -> Any:
    return lambda x, memory_format=None: x.to(dtype)


def unfold(x: Tensor, dimension: int, size: int, step: int) -> Tensor:
    """The windows of `size` along an axis, one each `step`, in a new last axis. In PyTorch a view; here a copy."""
    if not x.ndim:  # a number is one window
        return unfold(x.reshape(1), dimension, size, step).reshape(size)
    dim = range(x.ndim)[dimension]
    windows = [held("ops.narrow")(x, dim, i, size) for i in range(0, x.shape[dim] - size + 1, step)]
    return held("ops.movedim")(ops.stack(windows, dim), dim + 1, -1)


def _absent(x: Tensor, name: str) -> Any:
    raise AttributeError(f"'{type(x).__name__}' object has no attribute '{name}' in tinymp; {MISSING}")


TENSOR: dict[str, Any] = {
    **{name: _of_held(name) for name in METHODS.split()},
    **{f"{name}_": _of_held(name, True) for name in IN_PLACE.split()},
    **{name: _of_held(function) for name, function in ALIASES.items()},
    **{f"{a}_": _of_held(b, True) for a, b in ALIASES.items() if b in _WRITTEN},
    **{name: _to(dtype) for name, dtype in (("short", "int16"), ("byte", "uint8"), ("char", "int8"))},
    **{f"new_{name}": _new(name) for name in ("zeros", "ones", "full", "empty")},
    **{name: _drawn(name, getattr(init, name)) for name in ("uniform_", "normal_")},
    **{f"__{symbol}__": _of_held(name) for symbol, name in (("mod", "remainder"), ("floordiv", "floor_divide"))},
    **{f"__i{symbol}__": Held(f"ops.more.in_place.__i{symbol}__") for symbol in ("mod", "floordiv")},
    **{f"__r{symbol}__": _reflected(name) for symbol, name in (("mod", "remainder"), ("floordiv", "floor_divide"))},
    **{f"{name}_": _renamed(name) for name in _VIEWS.split()},
    "mT": property(lambda x: x.transpose(-2, -1), doc="The matrices in its last two axes, transposed."),
    "is_cuda": property(lambda x: x.device == "gpu", doc="True on the GPU."),
    "itemsize": property(lambda x: x.dtype.itemsize, doc="Bytes of an element."),
    "type": type_,
    "type_as": lambda x, other: x.to(other.dtype),
    "view_as": lambda x, other: x.view(other.shape),
    "reshape_as": lambda x, other: x.reshape(other.shape),
    "expand_as": lambda x, other: x.expand(other.shape),
    "t": t,
    "resize_": resize_,
    "resize_as_": lambda x, other: resize_(x, other.shape),
    **{f"is_{other}": property(lambda x: False, doc="False.") for other in ("mps", "xpu", "sparse")},
    "random_": random_,
    "detach_": lambda x: x.requires_grad_(False) if x.grad_fn is None else _refuse_detach(x),
    "new": new,
    "unfold": unfold,
    "select": lambda x, dim, index: held("ops.unbind")(x, dim)[index],
    "new_tensor": new_tensor,
    "nelement": Tensor.numel,
    "ndimension": lambda x: x.ndim,
    "element_size": lambda x: x.dtype.itemsize,
    "is_floating_point": is_floating_point,
    "is_contiguous": lambda x: bool(x.array.flags.c_contiguous),
    "stride": lambda x, dim=None: _stride(x, dim),
    "get_device": lambda x: 0 if x.device == "gpu" else -1,
    "data_ptr": lambda x: x.array.ctypes.data if x.device == "cpu" else x.array.data.ptr,
    "pin_memory": lambda x: x,
    "register_hook": Held("ops.more.hooks.register_hook"),
    "retain_grad": Held("ops.more.hooks.retain_grad"),
    "clamp_min": lambda x, min: x.clamp(min),
    "clamp_max": lambda x, max: x.clamp(max=max),
    "clamp_min_": lambda x, min: x.clamp_(min),
    "clamp_max_": lambda x, max: x.clamp_(max=max),
    "__getattr__": _absent,
    "where": lambda x, condition, other: ops.where(condition, x, other),
}


def _refuse_detach(x: Tensor) -> Any:
    raise RuntimeError("detach_: this tensor was computed by an op; write x = x.detach()")


def _stride(x: Tensor, dim: Any) -> Any:
    steps = tuple(n // x.dtype.itemsize for n in x.array.strides)
    return steps if dim is None else steps[dim]


class Parts(dict):
    """A module's own modules, parameters or buffers by name, as they are now; what is set here is set there."""

    def __init__(self, module: Module, own: Any) -> None:
        super().__init__(own)
        self.module = module

    def __setitem__(self, name: str, x: Any) -> None:
        super().__setitem__(name, x)
        setattr(self.module, name, x)

    def __delitem__(self, name: str) -> None:
        super().__delitem__(name)
        delattr(self.module, name)


def _check_input_dim(module: Any, input: Tensor) -> None:
    if input.ndim not in module.layouts:
        raise ValueError(f"expected input {' or '.join(module.layouts.values())}, got shape {input.shape}")


MODULE: dict[str, Any] = {
    "cuda": lambda module, device=None: module.to("gpu"),
    "cpu": lambda module: module.to("cpu"),
    "float": lambda module: FP32.cast(module),
    "double": lambda module: Policy("FP64", storage=np.dtype(float)).cast(module),
    "get_parameter": lambda module, target: dict(module.named_parameters())[target],
    "get_submodule": lambda module, target: dict(module.named_modules())[target],
    "flatten_parameters": lambda module: None,
    "_flat_weights_names": property(lambda module: [name for name, _ in module.named_parameters(recurse=False)]),
    "register_module": lambda module, name, part: module.add_module(name, part),
    "_modules": property(lambda module: Parts(module, module.named_children())),
    "_parameters": property(lambda module: Parts(module, module.named_parameters(recurse=False))),
    "_buffers": property(lambda module: Parts(module, module.named_buffers(recurse=False))),
    "_check_input_dim": _check_input_dim,
    "_get_name": lambda module: type(module).__name__,
}


def _called(module: Function, *args: Any, **options: Any) -> Any:
    if vars(module).get("inplace") is not True:
        return Module.__call__(module, *args, **options)
    how = f"{type(module).__name__}, inplace=True"
    return held("ops.more.in_place.change")(args[0], how, lambda x: Module.__call__(module, x))


def install() -> None:
    """Add the methods. A second call does nothing."""
    if not hasattr(Tensor, "view_as"):
        Function.__call__ = _called  # type: ignore[method-assign,assignment]
        for name, x in TENSOR.items():
            if not hasattr(Tensor, name):
                setattr(Tensor, name, x)
        for name, x in MODULE.items():
            setattr(Module, name, x)
        Tensor.shape = property(lambda x: Size(x.array.shape), doc="The lengths of its axes.")
        Embedding.max_norm, Embedding.norm_type, Embedding.scale_grad_by_freq = None, 2.0, False  # type: ignore[attr-defined]
