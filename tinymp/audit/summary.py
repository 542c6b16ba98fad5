"""The first things to know about an audit, in sentences with a number each. A sentence states what was found and judges
nothing: that the advice does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from ..dtypes import FP16_MAX
from .found import Found
from .ledger import Row
from .numbers import count, many, number, power, share
from .patterns import RULES

NEGLIGIBLE = 1e-4  # shares up to this are not mentioned


def sentences(found: Found, steps: int, part: str = "") -> list[str]:
    """The findings in sentences. steps: their number; part: the part of them that was observed, if not all."""
    said = [f"Only {part} was looked at; all counts are of that part."] * bool(part)
    said += [*_about_roundings(found.ledger), *_about_scale(found), *_about_updates(found.updates)]
    return [*said, *_about_steps(found.scale, steps)]


def nothing(found: Found, steps: int, part: str, formulas: int) -> str:
    """The sentences about a run without advice. formulas: the number of places where one was found."""
    if not found.ledger:
        return "Nothing ran in the audited block."
    skipped = len(found.scale["skipped"])
    seen = [
        many(len(found.ledger), "row") + " of ops at their lines",
        many(len(found.histograms["tensors"]), "tensor") + " by exponents",
        "the updates of " + many(len(found.updates), "weight"),
        many(len(found.products), "matrix product"),
        f"{len(RULES)} formulas by hand (at {many(formulas, 'place')})",
    ]
    return (
        f"Nothing to report. {_became(found.ledger, 'infinite', 'zero')}; {count(skipped)} of {many(steps, 'step')} "
        f"({share(skipped / max(steps, 1))}) {'was' if skipped == 1 else 'were'} skipped."
        f"{f' Only {part} was looked at.' * bool(part)}\n"
        f"Looked at: {', '.join(seen)}."
    )


def _sum(rows: Sequence[Row], name: str) -> Any:
    return sum(getattr(row, name) for row in rows)


def _about_roundings(ledger: Sequence[Row]) -> Iterator[str]:
    if not _sum(ledger, "rounded"):
        yield "Nothing was rounded to fewer bits." if ledger else "Nothing ran in the audited block."
        return
    yield f"{_became(ledger, 'infinite', 'zero', 'subnormal')}."
    backward, others = ([row for row in ledger if (row.phase == "backward") is wanted] for wanted in (True, False))
    yield from _most(others, "infinite", "infinities outside the backward pass")
    yield from _most(backward, "infinite", "infinities in the backward pass")
    if _sum(ledger, "zero") > NEGLIGIBLE * _sum(ledger, "rounded"):
        yield from _most(ledger, "zero", "zeros")


def _became(ledger: Sequence[Row], *names: str) -> str:
    rounded = _sum(ledger, "rounded")
    first, *more = [f"{count(n)} ({share(n / max(rounded, 1))})" for n in (_sum(ledger, name) for name in names)]
    *others, last = [f"{n} {name}" for n, name in zip(more, names[1:])]
    return f"Of {many(rounded, 'rounded number')}, {', '.join([f'{first} became {names[0]}', *others])} and {last}"


def _most(rows: Sequence[Row], name: str, what: str) -> Iterator[str]:
    if all_of_them := _sum(rows, name):
        row = max(rows, key=lambda row: getattr(row, name))
        n, where = getattr(row, name), " ".join(filter(None, (row.module, row.op, row.phase)))
        text = f"The most {what}: {count(n)} in {where} ({row.caller or row.where}), {share(n / row.rounded)} of its"
        yield f"{text} numbers and {share(n / all_of_them)} of these {what.split()[0]}."


def _about_scale(found: Found) -> Iterator[str]:
    histograms, backward = found.histograms, [row for row in found.ledger if row.phase == "backward"]
    now = max((t["scale"] for t in histograms.get("tensors", ()) if t.get("role") != "weight"), default=0)
    at = "Without a loss scale" if now == 1 else f"At the loss scale {power(now)}"
    zero = {(one["role"], one["scale"]): one["zero"] for one in histograms.get("lost", ())}
    for one in histograms.get("lost", ()):
        if "gradient" in one["role"] and one["scale"] == now and one["zero"] > NEGLIGIBLE:
            n, lost = one["values"], one["zero"]
            yield f"{at}, FP16 makes {count(lost * n)} of {count(n)} {one['role']}s ({share(lost)}) zero."
    best = histograms.get("best_scale")
    if best and not (histograms["ceiling"]["infinite"] and backward and not _sum(backward, "infinite")):  # NaN at any S
        saved = {role: zero[role, 1.0] - zero.get((role, best), 1.0) for role, _ in zero if "gradient" in role}
        kept = [f"{share(s)} of the {role}s" for role, s in saved.items() if s > NEGLIGIBLE]
        keeps = f"; it keeps {' and '.join(kept)} from becoming zero" if kept else ""
        most = " at most" * bool((c := histograms["ceiling"])["infinite"] and c["largest"] is not None)  # untried
        yield f"The best constant loss scale is{most} {power(best)}{_ceiling(c, best)}{keeps}."


def _ceiling(of: dict, best: float) -> str:
    """The limit of the best scale."""
    gradient, largest = f"the {of['role']} of {of['name']}", of["largest"]
    if of["infinite"]:
        return f": at {power(of['infinite'])} {gradient} was infinite"
    end = ", and no scaler takes a larger one" if 2 * best * largest < FP16_MAX else ""
    return f": {gradient} is up to {number(largest)}, so {number(best * largest)} of 65,504{end}"


def _about_updates(updates: Sequence[dict]) -> Iterator[str]:
    updates = [u for u in updates if not u["fp32"]] or updates
    without = [u for u in updates if not u["fp32"] and not u["master"]]
    worst = max(without or updates, key=lambda u: u["lost"], default={"lost": 0})
    n = sum(u["elements"] for u in updates)
    if lost := worst["lost"]:
        text = f"{count(lost * worst['elements'])} of {many(worst['elements'], 'update')} of {worst['name']}"
        text += f" ({share(lost)}) are too small to change {_storage(worst)} weight"
        kept = "; its FP32 master keeps them" * (worst["master"] and not worst["fp32"])
        yield text + (", and are lost: it has no FP32 master." if without else f"{kept}.")
    elif updates and all(u["unchanged_by_zero"] == 1 for u in updates):
        yield f"None of {many(n, 'update')} changed a weight: all of them were 0."
    elif updates:
        yield f"All {many(n, 'update')} are large enough to change {_storage(updates[0])} weight."


def _storage(updates: dict) -> str:
    return "a BF16" if updates["storage"] == "bfloat16" else "an FP16"


def _about_steps(scale: Any, steps: int) -> Iterator[str]:
    if steps and not (skipped := len(scale["skipped"])):
        yield f"None of {many(steps, 'step')} was skipped."
    elif steps:
        causes = Counter(cause["cause"] for cause in scale["causes"])
        why = ", ".join(f"{cause} ({n} ×)" for cause, n in causes.most_common())
        yield f"{count(skipped)} of {many(steps, 'step')} ({share(skipped / steps)}) skipped: {why}."
