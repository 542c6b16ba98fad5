"""The first things to know about an audit, in sentences with a number each. A sentence states what was found and judges
nothing: its level is that of the advice (advice.py) of the rules that it names.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from ..dtypes import HALF
from .advice import SPOILS
from .found import asked
from .numbers import count, many, number, power, real, share


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
    backward = [row for row in ledger if row.get("phase") == "backward"]
    others = [row for row in ledger if row.get("phase") != "backward"]
    for rows, where, rule in (
        (others, "outside the backward pass", "overflows"),
        (backward, "in the backward pass", "overflows_not_skipped"),
    ):
        if infinite := sum(row.get("infinite", 0) for row in rows):
            text = f"{many(infinite, 'finite number')} became infinite {where}{_most(rows, 'infinite')}."
            yield text, "ledger", NOTE, (rule,)
    if not summary["infinite"]:
        yield f"None of {many(total, 'rounded number')} became infinite.", "ledger", FINE
    for name, rules in (("zero", ("underflows", "loss_scale_too_small")), ("subnormal", ())):
        n = summary[name]
        text = f"{many(n, 'number')} became {name}, {share(n / total)} of all{_most(ledger, name)}."
        yield text if n else f"No number became {name}.", "ledger", NOTE if n else FINE, rules


def _most(rows: list[dict], name: str) -> str:
    row = max(rows, key=lambda row: row.get(name, 0), default={})
    if not (n := row.get(name, 0)):
        return ""
    where = " ".join(filter(None, (row.get("module"), row.get("op"), row.get("phase"))))
    here = share(n / max(row.get("rounded", 0), n))
    return f"; the most in {where} ({row.get('caller') or row.get('where')}), {here} of its numbers"


def _about_updates(updates: list[dict]) -> Iterable[_Statement]:
    updates = [u for u in updates if not u.get("fp32")] or updates
    without = [u for u in updates if not u.get("fp32") and not u.get("master", True)]
    worst = max(without or updates, key=lambda u: real(u.get("lost")), default={})
    if lost := real(worst.get("lost")):
        small = f"{share(lost)} of the updates of {worst['name']} are too small to change {_storage(worst)} weight"
        text = f"{small}, and are lost: it has no FP32 master." if without else f"{small}."
        yield text, "updates", NOTE, ("masters_missing",)
    elif updates and all(u.get("unchanged_by_zero") == 1 for u in updates):
        yield "No update changed a weight: all of them were 0.", "updates", NOTE
    elif updates:
        yield f"Every update is large enough to change {_storage(updates[0])} weight.", "updates", FINE


def _storage(updates: dict) -> str:
    return "a BF16" if updates.get("storage") == "bfloat16" else "an FP16"


def _about_scale(histograms: dict) -> Iterable[_Statement]:
    now = max((real(t.get("scale")) for t in histograms.get("tensors") or []), default=0)
    at = "Without a loss scale" if now == 1 else f"At the loss scale {power(now)}"
    for entry in histograms.get("lost") or []:
        if "gradient" in entry.get("role", "") and entry.get("scale") == now and real(entry.get("zero")) > NEGLIGIBLE:
            text = f"{at}, FP16 makes {share(entry['zero'])} of the {entry['role']}s zero."
            yield text, "histograms", NOTE, ("loss_scale_too_small",)
    if best := real(histograms.get("best_scale")):
        margin, saved = histograms.get("margin"), histograms.get("saved") or {}
        text = f"The best constant loss scale is {power(best)}"
        text += f", which leaves a factor of {number(margin)} to 65,504" if margin else ""
        kept = [f"{share(s)} of the {role}s" for role, s in saved.items() if s > NEGLIGIBLE]
        text += f"; it keeps {' and '.join(kept)} from becoming zero" if kept else ""
        yield text + ".", "histograms", NOTE, ("loss_scale_too_large",)


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
