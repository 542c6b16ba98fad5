"""explain(): a rule of precision, its source, what breaks without it, and the lines to read.

The words are in topics.py; everything else (kinds, formulas, fast paths, files and lines) is found in the source.
"""

from __future__ import annotations

import difflib
import dis
import inspect
import math
import re
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass, fields
from functools import cache
from html import escape
from pathlib import Path
from pkgutil import resolve_name
from types import CodeType, FunctionType, ModuleType
from typing import Any

from .. import nn, ops, optim, precision
from ..audit.numbers import many
from ..autograd import Op
from ..backend.extras import held
from ..fast_path import find
from ..ops.more import compare
from ..precision import DOT, KINDS, LOSS, MIXED, MOVEMENT, POINTWISE, REDUCTION, UPDATE, Kind, Policy
from ..study import POLICIES, Arithmetic
from .ablate import DECISIONS, Decision
from .topics import ROUNDED, TOPICS, USUAL, WORDS, Topic

ROOT = Path(precision.__file__).parent.parent
PRIMITIVES = (precision.widen, precision.store, precision.gemm, precision.reduce)
WIDTH = 100  # of the text


@dataclass
class Explanation:
    """What there is to say about a name; `print` shows it.

    what      it is: "layer", "op", "policy", "topic", ...; topic: the rule behind it
    formula   what it computes, from its docstring and those of its Ops; ops: these, the one that decides most first
    kind      its kind of arithmetic, None where it has none of its own
    read      {"tinymp/ops/softmax.py:14": "Softmax.forward", ...}, what to read first at the top
    ablation  the decisions that flip the rule
    """

    name: str
    what: str
    topic: Topic
    formula: str
    ops: list[type[Op]]
    kind: Kind | None
    read: dict[str, str]
    ablation: list[Decision]

    def __str__(self) -> str:
        gradient, measure = None, ""
        if self.ops:
            gradient = self.ops[0].gradient  # the kind of backward, where it is another one
            named = self.what == "op" and "name" in self.ops[0].forward.__code__.co_names  # amin's Op sets its name
            op = self.name if named else repr(self.ops[0].name)
            measure = f"with mp.audit() as a: train()\na.ledger.filter(op={op})"
        kinds = {"": self.kind} if not gradient else {"forward ": self.kind, "backward ": gradient}
        kinds = {f"{kind.name} ": kind for kind in KINDS} if self.name == "kinds" else kinds
        title = f"{self.name}: {self.what}" + (f", {self.kind.name}" if self.kind and self.what != "kind" else "")
        title += f", backward {gradient.name}" if gradient else ""
        arithmetic = [
            label + "; ".join(f"{f} {getattr(kind, f)}" for f in kind._fields[1:-1] if getattr(kind, f) != "-")
            for label, kind in kinds.items()
            if kind
        ]
        topic, names = self.topic, ",".join(d.name for d in self.ablation)
        attempt = [f"tinymp ablate cnn --only {names}", *(f"{d.name}: {d.flipped}" for d in self.ablation)]
        entries = [
            ("", self.formula),
            ("arithmetic", "\n".join(arithmetic)),
            ("rounds", _rounds(self.ops)),
            ("in MIXED" if self.what == "policy" else "rule", topic.rule),
            ("source", topic.source and f"{topic.source} (MPT: Mixed Precision Training; NVG: NVIDIA's guide)"),
            ("without it", topic.without),
            ("read", "\n".join(f"{line}  {name}" for line, name in self.read.items())),
            ("measure", measure),
            ("try", "\n".join(attempt) if self.ablation else ""),
        ]
        return "\n".join([title, "=" * len(title), *(_entry(label, text) for label, text in entries if text)])

    def _repr_html_(self) -> str:
        return f"<pre>{escape(str(self))}</pre>"


