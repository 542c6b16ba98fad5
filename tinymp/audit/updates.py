"""The lost-update meter: which weights FP16 would not have moved (MPT section 3.1)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from .. import backend
from ..autograd import Array
from ..dtypes import HALVES, float16
from ..events import unobserved
from ..gradients import put, rows_of, values_of, with_values
from ..parameter import Parameter
from ..precision import MIXED, current_policy, to_dtype, use, widen
from .listener import Instrument, Place
from .sampling import BLUE, RED, Told, bars, distinct, table


@dataclass
class Updates:
    """Counts of weights by the effect of their updates, for one parameter or several together, over all updates.

    fp32      whether the parameter is in FP32 itself: then this is what FP16 would lose
    master    whether it has an FP32 master, or rounds stochastically: then what would be lost in FP16 is not
    storage   the dtype that an update is lost in: float16, or that of the copy
    updates   how many updates were looked at; elements: how many weights they updated
    lost      weights whose update dw is not 0, but fp16(fp16(w) + dw) = fp16(w)
    zero      weights whose update is exactly 0
    above     weights with |w / dw| > 2048, dw not 0: the ratio that MPT section 3.1 names
    apart     without a master: weights that at the last update were another FP16 number, had the same updates been
              added up in FP32
    """

    name: str
    fp32: bool = False
    policy: str = ""
    master: bool = True
    storage: np.dtype = float16
    updates: int = 0
    elements: int = 0
    lost: int = 0
    zero: int = 0
    above: int = 0
    apart: int = 0
    left: Any = None  # what roundings have kept from the weights so far, in FP32

    def add(self, master: Array, copy: Array, value: Array, left: Array | None = None) -> None:
        """Count one update: the master (or the copy itself) and the copy before it, and the new weights."""
        device = backend.of(value)
        count = device.xp.count_nonzero
        with unobserved(), use(MIXED):  # rounding to nearest, whatever the parameter's own policy
            w, step = widen(to_dtype(copy, self.storage)), value - widen(master)
            changes = step != 0
            stays = changes & (widen(to_dtype(w + step, self.storage)) == w)
            far = changes & (device.xp.abs(w) > 2048 * device.xp.abs(step))
            moved, lost, above = (int(count(marked)) for marked in (changes, stays, far))
            if left is not None:
                left += value
                stored = widen(to_dtype(value, self.storage))
                self.apart = int(count(widen(to_dtype(left, self.storage)) != stored))
                left -= stored
        self.updates, self.elements = self.updates + 1, self.elements + value.size
        self.lost, self.zero, self.above = self.lost + lost, self.zero + value.size - moved, self.above + above

    @property
    def shares(self) -> dict[str, float]:
        """Shares of all weights: lost + unchanged_by_zero + those that FP16 would move make 1."""
        counts = {"lost": self.lost, "unchanged_by_zero": self.zero, "above_2048": self.above}
        return {name: n / max(self.elements, 1) for name, n in counts.items()}

    def as_dict(self) -> dict[str, Any]:
        own = {
            name: getattr(self, name) for name in ("name", "fp32", "policy", "master", "updates", "elements", "apart")
        }
        return own | {"storage": self.storage.name} | self.shares


class LostUpdates(Told, Instrument):
    """Counts the weights that an update in FP16 alone would leave as they are: a measure of the need for FP32 masters.

    An update takes w to w + dw. It is lost where dw is not 0 and fp16(fp16(w) + dw) = fp16(w): a step of less than half
    the distance to the next FP16 number. MPT section 3.1 puts it as |w / dw| > 2048, which is counted beside it: from
    2048 to 4096 it depends on the weight.

    Weights in FP32 are taken as what FP16 would lose, and marked. Of SparseRows the rows that they name are counted.
    Policies are kept apart, by name.
    """

    def __init__(self) -> None:
        self._parameters: dict[tuple[str, bool, str, bool], Updates] = {}

    def written(self, place: Place, parameter: Parameter, value: Any) -> None:
        if place.phase != "update":
            return
        keeps = bool(parameter.master_nbytes) or current_policy().rounding != "nearest"
        key = place.module, parameter.dtype not in HALVES, current_policy().name, keeps
        if key not in self._parameters:
            self._parameters[key] = Updates(*key, parameter.dtype if parameter.dtype in HALVES else float16)
        value = distinct(value)
        master, copy = rows_of(parameter.master, value), rows_of(parameter.array, value)
        u, left = self._parameters[key], None
        if not (u.fp32 or u.master):
            u.left = widen(parameter.array) * 0 if u.left is None else u.left
            left = rows_of(u.left, value)
        u.add(master, copy, values_of(value), left)
        if left is not None:
            put(u.left, with_values(value, left))

    # ---- asking

    @property
    def rows(self) -> list[Updates]:
        """Per parameter and policy; where most is lost first."""
        return sorted(self._parameters.values(), key=lambda u: -u.shares["lost"])

    @property
    def total(self) -> Updates:
        """All FP16 weights together; in an FP32 run, all weights."""
        rows = [u for u in self._parameters.values() if not u.fp32] or list(self._parameters.values())
        total = Updates("all", updates=max((u.updates for u in rows), default=0))
        for name in ("elements", "lost", "zero", "above"):
            setattr(total, name, sum(getattr(u, name) for u in rows))
        return total

    def as_dict(self) -> list[dict[str, Any]]:
        """One dict per row."""
        return [u.as_dict() for u in self.rows]

    def _title(self, u: Updates) -> str:
        several = len({row.policy for row in self._parameters.values()}) > 1
        notes = [u.policy] * (several and u.policy != "") + ["in FP32"] * u.fp32
        return u.name + f" ({', '.join(notes)})" * bool(notes)

    def parts(self) -> list[str]:
        if not self._parameters:
            return ["no updates were seen"]
        rows: list[tuple[str, ...]] = [("weights", "updates", "elements", "lost in FP16", "dw = 0", "|w/dw| > 2048")]
        for u in (self.total, *self.rows):
            rows.append((self._title(u), str(u.updates), f"{u.elements:,}", *[f"{n:.2%}" for n in u.shares.values()]))
        return [table(rows)]

    def draw(self, axes: Any) -> None:
        """Bars: per parameter the shares that FP16 loses, that have no update, and that FP16 would move."""
        rows = self.rows[:12]
        lost, zero = ([100 * u.shares[name] for u in rows] for name in ("lost", "unchanged_by_zero"))
        moved = [100 - a - b for a, b in zip(lost, zero)]
        shares = {"lost in FP16": (lost, RED), "no update (dw = 0)": (zero, "0.8"), "moved": (moved, BLUE)}
        bars(axes, [self._title(u) for u in rows], shares)
        axes.set(xlabel="share of the weights in all updates, %", xlim=(0, 100), title="Updates that FP16 would lose")
