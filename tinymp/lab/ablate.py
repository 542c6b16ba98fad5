"""Ablations: train again with one precision decision flipped, over seeds, and say whether it was needed there.

The rule is a rule of thumb, without a model of the noise. `spread` is the distance between the best and the worst seed
of the baseline, mixed precision.

    needed here     a run diverged, or the mean score of the flipped runs is worse than the worst seed of the baseline
                    by more than one spread
    harmless here   it is no worse than that worst seed
    undecided       neither; or there are fewer than three seeds, too few for a spread, and no run diverged

If flipping did nothing and scores were normally distributed, 3 seeds would say "needed" in 4 % of cases and "harmless"
in 81 %; 5 seeds in 0.2 and 93 %. "Here" is meant literally: this model, this data, this number of steps.
"""

from __future__ import annotations

import importlib
import math
import statistics
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from .. import backend, optim
from ..audit.ledger import jsonable
from ..audit.numbers import many
from ..audit.pictures import drawn
from ..audit.sampling import RED, table
from ..checkpoint.writing import write_figure
from ..precision import FP32, MIXED, NO_MASTER, STOCHASTIC_ROUNDING, Policy, use
from ..study import FP16_ACCUMULATE, FP16_REDUCTIONS, PURE_FP16, change
from . import shipped

NEEDED, HARMLESS, UNDECIDED = "needed here", "harmless here", "undecided"
ENOUGH = 3  # seeds: with fewer there is no verdict, unless a run diverged


@dataclass(frozen=True)
class Decision:
    """A decision about precision, by the name that the command line has for it, and its opposite.

    flipped   what is done instead of what mixed precision does, by this policy, and whether the loss is scaled
    topic     the rule that it flips: `tinymp explain` says more
    verdict   whether it is judged; FP32 is not, it is there for comparison
    """

    name: str
    flipped: str
    topic: str
    policy: Policy
    scaling: bool = True
    verdict: bool = True


def _with(name: str, policy: Policy = MIXED, **changes: Any) -> Policy:
    return change(policy, name=name.upper().replace("-", "_"), **changes)


_FP16 = MIXED.storage

BASELINE = Decision("mixed", "nothing: mixed precision as it is", "storage", MIXED, verdict=False)
DECISIONS = (
    Decision("fp32", "everything in FP32: the paper's baseline", "storage", FP32, scaling=False, verdict=False),
    Decision("master", "no FP32 master: FP16 weights are updated", "master weights", NO_MASTER),
    Decision("loss-scaling", "the loss is not scaled", "loss scaling", _with("no-scaling"), scaling=False),
    *[
        Decision(f"accumulator-{n}", f"FP16 accumulators, rounded after {n} products", "accumulation",
                 _with(f"fp16-accumulate-{n}", FP16_ACCUMULATE, chunk=n))
        for n in (4, 32, 256)
    ],
    Decision("split-k", "products in 8 parts, each rounded to FP16", "tensor cores", _with("split-k", split=8)),
    Decision("batch-norm-statistics", "batch norm's sums in FP16", "batch norm",
             _with("fp16-batch-norm", reduce=_FP16, only=("batch_norm",))),
    Decision("batch-norm-parameters", "batch norm's weights and running statistics in FP16", "batch norm",
             _with("fp16-norm", norm=_FP16)),
    Decision("softmax", "the sums of softmax and of the loss in FP16", "softmax",
             _with("fp16-softmax", reduce=_FP16, only=("softmax", "log_softmax", "logsumexp", "cross_entropy"))),
    Decision("reductions", "all sums but the loss's in FP16", "reductions", FP16_REDUCTIONS),
    Decision("rounding-to-nearest", "stochastic rounding at every store", "stochastic rounding", STOCHASTIC_ROUNDING),
    Decision("optimizer-state", "the optimizer's state in FP16", "optimizer state", _with("fp16-state", state=_FP16)),
    Decision("everything", "FP16 throughout, and no scaling", "storage", PURE_FP16, scaling=False),
)  # fmt: skip


