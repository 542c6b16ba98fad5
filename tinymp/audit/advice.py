"""advise(): the changes that an audit shows to be worth making, each with its reason in numbers and its source.

A rule is a function below, named after what it looks for: it reads what the instruments found and yields its advice.
RULES at the end has the source and the importance of each. All judgement is here: the summary states numbers.

Advice is about the run that is asked about: not about an FP32 baseline beside FP16, nor about an evaluation beside a
training (but for what becomes infinite there), nor about numbers too few to judge: the least are named below.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from ..dtypes import float16, float32
from ..precision import DOT, MOVEMENT, REDUCTION
from .first import because
from .found import HALF, LEAST_NUMBERS, LEAST_WORK, Found, asked, half_in, per_call
from .ledger import Row
from .numbers import dtypes
from .products import padded

FLUSHED = 0.01  # share of results that become 0 from which on it is worth a look
SKIPPED = 0.05  # share of iterations: NVG section 2.3.2 has steps skipped "infrequently"
PAD_FROM = 0.01  # share of the operations from which on padding is worth the trouble
SEARCH_SKIPS = 16  # skipped steps that a scale which starts at 2^16 may need to find its value
SHORTEST = 4  # steps, from which on it is said that most of them were skipped
SPOILS = 65  # importance from which on the training itself suffers
LARGEST = {"float16": 65504.0, "bfloat16": 3.39e38, "float32": 3.4e38}


class Advice(NamedTuple):
    """A change, with its measured reason, its place, and the section of MPT or NVG that it follows.

    importance  from 0 to 100; from SPOILS on the training itself suffers, below it speed or memory do, or might
    rule        the function below that says so
    """

    text: str
    why: str
    where: str
    source: str
    importance: float
    rule: str = ""


class Given(NamedTuple):
    """The result of a rule. share: the lost part, from 0 to 1, which adds to its importance."""

    text: str
    why: str
    where: str = ""
    share: float = 0.0


def advise(found: Found) -> list[Advice]:
    """The advice of all rules, the most important first; an empty list if there is nothing to say."""
    given = [
        Advice(one.text, one.why, one.where, source, least + more * one.share, rule.__name__)
        for rule, source, least, more in RULES
        for one in rule(found)
    ]
    return sorted(given, key=lambda advice: -advice.importance)


# ----------------------------------------------------------------------------------------------------- forward overflow


def written_by_hand(found: Found) -> Iterator[Given]:
    for one in found.patterns:
        by_hand, with_op = one["by_hand"], one["with_op"]
        change = f"{one['op']} before" if one["op"].startswith(".") else f"ops.{one['op']} instead of"
        yield Given(
            f"Write {change} {one['pattern']}",
            f"{_part(by_hand['wrong'], by_hand['results'], 'results')} are not finite or off by a tenth, "
            f"{with_op['wrong']:,} {one['how']}: {one['why']}. On the way {by_hand['infinite']:,} of "
            f"{by_hand['rounded']:,} numbers became infinite and {by_hand['zero']:,} zero; .float() afterwards brings "
            "nothing back",
            one["lines"],
            by_hand["wrong"] / max(by_hand["results"], 1),
        )


def _by_hand(found: Found) -> set[tuple[str, str]]:
    """The ops, with their lines, of which `written_by_hand` speaks."""
    return {(op, caller) for one in found.patterns for op, caller in one["ops"]}


def overflows(found: Found) -> Iterator[Given]:
    """Only outside of backward: there, the loss scaler skips the step."""
    for row in found.ledger:
        if row.phase != "backward" and row.infinite and (row.op, row.caller) not in _by_hand(found):
            name = half_in(row.written) or float32.name
            wider = "FP64" if name == float32.name else "FP32"
            end = f"{LARGEST[name]:,.0f}" if name == float16.name else f"{LARGEST[name]:.2e}"
            known = row.largest > LARGEST[name]
            ends = f"{dtypes(name)} ends at {end}" if known else "a format of its operands ends below"
            yield Given(
                f"Keep {_of(row)} within {dtypes(name)}: scale its inputs down, or compute it in {wider}",
                f"{_part(row.infinite, row.rounded, 'results')} became infinite; the "
                f"largest was {row.largest:.4g}, and {ends}; {wider} holds all of them",
                _where(row),
            )


def overflows_not_skipped(found: Found) -> Iterator[Given]:
    rows = [row for row in found.ledger if row.phase == "backward" and row.infinite]
    if rows and found.scale and not found.scale["skipped"]:
        worst = max(rows, key=lambda row: row.infinite)
        smaller = ", or a smaller loss scale" * ((found.current_scale or 2) > 1)
        yield Given(
            f"Skip the steps whose gradients overflow: optim.DynamicLossScaler{smaller}",
            f"{sum(row.infinite for row in rows):,} numbers became infinite in backward, and no step was skipped; the "
            f"most in {_of(worst)}{because(worst.op, worst.phase)}",
            _where(worst),
        )


def underflows(found: Found) -> Iterator[Given]:
    for row in found.trained:
        many = row.phase == "forward" and row.rounded >= LEAST_NUMBERS and row.zero > FLUSHED * row.rounded
        if many and (row.op, row.caller) not in _by_hand(found):
            to = ", below 2^-25 = 3e-8" * (half_in(row.written) == float16.name)
            text = f"See whether {_of(row)} needs its small values: scale them up, or compute it in FP32"
            why = f"{_part(row.zero, row.rounded, 'results')} were not 0 and became 0{to}; FP32 keeps them"
            yield Given(text, why, _where(row), row.zero / row.rounded)


# ----------------------------------------------------------------------------------------------------------- loss scale


def loss_scale_too_small(found: Found) -> Iterator[Given]:
    """Tried on the exponents of all gradients: how many are 0 at this scale, and at the best."""
    best, scale, lost = found.histograms.get("best_scale"), found.current_scale, found.histograms.get("lost", ())
    at = [{one["role"]: one for one in lost if one["scale"] == s and "gradient" in one["role"]} for s in (scale, best)]
    now = max(at[0].values(), key=lambda one: one["zero"], default=None)
    rows = [r for r in found.ledger if r.phase == "backward" and r.rounded and half_in(r.written) == float16.name]
    if now is None or not best or not scale or best < 2 * scale or not rows or now["values"] < LEAST_NUMBERS:
        return
    others, first, last = _unmended(found)
    if others and last < first:  # it has fallen, and would fall again
        return
    if now["zero"] > max(FLUSHED, then := at[1][now["role"]]["zero"]):
        worst = max(rows, key=lambda row: row.zero)
        yield Given(
            f"Raise the loss scale from {_scale(scale)} to {_scale(best)}, or use optim.DynamicLossScaler",
            f"{_part(round(now['zero'] * now['values']), now['values'], now['role'] + 's')} that are not 0 become 0; "
            f"at {_scale(best)} {then:.1%} do, and the largest is {1 / found.histograms['margin']:.1%} of 65,504",
            f"most of them in {_of(worst)}, {_where(worst)}",
            now["zero"],
        )


def loss_scale_too_large(found: Found) -> Iterator[Given]:
    """Tried by running the backward passes of the skipped steps again."""
    high, scales = found.too_high, {scale for _, scale in found.scale.get("history", ())}
    if high and len(scales) == 1:  # a dynamic scale finds its way by itself
        fits = _scale(min(cause["largest_scale"] for cause in high))
        yield Given(
            f"Lower the loss scale from {_scale(*scales)} to {fits} or less, or use optim.DynamicLossScaler",
            f"{_skipped(found, high)}; run again at {fits}, none of the {len(high):,} overflows",
        )


def steps_that_no_scale_mends(found: Found) -> Iterator[Given]:
    """A NaN that no scale cures may also pull the scale down, until gradients are lost: PyTorch's issue 40497."""
    others, first, last = _unmended(found)
    if not others:
        return
    places = [(c["cause"], c.get("op"), c.get("caller")) for c in others]
    place = places[0] if last < first else Counter(places).most_common(1)[0][0]
    usual = [c for c, at in zip(others, places) if at == place]
    text = "Mend what makes steps overflow: no loss scale of 1 or more does"
    why = _skipped(found, usual) + because(usual[0].get("op", ""), usual[0].get("phase", ""))
    if last < first:
        lost = [one for one in found.histograms.get("lost", ()) if "gradient" in one["role"]]
        zeros = {s: max(one["zero"] for one in lost if one["scale"] == s) for s in {one["scale"] for one in lost}}
        enough = min((s for s in zeros if last < s <= first and zeros[s] <= FLUSHED), default=first)
        text += f"; until then, optim.DynamicLossScaler(min_scale={enough:g}) keeps the scale from falling"
        why += f". Each lowers the scale, which fell from {_scale(first)} to {_scale(last)} and is slow to grow again"
        why += f": there {zeros[last]:.1%} of the gradients become 0" if zeros.get(last) else ""
    yield Given(text, why)


