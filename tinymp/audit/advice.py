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
from .first import INSTEAD
from .found import HALF, LEAST_NUMBERS, LEAST_WORK, Found, asked, half_in, per_call
from .ledger import Row
from .numbers import dtypes

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
        method = one["op"].startswith(".")
        change = f"{one['op']} before" if method else f"ops.{one['op']} instead of"
        infinite, zero = (
            f"{by_hand[n]:,} ({by_hand[n] / max(by_hand['rounded'], 1):.1%})" for n in ("infinite", "zero")
        )
        wrong = by_hand["wrong"] / max(by_hand["results"], 1)
        yield Given(
            f"Write {change} {one['pattern']}",
            f"of {by_hand['rounded']:,} numbers on the way {infinite} became infinite and {zero} zero, and "
            f"{by_hand['wrong']:,} of {by_hand['results']:,} results ({wrong:.1%}) are not finite or off by a tenth; "
            f"the same numbers {one['how']}: {with_op['infinite']:,}, {with_op['zero']:,} and {with_op['wrong']:,}, as "
            f"{one['why']}. .float() afterwards brings nothing back",
            one["lines"],
            wrong,
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
                f"{row.infinite:,} of {row.rounded:,} results ({row.infinite / row.rounded:.1%}) became infinite; the "
                f"largest was {row.largest:.4g}, and {ends}; {wider} holds all of them",
                _where(row),
            )


def overflows_not_skipped(found: Found) -> Iterator[Given]:
    rows = [row for row in found.ledger if row.phase == "backward" and row.infinite]
    if rows and found.scale and not found.scale["skipped"]:
        worst = max(rows, key=lambda row: row.infinite)
        yield Given(
            "Skip the steps whose gradients overflow: optim.DynamicLossScaler, or a smaller loss scale",
            f"{sum(row.infinite for row in rows):,} numbers became infinite in backward, and no step was skipped; the "
            f"most in {_of(worst)}",
            _where(worst),
        )


def underflows(found: Found) -> Iterator[Given]:
    for row in found.trained:
        many = row.phase == "forward" and row.rounded >= LEAST_NUMBERS and row.zero > FLUSHED * row.rounded
        if many and (row.op, row.caller) not in _by_hand(found):
            share, to = row.zero / row.rounded, ", below 2^-25 = 3e-8" * (half_in(row.written) == float16.name)
            text = f"See whether {_of(row)} needs its small values: scale them up, or compute it in FP32"
            why = f"{row.zero:,} of {row.rounded:,} results ({share:.1%}) were not 0 and became 0{to}; FP32 keeps them"
            yield Given(text, why, _where(row), share)


# ----------------------------------------------------------------------------------------------------------- loss scale


def loss_scale_too_small(found: Found) -> Iterator[Given]:
    best, scale = found.histograms.get("best_scale"), found.current_scale
    if best is not None and scale is not None and best < 2 * scale:
        return  # no larger scale fits
    rows = [r for r in found.ledger if r.phase == "backward" and r.rounded and half_in(r.written) == float16.name]
    if found.ledger and not rows:
        return  # nothing is stored in FP16: no scale is needed
    zero, rounded = sum(row.zero for row in rows), sum(row.rounded for row in rows)
    if found.ledger and rounded < LEAST_NUMBERS:
        return
    share, of, n = zero / max(rounded, 1), "values rounded in backward", rounded
    lost = found.histograms.get("lost", ())
    for one in lost:
        if "gradient" in one["role"] and one["scale"] == scale and one["zero"] > share:
            share, of, n = one["zero"], f"{one['role']}s", one.get("values", 0)
    then = next((x["zero"] for x in lost if of == f"{x['role']}s" and x["scale"] == best), None)
    if share <= FLUSHED or share == then:  # tried on the gradients seen: it changes nothing
        return
    now = "" if scale is None else f" from {scale:,g}" if scale < 1 else f" from {scale:,.0f}"
    to = "with optim.DynamicLossScaler" if best is None else f"to {best:,.0f}, or use optim.DynamicLossScaler"
    margin = found.histograms.get("margin")
    factor = f", by a factor of {margin:.3g}" if margin else ""
    zeros = "" if then is None else f"{then:.1%} do, and "
    room = "" if best is None else f"; at {best:,.0f} {zeros}none overflows{factor}"
    worst = max(rows, key=lambda row: row.zero, default=None)
    where = "" if worst is None or not worst.zero else f"most of them in {_of(worst)}, {_where(worst)}"
    why = f"{share * n:,.0f} of {n:,} {of} that are not 0 ({share:.1%}) become 0{room}"
    yield Given(f"Raise the loss scale{now} {to}", why, where, share)


