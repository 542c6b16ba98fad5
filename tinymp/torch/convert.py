"""PyTorch's models as tinymp's: layers by their names, forwards of their own as torch.fx records them."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from .. import nn
from ..arguments import name_all
from ..events import type_name
from ..nn import Module, Parameter
from ..ops.more.random import fork_rng
from .states import array
from .traced import Traced, cannot, constant, part

CONTAINERS = ("Sequential", "ModuleList", "ModuleDict")
# Arguments without effect on what a layer is made of
NO_EFFECT = {"inplace", "device", "dtype", "size_average", "reduce", "enable_nested_tensor", "mask_check"}


def from_torch(module: Any) -> Module:
    """A torch.nn.Module as a Module of tinymp with the same names, weights, buffers, ties, `training` and
    `requires_grad`.

    A layer of torch.nn becomes the one of the same name here; a container holds what it held. A module with a forward
    of its own is traced by torch.fx, in training and in evaluation, and goes on to call tinymp's functions and methods
    of the same names: what its forward decides by Python's `if` stays as it was decided.

    TypeError for what is no torch.nn.Module; ValueError that names the first module or function that tinymp does not
    have, or whose forward torch.fx cannot trace.
    """
    if not any(c.__module__ == "torch.nn.modules.module" for c in type(module).__mro__):
        raise TypeError(f"from_torch: expected a torch.nn.Module, got {type_name(module)}")
    for name, p in module.named_parameters():
        if str(p.dtype) not in ("torch.float32", "torch.float16", "torch.bfloat16"):
            raise ValueError(
                f"from_torch: expected `{name}` in FP32, FP16 or BF16, got {p.dtype}: write module.float()"
            )
    with fork_rng():
        ours = _converted(module, "", {})
    left = ours.load_state_dict({name: array(x) for name, x in module.state_dict().items()}, strict=False)
    if names := left.missing_keys + left.unexpected_keys:
        raise ValueError(f"from_torch: expected the same names of weights in both, got {', '.join(names)} in one alone")
    first: dict[int, Parameter] = {}
    for name, p in module.named_parameters(remove_duplicate=False):
        owner, _, last = name.rpartition(".")
        setattr(part(ours, owner), last, first.setdefault(id(p), part(ours, name).requires_grad_(p.requires_grad)))
    for name, one in module.named_modules():
        part(ours, name).training = one.training
    return ours


def _converted(module: Any, path: str, known: dict[int, Module]) -> Module:
    """One module, with all in it but for the values of its weights. A module that is there twice is one here, too."""
    if id(module) not in known:
        own, kind = vars(module), _kind(module)
        if own["_forward_hooks"] or own["_forward_pre_hooks"] or "parametrizations" in own["_modules"]:
            raise cannot(module, path, "it has hooks or parametrizations: remove them")
        if kind is None:
            known[id(module)] = Traced(module, path, _children(module, path, known))
        elif kind.__name__ in CONTAINERS:
            known[id(module)] = ours = getattr(nn, kind.__name__)()
            for name, child in _children(module, path, known).items():
                ours.add_module(name, child)
        else:
            known[id(module)] = _layer(module, kind, path, known)
    return known[id(module)]


def _kind(module: Any) -> Any:
    """The class of torch.nn whose forward it has; None for a forward of its own."""
    bases: Any = [
        c for c in type(module).__mro__ if c.__module__.startswith("torch.nn.modules.") and c.__name__ != "Module"
    ]
    return next((c for c in bases if c.forward is type(module).forward), None)


def _children(module: Any, path: str, known: dict[int, Module]) -> dict[str, Module | None]:
    inside = vars(module)["_modules"].items()  # not named_children: it leaves out what is there twice
    return {n: None if m is None else _converted(m, f"{path}.{n}".strip("."), known) for n, m in inside}


def _layer(module: Any, kind: Any, path: str, known: dict[int, Module]) -> Module:
    """The layer of the same name, with the options that the other's attributes say."""
    try:
        ours = getattr(nn, kind.__name__)
    except AttributeError as error:
        raise cannot(module, path, str(error)) from None
    options, defaults = inspect.signature(ours).parameters, inspect.signature(kind).parameters
    given = {name: constant(getattr(module, name)) for name in options if hasattr(module, name)}
    if not isinstance(getattr(module, "bias", True), bool):  # the weight, or None
        given["bias"] = module.bias is not None
    given |= SPECIAL.get(kind.__name__, lambda *_: {})(module, path, known)
    for name, option in defaults.items():
        if name not in {*options, *NO_EFFECT} and getattr(module, name, option.default) != option.default:
            raise cannot(module, path, f"{name}={getattr(module, name)!r}")
    try:
        made = ours(**{name: value for name, value in given.items() if name in options})
    except (TypeError, ValueError) as error:
        raise cannot(module, path, str(error)) from error
    if getattr(module, "inplace", False):
        made.inplace = True  # see torch/methods.py
    return made


def _transformer_layer(m: Any, path: str, known: dict[int, Module]) -> dict[str, Any]:
    activation = getattr(m.activation, "__name__", type(m.activation).__name__).lower()
    if activation not in ("relu", "gelu"):
        raise cannot(m, path, f"activation={m.activation!r}")
    a, given = m.self_attn, {"dim_feedforward": m.linear1.out_features, "bias": m.linear1.bias is not None}
    given |= {"d_model": a.embed_dim, "nhead": a.num_heads, "batch_first": a.batch_first}
    return given | {"dropout": m.dropout.p, "activation": activation, "layer_norm_eps": m.norm1.eps}


def _stack(name: str) -> Callable:
    def options(m: Any, path: str, known: dict[int, Module]) -> dict[str, Any]:
        norm = None if m.norm is None else _converted(m.norm, f"{path}.norm".strip("."), {})
        return {name: _converted(m.layers[0], f"{path}.layers.0".strip("."), {}), "norm": norm}

    return options


# Options that layers do not keep under their names.
SPECIAL: dict[str, Callable] = {
    "MultiheadAttention": lambda m, *_: {"bias": m.in_proj_bias is not None, "add_bias_kv": m.bias_k is not None},
    "TransformerEncoderLayer": _transformer_layer,
    "TransformerDecoderLayer": _transformer_layer,
    "TransformerEncoder": _stack("encoder_layer"),
    "TransformerDecoder": _stack("decoder_layer"),
}


name_all(globals())
