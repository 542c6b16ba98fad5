"""Bisection: which modules must stay in FP32 so that a run matches?

A program is run again and again, each time in a process of its own: first in FP32, then as it is, each over the same
seeds, then with some of its modules kept in FP32 (`Policy.cast(model, keep=...)`).

Matching. Let the FP32 runs end between `low` and `high`. Runs with other precision match if the mean of their measure
lies within [low - margin, high + margin]. The margin is the spread of the FP32 runs, high - low, but at least 1 % of
their mean's magnitude; or what `tolerance` says. It has two sides: a better result is also another result. A run that
ends with an error, or whose measure is not finite, does not match, and the seeds after it are not run. A run in which
a loss scale above 1 made gradients overflow, and steps be skipped that FP32 did not skip, is another training: then
nothing is searched, and the answer is to give the program a fixed scale.

Search. Modules stand in the order of the model's tree. The shortest beginning of that list which matches is found by
halving, as if more modules in FP32 never made it worse; its last module is needed. If that one alone matches, it is the
answer; else the next is sought among those before it, with this one kept. For one module of n that makes at most
log2(n) rounded up, + 1 tries, of `seeds` runs each, after the two for FP32 and the policy as it is: with these, no more
than 2 log2(n) seeds runs from n = 8 on (but for 9 to 11, of which some take 7 seeds). Each further module costs as many
tries again, and for several one more is made, of all modules. What is answered has matched itself; only that nothing
smaller does rests on that assumption.
"""

from __future__ import annotations

import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from ..audit.numbers import many
from ..audit.sampling import table
from ..checkpoint.writing import printable, write_json
from ..events import PACKAGE
from ..study import POLICIES
from .trial import Plan

LEAST = 0.01  # of the mean of the FP32 runs: the margin where their spread is smaller
OUTSIDE = (
    "Keeping every module in FP32 does not make it match: what is lost is lost in the data, or between the modules. "
    "`tinymp audit` shows where."
)


@dataclass
class Try:
    """Runs with the same precision, one per seed, until one has no measure.

    keep     the modules kept, as in `Plan`, which `what` says in words; None: everything in FP32
    runs     what became of each, see `Trial.run`
    matches  None for the FP32 runs
    """

    what: str
    keep: list[str] | None
    runs: list[dict[str, Any]] = field(default_factory=list)
    matches: bool | None = None

    @property
    def values(self) -> list[float]:
        """The measure of each run; nan where it is no finite number."""
        return [math.nan if run["value"] is None else run["value"] for run in self.runs]

    @property
    def error(self) -> str:
        """Why a run has no measure; empty where all have one."""
        return next((printable(run["error"]) for run in self.runs if run["error"]), "")

    @property
    def mean(self) -> float:
        """The mean of the values; nan if a run has none."""
        return statistics.fmean(self.values)


class BisectionError(Exception):
    """There is nothing to compare with: FP32 itself has no measure, or no model is in half precision."""


