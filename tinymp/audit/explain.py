"""explain(): a rule of precision, its source, what breaks without it, and the lines of tinymp to read.

The words are in topics.py; everything else (kinds, formulas, twins, files and lines) is found in the source.
"""

from __future__ import annotations

import difflib
import importlib
import inspect
import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

from .. import nn, ops, optim, precision
from ..optim import multi_tensor
from ..precision import DOT, KINDS, LOSS, MIXED, MOVEMENT, POINTWISE, POLICIES, REDUCTION, UPDATE, Kind, Policy
from ..tensor import Op
from .topics import ALIASES, NOTES, OF_FIELD, OF_GATE, OF_KIND, OF_NAME, OF_OP, TOPICS, Topic

ROOT = Path(precision.__file__).parent.parent
ROOT_PACKAGE = precision.__name__.rpartition(".")[0]
GATES = {g.__name__: g for g in (precision.widen, precision.store, precision.gemm, precision.reduce)}
WIDTH = 100  # of the text


@dataclass(frozen=True)
class Explanation:
    """What there is to say about a name; `print` shows it.

    name      as tinymp writes it ("BatchNorm2d"); `what` it is ("layer", "op", "policy", "topic", ...)
    formula   what it computes, from its docstring
    kind      of its arithmetic, None where it has none of its own
    rule, source, without, example    see `Topic`; source also names the kind's sections
    note, note_example                what is particular about it
    read      {"tinymp/ops/softmax.py:14": "Softmax.forward", ...}, what to read first at the top
    twins     what has a CUDA kernel, and in which file
    ablation  what to give `tinymp ablate`, to see what comes of the opposite
    see       topics to go on with
    """

    name: str
    what: str
    formula: str
    kind: Kind | None
    rule: str
    source: str
    without: str
    example: str
    note: str
    note_example: str
    read: dict[str, str]
    twins: str
    ablation: str
    see: tuple[str, ...]

    def __str__(self) -> str:
        kind = self.kind
        title = f"{self.name}: {self.what}" + (f", {kind.name}" if kind else "")
        arithmetic = kind and (
            f"reads {kind.reads}; computes {kind.computes}; accumulates {kind.accumulates}; writes {kind.writes}"
        )
        entries = [
            ("", self.formula),
            ("arithmetic", arithmetic or ""),
            ("rule", self.rule),
            ("source", f"{self.source} (MPT: Mixed Precision Training; NVG: NVIDIA's guide)" * (self.source != "-")),
            ("without it", self.without),
            ("", self.example),
            ("here", self.note),
            ("", self.note_example),
            ("read", "\n".join(f"{line}  {name}" for line, name in self.read.items())),
            ("CUDA twin", self.twins),
            ("try", f"tinymp ablate {self.ablation}" if self.ablation else ""),
            ("see also", ", ".join(self.see)),
        ]
        return "\n".join([title, "=" * len(title), *(_entry(label, text) for label, text in entries if text)])


def explain(name: str) -> Explanation:
    """What rule of precision stands behind an op, layer, optimizer, policy, gate, kind or topic.

    Upper and lower case, spaces, hyphens and underscores do not matter: "batch norm" is "batch_norm". Of a name that
    several have, the op comes first. ValueError for an unknown name, with those that are like it.
    """
    known = _known()
    key = _key(name)
    if key not in known:
        near = difflib.get_close_matches(key, known, 4, 0.6)
        hint = f"did you mean {', '.join(known[k][0] for k in near)}?" if near else f"topics: {', '.join(TOPICS)}"
        raise ValueError(f"explain: {name!r} is no op, layer, optimizer, policy or topic; {hint}")
    found, what, thing = known[key]
    return _EXPLAIN[what](found, what, thing)


def names() -> dict[str, list[str]]:
    """Everything that can be explained, by what it is: {"op": ["softmax", ...], ...}."""
    out: dict[str, list[str]] = {}
    for name, what, _ in _entries():
        if what != "alias":
            out.setdefault(what, []).append(name)
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
    return re.sub(r"[\s_-]", "", name).lower() or name


def _public(module: ModuleType) -> dict[str, Any]:
    """The functions and classes that a module offers."""
    listed = getattr(module, "__all__", None) or [name for name in vars(module) if not name.startswith("_")]
    found = {name: getattr(module, name) for name in listed}
    return {
        k: v for k, v in found.items() if isinstance(v, (FunctionType, type)) and v.__module__.startswith("tinymp.")
    }


def _entries() -> Iterator[tuple[str, str, Any]]:
    """(name, what it is, the thing), the more telling before those of the same name."""
    yield from ((name, "op", f) for name, f in _public(ops).items() if name != "bind")
    yield from ((name, "policy", policy) for name, policy in POLICIES.items())
    yield from ((name, "topic", topic) for name, topic in TOPICS.items())
    yield from ((name, "layer", cls) for name, cls in _public(nn).items())
    yield from ((name, "optimizer", cls) for name, cls in _public(optim).items() if _is(cls, optim.Optimizer))
    yield from ((name, "tool", thing) for name, thing in _public(optim).items() if not _is(thing, optim.Optimizer))
    yield from ((name, "gate", gate) for name, gate in GATES.items())
    yield from ((kind.name, "kind", kind) for kind in KINDS)
    yield from ((name, "alias", topic) for name, topic in ALIASES.items())


