"""explain(): a rule of precision, its source, what breaks without it, what measures it, and the lines to read.

The words are in topics.py; everything else (kinds, formulas, fast paths, files and lines) is found in the source.
"""

from __future__ import annotations

import difflib
import dis
import inspect
import re
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from functools import cache
from pathlib import Path
from pkgutil import resolve_name
from types import CodeType, FunctionType, ModuleType
from typing import Any

from .. import nn, ops, optim, precision
from ..audit.audit import Audit
from ..audit.bytes import ByteLedger
from ..audit.ledger import Rounding, Row
from ..audit.numbers import many
from ..audit.products import Product
from ..audit.scales import Cause
from ..audit.shadow import ShadowRow
from ..audit.updates import Updates
from ..autograd import Op
from ..fast_path import find
from ..optim.optimizer import Optimizer
from ..precision import DOT, KINDS, LOSS, MIXED, MOVEMENT, POINTWISE, REDUCTION, UPDATE, Kind, Policy
from ..study import POLICIES, Arithmetic
from .ablate import DECISIONS, Decision
from .topics import NOTES, ROUNDED, SYNONYMS, TOPICS, WORDS, Topic

ROOT = Path(precision.__file__).parent.parent
PRIMITIVES = (precision.widen, precision.store, precision.gemm, precision.reduce)
WIDTH = 100  # of the text


@dataclass(frozen=True)
class Explanation:
    """What there is to say about a name; `print` shows it.

    name      as tinymp writes it ("BatchNorm2d"); `what` it is ("layer", "op", "policy", "topic", ...)
    topic     the rule behind it (see `Topic`)
    formula   what it computes, from its docstring and those of its Ops
    kind      its kind of arithmetic, None where it has none of its own; `gradient`: that of backward, where it differs
    rounds    how often it rounds what: the ledger's count, in words
    note      what is particular about it, and a number to check
    read      {"tinymp/ops/softmax.py:14": "Softmax.forward", ...}, what to read first at the top
    measure   what to ask of an audit `a`: "ledger.filter(op='softmax')", "shadow"
    ablation  the decisions that flip the rule
    cuda      what has a fast path in CUDA, and in which file
    see       topics to go on with
    """

    name: str
    what: str
    topic: Topic
    formula: str
    kind: Kind | None
    gradient: Kind | None
    rounds: str
    note: tuple[str, str]
    read: dict[str, str]
    measure: list[str]
    ablation: list[Decision]
    cuda: str
    see: tuple[str, ...]

    def __str__(self) -> str:
        kinds = {"": self.kind} if not self.gradient else {"forward ": self.kind, "backward ": self.gradient}
        arithmetic = [label + _arithmetic(kind) for label, kind in kinds.items() if kind]
        title = f"{self.name}: {self.what}" + (f", {self.kind.name}" if self.kind and self.what != "kind" else "")
        title += f", backward {self.gradient.name}" if self.gradient else ""
        topic, names = self.topic, ",".join(d.name for d in self.ablation)
        shadow = "shadow=True" if "shadow" in self.measure else ""
        measure = [f"with mp.audit({shadow}) as a: train()", *map(_asked, self.measure)]
        attempt = [f"tinymp ablate {topic.ablate} --only {names}", *(f"{d.name}: {d.flipped}" for d in self.ablation)]
        entries = [
            ("", self.formula),
            ("arithmetic", "\n".join(arithmetic)),
            ("rounds", self.rounds),
            ("in MIXED" if self.what == "policy" else "rule", topic.rule),
            ("source", topic.source and f"{topic.source} (MPT: Mixed Precision Training; NVG: NVIDIA's guide)"),
            ("without it", topic.without),
            ("", topic.example),
            ("here", self.note[0]),
            ("", self.note[1]),
            ("read", "\n".join(f"{line}  {name}" for line, name in self.read.items())),
            ("in CUDA", self.cuda),
            ("measure", "\n".join(measure) if self.measure else ""),
            ("try", "\n".join(attempt) if self.ablation else ""),
            ("see also", ", ".join(self.see)),
        ]
        return "\n".join([title, "=" * len(title), *(_entry(label, text) for label, text in entries if text)])


