"""What the last steps before a crash looked like, and the first op that made a NaN."""

from __future__ import annotations

import math
import os
from collections import deque
from typing import Any

from .. import backend
from ..autograd import Op
from ..checkpoint.writing import write_json
from ..optim.optimizer import Optimizer
from ..optim.result import StepResult
from ..parameter import Parameter
from .depth import STEPS, Depth
from .ledger import jsonable
from .listener import Instrument, Place, begins_backward
from .numbers import number
from .sampling import array_in, nonfinite, table
from .scales import Scales

STOPS = ("nan", "inf")


class Crash(Instrument):
    """Remembers the last steps, and keeps them when the loss or a weight first stops being finite, or when an error
    (a scaler that gives up, for example) ends the audit.

    depth    the instrument that measures the sizes; scales: the one that knows the first infinity of a forward pass
    path     a JSON file to write then, at once
    stop_at  "nan": FloatingPointError at the first op whose result has a NaN though nothing that it was given has one;
             "inf": the same for infinities and NaN. In backward only where gradients carry no loss scale: a scaler
             deals with those of a scaled one

    found    what is kept: "what" happened, in which "iteration", "first": the first op of that iteration whose results
             were not finite ("" if none was heard), "steps": of the last 16 the loss, the loss scale, whether it was
             "skipped", and the largest number of every op. None so long as nothing happened
    """

    def __init__(
        self, depth: Depth, scales: Scales, path: str | os.PathLike[str] | None = None, stop_at: str | None = None
    ) -> None:
        if stop_at is not None and stop_at not in STOPS:
            raise ValueError(f"audit: expected stop_at to be 'nan', 'inf' or None, got {stop_at!r}")
        self.depth, self.scales, self.path, self.stop_at = depth, scales, path, stop_at
        self.found: dict[str, Any] | None = None
        self._first = ""
        self._steps: deque[dict[str, Any]] = deque([_step(0)], maxlen=STEPS)

    def ran(self, place: Place, op: Op, inputs: tuple, outputs: tuple) -> None:
        now = self._now()
        backward = place.phase == "backward"
        if backward and begins_backward(op) and self.listener.loss:
            now["loss"], now["scale"] = self.listener.loss
            if not math.isfinite(now["loss"]):
                self.keep(f"the loss became {now['loss']:g}")
        if backward and self.listener.scale != 1:
            return  # the scaler deals with it
        if backward and self.found is None and not self._first and any(map(nonfinite, outputs)):
            self._first = _named(place)
        if self.stop_at is not None:
            self._stop(place, inputs, outputs)

    def _stop(self, place: Place, inputs: tuple, outputs: tuple) -> None:
        bad = _nans if self.stop_at == "nan" else nonfinite
        if any(map(bad, outputs)) and not any(map(bad, inputs)):
            what = "NaN" if any(map(_nans, outputs)) else "infinity"
            sizes = ", ".join(number(s) for x in inputs if (s := _largest(x)) is not None)
            text = f"{_named(place)} made the first {what}, from arguments of magnitudes up to {sizes or 'none'}"
            self.keep(text)
            raise FloatingPointError(f"audit: {text}")

    def written(self, place: Place, parameter: Parameter, value: Any) -> None:
        if place.phase == "update" and self.found is None and nonfinite(value):
            self.keep(f"the weight {place.module} became infinite or NaN")

    def rounded(self, place: Place, x: Any, y: Any) -> None:
        if place.phase == "update" and self.found is None and nonfinite(y):
            self.keep(f"the {y.dtype} copy of the weight {place.module} became infinite or NaN")

    def stepped(self, optimizer: Optimizer, result: StepResult) -> None:
        now = self._now()
        now["skipped"] = now["skipped"] or result is StepResult.SKIPPED

    def keep(self, what: str) -> None:
        """Keep the last steps, if nothing has happened before; write them."""
        if self.found is not None:
            return
        sizes = dict(self.depth.recent)
        steps = [
            {
                **step,
                "ops": [
                    {"module": m, "op": o, "phase": p, "largest": size.largest, "rms": size.rms}
                    for (m, o, p), size in sizes.get(step["iteration"], {}).items()
                ],
            }
            for step in self._steps
        ]
        first = self._first if self.scales.first is None else _named(self.scales.first.place)
        self.found = {"what": what, "iteration": self._steps[-1]["iteration"], "first": first, "steps": steps}
        if self.path is not None:
            write_json(self.path, jsonable(self.found))

    def _now(self) -> dict[str, Any]:
        if self._steps[-1]["iteration"] != self.listener.iteration:
            self._steps.append(_step(self.listener.iteration))
            if self.found is None:
                self._first = ""
        return self._steps[-1]

    def as_dict(self) -> dict[str, Any] | None:
        """`found`."""
        return self.found

    def __str__(self) -> str:
        if self.found is None:
            return "loss and weights stayed finite"
        lines: list[tuple[str, ...]] = [("iteration", "loss", "loss scale", "", "largest activation", "gradient")]
        for step in self.found["steps"]:
            ops = {phase: [o for o in step["ops"] if o["phase"] == phase] for phase in ("forward", "backward")}
            worst = [max(of, key=lambda o: _order(o["largest"]), default=None) for of in ops.values()]
            told = [f"{number(o['largest'])} {o['module']} {o['op']}" if o else "–" for o in worst]
            skipped = "skipped" * step["skipped"]
            lines.append((f"{step['iteration']}", number(step["loss"]), number(step["scale"]), skipped, *told))
        first = f"; the first that was not finite: {self.found['first']}" if self.found["first"] else ""
        head = f"In iteration {self.found['iteration']}, {self.found['what']}{first}. The steps before:"
        return f"{head}\n{table(lines, left=(3, 4, 5), ruled=False)}"


def _step(iteration: int) -> dict[str, Any]:
    return {"iteration": iteration, "loss": None, "scale": None, "skipped": False}


def _named(place: Place) -> str:
    phase = " backward" * (place.phase == "backward")
    module = f" of {place.module}" if place.module else ""
    return f"{place.op}{phase}{module} ({place.caller})"


def _nans(x: Any) -> bool:
    x = array_in(x)
    return hasattr(x, "strides") and nonfinite(x) > 0 and bool(backend.of(x).xp.isnan(x).any())


def _largest(x: Any) -> float | None:
    x = array_in(x)
    return None if not hasattr(x, "strides") or x.dtype.kind not in "fV" or not x.size else float(abs(x).max())


def _order(x: float) -> float:
    return math.inf if x != x else x
