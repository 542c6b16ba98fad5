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
from typing import Any, ClassVar

from .. import backend, statistics
from ..arguments import count, loss_scale, number, refuse, tensor, whole
from ..autograd import Array, Op
from ..dtypes import FLOATING, HALVES
from ..events import here, quietly
from ..memory import explained
from ..parameter import Parameter
from ..precision import LOSS
from ..sparse import isfinite
from ..tensor import Tensor
from .device_scaler import DeviceSide
from .optimizer import Optimizer, unscaled
from .result import StepResult
from .scaler_state import ScalerState
from .witness import UNWATCHED, Witness, nonfinite_loss, too_many_skips

# Below 2^-14, the smallest normal FP16 number, S itself, the gradient with which the backward pass starts, would lose
# bits in FP16: an overflow that remains there is not one that scaling cures.
MIN_SCALE = 2.0**-14
# At 2^24, gradients down to 2^-48 survive; MPT section 3.2 found those below 2^-27 irrelevant. Without a ceiling, a
# model whose gradients are all zero would double S until the loss overflows.
MAX_SCALE = 2.0**24
ENDS = "call update() at the end of the iteration, also of one that was interrupted"


class ScaleLoss(Op):
    """y = S L;  dL = S dy. Gradients behind it carry the scale S, and `Tensor.backward` notes that beside each."""

    kind = LOSS

    def forward(self, loss: Array, *, scale: Any, scaler: LossScaler) -> Array:
        self.loss_scale = scale
        return loss * scale

    def backward(self, dy: Array) -> Array:
        return dy * self.loss_scale


class HostSide:
    """Judges the losses and gradients of one iteration on the host. device_scaler.py has its counterpart for a GPU.

    overflows  per optimizer that was looked at, the first parameter whose gradient is not finite, by name, or None
    bad_loss   the first loss that is not finite, and where it arose; None: all are finite
    """

    def __init__(self) -> None:
        self.overflows: dict[Optimizer, str | None] = {}
        self.bad_loss: tuple[float, str] | None = None

    def note_loss(self, loss: Tensor, witness: Witness | None) -> None:
        """Remember whether this loss is not finite."""
        if self.bad_loss is None and not math.isfinite(loss.item()):
            self.bad_loss = loss.item(), witness.cause(loss.grad_fn) if witness else UNWATCHED

    def check(self, optimizer: Optimizer, params: list[Parameter]) -> None:
        """Look for gradients that, without their scale, are not finite."""
        if self.overflows.get(optimizer) is None:
            first = quietly(next, (p for p in params if _overflows(p)), None)
            self.overflows[optimizer] = None if first is None else optimizer.label(first)

    def unscale(self, optimizer: Optimizer, params: list[Parameter]) -> None:
        """The same, and replace the gradients by unscaled ones, in FP32."""
        self.check(optimizer, params)
        for p in params:
            g = quietly(unscaled, p)
            g = g if p.grad_scale != 1 else g.copy()
            p.grad, p.grad_scale = g, 1.0  # on one line: an interrupt finds both or neither

    def skip(self, optimizer: Optimizer) -> bool:
        """Whether to skip the step of an optimizer whose gradients were looked at. All processes agree."""
        if here.group is not None:
            self.overflows[optimizer], self.bad_loss = here.group.agreed(self.overflows.get(optimizer), self.bad_loss)
        return self.overflows.get(optimizer) is not None or self.bad_loss is not None


