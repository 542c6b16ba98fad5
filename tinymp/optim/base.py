"""The base of optimizers on a GPU: a rule runs once over many parameters, whose arrays are put behind each other.

A rule of ten operations for each of a hundred small parameters would be a thousand launches; here it is ten, and four
that copy. The rules are those of rules.py, and every element has the bits that it has alone. While an observer listens,
each parameter is updated by itself.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from .. import backend
from ..autograd import Array
from ..backend.gpu import run_over
from ..backend.memory import explained
from ..dtypes import float16, float32, float64
from ..events import Update, here, quietly
from ..fast_path import fast_path
from ..parameter import Parameter
from ..precision import FP32
from .groups import Group
from .optimizer import Optimizer
from .result import StepResult

MOST = 1 << 22  # elements: of two parameters of this size a launch each costs little


@fast_path(Optimizer.apply)
def apply(optimizer: Optimizer, ready: list[tuple[Group, Parameter]], skip: Any) -> Any:
    """Parameters of one group, dtype, loss scale and age are updated together, others one by one."""
    if not ready or skip or here.inside or not type(optimizer).update.__module__.startswith(__package__):
        return optimizer.apply(ready, skip)
    batches: dict[tuple, list[tuple[Group, Parameter]]] = {}
    seen: Counter[tuple] = Counter()  # elements
    for group, p in ready:
        state, g = optimizer.state_of(group, p), p.grad_array
        key: tuple = (id(p),)
        arrays = g, p.array, p.master, *(state[name] for name in optimizer.initial(group))
        usual = p.policy.rounding == "nearest" and {x.dtype for x in arrays[2:]} == {float32} and g.dtype != float64
        dense = p.array.size <= MOST and all(hasattr(x, "flags") and x.flags.c_contiguous for x in arrays)
        if usual and dense and isinstance(p.grad_scale, (int, float)):
            key = id(group), g.dtype, p.dtype, p.grad_scale, int(state["step"]), int(state.get("since", 0))
            seen[key] += p.array.size
        batches.setdefault((key, seen[key] // MOST), []).append((group, p))
    for batch in batches.values():
        if len(batch) > 1:
            quietly(together, optimizer, batch)
        else:
            optimizer.apply(batch, skip)
    return StepResult.APPLIED


def together(optimizer: Optimizer, batch: list[tuple[Group, Parameter]]) -> None:
    """Run the rule once for all parameters of a batch: its arrays go behind each other in the rows of one, and back."""
    (group, first), params = batch[0], [p for _, p in batch]
    names, states = [*optimizer.initial(group)], [optimizer.state[p] for p in params]
    with explained(Update(optimizer, first)):
        rows = backend.of(first.array).xp.empty((2 + len(names), sum(p.array.size for p in params)), FP32.storage)
        kept = [[p.master for p in params], *([state[name] for state in states] for name in names)]
        move("gather", [[p.grad_array for p in params]], rows)
        move("gather", kept, rows[1:])
        g = rows[0] if first.grad_scale == 1 else rows[0] / first.grad_scale
        g = -g if group.get("maximize") else g
        step, since = int(states[0]["step"]) + 1, int(states[0].get("since", 0))
        w = optimizer.update(rows[1], g, {**dict(zip(names, rows[2:])), "step": step, "since": since}, group)
        move("scatter", kept, [w, *rows[2:]])
        if first.dtype == float16:  # the write-back: one rounding into the FP16 copies (MPT section 3.1)
            move("scatter", [[p.array for p in params]], [w])
    for p, state in zip(params, states):
        state["step"] = step
        p.bump_version()


def move(kernel: str, lists: Sequence[Sequence[Array]], rows: Sequence[Array]) -> None:
    """Copy the arrays of each list into its row ("gather") or back ("scatter"), all in one launch."""
    table = []
    for arrays, row in zip(lists, rows):
        at = row.data.ptr
        for x in arrays:
            places = (x.data.ptr, x.itemsize), (at, row.itemsize)
            table.append((*places[kernel == "scatter"], *places[kernel == "gather"], x.size))
            at += x.size * row.itemsize
    run_over(backend.of(x).xp, kernel, x.dtype, table)
