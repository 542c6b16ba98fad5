"""Speed and memory on the CPU, beside PyTorch where it is installed (`pip install -e '.[peer]'`).

    python -m benchmarks.cpu [--quick] [--out FILE]

Everything that a row compares is timed in this one run, in turn: a block of each, then the next block of each, so that
a machine whose speed drifts slows both. Times are medians; ratios are medians of the ratios of blocks.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import pathlib
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import tinymp as mp
from examples.mnist import cnn
from tinymp import ops, optim

try:
    import torch
except ImportError:
    torch = None  # type: ignore[assignment]

BATCH, IMAGE, CLASSES = 64, (1, 28, 28), 10


def blocks(work: dict[str, Callable[[], Any]], rounds: int, calls: int) -> dict[str, list[float]]:
    """The median time in seconds of `calls` calls, for each of `rounds` rounds over all the work in turn."""
    times: dict[str, list[float]] = {name: [] for name in work}
    for f in work.values():
        f()
    for _ in range(rounds):
        for name, f in work.items():
            f()  # the first call after another library's is its warm-up
            block = []
            for _ in range(calls):
                start = time.perf_counter()
                f()
                block.append(time.perf_counter() - start)
            times[name].append(statistics.median(block))
    return times


def ratio(times: dict[str, list[float]], a: str, b: str) -> float:
    """How many times as long a takes as b."""
    return statistics.median(x / y for x, y in zip(times[a], times[b]))


class Rows:
    """The table: what was measured, the target, whether it was reached."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []

    def add(self, work: str, value: float, unit: str, target: str = "") -> None:
        """One row; target like "<= 1.5" or empty."""
        reached = None
        if target:
            sign, number = target.split()
            reached = value <= float(number) if sign == "<=" else value >= float(number)
        self.rows.append({"work": work, "value": value, "unit": unit, "target": target, "reached": reached})
        mark = {None: "", True: "reached", False: "NOT reached"}[reached]
        print(f"{work:<58} {value:>9.3g} {unit:<9} {target:<8} {mark}", flush=True)


def mnist_step(policy: mp.Policy, scaler: optim.LossScaler) -> Callable[[], None]:
    """One training step of the MNIST example's CNN."""
    mp.manual_seed(0)
    model = policy.cast(cnn(*IMAGE, classes=CLASSES))
    optimizer = optim.Adam(model.parameters())
    rng = np.random.default_rng(0)
    images = policy.cast(mp.tensor(rng.standard_normal((BATCH, *IMAGE)).astype("float32")))
    labels = mp.tensor(rng.integers(0, CLASSES, BATCH))

    def step() -> None:
        with mp.use(policy):
            loss = ops.cross_entropy(model(images), labels)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()

    return step


def torch_step(autocast: bool) -> Callable[[], None]:
    """The same step in PyTorch, in FP32 or under its FP16 autocast."""
    nn = torch.nn
    model = nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1, bias=False),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3, padding=1, bias=False),
        nn.BatchNorm2d(64),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(64 * 7 * 7, 128),
        nn.ReLU(),
        nn.Linear(128, CLASSES),
    )
    optimizer = torch.optim.Adam(model.parameters())
    images, labels = torch.randn(BATCH, *IMAGE), torch.randint(0, CLASSES, (BATCH,))

    def step() -> None:
        with torch.autocast("cpu", dtype=torch.float16, enabled=autocast):
            loss = nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def training(rows: Rows, rounds: int) -> None:
    """MNIST CNN training steps."""
    work = {
        "fp32": mnist_step(mp.FP32, optim.NoLossScaler()),
        "mixed": mnist_step(mp.MIXED, optim.DynamicLossScaler()),
    }
    times = blocks(work, rounds, calls=4)
    rows.add("MNIST CNN step, mixed / own FP32", ratio(times, "mixed", "fp32"), "x", "<= 1.1")
    if torch is not None:
        work |= {"torch fp32": torch_step(False), "torch fp16": torch_step(True)}
        times = blocks(work, rounds, calls=4)
    for name in work:
        rows.add(f"MNIST CNN training step, {name}", 1000 * statistics.median(times[name]), "ms")
    if torch is not None:
        rows.add("MNIST CNN step, mixed / PyTorch FP32", ratio(times, "mixed", "torch fp32"), "x", "<= 1.5")
        rows.add("MNIST CNN step, FP32 / PyTorch FP32", ratio(times, "fp32", "torch fp32"), "x", "<= 1.5")
        rows.add("MNIST CNN step, PyTorch FP16 autocast / mixed", ratio(times, "torch fp16", "mixed"), "x", ">= 3")


