"""Rules in parts that stay in the cache, by several threads: a rule's intermediate values never reach memory."""

from __future__ import annotations

from inspect import unwrap
from typing import Any

import numpy as np

from ...autograd import Array
from ...dtypes import float32
from ...events import here
from ...fast_path import fast_path
from ...optim.groups import Group, State
from ...optim.optimizer import Optimizer
from ...precision import policy_in_use
from .threads import CACHED, LEAST, share, slices

OWN = Optimizer.__module__.rpartition(".")[0]  # rules from elsewhere may do more than work element by element


@fast_path(Optimizer.updated)
def updated(optimizer: Optimizer, w: Array, g: Array, scale: Any, arrays: State, counts: State, group: Group) -> tuple:
    if w.size < LEAST or here.inside or not type(optimizer).__module__.startswith(OWN):
        return NotImplemented
    if policy_in_use.get().rounding != "nearest":  # FP16 states draw their bits in one order
        return NotImplemented
    axis = max(range(w.ndim), key=w.strides.__getitem__)
    definition = unwrap(Optimizer.updated)
    y = np.empty_like(w, dtype=np.result_type(w.dtype, float32))
    new = {name: x if x.dtype == y.dtype else np.empty_like(x) for name, x in arrays.items()}

    def part(some: slice) -> None:
        place = (slice(None),) * axis + (some,)
        parts = {name: x[place] for name, x in arrays.items()}
        y[place], made = definition(optimizer, w[place], g[place], scale, parts, counts, group)
        for name, x in made.items():
            if x is not parts[name]:  # else it was written in place
                new[name][place] = x

    share(part, slices(w.shape[axis], w.size, CACHED))
    return y, new
