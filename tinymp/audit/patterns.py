"""A softmax, a norm, a loss, ... written by hand, where an op would keep what FP16 loses on the way.

Ops are noted as they run, by what they compute: x * x, x ** 2 and x.square() are square(x), a dot product is a sum of
products; reshaping, indexing, casts, masks and factors that are numbers change nothing. What fits a row of RULES is
tried on the numbers that were seen: its lines run again as they are, and in FP64, and the op in their place. It is told
only where the op keeps what the lines lose.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np

from .. import backend, ops
from ..autograd import Op, no_grad
from ..dtypes import FLOATING, HALVES, float16, float32, float64
from ..events import Observer, observe, unobserved
from ..ops.more.loss import Reduced
from ..precision import MOVEMENT, Policy, current_policy, use
from ..tensor import Tensor
from .ledger import Rounding
from .listener import Instrument, Place
from .sampling import ByTensor, Told, table, version_of_result

OFF = 0.1  # of the exact result, from which on a result counts as wrong
LOSSES = {"cross_entropy", "mse_loss", "binary_cross_entropy_with_logits", ".float()"}  # their results are FP32
_REFUSED = IndexError, TypeError, ValueError, RuntimeError
FEW = 0.01  # share of results up to which wrong ones are not worth a word
WAITING = 16  # matches that wait to be tried, and keep their numbers


class Rule(NamedTuple):
    """name: as a pattern may call it; pattern: alternatives apart by |, `total` is a sum or a mean; op: to write in its
    place; why: it is safe; safe: that op on what the pattern names, None for the same formula in FP64, rounded once.
    """

    name: str
    pattern: str
    op: str
    why: str
    safe: Callable[[Match], Tensor] | None = None


_SHIFTED = "it subtracts the maximum before exp"
_FP32 = "it squares and adds up in FP32"
_LOGITS = "it is computed from the logits, without exp and log in between"
RULES = [
    Rule("softmax", "exp(x) / sum(exp(x))", "softmax", _SHIFTED, lambda m: ops.softmax(m.x, m.dims[0])),
    Rule("logsumexp", "log(sum(exp(x)))", "logsumexp", _SHIFTED, lambda m: ops.logsumexp(m.x, m.dims)),
    Rule("entropy", "total(softmax(x) * log_softmax(x))", "log_softmax", _LOGITS),
    Rule("cross_entropy", "total(log_softmax(x)) | total(y * log_softmax(x))", "cross_entropy", _LOGITS),
    Rule(
        "log_softmax",
        "log(softmax(x)) | x - logsumexp(x)",
        "log_softmax",
        _LOGITS,
    ),
    Rule("sigmoid", "1 / (1 + exp(x))", "sigmoid", "it takes exp of -|x|", lambda m: ops.sigmoid(-m.x)),
    Rule("sigmoid", "exp(x) / (1 + exp(x))", "sigmoid", "it takes exp of -|x|", lambda m: ops.sigmoid(m.x)),
    Rule("softplus", "log(1 + exp(x))", "softplus", "it takes exp of -|x|", lambda m: ops.softplus(m.x)),
    Rule(
        "bce",
        "total(binary_cross_entropy(sigmoid(x), y)) | total(y * logsigmoid(x) + (1 - y) * log(1 - sigmoid(x)))"
        " | total(y * logsigmoid(x) - (1 - y) * log(1 - sigmoid(x)))",
        "binary_cross_entropy_with_logits",
        _LOGITS,
        lambda m: ops.binary_cross_entropy_with_logits(m.x, m.y),
    ),
    Rule("logsigmoid", "log(sigmoid(x))", "logsigmoid", _LOGITS, lambda m: ops.logsigmoid(m.x)),
    Rule(
        "var", "mean(square(x - mean(x))) | mean(square(x)) - square(mean(x))", "var", _FP32, lambda m: m.over(ops.var)
    ),
    Rule("std", "sqrt(var(x))", "std", _FP32, lambda m: m.over(ops.std)),
    Rule("layer_norm", "(x - mean(x)) / std(x)", "layer_norm", _FP32, lambda m: m.last(ops.layer_norm)),
    Rule("mse", "total(square(a - b))", "mse_loss", f"{_FP32}, and its result is FP32", lambda m: m.mse()),
    Rule("norm", "sqrt(sum(square(x)))", "norm", _FP32, lambda m: m.over(ops.norm)),
    Rule("rms", "sqrt(mean(square(x)))", "norm", _FP32, lambda m: m.over(ops.norm)),
    Rule("rms_norm", "x / rms(x)", "rms_norm", _FP32, lambda m: m.last(ops.rms_norm)),
    Rule("normalize", "x / norm(x)", "normalize", _FP32, lambda m: ops.normalize(m.x, dim=m.dims[0])),
    Rule(
        "cosine_similarity",
        "total(a * b) / (norm(a) * norm(b)) | total(a * b) / norm(a) / norm(b) | total(normalize(a) * normalize(b))"
        " | total(a * b) / sqrt(total(square(a)) * total(square(b)))",
        "cosine_similarity",
        _FP32,
        lambda m: ops.cosine_similarity(m.a, m.b, dim=m.dims[0]),
    ),
    Rule(
        "attention",
        "matmul(softmax(matmul(q, k)), v) | matmul(softmax(matmul(q, k) + b), v)",
        "scaled_dot_product_attention",
        "it scales and takes the softmax of FP32 scores",
    ),
    Rule("sum_of_squares", "total(square(x))", ".float()", "FP32 holds squares from 1e-38 to 3e38"),
    Rule("mean", "mean(x)", "mean", "it divides the FP32 sum before it rounds", lambda m: m.over(ops.mean)),
]


# ----------------------------------------------------------------------------------------------- what has been computed


class Node:
    """A result: the op that made it, its arguments (Values, numbers, None), and what that computes, its `form`."""

    def __init__(self, op: Op | None = None, args: tuple = (), place: Place | None = None, half: bool = False) -> None:
        self.op, self.args, self.place, self.half = op and type(op), args, place, half
        self.options = {} if op is None else op.options
        self.form: tuple = ()


class Value(NamedTuple):
    """A result as an op read it. The array is kept as long as what was computed from it."""

    node: Node
    array: Any = None


_SAME = {"cast", "contiguous", "clone", "clamp", "detach"}
_NAMED = {"exp", "log", "sqrt", "abs", "neg", "sum", "mean", "matmul", "softmax", "log_softmax", "logsumexp", "sigmoid"}
_NAMED |= {"norm", "add", "sub", "mul", "div", "var", "std", "logsigmoid", "binary_cross_entropy"}
_EXPONENTS = {"square": 2, "rsqrt": -0.5, "reciprocal": -1}


def form_of(op: Op, args: tuple, size: int) -> tuple:
    """The form of an op's computation; () if no pattern needs it. size: of its result."""
    values = [a for a in args if isinstance(a, Value)]
    floats = [v for v in values if v.array.dtype in FLOATING]
    name = op.name
    if isinstance(op, Reduced):
        name, args = op.options["reduction"], args[:1]  # without the divisor
    if name in _SAME or (op.kind is MOVEMENT and len(floats) == 1):
        return ("same", floats[0]) if floats else ()
    if name == "matmul" and _one_product(*[v.array.shape for v in values]):
        whole = [p if (p := plain(v)).array.size == v.array.size else v for v in values]  # as before einsum's reshape
        return "sum", Value(_virtual(square_or_product(*whole)), whole[0].array)
    if name == "mul" and len(values) == 2:
        return square_or_product(*values)
    if name in ("mul", "div") and len(values) == 1 and isinstance(args[0], Value):
        total, factor = plain(args[0]), args[1] if name == "mul" else 1 / (args[1] or np.inf)
        if total.node.form[:1] == ("sum",) and 0.8 < factor * (total.node.form[1].array.size / max(size, 1)) < 1.25:
            return "mean", total.node.form[1]
    exponent = args[1] if name == "pow" else _EXPONENTS.get(name)
    if isinstance(exponent, (int, float)):
        if exponent == 2:
            return _square(args[0])
        root = Value(_virtual(("sqrt", args[0])))
        known = {0.5: ("sqrt", args[0]), -0.5: ("div", 1, root), -1: ("div", 1, args[0])}
        return known.get(exponent, ())
    return (name, *[a for a in args if a is not None]) if name in _NAMED else ()