def _known() -> dict[str, tuple[str, str, Any]]:
    known: dict[str, tuple[str, str, Any]] = {}
    for name, what, thing in _entries():
        known.setdefault(_key(name), (name, what, thing))
    return known


def _is(thing: Any, base: type) -> bool:
    return isinstance(thing, type) and issubclass(thing, base)


# ---------------------------------------------------------------------------------------------------- the explanations


def _explain_code(name: str, what: str, thing: Any) -> Explanation:
    """An op, or a layer, by the Ops that it is made of."""
    found = ops_of(thing)
    main = found[0] if found else None
    kind = main.kind if main else None
    subject = TOPICS.get(
        OF_NAME.get(name) or (main and OF_OP.get(main.__name__)) or (kind and OF_KIND[kind.name]) or ""
    )
    counted = [op for op in found if op.kind is not MOVEMENT] or found[:1]
    first = vars(thing).get("forward", thing)
    note, example = NOTES.get(name) or (main and NOTES.get(main.name)) or ("", "")
    formula = "\n".join(dict.fromkeys(_paragraph(op) for op in counted)) or _paragraph(thing)
    return _made(
        name, what, subject, formula, kind, [first, *[op.forward for op in counted]], note, example, _twins(counted)
    )


def _explain_optimizer(name: str, what: str, thing: Any) -> Explanation:
    formula = inspect.getdoc(thing) or ""
    read = [thing.update, optim.Optimizer._update_one, nn.Parameter.write]
    twins = f"the rule {thing.rule!r}{_beside(multi_tensor)}" if thing.rule else ""
    kind = UPDATE if thing is not optim.Optimizer else None
    note = TOPICS["optimizer state"].without if thing is not optim.SGD else ""
    example = TOPICS["optimizer state"].example if note else ""
    return _made(name, what, TOPICS["master weights"], formula, kind or UPDATE, read, note, example, twins)


def _explain_tool(name: str, what: str, thing: Any) -> Explanation:
    cls = thing if isinstance(thing, type) else None
    topic = OF_NAME.get(name)
    return _made(name, what, TOPICS[topic] if topic else None, _paragraph(thing), None, [cls or thing], "", "", "")


def _explain_topic(name: str, what: str, thing: Any) -> Explanation:
    return _made(name, what, thing, "", None, [], "", "", "")


def _explain_alias(name: str, what: str, thing: str) -> Explanation:
    return _explain_topic(thing, "topic", TOPICS[thing])


def _explain_gate(name: str, what: str, thing: Any) -> Explanation:
    return _made(name, what, TOPICS[OF_GATE[name]], _paragraph(thing), None, [thing], "", "", "")


def _explain_kind(name: str, what: str, thing: Kind) -> Explanation:
    return _made(name, what, TOPICS[OF_KIND[name]], "", thing, [], "", "", "")


def _explain_policy(name: str, what: str, thing: Policy) -> Explanation:
    """A policy, by what it changes of MIXED."""
    changed = [f.name for f in fields(thing) if f.name != "name" and getattr(thing, f.name) != getattr(MIXED, f.name)]
    said = "\n".join(f"{field} = {getattr(thing, field)}: {_field(field)}" for field in changed)
    subjects = list(dict.fromkeys(OF_FIELD[field] for field in changed)) or [
        "storage",
        "master weights",
        "accumulation",
    ]
    made = _explain_topic(name, what, TOPICS[subjects[0]])
    return Explanation(
        **{
            **vars(made),
            "formula": str(thing) + (f"\n{said}" if said else ""),
            "read": {_line(Policy): "Policy", **made.read},
            "see": tuple(dict.fromkeys([*subjects[1:], *made.see])),
        }
    )


_EXPLAIN = {
    "op": _explain_code,
    "layer": _explain_code,
    "optimizer": _explain_optimizer,
    "tool": _explain_tool,
    "topic": _explain_topic,
    "alias": _explain_alias,
    "policy": _explain_policy,
    "gate": _explain_gate,
    "kind": _explain_kind,
}


def _made(
    name: str,
    what: str,
    topic: Topic | None,
    formula: str,
    kind: Kind | None,
    read: list[Any],
    note: str,
    example: str,
    twins: str,
) -> Explanation:
    topic = topic or _NOTHING
    lines = {_line(thing): thing.__qualname__ for thing in read}
    for path in topic.read:
        thing = _named(path)
        lines.setdefault(_line(thing), path if isinstance(thing, ModuleType) else thing.__qualname__)
    # a kind says more exactly than its topic where the paper speaks of it
    source = topic.source if kind is None or topic.source not in ("", "-") else kind.source
    return Explanation(
        name, what, formula, kind, topic.rule, source, topic.without, topic.example, note, example, lines, twins,
        topic.ablation, topic.see,
    )  # fmt: skip