def explain(name: str) -> Explanation:
    """The rule of precision behind an op, layer, optimizer, policy or a field of one, primitive, kind, decision or
    topic, by its name or a usual word.

    Upper and lower case, spaces, hyphens, underscores and a plural's s do not matter: "batch norm" is "batch_norm".
    If several things have the name, the op comes first. A question is answered by the topic that tells most of
    it ("where is the master copy rounded?"), an argument that few ops have by one of them. ValueError for an unknown
    name, with the nearest ones.
    """
    known, key = _known(), _key(name)
    entry = known.get(key) or known.get(_singular(key)) or _asked(name)
    if entry is None:
        alike = [k for word in (key, *map(_key, name.split())) for k in difflib.get_close_matches(word, known, 3, 0.7)]
        like = list(dict.fromkeys(known[k][0] for k in alike))[:4]
        hint = f"did you mean {', '.join(like)}?" if like else f"topics: {', '.join(TOPICS)}"
        raise ValueError(f"explain: {name!r} is no op, layer, optimizer, policy or topic; {hint}")
    return _explained(*entry, asked=_words(name))


def names() -> dict[str, list[str]]:
    """Everything that can be explained, by what it is: {"op": ["softmax", ...], ...}."""
    out: dict[str, dict[str, None]] = {}
    for name, what, _ in _entries():
        out.setdefault(what, {})[name] = None
    return {what: [*found] for what, found in out.items() if what != "alias"}


def overview() -> str:
    """What `explain` without a name shows."""
    lines = ["tinymp explain NAME, where NAME is one of", ""]
    for what, found in names().items():
        lines.append(_entry("policies" if what == "policy" else f"{what}s", ", ".join(sorted(found, key=str.lower))))
    return "\n".join(lines)


# ------------------------------------------------------------------------------------------------- what has which name


def _key(name: str) -> str:
    return re.sub(r"^\w*\.?(nn|ops|optim)\.|[\s_-]", "", name.lower())


def _singular(key: str) -> str:
    return re.sub(r"(?<!s)s$", "", key)


def _asked(question: str) -> tuple[str, str, Any] | None:
    """An op that has an argument of this name, if few have; else the topic that tells most of what is asked."""
    key, asked = _key(question), _words(question)
    takes = [f for f in _public(ops).values() if key in map(_key, inspect.signature(f).parameters)]
    if 0 < len(takes) < 4:
        return takes[0].__name__, "op", takes[0]

    def told(name: str) -> float:
        names, text = _told(name)
        whole = set().union(*(words for words in names if words <= asked))
        return bool(whole) * sum(_weight(asked & part) for part in (whole, whole, set().union(*names), text))

    topic = max(TOPICS, key=told)
    return (topic, "topic", topic) if told(topic) else None


@cache
def _told(name: str) -> tuple[list[set[str]], set[str]]:
    """The words of each name of a topic, and all of its text."""
    names = [word for word, topic in WORDS.items() if topic == name]
    return [*map(_words, names)], _words(" ".join([*names, TOPICS[name].rule, TOPICS[name].without]))


def _weight(words: set[str]) -> float:
    """What words tell: one that few topics have tells most."""
    having = [sum(word in _told(name)[1] for name in TOPICS) for word in words]
    return sum(math.log(1 + len(TOPICS) / n) for n in having if n)


def _words(text: str) -> set[str]:
    """The stems of its words, but for those that every question has; those of MasterCopy and master_copy are two."""
    text = re.sub("(?<=[a-z])(?=[A-Z][a-z])", " ", text.replace("_", " ").replace("65,5", "655"))
    words = set(re.findall(r"2\^-\d+|\w+", text.lower())) - {*USUAL.split()}
    return {re.sub(r"(?<=...)(ing|ed|es|(?<!s)s|e|ly|ions?)$", "", word) for word in words}


@cache
def _known() -> dict[str, tuple[str, str, Any]]:
    """All entries by their keys: by the names as they are, then as singulars (the op "zeros")."""
    found = {_key(entry[0]): entry for entry in reversed(list(_entries()))}
    return {_singular(key): entry for key, entry in reversed(found.items())} | found


