"""The lost-update meter: which weights FP16 would not have moved (MPT section 3.1)."""

from __future__ import annotations

from typing import Any

from .. import backend
from ..autograd import Array
from ..dtypes import HALVES, float16
from ..events import unobserved
from ..gradients import rows_of, values_of
from ..parameter import Parameter
from ..precision import MIXED, current_policy, to_dtype, use, widen
from .listener import Instrument, Place
from .sampling import BLUE, RED, Told, distinct, table


class Updates:
    """What became of the updates of one parameter, or of several together; counts of weights, over all updates.

    updates, iterations  how many updates were looked at; how many iterations there were up to the last of them
    elements             how many weights they updated
    lost                 weights whose update dw is not 0, but fp16(fp16(w) + dw) = fp16(w); BF16 where the copy is BF16
    zero                 weights whose update is exactly 0
    above                weights with |w / dw| > 2048, dw not 0: the ratio that MPT section 3.1 names
    fp32                 whether the parameter is in FP32 itself: then this is what FP16 would lose
    master               whether it has an FP32 master: then what would be lost in FP16 is not
    """

    def __init__(self, name: str, fp32: bool, policy: str, master: bool, storage: Any) -> None:
        self.name, self.fp32, self.policy, self.master, self.storage = name, fp32, policy, master, storage
        self.updates = self.iterations = self.elements = self.lost = self.zero = self.above = 0

    def add(self, master: Array, copy: Array, value: Array, iteration: int) -> None:
        """Count one update: the master (or the copy itself) and the copy before it, and the new weights."""
        device = backend.of(value)
        count = device.xp.count_nonzero
        with unobserved(), use(MIXED):  # rounding to nearest, whatever the parameter's own policy
            w, step = widen(to_dtype(copy, self.storage)), value - widen(master)
            changes = step != 0
            stays = changes & (widen(to_dtype(w + step, self.storage)) == w)
            far = changes & (device.xp.abs(w) > 2048 * device.xp.abs(step))
            moved, lost, above = (int(count(marked)) for marked in (changes, stays, far))
        self.updates, self.iterations = self.updates + 1, max(self.iterations, iteration + 1)
        self.elements += value.size
        self.lost, self.zero, self.above = self.lost + lost, self.zero + value.size - moved, self.above + above

    def as_dict(self) -> dict[str, Any]:
        """The shares of all weights: lost + unchanged_by_zero + those that FP16 would move make 1."""
        shares = {"lost": self.lost, "unchanged_by_zero": self.zero, "above_2048": self.above}
        own = {name: x for name, x in vars(self).items() if name not in ("storage", "lost", "zero", "above")}
        return own | {"storage": self.storage.name} | {k: n / max(self.elements, 1) for k, n in shares.items()}


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
        key = place.module, parameter.dtype not in HALVES, current_policy().name, bool(parameter.master_nbytes)
        if key not in self._parameters:
            self._parameters[key] = Updates(*key, parameter.dtype if parameter.dtype in HALVES else float16)
        value = distinct(value)
        master, copy = rows_of(parameter.master, value), rows_of(parameter.array, value)
        self._parameters[key].add(master, copy, values_of(value), self.listener.iteration)

    # ---- asking

    @property
    def rows(self) -> list[Updates]:
        """Per parameter and policy; where most is lost first."""
        return sorted(self._parameters.values(), key=lambda u: -u.lost / max(u.elements, 1))

    @property
    def total(self) -> Updates:
        """All FP16 weights together; in an FP32 run, all weights."""
        rows = [u for u in self._parameters.values() if not u.fp32] or list(self._parameters.values())
        policies = dict.fromkeys(u.policy for u in rows)
        masters, storage = all(u.master for u in rows), rows[0].storage if rows else float16
        total = Updates("all", bool(rows) and rows[0].fp32, ", ".join(policies), masters, storage)
        sums = {name: sum(getattr(u, name) for u in rows) for name in ("elements", "lost", "zero", "above")}
        most = {name: max((getattr(u, name) for u in rows), default=0) for name in ("updates", "iterations")}
        vars(total).update(sums | most)
        return total

    def as_dict(self) -> list[dict[str, Any]]:
        """One dict per row."""
        return [u.as_dict() for u in self.rows]

    def _title(self, u: Updates) -> str:
        several = len({row.policy for row in self._parameters.values()}) > 1
        notes = [u.policy] * several + ["in FP32"] * u.fp32
        return u.name + f" ({', '.join(notes)})" * bool(notes)

    def parts(self) -> list[str]:
        if not self._parameters:
            return ["no updates were seen"]
        rows: list[tuple[str, ...]] = [("weights", "updates", "elements", "lost in FP16", "dw = 0", "|w/dw| > 2048")]
        for u in (self.total, *self.rows):
            d = u.as_dict()
            shares = [f"{d[share]:.2%}" for share in ("lost", "unchanged_by_zero", "above_2048")]
            rows.append((self._title(u), str(u.updates), f"{u.elements:,}", *shares))
        return [table(rows)]

    def draw(self, axes: Any) -> None:
        """Bars: per parameter the shares that FP16 loses, that have no update, and that FP16 would move."""
        shown = self.rows[:12][::-1]
        rows, names = [u.as_dict() for u in shown], [self._title(u) for u in shown]
        lost, zero, above = ([100 * u[share] for u in rows] for share in ("lost", "unchanged_by_zero", "above_2048"))
        still = [a + b for a, b in zip(lost, zero)]
        axes.barh(names, lost, color=RED, label="lost in FP16")
        label = "no update (dw = 0)" if max(zero, default=0) > 0.2 else "_"  # else too thin to be seen
        axes.barh(names, zero, left=lost, color="0.8", label=label)
        axes.barh(names, [100 - s for s in still], left=still, color=BLUE, label="moved")
        axes.plot(above, range(len(rows)), "|", color="black", markersize=14, clip_on=False, label="|w/dw| > 2048")
        axes.set(xlabel="share of the weights in all updates, %", xlim=(0, 100), title="Updates that FP16 would lose")
        axes.legend(loc="upper center", bbox_to_anchor=(0.4, -0.15), ncols=2, fontsize=8, frameon=False)
