"""The report: one HTML file that needs no network, of the tables and pictures that the instruments make."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from importlib.util import find_spec
from typing import Any

from ..backend.extras import hint
from .ledger import WIDE, WORST
from .numbers import count, share
from .pictures import drawn, panels, svg
from .sampling import breakable, html
from .summary import LEVELS, findings, summarise

# The attribute of an Audit, the heading, the figures, and what is said
SECTIONS = [
    ("ledger", "Ledger", ["ledger"], "Every op at the lines that call it, and what its roundings lost; worst first."),
    ("histograms", "Exponents", ["exponents", "scales"], "What was 0 only in FP16 counts as it was before (MPT 3.2)."),
    ("updates", "Lost updates", ["updates"], "Weights that an update in FP16 would not change (MPT 3.1)."),
    ("scale", "Loss and loss scale", ["loss", "scale"], "A cross marks a skipped step."),
    ("bytes", "Bytes", ["bytes"], "What is kept, by role and dtype, and what FP32 would take."),
    ("patterns", "Written by hand", [], "Softmax, norms, losses, ..., where an op would keep what FP16 loses."),
    ("products", "Tensor Cores", ["products"], "Lengths (of convolutions channels) should be multiples of 8."),
    ("shadow", "Shadow", ["shadow"], "Errors in ulps of FP16: of the op alone (local), of all before it (inherited)."),
    ("formats", "Other formats", [], "The same numbers, rounded to them; 6 dB of signal to noise are one bit."),
]
WORDS = {
    "rounded": "stored in fewer bits than it was computed in.",
    "zero": "it was not 0 and is now: its magnitude was at most 2⁻²⁵, half of FP16's smallest number.",
    "subnormal": "now below 2⁻¹⁴ in magnitude, where FP16 has fewer than 11 significant bits.",
    "infinite": "it was finite and is not now: its magnitude was 65,520 or more; the largest FP16 number is 65,504.",
    "ulp": "unit in the last place: the distance to the next number of the dtype. One rounding costs half at most.",
    "DOT": "a matrix product; REDUCTION: sums, softmax, batch norm; MOVEMENT: only copies; UPDATE: the optimizer.",
    "MPT, NVG": "Mixed Precision Training (Micikevicius et al., 2018), and NVIDIA's guide, by section.",
}
# Letters in the system's colours: dark where the reader's system is
STYLE = """
:root { color-scheme: light dark; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 1500px; margin: 0 auto; padding: 0 20px 40px; }
h1 { overflow-wrap: anywhere; line-height: 1.15; margin: 24px 0 4px; }
h2 { margin: 0 0 4px; break-after: avoid; }
section { border-top: 1px solid #8886; padding: 20px 0 12px; }
nav { display: flex; flex-wrap: wrap; gap: 4px 16px; padding: 10px 0; }
p, li, dd { max-width: 80ch; overflow-wrap: anywhere; }
.problem, .look { border-left: 4px solid #d55e00; padding-left: 8px; margin-left: -12px; }
.problem { font-weight: 600; }
.pictures { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 380px), 1fr)); gap: 12px; }
.pictures:has(> :only-child) { float: left; width: min(100%, 400px); margin-right: 32px; }
section { display: flow-root; } #ledger .scroll { clear: both; }
.pictures svg { width: 100%; max-width: 560px; height: auto; background: #fff; break-inside: avoid; }
.scroll { overflow-x: auto; margin: 12px 0; }
table { border-collapse: collapse; font-size: 13px; line-height: 1.35; font-variant-numeric: tabular-nums; }
th, td { padding: 4px 14px 4px 0; vertical-align: baseline; }
th { border-bottom: 1px solid; vertical-align: bottom; }
td { border-bottom: 1px solid #8884; }
.scroll td:first-child { min-width: 9em; } summary { cursor: pointer; }
dt, dd { display: inline; margin: 0 8px 0 0; } dt { font-weight: 600; }
.numbers { display: flex; flex-wrap: wrap; gap: 8px 40px; }
.numbers dt { font-weight: 400; } .numbers dd { display: block; font-size: 22px; }
@media (max-width: 700px) { td:not(:first-child) { white-space: nowrap; } }
@media print {
  @page { margin: 12mm; }
  body { font-size: 9pt; padding: 0; } section { padding: 8pt 0; } nav { display: none; }
  .pictures { grid-template-columns: repeat(3, 1fr); gap: 6pt; }
  .pictures:has(> :only-child) { grid-template-columns: 1fr; width: 62mm; margin-right: 6mm; }
  .scroll { overflow: visible; } table { font-size: 6.5pt; } th, td { padding: 2pt 6pt 2pt 0; }
  :is(#products, #shadow) .scroll { clear: both; }
  tr { break-inside: avoid; } tbody tr:nth-child(n+16) { display: none; }
}
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
    content, drawable = audit.as_dict(), find_spec("matplotlib") is not None
    figures = panels(audit) if drawable else {}
    sections = [("summary", "What to know", _summary(content, audit))]
    for name, heading, drawn_there, said in SECTIONS:
        if (found := getattr(audit, name)) is not None:
            told = [found.sorted_by(*WORST).fitted(WIDE)] if name == "ledger" else found.parts()
            pictures = [svg(drawn(panel)) for one in drawn_there for panel in figures.get(one, ())]
            shown = f"<div class='pictures'>{''.join(pictures)}</div>" if pictures else ""
            sections.append((name, heading, f"{html([said])}{shown}{html(told)}"))
    sections += [
        ("words", "Words", _definitions(WORDS)),
        ("environment", "Environment", _definitions(content["environment"])),
    ]
    links = "".join(f"<a href='#{name}'>{heading}</a>" for name, heading, _ in sections)
    about = [f"Computed under {content['policy']}." if content["policy"] else ""]
    about += [f"Written {datetime.now().isoformat(' ', 'minutes')}."]
    about += [] if drawable else [f"Pictures need matplotlib, which is not installed: {hint('audit')}"]
    body = [html(about), f"<nav>{links}</nav>"]
    body += [f"<section id='{name}'>\n<h2>{heading}</h2>\n{text}\n</section>" for name, heading, text in sections]
    return document(title, body)


def document(title: str, body: Iterable[str]) -> str:
    """A page that loads nothing and runs nothing, of HTML below its title."""
    return PAGE.format(title=breakable(title), style=STYLE, body="\n".join(body))


def _summary(content: dict[str, Any], audit: Any) -> str:
    numbers, rounded = summarise(content), max(summarise(content)["roundings"], 1)
    shown = {"iterations": count(numbers["iterations"]), "numbers rounded": count(numbers["roundings"])}
    for name in ("infinite", "zero", "subnormal"):
        shown[f"became {name}"] = count(numbers[name]) + f" ({share(numbers[name] / rounded)})" * bool(numbers[name])
    said = [f"<li class='{LEVELS[f.level]}'>{breakable(f.text)}</li>" for f in findings(content)]
    crash = html([str(audit.crash)] if audit.crash.found else [])
    return _definitions(shown, "numbers") + f"<ul>{''.join(said)}</ul>{crash}{advised(content['advice'])}"


def advised(advice: Iterable[dict[str, Any]]) -> str:
    """Advice as a list, the most important first."""
    said = [
        f"<li><b>{breakable(a['text'])}</b><br>{breakable(a['why'])}"
        f" <small>{breakable('; '.join(filter(None, (a['where'], a['source']))))}</small></li>"
        for a in advice
    ]
    return f"<h3>Advice</h3><ol>{''.join(said)}</ol>" if said else ""


def _definitions(words: dict[str, str], style: str = "") -> str:
    said = [f"<div><dt>{breakable(word)}</dt><dd>{breakable(text)}</dd></div>" for word, text in words.items()]
    return f"<dl class='{style}'>{''.join(said)}</dl>"
