"""One run of a program for `tinymp bisect`: some modules of its half-precision models kept in FP32, from one seed.

It runs in a process of its own, in which it stands in for three functions of tinymp: `Policy.cast` keeps the modules of
the plan, `Module.__init__` notes the line that makes a module, `manual_seed` adds the seed of the plan to its own.
"""

from __future__ import annotations

import json
import math
import random
import sys
import traceback
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from .. import backend
from ..audit.callers import caller, made_at, modules, variable
from ..autograd import Op
from ..checkpoint.writing import write_json
from ..dtypes import HALVES
from ..events import Observer, observe
from ..nn.module import Module
from ..optim.result import StepResult
from ..optim.scaler import ScaleLoss
from ..precision import FP32, MOVEMENT, Policy
from .program import run, started


@dataclass(frozen=True)
class Plan:
    """A plan of runs, and their settings.

    program, module, arguments  a script, or with `module` the name of a module
    measure  a global variable that the program leaves ("loss", "run.loss"): a number, or a list, whose last counts; or
             "FILE.json:key.key", of a file that it writes
    seed     with which the generators of tinymp, NumPy and Python are seeded before the program starts, and which is
             added to that of every `mp.manual_seed` in it
    fp32     whether FP32 takes the place of every half-precision policy, for models and data
    keep     the modules to keep, as "number of the model:path"; models are numbered as they are cast
    modules  all modules that may be kept, once they are known
    """

    program: str
    module: bool
    arguments: list[str]
    measure: str
    seed: int = 0
    fp32: bool = False
    keep: list[str] = field(default_factory=list)
    modules: list[str] = field(default_factory=list)


@dataclass
class Cast:
    """A model that a half-precision policy has cast; `name` is its variable's, once it has been called."""

    model: Module
    keep: dict[str, Policy]
    name: str = ""


class Calls(Observer):
    """Hears which modules run an op that does more than move numbers, and from which line of the program."""

    def __init__(self, casts: list[Cast]) -> None:
        self.casts = casts
        self.ran_in: WeakKeyDictionary[Module, str] = WeakKeyDictionary()  # the line of the first call

    def ran(self, op: Op, inputs: tuple, outputs: tuple) -> None:
        if op.phase != "forward" or (op.kind is MOVEMENT and op.gradient is None):
            return
        frame = sys._getframe(1)
        chain, outer = modules(frame)
        if chain and chain[0] not in self.ran_in:
            self.ran_in[chain[0]] = caller(frame)
            for cast in self.casts:
                if cast.model is chain[-1] and not cast.name:
                    cast.name = (outer and variable(outer, cast.model)) or ""


class Skips(Observer):
    """Hears which steps a loss scale above 1 lost: skipped ones whose losses are finite."""

    def __init__(self) -> None:
        self.steps, self.scale, self.finite = 0, 1.0, True
        self.lost: list[tuple[int, float]] = []  # which, and the scale

    def ran(self, op: Op, inputs: tuple, outputs: tuple) -> None:
        if isinstance(op, ScaleLoss) and op.phase == "forward":
            self.scale, self.finite = float(op.loss_scale), self.finite and math.isfinite(float(inputs[0]))

    def stepped(self, optimizer: Any, result: Any) -> None:
        if result == StepResult.SKIPPED and self.finite and self.scale > 1:
            self.lost.append((self.steps, self.scale))
        self.steps, self.finite = self.steps + 1, True


