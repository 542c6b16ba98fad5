"""Loss scaling: gradients that FP16 would round to zero are shifted into its range (MPT section 3.2, NVG section 2.3).

Multiplying the loss by S multiplies every gradient of the backward pass by S, without another operation. Before
anything looks at the weight gradients (clipping, weight decay, the update) they are divided by S, in FP32. An S that
was too large leaves infinities or NaNs, never a wrong number: then the step is skipped.

    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)                         # only to look at the gradients, as clipping does
    optim.clip_grad_norm_(model.parameters(), 1.0)
    result = scaler.step(optimizer)
    scaler.update()                                    # once per iteration
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, ClassVar
from weakref import WeakKeyDictionary

import numpy as np

from .. import backend, statistics
from ..arguments import count, flag, loss_scale, number, refuse, same_keys, tensor, whole
from ..autograd import Array, Op
from ..caller import caller
from ..events import Observer, observe
from ..parameter import Parameter
from ..precision import FLOATING, FP16_MAX, LOSS, float16, reduce, widen
from ..sparse import values_of
from ..tensor import Tensor
from .device_scaler import BAD_LOSSES, GROWTH_TRACKER, ITERATION, OVERFLOWED, SKIPS, DeviceSide
from .optimizer import Optimizer, StepResult, unscaled

# Below 2^-14, the smallest normal FP16 number, S itself, the gradient with which the backward pass starts, would lose
# bits in FP16: an overflow that remains there is not one that scaling cures.
MIN_SCALE = 2.0**-14
# At 2^24, gradients down to 2^-48 survive; MPT section 3.2 found those below 2^-27 irrelevant. Without a ceiling, a
# model whose gradients are all zero would double S until the loss overflows.
MAX_SCALE = 2.0**24

_UNWATCHED = "(this iteration was not watched)"


class ScaleLoss(Op):
    """y = S L;  dL = S dy. Gradients behind it carry the scale S, and `Tensor.backward` notes that beside each."""

    kind = LOSS

    def forward(self, loss: Array, *, scale: Any, scaler: LossScaler) -> Array:
        self.loss_scale = scale
        return loss * getattr(scale, "array", scale)  # on a GPU, S may be an array

    def backward(self, dy: Array) -> Array:
        return dy * getattr(self.loss_scale, "array", self.loss_scale)


class LossScaler:
    """What all loss scalers share; they differ in `_adjust`, which decides about S after every iteration.

    max_consecutive_skips   so many iterations in a row whose gradients overflow though the loss is finite raise
                            FloatingPointError: no scale, or not this one, cures it
    max_nonfinite_losses    so many iterations in a row with an infinite or NaN loss raise it too. They are skipped,
                            even if the gradients are finite (log(-1) is NaN, its slope -1), but S stays as it is

    The error names the parameter, op and line of the program where the first such value arose: iterations after a
    non-finite loss, and the one that may reach max_consecutive_skips, are watched, which takes time. It leaves model,
    optimizer and S as they are.

    history    (iteration, new scale, reason) of every change of S
    iteration  how many `update`s there have been

    On a GPU nothing of this waits for the host: S, the verdicts and the counts stay on the device (device_scaler.py),
    `step` returns a result that is looked up when somebody asks, reading S or the history waits, and a limit that was
    reached raises some steps late. (ObservedLossScaler, which looks at every gradient, does wait until S is fixed.)
    """

    _saved: ClassVar[dict[str, Callable]] = {}  # what a subclass adds to the state_dict, and how that is checked
    _side: DeviceSide | None = None  # once a loss on a GPU was scaled

    def __init__(self, scale: float, max_consecutive_skips: int, max_nonfinite_losses: int) -> None:
        self._name = type(self).__name__
        self._scale = loss_scale(self._name, "scale", scale)
        self.max_consecutive_skips = count(self._name, "max_consecutive_skips", max_consecutive_skips)
        self.max_nonfinite_losses = count(self._name, "max_nonfinite_losses", max_nonfinite_losses)
        self._iteration = 0
        self._history: list[tuple[int, float, str]] = []
        self._skips = self._bad_losses = 0  # iterations in a row
        self._witness: _Witness | None = None
        # When the scaler is forgotten in the middle of an iteration, Python closes this and the watching ends.
        self._watching: AbstractContextManager | None = None
        self._begin()

    def _begin(self) -> None:
        """Forget what belongs to one iteration."""
        self._verdicts: dict[Optimizer, str | None] = {}  # judged so far -> the parameter that overflowed, or None
        self._results: dict[Optimizer, StepResult | None] = {}  # stepped so far; None: that was interrupted
        self._tried = False  # whether an optimizer was to be unscaled or to step
        self._skip: Any = False  # whether the last step was to be skipped; on a GPU an array of one
        self._bad_loss: tuple[float, str] | None = None  # the first loss that was not finite, and why
        self._on_device = False  # whether this iteration's losses and gradients are judged on a GPU

    def _adjust(self, overflow: str | None) -> None:
        """Reconsider S after an iteration: `overflow` names the first parameter that overflowed, None if none did."""

    # ---- the training step

    def scale(self, loss: Tensor) -> Tensor:
        """S times the loss, a scalar in FP32 (or FP64). Several losses may be scaled and added up.

        TypeError for an FP16 loss: it belongs in FP32 (NVG section 2.3.1). ValueError for more than one element.
        """
        if tensor("scale", "loss", loss).dtype not in FLOATING or loss.dtype == float16:
            raise TypeError(f"scale: expected the loss in FP32, got {loss.dtype}; the losses of tinymp.ops return FP32")
        if loss.data.size != 1:
            raise ValueError(f"scale: expected a scalar loss, got shape {loss.shape}; reduce it with .mean() or .sum()")
        if backend.of(loss.data) is backend.gpu and self._stays_on_device():
            self._on_device = True
            side = self._device_side()
            side.note_loss(loss.data)
            factor = self._scale if self._dynamic() is None else side.factor
            return ScaleLoss.apply(loss, scale=factor, scaler=self)
        if self._bad_loss is None and not math.isfinite(loss.item()):
            cause = self._witness.cause(loss.grad_fn) if self._witness else _UNWATCHED
            self._bad_loss = (loss.item(), cause)
        return ScaleLoss.apply(loss, scale=self._scale, scaler=self)

    def unscale_(self, optimizer: Optimizer) -> None:
        """Replace the optimizer's gradients by their values without the loss scale, in FP32.

        RuntimeError if they were never scaled, or for a second call before `update`.
        """
        self._expect_new("unscale_", optimizer)
        if optimizer in self._verdicts:
            raise RuntimeError("unscale_: called twice for one optimizer; call update() at the end of the iteration")
        params = [p for p in optimizer._parameters() if p.grad is not None]
        if self._on_device:
            self._require_scaled("unscale_", optimizer, params)
            self._verdicts[optimizer] = None
            scale = self._scale if self._dynamic() is None else self._device_side().factor
            self._device_side().unscale(optimizer, params, scale)  # also sets grad_scale
        else:
            self._verdicts[optimizer] = self._first_overflow("unscale_", optimizer, params)
            with np.errstate(all="ignore"):
                for p in params:
                    g = unscaled(p)
                    g = g if p.grad_scale != 1 else g.copy()
                    p.grad, p.grad_scale = g, 1.0  # on one line: an interrupt finds both or neither

    def step(self, optimizer: Optimizer, *, allow_missing: bool = False) -> StepResult:
        """`optimizer.step` with the unscaled gradients, if they and the iteration's losses are finite; else no change.

        Without `unscale_` before, each gradient is unscaled while its parameter is updated, so that there is never
        more than one of them in FP32. RuntimeError for a second call before `update`, for gradients that were never
        scaled, and for what `Optimizer.step` refuses.
        """
        self._expect_new("step", optimizer)
        ready = optimizer._ready(allow_missing)
        params = [p for _, p in ready]
        if optimizer not in self._verdicts:
            self._verdicts[optimizer] = self._first_overflow("step", optimizer, params)
        elif any(p.grad_scale != 1 for p in params):
            raise RuntimeError("step: gradients were computed after unscale_; call it after the last backward()")
        elif self._verdicts[optimizer] is None:  # what was done to them since, clipping say, may have broken them
            self._verdicts[optimizer] = self._first_nonfinite(optimizer, params)
        self._skip = self._wants_skip(optimizer)
        self._results[optimizer] = None
        self._results[optimizer] = result = optimizer._finish(ready, self._skip)
        return result

    def update(self, new_scale: None = None) -> None:
        """End the iteration: adjust S by what `step` and `unscale_` found, as PyTorch's GradScaler does.

        A step that was interrupted, or that was left out after `unscale_`, counts like one that was made. RuntimeError
        if there was neither `step` nor `unscale_`; FloatingPointError at a limit. The iteration has ended even then.
        """
        refuse("update", new_scale=new_scale)
        tried, verdicts, bad_loss, witness = self._tried, self._verdicts, self._bad_loss, self._witness
        judged = [name for o, name in verdicts.items() if self._results.get(o) is not StepResult.NO_GRADIENTS]
        overflow = next((name for name in judged if name is not None), None)
        left_out = [o for o in verdicts if o not in self._results]
        statistics.settle(self._wants_skip(left_out[-1]) if left_out else self._skip)
        on_device = self._on_device
        self._begin()
        if on_device:
            self._device_side().end(self._dynamic(), bool(judged))
        if not tried:
            raise RuntimeError("update: expected step(optimizer) before it, once per iteration")
        if on_device:
            return
        self._watch(False)
        if judged and bad_loss is not None:
            self._bad_losses += 1
            if self._bad_losses >= self.max_nonfinite_losses:
                times, self._bad_losses = self._bad_losses, 0
                raise FloatingPointError(
                    f"the loss is {bad_loss[0]:g} in {times} iterations in a row; a smaller loss scale does not help. "
                    f"Where it arose: {bad_loss[1]}"
                )
        elif overflow is not None:
            self._skips, self._bad_losses = self._skips + 1, 0
            if self._skips >= self.max_consecutive_skips:
                times, self._skips = self._skips, 0
                cause = witness.overflow if witness else _UNWATCHED
                raise FloatingPointError(
                    f"the gradients overflow in {times} iterations in a row, at last with the loss scale "
                    f"{self._scale:g}, though the loss is finite. The first parameter: {overflow}. "
                    f"Where it arose: {cause or 'the sum of its gradients'}"
                )
            self._adjust(overflow)
        elif judged:
            self._skips = self._bad_losses = 0
            self._adjust(None)
        self._iteration += 1
        last_chance = self._skips + 1 >= self.max_consecutive_skips or self._bad_losses > 0
        self._watch(last_chance)

    def _expect_new(self, op: str, optimizer: Optimizer) -> None:
        if not isinstance(optimizer, Optimizer):
            raise TypeError(f"{op}: expected an Optimizer, got {type(optimizer).__name__}")
        if optimizer in self._results:
            interrupted = "" if self._results[optimizer] is not None else ", and was interrupted"
            raise RuntimeError(
                f"{op}: this optimizer has stepped already{interrupted}; call update() at the end of the iteration"
            )
        self._tried = True

    def _wants_skip(self, optimizer: Optimizer) -> Any:
        """Whether the step of an optimizer whose gradients were looked at is to be skipped."""
        if self._on_device:
            return self._device_side().skip(optimizer)
        return self._verdicts[optimizer] is not None or self._bad_loss is not None

    def _first_overflow(self, op: str, optimizer: Optimizer, params: list[Parameter]) -> str | None:
        """The first parameter whose gradient is not finite, by name, or None. All must carry a loss scale."""
        self._require_scaled(op, optimizer, params)
        return self._first_nonfinite(optimizer, params)

    def _require_scaled(self, op: str, optimizer: Optimizer, params: list[Parameter]) -> None:
        for p in params:
            if p.grad_scale == 1 and self._scale != 1:
                raise RuntimeError(
                    f"{op}: the gradient of parameter {optimizer._label(p)} carries no loss scale: its loss was not "
                    "passed through scaler.scale"
                )

    def _first_nonfinite(self, optimizer: Optimizer, params: list[Parameter]) -> str | None:
        """The first parameter whose unscaled gradient is not finite; on a GPU the host is not told (None)."""
        if self._on_device:
            self._device_side().check(optimizer, params)
            return None
        with np.errstate(all="ignore"):
            return next((optimizer._label(p) for p in params if _overflows(p)), None)

    def _watch(self, on: bool) -> None:
        if self._watching is not None:
            self._watching.__exit__(None, None, None)
        self._witness = _Witness() if on else None
        self._watching = observe(self._witness) if self._witness else None
        if self._watching is not None:
            self._watching.__enter__()

    def _change(self, scale: float, reason: str) -> None:
        if scale != self._scale:
            self._scale = scale
            self._history.append((self._iteration, scale, reason))

    # ---- on a GPU

    def _stays_on_device(self) -> bool:
        """Whether a GPU can decide about S without the host."""
        return True

    def _dynamic(self) -> tuple | None:
        """(growth, backoff, interval, least, most) of a scaler that changes S; None for a constant S."""
        return None

    def _device_side(self) -> DeviceSide:
        if self._side is None:
            self._side = DeviceSide(self._scale, self._arrived)
            self._push()
        return self._side

    def _push(self) -> None:
        """Write what the host knows to the device."""
        assert self._side is not None
        counts = [self._iteration, getattr(self, "growth_tracker", 0), self._skips, self._bad_losses]
        host = np.array([*counts, len(self._history), 0], "int32")
        self._side.counts[...] = backend.gpu.asarray(host)
        self._side.scale.fill(self._scale)

    def _pull(self) -> None:
        """Fetch what the device knows; it waits for the device."""
        if self._side is None:
            return
        counts = backend.to_cpu(self._side.counts)
        for iteration, scale, reason in self._side.changes_since(len(self._history)):
            why = f"overflow in {self._side.label(reason)}" if reason >= 0 else self._growth_reason()
            self._history.append((iteration, scale, why))
        self._scale = float(self._side.factor)
        self._iteration, tracker = int(counts[ITERATION]), int(counts[GROWTH_TRACKER])
        self._skips, self._bad_losses = int(counts[SKIPS]), int(counts[BAD_LOSSES])
        if self._dynamic() is not None:
            vars(self)["growth_tracker"] = tracker

    def _growth_reason(self) -> str:
        return "growth"

    def _arrived(self, counts: np.ndarray) -> None:
        """The counts of some steps ago: at a limit, raise; just before it, have the ops of the next steps watched."""
        assert self._side is not None
        skips, bad_losses = int(counts[SKIPS]), int(counts[BAD_LOSSES])
        witness = self._witness
        if bad_losses >= self.max_nonfinite_losses:
            self._side.counts[BAD_LOSSES] = 0
            self._watch(False)
            raise FloatingPointError(
                f"the loss is not finite in at least {bad_losses} iterations in a row; a smaller loss scale does not "
                f"help. Where it arose: {_find_out(witness.first_nonfinite if witness else None)}"
            )
        if skips >= self.max_consecutive_skips:
            self._side.counts[SKIPS] = 0
            self._watch(False)
            raise FloatingPointError(
                f"the gradients overflow in at least {skips} iterations in a row though the loss is finite. The first "
                f"parameter: {self._side.label(counts[OVERFLOWED])}. Where it arose: "
                f"{_find_out(witness.overflow if witness else None)}"
            )
        wanted = skips + 1 >= self.max_consecutive_skips or bad_losses > 0
        if wanted is not (witness is not None):
            self._watch(wanted)

    # ---- looking and saving

    @property
    def iteration(self) -> int:
        """How many `update`s there have been."""
        self._pull()
        return self._iteration

    @property
    def history(self) -> list[tuple[int, float, str]]:
        """(iteration, new scale, reason) of every change of S."""
        self._pull()
        return self._history

    _least, _most = 0.0, math.inf  # between which S stays

    def get_scale(self) -> float:
        """The S by which `scale` multiplies now. (On a GPU it waits for the device.)"""
        self._pull()
        return self._scale

    def __repr__(self) -> str:
        scale, changes = self.get_scale(), len(self.history)
        return f"{type(self).__name__}(scale={scale:g}, after {self.iteration} iterations and {changes} changes)"

    def state_dict(self) -> dict[str, Any]:
        """What it takes to go on after a restart: S, the iteration, the history, and the counts behind S."""
        self._pull()
        counts = {name: getattr(self, name) for name in self._saved}
        return {"scale": self._scale, "iteration": self._iteration, **counts, "history": list(self._history)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over what `state_dict` of the same class returned, and begin a new iteration.

        TypeError and ValueError, which name the entry, if keys differ or a value cannot be; then nothing changes.
        """
        where = f"{self._name}.load_state_dict"
        same_keys(where, "state_dict", state_dict, self.state_dict())
        scale = loss_scale(where, "scale", state_dict["scale"], self._least)
        if scale > self._most:
            raise ValueError(f"{where}: expected `scale` to be at most {self._most:g}, got {scale:g}")
        iteration = whole(where, "iteration", state_dict["iteration"])
        counts = {name: check(where, name, state_dict[name]) for name, check in self._saved.items()}
        history = [_change(where, entry) for entry in _listed(where, state_dict["history"])]
        vars(self).update(counts, _scale=scale, _history=history, _iteration=iteration)  # all at once
        self._skips = self._bad_losses = 0
        self._begin()
        self._watch(False)
        if self._side is not None:
            self._side.end(None, False)
            self._push()