def products(rows: Rows, rounds: int) -> None:
    """An FP16 product with one rounding beside NumPy's FP32 product."""
    n = 1024
    a, b = (np.random.default_rng(s).standard_normal((n, n)).astype("float32") for s in (0, 1))
    x, y = (mp.tensor(v.astype("float16")) for v in (a, b))
    times = blocks({"fp16": lambda: ops.matmul(x, y), "sgemm": lambda: np.matmul(a, b)}, rounds, calls=5)
    rows.add("matmul 1024^3, FP16 with one rounding", 2 * n**3 / statistics.median(times["fp16"]) / 1e9, "GFLOP/s")
    rows.add("matmul 1024^3, FP16 rate / FP32 sgemm rate", ratio(times, "sgemm", "fp16"), "x", ">= 0.8")


def overhead(rows: Rows, rounds: int) -> None:
    """Forward and backward of one tiny op, recorded."""
    for dtype in ("float32", "float16"):
        x, one = mp.tensor([1.0], dtype=dtype, requires_grad=True), mp.tensor([1.0], dtype=dtype)
        chain = 500

        def run(x: mp.Tensor = x, one: mp.Tensor = one, chain: int = chain) -> None:
            y = x
            for _ in range(chain):
                y = ops.add(y, one)
            y.backward()

        times = blocks({dtype: run}, rounds, calls=3)
        rows.add(
            f"one tiny op, forward and backward, {dtype}", 1e6 * statistics.median(times[dtype]) / chain, "us", "<= 15"
        )


def resident() -> int:
    """Resident memory of this process in bytes (Linux)."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def memory(rows: Rows, steps: int) -> None:
    """Resident memory before and after many steps."""
    if not sys.platform.startswith("linux"):
        return
    step = mnist_step(mp.MIXED, optim.DynamicLossScaler())
    for _ in range(50):
        step()
    gc.collect()
    before = resident()
    for _ in range(steps):
        step()
    gc.collect()
    rows.add(f"growth of resident memory over {steps} steps", (resident() - before) / 2**20, "MiB", "<= 2")


def main(arguments: list[str] | None = None) -> list[dict[str, Any]]:
    """Run everything, print the table, write the JSON."""
    p = argparse.ArgumentParser(prog="python -m benchmarks.cpu", description=__doc__.split("\n\n")[0])
    p.add_argument("--quick", action="store_true", help="few repetitions: shows that it runs, not how fast")
    default = pathlib.Path(__file__).with_name("results") / "cpu.json"
    p.add_argument(
        "--out", type=pathlib.Path, default=default, help="the JSON to write (default: benchmarks/results/cpu.json)"
    )
    options = p.parse_args(arguments)
    rounds = 2 if options.quick else 15
    print(
        mp.info(),
        f"PyTorch {torch.__version__}" if torch else "PyTorch is not installed: no comparison with it",
        sep="\n",
    )
    print(f"\n{'work':<58} {'measured':>9} {'':<9} target")
    rows = Rows()
    training(rows, rounds)
    products(rows, rounds)
    overhead(rows, rounds)
    memory(rows, 20 if options.quick else 1000)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    environment = dict(mp.info()) | {"torch": torch.__version__ if torch else None}
    options.out.write_text(json.dumps({"rows": rows.rows, "environment": environment}, indent=1) + "\n")
    print(f"\nwrote {options.out}")
    return rows.rows


if __name__ == "__main__":
    main()
