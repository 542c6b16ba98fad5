"""`tinymp diff A B`: two runs compared tensor by tensor, from their traces (trace.py).

Tensors are paired step by step (align.py); where the programs part, what is in one alone is counted apart. A pair is
the same if its bits are, but for the loss scale that it carries. How far apart it is otherwise:
|a - b| / max(|a|, |b|), with the Euclidean norm of all elements, each divided by its loss scale. That is known within a
tenth or so (audit/sketch.py), and infinite where the shapes, or the numbers of infinities and NaN, differ.

One rounding to nearest explains a distance of at most half a unit in the last place of the coarser dtype. Beyond half
as much again (for the uncertainty), and ten times of what the op read, the runs part.
"""

from __future__ import annotations

import heapq
import math
import os
import shutil
import textwrap
from bisect import bisect_left
from collections.abc import Iterator
from html import escape
from itertools import groupby, repeat
from typing import NamedTuple

import numpy as np

from ..audit.numbers import apart, many, number
from ..audit.report import document
from ..audit.run import Line, Run, Step
from ..audit.sampling import Table, html, table
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
    rounding  the distance that one rounding to the coarser dtype explains
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
        """True if a rounding does not explain its distance, neither here nor, grown, in the inputs of the ops."""
        rounded, read = SLACK * self.rounding, self.inputs or 0
        grown = GROWTH * read if not self.rewired or read <= rounded else 0
        whose = (self.a.role, self.a.phase) != ("input", "backward")  # not of a sum of gradients
        return whose and self.distance > max(rounded, grown)

    @property
    def replaced(self) -> bool:
        """True if another op made it."""
        return self.a.role == "output" and self.a.op != self.b.op


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
    """A step: both losses, the largest distances of ops' results and of weights; None where there is none."""

    iteration: int
    loss_a: float | None
    loss_b: float | None
    tensors: int
    differ: int
    worst: float
    where: str
    weights: float | None


def diff(a: str | os.PathLike[str], b: str | os.PathLike[str]) -> Difference:
    """Compare the traces of two runs: folders that `tinymp audit --trace` or `mp.audit(trace=...)` wrote.

    "runs/a:MIXED" is what ran under one policy alone, with its steps counted from 0. A trace that was cut off is
    compared as far as it goes. FileNotFoundError where there is no trace, ValueError for one of another format, or that
    cannot be read, and for runs that have nothing in common.
    """
    return Difference(Run(a), Run(b))


