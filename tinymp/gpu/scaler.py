"""A loss scaler on the GPU, so that a step never waits for the host and can be captured in a CUDA graph. At the end of
an iteration the same `Rule` decides as on the host, as a kernel. The host reads the scale and the history on request,
which waits; that a limit was reached it learns some steps late.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import cache
from types import SimpleNamespace
from typing import Any

import numpy as np

from ..autograd import Array
from ..backend import gpu
from ..dtypes import float32
from ..fast_path import fast_path
from ..gradients import values_of, with_values
from ..optim.optimizer import without_scale
from ..optim.scaler import Iteration, LossScaler, Rule, State
from ..parameter import Parameter
from ..tensor import Tensor
from .layout import contiguous
from .many import Many
from .optimizer import scale_of, scale_type, scale_value
from .recording import AsyncCallback
from .symbols import Memory, Number

# Places in `counts`, and the number of them
ITERATION, GROWTH_TRACKER, SKIPS, BAD_LOSSES, CHANGES, OVERFLOWED, COUNTS = range(7)
OPTIMIZERS = 16  # how many one scaler can serve
PLACES = 1 << 16  # in `found` a parameter's place is counted from the number of its optimizer times this
NONE = 2**31 - 1  # in `found`: every gradient is finite
RING = 1024  # how many changes of S are kept until the host reads them
INT = np.dtype(np.int32)
where: Any = np.where


# ------------------------------------------------------------------------------------------------------------ kernels


@cache
def _checking(dtype: np.dtype, scale: str, result: bool) -> Many:
    """Lowers `found` to the place of the first gradient that, unscaled, is not finite; and writes it in FP32. scale:
    its type in C.
    """
    columns = {"gradient": dtype, **({"result": np.result_type(dtype, float32)} if result else {})}
    many = Many("check", columns, shared={"found": "int*", "start": "int", **({"scale": scale} if scale else {})})
    y: Any = without_scale(many.symbols["gradient"], scale_of(many))
    finite: Any = np.isfinite(y)
    many.trace.lines.append(f"finite = finite && {finite.name};")
    lower = "if (!finite) atomicMin(found, start + rows.row[chunk.row].place);"
    return many.write({"result": y} if result else {}, begin=["bool finite = true;"], end=[lower])


@cache
def _noting(dtype: np.dtype) -> Many:
    many = Many("note_loss", {"bad_loss": INT, "loss": dtype})
    return many.write({"bad_loss": where(np.isfinite(many.symbols["loss"]), many.symbols["bad_loss"], 1)})


@cache
def _ending(optimizers: int) -> Many:
    """The end of an iteration: the rule; the change of S into the ring; and what was found is forgotten."""
    counts = dict.fromkeys(("iteration", "growth_tracker", "skips", "bad_losses", "changes", "overflowed"), INT)
    found = {f"found {i}": INT for i in range(optimizers)}
    ring = {"changed_at": "int", "changed_to": "float", "reason": "int"}
    shared = {name: f"{kind}*" for name, kind in ring.items()} | dict.fromkeys(Rule._fields, "double")
    shared["interval"] = "long long"
    many = Many("end_iteration", {"scale": float32, **counts, "bad_loss": INT, **found}, shared=shared)
    numbers: list[Any] = [Number(many.trace, int if n == "interval" else float, n) for n in Rule._fields]
    x, first = SimpleNamespace(**many.symbols), many.symbols["found 0"]
    for name in [*found][1:]:
        first = where(many.symbols[name] < first, many.symbols[name], first)
    overflow, state = first != NONE, State(x.scale, x.growth_tracker, x.skips, x.bad_losses)
    before: Any = state
    after: Any = Rule(*numbers)(state, overflow, x.bad_loss != 0)
    new = State(*[y.astype(old.dtype) for y, old in zip(after, before)])  # rounds: never, whole numbers and FP32
    place = x.changes & RING - 1  # where nothing has changed, the next change takes it
    for (name, kind), value in zip(ring.items(), (x.iteration, new.scale, where(overflow, first, -1))):
        Memory(many.trace, INT if kind == "int" else float32, name)[place] = value
    results = dict(zip(("scale", "growth_tracker", "skips", "bad_losses"), new))
    results["iteration"], results["bad_loss"] = x.iteration + 1, np.full_like(x.bad_loss, 0)
    results["changes"] = where(new.scale != state.scale, x.changes + 1, x.changes)
    results["overflowed"] = where(overflow, first, x.overflowed)
    return many.write(results | {name: np.full_like(x.bad_loss, NONE) for name in found})


class DeviceScale:
    """A loss scale on the GPU, in `grad_scale` in place of a number; `float` of it waits. Two compare equal only if
    they are the same object.
    """

    def __init__(self, array: Array) -> None:
        self.array = array

    def __float__(self) -> float:
        return float(gpu.to_numpy(self.array))

    def __rmul__(self, other: Any) -> Any:
        if other != 1:
            raise RuntimeError(f"scale: the loss carries a scale already ({float(other):g}); scale it once")
        return self


class OnDevice:
    """A scaler's `Kept` on the GPU, where its numbers are.

    scale     S, FP32, without axes
    counts    (COUNTS,), int32; see ITERATION and the following
    found     (OPTIMIZERS,), int32: per optimizer the place of its first gradient that is not finite, or NONE; see
              PLACES
    bad_loss  (1,), int32: 1 if a loss of this iteration is not finite, else 0
    changes   the last RING changes of S, as three arrays (RING,): iteration, new S, and what was found, -1 where S grew
    """

    def __init__(self, scaler: LossScaler) -> None:
        xp = gpu.xp
        self.scaler = scaler
        self.scale, self.counts = xp.empty((), float32.name), xp.zeros(COUNTS, "int32")
        self.found = xp.full(OPTIMIZERS, NONE, "int32")
        self.bad_loss = xp.zeros(1, "int32")
        self.changes = xp.zeros(RING, "int32"), xp.zeros(RING, float32.name), xp.zeros(RING, "int32")
        self.optimizers: list[Any] = []
        self.product = DeviceScale(self.scale)
        self.callback = AsyncCallback(self.counts, self._arrived)
        self.load(scaler.state, scaler.iteration, scaler.history)

    @property
    def factor(self) -> Any:
        return self.start if self.scaler.rule.growth == 1 else self.product

    # ---- what it knows

    @property
    def state(self) -> State:
        counts = gpu.to_numpy(self.counts)
        return State(float(self.product), *(int(counts[i]) for i in (GROWTH_TRACKER, SKIPS, BAD_LOSSES)))

    @property
    def iteration(self) -> int:
        return int(gpu.to_numpy(self.counts)[ITERATION])

    @property
    def history(self) -> list[tuple[int, float, str]]:
        total, seen = int(gpu.to_numpy(self.counts)[CHANGES]), len(self.told)
        columns = [gpu.to_numpy(x) for x in self.changes]
        for i in [i % RING for i in range(max(seen, total - RING), total)]:
            reason = int(columns[2][i])
            grown = f"{self.scaler.rule.interval} iterations without overflow"
            why = f"overflow in {self.label(reason)}" if reason >= 0 else grown
            self.told.append((int(columns[0][i]), float(columns[1][i]), why))
        return self.told

    def load(self, state: State, iteration: int, history: Iterable) -> None:
        self.start, self.told = state.scale, [*history]
        counts = [iteration, *state[1:], len(self.told), 0]
        self.forget()
        self.counts[...] = gpu.asarray(np.array(counts, "int32"))  # rounds: never, whole numbers
        self.scale.fill(state.scale)

    def forget(self) -> None:
        self.found.fill(NONE)
        self.bad_loss.fill(0)

    def label(self, overflowed: int) -> str:
        i, j = divmod(int(overflowed), PLACES)
        params = self.optimizers[i].parameters() if 0 <= i < len(self.optimizers) else ()
        return self.optimizers[i].label(params[j]) if j < len(params) else "a parameter"

    def _arrived(self, counts: np.ndarray) -> None:
        """Look at the counts of some steps ago, of which some may have been missed."""
        state = State(math.nan, 0, int(counts[SKIPS]), int(counts[BAD_LOSSES]))
        self.scaler.look_at_limits(state, self.label(counts[OVERFLOWED]), self.product, "not finite")

    def place_of(self, optimizer: Any) -> tuple[int, Array]:
        """An optimizer's number, and its place in `found`."""
        if optimizer not in self.optimizers:
            if len(self.optimizers) == OPTIMIZERS:
                raise ValueError(f"a loss scaler on the GPU serves at most {OPTIMIZERS} optimizers")
            self.optimizers.append(optimizer)
        i = self.optimizers.index(optimizer)
        return i, self.found[i : i + 1]


