"""advise(): the changes that an audit shows to be worth making, each with its reason in numbers and its source.

A rule is a function below, named after what it looks for: it reads what the instruments found and yields its advice.
The most important comes first. Where an instrument is missing, its rules yield nothing. All judgement is here: the
summary (summary.py) states numbers, and ranks them by the importance of these rules' advice.

Advice is about the run that is asked about: not about an FP32 baseline beside FP16, nor about an evaluation beside a
training (but for what becomes infinite there), nor about numbers too few to judge: the least are named below.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from ..dtypes import float16, float32
from ..precision import DOT, MOVEMENT, REDUCTION
from .ledger import Row
from .numbers import dtypes

FLUSHED = 0.01  # share of results that become 0 from which on it is worth a look
SKIPPED = 0.05  # share of iterations: NVG section 2.3.2 has steps skipped "infrequently"
NEEDLESS = 0.001  # share of lost updates below which nobody would miss a master
PAD_FROM = 0.001  # share of the operations from which on padding is worth the trouble
SEARCH_SKIPS = 16  # skipped steps that a scale which starts at 2^16 may need to find its value
LEAST_NUMBERS = 1000  # numbers (rounded, updated) below which shares of them mean little
LEAST_UPDATES = 20  # updates of a parameter, the same
LEAST_WORK = 1e7  # operations of a product below which a GPU takes longer to start it than to run it at 10 TFLOP/s
SPOILS = 65  # importance from which on the training itself suffers
LARGEST = {"float16": 65504.0, "bfloat16": 3.39e38, "float32": 3.4e38}
SPACING = {"float16": -11, "bfloat16": -8}  # at least 2^this of a number are between it and the next


class Advice(NamedTuple):
    """What to change, the measured reason, the place, and the section of MPT or NVG that it follows.

    importance  from 0 to 100; from SPOILS on the training itself suffers, below it speed or memory do, or might
    rule        the function below that says so
    """

    text: str
    why: str
    where: str
    source: str
    importance: float
    rule: str = ""


class Found(NamedTuple):
    """What the instruments found, as in their `as_dict`; empty where there is none."""

    ledger: list[Row]
    histograms: dict[str, Any]
    updates: list[dict[str, Any]]
    scale: dict[str, Any]
    bytes: dict[str, Any]
    products: list[dict[str, Any]]

    def dtypes(self, role: str) -> dict[str, int]:
        """Bytes of a role by dtype, measured or else predicted."""
        measured, predicted = self.bytes.get("measured") or {}, self.bytes.get("predicted") or {}
        return measured.get(role) or predicted.get(role) or {}

    @property
    def halves(self) -> list[dict[str, Any]]:
        """The updates of FP16 and BF16 weights that are enough to judge."""
        enough = [u for u in self.updates if u.get("elements", LEAST_NUMBERS) >= LEAST_NUMBERS]
        return [u | {"master": u.get("master", self.has_masters)} for u in enough if not u.get("fp32")]

    @property
    def has_masters(self) -> bool | None:
        """True if FP16 and BF16 weights have masters; None where no such weight is known."""
        if SPACING.keys() & self.dtypes("weights").keys():
            return bool(self.dtypes("masters"))
        written = [row.written for row in self.ledger if row.phase == "update" and half_in(row.written)]
        return any("master" in w for w in written) if written else None

    @property
    def current_scale(self) -> float | None:
        """The loss scale that gradients carried last."""
        if history := self.scale.get("history"):
            return history[-1][1]
        tensors = [t for t in self.histograms.get("tensors", ()) if "gradient" in t["role"]]
        tensors = [t for t in tensors if t.get("dtype") == float16.name] or tensors
        return tensors[-1]["scale"] if tensors else None

    @property
    def trained(self) -> list[Row]:
        """The ledger without what only an evaluation ran: the same op of the same module, from another line, that no
        backward pass has come back to.
        """
        behind = {(row.module, row.op, row.caller) for row in self.ledger if row.phase == "backward"}
        counterparts = {(module, op) for module, op, _ in behind}

        def evaluates(row: Row) -> bool:
            site = row.module, row.op, row.caller
            return row.phase == "forward" and site not in behind and site[:2] in counterparts

        return [row for row in self.ledger if not evaluates(row)]


def asked(products: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The products of the run that is asked about: without those of an FP32 baseline beside it, and of an evaluation
    beside a training, whose batches no backward pass has seen.
    """

    def place(p: dict[str, Any]) -> tuple:
        return p.get("module"), p.get("op")

    def batch(p: dict[str, Any]) -> Any:
        return next((p[name] for name, of in p.get("axes", {}).items() if of == "rows"), None)

    halves = [p for p in products if p.get("dtype") in SPACING]
    policies, places = {p.get("policy") for p in halves}, set(map(place, halves))
    if halves:  # FP32 products of the same training, that have no counterpart in half precision, are its own

        def own(p: dict[str, Any]) -> bool:
            return p.get("dtype") in SPACING or (p.get("policy") in policies and place(p) not in places)

        products = list(filter(own, products))
    seen = {(place(p), batch(p)) for p in products if p.get("phase") == "backward"}
    trained = {where for where, _ in seen}
    return [p for p in products if place(p) not in trained or (place(p), batch(p)) in seen]