@dataclass
class Bisection:
    """The search; `run` makes it.

    plan       what to run, as it is
    seeds      runs per try, with the seeds 0, 1, ...
    tolerance  the margin, instead of the rule above
    out        a folder for bisect.json, and for what the runs print

    modules  what may be kept, each with names, keys, class and the lines where it is made and called
    models   the names of the models
    found    indices of the modules that are needed; [] where none is, None where keeping all of them does not help, or
             where nothing can be compared
    kept     for each model the answer: path -> name of a policy
    runs     how many there were
    """

    plan: Plan
    seeds: int = 3
    tolerance: float | None = None
    out: Path = Path("runs/bisect")
    tries: list[Try] = field(default_factory=list)
    modules: list[dict[str, Any]] = field(default_factory=list)
    models: list[str] = field(default_factory=list)
    found: list[int] | None = field(default_factory=list)
    kept: list[dict[str, str]] = field(default_factory=list)
    verdict: str = ""
    runs: int = 0

    def _try(self, what: str, keep: list[str] | None) -> Try:
        """Run with these modules kept, over the seeds; a set that was tried is not tried again."""
        for done in self.tries:
            if done.keep == keep:
                return done
        new = Try(what, keep)
        every = self._all("keys", range(len(self.modules)))
        for seed in range(self.seeds):
            self.runs += 1
            plan = replace(self.plan, seed=seed, fp32=keep is None, keep=keep or [], modules=every)
            new.runs.append(_in_a_process(plan, self.out / "logs" / f"{self.runs:04}.txt"))
            if new.error:
                break
        self.tries.append(new)
        if keep is not None:
            low, high = self._bounds()
            new.matches = low <= new.mean <= high
        elif new.error:
            self._refuse("in FP32", new)
        print(f"{many(self.runs, 'run'):>8}  {what}: {', '.join(filter(None, self._cells(new)[1:]))}", flush=True)
        return new

    def _bounds(self) -> tuple[float, float]:
        values = self.tries[0].values
        low, high = min(values), max(values)
        margin = max(high - low, LEAST * abs(statistics.fmean(values))) if self.tolerance is None else self.tolerance
        return low - margin, high + margin

    def _refuse(self, which: str, one: Try) -> None:
        said = f"{which}, with seed {len(one.runs) - 1}: {one.error or 'no module of a model was called'}"
        raise BisectionError(f"{said}; all that it printed is in {self.out / 'logs' / f'{self.runs:04}.txt'}")

    # ---- the search

    def run(self) -> None:
        """Search. BisectionError where FP32 runs have no measure, and where there is nothing in half precision."""
        fp32, as_it_is = self._try("everything, and the data", None), self._try("nothing", [])
        self.modules, self.models = (as_it_is.runs[0][name] for name in ("modules", "models"))
        if not self.models and not as_it_is.error:
            raise BisectionError(
                "no model takes half precision from Policy.cast: there is nothing to compare with FP32"
            )
        if as_it_is.matches:
            self.verdict = "It matches FP32 as it is: no module needs it."
        elif not as_it_is.error and (lost := _lost(fp32, as_it_is)):
            self.verdict, self.found = lost, None
        elif not self.modules:
            self._refuse("as it is", as_it_is)
        else:
            self._search()
        write_json(self.out / "bisect.json", self.as_dict())

    def _search(self) -> None:
        needed: list[int] = []
        end = len(self.modules)  # with these first ones and those needed it matches
        while not needed or not self._kept(needed).matches:
            if end == len(self.modules) and needed and not self._kept(range(end)).matches:  # assumed until here
                self.found = None
                self.verdict = OUTSIDE
                return
            end, low = end - len(needed[:1]), 0
            while end - low > 1:
                middle = (low + end) // 2
                matches = self._kept([*range(middle), *needed]).matches
                low, end = (low, middle) if matches else (middle, end)
            needed.insert(0, end - 1)
        self.found = needed
        self.kept = self._kept(needed).runs[0]["kept"]
        self.verdict = f"{_listed(self._all('names', needed), most=None)} must stay in FP32."

    def _kept(self, indices: Sequence[int]) -> Try:
        return self._try(_listed(self._all("names", indices)), self._all("keys", indices))

    def _all(self, what: str, indices: Sequence[int]) -> list[str]:
        return [name for i in indices for name in self.modules[i][what]]

    # ---- how it is shown

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON types."""
        found = None if self.found is None else [self.modules[i] for i in self.found]
        return {**asdict(self), "out": str(self.out), "found": found}

    def _cells(self, one: Try) -> tuple[str, ...]:
        numbers = ["-" if math.isnan(value) else f"{value:.5g}" for value in (*one.values, one.mean)]
        verdict = {True: "matches", False: "does not match", None: ""}[one.matches]
        return one.what, " ".join(numbers[:-1]), numbers[-1], ": ".join(filter(None, (verdict, one.error)))

    def __str__(self) -> str:
        """The answer, and a table of all tries."""
        rows = [("kept in FP32", f"{self.plan.measure}, seed by seed", "mean", ""), *map(self._cells, self.tries)]
        low, high = self._bounds()
        rule = "the spread of FP32's runs, at least 1 % of their mean" if self.tolerance is None else "as asked"
        parts: list[str] = [
            table(rows, left=(0, 1, 3), most=None),
            f"It matches from {low:.5g} to {high:.5g}: FP32's runs, and a margin, {rule}, on both sides.",
            self.verdict,
        ]
        for i in self.found or []:
            one = self.modules[i]
            within = tuple(f"{name}." for name in one["names"])
            whole = any(name.startswith(within) for other in self.modules for name in other["names"])
            lines = ["its own code without its parts"] * whole
            lines += [f"{how} at {one[how]}" for how in ("made", "called") if one[how]]
            parts[-1] += f"\n    {', '.join(one['names'])}: {', '.join([one['class'], *lines])}"
        for model, kept in zip(self.models, self.kept):
            if kept:
                keep = [f'"{path}": {f"mp.{name}" if name in POLICIES else name}' for path, name in kept.items()]
                parts.append(f"policy.cast({model}, keep={{{', '.join(keep)}}})")
        modules = f"{many(len(self.modules), 'module')} to choose from"
        parts.append(f"{many(self.runs, 'run')} of {many(self.seeds, 'seed')} per try; {modules}.")
        return "\n\n".join(parts)


def _lost(fp32: Try, as_it_is: Try) -> str:
    """Why a program cannot be compared with itself in FP32: a loss scale made it skip other steps. Empty if not."""
    for seed, (one, other) in enumerate(zip(fp32.runs, as_it_is.runs)):
        if one["lost"] != other["lost"]:
            least = min(scale for _, scale in (*one["lost"], *other["lost"]))
            skipped = f"{len(other['lost'])} of {many(other['steps'], 'step')}"
            return (
                f"It cannot be compared: with seed {seed} it skipped {skipped}, and {len(one['lost'])} in FP32, as "
                f"gradients overflowed at loss scales down to {least:g}. Whatever its modules store, it is another "
                f"training. Give the program a fixed scale at which it skips none, StaticLossScaler({least / 2:g}) "
                "or a smaller one, and bisect again."
            )
    return ""


def _listed(names: Sequence[str], most: int | None = 3) -> str:
    """Names in words; of many the first and the last."""
    if most is not None and len(names) > most:
        return f"{names[0]} ... {names[-1]} ({len(names)} modules)"
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def _in_a_process(plan: Plan, log: Path) -> dict[str, Any]:
    """The outcome of a run of the plan, in a process with this tinymp; its output goes to `log`."""
    start = "import sys; sys.path.insert(0, sys.argv[3]); from tinymp.lab.trial import main; del sys.path[0]; "
    start += "main(*sys.argv[1:3])"
    log.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, log.open("wb") as printed:
        files = [Path(folder) / name for name in ("plan.json", "result.json")]
        write_json(files[0], asdict(plan))
        command = [sys.executable, "-c", start, *map(str, files), os.path.dirname(PACKAGE[:-1])]
        ended = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=printed, stderr=subprocess.STDOUT, check=False)
        if files[1].exists():
            return json.loads(files[1].read_bytes())
    how = f"signal {-ended.returncode}" if ended.returncode < 0 else f"exit code {ended.returncode}"
    return {"value": None, "error": f"the process ended with {how}", "kept": [], "modules": [], "models": []}
