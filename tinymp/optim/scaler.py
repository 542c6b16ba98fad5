"""Loss scaling: gradients that FP16 would round to zero are shifted into its range (MPT section 3.2, NVG section 2.3).

Multiplying the loss by S multiplies every gradient of the backward pass by S, without another operation. The weight
gradients are divided by S, in FP32, before clipping, weight decay and the update use them. If S is too large, gradients
become infinite or NaN, never finite but wrong, and the step is skipped.

    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)                         # only if the gradients are read, as for clipping
    optim.clip_grad_norm_(model.parameters(), 1.0)
    result = scaler.step(optimizer)
    scaler.update()                                    # once per iteration
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from enum import Enum
from typing import Any, ClassVar, NamedTuple

import numpy as np

from .. import backend, statistics
from ..arguments import count, instance, listed, loss_scale, number, same_keys, tensor, whole
from ..autograd import Array, Op
from ..backend.extras import held
from ..dtypes import FLOATING, HALVES
from ..events import here, quietly, tell
from ..fast_path import replaceable
from ..gradients import values_of
from ..parameter import Parameter
from ..precision import LOSS
from ..tensor import Tensor
from .optimizer import Optimizer, unscaled
from .result import StepResult

# The backward pass starts from S, which below 2^-14 is subnormal in FP16 and loses bits. If gradients still overflow
# there, the scale is not the cause.
# At 2^24, gradients down to 2^-48 survive; MPT section 3.2 found those below 2^-27 irrelevant. Without a ceiling, a
# model whose gradients are all zero would double S until the loss overflows.
MIN_SCALE, MAX_SCALE = 2.0**-14, 2.0**24
WIDEN = "use ops.mse_loss, ..., or call .float() before its first op: behind it, what FP16 has lost stays lost"
ENDS = "call update() at the end of the iteration, also of one that was interrupted"
SEE = "docs/scalers.md says how to find the op and the line"


class State(NamedTuple):
    """All that a scaler remembers from one iteration to the next."""

    scale: float
    growth_tracker: int = 0  # iterations without overflow since S last changed
    skips: int = 0  # iterations in a row whose gradients overflowed
    bad_losses: int = 0  # iterations in a row whose loss was not finite


class Rule(NamedTuple):
    """The rule that changes S (NVG section 2.3.2, with N = 2000, x 2 and x 1/2). With the defaults S is constant.

    if there is an Inf or NaN in the weight gradients: reduce S
    if there has not been one in the last `interval` iterations: increase S
    """

    growth: float = 1.0
    backoff: float = 1.0
    interval: int = 1
    least: float = 0.0
    most: float = math.inf

    def __call__(self, state: State, overflow: Any, bad_loss: Any) -> State:
        """The state after an iteration. A GPU calls it with symbols: all cases are computed, then one is selected."""
        where: Any = np.where
        s, good = state.scale, state.growth_tracker + 1
        grown = good >= self.interval
        reduced = State(np.maximum(s * self.backoff, self.least), skips=state.skips + 1)
        increased = State(where(grown, np.minimum(s * self.growth, self.most), s), where(grown, 0, good))
        judged = [where(overflow, *either) for either in zip(reduced, increased)]
        kept = state._replace(bad_losses=state.bad_losses + 1)  # S is not the cause, and stays
        return State(*[where(bad_loss, *either) for either in zip(kept, judged)])


class ScaleLoss(Op):
    """y = S L;  dL = S dy. All further gradients carry the scale S, which backward notes in `grad_scale`."""

    kind = LOSS

    def forward(self, loss: Array, *, loss_scale: Any, scaler: LossScaler) -> Array:
        return self.device.map(lambda loss, s: loss * s, loss, getattr(loss_scale, "array", loss_scale))

    def backward(self, dy: Array) -> Array:
        return self.forward(dy, loss_scale=self.loss_scale, scaler=self.scaler)


class Kept:
    """The values of a scaler on the host. On a GPU an object with the same attributes holds them (gpu/scaler.py)."""

    factor: Any = property(lambda self: self.state.scale, doc="S, as `scale` multiplies by it.")

    def __init__(self, state: State, iteration: int = 0, history: Iterable = ()) -> None:
        self.state, self.iteration, self.history = state, iteration, [*history]


class Stage(Enum):
    """The last thing that happened to an optimizer in an iteration, as in PyTorch's GradScaler."""

    READY = "not yet looked at"
    UNSCALED = "unscaled"  # also if it was interrupted
    STEPPED = "stepped"  # also if it was interrupted


