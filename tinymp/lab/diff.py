"""`tinymp diff A B`: two runs compared tensor by tensor, from their traces (trace.py).

Tensors are paired in the order of their ops, step by step; where the orders part, because the programs do, what is in
one alone is counted apart. A pair is the same if its bits are, but for the loss scale that it carries. How far apart it
is otherwise: |a - b| / max(|a|, |b|), with the Euclidean norm of all elements, each divided by its loss scale. That is
known within a tenth or so (backend/sketch.py), and infinite where the shapes, or the numbers of infinities and NaN,
differ.

One rounding to nearest explains a distance of at most half a unit in the last place of the coarsest dtype that a number
has been in, here or in what the op read. Beyond half as much again (for the uncertainty), a pair is more than rounded.
"""

from __future__ import annotations

import heapq
import math
import os
import shutil
import statistics
import textwrap
from collections import Counter, defaultdict
from collections.abc import Iterator
from difflib import SequenceMatcher
from itertools import count, groupby, repeat, zip_longest
from typing import Any, NamedTuple

import numpy as np

from ..audit.ledger import jsonable
from ..audit.numbers import SPACE, apart, many, number
from ..audit.run import Line, Run, Step
from ..audit.sampling import narrowed, table
from ..dtypes import FLOATING, as_dtype
from ..ops.more.limits import limits

SLACK = 1.5  # times one rounding: the distance is an estimate
MANY = 1 << 20  # pairs of a step that might belong together


class Pair(NamedTuple):
    """A tensor of both runs.

    same      whether dtype, shape and all bits are; under another loss scale, once both are divided by it
    distance  see above
    inputs    the largest distance among what its op read; None where that is not known
    rewired   whether A's op and B's did not read the same tensors, as behind an op that one run has alone
    rounding  the distance that one rounding to the coarsest dtype so far explains
    """

    iteration: int
    a: Line
    b: Line
    same: bool
    distance: float
    inputs: float | None
    rewired: bool
    rounding: float

    def as_dict(self) -> dict[str, Any]:
        """As plain values."""
        both = {name: [getattr(x, name) for x in (self.a, self.b)] for name in _OF_EACH}
        own = {name: getattr(self, name) for name in _OWN}
        place = {name: getattr(self.a, name) for name in ("role", "name", "module", "op", "phase")}
        return {"what": str(self.a), **place, **own, **both}


_OWN = ("iteration", "same", "distance", "inputs", "rewired", "rounding")
_OF_EACH = ("caller", "shape", "dtype", "norm", "largest", "nonfinite", "scale")


_WHY = {  # of a difference, by the tensor's role
    "parameter": "What the optimizer wrote was the same: the weight was changed or rounded otherwise.",
    "input": "It comes from outside of the ops: the runs were given different data.",
    "gradient": "Backward wrote the same: what came after (unscaling, clipping, an exchange) did not.",
    "update": "The optimizer read the same gradient: its options, its state or its arithmetic differ.",
}
_OTHER = (
    "What this op read was the same, bit for bit: the op itself computes something else (another policy, backend or "
    "BLAS, other options, other random numbers, other code)."
)


class Compared(NamedTuple):
    """A step: both losses, distances of the ops' results, the worst of the weights; None where there is none."""

    iteration: int
    loss_a: float | None
    loss_b: float | None
    tensors: int
    differ: int
    median: float
    worst: float
    where: str
    weights: float | None


def diff(a: str | os.PathLike[str], b: str | os.PathLike[str]) -> Difference:
    """Compare the traces of two runs: folders that `tinymp audit --trace` or `mp.audit(trace=...)` wrote.

    "runs/a:MIXED" is what ran under one policy alone, with its steps counted from 0. A trace that was cut off is
    compared as far as it goes. TypeError for what is no path, FileNotFoundError where there is no trace, ValueError for
    one of another format, or that cannot be read, and for runs that have nothing in common.
    """
    for which, path in (("a", a), ("b", b)):
        if not isinstance(path, (str, os.PathLike)):
            raise TypeError(f"diff: expected {which} to be a folder with a trace, got {path!r}")
    return Difference(Run(a), Run(b))


