"""An optimizer's update on a CPU: the definition, for parts of a large parameter, by several threads.

Adam makes twenty passes over arrays of the parameter's size; a part stays in the cache meanwhile.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ...autograd import Array
from ...events import here
from ...fast_path import fast_path
from ...optim.groups import Group, State
from ...optim.optimizer import Optimizer
from .threads import CACHED, LEAST, share, slices


@fast_path(Optimizer.updated)
def updated(optimizer: Any, w: Array, g: Array, scale: Any, arrays: State, counts: State, group: Group) -> tuple:
    every = [w, g, *arrays.values()]
    alike = all(x.shape == w.shape and x.flags.c_contiguous for x in every)
    wide = all(x.dtype == np.float32 for x in (w, *arrays.values()))
    ours = type(optimizer).update.__module__.startswith("tinymp.")  # another rule may sum, as LARS does
    if w.size < 2 * LEAST or not (alike and wide and ours) or here.inside:
        return Optimizer.updated(optimizer, w, g, scale, arrays, counts, group)
    new, flat = np.empty_like(w), [x.reshape(-1) for x in every]

    def update(some: slice) -> None:
        part_w, part_g, *parts = [x[some] for x in flat]
        state = dict(zip(arrays, parts))
        new.reshape(-1)[some], _ = Optimizer.updated(optimizer, part_w, part_g, scale, state, counts, group)

    share(update, slices(w.size, w.size, CACHED))
    return new, arrays
