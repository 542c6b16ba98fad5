"""The way into and out of a module that is kept in another policy than the model around it (`Policy.cast`)."""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import ContextVar
from difflib import get_close_matches
from typing import Any

import numpy as np

from ...autograd import Array, Op
from ...events import Observer, observe, under
from ...ops.convert import to
from ...precision import LOSS, Policy, policy_in_use
from ...tensor import Tensor
from ..module import Module
from .hooks import Hooks, Kept, hooks_of

# The policy of the kept module whose call is under way, or of autocast's block (torch/amp.py)
kept_policy: ContextVar[Policy | None] = ContextVar("kept_policy", default=None)


def policies_kept(model: Module, policy: Policy, keep: Mapping[str, Policy]) -> dict[int, Any]:
    """By their ids, the policies of modules that are kept, of their parameters and buffers, and what the modules' Hooks
    are told of them.
    """
    if not isinstance(keep, Mapping) or not all(isinstance(kept, Policy) for kept in keep.values()):
        raise TypeError(f"Policy.cast: expected keep to be a dict of paths of modules and policies, got {keep!r}")
    paths = dict(model.named_modules(remove_duplicate=False))
    if unknown := [path for path in keep if path not in paths]:
        near = get_close_matches(str(unknown[0]), tuple(paths))
        hint = f"did you mean {', '.join(map(repr, near))}?" if near else f"there are {', '.join(paths)[2:]}"
        raise ValueError(f"Policy.cast: expected keep to name modules of the model, got {unknown[0]!r}; {hint}")
    policies: dict[str, Policy | None] = {}  # None: not kept
    found: dict[int, tuple[str, Policy | None]] = {}
    for path, module in paths.items():
        policies[path] = keep[path] if path in keep else policies[path.rpartition(".")[0]] if path else None
        own = *module.named_parameters(recurse=False), *module.named_buffers(recurse=False)
        for name, x in (("", module), *own):
            here = f"{path}.{name}".strip(".")
            there, other = found.setdefault(id(x), (here, policies[path]))
            if (other or policy) != (policies[path] or policy):
                raise ValueError(
                    f"Policy.cast: {there!r} and {here!r} are one {type(x).__name__}, which cannot have two "
                    f"policies, {(other or policy).name} and {(policies[path] or policy).name}: name both in keep"
                )
    kept = {key: own for key, (_, own) in found.items() if own is not None}
    return kept | {id(hooks_of(m)): Kept(kept[id(m)], policy) for m in paths.values() if id(m) in kept}


def call_kept(hooks: Hooks, module: Module, args: tuple, kwargs: dict[str, Any]) -> Any:
    """Call a kept module with its hooks, in its own policy: its backward follows the same."""
    assert hooks.kept is not None
    own, outer = hooks.kept.own, kept_policy.get() or hooks.kept.around
    if own == outer:
        return hooks.run(module, args, kwargs)
    args, kwargs = _converted((args, kwargs), outer.storage, own.storage, {})
    seen = _Losses()
    output = under(policy_in_use, own, _within, seen, own, hooks, module, args, kwargs)
    return _converted(output, own.storage, outer.storage, seen.losses)


def _within(seen: _Losses, own: Policy, hooks: Hooks, *call: Any) -> Any:
    kept_policy.set(own)  # until `under` ends
    with observe(seen):
        return hooks.run(*call)


class _Losses(Observer):
    """Knows the losses that a kept module computes.

    losses  the results of losses, and of ops on these, by their id: they are FP32 under every policy, and stay it
    """

    def __init__(self) -> None:
        self.losses: dict[int, Array] = {}

    def ran(self, op: Op, inputs: tuple, outputs: tuple) -> None:
        behind = any(isinstance(x, Tensor) and id(x.array) in self.losses for x in inputs)
        if op.phase == "forward" and (op.kind is LOSS or behind):
            self.losses.update((id(y), y) for y in outputs)


def _converted(x: Any, source: np.dtype, target: np.dtype, losses: dict[int, Array]) -> Any:
    """x, or the Tensors in it, converted from one dtype to another; other dtypes stay, and so do losses."""
    if source == target:
        return x
    if isinstance(x, Tensor):
        return to(x, target) if x.dtype == source and id(x.array) not in losses else x
    if isinstance(x, dict):
        return {name: _converted(item, source, target, losses) for name, item in x.items()}
    if isinstance(x, (tuple, list)):
        items = [_converted(item, source, target, losses) for item in x]
        return type(x)(*items) if hasattr(x, "_fields") else type(x)(items)
    return x
