"""The ledger: every op at every place of its call, the dtypes there, and what each rounding lost."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, fields
from typing import Any

import numpy as np

from .. import backend
from ..autograd import Array, Op
from ..dtypes import FLOATING, HALVES, float16
from ..events import here, running, under, unobserved
from ..gradients import values_of
from ..ops.more.limits import limits, patterns
from ..precision import MIXED, MOVEMENT, UPDATE, current_policy, gemm, reduce, to_dtype, use
from ..study.operands import emulated
from . import numbers
from .listener import At, Instrument, Place
from .sampling import RED, SKY, Table, Told, bars, table


@dataclass
class Rounding:
    """Counts of the numbers that one line of tinymp stored in fewer bits.

    elements   how many numbers were rounded
    zero       how many of them became 0
    subnormal  how many are now subnormal: not 0, with fewer significant bits than the rest
    infinite   how many were finite and are not now: infinite, or NaN in a format without infinities (E4M3)
    largest    the largest finite magnitude before rounding
    """

    elements: int = 0
    zero: int = 0
    subnormal: int = 0
    infinite: int = 0
    largest: float = 0.0

    def add(self, x: Array, y: Array) -> None:
        if not x.size:
            return
        device = backend.of(x)
        xp, count = device.xp, device.xp.count_nonzero
        largest = max(float(x.max()), -float(x.min()))
        self.elements += x.size
        sign, normal, infinite = patterns(y.dtype)
        bits = device.bits(y) & sign  # comparing bits as integers takes a tenth of the time
        nonzero, whole = int(count(bits)), int(count(bits >= normal))
        self.zero += int(count(x != 0)) - nonzero  # NumPy counts booleans three times as fast as floats
        self.subnormal += nonzero - whole
        if not largest < min(limits(y.dtype)[1], getattr(emulated(y), "largest", math.inf)):  # or it is infinite or NaN
            self.infinite += int(count(bits >= infinite)) - int(count(~xp.isfinite(x)))
            largest = float(xp.where(xp.isfinite(x), xp.abs(x), 0).max())
        self.largest = max(self.largest, largest)


@dataclass
class Row(At):
    """One op at one place of its call, in one phase, under one policy.

    module, op, phase, caller, where  see `Place`
    kind, source               of its arithmetic ("POINTWISE"), and where MPT or NVG speak of it
    policy                     in use there
    read, written              the dtypes of its floating arguments and results
    computed, accumulated      the dtypes in which it computes and sums
    calls, elements            how often it ran, and how many elements it wrote
    sums                       {"accumulate" or "reduce": [how many sums with an FP16 accumulator were tried in FP32,
                               how many of them are infinite or more than an ulp of FP16 away]}, of some calls
    roundings                  per line of tinymp that rounded there, what became of the numbers; added up as `rounded`
                               (how many), `zero`, `subnormal`, `infinite` and `largest`
    """

    kind: str
    source: str = "-"
    policy: str = ""
    read: str = "-"
    computed: str = "-"
    accumulated: str = "-"
    written: str = "-"
    calls: int = 0
    elements: int = 0
    sums: dict[str, list[int]] = field(default_factory=dict)
    roundings: dict[str, Rounding] = field(default_factory=dict)

    rounded = property(lambda self: self._total("elements"))
    zero = property(lambda self: self._total("zero"))
    subnormal = property(lambda self: self._total("subnormal"))
    infinite = property(lambda self: self._total("infinite"))
    largest = property(lambda self: max((r.largest for r in self.roundings.values()), default=0.0))

    def _total(self, name: str) -> Any:
        return sum(getattr(r, name) for r in self.roundings.values())

    def as_dict(self) -> dict[str, Any]:
        """Its columns, and under "roundings" the lines."""
        roundings = {line: asdict(r) for line, r in self.roundings.items()}
        return {name: getattr(self, name) for name in COLUMNS} | {"sums": self.sums, "roundings": roundings}


COUNTS = ("rounded", "zero", "subnormal", "infinite", "largest")
LOST = ("infinite", "zero", "subnormal")
WORST = (*LOST, "rounded")  # any infinity weighs more than all zeros, and so on
COLUMNS = tuple(f.name for f in fields(Row) if f.name not in ("sums", "roundings")) + COUNTS
NUMBERS = {"calls", "elements", *COUNTS}  # of these columns
HEADS = (
    "module",
    "op",
    "phase",
    "kind",
    "policy",
    "read",
    "accumulated",
    "written",
    "calls",
    *COUNTS,
    "where",
    "caller",
)
BRIEF = ("module", "op", "phase", "policy", *COUNTS, "caller")  # where all of them would be too wide


class Rows(Told, list[Row]):
    """Rows of a ledger; `sorted_by`, `filter` and slices are new ones. `print` shows a table."""

    def __getitem__(self, index: Any) -> Any:
        found = super().__getitem__(index)
        return Rows(found) if isinstance(index, slice) else found

    def sorted_by(self, *columns: str, descending: bool = True) -> Rows:
        """The rows in the order of these columns."""
        return Rows(sorted(self, key=lambda r: [getattr(r, c) for c in columns], reverse=descending))

    def filter(self, test: Callable[[Row], bool] | None = None, **columns: Any) -> Rows:
        """The rows for which the test holds, and whose columns have these values; a string matches as a part.

        a.ledger.filter(op="softmax", phase="backward")
        a.ledger.filter(lambda row: row.zero > 0.01 * row.rounded)
        """

        def fits(row: Row, name: str, wanted: Any) -> bool:
            return wanted in getattr(row, name) if isinstance(wanted, str) else wanted == getattr(row, name)

        found = [row for row in self if all(fits(row, *column) for column in columns.items())]
        return Rows(found if test is None else filter(test, found))

    def to_csv(self) -> str:
        """A line per row below a heading; the roundings of several lines are added up."""
        out = io.StringIO()
        writer = csv.DictWriter(out, COLUMNS, extrasaction="ignore", lineterminator="\n")
        writer.writeheader()
        writer.writerows(row.as_dict() for row in self)
        return out.getvalue()

    __repr__ = Told.__str__

    def parts(self) -> list[str]:
        return [self.told()]

    def told(self, heads: tuple[str, ...] = HEADS) -> Table:
        """A table of these columns, without that of the policy where one ran alone."""
        if len({row.policy for row in self}) < 2:
            heads = tuple([name for name in heads if name != "policy"])
        rows = [heads, *[tuple([_text(getattr(row, name)) for name in heads]) for row in self]]
        return table(rows, left=[i for i, name in enumerate(heads) if name not in NUMBERS], most=None)

    def draw(self, axes: Any) -> None:
        """Bars: the shares that became infinite, zero and subnormal, of the ten worst rows (see WORST), and how many
        the worst of those are.
        """
        kinds = {"infinite": "black", "zero": RED, "subnormal": SKY}
        rows = [row for row in self.sorted_by(*WORST)[:10] if any(getattr(row, name) for name in kinds)]
        shares = {name: ([100 * getattr(row, name) / row.rounded for row in rows], kinds[name]) for name in kinds}
        counts = [next(f"{numbers.count(n)} {name}" for name in kinds if (n := getattr(row, name))) for row in rows]
        bars(axes, list(map(str, rows)), shares, counts)  # a share may be too small to be seen
        axes.set(xlabel="share of what was rounded there, %", title="What roundings lost")
        axes.margins(x=0.6)  # room for the counts


def _text(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else value


def jsonable(value: Any) -> Any:
    """JSON has no infinity and no NaN: they become strings."""
    if isinstance(value, dict):
        return {k: jsonable(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [jsonable(v) for v in value]
    return str(value) if isinstance(value, float) and value - value != 0 else value


class Ledger(Instrument):
    """Keeps the rows, in the order in which their ops first ran."""

    def __init__(self) -> None:
        self._rows: dict[tuple, Row] = {}

    @property
    def rows(self) -> Rows:
        return Rows(self._rows.values())

    def rounded(self, place: Place, x: Any, y: Any) -> None:
        row = self._row(place)
        row.roundings.setdefault(place.where, Rounding()).add(x, y)
        if place.kind is None or place.phase == "exchange":  # no op: a cast, or a sum of gradients
            row.calls, row.elements = row.calls + 1, row.elements + y.size
            row.read, row.written = _with(row.read, str(x.dtype)), _with(row.written, str(y.dtype))

    def product(self, place: Place, a: Any, b: Any, accumulate: str) -> None:
        self._sums(place, accumulate, "accumulate", lambda: gemm(a, b, wide=True))

    def reduced(self, place: Place, x: Any, axis: Any, how: str, accumulate: str) -> None:
        if place.kind is not None and how not in ("max", "min"):
            like = x if x.dtype in HALVES else backend.of(x).xp.empty(0, float16)
            self._sums(place, accumulate, "reduce", lambda: reduce(x, axis, how, like))

    def added(self, place: Place, part: Any, times: Any, accumulate: str) -> None:
        if place.kind is not None:
            self._sums(place, accumulate)

    def ran(self, place: Place, op: Op, inputs: tuple, outputs: tuple) -> None:
        row = self._row(place)
        row.where = place.where
        row.calls += 1
        row.elements += sum(values_of(y).size for y in outputs if hasattr(values_of(y), "dtype"))
        row.read, row.written = _with(row.read, *map(_floating, inputs)), _with(row.written, *map(_floating, outputs))
        if place.kind is not MOVEMENT and row.read != "-":
            row.computed = "float64" if "float64" in row.read else "float32"

    def written(self, place: Place, parameter: Any, value: Any) -> None:
        if place.kind is not UPDATE:
            return
        row, dtype = self._row(place), str(values_of(value).dtype)
        row.where = place.where
        row.calls += 1
        row.elements += values_of(value).size
        row.read = row.computed = dtype
        both = f"{parameter.master.dtype} master, {parameter.dtype} copy"
        row.written = both if parameter.master_nbytes else str(parameter.dtype)

    def _sums(self, place: Place, accumulate: str, of: str = "", again: Callable[[], Array] | None = None) -> None:
        row = self._row(place)
        row.accumulated = _with(row.accumulated, accumulate)
        if again is None or accumulate != float16.name or row.calls & (row.calls - 1):
            return
        op = here.running
        with unobserved(), np.errstate(all="ignore"):
            y = under(running, op, again)  # with the op: a study may be for some ops
            if not backend.of(y).has_values:
                return
            with use(MIXED):
                exact = again()
                y, exact, ulp = map(backend.to_cpu, (y, exact, to_dtype(exact, float16)))
        ulp = np.spacing(np.abs(ulp))  # NaN where FP16 holds no such number
        off = (ulp == ulp) & ~(np.abs(y - exact) <= ulp)
        tried = row.sums.setdefault(of, [0, 0])
        tried[:] = tried[0] + int(np.count_nonzero(ulp == ulp)), tried[1] + int(np.count_nonzero(off))

    def _row(self, place: Place) -> Row:
        policy = current_policy().name
        key = place.module, place.op, place.phase, place.caller, policy
        if (row := self._rows.get(key)) is None:
            kind = (place.kind.name, place.kind.source) if place.kind else ("-", "-")
            row = self._rows[key] = Row.place(place, *kind, policy)
        return row


def _floating(x: Any) -> str:
    x = values_of(x)
    return str(x.dtype) if hasattr(x, "dtype") and x.dtype in FLOATING else "-"


def _with(names: str, *more: str) -> str:
    known = [name for name in dict.fromkeys((*names.split(", "), *more)) if name != "-"]
    return ", ".join(known) or "-"
