"""The report: one HTML file that holds everything an audit found and needs no network.

This file decides what the page shows, in which order, and computes its charts; the page itself is report.html.jinja,
its first sentences come from summary.py.
"""

from __future__ import annotations

import base64
import hashlib
import math
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from ..backend.extras import hint
from ..checkpoint import writing
from ..precision import KINDS
from .callers import source
from .ledger import WORST
from .numbers import count, dtypes, number, power, raw, real, share, size
from .sampling import few
from .summary import LEVELS, findings, summarise

SMALLEST, NORMAL, TOO_LARGE = -24, -14, 16  # exponents: FP16's smallest number, smallest normal one, first infinity
KEPT = SMALLEST - 1  # from this exponent on, numbers are rounded up to the smallest one
EXPONENTS = (-40, 17)  # what a histogram shows at most; what lies outside is counted at the ends
ROLES = {"weight": "Weights", "weight gradient": "Weight gradients", "activation gradient": "Activation gradients"}
DRAWN = "float16", "float32", "float64"  # the dtypes that have a colour of their own in the chart of bytes
SHOWN_PARTS = 64  # of a module, in the picture of the model
MEASURED = {  # what not every audit measures, and what the page calls it when it is missing
    "histograms": "exponent histograms",
    "updates": "lost updates",
    "scale": "the loss scale's history",
    "bytes": "bytes",
    "products": "Tensor Core eligibility",
    "shadow": "shadow runs",
    "formats": "other formats",
    "depth": "sizes along depth",
}


def write(path: str | os.PathLike[str], content: dict[str, Any]) -> None:
    """Write the report to an HTML file, in folders that are made where they are missing.

    content: "title", "created", "policy", "environment" and "summary", then what each instrument's `as_dict` gave:
        "ledger" (a list of `Row.as_dict()`), "histograms", "updates", "scale", "shadow", "formats", "bytes",
        "products", "advice".
        Any may be missing; of the summary, what is missing is counted in the ledger.

    ModuleNotFoundError says how to install Jinja2.
    """
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    writing.write(path, page(content))


def page(content: dict[str, Any]) -> str:
    """The report as a string of HTML."""
    filters = count, share, number, size, power, dtypes, raw, breakable, snippet
    return _secured(rendered(Path(__file__).with_name("report.html.jinja"), _view(content), "Chainable", filters))


def rendered(template: Path, view: dict[str, Any], undefined: str, filters: Iterable[Callable]) -> str:
    """A template, filled in. undefined: what Jinja2 makes of a name that the view lacks, "Strict" (an
    error) or "Chainable" (nothing). ModuleNotFoundError says how to install Jinja2.
    """
    try:
        import jinja2
    except ModuleNotFoundError:
        raise ModuleNotFoundError(f"report: Jinja2 is not installed: {hint('audit')}") from None
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(template.parent),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=getattr(jinja2, f"{undefined}Undefined"),
    )
    environment.filters |= {f.__name__: f for f in filters}
    return environment.get_template(template.name).render(view)


def breakable(name: str | None) -> Any:
    """A path that may be broken after its dots."""
    from markupsafe import Markup

    return Markup(".<wbr>").join((name or "–").split("."))


def _secured(html: str) -> str:
    """The page with a policy that lets its own style and scripts run, by their hashes, and nothing be loaded."""

    def hashes(tag: str) -> str:
        parts = re.findall(rf"<{tag}>(.*?)</{tag}>", html, re.S)
        digests = (base64.b64encode(hashlib.sha256(part.encode()).digest()).decode() for part in parts)
        return " ".join(f"'sha256-{digest}'" for digest in digests)

    allowed = f"default-src 'none'; img-src data:; style-src {hashes('style')}; script-src {hashes('script')}"
    return html.replace("<title>", f'<meta http-equiv="Content-Security-Policy" content="{allowed}">\n<title>', 1)