class NoLossScaler(LossScaler):
    """S = 1: the same loop without scaling. It too skips steps whose gradients are not finite."""

    def __init__(self, *, max_consecutive_skips: int = 10, max_nonfinite_losses: int = 3) -> None:
        super().__init__(1.0, max_consecutive_skips, max_nonfinite_losses)


class StaticLossScaler(LossScaler):
    """A constant S. MPT section 3.2 used 8 to 32 768; powers of two scale without rounding."""

    def __init__(self, scale: float, *, max_consecutive_skips: int = 10, max_nonfinite_losses: int = 3) -> None:
        super().__init__(scale, max_consecutive_skips, max_nonfinite_losses)


class DynamicLossScaler(LossScaler):
    """S grows until gradients overflow and backs off when they do (NVG section 2.3.2: N = 2000, x 2, x 1/2).

    init_scale              S at first: large, as the first overflows cost an iteration each and find the right one
    growth_factor           after growth_interval iterations in a row without overflow, S is multiplied by it
    backoff_factor          after an overflow, S is multiplied by it
    min_scale, max_scale    S stays within them; see MIN_SCALE and MAX_SCALE for the reasons
    max_consecutive_skips   by default as many as S needs to fall from max_scale to min_scale, and two at min_scale
    """

    _saved: ClassVar = {"growth_tracker": whole}

    def __init__(
        self,
        init_scale: float = 2.0**16,
        growth_factor: float = 2.0,
        backoff_factor: float = 0.5,
        growth_interval: int = 2000,
        *,
        min_scale: float = MIN_SCALE,
        max_scale: float = MAX_SCALE,
        max_consecutive_skips: int | None = None,
        max_nonfinite_losses: int = 3,
    ) -> None:
        name = type(self).__name__
        self.min_scale = loss_scale(name, "min_scale", min_scale)
        self.max_scale = loss_scale(name, "max_scale", max_scale, self.min_scale)
        self.growth_factor = number(name, "growth_factor", growth_factor, 1.0, above=True)
        self.backoff_factor = number(name, "backoff_factor", backoff_factor, 0, above=True)
        self.growth_interval = count(name, "growth_interval", growth_interval)
        self.growth_tracker = 0  # iterations without overflow since S last changed
        if self.backoff_factor >= 1:
            raise ValueError(f"{name}: expected `backoff_factor` to be below 1, got {backoff_factor!r}")
        if not self.min_scale <= number(name, "init_scale", init_scale, 0) <= self.max_scale:
            raise ValueError(f"{name}: expected `init_scale` in [{min_scale:g}, {max_scale:g}], got {init_scale!r}")
        if max_consecutive_skips is None:
            max_consecutive_skips = math.ceil(math.log(self.min_scale / self.max_scale, self.backoff_factor)) + 2
        self._least, self._most = self.min_scale, self.max_scale
        super().__init__(init_scale, max_consecutive_skips, max_nonfinite_losses)

    def _dynamic(self) -> tuple | None:
        return self.growth_factor, self.backoff_factor, self.growth_interval, self.min_scale, self.max_scale

    def _growth_reason(self) -> str:
        return f"{self.growth_interval} iterations without overflow"

    def _adjust(self, overflow: str | None) -> None:
        self.growth_tracker = 0 if overflow else self.growth_tracker + 1
        if overflow:
            self._change(max(self._scale * self.backoff_factor, self.min_scale), f"overflow in {overflow}")
        elif self.growth_tracker >= self.growth_interval:
            self.growth_tracker = 0
            larger = min(self._scale * self.growth_factor, self.max_scale)
            self._change(larger, self._growth_reason())


