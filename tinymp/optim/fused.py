"""An optimizer's step on a GPU: all parameters of a group in one launch (multi_tensor.py).

The definition of a rule is its `update` in rules.py; this follows it where a parameter is FP16 or FP32 with FP32
state. Options that are numbers (lr, betas, ...) are kept on the device, where a captured CUDA graph reads them anew at
each replay; options that are True or False, and what is trained at all, stay as they were when it was captured.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from ..autograd import Array
from ..backend import gpu, recording
from ..dtypes import float16, float32
from ..parameter import Parameter
from ..sparse import put, rows_of, values_of, with_values
from . import multi_tensor

Ready = list[tuple[dict[str, Any], Parameter]]


def step(optimizer: Any, ready: Ready, skip: Any) -> Ready:
    """Update what can be updated in one launch per group; returns the rest.

    skip: False, or a boolean device array of one element: where it holds, nothing changes.
    """
    left: Ready = []
    for group, rounding, scale, params in _alike(optimizer, ready, left):
        states = [optimizer.state_of(group, p) for p in params]
        for state in states:
            for name in ("step", "since"):
                if name in state and not hasattr(state[name], "dtype"):  # counted on the host so far
                    state[name] = _count(state[name])
        grads = [p.grad for p in params]
        arrays: list[Any] = [
            [p.master if p.master.dtype == float32 else None for p in params],
            [p.array if p.dtype == float16 else None for p in params],
            *[[state[name] for state in states] for name in optimizer.initial(group)],
        ]
        # Of a sparse gradient's parameter the kernel gets copies of its rows, which are written back behind it
        touched = [[x if x is None else rows_of(x, g) for x, g in zip(column, grads)] for column in arrays]
        lists = [[values_of(g) for g in grads], *touched[:2], [state["step"] for state in states], *touched[2:]]
        how = {
            "options": _options(optimizer, group),
            "maximize": group["maximize"],
            "scale": _number(scale),
            "skip": None if skip is False else skip,
            "rounding": rounding,
        }
        since = [state.get("since") for state in states]
        optimizer.update_cuda(lists, group, since=since, **how)
        rows = [
            (x, with_values(g, new))
            for column, updated in zip(arrays, touched)
            for g, x, new in zip(grads, column, updated)
            if new is not x
        ]
        try:
            for x, new in rows:
                put(x, new)
        except BaseException:  # an interrupt between master and copy goes on when both are written
            for x, new in rows:
                put(x, new)
            raise
        for p in params:
            p.bump_version()
    return left


def _alike(optimizer: Any, ready: Ready, left: Ready) -> Iterator[tuple[dict, str, Any, list[Parameter]]]:
    """The parameters that one launch can take, as (group, rounding, loss scale, parameters); others go to `left`."""
    found: dict[tuple, tuple] = {}
    for group, p in ready:
        if optimizer.update_cuda is None or p.dtype not in (float16, float32) or p.policy.state == float16:
            left.append((group, p))
            continue
        key = id(group), p.policy.rounding, id(p.grad_scale) if hasattr(p.grad_scale, "array") else p.grad_scale
        found.setdefault(key, (group, p.policy.rounding, p.grad_scale, []))[3].append(p)
    yield from found.values()


def _count(n: int) -> Array:
    """A number of steps on the device, where a captured graph counts on: it is not set again at each replay."""
    array = gpu.xp.empty(1, "int32")
    recording.after_capture(lambda: array.fill(n))
    return array


def _number(scale: Any) -> Array | None:
    """A loss scale as FP32 of one element on the device; None for 1."""
    if hasattr(scale, "array"):
        return scale.array
    return None if scale == 1 else gpu.xp.full(1, scale, float32.name)


_uploaded: WeakKeyDictionary[Any, dict[int, tuple[np.ndarray, Array]]] = WeakKeyDictionary()


def _options(optimizer: Any, group: dict[str, Any]) -> Array:
    """The group's numbers on the device, always at one address; a captured graph has them refreshed before it runs."""
    own = _uploaded.setdefault(optimizer, {})

    def refresh() -> None:
        if not any(g is group for g in optimizer.param_groups):  # the graph would go on with the state of before
            raise RuntimeError(
                f"{type(optimizer).__name__}.load_state_dict has put new groups and state in place of those that this "
                "captured step works on: capture the step again"
            )
        optimizer.check_options(group)
        now = multi_tensor.options(optimizer.numbers, group)
        before, device = own.get(id(group), (None, None))
        if device is None:
            device = gpu.xp.empty(now.shape, now.dtype)
        if before is None or not np.array_equal(before, now):
            own[id(group)] = now, device
            recording.after_capture(lambda: recording.upload(now, device))

    refresh()
    recording.before_replay(refresh)
    return own[id(group)][1]
