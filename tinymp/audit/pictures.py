"""The pictures of the report, which the instruments draw: SVG for within the page."""

from __future__ import annotations

import base64
import io
import math
from typing import Any

from ..backend.extras import hint
from .exponents import draw
from .histograms import GRADIENTS, ROLES, SCALES
from .sampling import BLUE, PINK, RED

MOST = 12  # tensors of a role whose histograms are shown
COLUMNS = 4


def pictures(audit: Any) -> dict[str, Any]:
    """Of an Audit: {"histograms": [(role, picture), ...], "lost", "scale", "bytes": picture or None}, as addresses of
    images. ModuleNotFoundError says how to install matplotlib.
    """
    try:
        import matplotlib.figure
    except ModuleNotFoundError:
        raise ModuleNotFoundError(f"report: matplotlib is not installed: {hint('audit')}") from None
    new = matplotlib.figure.Figure
    with matplotlib.rc_context({"svg.fonttype": "none", "font.size": 9, "axes.titlesize": 9}):
        by_role = [(f"{role.capitalize()}s", _histograms(new, audit.histograms, role)) for role in ROLES]
        return {
            "histograms": [(title, picture) for title, picture in by_role if picture],
            "lost": _lost(new, audit.histograms),
            "scale": _over_time(new, audit.scale),
            "bytes": _bytes(new, audit.bytes),
        }


def _image(figure: Any) -> str:
    content = io.StringIO()
    figure.savefig(content, format="svg")
    return f"data:image/svg+xml;base64,{base64.b64encode(content.getvalue().encode()).decode()}"


def _histograms(new: Any, exponents: Any, role: str) -> str | None:
    """One for each tensor, those of which FP16 loses most first."""
    tensors = exponents.worst(role, MOST)
    if not tensors:
        return None
    rows = math.ceil(len(tensors) / COLUMNS)
    figure = new(figsize=(3.6 * COLUMNS, 2.4 * rows), layout="constrained")
    for i, tensor in enumerate(tensors):
        axes = figure.add_subplot(rows, COLUMNS, i + 1)
        draw(axes, [tensor], tensor.name)
        axes.set(ylabel="%" if i % COLUMNS == 0 else "", xlabel=axes.get_xlabel().replace(", floor(", ", ("))
    return _image(figure)


def _lost(new: Any, exponents: Any) -> str | None:
    """What share of the gradients would be zero, subnormal and infinite at each loss scale."""
    lost = {role: [exponents.share_lost(role, s) for s in SCALES] for role in GRADIENTS if exponents.worst(role, 1)}
    if not lost:
        return None
    figure = new(figsize=(11, 3), layout="constrained")
    for axes, (role, shares) in zip(figure.subplots(1, len(lost), squeeze=False)[0], lost.items()):
        for kind, color, style in (("zero", "0.4", "-"), ("subnormal", PINK, "--"), ("overflow", RED, ":")):
            axes.plot(SCALES, [100 * getattr(s, kind) for s in shares], style, color=color, label=kind)
        for at, name in ((exponents.scale_of(role), "used"), (exponents.best_scale(), "best")):
            if at:
                axes.axvline(at, color=BLUE, linestyle="-" if name == "used" else "--", linewidth=0.8, label=name)
        axes.set_xscale("log", base=2)
        axes.set(xlabel="loss scale", ylabel="share of what is not 0, %", title=f"{role.capitalize()}s")
        axes.legend(fontsize=8, frameon=False)
    return _image(figure)


def _over_time(new: Any, scales: Any) -> str | None:
    losses = {name: {i: v for i, v in kept.items() if math.isfinite(v)} for name, kept in scales.losses.items()}
    shown = [bool(any(losses.values())), bool(scales.history)]
    if not any(shown):
        return None
    figure = new(figsize=(9, 2.2 * sum(shown)), layout="constrained")
    panels = list(figure.subplots(sum(shown), 1, sharex=True, squeeze=False)[:, 0])
    if shown[0]:
        axes = panels.pop(0)
        for name, kept in losses.items():
            axes.plot(list(kept), list(kept.values()), label=name, linewidth=1)
        values = [v for kept in losses.values() for v in kept.values()]
        axes.set(ylabel="loss", yscale="log" if 0 < 10 * min(values) < max(values) else "linear")
        axes.legend(fontsize=8, frameon=False)
    if shown[1]:
        scales.draw(panels[0])
    return _image(figure)


def _bytes(new: Any, ledger: Any) -> str | None:
    figure = new(figsize=(5, 3), layout="constrained")
    ledger.draw(figure.subplots())
    return _image(figure) if ledger.ratio == ledger.ratio else None