def explain(name: str) -> Explanation:
    """The rule of precision behind an op, layer, optimizer, policy, primitive, kind, decision or topic; what a field of
    a policy, a statistic of the audit or an argument means. All by their names or a usual word.

    Upper and lower case, spaces, hyphens, underscores and a plural's s do not matter: "batch norm" is "batch_norm".
    If several things have the name, the op comes first. ValueError for an unknown name, with the nearest ones.
    """
    known, key = _known(), _key(name)
    entry = known.get(key) or known.get(_singular(key))
    if entry is None:
        like = list(dict.fromkeys(known[k][0] for k in _near(key, [_key(word) for word in name.split()], list(known))))
        hint = f"did you mean {', '.join(like)}?" if like else f"topics: {', '.join(TOPICS)}"
        raise ValueError(f"explain: {name!r} is no op, layer, optimizer, policy, option or topic; {hint}")
    return _EXPLAIN.get(entry[1], _explain_topic)(*entry)


def names() -> dict[str, list[str]]:
    """Everything that can be explained, by what it is: {"op": ["softmax", ...], ...}."""
    out: dict[str, list[str]] = {}
    for name, what, _ in _entries():
        if what != "alias" and name not in out.setdefault(what, []):
            out[what].append(name)
    return out


def overview() -> str:
    """What `explain` without a name shows."""
    lines = ["tinymp explain NAME, where NAME is one of", ""]
    for what, found in names().items():
        text = textwrap.fill(", ".join(sorted(found, key=str.lower)), WIDTH - 12)
        lines.append(f"{'policies' if what == 'policy' else what + 's':<12}" + textwrap.indent(text, " " * 12).lstrip())
    return "\n".join(lines)


# ------------------------------------------------------------------------------------------------- what has which name


def _key(name: str) -> str:
    return re.sub(r"^\w*\.?(nn|ops|optim)\.|[\s_-]", "", name.lower())


def _singular(key: str) -> str:
    return re.sub(r"(?<!s)s$", "", key)


@cache
def _known() -> dict[str, tuple[str, str, Any]]:
    """All entries by their keys: by the names as they are ("zero", a statistic), then as singulars (the op "zeros")."""
    entries = list(_entries())
    found = {_key(entry[0]): entry for entry in reversed(entries)}
    return {_singular(key): entry for key, entry in reversed(found.items())} | found


def _near(key: str, words: list[str], known: list[str]) -> list[str]:
    """At most four of the known keys: those that hold this one, those that are like it, those of its words."""
    held = [k for k in known if len(key) > 2 and key in k]
    alike = [k for word in (key, *words) for k in difflib.get_close_matches(word, known, 3, 0.7)]
    return list(dict.fromkeys([*alike[:2], *held, *alike]))[:4]


def _public(module: ModuleType) -> dict[str, Any]:
    """The functions and classes that a module offers, but for `ops.bind`, which only the package itself calls."""
    listed = getattr(module, "__all__", None) or [name for name in dir(module) if not name.startswith("_")]
    found = {name: getattr(module, name, None) for name in listed}  # loads those that load when first named
    ours = {k: v for k, v in found.items() if isinstance(v, (FunctionType, type)) and v is not ops.bind}
    return {k: v for k, v in ours.items() if v.__module__.startswith("tinymp.")}


def _entries() -> Iterator[tuple[str, str, Any]]:
    """(name, what it is, the thing); of things with the same name, the more informative first."""
    functions = {name: f for name, f in _public(ops).items() if isinstance(f, FunctionType)}
    yield from ((name, "op", f) for name, f in functions.items())
    yield from ((name, "policy", policy) for name, policy in POLICIES.items())
    yield from ((kind.name, "kind", kind) for kind in KINDS)
    yield from ((name, "topic", name) for name in TOPICS)
    yield from ((name, "layer", cls) for name, cls in _public(nn).items())
    yield from ((name, "optimizer", cls) for name, cls in _public(optim).items() if _is(cls, optim.Optimizer))
    yield from ((name, "tool", thing) for name, thing in _public(optim).items() if not _is(thing, optim.Optimizer))
    yield from ((primitive.__name__, "primitive", primitive) for primitive in PRIMITIVES)
    yield from ((field.name, "field", Policy) for field in fields(Policy) if field.name != "name")
    yield from ((field.name, "field", Arithmetic) for field in fields(Arithmetic))
    yield from ((word, "alias", name) for word, name in (WORDS | SYNONYMS).items())
    yield from ((word, "alias", name) for name, topic in TOPICS.items() for word in topic.decisions)
    yield from ((name, "statistic", table) for table in STATISTICS for name in _documented(table))
    yield from ((name, "option", owners) for name, owners in _options().items())


