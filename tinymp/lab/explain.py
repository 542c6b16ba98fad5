"""explain(): a rule of precision, its source, what breaks without it, and the lines to read.

The words are in topics.py; everything else (kinds, formulas, fast paths, files and lines) is found in the source.
"""

from __future__ import annotations

import builtins
import difflib
import inspect
import math
import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from html import escape
from importlib import import_module
from pathlib import Path
from pkgutil import resolve_name
from types import FunctionType, ModuleType
from typing import Any

from .. import nn, ops, optim, precision
from ..autograd import Op
from ..fast_path import find
from ..precision import KINDS, LOSS, UPDATE, Kind
from ..study import POLICIES
from .ablate import DECISIONS
from .topics import TOPICS, USUAL, WORDS, Topic

ROOT = Path(precision.__file__).parent.parent
PRIMITIVES = (precision.widen, precision.store, precision.gemm, precision.reduce)
WIDTH = 100  # of the text


@dataclass
class Explanation:
    """The explanation of a name; `print` shows it.

    what      it is: "layer", "op", "policy", "topic", ...; topic: the rule behind it
    formula   what it computes, from its docstring and those of its Ops; ops: these, in the order of its code
    kind      its kind of arithmetic, None where it has none of its own
    read      {"tinymp/ops/softmax.py:14": "Softmax.forward", ...}, what to read first at the top
    """

    name: str
    what: str
    topic: Topic
    formula: str
    ops: list[type[Op]]
    kind: Kind | None
    read: dict[str, str]

    def __str__(self) -> str:
        topic, kinds = self.topic, KINDS if self.name == "kinds" else [self.kind] if self.kind else []
        title = f"{self.name}: {self.what}" + (f", {self.kind.name}" if self.kind and self.what != "kind" else "")
        arithmetic = [
            f"{kind.name} " * (len(kinds) > 1)
            + "; ".join(f"{f} {getattr(kind, f)}" for f in kind._fields[1:-1] if getattr(kind, f) != "-")
            for kind in kinds
        ]
        flips = [d for d in DECISIONS if d.policy == POLICIES.get(self.name)]
        flips = flips or [d for d in DECISIONS if TOPICS[d.topic].rule == topic.rule]
        entries = [
            ("", self.formula),
            ("arithmetic", "\n".join(arithmetic)),
            ("in MIXED" if self.what == "policy" else "rule", topic.rule),
            ("source", topic.source and f"{topic.source} (MPT: Mixed Precision Training; NVG: NVIDIA's guide)"),
            ("without it", topic.without),
            ("read", "\n".join(f"{line}  {name}" for line, name in self.read.items())),
            ("measure", "\n".join(f"a.ledger.filter(op={op.name!r})" for op in self.ops[:1])),
            ("try", "\n".join(f"tinymp ablate cnn --only {d.name}: {d.flipped}" for d in flips)),
        ]
        return "\n".join([title, "=" * len(title), *(_entry(label, text) for label, text in entries if text)])

    def _repr_html_(self) -> str:
        return f"<pre>{escape(str(self))}</pre>"


def explain(name: str) -> Explanation:
    """The rule of precision behind an op, layer, optimizer, policy, primitive, kind, decision or topic, by its name or
    a usual word.

    Upper and lower case, spaces, hyphens, underscores and a plural's s do not matter: "batch norm" is "batch_norm".
    If several things have the name, the op comes first. A question is answered by the topic that tells most of
    it ("where is the master copy rounded?"). ValueError for an unknown name, with the nearest ones.
    """
    known, key = _known(), _key(name)
    entry = known.get(key) or _asked(name)
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
    """The text of `explain` without a name."""
    lines = ["tinymp explain NAME, where NAME is one of", ""]
    for what, found in names().items():
        lines.append(_entry("policies" if what == "policy" else f"{what}s", ", ".join(sorted(found, key=str.lower))))
    return "\n".join(lines)


# ------------------------------------------------------------------------------------------------- what has which name


def _key(name: str) -> str:
    return re.sub(r"^\w*\.?(nn|ops|optim)\.|[\s_-]", "", name.lower()).rstrip("s")


def _asked(question: str) -> tuple[str, str, Any] | None:
    """The topic that tells most of what is asked."""
    asked = _words(question)

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
    """The weight of words: a word that few topics have counts most."""
    having = [sum(word in _told(name)[1] for name in TOPICS) for word in words]
    return sum(math.log(1 + len(TOPICS) / n) for n in having if n)


