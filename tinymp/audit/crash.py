"""When the loss or a weight first stopped being finite, and the first op that made a NaN."""

from __future__ import annotations

import math
from typing import Any

from .. import backend
from ..autograd import Op
from ..dtypes import FLOATING
from ..parameter import Parameter
from .first import because
from .listener import Instrument, Place, begins_backward
from .numbers import number
from .sampling import Told, array_in, nonfinite
from .scales import Scales

STOPS = ("nan", "inf")


class Crash(Told, Instrument):
    """Keeps what happened when the loss or a weight first stops being finite, or an error ends the audit.

    scales   the instrument that knows the first infinity of a forward pass
    stop_at  "nan": FloatingPointError at the first op whose result has a NaN though nothing that it was given has one;
             "inf": the same for infinities and NaN. In backward only where gradients carry no loss scale

    found    "what" happened, in which "iteration", and "first": the first op of that iteration whose results were not
             finite ("" if none was heard). None so long as nothing happened
    """

    def __init__(self, scales: Scales, stop_at: str | None = None) -> None:
        if stop_at is not None and stop_at not in STOPS:
            raise ValueError(f"audit: expected stop_at to be 'nan', 'inf' or None, got {stop_at!r}")
        self.scales, self.stop_at = scales, stop_at
        self.found: dict[str, Any] | None = None
        # the iteration, and the first op of its backward whose results were not finite
        self._first: tuple[int, Place | None] = 0, None

    def ran(self, place: Place, op: Op, inputs: tuple, outputs: tuple) -> None:
        backward = place.phase == "backward"
        if backward and begins_backward(op) and self.listener.loss and not math.isfinite(self.listener.loss[0]):
            self.keep(f"the loss became {self.listener.loss[0]:g}")
        if backward and self.listener.scale != 1:
            return  # the scaler deals with it
        if backward and self.found is None and not self._first_backward() and any(map(nonfinite, outputs)):
            self._first = self.listener.iteration, place
        bad = _nans if self.stop_at == "nan" else nonfinite
        if self.stop_at is not None and any(map(bad, outputs)) and not any(map(bad, inputs)):
            what = "NaN" if any(map(_nans, outputs)) else "infinity"
            sizes = ", ".join(number(float(abs(x).max())) for x in map(array_in, inputs) if _has_numbers(x))
            text = f"{_named(place)} made the first {what}, from arguments of magnitudes up to {sizes or 'none'}"
            self.keep(text)
            raise FloatingPointError(f"audit: {text}")

    def written(self, place: Place, parameter: Parameter, value: Any) -> None:
        if place.phase == "update" and self.found is None and nonfinite(value):
            self.keep(f"the weight {place.module} became infinite or NaN")

    def keep(self, what: str) -> None:
        """Keep what happened, if nothing has happened before."""
        if self.found is None:
            backward, event, hidden = self._first_backward(), self.scales.first, ""
            at = backward or (event and event.place)
            if backward and event and (event.place.op, event.place.caller) == (backward.op, backward.caller):
                at, hidden = event.place, "; the loss does not show it, the backward pass does"
            rounded = event is not None and event.value is not None and not backward
            known = because(at.op, at.phase) if at and not rounded else ""
            first = _named(at) + known + hidden if at else ""
            self.found = {"what": what, "iteration": self.listener.iteration, "first": first}

    def _first_backward(self) -> Place | None:
        iteration, first = self._first
        return first if iteration == self.listener.iteration else None

    def parts(self) -> list[str]:
        if self.found is None:
            return ["loss and weights stayed finite"]
        first = f"; the first that was not finite: {self.found['first']}" if self.found["first"] else ""
        return [f"In iteration {self.found['iteration']}, {self.found['what']}{first}."]


def _named(place: Place) -> str:
    phase = " backward" * (place.phase == "backward")
    module = f" of {place.module}" if place.module else ""
    return f"{place.op}{phase}{module} ({place.caller})"


def _nans(x: Any) -> bool:
    x = array_in(x)
    return hasattr(x, "strides") and nonfinite(x) > 0 and bool(backend.of(x).xp.isnan(x).any())


def _has_numbers(x: Any) -> bool:
    return hasattr(x, "strides") and x.dtype in FLOATING and x.size > 0