def _public(module: ModuleType) -> dict[str, Any]:
    """The functions and classes that a module offers, but for what makes methods of functions in `ops`."""
    listed = getattr(module, "__all__", None) or [name for name in dir(module) if not name.startswith("_")]
    found = {name: getattr(module, name, None) for name in listed}  # loads those that load when first named
    ours = {k: v for k, v in found.items() if isinstance(v, (FunctionType, type)) and v is not ops.bind}
    return {k: v for k, v in ours.items() if v.__module__.startswith("tinymp.")}


def _entries() -> Iterator[tuple[str, str, Any]]:
    """(name, what it is, the thing); of things with the same name, the more informative first."""
    yield from ((name, "op", f) for name, f in _public(ops).items() if isinstance(f, FunctionType))
    yield from ((name, "policy", policy) for name, policy in POLICIES.items())
    yield from ((kind.name, "kind", kind) for kind in KINDS)
    yield from ((name, "topic", name) for name in TOPICS)
    yield from ((name, "layer", cls) for name, cls in _public(nn).items() if isinstance(cls, type))
    yield from ((name, "optimizer", cls) for name, cls in _public(optim).items() if _is(cls, optim.Optimizer))
    yield from ((name, "tool", thing) for name, thing in _public(optim).items() if not _is(thing, optim.Optimizer))
    yield from ((primitive.__name__, "primitive", primitive) for primitive in PRIMITIVES)
    yield from ((f.name, "field of a policy", cls) for cls in (Policy, Arithmetic) for f in fields(cls))
    yield from ((word, "alias", name) for word, name in WORDS.items())
    yield from ((word, "alias", name) for name, topic in TOPICS.items() for word in topic.decisions.split())


def _is(thing: Any, base: type) -> bool:
    return isinstance(thing, type) and issubclass(thing, base)


# ---------------------------------------------------------------------------------------------------- the explanations


def _explained(name: str, what: str, thing: Any, asked: set[str]) -> Explanation:
    """What there is to say of an entry; what is asked for is read first."""
    if what == "alias":
        return _explained(thing, "topic", thing, asked)
    topic, formula, read, kind, found = WORDS.get(name, ""), "", [thing], None, list[type[Op]]()
    if what in ("op", "layer"):
        found = [op for i, op in enumerate(ops_of(thing)) if not i or op.kind is not MOVEMENT or op.gradient]
        formula = "\n".join(dict.fromkeys(_paragraph(x) for x in (thing, *found) if x.__doc__))
        read = [vars(thing).get("forward", thing)]
        read += [f for op in found for f in (op.forward, op.backward if op.gradient else op.forward)]
        if found:
            kind = found[0].kind
            topic = WORDS.get(found[0].__name__) or WORDS[kind.name]
    elif what == "optimizer":
        topic, formula, read, kind = WORDS[UPDATE.name], inspect.getdoc(thing) or "", [thing.update], UPDATE
    elif what == "policy":
        changed = _changed(thing)
        formula, read = "\n".join([str(thing), *(f"{field}: {said}" for field, said in changed.items())]), [Policy]
        differing = [field.split()[0] for field in changed]
        topic = next(WORDS[word] for word in (name, name.lower(), *differing) if word in WORDS)
    elif what == "field of a policy":
        formula = _said(thing, name)
    elif callable(thing):
        formula = _paragraph(thing)
    else:
        read, kind = [], next((k for k in KINDS if WORDS[k.name] == topic), None)
    rule = TOPICS[topic] if topic else Topic("It decides nothing about precision: what it holds or calls does.")
    rule = rule._replace(source=rule.source or next((k.source for k in KINDS if WORDS[k.name] == topic), ""))
    places = sorted(rule.asked, key=lambda place: -_weight(asked & _words(rule.asked[place])))
    if found:  # an op of the same topic has code of its own
        places = [place for place in places if not place.endswith((".forward", ".backward"))]
    read += [x if hasattr(x := resolve_name(f"tinymp.{place}"), "__qualname__") else place for place in places]
    faster = [find(inspect.unwrap(x), "gpu") for x in read if isinstance(x, FunctionType)]
    lines = dict(map(_line, read)) | {line: f"{of}, on a GPU" for line, of in map(_line, filter(None, faster))}
    ablation = [d for d in DECISIONS if d.name in rule.decisions.split()]
    if found:
        ablation = [d for d in ablation if found[0].name in (getattr(d.policy.study, "only", ()) or [found[0].name])]
    if what == "policy":
        ablation = [d for d in DECISIONS if d.policy == thing] or ablation
    return Explanation(name, what, rule, formula, found, kind, lines, ablation)


