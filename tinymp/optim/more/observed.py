"""The loss scaler that picks its constant from observed gradients (MPT section 3.2)."""

from __future__ import annotations

import math
from contextlib import AbstractContextManager
from typing import Any, ClassVar

from ... import backend
from ...arguments import count, flag, name_all, number, whole
from ...autograd import Array, Op, values_of
from ...dtypes import FP16_MAX, float16
from ...events import Observer, here, observe
from ...precision import reduce
from ...tensor import Tensor
from ..optimizer import Optimizer
from ..result import StepResult
from ..scaler import MAX_SCALE, MIN_SCALE, LossScaler, Side


class ObservedLossScaler(LossScaler):
    """A constant picked from observed gradients: the largest power of two S with margin S max|g| < 65504 (MPT 3.2).

    For `observe` iterations S is init_scale, and every FP16 gradient of the backward pass is looked at: those of
    activations overflow too, and often first. Then S is fixed.

    init_scale   small: an overflow would hide the largest gradient, while an underflow hides only small ones. 8 is the
                 least that MPT needed. After an overflow it is divided by 16, if all gradients were 0 multiplied by 256
    margin       how much larger gradients may become later on
    """

    saved: ClassVar = {
        "observed": whole,
        "largest": lambda where, name, value: None if value is None else number(where, name, value, 0),
        "fixed": flag,
    }

    def __init__(
        self,
        observe: int = 100,
        margin: float = 8.0,
        init_scale: float = 8.0,
        *,
        max_consecutive_skips: int = 10,
        max_nonfinite_losses: int = 3,
    ) -> None:
        super().__init__(init_scale, max_consecutive_skips, max_nonfinite_losses)
        self.observe = count(self._name, "observe", observe)
        self.margin = number(self._name, "margin", margin, 1.0)
        self.observed = 0  # iterations so far
        self.largest: float | None = None  # max |g| without the scale; None: no FP16 gradient seen
        self.fixed = False
        self._peak = _Peak()
        self._looking: AbstractContextManager | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_peak": None, "_looking": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__({**state, "_peak": _Peak(), "_looking": None})

    def _side_for(self, device: Any) -> Side:
        return super()._side_for(device) if self.fixed else self._side  # the host picks S

    def scale(self, loss: Tensor) -> Tensor:
        if not self.fixed and self._looking is None:
            self._looking = observe(self._peak)
            self._looking.__enter__()
        return super().scale(loss)

    def update(self) -> None:
        self._look_away()
        try:
            super().update()
        finally:
            self._peak.value = None

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict(state_dict)
        self._look_away()
        self._peak.value = None

    def _look_away(self) -> None:
        if self._looking is not None:
            self._looking.__exit__(None, None, None)
        self._looking = None

    def unscale_(self, optimizer: Optimizer) -> None:
        self._look_at(optimizer)
        super().unscale_(optimizer)

    def step(self, optimizer: Optimizer, *, allow_missing: bool = False) -> StepResult:
        self._look_at(optimizer)
        return super().step(optimizer, allow_missing=allow_missing)

    def _look_at(self, optimizer: Optimizer) -> None:
        """Look at what arrived at the weights: gradients of one that was used several times have been summed."""
        if not self.fixed and isinstance(optimizer, Optimizer):
            for p in optimizer.parameters():
                self._peak.see(p.grad_array)

    def adjust(self, overflow: str | None) -> None:
        super().adjust(overflow)
        if self.fixed:
            return
        peak, scale = here.agree(self._peak.value, "max"), self.state.scale
        if overflow or peak == math.inf:  # a ReLU can stop an infinite gradient before it reaches a weight
            where = overflow or "the gradient of an activation"
            self._move(scale / 16, f"overflow in {where} while observing")
            return
        if peak is not None:
            self.largest = max(self.largest or 0.0, peak / scale)
        self.observed += 1
        if self.observed < self.observe:
            return
        if self.largest == 0 and scale < MAX_SCALE:
            self._move(scale * 256, "all observed gradients were 0")
            self.observed = 0
            return
        self.fixed = True
        if self.largest:
            self._move(power_below(FP16_MAX / (self.margin * self.largest)), f"observed max|g| = {self.largest:.3g}")

    def _move(self, scale: float, reason: str) -> None:
        self.change(self.state._replace(scale=min(max(scale, MIN_SCALE), MAX_SCALE)), reason)


class _Peak(Observer):
    """Watches for the largest magnitude of an FP16 gradient, as scaled; None: there was no FP16 gradient."""

    def __init__(self) -> None:
        self.value: float | None = None

    def ran(self, op: Op, inputs: tuple, outputs: tuple) -> None:
        if op.phase == "backward":
            for g in (*inputs, *outputs):  # dys too: sums of the gradients of a tensor that was used several times
                self.see(g)

    def see(self, g: Array | None) -> None:
        g = values_of(g)
        if g is not None and g.dtype == float16:
            top = float(reduce(backend.of(g).xp.abs(g), tuple(range(g.ndim)), "max").item()) if g.size else 0.0
            self.value = max(self.value or 0.0, top)


def power_below(limit: float) -> float:
    """The largest power of two below a limit."""
    mantissa, exponent = math.frexp(limit)  # mantissa in [0.5, 1)
    return 2.0 ** (exponent - (1 if mantissa > 0.5 else 2))


name_all(globals())