def _unmended(found: Found) -> tuple[list[dict[str, Any]], float, float]:
    """The causes of skipped steps that no scale mends, the first scale and the last."""
    causes, history = found.scale.get("causes", ()), found.scale.get("history") or [(0, 1.0)]
    others = [c for c in causes if c not in found.too_high and c["cause"] != "unknown"]
    return others, history[0][1], history[-1][1]


def steps_skipped_by_the_scale(found: Found) -> Iterator[Given]:
    """A dynamic scale skips a few steps while it settles, which may be most of a short run."""
    high, skipped, steps = found.too_high, len(found.scale.get("skipped", ())), _iterations(found)
    if not high or len({s for _, s in found.scale["history"]}) == 1:
        return
    fits = min(cause["largest_scale"] for cause in high)
    if steps >= SHORTEST and 2 * skipped > steps:
        text = f"Start with a smaller loss scale: optim.DynamicLossScaler(init_scale={fits:g})"
        yield Given(text, f"{_skipped(found, high)}; run again at {_scale(fits)}, none of the {len(high):,} does")
    elif skipped > max(SEARCH_SKIPS, SKIPPED * steps):
        half = sum(cause["largest_scale"] >= cause["scale"] / 2 for cause in high)
        text = f"Let the loss scale grow more rarely, or not beyond {_scale(fits)}"
        yield Given(text, f"{_skipped(found, high)}; run again at half the scale, {half:,} of them do not")