def square_or_product(a: Value, b: Value) -> tuple:
    for one, other in ((a, b), (b, a)):
        form = plain(other).node.form
        if form[:2] == ("div", 1):  # times a reciprocal
            return "div", one, form[2]
    return _square(a) if same(a, b) else ("mul", a, b)


def _square(x: Any) -> tuple:
    form = plain(x).node.form if isinstance(x, Value) else ()
    return ("square", form[1]) if form[:1] == ("abs",) else ("square", x)


def _virtual(form: tuple) -> Node:
    """A result that no op made: a part of what one computes."""
    node = Node()
    node.form = form
    for rule, _, names in _rules(node):
        node.form = rule.name, *names.values()
        break
    return node


def _one_product(a: tuple, b: tuple) -> bool:
    return (len(a) == 1 or a[-2] == 1) and (len(b) == 1 or b[-1] == 1)


def plain(value: Value) -> Value:
    """A value without regard to its shape, dtype and mask."""
    while value.node.form[:1] == ("same",):
        value = value.node.form[1]
    return value


def same(a: Any, b: Any, depth: int = 6) -> bool:
    """True for values that were computed alike, but for a sign."""
    if not (isinstance(a, Value) and isinstance(b, Value)):
        return type(a) is not Value and type(b) is not Value and a == b
    a, b = plain(a), plain(b)
    if a.node is b.node:
        return True
    for x, y in ((a, b), (b, a)):
        if x.node.form[:1] == ("neg",) and same(x.node.form[1], y, depth - 1):
            return True
    f, g = a.node.form, b.node.form
    alike = depth > 0 and f and f[0] == g[:1][0] if g else False
    return bool(alike) and len(f) == len(g) and all(same(x, y, depth - 1) for x, y in zip(f[1:], g[1:]))