def loss_scale_too_large(found: Found) -> Iterator[Given]:
    best, scale = found.histograms.get("best_scale"), found.current_scale
    changes = {s for _, s in found.scale.get("history", ())}
    if best is None or scale is None or scale <= best or len(changes) > 1:  # a dynamic scale finds its way by itself
        return
    at = {
        one["scale"]: one for one in found.histograms.get("lost", ()) if "gradient" in one["role"] and one["overflow"]
    }
    if over := at.get(scale):
        yield Given(
            f"Lower the loss scale from {scale:,.0f} to {best:,.0f}, or use optim.DynamicLossScaler",
            f"{over['overflow'] * over['values']:,.0f} of {over['values']:,} {over['role']}s "
            f"({over['overflow']:.1%}) overflow; at {best:,.0f} all that were seen stay below 65,504",
        )


def steps_that_no_scale_mends(found: Found) -> Iterator[Given]:
    """A NaN that no scale cures may also pull the scale down, until gradients are lost: PyTorch's issue 40497."""
    others = _not_by_the_scale(found)
    if not others:
        return
    first, last = (found.scale["history"][i][1] for i in (0, -1)) if found.scale.get("history") else (1.0, 1.0)
    cause = others[0]["cause"] if last < first else Counter(c["cause"] for c in others).most_common(1)[0][0]
    usual = [c for c in others if c["cause"] == cause]
    text = "Mend what makes steps overflow: no loss scale does"
    why = f"{_skipped(found)}, {len(usual)} of them for this: {usual[0]['text']}"
    if remedy := INSTEAD.get(usual[0].get("op", "")):
        why += f" ({usual[0]['op']}: {remedy})"
    if last < first:
        lost = [one for one in found.histograms.get("lost", ()) if "gradient" in one["role"]]
        zeros = {s: max(one["zero"] for one in lost if one["scale"] == s) for s in {one["scale"] for one in lost}}
        enough = min((s for s in zeros if last < s <= first and zeros[s] <= FLUSHED), default=first)
        text += f"; until then, optim.DynamicLossScaler(min_scale={enough:g}) keeps the scale from falling"
        why += f". Each lowers the scale, which fell from {first:,.6g} to {last:,.6g} and is slow to grow again"
        why += f": there {zeros[last]:.1%} of the gradients become 0" if zeros.get(last) else ""
    yield Given(text, why, _where(usual[0]))


def _not_by_the_scale(found: Found) -> list[dict[str, Any]]:
    return [c for c in found.scale.get("causes", ()) if c["cause"] not in ("loss scale too high", "unknown")]


def steps_skipped_by_the_scale(found: Found) -> Iterator[Given]:
    """A dynamic scale skips a few steps while it settles, which may be most of a short run."""
    causes, steps = found.scale.get("causes", ()), _iterations(found)
    skipped = len(found.scale.get("skipped", ())) - len(others := _not_by_the_scale(found))
    high = [c for c in causes if c["cause"] == "loss scale too high"]
    mostly = steps >= SHORTEST and 2 * skipped > steps and bool(high or not causes) and found.current_scale is not None
    if mostly or (skipped > max(SEARCH_SKIPS, SKIPPED * steps) and (high or not others)):
        why = f", {len(high)} of them for this: {high[0]['text']}" if high else ""
        text = "Let the loss scale grow more rarely, or start lower"
        if mostly:
            text = f"Start with a smaller loss scale: optim.DynamicLossScaler(init_scale={found.current_scale:g})"
        yield Given(text, _skipped(found) + why, _where(high[0]) if high else "")


def _iterations(found: Found) -> int:
    return int(found.scale.get("iterations", 0))


def _skipped(found: Found) -> str:
    return f"{len(found.scale['skipped'])} of {_iterations(found)} steps were skipped"


# ---------------------------------------------------------------------------------------------------- weights and state


def masters_missing(found: Found) -> Iterator[Given]:
    updates = [u for u in found.halves if u["master"] is False]
    lost = [u for u in updates if u["lost"] > FLUSHED]
    if lost:
        worst = max(lost, key=lambda u: u["lost"])
        storage = dtypes(worst.get("storage", float16.name))
        policy = "MIXED" if storage == "FP16" else storage
        yield Given(
            f"Keep FP32 master weights: a policy with master=True, such as tinymp.{policy}",
            f"{worst['lost']:.1%} of the updates of {worst['name']} leave the {storage} weight as it is; so do more "
            f"than {FLUSHED:.0%} in {len(lost)} of {len(updates)} parameters",
            worst["name"],
            worst["lost"],
        )


