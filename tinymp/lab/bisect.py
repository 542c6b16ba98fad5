"""Bisection: which modules must stay in FP32 so that a run matches?

A program is run again and again, each time in a process of its own: first in FP32, then as it is, each over the same
seeds, then with some of its modules kept in FP32 (`Policy.cast(model, keep=...)`).

Matching. Let the FP32 runs end between `low` and `high`. Runs with other precision match if the mean of their measure
lies within [low - margin, high + margin]. The margin is the spread of the FP32 runs, high - low, but at least 1 % of
their mean's magnitude; or what `tolerance` says. It has two sides: a better result is another result, too. A run that
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

import hashlib
import importlib.util
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ..audit.numbers import LONG, lasts, many
from ..audit.sampling import table
from ..backend import __version__
from ..checkpoint.writing import printable, write_json
from ..events import PACKAGE
from ..study import POLICIES
from .trial import Plan

LEAST = 0.01  # of the mean of the FP32 runs: the margin where their spread is smaller
RESULTS = "bisect.json"
OUTSIDE = (
    "Keeping every module in FP32 does not make it match: what is lost is lost in the data, or between the modules. "
    "`tinymp audit` shows where."
)


@dataclass
class Try:
    """Runs with the same precision, one per seed.

    keep     the modules kept, as in `Plan`, which `what` says in words; None: everything in FP32
    values   the measure of each run that there was, None where it is no finite number; errors: why
    matches  None for the FP32 runs
    """

    what: str
    keep: list[str] | None
    values: list[float | None] = field(default_factory=list)
    errors: list[str | None] = field(default_factory=list)
    matches: bool | None = None

    @property
    def mean(self) -> float:
        """Of the values; nan where a run has none."""
        return math.nan if None in self.values else statistics.fmean(v for v in self.values if v is not None)


class BisectionError(Exception):
    """There is nothing to compare with: FP32 itself has no measure, or no model is in half precision."""


class Bisection:
    """The search; `run` makes it.

    program, module, arguments  what to run: a script, or with `module` the name of a module
    measure        a global variable that the program leaves ("loss", "run.loss"): a number, or a list, whose last
                   counts; or "FILE.json:key.key", of a file that it writes
    seeds          runs per try. Before a run starts, the generators of tinymp, NumPy and Python are seeded with its
                   seed, 0, 1, ..., which is then added to that of every `mp.manual_seed` in the program
    tolerance      the margin, instead of the rule above
    out            a folder for what was found so far, and what the runs printed. An earlier search there with the same
                   program, arguments and measure goes on
    say            is told of each try that is done

    modules  what may be kept, each with names, keys, class and the lines where it is made and called
    found    indices of the modules that are needed; [] where none is, None where keeping all of them does not help, or
             where nothing can be compared
    """

    def __init__(
        self,
        program: str,
        arguments: Sequence[str] = (),
        *,
        measure: str,
        module: bool = False,
        seeds: int = 3,
        tolerance: float | None = None,
        out: Path = Path("runs/bisect"),
        say: Callable[[str], None] = print,
    ) -> None:
        self.seeds, self.tolerance, self.out, self.say = seeds, tolerance, out.absolute(), say
        self.given = dict[str, Any](program=program, module=module, arguments=[*arguments], measure=measure)
        spec = importlib.util.find_spec(program) if module else None
        source = Path((spec and spec.origin) or program).read_bytes()  # another version of it is another search
        self.asked = {**self.given, "source": hashlib.sha256(source).hexdigest(), "tinymp": __version__}
        self.tries: list[Try] = []
        self.modules: list[dict[str, Any]] = []
        self.models: list[dict[str, Any]] = []
        self.found: list[int] | None = []
        self.kept: list[dict[str, str]] = []  # for each model the answer: path -> name of a policy
        self.verdict = ""
        self.runs: list[dict[str, Any]] = self._earlier()
        self._used: set[str] = set()  # the runs that this search asked for
        self._new = 0
        self._began = time.perf_counter()

    def _earlier(self) -> list[dict[str, Any]]:
        """The runs of a search that asked the same and is to go on."""
        try:
            before = json.loads((self.out / RESULTS).read_bytes())
            return before["runs"] if before["asked"] == self.asked else []
        except (OSError, ValueError, LookupError, TypeError):
            return []

    # ---- runs

    def _run(self, keep: list[str] | None, seed: int) -> dict[str, Any]:
        """One run, or what is known of it from an earlier start."""
        key = json.dumps([keep, seed])
        known = next((run for run in self.runs if run["key"] == key), None)
        self._used.add(key)
        if known is not None:
            return known
        self._new += 1
        every = self._all("keys", range(len(self.modules)))
        plan = Plan(**self.given, seed=seed, fp32=keep is None, keep=keep or [], modules=every)
        log = self.out / "logs" / f"{len(self.runs) + 1:04}.txt"
        log.parent.mkdir(parents=True, exist_ok=True)
        found = {"key": key, "log": log.name, **_in_a_process(plan, log)}
        self.runs.append(found)
        self._write()
        return found

    def _try(self, what: str, keep: list[str] | None) -> Try:
        """Run with these modules kept, over the seeds; a set that was tried is not tried again."""
        for done in self.tries:
            if done.keep == keep:
                return done
        new = Try(what, keep)
        for seed in range(self.seeds):
            run = self._run(keep, seed)
            new.values.append(run["value"])
            new.errors.append(run["error"])
            if run["value"] is None:
                break
        if keep is not None:
            low, high = self._bounds()
            new.matches = low <= new.mean <= high
        self.tries.append(new)
        self._write()
        if keep is not None or None not in new.values:  # else `run` raises
            self.say(f"{many(len(self._used), 'run'):>8}  {self._row(new)}")
        return new

    def _bounds(self) -> tuple[float, float]:
        values = [value for value in self.tries[0].values if value is not None]
        low, high = min(values), max(values)
        margin = max(high - low, LEAST * abs(statistics.fmean(values))) if self.tolerance is None else self.tolerance
        return low - margin, high + margin

    # ---- the search

    def run(self) -> None:
        """Search. BisectionError where FP32 runs have no measure, and where there is nothing in half precision."""
        reference = self._try("everything, and the data", None)
        if None in reference.values:
            seed = reference.values.index(None)
            raise BisectionError(f"in FP32, with seed {seed}: {reference.errors[seed]}{self._log(None, seed)}")
        plain = self._run([], 0)
        self.modules, self.models = plain["modules"], plain["models"]
        if not self.models and plain["value"] is not None:
            raise BisectionError(
                "no model takes half precision from Policy.cast: there is nothing to compare with FP32"
            )
        each = (time.perf_counter() - self._began) / max(self._new, 1)
        most = self.seeds * (3 + math.ceil(math.log2(max(len(self.modules), 1)))) - len(self._used)
        if each * most >= LONG:
            self.say(f"a run takes {lasts(each)}: at most {lasts(each * most)} more to find one module")
        as_it_is = self._try("nothing", [])
        if as_it_is.matches:
            self.verdict = "It matches FP32 as it is: no module needs it."
        elif None not in as_it_is.values and (lost := self._lost()):
            self.verdict, self.found = lost, None
        elif not self.modules:
            why = as_it_is.errors[0] or "no module of a model was called"
            raise BisectionError(f"as it is, with seed 0: {why}{self._log([], 0)}")
        else:
            self._search()
        self._write()

    def _lost(self) -> str:
        """Why a program cannot be compared with itself in FP32: a loss scale made it skip other steps. Empty if not."""
        for seed in range(self.seeds):
            fp32, plain = self._run(None, seed).get("lost", []), self._run([], seed).get("lost", [])
            if plain != fp32:
                least = min(scale for _, scale in (*plain, *fp32))
                skipped = f"{len(plain)} of {many(self._run([], seed)['steps'], 'step')}"
                return (
                    f"It cannot be compared: with seed {seed} it skipped {skipped}, and {len(fp32)} in FP32, as "
                    f"gradients overflowed at loss scales down to {least:g}. Whatever its modules store, it is another "
                    f"training. Give the program a fixed scale at which it skips none, StaticLossScaler({least / 2:g}) "
                    "or a smaller one, and bisect again."
                )
        return ""

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
        self.kept = self._run(self._all("keys", needed), 0)["kept"]
        self.verdict = f"{_listed(self._all('names', needed), most=None)} must stay in FP32."

    def _kept(self, indices: Sequence[int]) -> Try:
        return self._try(_listed(self._all("names", indices)), self._all("keys", indices))

    def _all(self, what: str, indices: Sequence[int]) -> list[str]:
        return [name for i in indices for name in self.modules[i][what]]

    # ---- how it is shown

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON types."""
        low, high = self._bounds() if self.tries and None not in self.tries[0].values else (None, None)
        plain = ("asked", "seeds", "tolerance", "models", "modules", "verdict", "runs")
        return {
            **{name: getattr(self, name) for name in plain},
            "matches": {"from": low, "to": high},
            "tries": [asdict(one) for one in self.tries],
            "found": None if self.found is None else [self.modules[i] for i in self.found],
            "keep": self.kept,
            "runs_used": len(self._used),
        }

    def _write(self) -> None:
        write_json(self.out / RESULTS, self.as_dict())

    def _log(self, keep: list[str] | None, seed: int) -> str:
        log = self._run(keep, seed)["log"]
        return f"; all that it printed is in {self.out / 'logs' / log}"

    def _cells(self, one: Try) -> tuple[str, ...]:
        numbers = [f"{value:.5g}" if value is not None else "-" for value in one.values]
        why = next((error for error in one.errors if error), "")
        verdict = {True: "matches", False: "does not match", None: ""}[one.matches]
        mean = "-" if None in one.values else f"{one.mean:.5g}"
        return one.what, " ".join(numbers), mean, ": ".join(filter(None, (verdict, printable(why))))

    def _row(self, one: Try) -> str:
        what, values, mean, verdict = self._cells(one)
        return f"{what}: {values}, mean {mean}" + f": {verdict}" * bool(verdict)

    def __str__(self) -> str:
        """The answer, and a table of all tries."""
        rows = [("kept in FP32", f"{self.asked['measure']}, seed by seed", "mean", ""), *map(self._cells, self.tries)]
        parts: list[str] = [table(rows, left=(0, 1, 3), most=None)]
        if self.tries and None not in self.tries[0].values:
            low, high = self._bounds()
            rule = "the spread of FP32's runs, at least 1 % of their mean" if self.tolerance is None else "as asked"
            parts.append(f"It matches from {low:.5g} to {high:.5g}: FP32's runs, and a margin, {rule}, on both sides.")
        if self.verdict:
            parts.append(self.verdict)
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
                parts.append(f"policy.cast({model['model']}, keep={{{', '.join(keep)}}})")
        early = len(self._used) - self._new
        known = f", of which {early:,} were known from an earlier start" if early else ""
        parts.append(f"{many(len(self._used), 'run')} of {many(self.seeds, 'seed')} per try{known}; "
                     f"{many(len(self.modules), 'module')} to choose from.")  # fmt: skip
        return "\n\n".join(parts)


def _listed(names: Sequence[str], most: int | None = 3) -> str:
    """Names in words; of many the first and the last."""
    if most is not None and len(names) > most:
        return f"{names[0]} ... {names[-1]} ({len(names)} modules)"
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def _in_a_process(plan: Plan, log: Path) -> dict[str, Any]:
    """What became of a run of the plan, in a process with this tinymp; all that it prints goes to `log`."""
    start = "import sys; sys.path.insert(0, sys.argv[3]); from tinymp.lab.trial import main; del sys.path[0]; "
    start += "main(*sys.argv[1:3])"
    with tempfile.TemporaryDirectory() as folder, log.open("wb") as printed:
        files = [Path(folder) / name for name in ("plan.json", "result.json")]
        write_json(files[0], asdict(plan))
        command = [sys.executable, "-c", start, *map(str, files), os.path.dirname(PACKAGE[:-1])]
        ended = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=printed, stderr=subprocess.STDOUT, check=False)
        if files[1].exists():
            return json.loads(files[1].read_bytes())
    how = f"signal {-ended.returncode}" if ended.returncode < 0 else f"exit code {ended.returncode}"
    return {"value": None, "error": f"the process ended with {how}", "kept": [], "modules": [], "models": []}
