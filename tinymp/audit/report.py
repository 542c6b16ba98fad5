"""The report: one HTML file that needs no network, of the tables and pictures that the instruments make."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from importlib.util import find_spec
from typing import Any

from ..backend.extras import hint
from .ledger import WORST
from .machine import info
from .pictures import drawn, panels, svg
from .sampling import breakable, html, table

# The attribute of an Audit, the heading, the figures, and what is said
SECTIONS = [
    (
        "ledger",
        "Ledger",
        ["ledger"],
        "Every op at the lines that call it, and what its roundings lost; worst first. Zero: it was not 0 and is now. "
        "Subnormal: below 2⁻¹⁴, where FP16 has fewer than 11 significant bits. Infinite: 65,520 or more.",
    ),
    ("histograms", "Exponents", ["exponents", "scales"], "What was 0 only in FP16 counts as it was before (MPT 3.2)."),
    ("updates", "Lost updates", ["updates"], "Weights that an update in FP16 would not change (MPT 3.1)."),
    ("scale", "Loss scale", ["scale"], "A cross marks a skipped step."),
    ("bytes", "Bytes", ["bytes"], "What is kept, by role and dtype, and what FP32 would take."),
    ("patterns", "Written by hand", [], "Softmax, norms, losses, ..., where an op would keep what FP16 loses."),
    ("products", "Tensor Cores", ["products"], "Lengths (of convolutions channels) should be multiples of 8."),
    ("shadow", "Shadow", ["shadow"], "Errors in ulps of FP16: of the op alone (local), of all before it (inherited)."),
    ("formats", "Other formats", [], "The same numbers, rounded to them; 6 dB of signal to noise are one bit."),
]
# Letters in the system's colours: dark where the reader's system is
STYLE = """
:root { color-scheme: light dark; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 1500px; margin: 0 auto; padding: 0 20px 40px; }
section { border-top: 1px solid #8886; padding: 20px 0 12px; }
nav { display: flex; flex-wrap: wrap; gap: 4px 16px; padding: 10px 0; }
p { max-width: 80ch; overflow-wrap: anywhere; }
svg { background: #fff; margin: 4px; }
table { border-collapse: collapse; font-size: 13px; font-variant-numeric: tabular-nums; }
th, td { padding: 4px 14px 4px 0; vertical-align: baseline; border-bottom: 1px solid #8884; }
"""
PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; img-src data:">
<title>{title}</title>
<link rel="icon" href="data:,">
<style>{style}</style>
</head>
<body>
<h1>{title}</h1>
{body}
</body>
</html>
"""


def page(audit: Any, title: str) -> str:
    """An Audit as a page of HTML; without matplotlib it has no pictures, and says so."""
    drawable = find_spec("matplotlib") is not None
    figures = panels(audit) if drawable else {}
    sections = [("summary", "What to know", html(audit.parts()))]
    for name, heading, drawn_there, said in SECTIONS:
        if (found := getattr(audit, name)) is not None:
            told = (found.sorted_by(*WORST) if name == "ledger" else found).parts()
            pictures = "".join(svg(drawn(panel)) for one in drawn_there for panel in figures.get(one, ()))
            sections.append((name, heading, f"{html([said])}{pictures}{html(told)}"))
    sections.append(("environment", "Environment", html([table([("", ""), *info().items()], left=(0, 1))])))
    links = "".join(f"<a href='#{name}'>{heading}</a>" for name, heading, _ in sections)
    about = [f"Computed under {policy}." if (policy := audit.policy) else ""]
    about += [f"Written {datetime.now().isoformat(' ', 'minutes')}."]
    about += [] if drawable else [f"Pictures need matplotlib, which is not installed: {hint('audit')}"]
    body = [html(about), f"<nav>{links}</nav>"]
    body += [f"<section id='{name}'>\n<h2>{heading}</h2>\n{text}\n</section>" for name, heading, text in sections]
    return document(title, body)


def document(title: str, body: Iterable[str]) -> str:
    """A page that loads nothing and runs nothing, of HTML below its title."""
    return PAGE.format(title=breakable(title), style=STYLE, body="\n".join(body))