def _changed(policy: Policy) -> dict[str, str]:
    """{"storage = float32": what the docstring says of that field, ...} of all that is not as in MIXED."""
    study = vars(policy.study).items() if policy.study else ()
    values: list[tuple] = [(Arithmetic, field, value, getattr(Arithmetic, field)) for field, value in study]
    values += [(Policy, field, value, getattr(MIXED, field)) for field, value in vars(policy).items()]
    return {
        f"{field} = {value}": _said(of, field)
        for of, field, value, usual in values
        if field not in ("name", "study") and value != usual
    }


# ------------------------------------------------------------------------------------------------ what the source says

_FIRST = (DOT, REDUCTION, LOSS, UPDATE, POINTWISE, MOVEMENT)


def ops_of(thing: Any) -> list[type[Op]]:
    """The Ops that a public function or layer runs, found by reading its code: first those with its name, then those
    whose kind decides most.
    """
    found: dict[type[Op], None] = {}
    thing = inspect.unwrap(thing)
    _collect(thing, thing.__name__, found, set())
    if not found and isinstance(thing, FunctionType) and thing.__code__.co_varnames[:1] == ("input",):
        methods = [getattr(ops, name) for name in ops.METHODS.split()]
        for method in (m for m in methods if m.__name__ in _called(thing)):  # it only calls methods of its input
            _collect(method, method.__name__, found, set())

    def rank(op: type[Op]) -> tuple:  # a fused op, of ROUNDED, says more of a layer than a product beside it
        plain = not ROUNDED.get(op.name, ((),))[0]
        return op.name != thing.__name__, _FIRST.index(op.kind), plain, op.gradient is None, ".more." in op.__module__

    return sorted(found, key=rank)


def _collect(thing: Any, name: str, found: dict[type[Op], None], seen: set[tuple[Any, str]]) -> None:
    """Add the Ops of a function or layer to `found`; `name` is the public function's that is read, in tables of Ops."""
    thing = inspect.unwrap(thing)  # public functions are wrapped, to name their errors
    if (thing, name) in seen:
        return
    seen.add((thing, name))
    if isinstance(thing, type):
        own = [cls for cls in thing.__mro__ if cls.__module__.startswith("tinymp.nn.") and cls is not nn.Module]
        for function in (f for cls in own for f in vars(cls).values() if isinstance(f, FunctionType)):
            _collect(function, name, found, seen)
        if hasattr(thing, "op"):  # nn's function modules and convolutions name the function that they call
            found.update(dict.fromkeys(ops_of(thing.op)))
        return
    called, module = _called(thing), thing.__module__
    if op := (compare.OPS | ops.unary.OPS).get(name):  # which have an Op per name
        found[op] = None
    for cell in getattr(thing, "__closure__", None) or ():  # what the row of a table gives its function
        if isinstance(cell.cell_contents, type) and issubclass(cell.cell_contents, Op):
            found[cell.cell_contents] = None
    layer = module.startswith("tinymp.nn.")
    for word, attribute in called.items():
        value = held(word, None) if word.startswith("ops.") else thing.__globals__.get(word)
        if value is None and attribute and "ops" in called:  # ops.max, not the builtin max
            value = getattr(ops, word, None)
        if layer and _is(value, nn.Module) and value not in (nn.Module, nn.ModuleList, nn.Sequential):
            _collect(value, name, found, seen)  # a layer that this one is made of
        if _is(value, Op) and hasattr(value, "kind"):
            found[value] = None
        elif isinstance(value, FunctionType) and value.__module__ in (*_OPS, *[module] * layer):
            _collect(value, value.__name__ if value.__name__ in _PUBLIC else name, found, seen)


