"""The history of the loss scale, and why steps were skipped: found by running the backward pass again.

A pass that left an infinity or NaN in the gradient of a weight is kept until the next iteration. If the step is
skipped, it runs again with the same saved arrays: with the loss scale S as it was, to see where it overflows; at the
smallest S, to see whether any scale would do; and at ever smaller ones, up to that which would have fitted.
"""

from __future__ import annotations

import math
import weakref
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from .. import backend
from ..autograd import Op
from ..events import here
from ..optim.optimizer import Optimizer
from ..optim.result import StepResult
from ..optim.scaler import MIN_SCALE, SEE, NoLossScaler, ScaleLoss
from ..parameter import Parameter
from ..precision import current_policy
from ..tensor import Tensor
from .listener import PLACE, Instrument, Place
from .replay import Pass, Replay, overflowed
from .sampling import Told, nonfinite

SHOWN = 20  # causes in the text


@dataclass
class Cause:
    """Why a step was skipped.

    cause          "loss scale too high", "backward overflow" (whatever the scale), "forward overflow", "not finite in
                   the forward pass" (such as log(0)), "input not finite", "gradients changed" or "unknown"
    value          the finite number that became infinite when it was rounded; None where none did
    largest_scale  the largest power of two that would have fitted; None unless the scale was too high
    text           all of it in a sentence
    module, ...    where it happened first, see `Place`
    """

    iteration: int
    scale: float
    cause: str
    value: float | None = None
    largest_scale: float | None = None
    module: str = ""
    op: str = ""
    phase: str = ""
    where: str = ""
    caller: str = ""
    text: str = ""


class Event(NamedTuple):
    """An op of a forward pass whose results are not finite: what it would be the `cause` of; see `Cause`."""

    place: Place
    cause: str
    why: str
    value: float | None = None


