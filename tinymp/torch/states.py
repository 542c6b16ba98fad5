"""The state of PyTorch's optimizers, as tinymp's take it. PyTorch is not imported: methods tell its tensors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ..optim import Optimizer

# Options of a group in PyTorch that change no result, or that its schedules leave there.
_WITHOUT_EFFECT = {"foreach", "fused", "capturable", "differentiable", "param_names"}
_WITHOUT_EFFECT |= {"max_lr", "min_lr", "base_momentum", "max_momentum"}


def array(x: Any) -> Any:
    """A tensor of PyTorch's copied to a NumPy array; BF16 becomes FP32, which holds it exactly. Else x."""
    if not (hasattr(x, "detach") and hasattr(x, "cpu")):
        return x
    x = x.detach().cpu()
    return (x.float() if str(x.dtype) == "torch.bfloat16" else x).numpy().copy()


def from_pytorch(optimizer: Optimizer, state_dict: Any) -> Any:
    """`state_dict` of PyTorch's optimizer of the same name, as `optimizer.load_state_dict` of tinymp takes it; one of
    tinymp's is equal to what comes back. ValueError for a decoupled weight decay where the optimizer has none, and the
    other way round.
    """
    try:
        state, groups = state_dict["state"], state_dict["param_groups"]
        if len(groups) != len(optimizer.param_groups):
            return state_dict
        states = {i: _state(one) for i, one in state.items()}
        translated = [_group(optimizer, own, group) for own, group in zip(optimizer.param_groups, groups)]
    except (TypeError, KeyError, AttributeError):
        return state_dict  # no such dict at all
    return {**state_dict, "state": {i: one for i, one in states.items() if one}, "param_groups": translated}


def _state(state: Mapping[str, Any]) -> dict[str, Any]:
    """PyTorch's SGD counts no updates: with a momentum there has been at least one."""
    known = {name: array(x) for name, x in state.items() if x is not None}
    if "step" in known:
        known["step"] = int(known["step"])
    return {"step": 1, **known} if known else {}


def _group(optimizer: Optimizer, own: Mapping[str, Any], group: Mapping[str, Any]) -> dict[str, Any]:
    """Options that an earlier PyTorch did not have yet are the optimizer's own."""
    known = {name: array(x) for name, x in group.items() if name not in _WITHOUT_EFFECT}
    known = {name: x.item() if isinstance(x, np.ndarray) else x for name, x in known.items()}
    if "decoupled_weight_decay" in known and "decoupled_weight_decay" not in own:
        name, decoupled = type(optimizer).__name__, getattr(optimizer, "decoupled", False)
        if known.pop("decoupled_weight_decay") != decoupled:
            raise ValueError(
                f"{name}.load_state_dict: expected the state of {name}, got that of PyTorch's "
                f"{'Adam' if decoupled else 'AdamW'}: use optim.{'Adam' if decoupled else 'AdamW'}"
            )
    return {**{name: x for name, x in own.items() if name != "initial_lr"}, **known}