def decisions(names: list[str] | None = None) -> list[Decision]:
    """The decisions of these names, all by default. ValueError for an unknown one."""
    known = [d.name for d in DECISIONS]
    for name in names or ():
        if name not in known:
            raise ValueError(f"no decision is called {name!r}; there are {', '.join(known)}")
    return [d for d in DECISIONS if not names or d.name in names]


# ---------------------------------------------------------------------------------------------------------- what runs


@dataclass
class Run:
    """One training run: its score, the loss of each step, and why it ended early, if it did."""

    score: float
    curve: list[float] = field(default_factory=list)
    stopped: str | None = None

    @property
    def diverged(self) -> bool:
        """True if it was stopped, or its score is not a finite number."""
        return self.stopped is not None or not math.isfinite(self.score)


@dataclass
class Workload:
    """The workload: a training that returns a score.

    measure  what the score is ("test accuracy"), and whether `higher` is better
    train    train(policy, scaler, seed) is one run; the seed fixes all that is random
    """

    name: str
    measure: str
    higher: bool
    train: Callable[[Policy, optim.LossScaler, int], Run]


def workload(name: str, steps: int | None) -> Workload:
    """The workload that the command line names: MODULE:FUNCTION, or CNN, LSTM, DCGAN for that example's `train`.

    The function is called as FUNCTION(policy, scaler, seed=..., steps=..., device=...), trains under the policy with
    the scaler, and returns a dict: "curve", the loss of every step; perhaps "measure", the name of the item that is the
    score, and "higher_is_better"; without them the score is the mean of the last tenth of the curve. To stop at a step
    that cannot be recovered, the function lets the scaler's FloatingPointError through, or says why in "stopped".
    steps: None for the function's own number. ImportError or AttributeError where there is no such function.
    """
    module, _, called = name.partition(":")
    function = getattr(importlib.import_module(module), called) if called else shipped.example(name).train
    length = {"steps": steps} if steps else {}

    def train(policy: Policy, scaler: optim.LossScaler, seed: int) -> Run:
        backend.manual_seed(seed)
        found = function(policy, scaler, seed=seed, device=backend.default_device(), **length)
        curve = [float(loss) for loss in found["curve"]]
        if "measure" not in found:
            return Run(statistics.fmean(curve[-max(len(curve) // 10, 1) :]), curve, found.get("stopped"))
        work.measure, work.higher = found["measure"], found["higher_is_better"]
        return Run(found[work.measure], curve, found.get("stopped"))

    work = Workload(name, "final loss", False, train)
    return work


# --------------------------------------------------------------------------------------------------------- what is said


class Ablation:
    """The runs of a workload: the baseline's, and those with a decision flipped.

    runs  by the name of the decision, "mixed" first: one Run per seed
    """

    def __init__(self, work: Workload, seeds: int = ENOUGH) -> None:
        self.work, self.seeds = work, seeds
        self.decisions: list[Decision] = []
        self.runs: dict[str, list[Run]] = {}

    def run(self, decision: Decision) -> None:
        """Train with this decision flipped; the first time, with none flipped before that."""
        for one in (BASELINE, decision):
            if one.name not in self.runs:
                self.runs[one.name] = self._runs(one)
        self.decisions.append(decision)

    def _runs(self, decision: Decision) -> list[Run]:
        runs = []
        for seed in range(self.seeds):
            scaler = optim.DynamicLossScaler() if decision.scaling else optim.NoLossScaler()
            try:
                with use(decision.policy):
                    runs.append(self.work.train(decision.policy, scaler, seed))
            except (FloatingPointError, statistics.StatisticsError) as error:  # the latter: not one step was good
                runs.append(Run(math.nan, [], str(error)))
        return runs

    def judged(self, decision: Decision) -> tuple[str, str]:
        """NEEDED, HARMLESS or UNDECIDED by the rule above, and why; empty where there is nothing to say."""
        if not decision.verdict:
            return "", ""
        base, flipped = self.runs[BASELINE.name], self.runs[decision.name]
        if any(run.diverged for run in base):
            return UNDECIDED, "the baseline itself diverged"
        if lost := [run for run in flipped if run.diverged]:
            why = lost[0].stopped or "the score is no number"
            return NEEDED, f"{len(lost)} of {len(flipped)} runs diverged: {why}"
        if [(run.score, run.curve) for run in flipped] == [(run.score, run.curve) for run in base]:
            return HARMLESS, "bit for bit the baseline's runs: nothing here depends on it"
        if len(base) < ENOUGH:
            return UNDECIDED, f"it takes {ENOUGH} seeds to see how far they spread"
        turned = 1 if self.work.higher else -1  # so that higher is better
        scores, mean = [turned * run.score for run in base], turned * statistics.fmean(run.score for run in flipped)
        worst, spread = min(scores), max(scores) - min(scores)
        if mean >= worst:
            return HARMLESS, "the mean is no worse than the baseline's worst seed"
        gap = (worst - mean) / spread if spread else math.inf
        return NEEDED if gap > 1 else UNDECIDED, f"the mean is {gap:.1f} spreads worse than the baseline's worst seed"

    # ---- how it is shown

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON types."""

        def entry(decision: Decision) -> dict[str, Any]:
            (verdict, why), runs = self.judged(decision), self.runs[decision.name]
            said = {name: getattr(decision, name) for name in ("name", "flipped", "topic")}
            said |= {"policy": str(decision.policy), "verdict": verdict, "why": why}
            return {**said, "runs": [asdict(run) for run in runs]}

        plain = {"workload": self.work.name, "measure": self.work.measure, "higher_is_better": self.work.higher}
        return jsonable({**plain, "seeds": self.seeds, "decisions": [entry(d) for d in (BASELINE, *self.decisions)]})

    def __str__(self) -> str:
        rows: list[tuple[str, ...]] = [
            ("decision", self.work.measure, "of seeds", "verdict", "flipped", "tinymp explain")
        ]
        for d in (BASELINE, *self.decisions):
            scores = [run.score for run in self.runs[d.name]]
            found = f"{statistics.fmean(scores):.5g}", f"{min(scores):.5g} to {max(scores):.5g}"
            rows.append((d.name, *found, self.judged(d)[0] or "-", d.flipped, d.topic))
        title = f"{self.work.name}, {many(self.seeds, 'seed')}; {'higher' if self.work.higher else 'lower'} is better"
        whys = [f"{d.name}: {why}" for d in self.decisions if (why := self.judged(d)[1])]
        return "\n".join([title, "", table(rows, left=range(6), most=None), "", *whys])

    def write_png(self, path: Path) -> None:
        """Write the training curves, as in MPT figures 2a and 7: one panel per decision (orange), beside the baseline's
        (grey). ModuleNotFoundError without matplotlib.
        """
        write_figure(path, drawn(*[partial(self._draw, d) for d in self.decisions]), dpi=110)

    def _draw(self, decision: Decision, axes: Any) -> None:
        for name, color, width in ((BASELINE.name, "0.75", 3), (decision.name, RED, 0.9)):
            for run in self.runs[name]:
                window = max(len(run.curve) // 40, 1)
                curve = [statistics.fmean(run.curve[max(i - window, 0) : i]) for i in range(1, len(run.curve) + 1)]
                axes.plot(curve, color=color, linewidth=width)
        axes.text(0.97, 0.05, decision.flipped, transform=axes.transAxes, ha="right")
        title = f"{decision.name}: {self.judged(decision)[0] or 'for comparison'}"
        axes.set(yscale="log", title=title, xlabel="step", ylabel="training loss")
        axes.yaxis.set_major_formatter("{x:g}")