def _view(content: dict[str, Any]) -> dict[str, Any]:
    """What the template shows."""
    rows = [{k: "–" if v == "-" else v for k, v in row.items()} for row in content.get("ledger") or []]
    ledger = sorted(enumerate(rows), key=lambda entry: _badness(entry[1]), reverse=True)
    summary, scale = summarise(content), content.get("scale") or {}
    used = list(dict.fromkeys(row.get("policy") or "–" for row in rows))
    lossy = {row.get("policy") or "–" for row in rows if row.get("rounded")}
    baseline = set(used) - lossy if lossy else set()  # runs beside the one that is asked about, which round nothing
    scales = {real(s) for _, s in scale.get("history") or []}
    tensors = (content.get("histograms") or {}).get("tensors") or []
    return {
        **{
            name: content.get(name)
            for name in ("title", "created", "policy", "environment", "advice", "crash", *MEASURED)
        },
        "summary": summary,
        "findings": [(LEVELS[f.level], f) for f in findings(content)],
        "ledger": ledger,
        "phases": sorted({row.get("phase", "–") for row in rows}),
        "used": used,
        "baseline": baseline,
        "kinds": sorted({row.get("kind", "–") for row in rows}),
        "rules": {kind.name: kind for kind in KINDS},
        "figures": _figures(tensors),
        "policies": {t.get("policy") for t in tensors},
        "lost": _lost_charts(content.get("histograms") or {}),
        "updates": sorted(content.get("updates") or [], key=lambda u: real(u.get("lost")), reverse=True),
        "products": sorted(content.get("products") or [], key=_waste, reverse=True),
        "scale": scale if any(scale.values()) else None,
        "constant": scales.pop() if len(scales) == 1 else None,
        "over_time": _over_time(scale, summary),
        "tree": _tree(rows, baseline),
        "bytes": _bars(content.get("bytes") or {}),
        "missing": [words for name, words in MEASURED.items() if content.get(name) is None],
    }


def _tree(rows: list[dict], baseline: set[str]) -> list[dict[str, Any]]:
    """The modules below each other, in the order in which they first ran: what was rounded in each and in its parts,
    and what of it was lost.
    """
    nodes: dict[str, dict[str, Any]] = {}
    top: list[dict[str, Any]] = []
    for row in rows:
        if row.get("policy") in baseline or row.get("phase") not in ("forward", "backward") or "module" not in row:
            continue
        parts, inside = row["module"].split("."), top
        for path in (".".join(parts[: i + 1]) for i in range(len(parts))):
            if path not in nodes:
                nodes[path] = {"path": path, "name": path.rpartition(".")[2], "parts": [], "ops": {}}
                nodes[path] |= dict.fromkeys(("rounded", "zero", "subnormal", "infinite"), 0)
                inside.append(nodes[path])
            for name in ("rounded", "zero", "subnormal", "infinite"):
                nodes[path][name] += int(row.get(name) or 0)
            inside = nodes[path]["parts"]
        if row["phase"] == "forward":
            nodes[row["module"]]["ops"][row.get("op", "")] = None
    for node in nodes.values():
        share = max(node["zero"], node["subnormal"]) / max(node["rounded"], 1)
        node["many"] = max(len(node["parts"]) - SHOWN_PARTS, 0)
        node["parts"] = node["parts"][:SHOWN_PARTS]
        node["level"] = "inf" if node["infinite"] else sum(share > limit for limit in (0, 1e-4, 1e-2, 0.1))
    return top[:SHOWN_PARTS]


def snippet(where: str) -> list[tuple[int, str, bool]]:
    """The lines of tinymp around one: number, text, and whether it is the one."""
    at = where.rpartition(":")[2]
    return [(i, text, str(i) == at) for i, text in source(where, around=1)]


def _badness(row: dict) -> tuple:
    return tuple(row.get(name, 0) for name in WORST)


def _waste(product: dict) -> tuple:
    return bool(product.get("misaligned")), real(product.get("flops"))


# --------------------------------------------------------------------------------------------------------- charts


def _boxes(boxes: Iterable[tuple[float, float, float, float]]) -> str:
    """An SVG path of rectangles: x, y, width, height."""
    return "".join(f"M{x:.4g} {y:.4g}h{w:.4g}v{h:.4g}h{-w:.4g}z" for x, y, w, h in boxes)


