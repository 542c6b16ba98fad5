"""The first things to know about an audit, in sentences with a number each. A sentence states what was found and judges
nothing: its level is that of the advice (advice.py) of the rules that it names.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from ..dtypes import FP16_MAX, HALF
from .advice import SPOILS
from .found import asked
from .numbers import count, many, number, power, real, share
from .patterns import RULES


class Finding(NamedTuple):
    """A sentence of the summary. level: an index into LEVELS; section: where the report has more about it."""

    level: int
    text: str
    section: str


LEVELS = ("problem", "look", "note", "fine")
PROBLEM, LOOK, NOTE, FINE = range(4)
NEGLIGIBLE = 1e-4  # shares up to this are not mentioned
LOOK_FROM = 10  # the importance of advice from which on it is worth a look


# A sentence, the section behind it, its level where no rule objects, and the rules that might
_Statement = tuple[str, str, int] | tuple[str, str, int, tuple[str, ...]]


def findings(content: dict[str, Any]) -> list[Finding]:
    """The sentences, the worst first; content as `report.write` takes it."""
    worst: Counter[str] = Counter()
    for advice in content.get("advice") or []:
        rule = advice.get("rule", "")
        worst[rule] = max(worst[rule], advice.get("importance", 0))
    found = []
    for text, section, otherwise, *rules in _statements(content):
        importance = max((worst[rule] for some in rules for rule in some), default=0)
        level = PROBLEM if importance >= SPOILS else LOOK if importance >= LOOK_FROM else otherwise
        found.append(Finding(level, text, section))
    return sorted(found, key=lambda f: f.level)


def summarise(content: dict[str, Any]) -> dict[str, Any]:
    """The numbers at the top; those that were not given are counted."""
    ledger, scale = content.get("ledger") or [], content.get("scale") or {}
    skipped = scale.get("skipped")
    counted = {
        "iterations": None,
        "skipped": None if skipped is None else len(skipped),
        "ops": len(ledger),
        "roundings": sum(row.get("rounded", 0) for row in ledger),
        **{name: sum(row.get(name, 0) for row in ledger) for name in ("zero", "subnormal", "infinite")},
    }
    given = {k: v for k, v in (content.get("summary") or {}).items() if v is not None}
    return counted | given


def nothing(content: dict[str, Any]) -> str:
    """Of a run without advice: that, and what was looked at."""
    if not content.get("ledger"):
        return "Nothing ran in the audited block."
    n, histograms = summarise(content), content.get("histograms") or {}
    steps, skipped = n["iterations"] or 0, n["skipped"] or 0
    part = f" Only {n['part']} was looked at." if n.get("part") else ""
    seen = [
        many(n["ops"], "row") + " of ops at their lines",
        many(len(histograms.get("tensors") or ()), "tensor") + " by exponents",
        "the updates of " + many(len(content.get("updates") or ()), "weight"),
        many(len(content.get("products") or ()), "matrix product"),
        f"{len(RULES)} formulas by hand (at {many(content.get('by_hand') or 0, 'place')})",
    ]
    return (
        f"Nothing to report. {_became(n, 'infinite', 'zero')}; {count(skipped)} of {many(steps, 'step')} "
        f"({share(skipped / max(steps, 1))}) were skipped.{part}\nLooked at: {', '.join(seen)}."
    )


def _statements(content: dict[str, Any]) -> Iterator[_Statement]:
    summary = summarise(content)
    if part := summary.get("part"):
        yield f"Only {part} was looked at; all counts are of that part.", "ledger", NOTE
    yield from _about_steps(content.get("scale") or {}, summary)
    yield from _about_roundings(content.get("ledger") or [], summary)
    yield from _about_updates(content.get("updates") or [])
    yield from _about_scale(content.get("histograms") or {})
    yield from _about_bytes(content.get("bytes") or {})
    yield from _about_products(content.get("products") or [])
    yield from _about_shadow(content.get("shadow") or [])


def _about_steps(scale: dict, summary: dict) -> Iterable[_Statement]:
    steps, skipped = summary["iterations"], summary["skipped"]
    if not steps or skipped is None:
        return
    if not skipped:
        yield f"None of {many(steps, 'step')} was skipped.", "scale", FINE
        return
    causes = Counter(cause.get("cause") for cause in scale.get("causes") or [])
    why = ", ".join(f"{cause} ({n} ×)" for cause, n in causes.most_common())
    text = f"{count(skipped)} of {many(steps, 'step')} ({share(skipped / steps)}) skipped"
    rules = "steps_that_no_scale_mends", "steps_skipped_by_the_scale"
    yield text + (f": {why}." if why else "."), "scale", NOTE, rules


def _about_roundings(ledger: list[dict], summary: dict) -> Iterable[_Statement]:
    total = summary["roundings"]
    if not total:
        text = "Nothing was rounded to fewer bits." if ledger else "Nothing ran in the audited block."
        yield text, "ledger", NOTE
        return
    lost = summary["infinite"] or max(summary["zero"], summary["subnormal"]) > NEGLIGIBLE * total
    rules = "written_by_hand", "overflows", "overflows_not_skipped", "underflows", "loss_scale_too_small"
    yield f"{_became(summary, 'infinite', 'zero', 'subnormal')}.", "ledger", NOTE if lost else FINE, rules
    backward = [row for row in ledger if row.get("phase") == "backward"]
    others = [row for row in ledger if row.get("phase") != "backward"]
    yield from _most(others, "infinite", "infinities outside the backward pass", rules[:2])
    yield from _most(backward, "infinite", "infinities in the backward pass", rules[2:3])
    yield from _most(ledger, "zero", "zeros", rules[3:])


def _became(summary: dict, *names: str) -> str:
    total = summary["roundings"]
    first, *shares = [f"{count(summary[name])} ({share(summary[name] / max(total, 1))})" for name in names]
    others = [f"{one} {name}" for one, name in zip(shares, names[1:])]
    became = " and ".join([", ".join([f"{first} became {names[0]}", *others[:-1]]), others[-1]])
    return f"Of {many(total, 'rounded number')}, {became}"


def _most(rows: list[dict], name: str, what: str, rules: tuple[str, ...]) -> Iterator[_Statement]:
    row, all_of_them = max(rows, key=lambda row: row.get(name, 0), default={}), sum(row.get(name, 0) for row in rows)
    if n := row.get(name, 0):
        where = f"{' '.join(filter(None, (row.get('module'), row.get('op'), row.get('phase'))))}"
        own = share(n / max(row.get("rounded", 0), n))
        text = f"The most {what}: {count(n)} in {where} ({row.get('caller') or row.get('where')}), {own} of its numbers"
        yield f"{text} and {share(n / all_of_them)} of these {what.split()[0]}.", "ledger", NOTE, rules


def _about_updates(updates: list[dict]) -> Iterable[_Statement]:
    updates = [u for u in updates if not u.get("fp32")] or updates
    without = [u for u in updates if not u.get("fp32") and not u.get("master", True)]
    worst = max(without or updates, key=lambda u: real(u.get("lost")), default={})
    n = sum(u.get("elements", u.get("updates", 0)) for u in updates)
    if lost := real(worst.get("lost")):
        own = worst.get("elements", worst.get("updates", 0))
        small = (
            f"{count(lost * own)} of {many(own, 'update')} of {worst['name']} ({share(lost)}) are too small to change "
        )
        small += f"{_storage(worst)} weight"
        text = f"{small}, and are lost: it has no FP32 master." if without else f"{small}."
        yield text, "updates", NOTE, ("masters_missing",)
    elif updates and all(u.get("unchanged_by_zero") == 1 for u in updates):
        yield f"None of {many(n, 'update')} changed a weight: all of them were 0.", "updates", NOTE
    elif updates:
        yield f"All {many(n, 'update')} are large enough to change {_storage(updates[0])} weight.", "updates", FINE


def _storage(updates: dict) -> str:
    return "a BF16" if updates.get("storage") == "bfloat16" else "an FP16"


def _about_scale(histograms: dict) -> Iterable[_Statement]:
    now = max((real(t.get("scale")) for t in histograms.get("tensors") or []), default=0)
    at = "Without a loss scale" if now == 1 else f"At the loss scale {power(now)}"
    for entry in histograms.get("lost") or []:
        if "gradient" in entry.get("role", "") and entry.get("scale") == now and real(entry.get("zero")) > NEGLIGIBLE:
            n, zero = entry.get("values", 0), entry["zero"]
            text = f"{at}, FP16 makes {count(zero * n)} of {count(n)} {entry['role']}s ({share(zero)}) zero."
            yield text, "histograms", NOTE, ("loss_scale_too_small",)
    if best := real(histograms.get("best_scale")):
        saved = histograms.get("saved") or {}
        text = f"The best constant loss scale is {power(best)}{_ceiling(histograms.get('ceiling') or {}, best)}"
        kept = [f"{share(s)} of the {role}s" for role, s in saved.items() if s > NEGLIGIBLE]
        text += f"; it keeps {' and '.join(kept)} from becoming zero" if kept else ""
        yield text + ".", "histograms", NOTE, ("loss_scale_too_large",)


def _ceiling(of: dict, best: float) -> str:
    """What keeps the best scale from being larger."""
    if not of:
        return ""
    gradient = f"the {of['role']} of {of['name']}"
    if of.get("infinite"):
        return f": at {power(of['infinite'])} {gradient} was infinite"
    largest = real(of["largest"])
    end = ", and no scaler takes a larger one" if 2 * best * largest < FP16_MAX else ""
    return f": {gradient} is up to {number(largest)}, so {number(best * largest)} of 65,504{end}"


def _about_bytes(bytes_: dict) -> Iterable[_Statement]:
    known = (bytes_.get("measured") or bytes_.get("predicted") or {}).get("weights")
    if known and (ratio := real(bytes_.get("ratio"))) > 1:
        text = f"FP32 would take {ratio:.2f} × the bytes: mixed precision saves {share(1 - 1 / ratio)}."
        yield text, "bytes", FINE


def _about_products(products: list[dict]) -> Iterable[_Statement]:
    products = asked(products)
    if not products:
        return
    work = [real(p.get("flops")) for p in products]
    fit = sum(flops for p, flops in zip(products, work) if p.get("eligible")) / max(sum(work), 1)
    wide = sum(p.get("dtype") not in HALF for p in products)
    crooked = sum(bool(p.get("misaligned")) for p in products)
    why = [f"{wide} of FP32 operands"] * (wide > 0)
    why += [f"{crooked} with a dimension that is no multiple of 8"] * (crooked > 0)
    text = f"Tensor Cores can run {share(fit)} of the work in {many(len(products), 'matrix product')}"
    text += f" ({', '.join(why)})." if why else "."
    text += " cuBLAS 11 and later runs sizes of other multiples there as well, less efficiently." * (crooked > 0)
    rules = "unaligned_products", "model_in_fp32"
    yield text, "products", NOTE if why else FINE, rules


def _about_shadow(shadow: list[dict]) -> Iterable[_Statement]:
    if shadow:
        worst = max(shadow, key=lambda s: real(s.get("local_max")))
        where = " ".join(filter(None, (worst.get("module"), worst.get("op"), worst.get("phase"))))
        text = f"The largest error that one op adds is {number(worst.get('local_max'))} ulp, in {where}."
        yield text, "shadow", NOTE