def per_call(products: list[dict[str, Any]]) -> float:
    """The operations of one call of the largest of these products."""
    return max((p["flops"] / max(p["calls"], 1) for p in products), default=0.0)


INSTRUMENTS = {
    "Ledger": "ledger",
    "Exponents": "histograms",
    "LostUpdates": "updates",
    "Scales": "scale",
    "ByteLedger": "bytes",
    "Products": "products",
}


def advise(audit: Any) -> list[Advice]:
    """The changes worth making, the most important first; an empty list if there is nothing to say.

    audit: an Audit, or its instruments, or some of them.
    """
    listener = getattr(audit, "_listener", None)
    instruments: Iterable = audit if listener is None else listener.instruments
    found: dict[str, Any] = {"ledger": [], "updates": [], "products": [], "histograms": {}, "scale": {}, "bytes": {}}
    for instrument in instruments:
        if (name := INSTRUMENTS.get(type(instrument).__name__)) is not None:
            found[name] = list(instrument.rows) if name == "ledger" else instrument.as_dict()
    return judged(Found(**found))


def judged(found: Found) -> list[Advice]:
    """The advice of all rules, the most important first."""
    given = [advice._replace(rule=rule.__name__) for rule in RULES for advice in rule(found)]
    return sorted(given, key=lambda advice: -advice.importance)


# ----------------------------------------------------------------------------------------------------- forward overflow


def overflows(found: Found) -> Iterator[Advice]:
    """Only outside of backward: there, the loss scaler skips the step."""
    for row in found.ledger:
        if row.phase != "backward" and row.infinite:
            name = half_in(row.written) or float32.name
            end = f"{LARGEST[name]:,.0f}" if name == float16.name else f"{LARGEST[name]:.2e}"
            known = row.largest > LARGEST[name]
            yield Advice(
                f"Keep {_of(row)} within {dtypes(name)}: scale its inputs down, or compute it in "
                f"{'FP64' if name == float32.name else 'FP32'}",
                f"{row.infinite:,} of {row.rounded:,} results became infinite; the largest was {row.largest:.4g}, "
                f"and {f'{dtypes(name)} ends at {end}' if known else 'a format of its operands ends below'}",
                _where(row),
                "NVG 2.1",
                95,
            )


def overflows_not_skipped(found: Found) -> Iterator[Advice]:
    rows = [row for row in found.ledger if row.phase == "backward" and row.infinite]
    if rows and found.scale and not found.scale["skipped"]:
        worst = max(rows, key=lambda row: row.infinite)
        yield Advice(
            "Skip the steps whose gradients overflow: optim.DynamicLossScaler, or a smaller loss scale",
            f"{sum(row.infinite for row in rows):,} numbers became infinite in backward, and no step was skipped; the "
            f"most in {_of(worst)}",
            _where(worst),
            "NVG 2.3.2",
            90,
        )


def underflows(found: Found) -> Iterator[Advice]:
    for row in found.trained:
        if row.phase == "forward" and row.rounded >= LEAST_NUMBERS and row.zero > FLUSHED * row.rounded:
            share, to = row.zero / row.rounded, ", below 2^-25 = 3e-8" * (half_in(row.written) == float16.name)
            yield Advice(
                f"See whether {_of(row)} needs its small values: scale them up, or compute it in FP32",
                f"{share:.1%} of {row.rounded:,} results were not 0 and became 0{to}",
                _where(row),
                "NVG 2.1",
                30 + 20 * share,
            )