# ------------------------------------------------------------------------------------------------------------- matching

_OPERATORS = {ast.Add: "add", ast.Sub: "sub", ast.Mult: "mul", ast.Div: "div"}


def _read(pattern: ast.expr) -> Any:
    """A pattern as (name, parts), the name of a variable, or a number."""
    if isinstance(pattern, ast.Name):
        return pattern.id
    if isinstance(pattern, ast.Constant):
        return pattern.value
    if isinstance(pattern, ast.BinOp):
        return _OPERATORS[type(pattern.op)], _read(pattern.left), _read(pattern.right)
    call: Any = pattern
    return call.func.id, *map(_read, call.args)


PATTERNS: dict[str, list[tuple[Rule, str, tuple]]] = {}  # by the name of the last op: rule, text, as read
for _rule in RULES:
    for _text in _rule.pattern.split(" | "):
        _pattern = _read(ast.parse(_text, mode="eval").body)
        for _root in ("sum", "mean") if _pattern[0] == "total" else (_pattern[0],):
            _shown = _text.replace("total", "mean" if _root == "mean" else "sum")
            PATTERNS.setdefault(_root, []).append((_rule, _shown, (_root, *_pattern[1:])))


def fits(pattern: Any, x: Any, found: dict[str, Any], root: bool = False) -> Iterator[dict[str, Any]]:
    """All ways in which x fits a pattern, as what its variables stand for."""
    if isinstance(pattern, str):
        if pattern not in found:
            yield {**found, pattern: x}
        elif same(found[pattern], x):
            yield found
        return
    if not isinstance(pattern, tuple):
        if not isinstance(x, Value) and x == pattern:
            yield found
        return
    if not isinstance(x, Value):
        return
    name, *parts = pattern
    form = plain(x).node.form
    if form and (form[0] == name or (name == "total" and form[0] in ("sum", "mean"))) and len(form) == len(pattern):
        for given in (form[1:], form[:0:-1])[: 1 + (name in ("add", "mul"))]:
            yield from _all_fit(parts, given, found)
    values = [v for v in form[1:] if isinstance(v, Value)]
    if (
        not root
        and len(values) == 1
        and (form[0] in ("add", "mul", "neg") or (form[1] is values[0] and form[0] in ("sub", "div")))
    ):
        yield from fits(pattern, values[0], found)  # but for a number: eps, a temperature, a sign


