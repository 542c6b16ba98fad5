"""How large numbers are along the depth of a model, forward and back: where signals and gradients grow or vanish, and
where one channel is far larger than the others, so that a scale per tensor spends its format's range on it.

Sources: Glorot & Bengio 2010 and He et al. 2015 (variances along depth); Dettmers et al. 2022, arXiv 2208.07339
(channels with outliers).
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from typing import Any

from ..autograd import Op, values_of
from ..dtypes import FLOATING
from ..precision import LOSS, MOVEMENT, current_policy
from .estimates import extremes
from .listener import Instrument, Place
from .numbers import number
from .sampling import table

STEPS = 16  # the last ones, of which every size is remembered


@dataclass
class Size:
    """The numbers that an op wrote (forward), or was given as the gradient of what it wrote (backward).

    calls    how often
    rms      root mean square, of all calls together; of large arrays a sample
    largest  largest magnitude; infinity and NaN show
    outlier  how many times larger the largest channel's largest magnitude was than the median channel's, at most

    Gradients are without the loss scale.
    """

    calls: int = 0
    rms: float = 0.0
    largest: float = 0.0
    outlier: float = 1.0

    def add(self, x: Any, scale: float) -> Size:
        """Count the array x; returns what it was alone."""
        largest, median, rms = extremes(x)
        now = Size(1, rms / scale, largest / scale, largest / median if median > 0 and largest < math.inf else 1.0)
        self.rms = math.sqrt((self.calls * self.rms**2 + now.rms**2) / (self.calls + 1))
        self.calls += 1
        self.largest = now.largest if now.largest != now.largest else max(self.largest, now.largest)
        self.outlier = max(self.outlier, now.outlier)
        return now

    def as_dict(self) -> dict[str, float]:
        """Its fields."""
        return dict(vars(self))


@dataclass
class Level:
    """An op at one place of its call: module, op and caller as in `Place`, the policy's name, and its sizes."""

    module: str
    op: str
    caller: str
    policy: str
    forward: Size = field(default_factory=Size)
    backward: Size = field(default_factory=Size)

    def as_dict(self) -> dict[str, Any]:
        """Its fields, and those of its sizes."""
        return {**vars(self), "forward": self.forward.as_dict(), "backward": self.backward.as_dict()}


class Depth(Instrument):
    """The sizes of activations and of their gradients, from the first op to the last.

    rows    a Level for each place, in the order in which they first ran
    recent  (iteration, {(module, op, phase): largest size}) of the last 16 iterations

    Losses, single numbers and what only moves (a view) are left out.
    """

    def __init__(self) -> None:
        self._rows: dict[tuple, Level] = {}
        self.recent: deque[tuple[int, dict[tuple[str, str, str], Size]]] = deque(maxlen=STEPS)

    @property
    def rows(self) -> list[Level]:
        return list(self._rows.values())

    def ran(self, place: Place, op: Op, inputs: tuple, outputs: tuple) -> None:
        if op.kind is LOSS or op.kind is MOVEMENT:
            return
        forward = place.phase == "forward"
        x = values_of(outputs[0] if forward else next((dy for dy in inputs if dy is not None), None))
        if not hasattr(x, "dtype") or x.dtype not in FLOATING or x.size < 2:
            return
        key = place.module, place.op, place.caller, current_policy().name
        if key not in self._rows:
            if not forward:
                return  # its forward was before the audit
            self._rows[key] = Level(*key)
        size = getattr(self._rows[key], place.phase).add(x, 1.0 if forward else self.listener.scale)
        self._remember((place.module, place.op, place.phase), size)

    def _remember(self, where: tuple[str, str, str], size: Size) -> None:
        now = self.listener.iteration
        if not self.recent or self.recent[-1][0] != now:
            self.recent.append((now, {}))
        before = self.recent[-1][1].get(where)
        if before is None or not size.largest <= before.largest:
            self.recent[-1][1][where] = size

    def as_dict(self) -> list[dict[str, Any]]:
        """The rows."""
        return [row.as_dict() for row in self.rows]

    def __str__(self) -> str:
        heads = ("module", "op", "rms", "largest", "outlier", "gradient's rms", "largest", "outlier")
        lines: list[tuple[str, ...]] = [heads]
        for row in self.rows:
            sizes = [number(v) for s in (row.forward, row.backward) for v in (s.rms, s.largest, s.outlier)]
            lines.append((row.module, row.op, *(sizes if row.backward.calls else [*sizes[:3], "–", "–", "–"])))
        return table(lines, left=(0, 1), most=None)