# ----------------------------------------------------------------------------------------------------------- loss scale


def loss_scale_too_small(found: Found) -> Iterator[Advice]:
    best, scale = found.histograms.get("best_scale"), found.current_scale
    if best is not None and scale is not None and best < 2 * scale:
        return  # no larger scale fits
    rows = [r for r in found.ledger if r.phase == "backward" and r.rounded and half_in(r.written) == float16.name]
    if found.ledger and not rows:
        return  # nothing is stored in FP16: no scale is needed
    zero, rounded = sum(row.zero for row in rows), sum(row.rounded for row in rows)
    if found.ledger and rounded < LEAST_NUMBERS:
        return
    share, of = zero / max(rounded, 1), "values rounded in backward"
    for one in found.histograms.get("lost", ()):
        if "gradient" in one["role"] and one["scale"] == scale and one["zero"] > share:
            share, of = one["zero"], f"{one['role']}s"
    if share <= FLUSHED:
        return
    now = "" if scale is None else f" from {scale:,g}" if scale < 1 else f" from {scale:,.0f}"
    to = "with optim.DynamicLossScaler" if best is None else f"to {best:,.0f}, or use optim.DynamicLossScaler"
    margin = found.histograms.get("margin")
    factor = f", by a factor of {margin:.3g}" if margin else ""
    room = "" if best is None else f"; at {best:,.0f} none overflows{factor}"
    worst = max(rows, key=lambda row: row.zero, default=None)
    yield Advice(
        f"Raise the loss scale{now} {to}",
        f"{share:.1%} of the {of} that are not 0 become 0{room}",
        "" if worst is None or not worst.zero else f"most of them in {_of(worst)}, {_where(worst)}",
        "MPT 3.2, NVG 2.3.2",
        70 + 20 * share,
    )


def loss_scale_too_large(found: Found) -> Iterator[Advice]:
    best, scale = found.histograms.get("best_scale"), found.current_scale
    changes = {s for _, s in found.scale.get("history", ())}
    if best is None or scale is None or scale <= best or len(changes) > 1:  # a dynamic scale finds its way by itself
        return
    yield Advice(
        f"Lower the loss scale from {scale:,.0f} to {best:,.0f}, or use optim.DynamicLossScaler",
        f"{best:,.0f} is the largest power of two at which all gradients seen stay below 65,504",
        "",
        "MPT 3.2, NVG 2.3.2",
        85,
    )


def skipped_steps(found: Found) -> Iterator[Advice]:
    """A dynamic scale skips a few steps while it settles; it does not cure other causes."""
    skipped, history = found.scale.get("skipped", ()), found.scale.get("history", ())
    seen = [i for i, _ in history] + list(skipped)
    iterations = max(seen, default=0) - min(seen, default=1) + 1  # others, before the scaler's first, are not its own
    causes: dict[str, list] = defaultdict(list)
    for cause in found.scale.get("causes", ()):
        causes[cause["cause"]].append(cause)
    high = causes.pop("loss scale too high", [])
    causes.pop("unknown", None)
    if others := max(causes.values(), key=len, default=[]):
        text, usual = "Mend what makes steps overflow: no loss scale does", others
    elif len(skipped) > max(SEARCH_SKIPS, SKIPPED * iterations):
        text, usual = "Let the loss scale grow more rarely, or start lower", high
    else:
        return
    why = f"{len(skipped)} of {iterations} steps were skipped"
    why += f", {len(usual)} of them for this: {usual[0]['text']}" if usual else ""
    yield Advice(text, why, _where(usual[0]) if usual else "", "NVG 2.3.2", 80 if others else 40)


# ---------------------------------------------------------------------------------------------------- weights and state


def masters_missing(found: Found) -> Iterator[Advice]:
    updates = [u for u in found.halves if u["master"] is False]
    lost = [u for u in updates if u["lost"] > FLUSHED]
    if lost:
        worst = max(lost, key=lambda u: u["lost"])
        storage = dtypes(worst.get("storage", float16.name))
        policy = "MIXED" if storage == "FP16" else storage
        yield Advice(
            f"Keep FP32 master weights: a policy with master=True, such as tinymp.{policy}",
            f"{worst['lost']:.1%} of the updates of {worst['name']} leave the {storage} weight as it is; so do more "
            f"than {FLUSHED:.0%} in {len(lost)} of {len(updates)} parameters",
            worst["name"],
            "MPT 3.1",
            75 + 20 * worst["lost"],
        )