class ObservedLossScaler(LossScaler):
    """A constant picked from observed gradients: the largest power of two S with margin S max|g| < 65504 (MPT 3.2).

    For `observe` iterations S is init_scale, and every FP16 gradient of the backward pass is looked at: those of
    activations overflow too, and often first. Then S is fixed.

    init_scale   small: an overflow would hide the largest gradient, while an underflow hides only small ones. 8 is the
                 least that MPT needed. After an overflow it is divided by 16, if all gradients were 0 multiplied by 256
    margin       how much larger gradients may become later on
    """

    _saved: ClassVar = {
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

    def _stays_on_device(self) -> bool:
        return self.fixed

    def scale(self, loss: Tensor) -> Tensor:
        if not self.fixed and self._looking is None:
            self._looking = observe(self._peak)
            self._looking.__enter__()
        return super().scale(loss)

    def update(self, new_scale: None = None) -> None:
        self._look_away()
        try:
            super().update(new_scale)
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

    def _first_overflow(self, op: str, optimizer: Optimizer, params: list[Parameter]) -> str | None:
        if not self.fixed:
            for p in params:  # a weight that was used several times: its gradients have been summed on the way here
                self._peak.see(p.grad)
        return super()._first_overflow(op, optimizer, params)

    def _adjust(self, overflow: str | None) -> None:
        if self.fixed:
            return
        peak = self._peak.value
        if overflow or peak == math.inf:  # a ReLU can stop an infinite gradient before it reaches a weight
            where = overflow or "the gradient of an activation"
            self._change(max(self._scale / 16, MIN_SCALE), f"overflow in {where} while observing")
            return
        if peak is not None:
            self.largest = max(self.largest or 0.0, peak / self._scale)
        self.observed += 1
        if self.observed < self.observe:
            return
        if self.largest == 0 and self._scale < MAX_SCALE:
            self._change(min(self._scale * 256, MAX_SCALE), "all observed gradients were 0")
            self.observed = 0
            return
        self.fixed = True
        if self.largest:
            mantissa, exponent = math.frexp(FP16_MAX / (self.margin * self.largest))  # mantissa in [0.5, 1)
            scale = 2.0 ** (exponent - (1 if mantissa > 0.5 else 2))
            self._change(min(max(scale, MIN_SCALE), MAX_SCALE), f"observed max|g| = {self.largest:.3g}")


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


class _Witness(Observer):
    """Watches the ops of one iteration, to tell afterwards where the first infinity or NaN arose."""

    def __init__(self) -> None:
        # op -> where it ran, and for each of its arguments that is not finite the number of such values
        self.calls: WeakKeyDictionary[Op, tuple[str, dict[int, int]]] = WeakKeyDictionary()
        self.first_nonfinite: str | None = None  # the first op whose result is not finite
        self.overflow: str | None = None  # the first op whose backward gave a gradient that is not finite

    def ran(self, op: Op, inputs: tuple, outputs: tuple) -> None:
        if op.phase == "forward":
            shapes = ", ".join(f"{op.name_of(i)} {x.shape}" for i, x in enumerate(inputs) if hasattr(x, "shape"))
            bad = {i: n for i, n in enumerate(map(_nonfinite, inputs)) if n}
            self.calls[op] = f"{op.name}({shapes}) at {caller(sys._getframe())}", bad
            if self.first_nonfinite is None and (bad or any(map(_nonfinite, outputs))):
                self.first_nonfinite = self.cause(op)
        elif self.overflow is None and any(map(_nonfinite, outputs)):
            where, _ = self.calls.get(op, (op.name, {}))
            arrived = any(map(_nonfinite, inputs))
            how = "the sum of the gradients of the output of" if arrived else "the backward of"
            self.overflow = f"{how} {where}"

    def cause(self, op: Op | None) -> str:
        """Follow values that are not finite from the loss back to where they began."""
        if op is None or op not in self.calls:
            return "the loss was not computed by an op in this iteration"
        while True:
            where, bad = self.calls[op]
            edges = {i: op.edges[i] if op.edges else None for i in bad}
            makers = [edge[0] for edge in edges.values() if isinstance(edge, tuple) and edge[0] in self.calls]
            if not makers:
                break
            op = makers[0]
        if not bad:
            return f"{where}, whose arguments are finite"
        i, n = next(iter(bad.items()))
        leaf = edges[i]
        source = f"parameter `{leaf.name}`" if isinstance(leaf, Parameter) and leaf.name else "the data"
        return f"argument `{op.name_of(i)}` of {where} already holds {n} values that are not finite: {source}"


def _listed(where: str, history: Any) -> list:
    if not isinstance(history, (list, tuple)):
        raise TypeError(f"{where}: expected `history` to be a list, got {type(history).__name__}")
    return list(history)


def _change(where: str, entry: Any) -> tuple[int, float, str]:
    """An entry of a saved history."""
    if not isinstance(entry, (list, tuple)) or len(entry) != 3 or not isinstance(entry[2], str):
        raise TypeError(f"{where}: expected `history` to hold (iteration, scale, reason), got {entry!r}")
    return whole(where, "history", entry[0]), loss_scale(where, "history", entry[1]), entry[2]


def _find_out(cause: str | None) -> str:
    return cause or "unknown (a captured step cannot be watched: run it without capture to see)"


def _overflows(p: Parameter) -> bool:
    """Whether the gradient of p holds an infinity or a NaN, or will when it is unscaled: a scale below 1 hides it."""
    return not _isfinite(p.grad) or (float(p.grad_scale) < 1 and not _isfinite(unscaled(p)))


def _isfinite(g: Any) -> bool:
    """Whether a gradient holds neither an infinity nor a NaN."""
    values = values_of(g)
    return backend.of(values).isfinite(values)


def _nonfinite(x: Any) -> int:
    """How many values of x are infinite or NaN; 0 for what is not a floating array."""
    x = x.data if isinstance(x, Tensor) else values_of(x)
    if not hasattr(x, "dtype") or x.dtype not in FLOATING or _isfinite(x):
        return 0
    xp = backend.of(x).xp
    return int(xp.count_nonzero(~xp.isfinite(widen(x))))