STATISTICS = {  # whose docstrings say what is counted: the instruments and their rows, and the topic behind each
    Audit: "primitives", Rounding: "rounding", Row: "rounding", Updates: "master weights", Cause: "loss scaling",
    ByteLedger: "storage", Product: "tensor cores", ShadowRow: "rounding",
}  # fmt: skip


def _documented(cls: type) -> dict[str, str]:
    """What a class says of each of its properties, and of the names that its docstring lists."""
    listed = re.findall(r"^(\w+(?:, (?:\w+|\.\.\.))*)  +(.*?)(?=^\S|^$|\Z)", inspect.getdoc(cls) or "", re.M | re.S)
    properties = {name: p.__doc__ for name, p in vars(cls).items() if isinstance(p, property) and p.__doc__}
    said = properties | {name: text for names, text in listed for name in names.split(", ")}
    return {name: " ".join(text.split()) for name, text in said.items() if name[0] not in "._"}


def _options() -> dict[str, dict[str, Any]]:
    """The arguments of all ops, layers, optimizers and tools, by name: {"eps": {"batch_norm": ops.batch_norm, ...}}."""
    found: dict[str, dict[str, Any]] = {}
    for module, name, thing in ((m, *item) for m in (ops, nn, optim) for item in _public(m).items()):
        for p in inspect.signature(thing).parameters.values():
            called = isinstance(thing, FunctionType) or module is not ops  # ops offers a few classes of results
            if called and not p.name.startswith("_") and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD):
                found.setdefault(p.name, {})[name] = thing
    return found


def _is(thing: Any, base: type) -> bool:
    return isinstance(thing, type) and issubclass(thing, base)


# ---------------------------------------------------------------------------------------------------- the explanations


def _explain_code(name: str, what: str, thing: Any) -> Explanation:
    """An op, or a layer, by the Ops that it is made of."""
    found = ops_of(thing)
    if not found:
        return _made(name, what, WORDS.get(name), _paragraph(thing), [vars(thing).get("forward", thing)])
    main, counted = found[0], [op for op in found if op.kind is not MOVEMENT or op.gradient] or found[:1]
    formula = dict.fromkeys([_paragraph(thing), *(_paragraph(op) for op in counted if op.__doc__)])
    read = [vars(thing).get("forward", thing)]
    for op in counted:
        read += [op.forward, op.backward] if op.gradient else [op.forward]
    topic, note = WORDS.get(main.__name__) or WORDS[main.kind.name], NOTES.get(name) or NOTES.get(main.name) or ("", "")
    return _made(
        name, what, topic, "\n".join(formula), read, main.kind,
        op=main, rounds=_rounds(counted), note=note, cuda=_fast_paths(counted),
    )  # fmt: skip


def _explain_optimizer(name: str, what: str, thing: Any) -> Explanation:
    faster: Any = inspect.getmodule(find(Optimizer.apply, "gpu"))
    cuda = f"update{_beside(faster)}" if faster and thing.update in faster.RULES else ""
    note = TOPICS["optimizer state"].rule, ""
    formula = inspect.getdoc(thing) or ""
    return _made(name, what, WORDS[UPDATE.name], formula, [thing.update], UPDATE, note=note, cuda=cuda)


def _explain_policy(name: str, what: str, thing: Policy) -> Explanation:
    """A policy, by what it changes of MIXED."""
    study = vars(thing.study).items() if thing.study else ()
    values: list[tuple] = [(Arithmetic, field, value, getattr(Arithmetic, field)) for field, value in study]
    values += [(Policy, field, value, getattr(MIXED, field)) for field, value in vars(thing).items()]
    differ = [
        (of, field, value) for of, field, value, usual in values if field not in ("name", "study") and value != usual
    ]
    changed = [field for _, field, _ in differ]
    formula = [str(thing), *(f"{field} = {value}: {_field(of, field)}" for of, field, value in differ)]
    topics = list(dict.fromkeys(WORDS[word] for word in (name, *changed) if word in WORDS))
    return _made(name, what, topics[0], "\n".join(formula), [Policy], policy=thing, see=tuple(topics[1:]))


def _explain_topic(name: str, what: str, thing: Any) -> Explanation:
    """A topic, or something explained by its topic: a primitive, a kind of arithmetic, a tool of tinymp.optim."""
    if what == "alias":
        return _explain_topic(thing, "topic", thing) if thing in TOPICS else explain(thing)
    topic = WORDS.get(name)
    if callable(thing):
        return _made(name, what, topic, _paragraph(thing), [thing])
    return _made(name, what, topic, "", [], next((k for k in KINDS if WORDS[k.name] == topic), None))