class Scales(Told, Instrument):
    """Keeps the loss scales that were used, and explains every skipped step. A NoLossScaler uses none.

    history  (iteration, S) of all scalers, in order: where S changed, and the last before a change
    skipped  the iterations without an update, of any optimizer
    causes   for each skipped step a `Cause`
    first    the first op of this iteration's forward passes whose results were not finite, as an `Event`, or None
    """

    def __init__(self) -> None:
        self.causes: list[Cause] = []
        # By the line that has a loss scaled: (iteration, S) where S changed, and before that; S since the last step
        self._points: dict[str, list[tuple[int, float]]] = {}
        self._since: dict[str, float] = {}
        self._scaled: weakref.WeakKeyDictionary[Op, tuple[float, bool]] = weakref.WeakKeyDictionary()  # S, bad loss?
        self._overflow: tuple[Place, float] | None = None  # the first within the op that is running
        self._current: Pass | None = None
        self._stepped = False
        self._begin()

    def _begin(self) -> None:
        self._passes: list[Pass] = []
        self._events: weakref.WeakKeyDictionary[Op, Event] = weakref.WeakKeyDictionary()
        self.first: Event | None = None
        self._input: Event | None = None
        self._seen = False  # a backward pass

    # ---- what happens

    def rounded(self, place: Place, x: Any, y: Any) -> None:
        if place.phase == "forward" and self._overflow is None and not backend.of(y).isfinite(y):
            value = overflowed(x, y)
            self._overflow = None if value is None else (place, value)

    def ran(self, place: Place, op: Op, inputs: tuple, outputs: tuple) -> None:
        if place.phase == "forward":
            self._forward(place, op, inputs, outputs)
        else:
            self._backward(op)

    def _forward(self, place: Place, op: Op, inputs: tuple, outputs: tuple) -> None:
        self._end_pass()
        if self._stepped:
            self._stepped = False
            self._begin()
        if op.loss_scale is not None:
            self._scaled[op] = float(op.loss_scale), any(map(nonfinite, inputs))
            if isinstance(op, ScaleLoss) and not isinstance(op.options["scaler"], NoLossScaler):
                self._since[place.caller] = self._scaled[op][0]
        overflow, self._overflow = self._overflow, None
        if overflow is not None:
            why = f"{_became(overflow[1])}; no loss scale cures that"
            event = Event(overflow[0], "forward overflow", why, overflow[1])
        elif not any(map(nonfinite, outputs)):
            return
        elif not any(map(nonfinite, inputs)):
            nan = any(backend.of(y).xp.isnan(y).any() for y in outputs if nonfinite(y))
            why = f"{'a NaN' if nan else 'an infinity'} from finite arguments"
            event = Event(place, "not finite in the forward pass", why)
        else:
            i, x = next(((i, x) for i, x in enumerate(inputs) if hasattr(x, "dtype") and nonfinite(x)), (0, None))
            own = f"parameter {self.listener.name_of(x)}" if isinstance(x, Parameter) else f"argument `{op.name_of(i)}`"
            self._input = self._input or Event(place, "input not finite", f"{own} holds infinities or NaNs already")
            return
        self._events[op] = event
        self.first = self.first or event

    def _backward(self, op: Op) -> None:
        if self._current is None or self._current.run is not here.backward:
            self._end_pass()
            self._current = Pass(here.backward, current_policy())
        p, self._seen = self._current, True
        p.ops[op] = op.saved, op.statistics
        if op in self._scaled:
            p.scale, bad_loss = self._scaled[op]
            p.bad_loss |= bad_loss

    def deposited(self, leaf: Tensor, gradient: Any, scale: Any) -> None:
        if self._current is not None and nonfinite(gradient):
            self._current.bad.add(id(leaf))

    def _end_pass(self) -> None:
        if self._current is not None and (self._current.bad or self._current.bad_loss):
            self._passes.append(self._current)
        self._current = None

    def stepped(self, optimizer: Optimizer, result: StepResult) -> None:
        self._end_pass()
        self._stepped = True
        iteration = self.listener.iteration
        for caller, scale in self._since.items():
            points = self._points.setdefault(caller, [])
            if len(points) > 1 and points[-1][1] == points[-2][1] == scale:
                points.pop()  # of a plateau only the ends are kept
            if points[-1:] != [(iteration, scale)]:  # equal for a GAN's second loss, for example
                points.append((iteration, scale))
        scale, self._since = max(self._since.values(), default=1.0), {}
        if result is StepResult.SKIPPED:
            cause = Cause(iteration, scale, "unknown", text="its backward pass was not seen")
            if self._seen:
                _tell(cause, "gradients changed", None, "they were finite after the backward pass")
            self._explain(cause, {id(p) for p in optimizer.parameters()})
            self.causes.append(cause)

    def limited(self, problem: Exception) -> None:
        """Say in a scaler's error which op overflowed first in the step that it skipped last, and at which line."""
        if self._stepped and self.causes:
            problem.args = (str(problem).replace(SEE, f"Where it arose: {self.causes[-1].text}"),)

    # ---- why

    def _explain(self, cause: Cause, wanted: set[int]) -> None:
        passes = [p for p in self._passes if p.bad & wanted or p.bad_loss]
        if not passes:
            return
        p = passes[0]
        cause.scale = p.scale
        if p.bad_loss:
            self._blame_forward(cause, p)
            return
        try:
            self._explain_backward(cause, p, wanted)
        except RuntimeError as error:  # for example, a weight was changed after the pass
            _tell(cause, "unknown", None, f"the backward pass cannot be run again: {error}")

    def _explain_backward(self, cause: Cause, p: Pass, wanted: set[int]) -> None:
        def at(scale: float) -> Replay:
            return Replay(self.listener, p, scale / p.scale, wanted)

        was, least = at(p.scale), at(MIN_SCALE)
        if was.finite:
            _tell(cause, "unknown", was.place, "the backward pass is finite when it is run again")
        elif not least.finite and any(op in self._events for op in p.ops):
            self._blame_forward(cause, p)
        elif not least.finite:
            cause.value = least.value
            _tell(
                cause,
                "backward overflow",
                least.place,
                f"{_became(least.value)}, whatever the loss scale{least.growth(least.place)}",
            )
        else:
            best = 2.0 ** (math.ceil(math.log2(p.scale)) - 1)  # the largest power of two below it
            while not (fits := at(best)).finite:
                best /= 2
            cause.value, cause.largest_scale = was.value, best
            largest = f"at S = 1 the largest gradient is {_number(fits.largest / best)}"
            text = f"{_became(was.value)}; {largest}; up to S = {_number(best)} it fits"
            _tell(cause, "loss scale too high", was.place, text + fits.growth(was.place))

    def _blame_forward(self, cause: Cause, p: Pass) -> None:
        """Name the first op in forward that made an infinity or NaN, if possible one that the loss depends on."""
        behind = sorted([op for op in p.ops if op in self._events], key=lambda op: op.sequence)
        event = self._events[behind[0]] if behind else self.first or self._input
        if event is not None:
            cause.value = event.value
            _tell(cause, event.cause, event.place, event.why)

    # ---- what it found

    @property
    def history(self) -> list[tuple[int, float]]:
        """(iteration, S) of all scalers, in order: where S changed, and the last before a change."""
        return sorted({point for points in self._points.values() for point in points})

    @property
    def skipped(self) -> list[int]:
        """The iterations in which an optimizer skipped its step."""
        return sorted({cause.iteration for cause in self.causes})

    def as_dict(self) -> dict[str, Any]:
        """History, skipped iterations and causes."""
        own = {"history": self.history, "skipped": self.skipped, "causes": [asdict(cause) for cause in self.causes]}
        return own | {"iterations": self.listener.iterations}

    def parts(self) -> list[str]:
        ends = [(points[0][1], points[-1][1]) for points in self._points.values()]
        used = [f"{_number(first)} at first, {_number(last)} at last" for first, last in dict.fromkeys(ends)]
        lines = [f"loss scale: {'; '.join(used) or 'none was used'}"]
        if ends or self.causes:
            lines[0] += f"; {len(self.skipped)} of {self.listener.iterations} iterations skipped"
        lines += [f"iteration {c.iteration}, S = {_number(c.scale)}: {c.text}" for c in self.causes[:SHOWN]]
        return [*lines, *[f"... and {len(self.causes) - SHOWN} more"] * (len(self.causes) > SHOWN)]

    def draw(self, axes: Any) -> None:
        """The scale over the iterations on matplotlib's axes, with a cross at each skipped step."""
        for caller, points in self._points.items():
            axes.step(*zip(*points), where="post", label=caller)
        if self.causes:
            points = [(cause.iteration, cause.scale) for cause in self.causes]
            axes.plot(*zip(*points), "x", color="tab:red", label="skipped")
        axes.set_yscale("log", base=2)
        axes.set(xlabel="iteration", ylabel="loss scale")
        axes.legend()


def _became(value: float | None) -> str:
    return "infinite or NaN" if value is None else f"the value {_number(value)} became infinite"


def _number(x: float) -> str:
    """Whole numbers from 1,000 to 1e9 (loss scales) in full, else four digits."""
    return f"{x:,.0f}" if 1000 <= abs(x) < 1e9 else f"{x:.4g}"


def _tell(cause: Cause, what: str, place: Place | None, why: str) -> None:
    cause.cause, at = what, ""
    if place is not None:
        for name in PLACE:
            setattr(cause, name, getattr(place, name))
        spot = ", ".join([part for part in (place.module, place.caller, place.where) if part])
        at = f" in {'the backward of ' if place.phase == 'backward' else ''}{place.op} ({spot})"
    cause.text = f"{what}{at}: {why}"
