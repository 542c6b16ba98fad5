"""What the programs of the paper report, beside what measure.py has: several seeds, and how a run ended."""

from __future__ import annotations

import argparse
import pathlib
from collections.abc import Callable
from typing import Any

import tinymp as mp
from tinymp.checkpoint import writing

from ..measure import jsonable


def beside_seeds(runs: dict[str, Any], value: Callable[[Any], float]) -> list[str]:
    """Where a number of each run lies beside those of the runs in FP32, a line each, if these are several."""
    fp32 = [value(run) for run in runs.values() if run.policy == "FP32"]
    low, high, lines = min(fp32), max(fp32), []
    for label, run in runs.items():
        if run.policy != "FP32":
            own = value(run)
            lines.append(f"{label}: {own:.2f}, {'below' if own < low else 'above' if own > high else 'within'} that")
    return [f"{len(fp32)} seeds of FP32: {low:.2f} to {high:.2f}", *lines] if len(fp32) > 1 else []


def finish(parser: argparse.ArgumentParser, runs: dict[str, Any]) -> dict[str, Any]:
    """Say which runs ended early; the program fails if FP32's did."""
    for label, run in runs.items():
        if run.stopped:
            print(f"\n{label} stopped after {len(run.curve)} steps: {run.stopped}")
    if runs["fp32"].stopped is not None:
        parser.exit(1)
    return runs


def write_json(path: pathlib.Path, runs: dict[str, Any], settings: dict[str, Any]) -> None:
    """report.json: {"runs": {name: ...}, "settings": {...}, "environment": {...}}."""
    found = {name: run.as_dict() for name, run in runs.items()}
    writing.write_json(path, jsonable({"runs": found, "settings": settings, "environment": dict(mp.info())}))