class Difference:
    """The result of `diff`; `print` shows it.

    a, b           the two runs
    configuration  {what: (of a, of b)} of all that differs in how they were run; `settings` were compared
    first          the first Pair that is not the same, bit for bit; None if all are
    parted         the first that roundings do not explain, here or in what its op read; None if they explain all
    diverges       where they really part: the step, "A" or "B" for an op that one of them has alone and that changes
                   numbers, "" for one of both, and its Line (A's); None if all tensors that both have are the same
    unmatched      the first step with ops that one run has alone, or in another order; None if there is none
    only           how many tensors only A has, and only B
    steps          every step that both have, as Compared
    depth          the Pairs of the first step with a difference (else of the first), in the order of the program
    """

    def __init__(self, a: Run, b: Run) -> None:
        self.a, self.b = a, b
        self.first: Pair | None = None
        self.parted: Pair | None = None
        self.diverges: tuple[int, str, Line] | None = None
        self.unmatched: Unmatched | None = None
        self.only = [0, 0]
        self.steps: list[Compared] = []
        self.depth: list[Pair] = []
        self._aligner = Aligner()
        self._lines: list[dict[int, Line]] = [{}, {}]  # of A and B, by their numbers: those that may still be read
        self._partners: list[dict[int, int]] = [{}, {}]  # of A and B: the numbers of the same tensor in the other run
        seeds: list[int | None] = []
        for one, other in _together(a.steps(), b.steps()):
            seeds = seeds or [one.seed, other.seed]
            self._compare(one, other)
        if not self.steps:
            raise ValueError(f"diff: no tensor in common: {_found(a)}, {_found(b)}. Trace the same program for both")
        of_a, of_b = (_settings(run, seed) for run, seed in zip((a, b), seeds))
        both = {name: (of_a.get(name, "-"), of_b.get(name, "-")) for name in of_a | of_b}
        self.configuration = {name: (x, y) for name, (x, y) in both.items() if x != y}
        self.settings = len(both)

    @property
    def same(self) -> bool:
        """True if the runs have the same tensors, bit for bit, as far as both go."""
        return self.first is None and not any(self.only)

    # ---- comparing

    def _compare(self, one: Step, other: Step) -> None:
        aligned = list(self._aligner.align(one.lines, other.lines))
        while aligned and not (one.whole and other.whole) and None in aligned[-1]:
            aligned.pop()  # what a run that was cut off did not come to
        both = [(x, y) for x, y in aligned if x is not None and y is not None]
        for side, lines in enumerate(zip(*aligned)):
            now = {x.number: x for x in lines if x is not None}
            read = {i for x in now.values() for i in x.inputs}
            before = {i: self._partners[side][i] for i in read if i in self._partners[side]}
            self._lines[side] = {i: x for i, x in self._lines[side].items() if i in read} | now
            self._partners[side] = before | {pair[side].number: pair[1 - side].number for pair in both}
        pairs = [self._pair(one.iteration, x, y) for x, y in both]
        only_a, only_b = [x for x, y in aligned if x and y is None], [y for x, y in aligned if y and x is None]
        self._count(one.iteration, [only_a, only_b], pairs)
        if not pairs:
            return
        self.first = self.first or next((p for p in pairs if not p.same), None)
        if not self.parted:
            self.parted = next((p for p in pairs if p.adds), None)
            if self.parted or (self.first and self.diverges is None):
                self.diverges = _diverges(pairs, self.parted or self.first)
        differ = [p for p in pairs if not p.same]
        if not self.steps or (differ and all(p.same for p in self.depth)):
            self.depth = pairs
        results = [p for p in pairs if p.a.role == "output"] or pairs
        worst = max(results, key=lambda p: p.distance)
        losses = [p for p in pairs if p.a.role == "loss" and p.a.sketch.size == p.b.sketch.size == 1]
        of_a, of_b = [float(x.sketch[0]) / x.scale for x in losses[-1][1:3]] if losses else (None, None)
        weights = max((p.distance for p in pairs if p.a.role == "update"), default=None)
        self.steps.append(
            Compared(one.iteration, of_a, of_b, len(pairs), len(differ), worst.distance, str(worst.a), weights)
        )

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
        far, (of_a, of_b), theirs = distance(a, b), self._lines, self._partners[1]
        same = far == 0 and a.dtype == b.dtype and (a.digest == b.digest or a.scale != b.scale)
        others = iter([j for j in b.inputs if theirs.get(j) not in a.inputs])
        paired = {theirs[j]: j for j in b.inputs if j in theirs}
        read = [(i, paired[i] if i in paired else next(others, -1)) for i in a.inputs]
        rewired = len(a.inputs) != len(b.inputs) or any(theirs.get(j) != i for i, j in read if j in of_b)
        known = [distance(of_a[i], of_b[j]) for i, j in read if i in of_a and j in of_b]
        inputs = max(known, default=None) if len(a.inputs) == len(b.inputs) else None
        behind = self._behind(a, b) if rewired and not same else ()
        return Pair(iteration, a, b, same, far, inputs, rewired, behind, max(rounding(a), rounding(b)))

    def _behind(self, a: Line, b: Line) -> tuple[tuple[str, Line], ...]:
        found: dict[tuple[int, int], Line] = {}
        waits = [(0, i) for i in a.inputs] + [(1, j) for j in b.inputs]
        while waits:
            side, i = at = waits.pop()
            if i in self._lines[side] and i not in self._partners[side] and at not in found:
                found[at] = self._lines[side][i]
                waits += [(side, j) for j in found[at].inputs]
        changed = [("AB"[side], x) for (side, _), x in sorted(found.items()) if not passes(x, self._lines[side])]
        return tuple([one for one in changed if one[1].role == "output"] or changed)

    # ---- telling

    def why(self) -> str:
        """The meaning of the first difference, in sentences."""
        p = self.first
        if p is None:
            return ""
        a, b = p.a, p.b
        if a.shape != b.shape:
            return f"Its shape is {a.shape} in A and {b.shape} in B."
        parts = [f"It is stored as {a.dtype} in A and as {b.dtype} in B."] * (a.dtype != b.dtype)
        if parts and p.distance <= SLACK * p.rounding:
            parts.append("One rounding explains the distance.")
        elif p.replaced:
            parts.append(f"A ran {a.op} here, B {b.op}.")
        elif p.rewired and p.inputs == 0:
            parts.append(f"It read the same numbers, which were made otherwise. {_OTHER}")
        elif p.rewired:
            own = [f"an op before it is in {which} alone, {_at(x)}" for which, x in p.behind[:1]]
            parts.append(": ".join(["It was not made from the same tensors", *own]) + ".")
        elif a.role == "parameter" and p.iteration == self.steps[0].iteration:
            parts.append("The weights differ before an op has run on them: another seed, or other weights loaded.")
        else:
            parts.append(_WHY.get(a.role, _OTHER))
        if p.distance == 0 and a.dtype == b.dtype:
            parts.append("Only the signs of zeros, or bits of NaN, differ.")
        return " ".join(parts)

    def __str__(self) -> str:
        width = shutil.get_terminal_size().columns - 2
        lines = []
        for title, *said in self.sections(12):
            lines += ["", textwrap.fill(title, width)]
            lines += [p if isinstance(p, Table) else textwrap.indent(textwrap.fill(p, width), "  ") for p in said]
        return "\n".join(lines[1:])

    def to_html(self) -> str:
        """All of it as one page that needs nothing else."""
        return printable(document(f"tinymp diff: {self.a.source} and {self.b.source}", [self._repr_html_()]))

    def _repr_html_(self) -> str:
        return "\n".join(f"<h3>{escape(title)}</h3>\n{html(said)}" for title, *said in self.sections())

    def sections(self, most: int | None = None) -> Iterator[list[str]]:
        """All that there is to say: titles, each with sentences or a Table. most: ops of a phase, and steps, in it."""
        yield ["Compared:", *[f"{w}: {_found(run)}" for w, run in zip("AB", (self.a, self.b))]]
        configured = [f"{name}: {x} in A, {y} in B" for name, (x, y) in self.configuration.items()]
        yield [f"Configuration: {len(configured)} of {self.settings} settings differ", *configured]
        if self.first is None:
            begins = "What both have is the same, bit for bit" if any(self.only) else "No difference, bit for bit"
            tensors = sum(s.tensors for s in self.steps)
            yield [f"{begins}: {many(tensors, 'tensor')} in {many(len(self.steps), 'step')}."]
        else:
            yield _about("First difference", self.first, self.why())
        if self.diverges and self.diverges[1]:
            at, which, line = self.diverges
            alone = f"Only {which} has it. It changes the numbers, and what comes after it differs."
            yield [f"They part: step {at}, {_at(line)}", alone]
        elif self.parted and self.parted is not self.first:
            yield _about("They part", self.parted, f"What it read is apart by {apart(self.parted.inputs)}.")
        elif self.first and not self.parted:
            yield ["Roundings explain all differences."]
        if self.unmatched is not None:
            at, a, b, moved = self.unmatched
            said = [f"In {w} alone: {_listed(lines, most)}." for w, lines in zip("AB", (a, b)) if lines]
            counts = f"{many(len(a), 'op')} in A alone, {len(b)} in B alone, {moved} in another order"
            yield [f"Unmatched in step {at}: {counts}", *said]
        if self.first is not None:
            yield [f"Along depth, step {self.depth[0].iteration}:", table(self._along_depth(most), (0, 3), most=None)]
            yield ["By step:", table(self._by_step(most), (6,), most=None)]

    def _along_depth(self, most: int | None) -> list[tuple[str, ...]]:
        """The ops of one step."""
        rows: list[tuple[str, ...]] = [("", "apart", "of one rounding", "caller")]
        for phase in ("forward", "backward", "update"):
            pairs = [p for p in self.depth if p.a.phase == phase and p.a.role in ("output", "update")]
            for p in _some(pairs, most):
                rounds = f"{p.distance / p.rounding:.2g} x" if p.rounding and p.distance < math.inf else ""
                rows.append((str(p.a), apart(p.distance), rounds, p.a.caller))
        return rows

    def _by_step(self, most: int | None) -> list[tuple[str, ...]]:
        rows: list[tuple[str, ...]] = [("step", "loss A", "loss B", "differ", "worst", "weights", "worst in")]
        for s in _some(self.steps, most):
            losses = ["-" if x is None else number(x) for x in (s.loss_a, s.loss_b)]
            far = ["-" if x is None else apart(x) for x in (s.worst, s.weights)]
            rows.append((str(s.iteration), *losses, f"{s.differ}/{s.tensors}", *far, s.where * (s.worst > 0)))
        return rows