_NOTHING = Topic("It decides nothing about precision: what it holds or calls does.", "-", "", "", ())


# ------------------------------------------------------------------------------------------------ what the source says

_FIRST = {kind: i for i, kind in enumerate((DOT, REDUCTION, LOSS, UPDATE, POINTWISE, MOVEMENT))}


_OPS = {m.__name__ for m in vars(ops).values() if isinstance(m, ModuleType)} - {ops._arguments.__name__}


def ops_of(thing: Any) -> list[type[Op]]:
    """The Ops that a public function or layer runs, those first whose kind decides most; found by reading its code."""
    found: dict[type[Op], None] = {}
    _collect(thing, thing.__name__, found, set())
    if not found and isinstance(thing, FunctionType):  # it only calls methods of a Tensor
        for method in (m for m in ops.METHODS if m.__name__ in _called(thing)):
            _collect(method, method.__name__, found, set())
    return sorted(found, key=lambda op: _FIRST[op.kind])


def _collect(thing: Any, name: str, found: dict[type[Op], None], seen: set[int]) -> None:
    if id(thing) in seen:
        return
    seen.add(id(thing))
    if isinstance(thing, type):
        own = [cls for cls in thing.__mro__ if cls.__module__.startswith("tinymp.nn.") and cls is not nn.Module]
        for function in (f for cls in own for f in vars(cls).values() if isinstance(f, FunctionType)):
            _collect(function, name, found, seen)
        if isinstance(op := getattr(thing, "op", None), str):  # nn.functions: the op that forward calls
            _collect(getattr(ops, op), op, found, seen)
        return
    called = _called(thing)
    for word in called:
        value = thing.__globals__.get(word)
        if value is None and "ops" in called:
            value = getattr(ops, word, None)
        if isinstance(value, dict):  # compare.py has an Op per name
            value = value.get(name)
        if _is(value, Op) and hasattr(value, "kind"):
            found[value] = None
        elif isinstance(value, FunctionType) and value.__module__ in _OPS:
            _collect(value, name, found, seen)


def _called(function: FunctionType) -> list[str]:
    """The names that a function's code, or that of a function in it, reads."""
    codes: list[CodeType] = [function.__code__]
    for code in codes:
        codes += [c for c in code.co_consts if isinstance(c, CodeType)]
    return list(dict.fromkeys(name for code in codes for name in code.co_names))


def _named(path: str) -> Any:
    """The thing below tinymp that a topic names ("ops.softmax.Softmax.forward")."""
    parts = path.split(".")
    for end in range(len(parts), 0, -1):  # the module is the longest path that can be imported
        try:
            thing: Any = importlib.import_module(".".join([ROOT_PACKAGE, *parts[:end]]))
        except ModuleNotFoundError:
            continue
        for part in parts[end:]:
            thing = getattr(thing, part)
        return thing
    raise ModuleNotFoundError(path)


def _line(thing: Any) -> str:
    """File and line at which a function or class begins: "tinymp/ops/softmax.py:14"."""
    thing = inspect.unwrap(thing)
    source, first = inspect.getsourcelines(thing)
    decorators = next(i for i, text in enumerate(source) if text.lstrip().startswith(("def ", "class ")))
    path = inspect.getsourcefile(thing) or ""
    return f"{Path(path).relative_to(ROOT).as_posix()}:{first + decorators}"


def _twins(found: list[type[Op]]) -> str:
    """Which of forward and backward have a CUDA twin, and where."""
    out = []
    for op in found:
        have = [name for name in ("forward", "backward") if getattr(op, f"{name}_cuda") is not None]
        if have:
            out.append(f"{' and '.join(have)} of {op.__name__}{_beside(op)}")
    return "\n".join(dict.fromkeys(out))


def _beside(thing: Any) -> str:
    """ ": " and the .cu file beside the source of a thing, where there is one: scatter-adds are the backend's."""
    path = Path(inspect.getsourcefile(thing) or "").with_suffix(".cu")
    return f": {path.relative_to(ROOT).as_posix()}" if path.exists() else ""


def _paragraph(thing: Any) -> str:
    """The first paragraph of a docstring."""
    return (inspect.getdoc(thing) or "").split("\n\n")[0].replace("\n", " ")


def _field(name: str) -> str:
    """What the docstring of Policy says of a field."""
    said = re.search(rf"^{name} +(.*?)(?=^\S|\Z)", inspect.getdoc(Policy) or "", re.M | re.S)
    return " ".join(said[1].split()) if said else ""


def _entry(label: str, text: str) -> str:
    """A labelled paragraph; lines of Python and lists keep their breaks."""
    width = WIDTH - 12
    lines = [line for part in text.split("\n") for line in ([part] if ">>>" in text else textwrap.wrap(part, width))]
    return f"{label:<12}" + "\n".join(lines).replace("\n", "\n" + " " * 12)
