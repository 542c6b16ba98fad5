"""A loss scaler's side on the GPU, so that a step never waits for the host and can be captured in a CUDA graph.

`scaler.cu` applies the scaler's rule at the end of an iteration. The host reads the scale and the history on request,
which waits for the GPU; that a limit was reached it learns some steps late, from an asynchronous callback.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from ..autograd import Array, values_of, with_values
from ..backend import gpu
from ..dtypes import float32, float64
from ..events import here
from ..fast_path import fast_path
from ..optim.optimizer import unscaled
from ..optim.scaler import Iteration, LossScaler, Side, State
from ..parameter import Parameter
from ..tensor import Tensor
from . import optimizer as kernels
from .kernels import Kernels
from .optimizer import NONE
from .recording import AsyncCallback

KERNELS = Kernels(__file__)

# Places in `counts`, and the number of them; scaler.cu has the same
ITERATION, GROWTH_TRACKER, SKIPS, BAD_LOSSES, CHANGES, OVERFLOWED, COUNTS = range(7)
OPTIMIZERS = 16  # how many one scaler can serve
RING = 1024  # how many changes of S are kept until the host reads them


class DeviceScale:
    """A loss scale on the GPU. It stands in `grad_scale` in place of a number; `float` of it waits for the GPU.

    Two of them compare equal only if they are the same object: the host does not know their values.
    """

    __array_ufunc__ = None  # array * self is for __rmul__, by NumPy's protocol, which CuPy follows

    def __init__(self, array: Array) -> None:
        self.array = array

    def __float__(self) -> float:
        return float(gpu.to_numpy(self.array))

    def __rmul__(self, other: Any) -> Any:
        if hasattr(other, "dtype"):  # a loss, or its gradient
            return other * self.array
        if other != 1:
            raise RuntimeError(f"scale: the loss carries a scale already ({float(other):g}); scale it once")
        return self


class DeviceSide(Side):
    """A `Side` on the GPU. Its numbers are there, and reading them waits.

    scale     S, FP32, without axes
    counts    (COUNTS,), int32; see ITERATION and the following
    found     (OPTIMIZERS,), int32: per optimizer the place of its first gradient that is not finite, or NONE
    bad_loss  (1,), int32: 1 if a loss of this iteration is not finite, else 0
    changes   the last RING changes of S, as three arrays (RING,): iteration (int32), new S (FP32), reason (int32);
              see scaler.cu
    """

    def __init__(self, scaler: LossScaler, before: Side) -> None:
        xp = gpu.xp
        self.scaler = scaler
        self.scale, self.counts = xp.empty((), float32.name), xp.zeros(COUNTS, "int32")
        self.found = xp.full(OPTIMIZERS, NONE, "int32")
        self.bad_loss = xp.zeros(1, "int32")
        self.changes = xp.zeros(RING, "int32"), xp.zeros(RING, float32.name), xp.zeros(RING, "int32")
        self.optimizers: list[Any] = []
        self.product = DeviceScale(self.scale)
        self.callback = AsyncCallback(self.counts, self._arrived)
        self.load(before.state, before.iteration, before.history)

    @property
    def factor(self) -> Any:
        return self.start if self.scaler.rule.growth == 1 else self.product

    # ---- what it knows

    @property
    def state(self) -> State:  # type: ignore[override]
        counts = gpu.to_numpy(self.counts)
        return State(float(self.product), *(int(counts[i]) for i in (GROWTH_TRACKER, SKIPS, BAD_LOSSES)))

    @property
    def iteration(self) -> int:  # type: ignore[override]
        return int(gpu.to_numpy(self.counts)[ITERATION])

    @property
    def history(self) -> list[tuple[int, float, str]]:  # type: ignore[override]
        total, seen = int(gpu.to_numpy(self.counts)[CHANGES]), len(self.told)
        columns = [gpu.to_numpy(x) for x in self.changes]
        for i in [i % RING for i in range(max(seen, total - RING), total)]:
            reason = int(columns[2][i])
            grown = f"{self.scaler.rule.interval} iterations without overflow"
            why = f"overflow in {self.label(reason)}" if reason >= 0 else grown
            self.told.append((int(columns[0][i]), float(columns[1][i]), why))
        return self.told

    def serving(self, scaler: LossScaler) -> Side:
        """On the host again."""
        return self.on_host()

    def load(self, state: State, iteration: int, history: Iterable) -> None:
        self.start, self.told = state.scale, [*history]
        counts = [iteration, *state[1:], len(self.told), 0]
        self.forget()
        self.counts[...] = gpu.asarray(np.array(counts, "int32"))  # rounds: never, whole numbers
        self.scale.fill(state.scale)

    def begin_counts(self) -> None:
        self.counts[SKIPS : BAD_LOSSES + 1] = 0

    def forget(self) -> None:
        """Forget the notes of this iteration."""
        self.found.fill(NONE)
        self.bad_loss.fill(0)

    def label(self, overflowed: int) -> str:
        """The name of the parameter whose gradient overflowed, for messages; `overflowed` as scaler.cu encodes it."""
        i, j = divmod(int(overflowed), 65536)
        if not 0 <= i < len(self.optimizers):
            return "a parameter"
        optimizer = self.optimizers[i]
        params = optimizer.parameters()
        return optimizer.label(params[j]) if j < len(params) else "a parameter"

    def _arrived(self, counts: np.ndarray) -> None:
        """Look at the counts of some steps ago, of which some may have been missed."""
        state = State(math.nan, 0, int(counts[SKIPS]), int(counts[BAD_LOSSES]))
        self.scaler.look_at_limits(state, self.label(counts[OVERFLOWED]), self.product, "not finite")

    # ---- what it finds

    def note_loss(self, now: Iteration, loss: Tensor) -> None:
        self.bad_loss |= ~gpu.xp.isfinite(loss.array)

    def _found(self, optimizer: Any) -> Array:
        if optimizer not in self.optimizers:
            if len(self.optimizers) == OPTIMIZERS:
                raise ValueError(f"a loss scaler on the GPU serves at most {OPTIMIZERS} optimizers")
            self.optimizers.append(optimizer)
        i = self.optimizers.index(optimizer)
        return self.found[i : i + 1]

    def check(self, now: Iteration, optimizer: Any, params: list[Parameter]) -> None:
        """One launch per scale and dtype (FP16, FP32). FP64 has no kernel: such gradients are checked one by one."""
        found, xp, places = self._found(optimizer), gpu.xp, {id(p): i for i, p in enumerate(optimizer.parameters())}
        for scale, grads in _by_scale(optimizer, params):
            kernels.check(grads, found, scale)
        for p in filter(_is_fp64, params):
            finite = xp.isfinite(values_of(unscaled(p))).all()
            xp.minimum(found, xp.where(finite, NONE, places[id(p)]), out=found)

    def unscale(self, now: Iteration, optimizer: Any, params: list[Parameter]) -> None:
        wide = [p for p in params if _is_fp64(p)]
        self.check(now, optimizer, wide)
        for p in wide:
            p.grad_array, p.grad_scale = unscaled(p), 1.0
        for scale, grads in _by_scale(optimizer, params):
            results = kernels.unscale(grads, scale, self._found(optimizer))
            for p, result in zip(optimizer.parameters(), results):
                if result is not None:
                    p.grad_array, p.grad_scale = with_values(p.grad_array, result), 1.0

    def skip(self, now: Iteration, optimizer: Any) -> Array:
        """(1,), bool, by what is known now."""
        here.agree(self._found(optimizer), "min")
        here.agree(self.bad_loss, "max")
        return (self._found(optimizer) != NONE) | (self.bad_loss != 0)

    def end(self, scaler: LossScaler, now: Iteration, judged: bool, overflow: str | None) -> None:
        """In one small launch."""
        if not judged:  # what was noted is only forgotten
            self.forget()
            self.counts[ITERATION] += 1
            return
        KERNELS.launch(
            "end_iteration", self.scale.dtype, 1, 32,
            self.scale, self.counts, self.found, self.bad_loss, len(self.optimizers),
            *scaler.rule, *self.changes, RING,
        )  # fmt: skip
        self.callback.poll()


@fast_path(Side.serving)
def serving(side: Side, scaler: LossScaler) -> Side:
    return side if isinstance(side, DeviceSide) else DeviceSide(scaler, side)


def _by_scale(optimizer: Any, params: list[Parameter]) -> list[tuple[Array | None, list[Array | None]]]:
    """The gradients of `params` by the loss scale that they carry, each at its place among all the optimizer's
    parameters, with None at the others and in place of FP64.
    """
    narrow = {id(p): p.grad_scale for p in params if not _is_fp64(p)}
    every = optimizer.parameters()
    return [
        (kernels.number(s), [values_of(p.grad_array) if narrow.get(id(p)) == s else None for p in every])
        for s in dict.fromkeys(narrow.values())
    ]


def _is_fp64(p: Parameter) -> bool:
    return values_of(p.grad_array).dtype == float64
