"""Shadow runs: every op of an FP16 run again in FP32, on the values it read and along an FP32 copy of the run.

The first says what the op itself loses, the second what has come together by then. Both are given in ulps of FP16, the
spacing of its numbers at the exact value (2^-24 below 2^-14): one rounding to nearest costs at most 0.5. Results that
stay in FP32, as losses do, are measured by the same yardstick, so that all rows compare.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from .. import backend
from ..nn.parameter import Parameter
from ..ops.dropout import Dropout
from ..ops.norm import Running
from ..precision import FLOATING, FP32, float16, float32, reduce, to_dtype, unobserved, use, widen
from ..sparse import dense_of, values_of
from ..tensor import Array, Like, Op, Tensor, _owner
from ._sampling import table
from .listener import _APPLY, Instrument, Place, frame_of


@dataclass
class ShadowRow:
    """What one op at one place of its call, in one phase, is off from FP32, in ulps of FP16.

    module, op, phase, caller, where    see `Place`
    calls, elements                     how often it ran, and how many finite elements were compared
    nonfinite                           how many were infinite or NaN, in the run or in its FP32 copy: left out
    local_mean, local_max               against the same op in FP32 on the same inputs
    inherited_mean, inherited_max       against the FP32 copy of the run: this op and all before it
    """

    module: str
    op: str
    phase: str
    caller: str
    where: str
    calls: int = 0
    elements: int = 0
    nonfinite: int = 0
    local_mean: float = 0.0
    local_max: float = 0.0
    inherited_mean: float = 0.0
    inherited_max: float = 0.0

    def add(self, y: Array, local: Array, along: Array) -> None:
        """Compare a result with its two shadows."""
        near, far = difference(y, local), difference(y, along)
        n = self.elements + near.elements
        self.local_mean += (near.total - near.elements * self.local_mean) / max(n, 1)
        self.inherited_mean += (far.total - near.elements * self.inherited_mean) / max(n, 1)
        self.local_max = max(self.local_max, near.largest)
        self.inherited_max = max(self.inherited_max, far.largest)
        self.elements, self.nonfinite = n, self.nonfinite + max(near.nonfinite, far.nonfinite)


class Difference(NamedTuple):
    """Errors in ulps: of how many finite elements, their sum, the largest, and how many elements are not finite."""

    elements: int
    total: float
    largest: float
    nonfinite: int


def difference(y: Array, exact: Array) -> Difference:
    """How far y is from exact (FP32, or FP64), in ulps of FP16 at the exact value."""
    device = backend.of(exact)
    y, exact = (to_dtype(device.xp.asarray(x), float32) if x.dtype != float16 else x for x in (y, exact))
    order = sorted(range(exact.ndim), key=exact.strides.__getitem__, reverse=True)
    y, exact = (x.transpose(order).reshape(-1) for x in (y, exact))  # as they lie in memory
    block = getattr(device, "BLOCK", 0) or max(exact.size, 1)  # what stays in the cache
    elements, total, largest = 0, 0.0, 0.0
    for i in range(0, exact.size, block):
        n, part, top = _block(device, y[i : i + block], exact[i : i + block])
        elements, total, largest = elements + n, total + part, max(largest, top)
    return Difference(elements, total, largest, exact.size - elements)


def _block(device: Any, y: Array, exact: Array) -> tuple[int, float, float]:
    """Of one block: how many elements are finite, the sum of their errors and the largest."""
    xp = device.xp
    bits = device.bits(exact) & 0x7F800000  # the exponent alone: the bits of 2^e
    xp.maximum(bits, 113 << 23, out=bits)  # 2^-14
    xp.subtract(264 << 23, bits, out=bits)  # 2^(10 - e), one over the spacing
    error = widen(y) - exact
    error *= bits.view(exact.dtype)
    xp.abs(error, out=error)
    n, total = exact.size, float(reduce(error, (0,), "sum").item())
    if not total < float("inf"):
        finite = xp.isfinite(widen(y)) & xp.isfinite(exact)
        error = device.select(finite, error)
        n, total = int(xp.count_nonzero(finite)), float(reduce(error, (0,), "sum").item())
    return n, total, float(error.max())


class Kept(NamedTuple):
    """The shadow of a tensor, as long as its array lives."""

    array: weakref.ref
    value: Array
    version: int  # of the tensor; a change in place ends what its shadow says


class Shadow(Instrument):
    """Runs each op that has to do with FP16 again in FP32, twice: with the inputs that it had (the local error), and
    with the results of the copy of the run in FP32 (the inherited error). Backward likewise.

    The copy starts at the masters of the parameters and at the run's own data, and goes on in state that is handed on
    from step to step; masters themselves are the run's. It takes the run's integers and masks, so that both compute the
    same. A backward reads what its own forward in FP32 saved: where an op saves its rounded output, as softmax does,
    that rounding is part of its backward's local error. The run itself stays as it is, bit for bit.

    It takes twice the time and the memory of an FP32 run, so it is there on request: `mp.audit(Shadow())`.
    """

    def __init__(self) -> None:
        self._rows: dict[tuple, ShadowRow] = {}
        self._kept: dict[int, Kept] = {}  # by the id of the array
        # NumPy's scalars become other arrays in the Tensor: these go by the op that made them
        self._scalars: weakref.WeakKeyDictionary[Op, dict[int, Array]] = weakref.WeakKeyDictionary()
        self._ops: weakref.WeakKeyDictionary[Op, tuple[Op, Op]] = weakref.WeakKeyDictionary()
        self._gradients: weakref.WeakKeyDictionary[Op, dict[int, Array]] = weakref.WeakKeyDictionary()

    def ran(self, place: Place, op: Op, inputs: tuple, outputs: tuple) -> None:
        with _aside():
            if place.phase == "forward":
                self._forward(place, op, inputs, outputs)
            else:
                self._backward(place, op, inputs, outputs)

    # ---- what it found

    @property
    def rows(self) -> list[ShadowRow]:
        """All rows, in the order in which their ops first ran."""
        return list(self._rows.values())

    def worst(self, n: int = 10, by: str = "inherited_mean") -> list[ShadowRow]:
        """The n rows with the largest of one column. ValueError for an unknown one."""
        numbers = [f.name for f in fields(ShadowRow) if f.type in ("int", "float")]
        if by not in numbers:
            raise ValueError(f"worst: no column {by!r}; there are {', '.join(numbers)}")
        return sorted(self.rows, key=lambda row: getattr(row, by), reverse=True)[:n]

    def as_dict(self) -> list[dict[str, Any]]:
        """The rows, the worst first."""
        return [asdict(row) for row in self.worst(len(self._rows))]

    def __str__(self) -> str:
        columns = ("local_mean", "local_max", "inherited_mean", "inherited_max")
        rows = [("module", "op", "phase", *[c.replace("_", " ") for c in columns], "caller")]
        for row in self.worst(len(self._rows)):
            rows.append((row.module, row.op, row.phase, *[f"{getattr(row, c):.3g}" for c in columns], row.caller))
        lines = ["off from FP32, in ulps of FP16", table(rows, left=(0, 1, 2, 7), ruled=False)]
        nonfinite = sum([row.nonfinite for row in self.rows])
        lines += [f"{nonfinite:,} infinities and NaNs are not counted"] * (nonfinite > 0)
        return "\n".join(lines)

    def draw(self, axes: Any, n: int = 10) -> None:
        """The worst ops as horizontal bars on matplotlib's axes: the means of both errors."""
        worst = self.worst(n)[::-1]
        names = [f"{row.module} {row.op} {row.phase}".strip() for row in worst]
        places = np.arange(len(worst))
        axes.barh(places + 0.2, [row.inherited_mean for row in worst], 0.4, label="inherited (FP32 copy of the run)")
        axes.barh(places - 0.2, [row.local_mean for row in worst], 0.4, label="local (FP32 on the same inputs)")
        axes.set_yticks(places, names)
        axes.set_xscale("symlog", linthresh=0.1)
        axes.set_xlabel("mean error in ulps of FP16")
        axes.legend()

    # ---- running again

    def _forward(self, place: Place, op: Op, inputs: tuple, outputs: tuple) -> None:
        if not any(hasattr(y, "dtype") and y.dtype in FLOATING for y in outputs):
            return
        call = frame_of(_APPLY).f_locals
        args, options = call["args"], call["options"]
        along = [self._shadow_of(a) if isinstance(a, Tensor) else a for a in args]
        if not any(_is_half(x) for x in (*inputs, *outputs)) and all(
            a is x or a is getattr(x, "data", x) for a, x in zip(along, args)
        ):
            return  # FP32, and nothing before it was otherwise
        wide = [widen(x) for x in inputs]
        first, near = _again(op, wide, options)
        second, far = _again(op, along, options)
        row = self._row(place)
        row.calls += 1
        for i, (y, a, b) in enumerate(zip(outputs, near, far)):
            if hasattr(y, "dtype") and y.dtype in FLOATING:
                row.add(y, a, b)
                self._keep(op, i, y, b, args)
        if op.needs:
            self._ops[op] = first, second

    def _backward(self, place: Place, op: Op, dys: tuple, dxs: tuple) -> None:
        first, second = self._ops.pop(op, (None, None))
        shadows = self._gradients.pop(op, {})
        if first is None or second is None:
            return  # its forward was not seen, or had nothing to do with FP16
        first.like = second.like = tuple([like and Like(like.shape, _wide(like.dtype)) for like in op.like])
        near = first.backward(*[None if dy is None else widen(dy) for dy in dys])
        far = second.backward(*[None if dy is None else shadows.get(i, widen(dy)) for i, dy in enumerate(dys)])
        row = self._row(place)
        row.calls += 1
        for edge, dx, a, b in zip(op.edges, dxs, _tuple(near), _tuple(far)):
            if edge is None or dx is None:
                continue
            row.add(values_of(dx), values_of(a), values_of(b))
            if isinstance(edge, tuple):  # else a leaf
                (maker, i), b = edge, dense_of(b)
                sums = self._gradients.setdefault(maker, {})
                sums[i] = sums[i] + b if i in sums else b

    def _shadow_of(self, x: Tensor) -> Array:
        """x in the FP32 copy of the run."""
        if isinstance(x, Parameter):
            return widen(x.master)
        kept = self._kept.get(id(x.data))
        if kept is not None and kept.version == x._version[0]:
            return kept.value
        of_scalar = self._scalars.get(x._op, {}) if x._op is not None else {}
        return of_scalar.get(x._index, widen(x.data))

    def _keep(self, op: Op, i: int, y: Array, value: Array, args: tuple) -> None:
        if isinstance(y, np.generic):
            self._scalars.setdefault(op, {})[i] = backend.of(value).xp.asarray(value)
            return
        seen = [a._version[0] for a in args if isinstance(a, Tensor) and y.base is _owner(a.data)]  # as Op.apply has it
        gone = partial(_forget, weakref.ref(self), id(y))
        self._kept[id(y)] = Kept(weakref.ref(y, gone), value, seen[0] if seen else 0)

    def _row(self, place: Place) -> ShadowRow:
        key = place.module, place.op, place.phase, place.caller
        return self._rows.setdefault(key, ShadowRow(*key, place.where))


