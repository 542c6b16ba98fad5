"""Speed and memory on the CPU, beside PyTorch where it is installed (`pip install -e ".[peer]"`).

    python -m benchmarks.cpu [--quick] [--out FILE]

Everything that a row compares is timed in this one run, in turn: a block of each, then the next block of each, so that
a machine whose speed drifts slows both. Times are medians, ratios are ratios of the medians printed beside them.
"""

from __future__ import annotations

import argparse
import gc
import os
import pathlib
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import tinymp as mp
from tinymp import ops, optim

from . import steps
from .machine import Machine, write
from .worker import Worker


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
    return statistics.median(times[a]) / statistics.median(times[b])


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


def training(rows: Rows, rounds: int, name: str, network: str, target: str) -> None:
    """The step of one network: mixed beside FP32, and beside PyTorch, for which there is the target.

    Each in a process of its own, in turn. PyTorch's BF16 autocast is mixed precision as CPUs have it: more of them have
    instructions for BF16 than for FP16. Where it does not run (some CPUs have no BF16 LSTM) its rows are left out.
    """
    kinds = ["FP32", "mixed", *(["PyTorch FP32", "PyTorch BF16"] if steps.peer() else [])]
    kinds += ["PyTorch FP16"] if steps.peer() and network == "mnist_cnn" else []
    workers = {kind: Worker() for kind in kinds}
    times: dict[str, list[float]] = {kind: [] for kind in kinds}
    for _ in range(rounds):
        for kind, worker in list(workers.items()):
            try:
                times[kind].append(worker.time(steps.make, network, kind, seconds=0.3))
            except RuntimeError as error:
                if kind != "PyTorch BF16":
                    raise
                print(f"{name}, {kind} does not run here: {error}")
                workers.pop(kind).close()
    for worker in workers.values():
        worker.close()
    for kind in workers:
        rows.add(f"{name}, {kind}", 1000 * statistics.median(times[kind]), "ms")
    rows.add(f"{name}, mixed / own FP32", ratio(times, "mixed", "FP32"), "x", "<= 1.05")
    if steps.peer():
        rows.add(f"{name}, FP32 / PyTorch FP32", ratio(times, "FP32", "PyTorch FP32"), "x")
        rows.add(f"{name}, mixed / PyTorch FP32", ratio(times, "mixed", "PyTorch FP32"), "x", target)
    if "PyTorch BF16" in workers:
        rows.add(f"{name}, mixed / PyTorch BF16 autocast", ratio(times, "mixed", "PyTorch BF16"), "x")
    if "PyTorch FP16" in workers:
        rows.add(f"{name}, PyTorch FP16 autocast / mixed", ratio(times, "PyTorch FP16", "mixed"), "x", ">= 3")


NETWORKS = [  # name, function in steps.py, the target for mixed / PyTorch FP32
    ("MNIST CNN step", "mnist_cnn", "<= 1.2"),
    ("LSTM 2 x 256 step", "lstm", "<= 1.4"),
    ("Translation 2 x 256 step", "translation", "<= 1.5"),
    ("GPT 4 x 128 step", "gpt", "<= 1.5"),
    ("DCGAN 64 x 64 step", "gan", "<= 1.3"),
    ("ResNet-20 step", "resnet", "<= 1.4"),
    ("ResNet-50 evaluation, one image", "evaluation", "<= 1.6"),
    ("SSD step, 128 x 128", "ssd", "<= 1.6"),
]


def networks(rows: Rows, rounds: int, which: list) -> None:
    """The training steps of the families of examples, and an evaluation."""
    for name, network, target in which:
        training(rows, rounds, name, network, target)


def scaling(rows: Rows, rounds: int, which: list) -> None:
    """How a step's time splits into what is spread over cores and what one core does, and what that predicts.

    From the times with one thread and with two: t(n) = alone + spread / n (Amdahl's law), for tinymp and for PyTorch.
    """
    kinds = ["mixed", *(["PyTorch FP32"] if steps.peer() else [])]
    if (os.cpu_count() or 1) < 2:
        print("scaling needs two cores")
        return
    for name, network, _ in which:
        workers = {(kind, n): Worker(threads=n) for kind in kinds for n in (1, 2)}
        times: dict[tuple[str, int], list[float]] = {key: [] for key in workers}
        for _ in range(rounds):
            for (kind, n), worker in workers.items():
                times[kind, n].append(worker.time(steps.make, network, kind, seconds=0.3))
        for worker in workers.values():
            worker.close()
        predicted = {}
        for kind in kinds:
            one, two = (statistics.median(times[kind, n]) for n in (1, 2))
            spread = min(max(2 * (one - two), 0.0), one)
            rows.add(f"{name}, {kind}: one core alone does", 100 * (one - spread) / one, "%")
            predicted[kind] = [one - spread + spread / n for n in (4, 8, 16)]
        for i, n in enumerate((4, 8, 16) if steps.peer() else ()):
            mixed, peer = (predicted[kind][i] for kind in kinds)
            rows.add(f"{name}, {n} cores, predicted: mixed / PyTorch", mixed / peer, "x")


