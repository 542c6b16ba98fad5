"""The pictures of an audit, all drawn by matplotlib in one style: as figures, and as SVG for pages and notebooks."""

from __future__ import annotations

import io
import math
import re
from collections.abc import Callable
from functools import partial
from typing import Any

from ..backend.extras import hint
from .exponents import Histogram, draw
from .histograms import GRADIENTS, ROLES, SCALES, Exponents
from .ledger import WORST
from .sampling import BLUE, GREEN, PINK, RED, SKY

MOST = 3  # tensors of a role whose histograms are shown
COLUMNS = 3
SIZE = 4.6, 3.0  # inches of a panel: on a phone its letters can be read
STYLE: Any = {
    "svg.fonttype": "none",
    "font.size": 8.5,
    "axes.titlesize": 9.5,
    "axes.titleweight": "bold",
    "axes.prop_cycle": f"cycler('color', {[BLUE, RED, GREEN, PINK, SKY]})",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.fontsize": 8,
    "legend.frameon": False,
    "lines.linewidth": 1.2,
}
NO_METADATA = dict.fromkeys(("Creator", "Date", "Format", "Type"))
Panel = Callable[[Any], Any]  # draws on axes


def panels(audit: Any) -> dict[str, list[Panel]]:
    """What there is to draw of an Audit, by the names of its figures; empty lists where nothing was seen."""
    seen, scale, shadow = audit.histograms, audit.scale, audit.shadow
    tensors = [tensor for role in ROLES for tensor in seen.worst(role, MOST)]
    found: list[tuple[str, list[Panel], Any]] = [
        ("ledger", [audit.ledger.draw], any(getattr(row, name) for row in audit.ledger for name in WORST[:3])),
        ("exponents", [partial(_exponents, tensor) for tensor in tensors], tensors),
        ("scales", [partial(_lost, seen, role) for role in GRADIENTS if seen.worst(role, 1)], True),
        ("loss", [partial(_loss, scale.losses)], scale.losses),
        ("scale", [scale.draw], scale.history or scale.causes),
        ("updates", [audit.updates.draw], audit.updates.rows),
        ("bytes", [audit.bytes.draw], audit.bytes.by_policy),
        ("products", [audit.products.draw], audit.products.rows),
        ("shadow", [] if shadow is None else [shadow.draw], shadow and shadow.rows),
    ]
    return {name: drawn if there else [] for name, drawn, there in found}


def figure(audit: Any, name: str) -> Any:
    """A figure of an Audit; see `Audit.figure`."""
    if name not in (known := panels(audit)):
        raise ValueError(f"audit: expected the name of a figure, one of {', '.join(known)}; got {name!r}")
    if not known[name]:
        raise ValueError(f"audit: there is nothing to draw for {name!r} in this audit")
    return drawn(*known[name])


def drawn(*panels: Panel) -> Any:
    """A figure with these panels. ModuleNotFoundError says how to install matplotlib."""
    try:
        import matplotlib.figure
    except ModuleNotFoundError:
        raise ModuleNotFoundError(f"audit: matplotlib is not installed: {hint('audit')}") from None
    columns = min(len(panels), COLUMNS)
    rows = math.ceil(len(panels) / columns)
    with matplotlib.rc_context(STYLE):
        made = matplotlib.figure.Figure(figsize=(SIZE[0] * columns, SIZE[1] * rows), layout="constrained")
        for i, panel in enumerate(panels):
            panel(axes := made.add_subplot(rows, columns, i + 1))
            made.set_figheight(max(SIZE[1] * rows, 1.2 + 0.2 * len(axes.get_yticklabels())))  # of bars with names
    vars(made)["_repr_svg_"] = partial(svg, made)  # for notebooks that have not loaded pyplot
    return made


def svg(figure: Any) -> str:
    """A figure as SVG for within a page, where several stand."""
    import matplotlib

    with matplotlib.rc_context(STYLE):
        figure.savefig(content := io.StringIO(), format="svg", metadata=NO_METADATA)
    text = content.getvalue()
    text = re.sub(r'<g id="[^"]*"', "<g", text[text.index("<svg") :])
    return text.replace("<svg ", '<svg style="max-width: 100%; height: auto" ', 1)


def _exponents(tensor: Histogram, axes: Any) -> None:
    draw(axes, [tensor], f"{tensor.name}, {tensor.role}" if tensor.role != "activation gradient" else tensor.name)


def _lost(exponents: Exponents, role: str, axes: Any) -> None:
    """What share of the gradients would be zero, subnormal and infinite at each loss scale."""
    shares = [exponents.share_lost(role, s) for s in SCALES]
    for kind, color, style in (("zero", "0.4", "-"), ("subnormal", PINK, "--"), ("overflow", RED, ":")):
        axes.plot(SCALES, [100 * getattr(s, kind) for s in shares], style, color=color, label=kind)
    for at, name, style in ((exponents.scale_of(role), "used", "-"), (exponents.best_scale(), "best", "--")):
        if at:
            axes.axvline(at, color=BLUE, linestyle=style, linewidth=0.8, label=name)
    axes.set_xscale("log", base=2)
    axes.set(xlabel="loss scale", ylabel="share of what is not 0, %", title=f"{role.capitalize()}s, by loss scale")
    axes.legend()


def _loss(losses: dict[str, dict[int, float]], axes: Any) -> None:
    finite = {name: {i: v for i, v in kept.items() if math.isfinite(v)} for name, kept in losses.items()}
    for name, kept in finite.items():
        axes.plot(list(kept), list(kept.values()), label=name)
    values = [v for kept in finite.values() for v in kept.values()] or [0.0]
    axes.set(xlabel="iteration", ylabel="loss", yscale="log" if 0 < 10 * min(values) < max(values) else "linear")
    axes.set_title("Loss")
    axes.legend()