def _scale(scale: float) -> str:
    return f"{scale:,.0f}" if scale >= 1 else f"{scale:g}"


def _iterations(found: Found) -> int:
    return int(found.scale.get("iterations", 0))


def _skipped(found: Found, causes: list[dict[str, Any]]) -> str:
    """The numbers of skipped steps, and of those with these causes, and the first cause."""
    skipped = len(found.scale["skipped"])
    some = "" if len(causes) >= skipped else f", {len(causes):,} of them"
    return f"{skipped:,} of {_iterations(found):,} steps were skipped{some} for this: {causes[0]['text']}"


# ---------------------------------------------------------------------------------------------------- weights and state


def masters_missing(found: Found) -> Iterator[Given]:
    """Tried by adding up the same updates in FP32."""
    updates = [u for u in found.halves if u["master"] is False]
    lost = [u for u in updates if u["lost"] > FLUSHED and u["apart"]]
    if lost:
        worst = max(lost, key=lambda u: u["lost"])
        storage, weights = dtypes(worst["storage"]), max(worst["elements"] // worst["updates"], 1)
        yield Given(
            f"Keep FP32 master weights: a policy with master=True, such as tinymp.{storage.replace('FP16', 'MIXED')}",
            f"{worst['lost']:.1%} of the updates of {worst['name']} leave the {storage} weight as it is; so do more "
            f"than {FLUSHED:.0%} in {len(lost)} of {len(updates)} parameters; added up in FP32, the same updates move "
            f"{_part(worst['apart'], weights, 'of its weights')} to another {storage} number",
            worst["name"],
            worst["lost"],
        )


def fp16_state(found: Found) -> Iterator[Given]:
    """An update rounds weights in parameter.py, anything else is state; it is FP32 before it is rounded."""
    rows = [row for row in found.ledger if row.phase == "update"]
    seen = [r for row in rows for line, r in row.roundings.items() if not line.startswith("parameter.py")]
    rounded, zero, infinite = (sum(getattr(r, name) for r in seen) for name in ("elements", "zero", "infinite"))
    if rounded >= LEAST_NUMBERS and (infinite or zero > FLUSHED * rounded):
        yield Given(
            "Keep the optimizer's state in FP32: Policy(state=float32)",
            f"{_part(zero, rounded, 'numbers of it')} were not 0 and became 0 in FP16, and {infinite:,} infinite; FP32 "
            "holds all of them",
        )


# ----------------------------------------------------------------------------------------------------------- arithmetic


def fp16_sums(found: Found, field: str) -> Iterator[Given]:
    """Tried by adding up the same numbers in FP32: see `Row.sums`."""
    rows = [row for row in found.ledger if field in row.sums]
    tried, off = (sum(row.sums[field][i] for row in rows) for i in range(2))
    if off > FLUSHED * tried:
        ops = sorted({row.op for row in rows})
        yield Given(
            f"Accumulate in FP32: tinymp.study.change(policy, {field}=float32)",
            f"{', '.join(ops[:5])}{' and others' * (len(ops) > 5)} add up in FP16: {_part(off, tried, 'sums tried')} "
            "are infinite, or off by more than an ulp from the same sum in FP32",
            _where(max(rows, key=lambda row: row.sums[field][1])),
        )


def fp16_products(found: Found) -> Iterator[Given]:
    yield from fp16_sums(found, "accumulate")


def fp16_reductions(found: Found) -> Iterator[Given]:
    yield from fp16_sums(found, "reduce")


def model_in_fp32(found: Found) -> Iterator[Given]:
    rows = [row for row in found.ledger if row.phase in ("forward", "backward") and row.kind != MOVEMENT.name]
    products = [row for row in rows if row.kind == DOT.name]
    if not products or any(half_in(f"{row.read}, {row.written}") for row in rows):
        return
    if not any(row.phase == "backward" for row in rows) or (found.products and per_call(found.products) < LEAST_WORK):
        return  # nothing is trained, or nothing would gain
    sizes = [f"{sum(s.values()) / 2**20:,.1f} MiB of {r}" for r in ("weights", "activations") if (s := found.dtypes(r))]
    best = found.histograms.get("best_scale")
    yield Given(
        "Train in mixed precision: tinymp.MIXED.cast(model)"
        + (f", with a loss scale of up to {best:,.0f}" if best and best > 1 else " and a loss scaler"),
        f"no matrix product of {len(products)} reads FP16, so Tensor Cores stay idle"
        + (f"; {' and '.join(sizes)} are FP32, twice the bytes of FP16" if sizes else ""),
        _where(products[0]),
    )


# ------------------------------------------------------------------------------------------------------------- products


def unaligned_products(found: Found) -> Iterator[Given]:
    """All lengths worth padding, in one advice: tried by counting the products that then fit. Padding of, for example,
    three colours costs more than it gains.
    """
    products = asked(found.products)
    gained, of_length, modules = [], Counter[tuple[str, int]](), defaultdict[tuple[str, int], set](set)
    for p in products:
        odd = sorted({(p["axes"].get(name, name), p["lengths"][name]) for name in p["misaligned"]})
        if odd and p["dtype"] in HALF and per_call([p]) >= LEAST_WORK and all(padded(n) <= 2 * n for _, n in odd):
            gained.append(p)
            for key in odd:
                of_length[key] += p["flops"]
                modules[key].add(p["module"])
    work, every = sum(p["flops"] for p in gained), sum(p["flops"] for p in products)
    if work and work >= PAD_FROM * every:
        said = [
            f"{of} from {n} to {padded(n)} ({' '.join(some) if len(some) == 1 else f'in {len(some)} modules'})"
            for (of, n), _ in of_length.most_common(4)
            for some in [modules[of, n]]
        ]
        more = sum(p["flops"] * p["padding_cost"] for p in gained) / work
        yield Given(
            f"Pad {', '.join(said)}" + f", and {len(of_length) - 4} other lengths" * (len(of_length) > 4),
            f"then {len(gained)} of {len(products)} matrix products, with {work / every:.1%} of all operations, have "
            f"multiples of 8 alone, for which Tensor Cores are made; they take {more:.1%} more operations",
            _where(max(gained, key=lambda p: p["flops"])),
            work / every,
        )


# The rule, the section that it follows, the importance of its advice (see `Advice`), and what a share of 1 adds to it.
# Advice of equal importance comes in this order.
RULES: list[tuple[Callable[[Found], Iterator[Given]], str, float, float]] = [
    (model_in_fp32, "MPT 3, NVG 2.2", 64, 0),
    (written_by_hand, "NVG 2.1, 2.3.1", 95, 5),
    (overflows, "NVG 2.1", 94, 0),
    (overflows_not_skipped, "NVG 2.3.2", 90, 0),
    (underflows, "NVG 2.1", 30, 20),
    (loss_scale_too_small, "MPT 3.2, NVG 2.3.2", 70, 20),
    (loss_scale_too_large, "MPT 3.2, NVG 2.3.2", 85, 0),
    (steps_that_no_scale_mends, "NVG 2.3.2", 80, 0),
    (steps_skipped_by_the_scale, "NVG 2.3.2", 40, 0),
    (masters_missing, "MPT 3.1", 75, 20),
    (fp16_state, "MPT 3.1", 60, 0),
    (fp16_products, DOT.source, 68, 0),
    (fp16_reductions, REDUCTION.source, 65, 0),
    (unaligned_products, "NVG 2.2", 10, 20),
]


def _part(n: int, of: int, what: str) -> str:
    """30 of 1,000 results (3.0%)."""
    share = n / max(of, 1)
    return f"{n:,} of {of:,} {what} ({'< 0.1%' if 0 < share < 0.0005 else f'{share:.1%}'})"


def _of(row: Row) -> str:
    return f"{row.op} of {row.module}" if row.module else row.op


def _where(x: Any) -> str:
    """File and line in the user's program and in tinymp, of a Row or of a dict with the same names."""
    get = x.get if isinstance(x, dict) else lambda name: getattr(x, name)
    return ", ".join(str(v) for v in (get("caller"), get("where")) if v)