def fp16_state(found: Found) -> Iterator[Given]:
    if size := found.dtypes("optimizer").get(float16.name):
        yield Given(
            "Keep the optimizer's state in FP32: Policy(state=float32)",
            f"{size / 2**20:.1f} MiB of it are FP16; squares of gradients below 1.7e-4 are 0 there",
        )


def fp16_norms(found: Found) -> Iterator[Given]:
    """`norm` of a policy rules the layers of nn; a layer of the user's own is kept by its path in the model."""
    norms = {row.module for row in found.ledger if row.op.endswith("_norm") and row.module}
    rows = [row for row in found.ledger if row.phase == "update" and row.module.rpartition(".")[0] in norms]
    half = [row for row in rows if half_in(row.written)]
    if half:
        yield Given(
            "Keep the parameters of normalisation layers in FP32: Policy(norm=float32), or for layers of your own "
            "policy.cast(model, keep=...)",
            f"{len(half)} of {len(rows)} of them are {dtypes(half_in(half[0].written))}",
            f"{half[0].module}, {half[0].caller}",
        )


# ----------------------------------------------------------------------------------------------------------- arithmetic


def fp16_sums(found: Found, field: str, dots: bool) -> Iterator[Given]:
    rows = [r for r in found.ledger if float16.name in r.accumulated.split(", ") and (r.kind == DOT.name) is dots]
    if rows:
        ops = sorted({row.op for row in rows})
        yield Given(
            f"Accumulate in FP32: tinymp.study.change(policy, {field}=float32)",
            f"{', '.join(ops[:5])}{' and others' * (len(ops) > 5)} add up in FP16, in {len(rows)} rows of the ledger: "
            "a sum stalls where a term is less than half the distance between its FP16 neighbours",
            _where(rows[0]),
        )


def fp16_products(found: Found) -> Iterator[Given]:
    yield from fp16_sums(found, "accumulate", True)


def fp16_reductions(found: Found) -> Iterator[Given]:
    yield from fp16_sums(found, "reduce", False)


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
    """Features to pad, and numbers of rows: one advice for each length of each module, and one for the batch."""
    products = asked(found.products)
    total = sum(p["flops"] for p in products) or 1
    sites: dict[tuple, list] = defaultdict(list)
    for p in products:
        for name in p["misaligned"] if p["dtype"] in HALF else ():
            of, length = p["axes"].get(name, name), p["lengths"][name]
            key = (of, length) if of == "rows" else (of, length, p["module"], p["op"])
            sites[key].append(p)
    for (of, length, *site), found_there in sites.items():
        padded = -(-length // 8) * 8
        share = sum(p["flops"] for p in found_there) / total
        # padding of e.g. three colours, or one value, costs more than it gains
        if share < PAD_FROM or padded > 2 * length or per_call(found_there) < LEAST_WORK:
            continue
        rows = of == "rows"
        more = "" if rows or len(found_there) == 1 else f" in {len(found_there)} sizes"
        features = f"Pad the {of} of {' '.join(filter(None, site))} from {length} to {padded}"
        yield Given(
            f"Choose a batch with {padded} rows instead of {length}" if rows else features,
            f"{length} is no multiple of 8: {share:.1%} of the operations of all matrix products{more} are kept "
            f"from Tensor Cores, or run there less efficiently, by cuBLAS 11 and later; {padded} takes "
            f"{padded / length - 1:.1%} more of them",
            _where(found_there[0]),
            share,
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
    (fp16_norms, "NVG 2.3.1", 55, 0),
    (fp16_products, DOT.source, 68, 0),
    (fp16_reductions, REDUCTION.source, 65, 0),
    (unaligned_products, "NVG 2.2", 10, 20),
]


def _of(row: Row) -> str:
    return f"{row.op} of {row.module}" if row.module else row.op


def _where(x: Any) -> str:
    """File and line in the user's program and in tinymp, of a Row or of a dict with the same names."""
    get = x.get if isinstance(x, dict) else lambda name: getattr(x, name)
    return ", ".join(str(v) for v in (get("caller"), get("where")) if v)
