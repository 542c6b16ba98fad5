"""Speed and memory on the CPU, compared with PyTorch where it is installed (`pip install -e ".[peer]"`).

    python -m benchmarks.cpu [--quick] [--part steps|audit|ops|where] [--out FILE]

`python -m docs.generate` then writes the tables of docs/speed.md. All that a row compares is timed in this one run,
each side in a process of its own, in turn, so that a machine whose speed drifts slows all. Times are medians, ratios
are ratios of the medians printed next to them.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import pathlib
import statistics
import sys
from typing import Any

import tinymp as mp

from . import ops, steps, where
from .machine import Machine, write
from .report import Report
from .worker import in_turn, ratio

NETWORKS = [  # name, function in steps.py, the target for mixed / PyTorch FP32
    ("MNIST CNN step", "mnist_cnn", "<= 1.0"),
    ("LSTM 2 x 256 step", "lstm", "<= 1.15"),
    ("ResNet-20 step", "resnet", "<= 1.5"),
    ("GPT 4 x 128 step", "gpt", "<= 1.25"),
    ("DCGAN 64 x 64 step", "gan", "<= 1.3"),
]


def training(report: Report, rounds: int, name: str, network: str, target: str) -> None:
    """The step of one network: mixed beside FP32, and beside PyTorch, for which there is the target.

    PyTorch's BF16 autocast is mixed precision as CPUs have it: more of them have instructions for BF16 than for FP16.
    Where it does not run (some CPUs have no BF16 LSTM) its rows are left out.
    """
    kinds = ["FP32", "mixed", "definitions", *(["PyTorch FP32", "PyTorch BF16"] if steps.peer() else [])]
    kinds += ["PyTorch FP16"] if steps.peer() and network == "mnist_cnn" else []
    times = in_turn({kind: (steps.make, network, kind) for kind in kinds}, rounds)
    for kind in times:
        report.add(f"{name}, {kind}", 1000 * statistics.median(times[kind]), "ms")
    for a, b, aim in (
        ("mixed", "FP32", "<= 1.05"),
        ("FP32", "PyTorch FP32", ""),
        ("mixed", "PyTorch FP32", target),
        ("definitions", "PyTorch FP32", "<= 2.5"),
        ("mixed", "PyTorch BF16", ""),
        ("PyTorch FP16", "mixed", ">= 3"),
    ):
        if {a, b} <= times.keys():
            report.add(f"{name}, {a} / {b}", ratio(times, a, b), "x", aim)


def audits(report: Report, rounds: int, name: str, network: str, _: str) -> None:
    """A mixed step while an audit listens, compared with one that nobody hears."""
    times = in_turn({kind: (steps.make, network, kind) for kind in ("mixed", *steps.AUDITS)}, rounds)
    for kind in steps.AUDITS:
        report.add(f"{name}, {kind} / mixed", ratio(times, kind, "mixed"), "x")


def products(report: Report, rounds: int) -> None:
    """An FP16 product with one rounding beside NumPy's FP32 product."""
    times = in_turn({dtype: (steps.product, dtype) for dtype in ("float16", "float32")}, rounds)
    rate = 2 * 1024**3 / statistics.median(times["float16"]) / 1e9
    report.add("matmul 1024^3, FP16 with one rounding", rate, "GFLOP/s")
    report.add("matmul 1024^3, FP16 rate / FP32 sgemm rate", ratio(times, "float32", "float16"), "x", ">= 0.8")


def overhead(report: Report, rounds: int) -> None:
    """Forward and backward of one tiny op, recorded."""
    times = in_turn({dtype: (steps.tiny, dtype) for dtype in ("float32", "float16")}, rounds)
    for dtype, seconds in times.items():
        each = 1e6 * statistics.median(seconds) / steps.CHAIN
        report.add(f"one tiny op, forward and backward, {dtype}", each, "us", "<= 12")


def resident() -> int:
    """Resident memory of this process in bytes (Linux)."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def memory(report: Report, count: int) -> None:
    """Resident memory before and after many steps."""
    if not sys.platform.startswith("linux"):
        return
    step = steps.make("mnist_cnn", "mixed")
    for _ in range(min(count, 50)):
        step()
    gc.collect()
    before = resident()
    for _ in range(count):
        step()
    gc.collect()
    report.add(f"growth of resident memory over {count} steps", (resident() - before) / 2**20, "MiB", "<= 2")


def moved(before: list[dict[str, Any]], rows: list[dict[str, Any]]) -> list[str]:
    """The ratios that differ from those of an earlier run by more than 5 %."""
    old = {row["work"]: row["value"] for row in before if row["unit"] == "x"}
    both = [(row["work"], old[row["work"]], row["value"]) for row in rows if old.get(row["work"])]
    return [f"{work}: {a:.3g} -> {b:.3g}" for work, a, b in both if abs(b / a - 1) > 0.05]


def main(arguments: list[str] | None = None) -> list[dict[str, Any]]:
    """Run everything, print the tables, write the JSON."""
    p = argparse.ArgumentParser(prog="python -m benchmarks.cpu", description=__doc__.split("\n\n")[0])
    p.add_argument("--quick", action="store_true", help="few repetitions, one network, one op: shows that it runs")
    p.add_argument("--part", choices=("steps", "audit", "ops", "where"), help="this part alone; writes no JSON")
    default = pathlib.Path(__file__).with_name("results") / "cpu.json"
    p.add_argument("--out", type=pathlib.Path, default=default, help="the JSON (default: benchmarks/results/cpu.json)")
    options = p.parse_args(arguments)
    mp.backend.cpu.keep_freed_memory()
    rounds, networks = (1, NETWORKS[:1]) if options.quick else (7, NETWORKS)
    print(mp.info(), f"PyTorch {steps.peer() or 'is not installed: no comparison with it'}", sep="\n")
    report, machine, found = Report(), Machine(), {}
    if options.part in (None, "steps"):
        report.head("work")
        for name, network, target in networks:
            training(report, rounds, name, network, target)
        products(report, rounds)
        overhead(report, rounds)
        memory(report, 5 if options.quick else 1000)
    if options.part in (None, "audit"):
        for row in networks:
            audits(report, rounds, *row)
    if options.part in (None, "ops") and steps.peer():
        found["ops"] = ops.table(report, rounds, 1 if options.quick else None)
    if options.part in (None, "where"):
        found["where"] = where.table([network for _, network, _ in networks], 0.5 if options.quick else 5.0)
    print(f"\n{machine.verdict()}")
    if options.part is None:
        before = json.loads(options.out.read_text(encoding="utf-8"))["rows"] if options.out.exists() else []
        found["moved"] = moved(before, report.rows)
        write(options.out, {"rows": report.rows, **found, "environment": machine.state()})
        print(*found["moved"], f"wrote {options.out}", sep="\n")
    return report.rows


if __name__ == "__main__":
    main()
