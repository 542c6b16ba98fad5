"""The pictures of an audit, all drawn by matplotlib in one style: as figures, and as SVG for pages and notebooks."""

from __future__ import annotations

import io
import math
import re
from collections.abc import Callable
from functools import partial
from typing import Any

from ..backend.extras import hint
from .exponents import Histogram, Lost, draw
from .histograms import ACTIVATION_GRADIENT, GRADIENTS, ROLES, SCALES, Exponents
from .ledger import LOST
from .sampling import BLUE, GREEN, PINK, RED, SKY

MOST = 3  # tensors of a role whose histograms are shown
COLUMNS = 3
SIZE = 4.6, 3.0  # inches of a panel: on a phone its letters can be read
STYLE: Any = {
    **{"svg.fonttype": "none", "font.size": 8.5, "axes.titlesize": 9.5, "axes.titleweight": "bold"},
    **{"axes.spines.top": False, "axes.spines.right": False, "legend.fontsize": 8, "legend.frameon": False},
    "axes.prop_cycle": f"cycler('color', {[BLUE, RED, GREEN, PINK, SKY]})",
}
NO_METADATA = dict.fromkeys(("Creator", "Date", "Format", "Type"))
Panel = Callable[[Any], Any]  # draws on axes


def panels(audit: Any) -> dict[str, list[Panel]]:
    """The panels of each figure of an Audit, by the figure's name; empty lists if nothing was seen."""
    seen, shadow = audit.histograms, audit.shadow
    found = {
        "ledger": (audit.ledger, any(getattr(row, name) for row in audit.ledger for name in LOST)),
        "scale": (audit.scale, audit.scale.history or audit.scale.causes),
        "updates": (audit.updates, audit.updates.rows),
        "bytes": (audit.bytes, audit.bytes.by_policy),
        "products": (audit.products, audit.products.rows),
        "shadow": (shadow, shadow and shadow.rows),
    }
    return {
        **{name: [one.draw] if there else [] for name, (one, there) in found.items()},
        "exponents": [partial(_exponents, tensor) for role in ROLES for tensor in seen.worst(role, MOST)],
        "scales": [partial(_lost, seen, role) for role in GRADIENTS if seen.worst(role, 1)],
    }


def figure(audit: Any, name: str) -> Any:
    """A figure of an Audit; see `Audit.figure`."""
    known = panels(audit)
    if not known.get(name):
        there = ", ".join(name for name, some in known.items() if some)
        raise ValueError(
            f"audit: there is nothing to draw for {name!r} in this audit; for {there or 'no figure'} there is"
        )
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
    draw(axes, [tensor], tensor.name + f", {tensor.role}" * (tensor.role != ACTIVATION_GRADIENT))


def _lost(exponents: Exponents, role: str, axes: Any) -> None:
    """The shares of gradients that would be zero, subnormal and infinite at each loss scale."""
    shares = zip(*[exponents.share_lost(role, s) for s in SCALES])
    for lost, kind, color, style in zip(shares, Lost._fields, ("0.4", PINK, RED), ("-", "--", ":")):
        axes.plot(SCALES, [100 * share for share in lost], style, color=color, label=kind)
    for at, name, style in ((exponents.scale_of(role), "used", "-"), (exponents.best_scale(), "best", "--")):
        if at:
            axes.axvline(at, color=BLUE, linestyle=style, linewidth=0.8, label=name)
    axes.set_xscale("log", base=2)
    axes.set(xlabel="loss scale", ylabel="share of what is not 0, %", title=f"{role.capitalize()}s, by loss scale")
    axes.legend()