def _words(text: str) -> set[str]:
    """The stems of its words, but for those that every question has; those of MasterCopy and master_copy are two."""
    text = re.sub("(?<=[a-z])(?=[A-Z][a-z])", " ", text.replace("_", " ").replace("65,5", "655"))
    words = set(re.findall(r"2\^-\d+|\w+", text.lower())) - {*USUAL.split()}
    return {re.sub(r"(?<=...)(ing|ed|es|(?<!s)s|e|ly|ions?)$", "", word) for word in words}


@cache
def _known() -> dict[str, tuple[str, str, Any]]:
    """All entries by their keys."""
    return {_key(entry[0]): entry for entry in reversed(list(_entries()))}


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
    yield from ((word, "alias", name) for word, name in WORDS.items())
    yield from ((decision.name, "alias", decision.topic) for decision in DECISIONS)


def _is(thing: Any, base: type) -> bool:
    return isinstance(thing, type) and issubclass(thing, base)


# ---------------------------------------------------------------------------------------------------- the explanations


def _explained(name: str, what: str, thing: Any, asked: set[str]) -> Explanation:
    """The explanation of an entry; the lines that the question asks for come first."""
    if what == "alias":
        return _explained(thing, "topic", thing, asked)
    topic, formula, read, kind, found = WORDS.get(name, ""), "", [thing], None, list[type[Op]]()
    if what in ("op", "layer"):
        found = ops_of(thing)
        formula = "\n".join(dict.fromkeys(_paragraph(x) for x in (thing, *found) if x.__doc__))
        read = [vars(thing).get("forward", thing)]
        read += [f for op in found for f in (op.forward, op.backward if op.gradient else op.forward)]
        if found:
            kind = found[0].kind
            topic = next(WORDS[word] for word in (name, *[op.__name__ for op in found], kind.name) if word in WORDS)
    elif what == "optimizer":
        topic, formula, read, kind = WORDS[UPDATE.name], inspect.getdoc(thing) or "", [thing.update], UPDATE
    elif what == "policy":
        changed = re.findall(r"\w+(?==)", formula := str(thing))
        read, topic = [precision.Policy], next(WORDS[word] for word in (name, *changed[::-1], "MIXED") if word in WORDS)
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
    return Explanation(name, what, rule, formula, found, kind, lines)


# ------------------------------------------------------------------------------------------------ what the source says


def ops_of(thing: Any, deep: int = 3) -> list[type[Op]]:
    """The Ops that the code of a public function or layer names; where it names none, those of the functions of `ops`
    that it calls. Losses first, then in the order of KINDS.
    """
    thing = inspect.unwrap(getattr(thing, "op", thing))  # convolutions name the function that they call
    code = [thing]
    if isinstance(thing, type):
        classes = [cls for cls in thing.__mro__ if cls not in nn.Module.__mro__]
        code = [f for cls in classes for f in vars(cls).values() if isinstance(f, FunctionType)]
    named = [cell.cell_contents for f in code for cell in f.__closure__ or ()]  # by a table of functions
    for f in code:
        names = [name for name in f.__code__.co_names if not hasattr(builtins, name)]
        named += [f.__globals__.get(name) or getattr(ops, name, None) for name in names]
    found = [x for x in named if _is(x, Op) and hasattr(x, "kind")]
    if not found and deep:
        called = [f for f in named if isinstance(f, FunctionType) and f.__module__.startswith("tinymp.")]
        found = [op for f in called for op in ops_of(f, deep - 1)]
    return sorted(dict.fromkeys(found), key=lambda op: (LOSS, *KINDS).index(op.kind))


@cache
def _line(thing: Any) -> tuple[str, str]:
    """("tinymp/ops/softmax.py:14", "Softmax.forward"): where a function, a class or a named constant is defined."""
    if isinstance(thing, str):
        module, _, name = f"tinymp.{thing}".rpartition(".")
    else:
        module, name = inspect.unwrap(thing).__module__, inspect.unwrap(thing).__qualname__
    path, line = Path(import_module(module).__file__ or ""), -1
    source = path.read_text(encoding="utf-8").splitlines()
    for part in name.split("."):  # a row of a table is defined as a constant
        defined = re.compile(rf"\s*(def|class) {part}\b|{part}(:.*)? = ")
        line = next(i for i, text in enumerate(source) if i > line and defined.match(text))
    return f"{path.relative_to(ROOT).as_posix()}:{line + 1}", name


def _paragraph(thing: Any) -> str:
    """The first paragraph of a docstring."""
    return " ".join((inspect.getdoc(thing) or "").split("\n\n")[0].split())


# ------------------------------------------------------------------------------------------------------------ the text


def _entry(label: str, text: str) -> str:
    """A labelled paragraph; lists keep their breaks."""
    lines = [line for part in text.split("\n") for line in textwrap.wrap(part, WIDTH - 12)]
    return f"{label:<12}" + ("\n" + " " * 12).join(lines)