def _all_fit(patterns: list, given: tuple, found: dict[str, Any]) -> Iterator[dict[str, Any]]:
    if not patterns:
        yield found
    else:
        for more in fits(patterns[0], given[0], found):
            yield from _all_fit(patterns[1:], given[1:], more)


def _rules(node: Node) -> Iterator[tuple[Rule, str, dict[str, Any]]]:
    """The rules that a node fits, each with the pattern's text and the values of its variables."""
    for rule, text, pattern in PATTERNS.get(node.form[0], ()):
        for names in fits(pattern, Value(node), {}, root=True):
            yield rule, text, names


class Match:
    """Lines that fit a rule. `names`: what the pattern's variables stand for; as attributes, Tensors. `dims`: of its
    first sum; `op`: to write instead.
    """

    dims: tuple[int, ...]

    def __init__(self, rule: Rule, text: str, node: Node, names: dict[str, Any], policy: Policy) -> None:
        self.rule, self.text, self.node, self.names, self.policy = rule, text, node, names, policy
        self.broken = False  # whether its result is not finite
        values = [v for v in names.values() if isinstance(v, Value)]
        self.ends = {id(node) for v in values for node in (v.node, plain(v).node)}
        self.within: dict[int, Node] = {}  # in the order in which they ran
        self._walk(node)
        dims = [n.options["dims"] for n in self.within.values() if n.options.get("dims") and n.form[:1] != ("same",)]
        dims += [(n.options["dim"],) for n in self.within.values() if "dim" in n.options]
        self.dims = tuple(dims[0]) if dims else ()
        self.op = rule.op
        self.how = "by it"
        if rule.op == "layer_norm" and self.dims and names["x"].array.ndim > len(self.dims):
            self.op = "batch_norm" if 0 in self.dims else "instance_norm" if 1 not in self.dims else rule.op

    def _walk(self, node: Node) -> None:
        for arg in node.args:
            if isinstance(arg, Value) and arg.node.op is not None and id(arg.node) not in {*self.ends, *self.within}:
                self._walk(arg.node)
        self.within[id(node)] = node

    @property
    def rounds_on_the_way(self) -> bool:
        return any(n.half and n is not self.node and n.form[:1] != ("same",) for n in self.within.values())

    def __getattr__(self, name: str) -> Tensor:
        found = self.names[name]
        return Tensor(found.array) if isinstance(found, Value) else found

    def over(self, op: Callable) -> Tensor:
        return op(self.x, dim=self.dims)

    def last(self, op: Callable) -> Tensor:
        """A norm over the last axes: those of the pattern are moved there, and back."""
        x, dims = self.x, sorted(self.dims)
        ends = range(x.ndim - len(dims), x.ndim)
        moved = ops.movedim(x, dims, [*ends])
        return ops.movedim(op(moved, moved.shape[-len(dims) :]), [*ends], dims)

    def mse(self) -> Tensor:
        each = ops.mse_loss(self.a, self.b, reduction="none")
        return (ops.mean if self.node.form[0] == "mean" else ops.sum)(each, self.dims)

    # ---- trying

    def run(self, wide: bool) -> Tensor:
        """The lines again, as they are or in FP64."""
        made: dict[int, Tensor] = {}

        def read(x: Any) -> Any:
            if not isinstance(x, Value):
                return x
            if id(x.node) in made:
                return made[id(x.node)]
            y = Tensor(x.array)
            return y.to(float64) if wide and y.dtype in FLOATING else y

        for key, node in self.within.items():
            args = [read(a) for a in node.args]
            cast = wide and node.op is not None and node.op.casts
            made[key] = args[0] if cast else node.op.apply(*args, **node.options)  # type: ignore[union-attr]
        return made[id(self.node)]

    def tried(self) -> tuple[Outcome, Outcome] | None:
        """The outcomes of the lines and of the op in their place; None if that computes something else, and of NaN."""
        if any(np.isnan(_numbers(x)).any() for x in map(self.__getattr__, self.names) if isinstance(x, Tensor)):
            return None
        with unobserved(), no_grad(), use(self.policy), np.errstate(all="ignore"):
            try:
                exact = _numbers(self.run(wide=True))
                mine, own = _counted(lambda: self.run(wide=False))
            except _REFUSED:  # an op of the user's own, that computes in one dtype only
                return None
            try:
                other, safe = _counted(lambda: (self.rule.safe or _unknown)(self))
            except _REFUSED:  # shapes that it does not take
                to, self.how = float32 if self.op in LOSSES else float16, "in FP64 and rounded once"
                other, safe = _counted(lambda: self.run(wide=True).to(to))
        if other.size != exact.size:
            return None
        other, exact = other.reshape(-1), exact.reshape(-1)
        both = np.isfinite(other) & np.isfinite(exact)
        if both.any():
            a, b = (x[both] / (np.abs(x[both]).max() or 1) for x in (other, exact))
            if np.median(np.abs(a - b)) > OFF / 2:  # but for a factor
                return None
        wrong = ~np.isfinite(mine.reshape(-1)) & np.isfinite(other)
        unfinite = int(np.count_nonzero(wrong))
        largest = np.abs(exact[both]).max(initial=0.0)
        with np.errstate(all="ignore"):
            wrong |= both & (np.abs(mine.reshape(-1) - exact) > OFF * np.abs(exact) + OFF**2 * largest)
        results = exact.size
        lines = Outcome(own.elements, own.infinite, own.zero, results, int(np.count_nonzero(wrong)), unfinite)
        bad = int(np.count_nonzero(~np.isfinite(other)))
        return lines, Outcome(safe.elements, safe.infinite, safe.zero, results, bad, bad)


