"""Shadow runs: every op of an FP16 run again in FP32, on the values it read and along an FP32 copy of the run: what the
op itself loses, and what has accumulated by then. Both in ulps of FP16, the spacing of its numbers at the exact value
(2^-24 below 2^-14), also where results stay in FP32: one rounding to nearest costs at most 0.5.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import Any

import numpy as np

from .. import backend
from ..autograd import Array, Op
from ..dtypes import FLOATING, HALVES, float32
from ..events import unobserved
from ..gradients import values_of
from ..ops.dropout import Dropout
from ..ops.more.random import fork_rng
from ..ops.norm import Running
from ..parameter import Parameter
from ..precision import FP32, reduce, to_dtype, use, widen
from ..tensor import Tensor
from .listener import At, Instrument, Place
from .sampling import BLUE, RED, ByTensor, Told, bars, table, version_of_result


@dataclass
class Errors:
    """Errors of `elements` finite elements, in ulps of FP16: mean and max of those that an ulp measures. `zeros`: how
    many others are exactly 0 in FP32 and 2^-24 or more in the run, as where a ReLU is off in one and on in the other:
    no ulp measures that, and they would outweigh all the rest.
    """

    elements: int = 0
    total: float = 0.0
    max: float = 0.0
    zeros: int = 0

    @property
    def mean(self) -> float:
        return self.total / max(self.elements - self.zeros, 1)

    def add(self, other: Errors) -> None:
        self.elements += other.elements
        self.total += other.total
        self.max = max(self.max, other.max)
        self.zeros += other.zeros


ERRORS = tuple([f"{which}_{column}" for which in ("local", "inherited") for column in ("mean", "max", "zeros")])
BLOCK = 1 << 17  # elements: on a CPU a few FP32 copies of as many stay in the cache


@dataclass
class ShadowRow(At):
    """The error of one op at one place of its call, in one phase, compared with FP32.

    calls      how often it ran; nonfinite: how many elements were not finite in the run or a shadow, and left out
    local      `Errors` against the same op in FP32 on the same inputs
    inherited  `Errors` against the FP32 copy of the run: this op and all before it
    """

    calls: int = 0
    nonfinite: int = 0
    local: Errors = field(default_factory=Errors)
    inherited: Errors = field(default_factory=Errors)

    def as_dict(self) -> dict[str, Any]:
        """Its fields, and those of both errors by names such as "local_mean"."""
        errors = {name: attrgetter(name.replace("_", "."))(self) for name in ERRORS}
        return (
            self.site() | {"calls": self.calls, "elements": self.local.elements, "nonfinite": self.nonfinite} | errors
        )


ULP = 2.0**-10  # of FP16, from 2^e to 2^(e + 1), in units of 2^e


def difference(y: Array, *exact: Array) -> tuple[Errors, ...]:
    """The distance of y from exact results of its shape (FP32 or FP64), in ulps of FP16 at the exact value.
    Elements that are infinite or NaN in any of them are left out everywhere.
    """
    device = backend.of(exact[0])
    xp, sums = device.xp, tuple([Errors() for _ in exact])
    order = sorted(range(y.ndim), key=y.strides.__getitem__, reverse=True)
    arrays = [xp.asarray(x).transpose(order).reshape(-1) for x in (y, *exact)]  # as they lie in memory
    arrays = [x if x.dtype in HALVES else to_dtype(x, float32) for x in arrays]
    block = max(min(BLOCK, y.size) if device is backend.cpu else y.size, 1)
    normal = xp.full_like(arrays[-1], 2.0**-14, shape=block)
    for i in range(0, y.size, block):
        parts = [widen(x[i : i + block]) for x in arrays]
        found = [_errors(device, parts[0], x, normal) for x in parts[1:]]
        if not all(errors.total < float("inf") for errors in found):
            finite = xp.isfinite(xp.stack(parts)).all(0)
            parts = [x[finite] for x in parts]
            found = [_errors(device, parts[0], x, normal) for x in parts[1:]]
        for errors, more in zip(sums, found):
            errors.add(more)
    return sums


def _errors(device: Any, y: Array, exact: Array, normal: Array) -> Errors:
    """The errors of a block in FP32; the total is not finite if an element is not. `normal` is 2^-14, block times."""
    xp, error = device.xp, y - exact
    if not error[:64].any() and not error.any():  # nothing was rounded; the first few usually tell
        return Errors(y.size)
    spacing = (device.bits(exact) & 0x7F800000).view(exact.dtype)  # the exponent alone: 2^e
    xp.maximum(spacing, normal[: y.size], out=spacing)  # NumPy takes twice as long with a number
    xp.abs(error, out=error)
    error /= spacing
    largest, zeros = float(error.max()), 0
    if ULP <= largest < float("inf") and (zero := exact == 0).any():
        at = xp.flatnonzero(zero & (error >= ULP))
        error[at] = 0
        largest, zeros = float(error.max()), at.size
    return Errors(y.size, float(reduce(error, (0,), "sum").item()) / ULP, largest / ULP, zeros)


class Shadow(Told, Instrument):
    """Runs each op that has to do with FP16 again in FP32, twice: with the inputs that it had (the local error), and
    with the results of the copy of the run in FP32 (the inherited error). Backward likewise.

    The copy starts from the parameters' masters and the run's own data; it takes the run's integers and masks. A
    backward reads what its own forward in FP32 saved: where an op saves its rounded output, as softmax does, that
    rounding is part of its backward's local error. The run stays as it is, bit for bit. It takes twice the time and
    memory of an FP32 run.
    """

    def __init__(self) -> None:
        self._rows: dict[tuple, ShadowRow] = {}
        self._kept: ByTensor[Array] = ByTensor()  # its shadow
        self._ops: weakref.WeakKeyDictionary[Op, tuple[Op, Op]] = weakref.WeakKeyDictionary()
        self._gradients: weakref.WeakKeyDictionary[Op, dict[int, Array]] = weakref.WeakKeyDictionary()
        self._nonfinite: ShadowRow | None = None  # the first with an infinity or NaN

    def ran(self, place: Place, op: Op, inputs: tuple, outputs: tuple) -> None:
        with unobserved(), fork_rng(), use(FP32), np.errstate(all="ignore"):  # it leaves no trace
            (self._forward if place.phase == "forward" else self._backward)(place, op, inputs, outputs)

    # ---- what it found

    @property
    def rows(self) -> list[ShadowRow]:
        """In the order in which their ops first ran."""
        return list(self._rows.values())

    def worst(self, n: int | None = 10) -> list[ShadowRow]:
        """The n rows (None: all) with the largest inherited error, on average."""
        return sorted(self.rows, key=lambda row: row.inherited.mean, reverse=True)[:n]

    def as_dict(self) -> list[dict[str, Any]]:
        """The rows, the worst first."""
        return [row.as_dict() for row in self.worst(None)]

    def parts(self) -> list[str]:
        rows = [("module", "op", "phase", *[c.replace("_", " ") for c in ERRORS], "caller")]
        for row in self.as_dict():
            errors = [f"{row[c]:,}" if c.endswith("zeros") else f"{row[c]:.3g}" for c in ERRORS]
            rows.append((row["module"], row["op"], row["phase"], *errors, row["caller"]))
        lines = ["off from FP32, in ulps of FP16", table(rows, left=(0, 1, 2, 9), ruled=False)]
        if (first := self._nonfinite) is not None:
            nonfinite = sum([row.nonfinite for row in self.rows])
            lines.append(f"{nonfinite:,} infinities and NaNs are left out, the first in {first} ({first.caller})")
        return lines

    def draw(self, axes: Any) -> None:
        """Bars: the mean inherited error of the worst ops; a mark for what is their own."""
        rows = self.worst()
        own, places = [row.local.mean for row in rows], range(len(rows))[::-1]
        bars(axes, list(map(str, rows)), {"inherited": ([row.inherited.mean for row in rows], RED)})
        axes.plot(own, places, "|", color=BLUE, label="local", markersize=14)
        axes.set_xscale("symlog", linthresh=0.1)
        axes.set(xlabel="mean error in ulps of FP16", title="Off from FP32")
        axes.legend()

    # ---- running again

    def _forward(self, place: Place, op: Op, inputs: tuple, outputs: tuple) -> None:
        if not any(hasattr(y, "dtype") and y.dtype in FLOATING for y in outputs):
            return
        arrays = [x.array if isinstance(x, Tensor) else x for x in inputs]
        along = [self._shadow_of(x) if isinstance(x, Tensor) else x for x in inputs]
        halves = any(getattr(x, "dtype", None) in HALVES for x in (*arrays, *outputs))
        if not halves and all(a is x for a, x in zip(along, arrays)):
            return  # FP32, and so was everything before it
        first, near = _again(op, [widen(x) for x in arrays])
        second, far = _again(op, along)
        row = self._row(place)
        for i, (y, a, b) in enumerate(zip(outputs, near, far)):
            if hasattr(y, "dtype") and y.dtype in FLOATING:
                self._compare(row, y, a, b)
                self._kept.put(y, version_of_result(y, inputs), backend.of(b).xp.asarray(b), op, i)
        if op.needs:
            self._ops[op] = first, second

    def _backward(self, place: Place, op: Op, dys: tuple, dxs: tuple) -> None:
        first, second = self._ops.pop(op, (None, None))
        shadows = self._gradients.pop(op, {})
        if first is None or second is None:
            return  # its forward was not seen, or had nothing to do with FP16
        first.targets = second.targets = tuple([t and t._replace(dtype=_wide(t.dtype)) for t in op.targets])
        wide = [widen(dy) for dy in dys]
        near = first.backward(*wide)
        far = second.backward(*[shadows.get(i, dy) for i, dy in enumerate(wide)])
        row = self._row(place)
        for edge, dx, a, b in zip(op.edges, dxs, _tuple(near), _tuple(far)):
            if edge is None or dx is None:
                continue
            self._compare(row, values_of(dx), values_of(a), values_of(b))
            if isinstance(edge, tuple):  # else a leaf
                (maker, i), b = edge, b.dense() if hasattr(b, "dense") else b
                sums = self._gradients.setdefault(maker, {})
                sums[i] = sums[i] + b if i in sums else b

    def _shadow_of(self, x: Tensor) -> Array:
        if isinstance(x, Parameter):
            return widen(x.master)
        kept = self._kept.of(x)
        return widen(x.array) if kept is None else kept

    def _compare(self, row: ShadowRow, y: Array, local: Array, along: Array) -> None:
        near, far = difference(y, local, along)
        row.nonfinite += y.size - near.elements
        row.local.add(near)
        row.inherited.add(far)
        if row.nonfinite and self._nonfinite is None:
            self._nonfinite = row

    def _row(self, place: Place) -> ShadowRow:
        row = self._rows.setdefault((place.module, place.op, place.phase, place.caller), ShadowRow.place(place))
        row.calls += 1
        return row


def _again(op: Op, inputs: list) -> tuple[Op, tuple]:
    """A call like that of op on other inputs; returns the new op, ready for its backward, and the results."""
    again = type(op)()
    again.targets = op.targets
    again.device = next((backend.of(x) for x in inputs if hasattr(x, "dtype")), backend.cpu)
    if isinstance(op, Dropout):
        again.device = _SameMask(again.device, op.saved[0])
    again.options = {name: _unchanged(value) for name, value in op.options.items()}
    vars(again).update(again.options)
    y = again.forward(*inputs, **again.options)
    return again, _tuple(y)


def _unchanged(option: Any) -> Any:
    """An option for a run in FP32 that must not change what the first run has changed already."""
    if isinstance(option, Running) and option.momentum is not None:
        return replace(option, mean=None, var=None, count=None)
    if isinstance(option, np.dtype):
        return _wide(option)
    return list(option) if isinstance(option, list) else option


class _SameMask:
    """A device whose random numbers give dropout the mask that it had."""

    def __init__(self, device: Any, kept: Array) -> None:
        self.device, self.kept = device, kept

    def __getattr__(self, name: str) -> Any:
        return getattr(self.device, name)

    def uniform(self, shape: tuple[int, ...]) -> Array:
        return self.device.xp.where(self.kept, 1, -1)


def _wide(dtype: np.dtype) -> np.dtype:
    return float32 if dtype in HALVES else dtype


def _tuple(x: Any) -> tuple:
    return x if isinstance(x, tuple) else (x,)