@cache
def _called(function: FunctionType) -> dict[str, bool]:
    """The names that a function's code, or that of a function in it, reads or loads, and whether as an attribute."""
    codes: list[CodeType] = [function.__code__]
    for code in codes:
        codes += [c for c in code.co_consts if isinstance(c, CodeType)]
    consts = [c for code in codes for c in code.co_consts if isinstance(c, str)]
    read = {name: False for name in consts if re.fullmatch(r"ops\.[\w.]+", name)}  # `held` loads it
    for step in (step for code in codes for step in dis.get_instructions(code) if step.argval in code.co_names):
        read[step.argval] = read.get(step.argval, False) or "GLOBAL" not in step.opname
    return read


_PUBLIC = _public(ops)
_OPS = {f.__module__ for f in _PUBLIC.values()}  # the modules of ops


@cache
def _line(thing: Any) -> tuple[str, str]:
    """("tinymp/ops/softmax.py:14", "Softmax.forward"): where a function, a class or a named constant is defined."""
    if isinstance(thing, str):
        module, _, name = f"tinymp.{thing}".rpartition(".")
    else:
        module, name = inspect.unwrap(thing).__module__, inspect.unwrap(thing).__qualname__
    path, line = Path(sys.modules[module].__file__ or ""), -1
    source = path.read_text(encoding="utf-8").splitlines()
    for part in name.split("."):  # a row of a table is defined as a constant
        defined = re.compile(rf"\s*(def|class) {part}\b|{part}(:.*)? = ")
        line = next(i for i, text in enumerate(source) if i > line and defined.match(text))
    return f"{path.relative_to(ROOT).as_posix()}:{line + 1}", name


def _rounds(found: list[type[Op]]) -> str:
    """What these Ops round, and how often: in words of ROUNDED, or what their kind says."""
    said: dict[str, dict[str, None]] = {}
    for op in found:
        said.setdefault(rounds_of(op), {})[op.name] = None
    several = len({op.name for op in found}) > 1
    return "\n".join(f"{', '.join(names)}: " * several + text for text, names in said.items())


def rounds_of(op: type[Op]) -> str:
    """What an Op rounds in a run on FP16 operands, and how often."""
    if op.name in ROUNDED:
        before, behind = (part and f"in {many(len(part), 'place')} ({'; '.join(part)})" for part in ROUNDED[op.name])
        gradients = f"{behind} and each gradient" if behind else "each gradient"
        return f"forward {before}; backward {gradients} at most once" if before else NONE
    forward = {MOVEMENT: NONE, LOSS: f"{NONE}: FP32 is returned"}.get(op.kind, "each result at most once")
    backward = NONE if op.kind is MOVEMENT and not op.gradient else "each gradient at most once"
    return NONE if forward == backward else f"forward {forward}; backward {backward}"


NONE = "nothing"


def _paragraph(thing: Any) -> str:
    """The first paragraph of a docstring."""
    return " ".join((inspect.getdoc(thing) or "").split("\n\n")[0].split())


def _said(cls: type, name: str) -> str:
    """What the docstring of a class says of a field."""
    said = re.search(rf"^(?:\w+, )*{name}(?:, \w+)* +(.*?)(?=^\S|\Z)", inspect.getdoc(cls) or "", re.M | re.S)
    return " ".join(said[1].split()) if said else ""


# ------------------------------------------------------------------------------------------------------------ the text


def _entry(label: str, text: str) -> str:
    """A labelled paragraph; lists keep their breaks."""
    lines = [line for part in text.split("\n") for line in textwrap.wrap(part, WIDTH - 12)]
    return f"{label:<12}" + ("\n" + " " * 12).join(lines)