def masters_needless(found: Found) -> Iterator[Advice]:
    updates = [u for u in found.halves if u["master"]]
    if updates and min(u["updates"] for u in updates) >= LEAST_UPDATES:
        worst = max(u["lost"] for u in updates)
        size = sum(found.dtypes("masters").values())
        saved = f"; masters take {size / 2**20:.1f} MiB" if size else ""
        if worst < NEEDLESS and all(u["unchanged_by_zero"] < 1 for u in updates):  # each has moved
            storage = dtypes(updates[0].get("storage", float16.name))
            policy = "tinymp.NO_MASTER" if storage == "FP16" else "a policy with master=False"
            yield Advice(
                f"Try {policy}: the {storage} weights follow their updates without masters",
                f"no parameter loses more than {worst:.2%} of its updates in {storage}{saved}. Updates become smaller "
                "as the training goes on: look again at its end",
                "",
                "MPT 3.1",
                5,
            )


def fp16_state(found: Found) -> Iterator[Advice]:
    if size := found.dtypes("optimizer").get(float16.name):
        yield Advice(
            "Keep the optimizer's state in FP32: Policy(state=float32)",
            f"{size / 2**20:.1f} MiB of it are FP16; squares of gradients below 1.7e-4 are 0 there",
            ", ".join(sorted({o["optimizer"] for o in found.bytes.get("optimizers", ())})),
            "MPT 3.1",
            60,
        )


def fp16_norms(found: Found) -> Iterator[Advice]:
    """`norm` of a policy rules the layers of nn; a layer of the user's own is kept by its path in the model."""
    norms = {row.module for row in found.ledger if row.op.endswith("_norm") and row.module}
    rows = [row for row in found.ledger if row.phase == "update" and row.module.rpartition(".")[0] in norms]
    of_users = {u["name"]: u["path"].rpartition(".")[0] for u in found.updates if not u.get("normalisation", True)}
    half = [row for row in rows if half_in(row.written)]
    for some, own in (([row for row in half if (row.module in of_users) is own], own) for own in (False, True)):
        if some:
            paths = dict.fromkeys(of_users[row.module] for row in some if own)
            keep = ", ".join(f"{path!r}: tinymp.FP32" for path in paths)
            yield Advice(
                "Keep the parameters of normalisation layers in FP32: "
                + (f"policy.cast(model, keep={{{keep}}})" if own else "Policy(norm=float32)"),
                f"{len(some)} of {len(rows)} of them are {dtypes(half_in(some[0].written))}",
                f"{some[0].module}, {some[0].caller}",
                "NVG 2.3.1",
                55,
            )


def vanishing_constants(found: Found) -> Iterator[Advice]:
    half = next(iter(sorted(SPACING.keys() & found.dtypes("weights").keys())), float16.name)
    power = SPACING[half]
    for options in found.bytes.get("optimizers", ()):
        eps, decay = options.get("eps"), options.get("lr", 0) * options.get("weight_decay", 0)
        if eps and eps < 2.0**-25 and float16.name in found.dtypes("optimizer"):
            yield Advice(
                f"Raise eps of {options['optimizer']} above 6e-8, or keep its state in FP32",
                f"eps = {eps:g} is 0 beside FP16 numbers, whose smallest is 6e-8: where the averaged squares have "
                "underflowed to 0, it alone is what the update is divided by",
                options["optimizer"],
                "MPT 3.1",
                58,
            )
        if 0 < decay < 2.0 ** (power - 1) and found.has_masters is False:
            yield Advice(
                f"Keep FP32 masters, or the weight decay of {options['optimizer']} does nothing",
                f"a step takes lr * weight_decay = {decay:.2g} of a weight, less than half the distance between "
                f"two {dtypes(half)} numbers, 2^{power - 1} to 2^{power} of it",
                options["optimizer"],
                "MPT 3.1",
                50,
            )


# ----------------------------------------------------------------------------------------------------------- arithmetic