def _figures(tensors: list[dict]) -> list[dict[str, Any]]:
    """The histograms by role: bars of the stored values, an outline of gradients without their loss scale, and below
    them a strip per snapshot, the darker the more values."""
    found: dict[str, list[dict]] = {}
    policies = list(dict.fromkeys(t.get("policy") for t in tensors))
    tensors = sorted(tensors, key=lambda t: policies.index(t.get("policy")), reverse=True)  # the last one's first
    shifted = [(t, _exponents(t.get("counts") or [], t.get("lowest", 0))) for t in tensors]
    low = min((min(e) - _shift(t) for t, e in shifted if e), default=-26)
    low = max(min(low, SMALLEST - 2), EXPONENTS[0])
    step, top, height = 240 / (EXPONENTS[1] + 1 - low), 8, 64

    def x(exponent: float) -> float:
        return (exponent - low) * step

    def shares(exponents: dict[int, int], total: int, shift: int = 0) -> dict[int, float]:
        clipped: Counter[int] = Counter()
        for e, n in exponents.items():
            clipped[min(max(e - shift, low), EXPONENTS[1])] += n
        return {e: n / max(total, 1) for e, n in clipped.items()}

    for tensor, exponents in shifted:
        zeros, infinite, nan = (int(tensor.get(k) or 0) for k in ("zeros", "infinite", "nan"))
        nonzero = sum(exponents.values())
        total = nonzero + zeros + infinite + nan
        bars = shares(exponents, total)
        peak = max(bars.values(), default=0) or 1

        def box(e: int, v: float, peak: float = peak) -> tuple[float, float, float, float]:
            h = v / peak * (height - top)
            return x(e) + 0.3, height - h, step - 0.6, h

        snapshots = few(tensor.get("snapshots") or [], 12)
        levels: dict[int, list] = {1: [], 2: [], 3: [], 4: []}
        for i, snapshot in enumerate(snapshots):
            line = _exponents(snapshot.get("counts") or [], tensor.get("lowest", 0))
            parts = shares(line, sum(line.values()))
            for e, v in parts.items():
                levels[min(1 + int(4 * v / max(parts.values())), 4)].append((x(e), 84 + 5 * i, step, 5))
        found.setdefault(tensor.get("role", "-"), []).append(
            {
                **tensor,
                "total": total,
                "zero_share": zeros / max(total, 1),
                "small_share": sum(v for e, v in bars.items() if e < KEPT),
                "subnormal_share": sum(v for e, v in bars.items() if KEPT <= e < NORMAL),
                "bars": {
                    "small": _boxes(box(e, v) for e, v in bars.items() if e < KEPT),
                    "low": _boxes(box(e, v) for e, v in bars.items() if KEPT <= e < NORMAL),
                    "normal": _boxes(box(e, v) for e, v in bars.items() if NORMAL <= e < TOO_LARGE),
                    "high": _boxes(box(e, v) for e, v in bars.items() if e >= TOO_LARGE),
                },
                "tips": [(x(e), step, _tip(e, v, low)) for e, v in sorted(bars.items())],
                "outline": _outline(shares(exponents, total, _shift(tensor)), box) if _shift(tensor) else "",
                "levels": {level: _boxes(boxes) for level, boxes in levels.items()},
                "snapshots": [s.get("iteration") for s in snapshots],
                "height": 84 + 5 * len(snapshots),
            }
        )
    limits = [(x(SMALLEST), "2⁻²⁴"), (x(NORMAL), "2⁻¹⁴"), (x(0), "1"), (x(TOO_LARGE), "2¹⁶")]
    roles = sorted(found, key=lambda r: list(ROLES).index(r) if r in ROLES else len(ROLES))
    return [{"role": ROLES.get(r, r), "limits": limits, "tensors": found[r]} for r in roles]


def _tip(exponent: int, part: float, low: int) -> str:
    """What a bar says: its exponent (or beyond it, at the ends), and the share of the numbers."""
    beyond = "≤ " if exponent == low == EXPONENTS[0] else "≥ " if exponent == EXPONENTS[1] else ""
    return f"{beyond}{power(2.0**exponent)}: {share(part)}"