def _unknown(match: Match) -> Tensor:
    raise TypeError(f"{match.op}: what the pattern names is not all that it takes")


def _numbers(x: Tensor) -> np.ndarray:
    return np.asarray(backend.to_cpu(x.array), np.float64)


def _counted(work: Callable[[], Tensor]) -> tuple[np.ndarray, Rounding]:
    counter = _Counter()
    with observe(counter):
        y = _numbers(work())
    return y, counter.seen


class _Counter(Observer):
    def __init__(self) -> None:
        self.seen = Rounding()

    def rounded(self, x: Any, y: Any) -> None:
        self.seen.add(x, y)


# -------------------------------------------------------------------------------------------------------- what it found


@dataclass
class Outcome:
    """The outcome of lines, or of an op in their place: the counts of numbers that were rounded, became infinite and
    became 0; of results, and of wrong results: not finite (`unfinite`), or off by more than OFF.
    """

    rounded: int = 0
    infinite: int = 0
    zero: int = 0
    results: int = 0
    wrong: int = 0
    unfinite: int = 0

    def add(self, other: Outcome) -> None:
        for name, value in vars(other).items():
            setattr(self, name, getattr(self, name) + value)


@dataclass
class Site:
    """A place of a pattern: the op to write, why, and the pattern; `lines` ("train.py:7", "train.py:5 to 7"); the
    ops there, with their lines. calls: how often it ran; tried: of these the first, second, fourth, ..., and those
    whose result is not finite, until one shows an effect; how: by the op itself, or, where the pattern does not name
    all that it takes, by the formula in FP64
    """

    op: str
    why: str
    pattern: str
    module: str
    lines: str
    ops: list[tuple[str, str]]
    calls: int = 0
    tried: int = 0
    how: str = "by it"