def fp16_accumulators(found: Found) -> Iterator[Advice]:
    for kind, field, importance in ((DOT, "accumulate", 68), (REDUCTION, "reduce", 65)):
        rows = [
            row
            for row in found.ledger
            if float16.name in row.accumulated.split(", ") and (row.kind == DOT.name) is (kind is DOT)
        ]
        if rows:
            ops = sorted({row.op for row in rows})
            yield Advice(
                f"Accumulate in FP32: tinymp.study.change(policy, {field}=float32)",
                f"{', '.join(ops[:5])}{' and others' * (len(ops) > 5)} add up in FP16, in {len(rows)} rows of the "
                "ledger: a sum stalls where a term is less than half the distance between its FP16 neighbours",
                _where(rows[0]),
                kind.source,
                importance,
            )


def model_in_fp32(found: Found) -> Iterator[Advice]:
    rows = [row for row in found.ledger if row.phase in ("forward", "backward") and row.kind != MOVEMENT.name]
    products = [row for row in rows if row.kind == DOT.name]
    if not products or any(half_in(f"{row.read}, {row.written}") for row in rows):
        return
    if not any(row.phase == "backward" for row in rows) or (found.products and per_call(found.products) < LEAST_WORK):
        return  # nothing is trained, or nothing would gain
    sizes = [f"{sum(s.values()) / 2**20:,.1f} MiB of {r}" for r in ("weights", "activations") if (s := found.dtypes(r))]
    best = found.histograms.get("best_scale")
    yield Advice(
        "Train in mixed precision: tinymp.MIXED.cast(model)"
        + (f", with a loss scale of up to {best:,.0f}" if best and best > 1 else " and a loss scaler"),
        f"no matrix product of {len(products)} reads FP16, so Tensor Cores stay idle"
        + (f"; {' and '.join(sizes)} are FP32, twice the bytes of FP16" if sizes else ""),
        _where(products[0]),
        "MPT 3, NVG 2.2",
        64,
    )


# ------------------------------------------------------------------------------------------------------------- products


def unaligned_products(found: Found) -> Iterator[Advice]:
    """Features to pad, and numbers of rows: one advice for each length of each module, and one for the batch."""
    products = asked(found.products)
    total = sum(p["flops"] for p in products) or 1
    sites: dict[tuple, list] = defaultdict(list)
    for p in products:
        if p["dtype"] not in SPACING:
            continue
        for name in p["misaligned"]:
            of, length = p["axes"].get(name, name), p["lengths"][name]
            key = (of, length) if of == "rows" else (of, length, p["module"], p["op"])
            sites[key].append(p)
    for (of, length, *site), found_there in sites.items():
        padded = -(-length // 8) * 8
        share = sum(p["flops"] for p in found_there) / total
        if share < PAD_FROM or padded > 2 * length:  # e.g. three colours, one value: padding costs more than it gains
            continue
        if per_call(found_there) < LEAST_WORK:
            continue
        first = found_there[0]
        more = "" if of == "rows" or len(found_there) == 1 else f" in {len(found_there)} sizes"
        what = (
            f"Choose a batch with {padded} rows instead of {length}"
            if of == "rows"
            else f"Pad the {of} of {' '.join(filter(None, site))} from {length} to {padded}"
        )
        yield Advice(
            what,
            f"{length} is no multiple of 8: {share:.1%} of the operations of all matrix products{more} are kept "
            f"from Tensor Cores; {padded} takes {padded / length - 1:.1%} more of them",
            _where(first),
            "NVG 2.2",
            10 + 20 * share,
        )


# Advice of equal importance comes in this order.
RULES: list[Callable[[Found], Iterator[Advice]]] = [
    model_in_fp32,
    overflows,
    overflows_not_skipped,
    underflows,
    loss_scale_too_small,
    loss_scale_too_large,
    skipped_steps,
    masters_missing,
    masters_needless,
    fp16_state,
    fp16_norms,
    vanishing_constants,
    fp16_accumulators,
    unaligned_products,
]


def half_in(names: str) -> str | None:
    """float16 or bfloat16, as far as a row's dtypes name it: "float16, float32", "float32 master, float16 copy"."""
    return next((name for name in names.replace(",", " ").split() if name in SPACING), None)


def _of(row: Row) -> str:
    return f"{row.op} of {row.module}" if row.module else row.op


def _where(x: Any) -> str:
    """File and line in the user's program and in tinymp, of a Row or of a dict with the same names."""
    get = x.get if isinstance(x, dict) else lambda name: getattr(x, name)
    return ", ".join(str(v) for v in (get("caller"), get("where")) if v)