def _outline(shares: dict[int, float], box: Callable) -> str:
    path, before = "", None
    for e in sorted(shares):
        x, y, w, h = box(e, shares[e])
        path += (f"H{x:.4g}" if before == e - 1 else f"M{x:.4g} {y + h:.4g}") + f"V{y:.4g}h{w:.4g}"
        path += "" if e + 1 in shares else f"v{h:.4g}"
        before = e
    return path


def _exponents(counts: list[int], lowest: int) -> dict[int, int]:
    return {lowest + i: n for i, n in enumerate(counts) if n}


def _shift(tensor: dict) -> int:
    """The exponent of the loss scale that the values carry."""
    scale = real(tensor.get("scale"))
    return round(math.log2(scale)) if 0 < scale < math.inf else 0


def _lost_charts(histograms: dict) -> list[dict[str, Any]]:
    """Per role: what share of the gradients would be zero, subnormal and infinite at each power of two."""
    charts = []
    entries = histograms.get("lost") or []
    best = real(histograms.get("best_scale"))
    for role in dict.fromkeys(entry.get("role") for entry in entries):
        rows = [e for e in entries if e.get("role") == role and real(e.get("scale")) > 0]
        rows.sort(key=lambda e: real(e["scale"]))
        if len(rows) < 2:  # weights carry no scale
            continue
        used = max((real(t.get("scale")) for t in histograms.get("tensors") or [] if t.get("role") == role), default=0)
        low, high = math.log2(rows[0]["scale"]), math.log2(rows[-1]["scale"])
        largest = max(real(e.get(k)) for e in rows for k in ("zero", "subnormal", "overflow"))
        top = next((t for t in (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5) if t >= largest), 1.0)

        def x(scale: float, low: float = low, high: float = high) -> float:
            return 40 + 300 * (math.log2(scale) - low) / (high - low)

        def line(name: str, rows: list = rows, top: float = top, x: Callable = x) -> str:
            points = (f"{x(e['scale']):.4g} {160 - 140 * real(e.get(name)) / top:.4g}" for e in rows)
            return "M" + "L".join(points)

        marks = [(x(s), label) for s, label in ((used, "used"), (best, "best")) if s and low <= math.log2(s) <= high]
        if used == best:
            marks = [(at, "used and best") for at, _ in marks[:1]]
        charts.append(
            {
                "role": ROLES.get(role, role),
                "rows": rows,
                "lines": {name: line(name) for name in ("zero", "subnormal", "overflow")},
                "x": [(x(e["scale"]), power(e["scale"])) for e in few(rows, 5)],
                "y": [(160 - 70 * i, share(top * i / 2)) for i in range(3)],
                "marks": marks,
            }
        )
    return charts


def _over_time(scale: dict, summary: dict) -> dict[str, Any] | None:
    """The loss and the loss scale by iteration, one above the other, in a drawing of 720 x 250; None without either."""
    history = [(int(i), math.log2(real(s))) for i, s in scale.get("history") or [] if real(s) > 0]
    losses = {name: [(int(i), v) for i, v in points] for name, points in (scale.get("losses") or {}).items()}
    losses = {name: points for name, points in losses.items() if any(_finite(v) for _, v in points)}
    skipped = scale.get("skipped") or []
    seen = [i for points in (history, *losses.values()) for i, _ in points] + list(skipped)
    if not seen:
        return None
    first, last = min(seen), max(*seen, int(summary["iterations"] or 1) - 1, min(seen) + 1)

    def x(iteration: float) -> float:
        return 56 + 650 * (iteration - first) / (last - first)

    panels = []
    if losses:
        finite = [float(v) for points in losses.values() for _, v in points if _finite(v)]
        logarithmic = min(finite) > 0 and max(finite) > 10 * min(finite)
        low, high = (math.log10(min(finite)), math.log10(max(finite))) if logarithmic else (min(finite), max(finite))
        high += (high == low) or 0.0

        def y(v: float) -> float:
            return 110 - 96 * ((math.log10(v) if logarithmic else v) - low) / (high - low)

        lines = []
        for name, points in list(losses.items())[:4]:
            path, before = "", False
            for i, v in points:
                path += f"{'L' if before else 'M'}{x(i):.4g} {y(float(v)):.4g}" if _finite(v) else ""
                before = _finite(v)
            lines.append((name, path, [(x(i), i) for i, v in points if not _finite(v)]))
        marks = [low + (high - low) * part / 2 for part in range(3)]
        ticks = [(110.0 - 48 * n, number(10**v if logarithmic else v)) for n, v in enumerate(marks)]
        panels.append({"name": "loss", "lines": lines, "y": ticks})
    if history:
        low, high = math.floor(min(e for _, e in history)) - 1, math.ceil(max(e for _, e in history)) + 1

        def level(exponent: float) -> float:
            return 230 - 96 * (exponent - low) / (high - low)

        steps = "".join(f"H{x(i):.4g}V{level(e):.4g}" for i, e in history)
        path = f"M{x(history[0][0]):.4g} {level(history[0][1]):.4g}{steps}H706"
        ticks = [(float(level(e)), power(2.0**e)) for e in _ticks(low + 1, high - 1, whole=True)]
        panels.append({"name": "loss scale", "lines": [("loss scale", path, [])], "y": ticks})
    return {
        "panels": panels,
        "skipped": [(x(i), i) for i in skipped],
        "x": [(x(i), i) for i in _ticks(first, last)],
        "last": 2.0 ** history[-1][1] if history else None,
    }


