"""The page of `tinymp diff`: one HTML file that needs no network. Charts are computed here; it is diff.html.jinja."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ..audit.numbers import apart, count, number, real
from ..audit.report import rendered
from ..audit.sampling import few
from ..checkpoint import writing

POINTS, ROWS = 400, 500  # the most that a chart and a table show; diff.json has all
SMALL, LARGE = -9, 1  # the exponents of ten between which charts lie; what is the same stands below them
PHASES = ("forward", "backward", "update")


def write(path: str | os.PathLike[str], content: dict[str, Any]) -> None:
    """Write the page, in folders that are made where they are missing; content: `Difference.as_dict()`.

    ModuleNotFoundError says how to install Jinja2.
    """
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    writing.write(path, page(content))


def page(content: dict[str, Any]) -> str:
    """The page as a string of HTML."""
    results = [p for p in content["depth"] if p["role"] in ("output", "update")]
    steps = content["steps"]
    view = {
        **content,
        "compared": sum(step["tensors"] for step in steps),
        "depth_chart": _depth(results),
        "time_chart": _time(steps),
        "loss_chart": _losses(steps),
        "results": results[:ROWS],
        "shown": few(steps, ROWS),
        "rows": ROWS,
    }
    return rendered(Path(__file__).with_name("diff.html.jinja"), view, "Strict", (apart, count, number))


def _worst(things: list, most: int, key: str) -> list:
    """At most so many, in order: the worst of as many neighbours."""
    group = -(-len(things) // most)
    return [max(things[i : i + group], key=lambda t: real(t[key])) for i in range(0, len(things), max(group, 1))]


# ------------------------------------------------- charts: on 100 x 100, which the page stretches; labels in percent


def _height(distance: Any) -> float:
    """From the top: logarithmic; what is the same is at the bottom."""
    d = real(distance)
    return 100.0 if d == 0 else 94 * (LARGE - min(max(math.log10(d) if d < math.inf else LARGE, SMALL), LARGE)) / (
        LARGE - SMALL
    )  # fmt: skip


LABELS = [(_height(10.0**e), f"1e{e}" if e else "1") for e in range(SMALL, LARGE, 3)] + [(100.0, "same")]


def _line(points: Iterable[tuple[float, float]]) -> str:
    return "M" + "L".join(f"{x:.5g} {y:.5g}" for x, y in points)


def _depth(results: list[dict]) -> dict[str, Any] | None:
    """The results of ops from first to last, in their phases, and what one rounding explains."""
    shown = _worst(results, POINTS, "distance")
    if not shown:
        return None
    places = [(100 * (i + 0.5) / len(shown), p) for i, p in enumerate(shown)]
    phases = {phase: [(x, p) for x, p in places if p["phase"] == phase] for phase in PHASES}
    return {
        "labels": LABELS,
        "lines": [_line((x, _height(p["distance"])) for x, p in own) for own in phases.values() if own],
        "rounding": [_line((x, _height(p["rounding"])) for x, p in own) for own in phases.values() if own],
        "points": [
            {"at": f"{x:.5g} {_height(p['distance']):.5g}", "phase": p["phase"], "text": _said(p)} for x, p in places
        ],
        "ends": [(own[0][0], phase) for phase, own in phases.items() if own],
        "borders": [own[0][0] - 50 / len(shown) for own in list(phases.values())[1:] if own],
    }


def _said(p: dict) -> str:
    dtypes = " and ".join(dict.fromkeys(p["dtype"]))
    return f"{p['what']}: {apart(p['distance'])}; {dtypes} {tuple(p['shape'][0])}; {p['caller'][0]}"


def _time(steps: list[dict]) -> dict[str, Any] | None:
    """Worst and median of a step, and the weights."""
    if len(steps) < 2:
        return None
    first, last = steps[0]["iteration"], steps[-1]["iteration"]

    def x(step: dict) -> float:
        return 100 * (step["iteration"] - first) / (last - first)

    lines = {
        name: _line((x(s), _height(s[name])) for s in _worst([s for s in steps if s[name] is not None], POINTS, name))
        for name in ("worst", "median", "weights")
    }
    return {"labels": LABELS, "lines": lines, "ends": [(0, first), (100, last)]}


def _losses(steps: list[dict]) -> dict[str, Any] | None:
    """The losses of both."""
    there = [s for s in steps if all(isinstance(s[k], float) for k in ("loss_a", "loss_b"))]
    there = few(there, POINTS)
    if len(there) < 2:
        return None
    values = [s[k] for s in there for k in ("loss_a", "loss_b")]
    low, high = min(values), max(values)
    first, last = there[0]["iteration"], there[-1]["iteration"]

    def line(name: str) -> str:
        return _line(
            (100 * (s["iteration"] - first) / (last - first), 100 * (high - s[name]) / ((high - low) or 1))
            for s in there
        )

    lines = {"a": line("loss_a"), "b": line("loss_b")}
    return {"lines": lines, "labels": [(0, number(high)), (100, number(low))], "ends": [(0, first), (100, last)]}