class Patterns(Told, Instrument):
    """Finds what is written by hand, and tries what the op in its place would keep."""

    def __init__(self) -> None:
        self._nodes: ByTensor[Node] = ByTensor()
        self._waiting: list[Match] = []
        self._sites: dict[tuple, tuple[Site, Outcome, Outcome]] = {}

    def ran(self, place: Place, op: Op, inputs: tuple, outputs: tuple) -> None:
        if op.phase == "backward" or backend.of(outputs[0]).name == "meta":
            if op.phase == "backward":
                self._try()
            return
        args = tuple([self._value(x) if isinstance(x, Tensor) else x for x in inputs])
        y = outputs[0]
        node = Node()
        if len(outputs) == 1 and y.dtype in FLOATING and (form := form_of(op, args, y.size)):
            node = Node(op, args, place, y.dtype in HALVES)
            node.form = form
            self._match(node, y)
        self._nodes.put(y, version_of_result(y, inputs), node, op)

    def _value(self, x: Tensor) -> Value:
        node = self._nodes.of(x)
        if node is None:
            self._nodes.put(x.array, x.version, node := Node())
        return Value(node, x.array)

    def _match(self, node: Node, y: Any) -> None:
        for rule, text, names in _rules(node):
            match = Match(rule, text, node, names, current_policy())
            if rule.name not in ("mean", "sum_of_squares"):
                node.form = rule.name, *names.values()
            if match.rounds_on_the_way:
                match.broken = not backend.of(y).isfinite(y)
                self._waiting.append(match)
                if len(self._waiting) > WAITING:
                    self._try()
            return

    def _try(self) -> None:
        """Try what waits; of matches within each other the outermost that has an effect."""
        waiting, self._waiting = self._waiting, []
        covered: set[int] = set()
        for match in reversed(waiting):
            if id(match.node) in covered:
                continue
            places = [n.place for n in match.within.values() if n.place is not None]
            at = list(dict.fromkeys((p.op, p.caller) for p in places))
            new = Site(match.op, match.rule.why, match.text, places[-1].module, _lines([c for _, c in at]), at)
            site, lines, safe = self._sites.setdefault((match.op, new.module, *at), (new, Outcome(), Outcome()))
            site.calls += 1
            due = site.calls & (site.calls - 1) == 0 or (match.broken and not _gains(lines, safe))
            if due and (found := match.tried()) is not None:
                site.tried, site.how = site.tried + 1, match.how
                lines.add(found[0])
                safe.add(found[1])
            if _gains(lines, safe):
                covered |= match.within.keys()

    def as_dict(self) -> list[dict[str, Any]]:
        """Where the op in their place keeps what lines lose."""
        self._try()
        return [
            {**asdict(site), "by_hand": asdict(lines), "with_op": asdict(safe)}
            for site, lines, safe in self._sites.values()
            if _gains(lines, safe)
        ]

    @property
    def looked_at(self) -> int:
        """The number of places that fit a pattern."""
        self._try()
        return len(self._sites)

    def parts(self) -> list[str]:
        self._try()
        counts = "infinite", "zero", "wrong"
        rows = [("op", "by hand", "lines", "calls", "tried", *counts, *[f"{name} with op" for name in counts])]
        for site, *both in self._sites.values():
            cells = [f"{getattr(one, name):,}" for one in both for name in counts]
            rows.append((site.op, site.pattern, site.lines, str(site.calls), str(site.tried), *cells))
        return [table(rows, left=(0, 1, 2)) if self._sites else f"none of {len(RULES)} patterns was found"]


def _gains(lines: Outcome, safe: Outcome) -> bool:
    few = lines.wrong - safe.wrong <= FEW * lines.results
    return not few or lines.infinite > safe.infinite or lines.unfinite > safe.unfinite


def _lines(callers: list[str]) -> str:
    """train.py:5 to 7."""
    file = callers[-1].rpartition(":")[0]
    numbers = [int(c.rpartition(":")[2]) for c in callers if c.startswith(f"{file}:")]
    least, most = min(numbers), max(numbers)
    return f"{file}:{most}" if least == most else f"{file}:{least} to {most}"