# ------------------------------------------------------------------------- what LossScaler does on the host, on the GPU


def _on_device(scaler: LossScaler) -> Any:
    """The values of the scaler: they move to the GPU if they were on the host."""
    kept: Any = scaler._kept
    if not isinstance(kept, OnDevice):
        scaler._kept = kept = OnDevice(scaler)  # type: ignore[assignment]
    return kept


@fast_path(LossScaler.begin)
def begin(scaler: LossScaler, state: State, iteration: int, history: Iterable) -> None:
    _on_device(scaler).load(state, iteration, history)
    scaler._now = Iteration()


@fast_path(LossScaler.note_loss)
def note_loss(scaler: LossScaler, loss: Tensor) -> None:
    _noting(loss.dtype).launch(gpu.xp, [[_on_device(scaler).bad_loss, loss.array]])


@fast_path(LossScaler.find_overflow)
def find_overflow(scaler: LossScaler, optimizer: Any, params: list[Parameter], unscale: bool) -> None:
    number, found = _on_device(scaler).place_of(optimizer)
    alike: dict[tuple, dict[Parameter, list[Array]]] = {}
    for p in params:
        g = contiguous(gpu.xp, values_of(p.grad_array))
        results = [gpu.xp.empty(g.shape, np.result_type(g.dtype, float32).name)] if unscale else []
        alike.setdefault((g.dtype, p.grad_scale), {})[p] = [g, *results]
    for (dtype, scale), arrays in alike.items():
        many = _checking(dtype, scale_type(scale), unscale)
        values = [scale_value(scale)] if "scale" in many.shared else []
        rows = [arrays.get(p) for p in optimizer.parameters()]
        many.launch(gpu.xp, rows, found, number * PLACES, *values)
        for p in arrays if unscale else ():
            p.replace_grad(with_values(p.grad_array, arrays[p][1]), 1.0)


@fast_path(LossScaler.should_skip)
def should_skip(scaler: LossScaler, optimizer: Any) -> Array:
    """(1,), bool, by what is known now."""
    kept = _on_device(scaler)
    _, found = kept.place_of(optimizer)
    return gpu.map(lambda found, bad_loss: (found != NONE) | (bad_loss != 0), found, kept.bad_loss)


@fast_path(LossScaler.end)
def end(scaler: LossScaler, now: Iteration) -> None:
    kept = _on_device(scaler)
    if not now.judged:  # what was noted is only forgotten
        kept.forget()
        kept.counts[ITERATION] += 1
        return
    n = len(kept.optimizers)
    row = [kept.scale, *[kept.counts[i : i + 1] for i in range(COUNTS)], kept.bad_loss]
    row += [kept.found[i : i + 1] for i in range(n)]
    _ending(n).launch(gpu.xp, [row], *kept.changes, *scaler.rule)
    kept.callback.poll()