class LossScaler(ScalerState):
    """What all loss scalers share; they differ in `adjust`, which decides about S after every iteration.

    max_consecutive_skips   after this many iterations in a row whose gradients overflow although the loss is finite,
                            `update` raises FloatingPointError: no scale, or not this one, helps
    max_nonfinite_losses    likewise after this many iterations in a row with an infinite or NaN loss. Such iterations
                            are skipped even if their gradients are finite (log(-1) is NaN, its slope -1); S stays

    The error names the parameter, the op and the line of the program where the first such value arose. To find it, the
    iterations after a non-finite loss are watched, and the one that may reach max_consecutive_skips, which takes time.
    The error leaves model, optimizer and S as they are.

    history    (iteration, new scale, reason) of every change of S
    iteration  how many `update`s there have been

    On a GPU nothing of this waits for the host: S, the verdicts and the counts stay on the device (device_scaler.py),
    `step` returns a result that is looked up when somebody asks, reading S or the history waits, and a limit that was
    reached raises some steps late. (ObservedLossScaler, which looks at every gradient, does wait until S is fixed.)
    """

    def __init__(self, scale: float, max_consecutive_skips: int, max_nonfinite_losses: int) -> None:
        super().__init__(scale, max_consecutive_skips, max_nonfinite_losses)
        self._begin()

    def _begin(self) -> None:
        """Forget what belongs to one iteration."""
        self._side: HostSide | DeviceSide = HostSide()  # where this iteration's losses and gradients are judged
        self._judged: list[Optimizer] = []  # whose gradients were looked at
        self._results: dict[Optimizer, StepResult | None] = {}  # stepped so far; None: that was interrupted
        self._tried = False  # whether an optimizer was to be unscaled or to step
        self._skip: Any = False  # whether the last step was to be skipped; on a GPU an array of one

    # ---- what a subclass decides

    def adjust(self, overflow: str | None) -> None:
        """Reconsider S after an iteration: `overflow` names the first parameter that overflowed, None if none did."""

    def stays_on_device(self) -> bool:
        """Whether a GPU can decide about S without the host."""
        return True

    # ---- the training step

    def scale(self, loss: Tensor) -> Tensor:
        """S times the loss, a scalar in FP32 (or FP64). Several losses may be scaled and added up.

        TypeError for an FP16 loss: it belongs in FP32 (NVG section 2.3.1). ValueError for more than one element.
        """
        if tensor("scale", "loss", loss).dtype not in FLOATING or loss.dtype in HALVES:
            raise TypeError(f"scale: expected the loss in FP32, got {loss.dtype}; the losses of tinymp.ops return FP32")
        if loss.array.size != 1:
            raise ValueError(f"scale: expected a scalar loss, got shape {loss.shape}; reduce it with .mean() or .sum()")
        factor: Any = self._scale
        if backend.of(loss.array) is backend.gpu and self.stays_on_device():
            self._side = device = self._on_device()
            factor = self._scale if self.dynamic is None else device.factor
        self._side.note_loss(loss, self._witness)
        return ScaleLoss.apply(loss, scale=factor, scaler=self)

    @explained("unscale_", "leave it out: step() unscales one gradient at a time", "use a smaller model")
    def unscale_(self, optimizer: Optimizer) -> None:
        """Replace the optimizer's gradients by their values without the loss scale, in FP32.

        RuntimeError if they were never scaled, or for a second call before `update`.
        """
        self._expect_new("unscale_", optimizer)
        if optimizer in self._judged:
            raise RuntimeError(f"unscale_: called twice for one optimizer; {ENDS}")
        params = [p for p in optimizer.parameters() if p.grad is not None]
        self._require_scaled("unscale_", optimizer, params)
        self._judged.append(optimizer)
        self._side.unscale(optimizer, params)

    def step(self, optimizer: Optimizer, *, allow_missing: bool = False) -> StepResult:
        """`optimizer.step` with the unscaled gradients, if they and the iteration's losses are finite; else no change.

        Without `unscale_` before, each gradient is unscaled while its parameter is updated, so that there is never
        more than one of them in FP32. RuntimeError for a second call before `update`, for gradients that were never
        scaled, and for what `Optimizer.step` refuses.
        """
        self._expect_new("step", optimizer)
        ready = optimizer.ready(allow_missing)
        params = [p for _, p in ready]
        if optimizer not in self._judged:
            self._require_scaled("step", optimizer, params)
            self._judged.append(optimizer)
        elif any(p.grad_scale != 1 for p in params):
            raise RuntimeError(
                "step: gradients were computed after unscale_ or a step that was interrupted; call unscale_ after the "
                f"last backward(), and {ENDS}"
            )
        self._side.check(optimizer, params)  # also behind unscale_: what was done since, clipping say, may break them
        self._skip = self._side.skip(optimizer)
        self._results[optimizer] = None
        self._results[optimizer] = result = optimizer.finish(ready, self._skip)
        return result

    def update(self, new_scale: None = None) -> None:
        """End the iteration: adjust S by what `step` and `unscale_` found, as PyTorch's GradScaler does.

        A step that was interrupted, or that was left out after `unscale_`, counts like one that was made. RuntimeError
        if there was neither `step` nor `unscale_`; FloatingPointError at a limit. The iteration has ended even then.
        """
        refuse("update", new_scale=new_scale)
        side, tried = self._side, self._tried
        judged = [o for o in self._judged if self._results.get(o) is not StepResult.NO_GRADIENTS]
        left_out = [o for o in self._judged if o not in self._results]
        statistics.settle(side.skip(left_out[-1]) if left_out else self._skip)
        self._begin()
        if isinstance(side, DeviceSide):  # scaler.cu applies the rules below
            side.end(self.dynamic, bool(judged))
        if not tried:
            raise RuntimeError("update: expected step(optimizer) before it, once per iteration")
        if isinstance(side, HostSide):
            overflow = next((name for o in judged if (name := side.overflows.get(o)) is not None), None)
            self._conclude(bool(judged), overflow, side.bad_loss)

    def _conclude(self, judged: bool, overflow: str | None, bad_loss: tuple[float, str] | None) -> None:
        """What an iteration means for S and for the limits. judged: whether there were gradients to look at."""
        cause = (seen.overflow or "the sum of its gradients") if (seen := self._witness) else UNWATCHED
        self._watch(False)
        if judged and bad_loss is not None:
            self._bad_losses += 1
            if self._bad_losses >= self.max_nonfinite_losses:
                times, self._bad_losses = self._bad_losses, 0
                raise nonfinite_loss(f"{bad_loss[0]:g}", f"{times}", bad_loss[1])
        elif overflow is not None:
            self._skips, self._bad_losses = self._skips + 1, 0
            if self._skips >= self.max_consecutive_skips:
                times, self._skips = self._skips, 0
                raise too_many_skips(f"{times}", f", at last with the loss scale {self._scale:g},", overflow, cause)
            self.adjust(overflow)
            self._stuck += self._scale == self._least
        elif judged:
            self._skips = self._bad_losses = 0
            self.adjust(None)
        self._ended(overflow, cause)

    def _expect_new(self, op: str, optimizer: Optimizer) -> None:
        if not isinstance(optimizer, Optimizer):
            raise TypeError(f"{op}: expected an Optimizer, got {type(optimizer).__name__}")
        if optimizer in self._results:
            interrupted = "" if self._results[optimizer] is not None else ", and was interrupted"
            raise RuntimeError(f"{op}: this optimizer has stepped already{interrupted}; {ENDS}")
        self._tried = True

    def _require_scaled(self, op: str, optimizer: Optimizer, params: list[Parameter]) -> None:
        for p in params:
            if p.grad_scale == 1 and self._scale != 1:
                raise RuntimeError(
                    f"{op}: the gradient of parameter {optimizer.label(p)} carries no loss scale: its loss was not "
                    "passed through scaler.scale"
                )


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
    max_consecutive_skips   by default as many as S needs to fall from max_scale to min_scale, and two at min_scale.
                            After as many overflows at min_scale, in a row or not, without growth, `update` warns
    """

    saved: ClassVar = {"growth_tracker": whole}

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

    @property
    def dynamic(self) -> tuple:  # type: ignore[override]
        return self.growth_factor, self.backoff_factor, self.growth_interval, self.min_scale, self.max_scale

    def growth_reason(self) -> str:
        return f"{self.growth_interval} iterations without overflow"

    def adjust(self, overflow: str | None) -> None:
        self.growth_tracker = 0 if overflow else self.growth_tracker + 1
        if overflow:
            self.change(max(self._scale * self.backoff_factor, self.min_scale), f"overflow in {overflow}")
        elif self.growth_tracker >= self.growth_interval:
            self.growth_tracker = 0
            self.change(min(self._scale * self.growth_factor, self.max_scale), self.growth_reason())


def _overflows(p: Parameter) -> bool:
    """Whether the gradient of p holds an infinity or a NaN, or will when it is unscaled: a scale below 1 hides it."""
    return not isfinite(p.grad) or (float(p.grad_scale) < 1 and not isfinite(unscaled(p)))
