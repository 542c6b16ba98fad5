"""Pairs the tensors of a step of two runs whose programs differ, by structure and by values.

Calls of ops in forward come first. Two may be the same where the op is, and the shape of its result or the module; how
much speaks for it (see `weigh`) is summed, and the order of both runs kept where the sum is largest. Then come those
that moved; then what hangs on calls: what they read from outside, their backward, gradients and updates. Last, what is
left takes the place of what is left in the other run (a fused op, say) where what reads it is the same.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterator
from typing import Any

import numpy as np

from ..audit.run import Line
from ..autograd import Array

ENOUGH = 4  # speaks for a pair out of order

Call = list[Line]  # its results
Aligned = Iterator[tuple[Line | None, Line | None]]


class Aligner:
    """Pairs the lines of steps. What it has found holds for further steps of the same structure."""

    def __init__(self) -> None:
        self._found: dict[Hashable, dict[int, int]] = {}  # by both structures: indices of A's lines -> those of B's
        self._names: dict[str, str] = {}  # of B's parameters -> of A's

    def align(self, a: list[Line], b: list[Line]) -> Aligned:
        """The lines of one step of two runs in pairs, in A's order; None beside what is in one alone."""
        keys = _structure(a), _structure(b)
        if keys[0] == keys[1]:
            yield from zip(a, b)
            return
        if keys not in self._found:
            at = [{line.number: i for i, line in enumerate(lines)} for lines in (a, b)]
            self._found[keys] = {at[0][i]: at[1][j] for i, j in _Step(a, b, self._names).partners.items()}
        partners = self._found[keys]
        alone = sorted({*range(len(b))}.difference(partners.values()), reverse=True)
        for i, x in enumerate(a):
            while alone and alone[-1] < partners.get(i, 0):
                yield None, b[alone.pop()]
            yield x, b[partners[i]] if i in partners else None
        yield from ((None, b[j]) for j in reversed(alone))


def _structure(lines: list[Line]) -> tuple:
    """The structure of the lines: their ops and inputs, without values."""
    first = lines[0].number if lines else 0
    return tuple([(line.signature, line.shape, *[max(i - first, -1) for i in line.inputs]) for line in lines])


class _Step:
    """One step of both runs. partners: the numbers of A's lines -> those of B's."""

    def __init__(self, a: list[Line], b: list[Line], names: dict[str, str]) -> None:
        self.partners: dict[int, int] = {}
        self._taken: set[int] = set()
        self._a, self._b = ({line.number: line for line in lines} for lines in (a, b))
        calls = _calls(a), _calls(b)
        forward, backward = ([[c for c in some if (c[0].phase == "backward") == on] for some in calls] for on in (0, 1))
        self._pair_forward(*forward)
        self._pair_backward(forward, backward)
        names |= {self._b[j].name: self._a[i].name for i, j in self.partners.items() if self._a[i].role == "parameter"}
        own = {*names.values()}
        self._by(_named, lambda y: (key := _named(y)) and (key[0], names.get(key[1], key[1] * (key[1] not in own))))
        for x in reversed(a):
            if x.number in self.partners:
                self._pair_read(x, self._b[self.partners[x.number]], outputs=True)

    def _pair(self, x: Line, y: Line, may: bool = True) -> None:
        if may and x.number not in self.partners and y.number not in self._taken:
            self.partners[x.number] = y.number
            self._taken.add(y.number)

    def _pair_calls(self, one: Call, other: Call) -> None:
        of_b = {y.name: y for y in other}
        for x in one:
            if x.name in of_b:
                self._pair(x, of_b[x.name])
        self._pair_read(one[0], other[0], outputs=False)

    def _pair_read(self, x: Line, y: Line, outputs: bool) -> None:
        """Pair what both read in the same place: results of ops, or what comes from outside."""
        for i, j in zip(x.inputs, y.inputs) if len(x.inputs) == len(y.inputs) else ():
            one, other = self._a.get(i), self._b.get(j)
            if one is None or other is None or (one.role, one.phase) != (other.role, other.phase):
                continue
            # what passes its numbers on stands for no other op
            takes = one.shape == other.shape and not (passes(one, self._a) or passes(other, self._b))
            made = one.role == "output"
            self._pair(one, other, made == outputs and (not made or one.op == other.op or takes))

    def _by(self, key: Callable[[Line], Hashable], of_b: Callable[[Line], Hashable] | None = None) -> None:
        """Pair the n-th remaining line of a key in one run with the n-th in the other."""
        waiting: defaultdict[Hashable, list[Line]] = defaultdict(list)
        for y in reversed(self._b.values()):
            if y.number not in self._taken:
                waiting[(of_b or key)(y)].append(y)
        for x in self._a.values():
            if x.number not in self.partners and (kind := key(x)) is not None and waiting[kind]:
                self._pair(x, waiting[kind].pop())

    def _pair_forward(self, a: list[Call], b: list[Call]) -> None:
        basis = weigh(a, b, [_leaves(a, self._a), _leaves(b, self._b)])
        for _ in range(2):  # what is found says more: of two calls that read the same
            theirs = {j: i for i, j in self.partners.items()}
            read = [sorted(c[0].inputs) for c in a], [sorted(theirs.get(j, -j) for j in c[0].inputs) for c in b]
            weights = sure(basis + 4 * (basis > 0) * alike(*[[tuple(x) for x in some] for some in read]))
            self.partners, self._taken = {}, set()
            left = dict(enumerate(a)), dict(enumerate(b))
            for i, j in in_order(weights):
                self._pair_calls(left[0].pop(i), left[1].pop(j))
            for i, x in left[0].items():  # moved
                best = max(left[1], key=lambda j: weights[i, j], default=None)
                if best is not None and weights[i, best] >= ENOUGH:
                    self._pair_calls(x, left[1].pop(best))

    def _pair_backward(self, forward: list[list[Call]], backward: list[list[Call]]) -> None:
        """By their forward: an op of the same site that read what backward reads last. Else the n-th of a kind."""

        def made(x: Line, calls: dict[tuple, int]) -> Hashable:
            keys = [(x.module, x.op, x.caller, x.inputs[i:]) for i in range(len(x.inputs) + 1)]
            return next((calls[key] for key in keys if key in calls), x.signature)  # or of a forward before

        calls: list[dict[tuple, int]]
        calls = [{(c[0].module, c[0].op, c[0].caller, c[0].inputs): c[0].number for c in some} for some in forward]
        waiting: defaultdict[Hashable, list[Call]] = defaultdict(list)
        for c in reversed(backward[1]):
            waiting[made(c[0], calls[1])].append(c)
        for c in backward[0]:
            of: Any = made(c[0], calls[0])
            of = self.partners.get(of, "alone") if of in self._a else of
            if waiting[of]:
                self._pair_calls(c, waiting[of].pop())