def _explain_field(name: str, what: str, thing: type) -> Explanation:
    """A field of a policy, or a statistic of the audit: what the docstring of its class says."""
    said = _documented(thing)[name]
    if thing in (Policy, Arithmetic):
        default = getattr(MIXED if thing is Policy else Arithmetic(), name)
        values = {p.name: getattr(p if thing is Policy else p.study or Arithmetic(), name) for p in POLICIES.values()}
        with_others = [f"{policy} {value}" for policy, value in values.items() if value != default]
        others = f"; {', '.join(with_others)}" if with_others else ""
        return _made(name, "field of a policy", WORDS[name], f"{said}\nIn MIXED {default}{others}.", [thing])
    return _made(name, f"statistic ({thing.__name__})", STATISTICS[thing], said, [thing])


def _explain_option(name: str, what: str, owners: dict[str, Any]) -> Explanation:
    """An argument: what takes it, what their docstrings say of it, and the rule behind the first of them."""
    few = ", ".join(list(owners)[:8]) + (f" and {len(owners) - 8} others" if len(owners) > 8 else "")
    said = {s: None for thing in owners.values() for s in _sentences(thing) if re.search(rf"\b{name}\b", s)}
    first = next(iter(owners))
    behind = explain(first)
    e = _made(name, what, None, "\n".join([f"An argument of {few}.", *list(said)[:3]]), [*owners.values()][:3])
    return replace(e, topic=behind.topic, measure=behind.measure, see=(first, *behind.see))


def _sentences(thing: Any) -> list[str]:
    """Those of a docstring."""
    text = " ".join((inspect.getdoc(thing) or "").split())
    return re.split(r"(?<=[.;]) +(?=[A-Za-z`])", text)


_EXPLAIN: dict[str, Callable[[str, str, Any], Explanation]] = {
    "field": _explain_field,
    "statistic": _explain_field,
    "option": _explain_option,
    "op": _explain_code,
    "layer": _explain_code,
    "optimizer": _explain_optimizer,
    "policy": _explain_policy,
}


def _made(
    name: str,
    what: str,
    topic: str | None,
    formula: str,
    read: list[Any],
    kind: Kind | None = None,
    *,
    rounds: str = "",
    note: tuple[str, str] = ("", ""),
    cuda: str = "",
    op: type[Op] | None = None,
    policy: Policy | None = None,
    see: tuple[str, ...] = (),
) -> Explanation:
    """An explanation by its topic (or None); the instruments and ablations are those for the Op or policy."""
    rule = TOPICS[topic] if topic else Topic("It decides nothing about precision: what it holds or calls does.")
    rule = rule._replace(source=rule.source or next((k.source for k in KINDS if WORDS[k.name] == topic), ""))
    further = [resolve_name(f"tinymp.{t}") for t in rule.read]
    if op:  # an op of the same topic has code of its own
        further = [f for f in further if not f.__qualname__.endswith((".forward", ".backward"))]
    lines = {_line(thing): thing.__qualname__ for thing in [*read, *further]}
    measure, ablation = list(rule.measure), [d for d in DECISIONS if d.name in rule.decisions]
    if op:
        called = name if what == "op" and "name" in op.forward.__code__.co_names else op.name  # amin's Op sets its name
        measure = [f"ledger.filter(op={called!r})", *(m for m in measure if not m.startswith("ledger"))]
        ablation = [d for d in ablation if op.name in (getattr(d.policy.study, "only", ()) or [op.name])]
    gradient = op.gradient if op else None
    ablation = [d for d in DECISIONS if d.policy == policy] or ablation
    see = tuple(dict.fromkeys([*see, *rule.see]))
    return Explanation(name, what, rule, formula, kind, gradient, rounds, note, lines, measure, ablation, cuda, see)


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
        methods = (*ops.METHODS, *[getattr(ops, name) for name in ops.HELD_METHODS.split()])
        for method in (m for m in methods if m.__name__ in _called(thing)):  # it only calls methods of its input
            _collect(method, method.__name__, found, set())
    return sorted(
        found,
        key=lambda op: (
            op.name != thing.__name__,
            _FIRST.index(op.kind),
            not ROUNDED.get(op.name, ROUNDED["eq"]).forward,  # a fused op says more of a layer than a product beside it
            op.gradient is None,
        ),
    )


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
    if op := (ops.compare.OPS | ops.unary.OPS).get(name):  # which have an Op per name
        found[op] = None
    layer = module.startswith("tinymp.nn.")
    for word, attribute in called.items():
        value = thing.__globals__.get(word)
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
    """The names that a function's code, or that of a function in it, reads, and whether as an attribute."""
    codes: list[CodeType] = [function.__code__]
    for code in codes:
        codes += [c for c in code.co_consts if isinstance(c, CodeType)]
    read: dict[str, bool] = {}
    for step in (step for code in codes for step in dis.get_instructions(code) if step.argval in code.co_names):
        read[step.argval] = read.get(step.argval, False) or "GLOBAL" not in step.opname
    return read


