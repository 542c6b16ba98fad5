"""Names and arguments that only PyTorch has, and what to use here in their place. tinymp asks when one is not found."""

from __future__ import annotations

import re
from typing import Any

from ..ops import HELD_METHODS, IN_PLACE, METHODS

_MIXED = "precision is a policy's: `policy.cast(model)` and `with tinymp.use(policy):`, see tinymp.MIXED"
_LOSS_SCALING = "use tinymp.optim.DynamicLossScaler: scale, unscale_, step, update"
_DEVICE = 'the device is "gpu": `with tinymp.device("gpu"):`, model.to("gpu"), tensor.to("gpu")'

INSTEAD: dict[str, dict[str, str]] = {
    "tinymp": {
        "autocast": f"{_MIXED}; tinymp.torch.amp has it",
        "amp": f"{_MIXED}; {_LOSS_SCALING}",
        "set_default_dtype": _MIXED,
        "half": "use tinymp.float16",
        "float": "use tinymp.float32",
        "double": "use tinymp.float64",
        "long": 'a dtype of integers is named: dtype="int64"',
        "int64": 'a dtype of integers is named: dtype="int64"',
        "int32": 'a dtype of integers is named: dtype="int32"',
        "bool": 'a dtype of truths is named: dtype="bool"',
        "GradScaler": _LOSS_SCALING,
        "cuda": _DEVICE,
        "functional": "its functions are in tinymp.ops",
        "compile": "tinymp.capture(step) records a whole step as one CUDA graph",
        "jit": "tinymp.capture(step) records a whole step as one CUDA graph",
        "inference_mode": "use tinymp.no_grad()",
        "set_grad_enabled": "use tinymp.no_grad() and tinymp.enable_grad()",
        "utils": "datasets and the DataLoader are in tinymp.data; clipping is in tinymp.optim",
        "profiler": "use tinymp.audit()",
        "FloatTensor": "use tinymp.tensor(...)",
    },
    "tinymp.nn": {
        "functional": "its functions are in tinymp.ops",
        "utils": "clip_grad_norm_ and clip_grad_value_ are in tinymp.optim",
        "DataParallel": "a model runs on one GPU",
        "Hardsigmoid": "use nn.Hardtanh(0, 1) of x / 6 + 1 / 2",
        "Swish": "use nn.SiLU",
    },
    "tinymp.optim": {
        "lr_scheduler": "the schedules are here: optim.StepLR, optim.CosineAnnealingLR, optim.OneCycleLR, ...",
        "GradScaler": _LOSS_SCALING,
        "SparseAdam": "use optim.Adam: it takes sparse gradients",
        "LRScheduler": "use optim.Schedule",
    },
    "Module": {
        "half": "use tinymp.MIXED.cast(model), which keeps FP32 masters",
        "bfloat16": "use tinymp.BF16.cast(model), which keeps FP32 masters",
        "float": "use tinymp.FP32.cast(model)",
        "double": 'use tinymp.Policy("FP64", storage="float64").cast(model)',
        "cuda": 'use model.to("gpu")',
        "register_backward_hook": "use register_full_backward_hook",
        "register_full_backward_pre_hook": "use register_full_backward_hook, which is given grad_output as well",
    },
    "Tensor": {
        "mT": "use transpose(-2, -1)",
        "is_cuda": 'use device == "gpu"',
        "fill_": "use x[...] = value under no_grad, or tinymp.full",
        "uniform_": "use tinymp.nn.init.uniform_(x), or tinymp.rand",
        "normal_": "use tinymp.nn.init.normal_(x), or tinymp.randn",
        "type": "use dtype and to(dtype)",
        "data_ptr": "use `array`",
        "retain_grad": "detach it and set requires_grad, or use tinymp.observe",
        "register_hook": "use tinymp.observe, or a module's register_full_backward_hook",
        "new_zeros": "use tinymp.zeros(shape, dtype=x.dtype, device=x.device)",
        "new_ones": "use tinymp.ones(shape, dtype=x.dtype, device=x.device)",
        "new_tensor": "use tinymp.tensor(values, dtype=x.dtype)",
        "expand_as": "use expand(other.shape)",
        "view_as": "use view(other.shape)",
        "reshape_as": "use reshape(other.shape)",
        "type_as": "use to(other.dtype)",
        "element_size": "use dtype.itemsize",
        "astype": "use to(dtype)",
    },
}