def _is_op(x: Line) -> bool:
    """True if it stands for a call of an op."""
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
    """The distance of two tensors, as defined at the head of this file."""
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


def _together(a: Iterator[Step], b: Iterator[Step]) -> Iterator[tuple[Step, Step]]:
    """The steps that both runs have."""
    tagged = heapq.merge(*(zip(repeat(i), steps) for i, steps in enumerate((a, b))), key=lambda x: x[1].iteration)
    for _, some in groupby(tagged, lambda x: x[1].iteration):
        found = dict(some)
        if len(found) == 2:
            yield found[0], found[1]


# ---------------------------------------------------------------------------------------------------------- as text


def _settings(run: Run, seed: int | None) -> dict[str, str]:
    """The settings of a run."""
    own = {name: value for name, value in run.header.items() if name not in ("tinymp trace", "environment")}
    named = [p for p in run.policies if not run.policy or p.lower().startswith(run.policy.lower() + "(")]
    own |= {"policy": "; ".join(named), "device": ", ".join(run.devices), "seed": seed, **run.header["environment"]}
    return {name: str(value) for name, value in own.items()}


def _found(run: Run) -> str:
    """The length of a run, and how it ended."""
    policies = sorted({policy.partition("(")[0] for policy in run.policies})
    text = f"{run.source}: {many(run.tensors, 'tensor')}, policies: {', '.join(policies) or 'none'}"
    if run.ended != "":
        text += f"; ended early: {run.ended or 'the program was killed, or is running'}"
    return text + f"; other processes: {', '.join(run.others)}" * bool(run.others)


def _about(title: str, p: Pair, more: str) -> list[str]:
    a, b = p.a, p.b
    lines = a.caller if a.caller == b.caller else f"A: {a.caller}, B: {b.caller}"
    dtypes = a.dtype if a.dtype == b.dtype else f"{a.dtype} and {b.dtype}"
    far = f"Apart by {apart(p.distance)} of its norm"
    if a.nonfinite != b.nonfinite:
        far = f"{a.nonfinite:,} numbers in A and {b.nonfinite:,} in B are infinite or NaN"
    return [f"{title}: step {p.iteration}, {a} ({lines})", f"{far}; {dtypes} {a.shape}.", more]


def _at(x: Line) -> str:
    return f"{x} ({x.caller})"


def _listed(lines: list[Line], most: int | None) -> str:
    more = f" and {len(lines) - most} more" if most and len(lines) > most else ""
    return ", ".join(map(_at, lines[:most])) + more


def _some(of: list, most: int | None) -> list:
    """At most so many, evenly spread, from the first to the last."""
    if most is None or len(of) <= most:
        return of
    return [of[round(i * (len(of) - 1) / (most - 1))] for i in range(most)]