def transposed(rows: Rows, rounds: int) -> None:
    """conv_transpose2d beside the conv2d that does the same products, FP16, forward and backward."""
    rng = np.random.default_rng(0)
    large, small, weight = (
        mp.tensor(rng.standard_normal(shape).astype("float16"), requires_grad=True)
        for shape in ((32, 48, 32, 32), (32, 96, 16, 16), (96, 48, 4, 4))
    )

    def both(op: Callable[..., mp.Tensor], x: mp.Tensor, dy: mp.Tensor) -> None:
        op(x, weight, stride=2, padding=1).backward(dy.detach())
        x.grad = weight.grad = None

    work = {
        "conv_transpose2d": lambda: both(ops.conv_transpose2d, small, large),
        "conv2d": lambda: both(ops.conv2d, large, small),
    }
    times = blocks(work, rounds, calls=4)
    rows.add("conv_transpose2d / conv2d of the same products", ratio(times, *work), "x", "<= 1.5")


def products(rows: Rows, rounds: int) -> None:
    """An FP16 product with one rounding beside NumPy's FP32 product."""
    n = 1024
    a, b = (np.random.default_rng(s).standard_normal((n, n)).astype("float32") for s in (0, 1))
    x, y = (mp.tensor(v.astype("float16")) for v in (a, b))
    times = blocks({"fp16": lambda: ops.matmul(x, y), "sgemm": lambda: np.matmul(a, b)}, rounds, calls=5)
    rows.add("matmul 1024^3, FP16 with one rounding", 2 * n**3 / statistics.median(times["fp16"]) / 1e9, "GFLOP/s")
    rows.add("matmul 1024^3, FP16 rate / FP32 sgemm rate", ratio(times, "sgemm", "fp16"), "x", ">= 0.8")


def ctc(rows: Rows, rounds: int) -> None:
    """ctc_loss, forward and backward, beside PyTorch, each in a process of its own."""
    makers = {"tinymp": steps.ctc, **({"PyTorch": steps.torch_ctc} if steps.peer() else {})}
    workers: dict[str, Worker] = {kind: Worker() for kind in makers}
    times: dict[str, list[float]] = {kind: [] for kind in makers}
    for _ in range(rounds):
        for kind, worker in workers.items():
            times[kind].append(worker.time(makers[kind], seconds=0.3))
    for kind, worker in workers.items():
        worker.close()
        rows.add(f"ctc_loss 100 x 32 x 29, {kind}", 1000 * statistics.median(times[kind]), "ms")
    if steps.peer():
        rows.add("ctc_loss 100 x 32 x 29, tinymp / PyTorch", ratio(times, *makers), "x", "<= 2")


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
            f"one tiny op, forward and backward, {dtype}", 1e6 * statistics.median(times[dtype]) / chain, "us", "<= 12"
        )


def resident() -> int:
    """Resident memory of this process in bytes (Linux)."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def memory(rows: Rows, count: int) -> None:
    """Resident memory before and after many steps."""
    if not sys.platform.startswith("linux"):
        return
    step = steps.mnist_cnn(mp.MIXED, optim.DynamicLossScaler())
    for _ in range(min(count, 50)):
        step()
    gc.collect()
    before = resident()
    for _ in range(count):
        step()
    gc.collect()
    rows.add(f"growth of resident memory over {count} steps", (resident() - before) / 2**20, "MiB", "<= 2")


def main(arguments: list[str] | None = None) -> list[dict[str, Any]]:
    """Run everything, print the table, write the JSON."""
    p = argparse.ArgumentParser(prog="python -m benchmarks.cpu", description=__doc__.split("\n\n")[0])
    p.add_argument(
        "--quick", action="store_true", help="few repetitions, one network: shows that it runs, not how fast"
    )
    default = pathlib.Path(__file__).with_name("results") / "cpu.json"
    p.add_argument(
        "--out", type=pathlib.Path, default=default, help="the JSON to write (default: benchmarks/results/cpu.json)"
    )
    options = p.parse_args(arguments)
    mp.backend.cpu.keep_freed_memory()
    rounds, which = (1, NETWORKS[:1]) if options.quick else (9, NETWORKS)
    print(
        mp.info(),
        f"PyTorch {steps.peer()}" if steps.peer() else "PyTorch is not installed: no comparison with it",
        sep="\n",
    )
    print(f"\n{'work':<58} {'measured':>9} {'':<9} target")
    rows, machine = Rows(), Machine()
    networks(rows, rounds, which)
    transposed(rows, rounds)
    products(rows, rounds)
    ctc(rows, rounds)
    overhead(rows, rounds)
    scaling(rows, rounds, which)
    memory(rows, 20 if options.quick else 1000)
    print(f"\n{machine.verdict()}")
    write(options.out, {"rows": rows.rows, "environment": machine.state()})
    print(f"\nwrote {options.out}")
    return rows.rows


if __name__ == "__main__":
    main()
