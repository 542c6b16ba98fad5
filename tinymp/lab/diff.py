"""`tinymp diff A B`: two runs compared tensor by tensor, from their traces (trace.py).

Tensors are paired step by step (align.py); where the programs part, what is in one alone is counted apart. A pair is
the same if its bits are, but for the loss scale that it carries. How far apart it is otherwise:
|a - b| / max(|a|, |b|), with the Euclidean norm of all elements, each divided by its loss scale. That is known within a
tenth or so (backend/sketch.py), and infinite where the shapes, or the numbers of infinities and NaN, differ.

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
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from itertools import groupby, repeat, zip_longest
from typing import Any, NamedTuple

import numpy as np

from ..audit.ledger import jsonable
from ..audit.numbers import apart, many, number
from ..audit.report import document
from ..audit.run import Line, Run, Step
from ..audit.sampling import html, narrowed, table
from ..checkpoint.writing import printable
from ..dtypes import FLOATING, as_dtype
from ..ops.more.limits import limits
from .align import Aligner, passes

SLACK = 1.5  # times one rounding: the distance is an estimate
CLOSE = 0.01  # the results of two ops of which one stands for the other
GROWTH = 10  # times what an op read apart: what it may make of that


class Pair(NamedTuple):
    """A tensor of both runs.

    same      whether dtype, shape and all bits are; under another loss scale, once both are divided by it
    distance  see above
    inputs    the largest distance among what its op read; None where that is not known
    rewired   whether A's op and B's did not read the same tensors, as behind an op that one run has alone
    behind    those ops, with "A" or "B", where they change what is read: the results that only one run has
    rounding  the distance that one rounding to the coarsest dtype so far explains
    """

    iteration: int
    a: Line
    b: Line
    same: bool
    distance: float
    inputs: float | None
    rewired: bool
    behind: tuple[tuple[str, Line], ...]
    rounding: float

    @property
    def adds(self) -> bool:
        """Whether it is further apart than a rounding explains, here or, and then grown, in what the ops read."""
        rounded, read = SLACK * self.rounding, self.inputs or 0
        grown = GROWTH * read if not self.rewired or read <= rounded else 0
        whose = (self.a.role, self.a.phase) != ("input", "backward")  # not of a sum of gradients
        return whose and self.distance > max(rounded, grown)

    @property
    def replaced(self) -> bool:
        """Whether another op made it."""
        return self.a.role == "output" and self.a.op != self.b.op

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


class Unmatched(NamedTuple):
    """The ops of a step that only A has, and only B (a result of each), and how many both have in another order."""

    iteration: int
    a: list[Line]
    b: list[Line]
    moved: int


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


class Section(NamedTuple):
    """What is said below a title: sentences, and a table of rows, whose columns `left` are aligned to the left."""

    title: str
    said: Sequence[str] = ()
    rows: Sequence[tuple[str, ...]] = ()
    left: tuple[int, ...] = (0,)


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
    diverges       where they really part: the step, "A" or "B" for an op that one of them has alone and that changes
                   numbers, "" for one of both, and its Line (A's); None if all tensors that both have are the same
    unmatched      the first step with ops that one run has alone, or in another order; None if there is none
    only           how many tensors only A has, and only B
    steps          every step that both have, as Compared
    depth          the Pairs of the first step with a difference (else of the first), in the order of the program
    nonfinite      where the first infinity or NaN is: (step, Line) of A, of B, or None
    """

    def __init__(self, a: Run, b: Run) -> None:
        self.a, self.b = a, b
        self.first: Pair | None = None
        self.beyond: Pair | None = None
        self._parted: Pair | None = None
        self.diverges: tuple[int, str, Line] | None = None
        self.unmatched: Unmatched | None = None
        self.only = [0, 0]
        self.steps: list[Compared] = []
        self.depth: list[Pair] = []
        self.nonfinite: list[tuple[int, Line] | None] = [None, None]
        self.seeds: tuple[int | None, int | None] = (None, None)
        self.generators = -1  # the first step that began with other states of the random generators
        self._aligner = Aligner()
        self._read: list[list[dict[int, _Read]]] = [[{}, {}], [{}, {}]]  # of A and B: of the last step, and of this one
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
        aligned = list(self._aligner.align(one.lines, other.lines))
        while aligned and not (one.whole and other.whole) and None in aligned[-1]:
            aligned.pop()  # what a run that was cut off did not come to
        alone: list[list[Line]] = [[], []]
        for side, lines in enumerate(zip(*aligned)):
            self._read[side] = [self._read[side][1], {}]
            for line in sorted((x for x in lines if x is not None), key=lambda x: x.number):
                self._enter(side, line)
                if line.nonfinite and self.nonfinite[side] is None:
                    self.nonfinite[side] = one.iteration, line
        for x, y in aligned:
            if x is not None and y is not None:
                self._read[0][1][x.number].partner, self._read[1][1][y.number].partner = y.number, x.number
            else:
                alone[x is None] += [line for line in (x, y) if line is not None]
        pairs = [self._pair(one.iteration, x, y) for x, y in aligned if x is not None and y is not None]
        self._count(one.iteration, alone, pairs)
        if not pairs:
            return
        self.first = self.first or next((p for p in pairs if not p.same), None)
        if self.beyond is None:
            self.beyond = next((p for p in pairs if p.distance > SLACK * p.rounding), None)
        if not self._parted:
            self._parted = next((p for p in pairs if p.adds), None)
            if self._parted or (self.first and self.diverges is None):
                self.diverges = _diverges(pairs, self._parted or self.first)
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

    def _enter(self, side: int, line: Line) -> None:
        before, now = self._read[side]
        now.update({i: before[i] for i in line.inputs if i in before})  # it lasts while it is read
        rounds = max([rounding(line), *[now[i].rounding for i in line.inputs if i in now]])
        now[line.number] = _Read(line, rounds)

    def _count(self, iteration: int, alone: list[list[Line]], pairs: list[Pair]) -> None:
        self.only = [n + len(lines) for n, lines in zip(self.only, alone)]
        if self.unmatched is None:
            ops = [[x for x in lines if _is_op(x)] for lines in alone]
            order: list[int] = []  # the longest of B's numbers that grow
            for p in (ran := [p for p in pairs if _is_op(p.a)]):
                at = bisect_left(order, p.b.number)
                order[at : at + 1] = [p.b.number]
            if ops[0] or ops[1] or len(order) < len(ran):
                self.unmatched = Unmatched(iteration, ops[0], ops[1], len(ran) - len(order))

    def _pair(self, iteration: int, a: Line, b: Line) -> Pair:
        far, (of_a, of_b) = distance(a, b), [seen[1] for seen in self._read]
        same = (a.dtype, a.shape, a.digest, a.scale) == (b.dtype, b.shape, b.digest, b.scale)
        same = same or (a.dtype == b.dtype and a.scale != b.scale and far == 0)
        theirs = {of_b[j].partner: j for j in b.inputs if j in of_b}
        others = iter([j for j in b.inputs if j not in of_b or of_b[j].partner not in a.inputs])
        read = [(i, theirs[i] if i in theirs else next(others, -1)) for i in a.inputs]
        rewired = len(a.inputs) != len(b.inputs) or any(of_b[j].partner != i for i, j in read if j in of_b)
        known = [distance(of_a[i].line, of_b[j].line) for i, j in read if i in of_a and j in of_b]
        inputs = max(known, default=None) if len(a.inputs) == len(b.inputs) else None
        behind = self._behind(a, b) if rewired and not same else ()
        rounds = max(of_a[a.number].rounding, of_b[b.number].rounding)
        return Pair(iteration, a, b, same, far, inputs, rewired, behind, rounds)

    def _behind(self, a: Line, b: Line) -> tuple[tuple[str, Line], ...]:
        found: dict[tuple[int, int], Line] = {}
        waits = [(0, i) for i in a.inputs] + [(1, j) for j in b.inputs]
        while waits:
            side, i = at = waits.pop()
            read = self._read[side][1].get(i)
            if read is not None and read.partner is None and at not in found:
                found[at] = read.line
                waits += [(side, j) for j in read.line.inputs]
        changed = []
        for (side, _), x in sorted(found.items()):
            seen = self._read[side][1]
            changed += [("AB"[side], x)] * (not passes(x, {i: seen[i].line for i in x.inputs if i in seen}))
        return tuple([one for one in changed if one[1].role == "output"] or changed)

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
        what = self.diverges and (*self.diverges[:2], *_named(self.diverges[2]))
        content["diverges"] = what and dict(zip(("iteration", "only", "what", "caller"), what))
        u = self.unmatched
        content["unmatched"] = u and {**u._asdict(), "a": [*map(_named, u.a)], "b": [*map(_named, u.b)]}
        content["nonfinite"] = [at and {"iteration": at[0], "what": str(at[1])} for at in self.nonfinite]
        content["steps"] = [step._asdict() for step in self.steps]
        content["depth"] = [pair.as_dict() for pair in self.depth]
        return jsonable(content)

    def headings(self) -> list[str]:
        """A line for each run: how much of it there is, and whether it ended."""
        lines = []
        for name, run, unpaired in zip("AB", (self.a, self.b), self.unpaired):
            steps = many(len(self.steps) + unpaired, "step")
            text = f"{name}  {run.source}: {steps}, {many(run.tensors, 'tensor')}"
            if run.ended is None:
                text += "; cut off: the program was killed, or is running"
            elif run.ended:
                text += f"; ended early: {run.ended}"
            if run.others:
                text += f"; beside it other processes, which are compared by name: {', '.join(run.others)}"
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
        elif p.rewired or p.replaced:
            parts.append(_rewired(p))
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
        parts = ["\n".join(_wrapped(line, width, "   ", "") for line in self.headings())]
        for title, said, rows, left in self._sections(8):
            lines = [_wrapped(title, width, "    ", ""), *[_wrapped(text, width) for text in said]]
            if len(left) == 3:  # whole values, below each other
                cell = max((width - 18) // 2, 12)
                cut = [(row[0][:14], [textwrap.wrap(value, cell) or ["-"] for value in row[1:]]) for row in rows[1:]]
                cells = [
                    (name * (not i), *row)
                    for name, both in cut
                    for i, row in enumerate(zip_longest(*both, fillvalue=""))
                ]
                lines.append(table([rows[0], *cells], left, most=None, ruled=False))
            elif rows:
                lines.append(_fitted(rows, width, left, left[0]))
            parts.append("\n".join(lines))
        return "\n\n".join(parts)

    def to_html(self) -> str:
        """All of it as one page that needs nothing else."""
        return printable(document(f"tinymp diff: {self.a.source} and {self.b.source}", [self._repr_html_()]))

    def _repr_html_(self) -> str:
        parts = [html(self.headings())]
        for title, said, rows, left in self._sections(None):
            told = [*said, table(rows, left, most=None)] if rows else said
            parts.append(f"<h3>{escape(title)}</h3>\n{html(told)}")
        return "\n".join(parts)

    def _sections(self, most: int | None) -> Iterator[Section]:
        """What there is to say: titles, sentences, a table and its columns on the left. most: ops shown of a phase."""
        rows: list[tuple[str, ...]] = [
            ("", "A", "B"),
            *((name, *values) for name, values in self.configuration.items()),
        ]
        if not self.configuration:
            yield Section(f"Configuration: all of {self.settings} settings are the same")
        else:
            yield Section(f"Configuration: {len(rows) - 1} of {self.settings} settings differ", [], rows, (0, 1, 2))
        if self.first is None:
            begins = "What both have is the same, bit for bit" if any(self.only) else "No difference, bit for bit"
            tensors = sum(s.tensors for s in self.steps)
            yield Section(f"{begins}: {many(tensors, 'tensor')} in {many(len(self.steps), 'step')}.")
        elif self.diverges and not any(p and p.a is self.diverges[2] for p in (self.first, self.beyond)):
            at, which, line = self.diverges
            what = [f"Only {which} has it. It changes the numbers, and what comes after it differs."] * bool(which)
            if self._parted and not which:
                what = [f"Apart by {apart(self._parted.distance)}, what it read by {apart(self._parted.inputs)}."]
            yield Section(f"They part: step {at}, {_at(line)}", what)
        if self.first is not None:
            yield self._about("First difference", self.first, [self.why()])
            if self.beyond is None:
                yield Section("No tensor is further apart than one rounding explains.")
            elif self.beyond.a is not self.first.a:
                grows = [f"What it read is apart by {apart(self.beyond.inputs)}."] if self.beyond.inputs else []
                yield self._about("First beyond one rounding", self.beyond, grows)
        if self.unmatched is not None:
            at, a, b, moved = self.unmatched
            said = [f"In {w} alone: {_listed(lines, most)}." for w, lines in zip("AB", (a, b)) if lines]
            counts = f"{many(len(a), 'op')} in A alone, {len(b)} in B alone, {moved} in another order"
            yield Section(f"Unmatched in step {at}: {counts}", said)
        if any(self.only):  # a step that was skipped has no updates
            in_a, in_b = (many(n, "tensor") for n in self.only)
            yield Section(f"In all, {in_a} in A alone and {in_b} in B alone.")
        for which, found in zip("AB", self.nonfinite):
            if found is not None:
                yield Section(f"First infinity or NaN in {which}: step {found[0]}, {_at(found[1])}")
        if self.first is not None:
            yield Section(f"Along depth, step {self.depth[0].iteration}:", [], self._along_depth(most), (0, 3))
            yield Section("By step:", [], self._by_step(most), (7,))

    def _about(self, title: str, p: Pair, more: list[str]) -> Section:
        a, b = p.a, p.b
        lines = a.caller if a.caller == b.caller else f"A: {a.caller}, B: {b.caller}"
        dtypes = a.dtype if a.dtype == b.dtype else f"{a.dtype} and {b.dtype}"
        far = f"Apart by {apart(p.distance)} of its norm"
        if a.nonfinite != b.nonfinite:
            far = f"{a.nonfinite:,} numbers in A and {b.nonfinite:,} in B are infinite or NaN"
        return Section(f"{title}: step {p.iteration}, {a} ({lines})", [f"{far}; {dtypes} {a.shape}.", *more])

    def _along_depth(self, most: int | None) -> list[tuple[str, ...]]:
        """The ops of one step: of many where the distance changed most, first and last."""
        rows: list[tuple[str, ...]] = [("", "apart", "of one rounding", "caller")]
        for phase in ("forward", "backward", "update"):
            pairs = [p for p in self.depth if p.a.phase == phase and p.a.role in ("output", "update")]
            for p in _telling(pairs, most or len(pairs)):
                rounds = f"{p.distance / p.rounding:.2g} x" if p.rounding and p.distance < math.inf else ""
                name = f"{p.a.module} {phase}" if phase == "update" else str(p.a)
                rows.append((name, apart(p.distance), rounds, p.a.caller))
        return rows

    def _by_step(self, most: int | None) -> list[tuple[str, ...]]:
        rows: list[tuple[str, ...]] = [("step", "loss A", "loss B", "differ", "median", "worst", "weights", "worst in")]
        shown = self.steps
        if most and len(shown) > 10:  # ever further apart
            at = sorted({round((len(shown) - 1) ** (i / 9)) for i in range(10)} | {0})
            shown = [self.steps[i] for i in at]
        for s in shown:
            losses = ["-" if x is None else number(x) for x in (s.loss_a, s.loss_b)]
            far = ["-" if x is None else apart(x) for x in (s.median, s.worst, s.weights)]
            rows.append((str(s.iteration), *losses, f"{s.differ}/{s.tensors}", *far, s.where * (s.worst > 0)))
        return rows


@dataclass
class _Read:
    """A tensor that may be read: its line, the rounding that it inherits, and the number of its partner in the other
    run."""

    line: Line
    rounding: float
    partner: int | None = None


def _is_op(x: Line) -> bool:
    """Whether it stands for a call of an op."""
    return x.role == "output" and x.phase != "backward" and x.name in ("", "0")


def _diverges(pairs: list[Pair], first: Pair | None) -> tuple[int, str, Line] | None:
    """Where two runs part whose first Pair apart is this one."""
    if first is None:
        return None
    for p in pairs:  # an op that one run has alone may have run before it
        if p.behind and (p.adds or p is first) and not (p.replaced and p.distance < CLOSE):
            which, line = p.behind[0]
            if p is first or line.number < (first.a if which == "A" else first.b).number:
                return p.iteration, which, line
    return first.iteration, "", first.a


def distance(a: Line, b: Line) -> float:
    """How far apart two tensors are, as the head of this file says."""
    if (a.dtype, a.shape, a.digest, a.scale) == (b.dtype, b.shape, b.digest, b.scale):
        return 0.0
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


def _at(x: Line) -> str:
    return f"{x} ({x.caller})"


def _named(x: Line) -> tuple[str, str]:
    return str(x), x.caller


def _listed(lines: list[Line], most: int | None) -> str:
    more = f" and {len(lines) - most} more" if most and len(lines) > most else ""
    return ", ".join(map(_at, lines[:most])) + more


def _rewired(p: Pair) -> str:
    if p.replaced:
        return f"A ran {p.a.op} here, B {p.b.op}."
    if p.inputs == 0:
        return f"It read the same numbers, which were made otherwise. {_OTHER}"
    own = ", ".join([f"{_at(x)} in {which}" for which, x in p.behind[:3]])
    return "It was not made from the same tensors" + (f": an op before it is in one run alone, {own}." if own else ".")


def _telling(pairs: list[Pair], most: int) -> list[Pair]:
    """At most so many, in order: the first and the last, and those between which the distance changes most."""
    if len(pairs) <= most:
        return pairs
    size = [math.log(min(max(p.distance, 1e-9), 10.0)) for p in pairs]
    steps = sorted(range(1, len(pairs) - 1), key=lambda i: -abs(size[i] - size[i - 1]))
    return [pairs[i] for i in sorted({0, len(pairs) - 1, *steps[: most - 2]})]


def _wrapped(text: str, width: int, indent: str = "  ", first: str = "  ") -> str:
    return textwrap.fill(text, width, initial_indent=first, subsequent_indent=indent, break_on_hyphens=False)


def _fitted(rows: Sequence[tuple[str, ...]], width: int, left: tuple[int, ...] = (0,), give: int = 0) -> str:
    """A table no wider than the terminal: the column `give` gives way, and its names lose their middle."""
    return table(narrowed(rows, width, give, middle=True), left, most=None, ruled=False)
