"""Names and arguments that only PyTorch has, and what to use here in their place. tinymp asks when one is not found."""

from __future__ import annotations

import re
from typing import Any

from ..ops import HELD_METHODS, IN_PLACE, METHODS

_MIXED = "precision is a policy's: `policy.cast(model)` and `with tinymp.use(policy):`, see tinymp.MIXED"
_LOSS_SCALING = "use tinymp.optim.DynamicLossScaler: scale, unscale_, step, update"
_DEVICE = 'the device is "gpu": `with tinymp.device("gpu"):`, model.to("gpu"), tensor.to("gpu")'

# Owner -> hint -> the names that it is for
_HINTS: dict[str, dict[str, str]] = {
    "tinymp": {
        f"{_MIXED}; tinymp.torch.amp has it": "autocast",
        f"{_MIXED}; {_LOSS_SCALING}": "amp",
        _MIXED: "set_default_dtype",
        "dtypes are tinymp.float16, tinymp.float32 and tinymp.float64": "half float double",
        'a dtype of integers or truths is named: dtype="int64", "int32", "bool"': "long int64 int32 bool",
        _LOSS_SCALING: "GradScaler",
        _DEVICE: "cuda",
        "its functions are in tinymp.ops": "functional",
        "tinymp.capture(step) records a whole step as one CUDA graph": "compile jit",
        "use tinymp.no_grad() and tinymp.enable_grad()": "inference_mode set_grad_enabled",
        "datasets and the DataLoader are in tinymp.data; clipping is in tinymp.optim": "utils",
        "use tinymp.audit()": "profiler",
        "use tinymp.tensor(...)": "FloatTensor",
    },
    "tinymp.nn": {
        "its functions are in tinymp.ops": "functional",
        "clip_grad_norm_ and clip_grad_value_ are in tinymp.optim": "utils",
        "a model runs on one GPU": "DataParallel",
        "use nn.SiLU": "Swish",
    },
    "tinymp.optim": {
        "the schedules are here: optim.StepLR, optim.CosineAnnealingLR, optim.OneCycleLR, ...": "lr_scheduler",
        _LOSS_SCALING: "GradScaler",
        "use optim.Adam: it takes sparse gradients": "SparseAdam",
        "use optim.Schedule": "LRScheduler",
    },
    "Module": {
        "use tinymp.MIXED.cast(model) or tinymp.BF16.cast(model), which keep FP32 masters": "half bfloat16",
        "use tinymp.FP32.cast(model)": "float",
        'use tinymp.Policy("FP64", storage="float64").cast(model)': "double",
        'use model.to("gpu")': "cuda",
        "processes have memory of their own, see tinymp.parallel": "share_memory",
        "use register_full_backward_hook": "register_backward_hook",
        "use register_full_backward_hook, which is given grad_output as well": "register_full_backward_pre_hook",
    },
    "Tensor": {
        "use transpose(-2, -1)": "mT",
        'use device == "gpu"': "is_cuda",
        "use x[...] = value under no_grad, or tinymp.full": "fill_",
        "use tinymp.nn.init.normal_(x) or uniform_(x), tinymp.randn or rand": "uniform_ normal_",
        "use dtype and to(dtype)": "type",
        "use `array`": "data_ptr",
        "detach it and set requires_grad, or use tinymp.observe": "retain_grad",
        "use tinymp.observe, or a module's register_full_backward_hook": "register_hook",
        "use tinymp.zeros, ones or tensor with dtype=x.dtype, device=x.device": "new_zeros new_ones new_tensor",
        "use expand, view or reshape with other.shape": "expand_as view_as reshape_as",
        "use to(other.dtype)": "type_as",
        "use dtype.itemsize": "element_size",
        "use to(dtype)": "astype",
    },
    "": {  # arguments
        "ops never write into an existing array": "out",
        "precision is the policy's decision: policy.cast(model), or convert a tensor with .to(dtype)": "dtype",
        "ops never write into their input": "inplace",
        "PyTorch deprecated it; losses have reduction=": "size_average reduce",
        "write round(x * 10**n) / 10**n": "decimals",
        "all tensors are dense, in the memory order that the ops choose": "memory_format layout",
        "the result lives where its input does; move a model with .to(device)": "device",
        "the result requires a gradient when an input does": "requires_grad",
        "batches are ordinary arrays": "pin_memory",
        "repeat key and value": "enable_gqa",
        "images are not smoothed before they are resized": "antialias",
        "its gradient is dense": "sparse_grad",
        "neither the rows of a table nor their gradients are rescaled": "max_norm norm_type scale_grad_by_freq",
        "load a table with layer.weight.copy_(...) under no_grad": "_weight",
        "use output_padding=": "output_size",
        "updates need no option: they are made as the device likes it best": "foreach fused capturable differentiable",
        "use AdamW": "decoupled_weight_decay",
        "call backward() before step()": "closure",
        "load_state_dict resumes a schedule": "last_epoch",
        "make a new scaler, or use StaticLossScaler": "new_scale",
    },
}
INSTEAD = {owner: {n: hint for hint, names in rows.items() for n in names.split()} for owner, rows in _HINTS.items()}
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
    return INSTEAD[""].get(name, "")


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