class Iteration:
    """The loss and the optimizers of one iteration."""

    bad_loss: float | None = None  # the first loss that is not finite
    skip: Any = False  # True if the last step was to be skipped; on a GPU it may be an array of one
    judged = False  # True if there were gradients

    def __init__(self) -> None:
        self.stages: dict[Optimizer, Stage] = {}
        self.overflows: dict[Optimizer, str | None] = {}  # the first parameters whose gradients are not finite


on_device = replaceable(lambda scaler: scaler._device)  # for methods that a GPU runs without the host


class LossScaler:
    """The base of loss scalers, which differ in their `rule`.

    max_consecutive_skips   `update` raises FloatingPointError after this many iterations in a row whose gradients
                            overflow although the loss is finite: this scale does not help, or none does
    max_nonfinite_losses    the same after this many iterations in a row with an infinite or NaN loss. Such iterations
                            are skipped even if their gradients are finite (log(-1) is NaN, its slope -1); S stays

    The errors name the first parameter whose gradient is not finite and, if gradients overflow, the op (unless the
    limit is 1). Model and optimizer stay as they are.

    state      S and the counts behind it. (They may be on a GPU: then reading them waits for it.)
    iteration  the number of `update`s
    history    (iteration, new scale, reason) of every change of S
    """

    rule = Rule()
    saved: ClassVar[tuple[str, ...]] = ()  # the counts of the state that a subclass adds to the state_dict
    _device = ""  # of the losses; a GPU checks its own
    _name = property(lambda self: type(self).__name__)

    def __init__(self, scale: float, max_consecutive_skips: int = 10, max_nonfinite_losses: int = 3) -> None:
        self._kept, self._now = Kept(State(loss_scale(self._name, "scale", scale))), Iteration()
        self.max_consecutive_skips = count(self._name, "max_consecutive_skips", max_consecutive_skips)
        self.max_nonfinite_losses = count(self._name, "max_nonfinite_losses", max_nonfinite_losses)

    state = property(lambda self: self._kept.state, doc="S and the counts behind it.")
    iteration = property(lambda self: self._kept.iteration, doc="The number of `update`s.")
    history = property(lambda self: self._kept.history, doc="(iteration, new scale, reason) of every change of S.")

    def get_scale(self) -> float:
        """The S by which `scale` multiplies now."""
        return self.state.scale

    # ---- the training step

    def scale(self, loss: Tensor) -> Tensor:
        """S times the loss, a scalar in FP32 (or FP64). Several losses may be scaled and added up.

        TypeError for an FP16 loss: it belongs in FP32 (NVG section 2.3.1). ValueError for more than one element.
        """
        if tensor("scale", "loss", loss).dtype not in FLOATING or loss.dtype in HALVES:
            raise TypeError(f"scale: expected the loss in FP32, got {loss.dtype}; {WIDEN}")
        if loss.array.size != 1:
            raise ValueError(f"scale: expected a scalar loss, got shape {loss.shape}; reduce it with .mean() or .sum()")
        if self._device != (device := backend.of(loss.array).name):
            self._device, self._kept = device, Kept(self.state, self.iteration, self.history)
        self.note_loss(loss)
        return ScaleLoss.apply(loss, loss_scale=self._kept.factor, scaler=self)

    def unscale_(self, optimizer: Optimizer) -> None:
        """Replace the optimizer's gradients by their values without the loss scale, in FP32.

        RuntimeError if they were never scaled, or for a second call before `update`.
        """
        params = self._looked_at("unscale_", optimizer)
        self._now.stages[optimizer] = Stage.UNSCALED
        quietly(self.find_overflow, optimizer, params, True)

    def step(self, optimizer: Optimizer, *, allow_missing: bool = False) -> StepResult:
        """`optimizer.step` with the unscaled gradients, if they and the iteration's losses are finite; else no change.

        Without `unscale_` before, each gradient is unscaled while its parameter is updated: never more than one of them
        is in FP32. RuntimeError for a second call before `update`, for gradients that were never scaled, and for the
        reasons of `Optimizer.step`.
        """
        params, ready = self._looked_at("step", optimizer), optimizer.ready(allow_missing)
        quietly(self.find_overflow, optimizer, params, False)  # also after unscale_: clipping may have changed them
        self._now.skip = self.should_skip(optimizer)
        self._now.stages[optimizer] = Stage.STEPPED
        return optimizer.finish(ready, self._now.skip)

    def update(self) -> None:
        """End the iteration: adjust S by the findings of `step` and `unscale_`, as PyTorch's GradScaler does.

        An interrupted step, or one that was omitted after `unscale_`, counts as made. RuntimeError without `step` or
        `unscale_`; FloatingPointError at a limit. The iteration ends even then.
        """
        now = self._now
        for optimizer, stage in now.stages.items():
            if stage is not Stage.STEPPED:
                now.skip = self.should_skip(optimizer)
        statistics.settle(now.skip)
        self._now = Iteration()
        if not now.stages:
            self.begin(self.state, self.iteration, self.history)
            raise RuntimeError("update: expected step(optimizer) before it, once per iteration")
        self.end(now)

    def _looked_at(self, op: str, optimizer: Optimizer) -> list[Parameter]:
        """The parameters with gradients, of an optimizer that has not stepped yet."""
        parameters = instance(op, "optimizer", optimizer, Optimizer).parameters()
        now, params = self._now, [p for p in parameters if p.grad_array is not None]
        stage = now.stages.get(optimizer, Stage.READY)
        if stage is Stage.STEPPED or (stage is Stage.UNSCALED and op == "unscale_"):
            raise RuntimeError(f"{op}: this optimizer has {stage.value} already; {ENDS}")
        scaled = stage is Stage.READY and self._kept.factor != 1
        for p in params:
            if (p.grad_scale != 1) is not scaled:
                late = f"was computed after unscale_; call that after the last backward(), and {ENDS}"
                why = "carries no loss scale: its loss was not passed through scaler.scale" if scaled else late
                raise RuntimeError(f"{op}: the gradient of parameter {optimizer.label(p)} {why}")
        now.judged = now.judged or bool(params)
        now.stages[optimizer] = stage
        return params

    # ---- decisions: here on the host; gpu/scaler.py makes them for losses on a GPU

    @on_device
    def begin(self, state: State, iteration: int, history: Iterable) -> None:
        """Begin a new iteration with this state, iteration number and history."""
        self._kept, self._now = Kept(state, iteration, history), Iteration()

    @on_device
    def note_loss(self, loss: Tensor) -> None:
        """Remember a loss that is not finite."""
        if self._now.bad_loss is None and not math.isfinite(value := loss.array.item()):
            self._now.bad_loss = value

    @on_device
    def find_overflow(self, optimizer: Optimizer, params: list[Parameter], unscale: bool) -> None:
        """Find gradients that are not finite without their scale; with `unscale` also divide them by it."""
        # unscaled where S < 1, which may hide an overflow
        gradients = (values_of(unscaled(p) if float(p.grad_scale) < 1 else p.grad_array) for p in params)
        bad = backend.of(values_of(params[0].grad_array)).first_bad(gradients) if params else None
        if bad is not None:
            self._now.overflows[optimizer] = self._now.overflows.get(optimizer) or optimizer.label(params[bad])
        for p in params if unscale else ():
            p.replace_grad(unscaled(p), 1.0)

    @on_device
    def should_skip(self, optimizer: Optimizer) -> Any:
        """True if the optimizer's step must be skipped, after `find_overflow`. The same in all processes."""
        now = self._now
        now.overflows[optimizer], now.bad_loss = here.agree((now.overflows.get(optimizer), now.bad_loss))
        return now.overflows[optimizer] is not None or now.bad_loss is not None

    @on_device
    def end(self, now: Iteration) -> None:
        """Apply the rule to S, if there were gradients, and check the limits."""
        kept, overflow = self._kept, next(filter(None, now.overflows.values()), None)
        scale = kept.state.scale
        if now.judged:
            self.adjust(overflow, now.bad_loss)
        self.look_at_limits(kept.state, overflow, scale, now.bad_loss)
        kept.iteration += 1

    def adjust(self, overflow: str | None, bad_loss: float | None = None) -> None:
        """Apply the rule after an iteration.

        overflow: the name of the first parameter that overflowed, if one did; bad_loss: a loss that is not finite.
        """
        rule, kept = self.rule, self._kept
        state = State(*[np.asarray(x).item() for x in rule(kept.state, overflow is not None, bad_loss is not None)])
        reason = f"overflow in {overflow}" if overflow else f"{rule.interval} iterations without overflow"
        changes = [(kept.iteration, state.scale, reason)] if state.scale != kept.state.scale else []
        kept.state, kept.history = state, kept.history + changes  # on one line: an interrupt finds both or neither

    def look_at_limits(self, state: State, overflow: str | None, scale: Any, loss: Any) -> None:
        """At a limit, reset the counts and raise FloatingPointError. One iteration before, open an observer that finds
        the op.
        """
        diverged = state.bad_losses >= self.max_nonfinite_losses
        if diverged or state.skips >= self.max_consecutive_skips:
            bad = f"the loss is {loss} in {state.bad_losses} iterations in a row; a smaller loss scale does not help"
            over = f"the gradients overflow in {state.skips} iterations in a row, at last with the loss scale "
            over += f"{float(scale):g}, though the loss is finite. The first parameter: {overflow}"
            problem = FloatingPointError(f"{bad if diverged else over}. {SEE}")
            tell("limited", problem)
            self.begin(self.state._replace(skips=0, bad_losses=0), self.iteration, self.history)
            raise problem
        if 0 < self.max_consecutive_skips - 1 <= state.skips:
            held("optim.scaler.watch_backward", lambda scaler: None)(self)

    # ---- saving

    def state_dict(self) -> dict[str, Any]:
        """S, the iteration, the history, and the counts behind S: enough to resume."""
        counts = {name: getattr(self.state, name) for name in self.saved}
        return {"scale": self.state.scale, "iteration": self.iteration, **counts, "history": [*self.history]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore a result of `state_dict` of the same class, and begin a new iteration.

        TypeError and ValueError, which name the entry, if keys differ or a value is invalid; then nothing changes.
        """
        where = f"{self._name}.load_state_dict"
        same_keys(where, "state_dict", state_dict, {"scale", "iteration", *self.saved, "history"})
        scale = loss_scale(where, "scale", state_dict["scale"], self.rule.least, self.rule.most)
        counts = {name: whole(where, name, state_dict[name]) for name in ("iteration", *self.saved)}
        history = [
            tuple(listed(where, "history", change)) for change in listed(where, "history", state_dict["history"])
        ]
        if any(len(change) != 3 for change in history):
            raise ValueError(f"{where}: expected `history` to list iterations, scales and reasons, got {history!r}")
        self.begin(State(scale, *[counts[name] for name in self.saved]), counts["iteration"], history)

    def __getstate__(self) -> dict[str, Any]:
        """For copies and pickles, which may be made at any time: they begin a new iteration, on the host."""
        kept = Kept(self.state, self.iteration, self.history)
        return {**vars(self), "_kept": kept, "_now": Iteration(), "_device": ""}


class NoLossScaler(LossScaler):
    """S = 1: the same loop without scaling. It also skips steps whose gradients are not finite."""

    def __init__(self, *, max_consecutive_skips: int = 10, max_nonfinite_losses: int = 3) -> None:
        super().__init__(1.0, max_consecutive_skips, max_nonfinite_losses)


class StaticLossScaler(LossScaler):
    """A constant S. MPT section 3.2 used 8 to 32 768; powers of two scale without rounding."""


class DynamicLossScaler(LossScaler):
    """S grows until gradients overflow and backs off when they do: see `Rule`.

    init_scale              the first S: large, because each overflow at the start costs one iteration, and finds S
    growth_factor           after growth_interval iterations in a row without overflow, S is multiplied by it
    backoff_factor          after an overflow, S is multiplied by it
    min_scale, max_scale    S stays within them; see MIN_SCALE and MAX_SCALE for the reasons
    max_consecutive_skips   by default as many as S needs to fall from max_scale to min_scale, and two at min_scale
    """

    saved: ClassVar = ("growth_tracker",)

    def __init__(
        self, init_scale: float = 2.0**16, growth_factor: float = 2.0, backoff_factor: float = 0.5,
        growth_interval: int = 2000, *, min_scale: float = MIN_SCALE, max_scale: float = MAX_SCALE,
        max_consecutive_skips: int | None = None, max_nonfinite_losses: int = 3,
    ) -> None:  # fmt: skip
        name = self._name
        self.min_scale = loss_scale(name, "min_scale", min_scale)
        self.max_scale = loss_scale(name, "max_scale", max_scale, self.min_scale)
        self.growth_factor = number(name, "growth_factor", growth_factor, 1.0, above=True)
        self.backoff_factor = number(name, "backoff_factor", backoff_factor, 0, above=True)
        self.growth_interval = count(name, "growth_interval", growth_interval)
        if self.backoff_factor >= 1:
            raise ValueError(f"{name}: expected `backoff_factor` to be below 1, got {backoff_factor!r}")
        loss_scale(name, "init_scale", init_scale, self.min_scale, self.max_scale)
        if max_consecutive_skips is None:
            max_consecutive_skips = math.ceil(math.log(self.min_scale / self.max_scale, self.backoff_factor)) + 2
        super().__init__(init_scale, max_consecutive_skips, max_nonfinite_losses)

    @property
    def rule(self) -> Rule:  # type: ignore[override]
        return Rule(self.growth_factor, self.backoff_factor, self.growth_interval, self.min_scale, self.max_scale)

    growth_tracker = property(lambda self: self.state.growth_tracker, doc="See `State`.")