def _finite(value: Any) -> bool:
    return isinstance(value, (int, float)) and math.isfinite(value)


def _ticks(first: int, last: int, whole: bool = False) -> range:
    """About four to seven round numbers from first to last; whole: any step will do, counted down from the last."""
    if whole:
        return range(last, first - 1, -max(math.ceil((last - first) / 5), 1))
    step = next(s * 10**k for k in range(19) for s in (1, 2, 5) if (last - first) // (s * 10**k) < 7)
    return range(-(-first // step) * step, last + 1, step)


def _bars(ledger: dict) -> dict[str, Any] | None:
    """Per role: the bytes here by dtype and those of FP32, as shares of the longest bar. None where there are none."""
    measured, predicted, fp32 = (_by_dtype(ledger.get(k)) for k in ("measured", "predicted", "fp32"))
    shown = measured or predicted
    names = dict.fromkeys([*(ledger.get("roles") or []), *shown, *fp32])
    rows: list[dict[str, Any]] = []
    for role in names:
        here, expected, whole = (t.get(role, {}) for t in (shown, predicted, fp32))
        if any(sum(t.values()) for t in (here, expected, whole)):
            rows.append({"role": role, "here": here, "predicted": expected, "fp32": sum(whole.values())})
    kept = [row for row in rows if row["role"] != "workspace"]  # the ratio is of these
    name = "total" if kept == rows else "all but workspace"
    total: dict[str, Any] = {"role": name, "here": Counter(), "predicted": Counter(), "fp32": 0}
    for row in kept:
        total["fp32"] += row["fp32"]
        total["here"] += Counter(row["here"])
        total["predicted"] += Counter(row["predicted"])
    if not rows:
        return None
    most = max(max(r["fp32"], sum(r["here"].values())) for r in [*rows, total]) or 1
    if not all(row["predicted"] for row in kept if row["here"]):
        total["predicted"] = {}  # not of all
    for row in [*rows, total]:
        at, row["parts"] = 0.0, []
        row["width"] = 100 * row["fp32"] / most
        for dtype, n in sorted(row["here"].items(), key=lambda item: -item[1]):
            if n:
                row["parts"].append({"dtype": dtype, "bytes": n, "x": at, "width": 100 * n / most})
                at += 100 * n / most
        row |= {"sum": sum(row["here"].values()), "predicted": sum(row["predicted"].values()) or None}
    return {
        "rows": [*rows, total],
        "ratio": ledger.get("ratio"),
        "measured": bool(measured),
        "predicted": bool(measured) and any(row["predicted"] for row in rows),
        "drawn": {part["dtype"] if part["dtype"] in DRAWN else "other" for row in rows for part in row["parts"]},
    }


def _by_dtype(table: Any) -> dict[str, dict[str, int]]:
    """{role: {dtype: bytes}}, also from {role: bytes}."""
    return {role: v if isinstance(v, dict) else {"-": v} for role, v in (table or {}).items() if v}