def _forget(shadow: weakref.ref, key: int, array: weakref.ref) -> None:
    """An array has gone."""
    if (owner := shadow()) is not None and (kept := owner._kept.get(key)) is not None and kept.array is array:
        del owner._kept[key]


def _again(op: Op, inputs: list, options: dict) -> tuple[Op, tuple]:
    """A call like that of op on other inputs; returns the new op, ready for its backward, and the results."""
    again = type(op)()
    again.needs = op.needs
    again.device = next((backend.of(x) for x in inputs if hasattr(x, "dtype")), backend.cpu)
    if isinstance(op, Dropout):
        again.device = _SameMask(again.device, op.saved[0])
    y = again.forward(*inputs, **{name: _unchanged(value) for name, value in options.items()})
    return again, _tuple(y)


def _unchanged(option: Any) -> Any:
    """An option for a run in FP32 that must not change what the first run has changed already."""
    if isinstance(option, Running):
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


@contextmanager
def _aside() -> Iterator[None]:
    """What runs within leaves no trace: nobody observes it, and random numbers go on as if it had not been."""
    random = backend.get_rng_state()
    with unobserved(), use(FP32), np.errstate(all="ignore"):
        yield
    if backend.get_rng_state() != random:
        backend.set_rng_state(random)


def _is_half(x: Any) -> bool:
    return getattr(x, "dtype", None) == float16


def _wide(dtype: np.dtype) -> np.dtype:
    return float32 if dtype == float16 else dtype


def _tuple(x: Any) -> tuple:
    return x if isinstance(x, tuple) else (x,)