_PUBLIC = _public(ops)
_OPS = {f.__module__ for f in _PUBLIC.values()}  # the modules of ops


@cache  # what inspect reads anew for each
def _line(thing: Any) -> str:
    """File and line at which a function or class begins: "tinymp/ops/softmax.py:14"."""
    thing = inspect.unwrap(thing)
    source, first = inspect.getsourcelines(thing)
    decorators = next(i for i, text in enumerate(source) if text.lstrip().startswith(("def ", "class ")))
    path = inspect.getsourcefile(thing) or ""
    return f"{Path(path).relative_to(ROOT).as_posix()}:{first + decorators}"


def _rounds(found: list[type[Op]]) -> str:
    """What these Ops round, and how often: in words of ROUNDED, or what their kind says."""
    said: dict[str, list[str]] = {}
    for op in found:
        said.setdefault(rounds_of(op), []).append(op.name)
    several = len({op.name for op in found}) > 1
    return "\n".join((f"{', '.join(dict.fromkeys(names))}: " if several else "") + t for t, names in said.items())


def rounds_of(op: type[Op]) -> str:
    """What an Op rounds in a run on FP16 operands, and how often."""
    if op.name in ROUNDED:
        before, behind = (_places(part) for part in ROUNDED[op.name])
        return f"forward {before}; backward {behind and behind + ' and '}each gradient at most once" if before else NONE
    forward = {MOVEMENT: NONE, LOSS: f"{NONE}: FP32 is returned"}.get(op.kind, "each result at most once")
    backward = NONE if op.kind is MOVEMENT and not op.gradient else "each gradient at most once"
    return NONE if forward == backward else f"forward {forward}; backward {backward}"


NONE = "nothing"


def _places(names: tuple[str, ...]) -> str:
    return f"in {many(len(names), 'place')} ({'; '.join(names)})" if names else ""


def _fast_paths(found: list[type[Op]]) -> str:
    """Which of forward and backward have a fast path in CUDA, and where."""
    out = []
    for op in found:
        phases = {phase: find(getattr(op, phase), "gpu") for phase in ("forward", "backward")}
        have = [phase for phase, faster in phases.items() if faster]
        if have:
            out.append(f"{' and '.join(have)} of {op.__name__}{_beside(phases[have[0]])}")
    return "\n".join(out)


def _beside(thing: Any) -> str:
    """ ": " and the .cu file beside the source of a thing, where there is one: scatter-adds are the backend's."""
    path = Path(inspect.getsourcefile(thing) or "").with_suffix(".cu")
    return f": {path.relative_to(ROOT).as_posix()}" if path.exists() else ""


def _paragraph(thing: Any) -> str:
    """The first paragraph of a docstring."""
    return " ".join((inspect.getdoc(thing) or "").split("\n\n")[0].split())


def _field(cls: type, name: str) -> str:
    """What the docstring of a class says of a field."""
    said = re.search(rf"^{name} +(.*?)(?=^\S|\Z)", inspect.getdoc(cls) or "", re.M | re.S)
    return " ".join(said[1].split()) if said else ""


# ------------------------------------------------------------------------------------------------------------ the text


def _arithmetic(kind: Kind) -> str:
    return "; ".join(f"{f} {getattr(kind, f)}" for f in kind._fields[1:-1] if getattr(kind, f) != "-")


def _asked(question: str) -> str:
    """An instrument of an audit, and what it tells."""
    return f"a.{question}: {_field(Audit, question.partition('.')[0]).partition(' (see ')[0]}"


def _entry(label: str, text: str) -> str:
    """A labelled paragraph; lines of Python and lists keep their breaks."""
    width = WIDTH - 12
    lines = [line for part in text.split("\n") for line in ([part] if ">>>" in text else textwrap.wrap(part, width))]
    return f"{label:<12}" + "\n".join(lines).replace("\n", "\n" + " " * 12)
