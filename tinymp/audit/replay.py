"""A backward pass run again, at another loss scale."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from .. import backend
from ..autograd import Array, Backward, Op
from ..events import Observer, observe, running, under, unobserved
from ..gradients import joined
from ..ops.more.random import fork_rng
from ..precision import Policy, use, widen
from .listener import Listener, Place
from .sampling import nonfinite

GROWS = 100  # times, over the calls of a line, from which on it is said that gradients grow


@dataclass
class Pass:
    """One backward pass, and what it takes to run it again."""

    run: Backward
    policy: Policy
    scale: float = 1.0
    bad_loss: bool = False
    bad: set[int] = field(default_factory=set)  # ids of leaves whose gradient is not finite
    ops: dict[Op, tuple] = field(default_factory=dict)  # in the order in which they ran -> saved, statistics


class Replay(Observer):
    """A backward pass run again with a gradient `factor` times as large, without side effects.

    finite   whether the gradients of the wanted leaves are finite
    place    the place of the first op that overflowed, and `value` the finite number that did
    largest  the largest magnitude that was rounded
    along    the largest gradient that each call of an op at a line of the program was given: {(op, line): [...]}
    """

    def __init__(self, listener: Listener, p: Pass, factor: float, wanted: set[int]) -> None:
        self.listener = listener
        self.place: Place | None = None
        self.value: float | None = None
        self.largest = 0.0
        self.along: dict[tuple[str, str], list[float]] = {}
        with unobserved(), fork_rng(), use(p.policy), np.errstate(all="ignore"):
            left = [(op, op.saved, op.statistics) for op in p.ops]  # None and () where the pass has freed them
            for op, (saved, statistics) in p.ops.items():
                op.saved, op.statistics = saved, statistics
            try:
                with observe(self):
                    gradient = backend.of(p.run.gradient).xp.asarray(p.run.gradient * factor)
                    again = Backward(p.run.root, gradient)  # its leaves may have been unscaled since
                    again.leaves = {key: [leaf, None, scale] for key, (leaf, _, scale) in p.run.leaves.items()}
                    again.propagate()
                    found = [(leaf, total) for leaf, total, _ in again.leaves.values() if id(leaf) in wanted]
                    self.finite = not any(nonfinite(under(running, leaf, joined, g, leaf.array)) for leaf, g in found)
            finally:
                for op, saved, statistics in left:
                    op.saved, op.statistics = saved, statistics

    def growth(self, place: Place | None) -> str:
        """The growth of gradients over the calls of an op at one line, as along a recurrence; empty without growth."""
        calls = [size for size in self.along.get((place.op, place.caller), ()) if 0 < size < np.inf] if place else []
        if len(calls) < 4 or calls[-1] < GROWS * calls[0]:
            return ""
        return f"; from call to call of this line gradients grow, {calls[-1] / calls[0]:,.3g} times in all"

    def rounded(self, x: Array, y: Array) -> None:
        if backend.of(y).isfinite(y):
            if x.size:
                self.largest = max(self.largest, float(x.max()), -float(x.min()))
        elif self.place is None:
            self.place = self.listener.place()
            self.value = overflowed(x, y)

    def ran(self, op: Op, inputs: tuple, outputs: tuple) -> None:
        at = self.listener.place_of(op, "", None)
        sizes = [float(abs(widen(dy)).max()) for dy in inputs if getattr(dy, "size", 0)]
        self.along.setdefault((at.op, at.caller), []).append(max(sizes, default=0.0))
        if self.place is None and any(map(nonfinite, outputs)):
            self.place = at


def overflowed(x: Array, y: Array) -> float | None:
    """The finite number of largest magnitude in x that is infinite or NaN in y; None if there is none."""
    xp = backend.of(y).xp
    lost = ~xp.isfinite(y) & xp.isfinite(x)
    if not lost.any():
        return None
    kept = xp.where(lost, x, 0)
    high, low = float(kept.max()), float(kept.min())
    return high if high >= -low else low