class Difference:
    """What `diff` found; `print` shows it.

    a, b           the two runs
    configuration  {what: (of a, of b)} of all that differs in how they were run; `settings` were compared
    first          the first Pair that is not the same, bit for bit; None if all are
    beyond         the first that is further apart than one rounding explains
    parted         the first tensor that only one run has: its step, "A" or "B", and its Line; None if there is none
    only           how many tensors only A has, and only B
    steps          every step that both have, as Compared
    depth          the Pairs of the first step with a difference (else of the first), in the order of the program
    nonfinite      where the first infinity or NaN is: (step, Line) of A, of B, or None
    """

    def __init__(self, a: Run, b: Run) -> None:
        self.a, self.b = a, b
        self.first: Pair | None = None
        self.beyond: Pair | None = None
        self.parted: tuple[int, str, Line] | None = None
        self.only = [0, 0]
        self.steps: list[Compared] = []
        self.depth: list[Pair] = []
        self.nonfinite: list[tuple[int, Line] | None] = [None, None]
        self.seeds: tuple[int | None, int | None] = (None, None)
        self.generators = -1  # the first step that began with other states of the random generators
        # By the number of A's lines, of the last step and of this one, and those that they read: distance and rounding
        self._known: list[dict[int, tuple[float, float]]] = [{}, {}]
        # By the number of B's lines the number of A's; -1 for what B has alone
        self._partners: list[dict[int, int]] = [{}, {}]
        unpaired = [0, 0]
        for one, other in _together(a.steps(), b.steps()):
            if one is None or other is None:
                unpaired[one is None] += 1
            else:
                self._compare(one, other)
        self.unpaired = unpaired  # steps that only A has, and only B
        if not self.steps:
            self._refuse()
        self.configuration, self.settings = self._configured()

    @property
    def same(self) -> bool:
        """Whether the runs have the same tensors, bit for bit, as far as both go."""
        return self.first is None and not any(self.only)

    # ---- comparing

    def _compare(self, one: Step, other: Step) -> None:
        if not self.steps:
            self.seeds = one.seed, other.seed
        if self.generators < 0 and one.rng != other.rng:
            self.generators = one.iteration
        self._known, self._partners = [self._known[1], {}], [self._partners[1], {}]
        pairs: list[Pair] = []
        aligned = list(align(one.lines, other.lines))
        while aligned and not (one.whole and other.whole) and None in aligned[-1]:
            aligned.pop()  # what a run that was cut off did not come to
        for x, y in aligned:
            for i, line in enumerate((x, y)):
                if line is not None and line.nonfinite and self.nonfinite[i] is None:
                    self.nonfinite[i] = one.iteration, line
            if x is not None and y is not None:
                pairs.append(self._pair(one.iteration, x, y))
                continue
            alone = x or y
            assert alone is not None
            self.only[x is None] += 1
            if x is None:
                self._partners[1][alone.number] = -1
            if self.parted is None:
                self.parted = one.iteration, "B" if x is None else "A", alone
        if not pairs:
            return
        self.first = self.first or next((p for p in pairs if not p.same), None)
        self.beyond = self.beyond or next((p for p in pairs if p.distance > SLACK * p.rounding), None)
        differ = [p for p in pairs if not p.same]
        if not self.steps or (differ and all(p.same for p in self.depth)):
            self.depth = pairs
        results = [p for p in pairs if p.a.role == "output"] or pairs
        worst = max(results, key=lambda p: p.distance)
        losses = [p for p in pairs if p.a.role == "loss" and p.a.sketch.size == p.b.sketch.size == 1]
        loss_a, loss_b = [float(x.sketch[0]) / x.scale for x in losses[-1][1:3]] if losses else (None, None)
        weights = max((p.distance for p in pairs if p.a.role == "update"), default=None)
        median = statistics.median(p.distance for p in results)
        counts = len(pairs), len(differ)
        found = one.iteration, loss_a, loss_b, *counts, median, worst.distance, str(worst.a), weights
        self.steps.append(Compared(*found))

    def _pair(self, iteration: int, a: Line, b: Line) -> Pair:
        same = (a.dtype, a.shape, a.digest, a.scale) == (b.dtype, b.shape, b.digest, b.scale)
        far = 0.0 if same else distance(a, b)
        same = same or (a.dtype == b.dtype and a.scale != b.scale and far == 0)
        now, partners = _carried(self._known, a.inputs), _carried(self._partners, b.inputs)
        rewired = len(a.inputs) != len(b.inputs) or any(partners.get(j, i) != i for i, j in zip(a.inputs, b.inputs))
        read = [now[i] for i in a.inputs if i in now]
        rounds = max([rounding(a), rounding(b), *[inherited for _, inherited in read]])
        now[a.number], partners[b.number] = (far, rounds), a.number
        inputs = None if rewired else max((d for d, _ in read), default=None)
        return Pair(iteration, a, b, same, far, inputs, rewired, rounds)

    def _refuse(self) -> None:
        """Nothing could be compared."""
        for run in (self.a, self.b):
            if run.policy and not run.tensors:
                names = ", ".join(sorted({p.partition("(")[0] for p in run.policies})) or "none"
                raise ValueError(f"diff: nothing in {str(run.path)!r} ran under {run.policy!r}; policies: {names}")
            if not run.tensors:
                raise ValueError(f"diff: the trace {str(run.path)!r} is empty: no op ran, or none that was listened to")
        raise ValueError(
            f"diff: {self.a.source!r} and {self.b.source!r} have no tensor in common: trace the same program, with the "
            "same --every"
        )

    def _configured(self) -> tuple[dict[str, tuple[str, str]], int]:
        """What differs in how they were run, and how many settings there are."""
        found: list[dict[str, str]] = []
        for run, seed in zip((self.a, self.b), self.seeds):
            own = {k: v for k, v in run.header.items() if k not in ("tinymp trace", "environment")}
            named = [p for p in run.policies if not run.policy or p.lower().startswith(run.policy.lower() + "(")]
            own |= {"policy": "; ".join(named), "device": ", ".join(run.devices)}
            own |= {"seed": "none set" if seed is None else seed, **run.header["environment"]}
            found.append({k: "-" if v in (None, "") else str(v) for k, v in own.items()})
        names = list(dict.fromkeys([*found[0], *found[1]]))
        values = {name: (found[0].get(name, "-"), found[1].get(name, "-")) for name in names}
        return {name: (x, y) for name, (x, y) in values.items() if x != y}, len(values)

    # ---- telling

    def as_dict(self) -> dict[str, Any]:
        """All of it, as JSON can hold it."""
        plain = ("same", "configuration", "settings", "only", "unpaired")
        content = {name: getattr(self, name) for name in plain}
        for name, run in (("a", self.a), ("b", self.b)):
            content[name] = {"source": run.source, "tensors": run.tensors, "ended": run.ended, **run.header}
        content |= {"headings": self.headings(), "why": self.why()}
        for name, pair in (("first", self.first), ("beyond", self.beyond)):
            content[name] = pair and pair.as_dict()
        what = self.parted and (*self.parted[:2], str(self.parted[2]))
        content["parted"] = what and dict(zip(("iteration", "only", "what"), what))
        content["nonfinite"] = [at and {"iteration": at[0], "what": str(at[1])} for at in self.nonfinite]
        content["steps"] = [step._asdict() for step in self.steps]
        content["depth"] = [pair.as_dict() for pair in self.depth]
        return jsonable(content)

    def headings(self) -> list[str]:
        """A line for each run: how much of it there is, and whether it ended."""
        lines = []
        for name, run, unpaired in zip("AB", (self.a, self.b), self.unpaired):
            steps = many(len(self.steps) + unpaired, "step")
            text = f"{name}  {run.source}: {steps}, {many(run.tensors, 'tensor')}".replace(SPACE, " ")
            if run.ended is None:
                text += "; cut off: the program was killed, or is running"
            elif run.ended:
                text += f"; ended early: {run.ended}"
            lines.append(text)
        return lines

    def why(self) -> str:
        """What the first difference means, in sentences."""
        p = self.first
        if p is None:
            return ""
        a, b = p.a, p.b
        if a.shape != b.shape:
            return f"Its shape is {a.shape} in A and {b.shape} in B."
        parts = [f"It is stored as {a.dtype} in A and as {b.dtype} in B."] * (a.dtype != b.dtype)
        if parts and p.distance <= SLACK * p.rounding:
            parts.append("One rounding explains the distance.")
        elif p.rewired:
            parts.append("It was not made from the same tensors: an op before it is in one run alone.")
        elif a.role == "parameter" and p.iteration == self.steps[0].iteration:
            parts.append("The weights differ before an op has run on them: another seed, or other weights loaded.")
        else:
            parts.append(_WHY.get(a.role, _OTHER))
        if p.distance == 0 and a.dtype == b.dtype:
            parts.append("Only the signs of zeros, or bits of NaN, differ.")
        if 0 <= self.generators <= p.iteration:
            parts.append(f"The random generators stood elsewhere when step {self.generators} began.")
        return " ".join(parts)

    def __str__(self) -> str:
        width = max(shutil.get_terminal_size().columns, 60)
        parts = [
            "\n".join(_wrapped(line, width, "   ", "") for line in self.headings()),
            self._text_configuration(width),
        ]
        if self.first is None:
            steps, tensors = many(len(self.steps), "step"), many(sum(s.tensors for s in self.steps), "tensor")
            begins = "What both have is the same, bit for bit" if any(self.only) else "No difference, bit for bit"
            parts.append(f"{begins}: {tensors} in {steps}.".replace(SPACE, " "))
        else:
            parts.append(self._text_of("First difference", self.first, width) + "\n" + _wrapped(self.why(), width))
            if self.beyond is None:
                parts.append("No tensor is further apart than one rounding explains.")
            elif self.beyond.a is not self.first.a:
                grows = f"\n  What it read is apart by {apart(self.beyond.inputs)}." if self.beyond.inputs else ""
                parts.append(self._text_of("First beyond one rounding", self.beyond, width) + grows)
        said = []
        if self.parted is not None:
            at, which, line = self.parted
            in_a, in_b = (many(n, "tensor").replace(SPACE, " ") for n in self.only)
            # a step that was skipped has no updates, another program other ops
            alone = f"In all, {in_a} in A alone and {in_b} in B alone."
            said.append(f"First in {which} alone: step {at}, {line} ({line.caller}). {alone}")
        for which, found in zip("AB", self.nonfinite):
            if found is not None:
                said.append(f"First infinity or NaN in {which}: step {found[0]}, {found[1]} ({found[1].caller})")
        parts += [_wrapped(text, width, first="") for text in said]
        if self.first is not None:
            parts += [self._text_depth(width), self._text_steps(width)]
        return "\n\n".join(part for part in parts if part)

    def _text_configuration(self, width: int) -> str:
        if not self.configuration:
            return f"Configuration: all of {self.settings} settings are the same"
        cell = max((width - 18) // 2, 12)
        rows: list[tuple[str, ...]] = [("", "A", "B")]
        for name, values in self.configuration.items():
            cut = zip_longest(*(textwrap.wrap(value, cell) or ["-"] for value in values), fillvalue="")
            rows += [(name[:14] * (i == 0), *lines) for i, lines in enumerate(cut)]
        title = f"Configuration: {len(self.configuration)} of {self.settings} settings differ"
        return title + "\n" + table(rows, left=(0, 1, 2), most=None, ruled=False)

    def _text_of(self, title: str, p: Pair, width: int) -> str:
        a, b = p.a, p.b
        lines = a.caller if a.caller == b.caller else f"A: {a.caller}, B: {b.caller}"
        dtypes = a.dtype if a.dtype == b.dtype else f"{a.dtype} and {b.dtype}"
        far = f"Apart by {apart(p.distance)} of its norm"
        if a.nonfinite != b.nonfinite:
            far = f"{a.nonfinite:,} numbers in A and {b.nonfinite:,} in B are infinite or NaN"
        title = _wrapped(f"{title}: step {p.iteration}, {a} ({lines})", width, "    ", "")
        return title + "\n" + _wrapped(f"{far}; {dtypes} {a.shape}.", width)

    def _text_depth(self, width: int) -> str:
        """The ops of one step, at most a dozen of each phase: where the distance changed most, first and last."""
        rows: list[tuple[str, ...]] = [("", "apart", "of one rounding", "caller")]
        for phase in ("forward", "backward", "update"):
            pairs = [p for p in self.depth if p.a.phase == phase and p.a.role in ("output", "update")]
            for p in _telling(pairs, 8):
                rounds = f"{p.distance / p.rounding:.2g} x" if p.rounding and p.distance < math.inf else ""
                name = f"{p.a.module} {phase}" if phase == "update" else str(p.a)
                rows.append((name, apart(p.distance), rounds, p.a.caller))
        step = self.depth[0].iteration
        return f"Along depth, step {step}:\n" + _fitted(rows, width, left=(0, 3))

    def _text_steps(self, width: int) -> str:
        rows: list[tuple[str, ...]] = [("step", "loss A", "loss B", "differ", "median", "worst", "weights", "worst in")]
        shown = self.steps
        if len(shown) > 10:  # ever further apart
            at = sorted({round((len(shown) - 1) ** (i / 9)) for i in range(10)} | {0})
            shown = [self.steps[i] for i in at]
        for s in shown:
            losses = ["-" if x is None else number(x) for x in (s.loss_a, s.loss_b)]
            far = ["-" if x is None else apart(x) for x in (s.median, s.worst, s.weights)]
            rows.append((str(s.iteration), *losses, f"{s.differ}/{s.tensors}", *far, s.where * (s.worst > 0)))
        return "By step:\n" + _fitted(rows, width, left=(7,), give=7)


def align(a: list[Line], b: list[Line]) -> Iterator[tuple[Line | None, Line | None]]:
    """The lines of one step of two runs in pairs, in order; None beside what is in one alone."""
    keys = [line.signature for line in a], [line.signature for line in b]
    low = next((i for i, (x, y) in enumerate(zip(*keys)) if x != y), min(len(a), len(b)))
    left = min(len(a), len(b)) - low
    high = next((i for i in range(left) if keys[0][-1 - i] != keys[1][-1 - i]), left)
    yield from zip(a[:low], b[:low])
    middle = keys[0][low : len(a) - high], keys[1][low : len(b) - high]
    alike = Counter(middle[1])
    if sum(alike[key] for key in middle[0]) > MANY:  # the n-th of a kind with the n-th: else it takes minutes
        middle = _numbered(middle[0]), _numbered(middle[1])
    for tag, i, j, k, m in SequenceMatcher(None, *middle, autojunk=False).get_opcodes():
        one, other = a[low + i : low + j], b[low + k : low + m]
        if tag == "equal":
            yield from zip(one, other)
        else:
            yield from ((line, None) for line in one)
            yield from ((None, line) for line in other)
    yield from zip(a[len(a) - high :], b[len(b) - high :])


def _carried(known: list[dict[int, Any]], read: tuple[int, ...]) -> dict[int, Any]:
    """What is known in this step: also of the step before what is read now, so that it lasts while it is read."""
    before, now = known
    now.update({i: before[i] for i in read if i in before})
    return now


def _numbered(keys: list[tuple]) -> list[tuple]:
    """Each key with how many like it came before."""
    seen: defaultdict[tuple, count] = defaultdict(count)
    return [(*key, next(seen[key])) for key in keys]


def distance(a: Line, b: Line) -> float:
    """How far apart two tensors are, as the head of this file says."""
    if a.shape != b.shape or a.nonfinite != b.nonfinite:
        return math.inf
    largest = max(a.norm / a.scale, b.norm / b.scale)
    with np.errstate(all="ignore"):
        apart = float(np.linalg.norm(a.sketch / a.scale - b.sketch / b.scale))
    return apart / largest if 0 < largest < math.inf else 0.0 if not largest else math.inf


def rounding(x: Line) -> float:
    """The largest distance of a tensor from one that was rounded to it, to nearest."""
    dtype = as_dtype(x.dtype)
    if dtype not in FLOATING:
        return 0.0
    tiny, one = limits(dtype)[0], np.ones(1, dtype)
    half = float(np.nextafter(one, 2 * one)[0] - one[0]) / 2
    return half + half * tiny * math.sqrt(math.prod(x.shape)) / x.norm if x.norm else half


def _together(a: Iterator[Step], b: Iterator[Step]) -> Iterator[tuple[Step | None, Step | None]]:
    """The steps of two runs by their number; None where one lacks it."""
    tagged = heapq.merge(*(zip(repeat(i), steps) for i, steps in enumerate((a, b))), key=lambda x: x[1].iteration)
    for _, some in groupby(tagged, lambda x: x[1].iteration):
        found = dict(some)
        yield found.get(0), found.get(1)


# ---------------------------------------------------------------------------------------------------------- as text


def _telling(pairs: list[Pair], most: int) -> list[Pair]:
    """At most so many, in order: the first and the last, and those between which the distance changes most."""
    if len(pairs) <= most:
        return pairs
    size = [math.log(min(max(p.distance, 1e-9), 10.0)) for p in pairs]
    steps = sorted(range(1, len(pairs) - 1), key=lambda i: -abs(size[i] - size[i - 1]))
    return [pairs[i] for i in sorted({0, len(pairs) - 1, *steps[: most - 2]})]


def _wrapped(text: str, width: int, indent: str = "  ", first: str = "  ") -> str:
    return textwrap.fill(text, width, initial_indent=first, subsequent_indent=indent, break_on_hyphens=False)


def _fitted(rows: list[tuple[str, ...]], width: int, left: tuple[int, ...] = (0,), give: int = 0) -> str:
    """A table no wider than the terminal: the column `give` gives way, and its names lose their middle."""
    plain = [tuple([cell.replace(SPACE, " ") for cell in row]) for row in rows]
    return table(narrowed(plain, width, give, middle=True), left, most=None, ruled=False)