def passes(x: Line, lines: dict[int, Line]) -> bool:
    """True if it has the bits of an input of its op, among these lines by their numbers."""
    return any((x.digest, x.dtype) == (y.digest, y.dtype) for i in x.inputs if (y := lines.get(i)))


def _named(x: Line) -> tuple[str, str] | None:
    """The parameter that a line belongs to, or the loss."""
    if x.role in ("gradient", "update"):
        return x.role, x.module
    return (x.role, x.name) if x.role in ("parameter", "loss") else None


def _calls(lines: list[Line]) -> list[Call]:
    found: list[Call] = []
    site: tuple = ()
    for x in lines:
        if x.role == "output":
            before, site = site, (x.module, x.op, x.phase, x.caller, x.inputs)
            if site == before and x.name not in [y.name for y in found[-1]]:
                found[-1].append(x)
            else:
                found.append([x])
    return found


def _leaves(calls: list[Call], lines: dict[int, Line]) -> list[tuple]:
    """For each call what it reads from outside; without what others read as well, such as ones or zeros."""
    found = [[_numbers(lines[i]) for i in c[0].inputs if i in lines and lines[i].role != "output"] for c in calls]
    times = Counter(one for some in found for one in {*some})
    return [tuple([one for one in some if times[one] == 1]) for some in found]


def _numbers(x: Line) -> tuple:
    """A tensor's numbers, rounded for comparison."""
    return x.shape, (x.sketch > 0).tobytes()


def alike(a: list[Any], b: list[Any]) -> Array:
    known = {value: i for i, value in enumerate(dict.fromkeys([*a, *b]))}
    codes = [np.array([known[value] for value in some], int) for some in (a, b)]
    return (codes[0][:, None] == codes[1]) & np.array([value not in ("", ()) for value in a], bool)[:, None]


def weigh(a: list[Call], b: list[Call], leaves: list[list[tuple]]) -> Array:
    """The weight of each pair of calls: 2 for the same shape, 1 for the same module, 4 for the same weights (or data)
    that it reads. 0 where the op is another.
    """
    first = [[c[0] for c in some] for some in (a, b)]
    shape = alike(*[[(*c.shape, "") for c in some] for some in first])
    op, module = (alike(*[[getattr(c, name) for c in some] for some in first]) for name in ("op", "module"))
    return op * (0.25 + 2 * shape + module + 4 * (shape | module) * alike(*leaves))


def sure(weights: Array) -> Array:
    """The weights without the other pairs of two calls for which much more speaks than for any other."""
    if not weights.size:
        return weights
    found = (weights > 4) & (weights == weights.max(1)[:, None]) & (weights == weights.max(0))
    found &= (found.sum(1)[:, None] == 1) & (found.sum(0) == 1)
    return weights * (found | ~(found.any(1)[:, None] | found.any(0)))


def in_order(weights: Array) -> list[tuple[int, int]]:
    """The pairs, in the order of both, whose sum is the largest; of several the earliest."""
    n, m = weights.shape
    best = np.zeros((n + 1, m + 1))
    for i in range(n):
        best[i + 1, 1:] = np.maximum.accumulate(np.maximum(best[i, 1:], best[i, :-1] + weights[i]))
    found = []
    while n and m:
        if best[n, m] == best[n, m - 1]:
            m -= 1
        elif best[n, m] == best[n - 1, m]:
            n -= 1
        else:
            n, m = n - 1, m - 1
            found.append((n, m))
    return found[::-1]