ARGUMENTS = {
    "out": "ops never write into an existing array",
    "dtype": "precision is the policy's decision: policy.cast(model), or convert a tensor with .to(dtype)",
    "inplace": "ops never write into their input",
    "size_average": "PyTorch deprecated it; use reduction=",
    "reduce": "PyTorch deprecated it; losses have reduction=",
    "decimals": "write round(x * 10**n) / 10**n",
    "memory_format": "the memory order is chosen by the ops",
    "layout": "all tensors are dense",
    "device": "the result lives where its input does; move a model with .to(device)",
    "requires_grad": "the result requires a gradient when an input does",
    "pin_memory": "batches are ordinary arrays",
    "enable_gqa": "repeat key and value",
    "antialias": "images are not smoothed before they are resized",
    "sparse_grad": "its gradient is dense",
    "max_norm": "the rows of a table are not rescaled",
    "norm_type": "the rows of a table are not rescaled",
    "scale_grad_by_freq": "gradients of a table are sums over its uses",
    "_weight": "load a table with layer.weight.copy_(...) under no_grad",
    "output_size": "use output_padding=",
    "foreach": "a group's parameters are updated as the device likes it best",
    "fused": "a group's parameters are updated as the device likes it best",
    "capturable": "tinymp.capture needs no option",
    "differentiable": "an update has no gradient",
    "decoupled_weight_decay": "use AdamW",
    "closure": "call backward() before step()",
    "last_epoch": "load_state_dict resumes a schedule",
    "new_scale": "make a new scaler, or use StaticLossScaler",
}


_UNEXPECTED = re.compile(r"got an unexpected keyword argument '(\w+)'")


def refused(name: str, call: Any, args: tuple, options: dict, error: Exception) -> Any:
    """TypeError that says why an argument of PyTorch's is not here; NotImplemented if nothing is known."""
    found = _UNEXPECTED.search(str(error))
    if found is None or not (why := argument(found[1])):
        return NotImplemented
    raise TypeError(f"{name}: argument `{found[1]}` is not supported: {why}") from error


def why(title: str, name: str) -> str:
    """For the message of a name that a module of the face does not have: the hint, if there is one."""
    said = instead(title.replace("torch", "tinymp", 1), name)
    return f"; {said}" if said else ""


def argument(name: str) -> str:
    """Why an argument of PyTorch's is not here; empty if nothing is known."""
    return ARGUMENTS.get(name, "")


def instead(owner: str, name: str) -> str:
    """The hint for an attribute that a module does not have; empty if there is none."""
    return INSTEAD.get(owner, {}).get(name, "")


class Absent:
    """An attribute of Tensor that is not there: reading it raises an AttributeError that says what to use.

    One per name: a `__getattr__` for all of them would slow down every attribute that exists.
    """

    def __init__(self, name: str, hint: str) -> None:
        self.message = f"Tensor has no attribute '{name}'; {hint}"

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        raise AttributeError(self.message)


def mark(tensor: type, module: dict[str, str]) -> None:
    """Have the class Tensor say what to use for names that it lacks: those in INSTEAD, and the in-place forms of its
    methods. Add those of Module to the dict `module`.
    """
    module.update(INSTEAD["Module"])
    found = dict(INSTEAD["Tensor"])
    for name in (*[function.__name__ for function in METHODS if function not in IN_PLACE], *HELD_METHODS.split()):
        found[f"{name}_"] = f"ops never write into their input; use x = x.{name}(...), or for leaves under no_grad " + (
            "copy_, zero_ and x[...] = value"
        )
    for name, hint in found.items():
        setattr(tensor, name, Absent(name, hint))
