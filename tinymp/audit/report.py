"""The report: one HTML file that needs no network. This file decides what the page (report.html.jinja) shows, and in
which order.
"""

from __future__ import annotations

import base64
import hashlib
import os
import re
from collections import Counter
from pathlib import Path
from typing import Any

from ..backend.extras import hint
from ..checkpoint import writing
from ..precision import KINDS
from .callers import source
from .ledger import WORST
from .numbers import count, dtypes, number, power, raw, real, share, size
from .summary import LEVELS, findings, summarise

SHOWN_PARTS = 64  # of a module, in the picture of the model
MEASURED = {  # what not every audit measures, and what the page calls it when it is missing
    "histograms": "exponent histograms",
    "updates": "lost updates",
    "scale": "the loss scale's history",
    "bytes": "bytes",
    "products": "Tensor Core eligibility",
    "shadow": "shadow runs",
    "formats": "other formats",
    "accumulators": "other Tensor Cores",
}


def write(path: str | os.PathLike[str], content: dict[str, Any]) -> None:
    """Write the report to an HTML file, in folders that are made where they are missing.

    content: "title", "created", "policy", "environment" and "summary", what each instrument's `as_dict` gave under its
        name, and "pictures" (pictures.py). Any may be missing. ModuleNotFoundError says how to install Jinja2.
    """
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    writing.write(path, page(content))


def page(content: dict[str, Any]) -> str:
    """The report as a string of HTML. ModuleNotFoundError says how to install Jinja2."""
    try:
        import jinja2
    except ModuleNotFoundError:
        raise ModuleNotFoundError(f"report: Jinja2 is not installed: {hint('audit')}") from None
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.ChainableUndefined,
    )
    filters = count, share, number, size, power, dtypes, raw, breakable, snippet
    environment.filters |= {f.__name__: f for f in filters}
    return _secured(environment.get_template("report.html.jinja").render(_view(content)))


def breakable(name: str | None) -> Any:
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
    rows = [{k: "–" if v == "-" else v for k, v in row.items()} for row in content.get("ledger") or []]
    ledger = sorted(enumerate(rows), key=lambda entry: [entry[1].get(name, 0) for name in WORST], reverse=True)
    summary, scale = summarise(content), content.get("scale") or {}
    used = list(dict.fromkeys(row.get("policy") or "–" for row in rows))
    lossy = {row.get("policy") or "–" for row in rows if row.get("rounded")}
    baseline = set(used) - lossy if lossy else set()  # runs beside the one that is asked about, which round nothing
    scales = {real(s) for _, s in scale.get("history") or []}
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
        "pictures": content.get("pictures") or {},
        "updates": sorted(content.get("updates") or [], key=lambda u: real(u.get("lost")), reverse=True),
        "products": sorted(
            content.get("products") or [],
            key=lambda p: (bool(p.get("misaligned")), real(p.get("flops"))),
            reverse=True,
        ),
        "scale": scale if any(scale.values()) else None,
        "constant": scales.pop() if len(scales) == 1 else None,
        "last": scale["history"][-1][1] if scale.get("history") else None,
        "tree": _tree(rows, baseline),
        "bytes": _bytes(content.get("bytes") or {}),
        "ratio": (content.get("bytes") or {}).get("ratio"),
        "missing": [words for name, words in MEASURED.items() if content.get(name) is None],
    }


def _tree(rows: list[dict], baseline: set[str]) -> list[dict[str, Any]]:
    """The modules below each other, as they first ran: what was rounded in each and its parts, and what was lost."""
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


def _bytes(ledger: dict) -> list[dict[str, Any]]:
    """Per role: the bytes here by dtype, and those in FP32; with their sums at the end. Empty where there are none."""
    here, fp32 = ledger.get("measured") or ledger.get("predicted") or {}, ledger.get("fp32") or {}
    rows = [
        {"role": role, "here": Counter(here.get(role)), "fp32": sum(fp32.get(role, {}).values())}
        for role in dict.fromkeys([*here, *fp32])
        if here.get(role) or fp32.get(role)
    ]
    total = {"role": "all", "here": sum((r["here"] for r in rows), Counter()), "fp32": sum(r["fp32"] for r in rows)}
    return [*rows, total] if rows else []