class Trial:
    """The run of a plan."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.casts: list[Cast] = []
        self.made: WeakKeyDictionary[Module, str] = WeakKeyDictionary()
        self.calls = Calls(self.casts)

    def run(self) -> dict[str, Any]:
        """Run it; returns, as JSON can hold it, `value` (None where it is not finite) and `error`; the modules that
        were kept, or of a run that keeps none those that may be; the number of `steps`, and those that a loss scale
        `lost`.
        """
        plan, skips, value, error = self.plan, Skips(), math.nan, None
        traced = not (plan.fp32 or plan.keep)
        self._stand_in()
        try:
            with (
                started(plan.program, plan.arguments, plan.module),
                observe(self.calls) if traced else nullcontext(),
                observe(skips),
            ):
                value = measured(plan.measure, lambda: _finished(plan.program, plan.module))
            error = None if math.isfinite(value) else f"the measure is {value}"
        except (Exception, SystemExit) as ends:
            traceback.print_exc()
            none = "; bisect runs it without standard input" * isinstance(ends, EOFError)
            error = f"{type(ends).__name__}: {ends}{none}"
        result: dict[str, Any] = {"value": None if error else value, "error": error}
        result["kept"] = [{path: policy.name for path, policy in cast.keep.items()} for cast in self.casts]
        result |= {"steps": skips.steps, "lost": skips.lost}
        return result | ({"modules": self.candidates(), "models": self._names()} if traced else {})

    def _stand_in(self) -> None:
        cast, init, seed = Policy.cast, Module.__init__, self.plan.seed

        def cast_instead(policy: Policy, target: Any, keep: Mapping[str, Policy] | None = None) -> Any:
            if policy.storage not in HALVES:
                return cast(policy, target, keep)
            if self.plan.fp32:
                return cast(FP32, target)
            return cast(policy, target, self.keep(target, policy, keep) if isinstance(target, Module) else keep)

        def init_instead(module: Module) -> None:
            init(module)
            self.made[module] = made_at(sys._getframe(1), module)

        Policy.cast = cast_instead  # type: ignore[method-assign, assignment]
        Module.__init__ = init_instead  # type: ignore[method-assign, assignment]
        random.seed(seed)
        np.random.seed(seed)  # noqa: NPY002  the one that programs share
        backend.manual_seed(seed)
        devices: Any = backend.cpu, backend.gpu
        for device in devices:
            device.manual_seed = lambda given, own=device.manual_seed: own(given + seed)

    # ---- what is kept

    def keep(self, model: Module, policy: Policy, given: Mapping[str, Policy] | None) -> dict[str, Policy] | None:
        """The modules of a model that `Policy.cast` must keep: those of the plan, and those that the program keeps.

        A module that only calls others (Sequential) goes with those that it holds where they are two or more, so that
        what one of them hands to the next is not rounded on its way.
        """
        numbers = {id(cast.model): number for number, cast in enumerate(self.casts)}
        number = numbers.get(id(model), len(self.casts))
        if number == len(self.casts):
            self.casts.append(Cast(model, {}))
        keys = {path: f"{number}:{path}" for path, _ in model.named_modules()}
        chosen = [path for path, key in keys.items() if key in self.plan.keep]
        asked: dict[str, Policy] = {}  # by the program
        wanted: dict[str, Policy] = {}
        keep: dict[str, Policy] = {}
        for path, key in keys.items():
            parent, within = path.rpartition(".")[0], f"{path}." if path else ""
            asked[path] = (given or {}).get(path, asked[parent] if path else policy)
            parts = sum(other.startswith(within) and other != path for other in chosen)
            mine = path in chosen or (key not in self.plan.modules and parts > 1)
            wanted[path] = FP32 if mine and asked[path].storage in HALVES else asked[path]
            if wanted[path] != (wanted[parent] if path else policy):
                keep[path] = wanted[path]
        self.casts[number].keep = keep
        return keep or None

    # ---- what may be kept

    def candidates(self) -> list[dict[str, Any]]:
        """The modules of the models that ran an op, but for those that only move numbers; of those that share weights,
        one.
        """
        found: list[dict[str, Any]] = []
        weights: list[set[int]] = []  # of each that was found
        for number, (cast, name) in enumerate(zip(self.casts, self._names())):
            for path, module in cast.model.named_modules():
                if module not in self.calls.ran_in:
                    continue
                own = {id(x) for _, x in module.named_parameters(recurse=False)}
                place = next((i for i, others in enumerate(weights) if own & others), len(found))
                if place == len(found):
                    lines = {"made": self.made.get(module, ""), "called": self.calls.ran_in[module]}
                    found.append({"names": [], "keys": [], "class": type(module).__name__, **lines})
                    weights.append(own)
                found[place]["names"].append(f"{name}.{path}" if path else name)
                found[place]["keys"].append(f"{number}:{path}")
                weights[place] |= own
        return found

    def _names(self) -> list[str]:
        return [cast.name or type(cast.model).__name__.lower() for cast in self.casts]


# -------------------------------------------------------------------------------------------------------- its measure


def measured(measure: str, finished: Callable[[], Mapping[str, Any]]) -> float:
    """The number that a measure names, of what `finished` leaves: a global variable, or a file that it writes. Of a
    list the last; nan for None. LookupError or AttributeError where it is not there, TypeError where it is no number.
    """
    file, _, keys = measure.rpartition(":")
    path = Path(file).absolute()  # the program may change the folder
    before = path.stat().st_mtime_ns if path.exists() else None
    value: Any = finished()
    if file:
        if not path.exists() or path.stat().st_mtime_ns == before:
            raise LookupError(f"the program did not write {file}")
        value = json.loads(path.read_bytes())
    elif (first := keys.partition(".")[0]) not in value:
        raise LookupError(f"the program leaves no variable {first!r}")
    for key in keys.split("."):
        if isinstance(value, Mapping):
            value = value[key]
        else:
            value = value[int(key)] if key.isdecimal() else getattr(value, key)
    value = value[-1] if isinstance(value, (list, tuple)) and value else value
    return math.nan if value is None else float(value)


def _finished(program: str, module: bool) -> Mapping[str, Any]:
    """The program's global variables at its end, which may be a sys.exit()."""
    try:
        return run(program, module)
    except SystemExit as end:
        if end.code:
            raise
        frames = [frame for frame, _ in traceback.walk_tb(end.__traceback__) if frame.f_code.co_name == "<module>"]
        return [frame.f_globals for frame in frames if frame.f_globals.get("__name__") == "__main__"][-1]


def main(plan: str, result: str) -> None:
    """Run the plan in one file, and write what became of it to another."""
    write_json(result, Trial(Plan(**json.loads(Path(plan).read_bytes()))).run())
