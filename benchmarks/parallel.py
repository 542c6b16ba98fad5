"""Several processes: how training scales with them here, and how much of the exchange of gradients is hidden.

    python -m benchmarks.parallel [--processes 1 2 4] [--quick] [--out FILE]

Measured, each number of processes by an `mpiexec` of its own, five times in turns, as starts differ more than the steps
of one do; medians, and the ranges of ratios; one BLAS thread per process: steps of examples.cnn with a batch of 64 for
all together (strong scaling) and for each (weak scaling); the bytes that a step sends, and how much of their exchange
backward hides, in large buckets and in small ones.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

import tinymp as mp
from examples import cnn
from tinymp import ops, optim, parallel
from tinymp.backend.extras import hint

from .machine import Machine, write

ROOT = pathlib.Path(__file__).parent.parent
BATCH, PIXELS = 64, 28  # of MNIST's CNN
LATER, SMALL = 25.0, 0.1  # MiB of buckets: DistributedDataParallel's default for all but the first, and small ones
POLICIES = {
    "FP32": mp.FP32,
    "mixed, sent in FP32": mp.MIXED,
    "mixed, sent in FP16": dataclasses.replace(mp.MIXED, name="HALVES", exchange=mp.float16),
}

STARTS = 5  # of each number of processes
WARM = 3  # steps that are not timed


# --------------------------------------------------------------------------------------------------- what is measured


def training(group: parallel.Group, name: str, batch: int, steps: int, bucket: float) -> list[list[float]]:
    """Of each step of the CNN, of which this process has `batch` images: its seconds, those for which the program
    waited at the end of backward, those in the exchange of gradients, and its bytes. bucket: MiB.
    """
    policy = POLICIES[name]
    mp.manual_seed(0)
    model = policy.cast(cnn.network(1, PIXELS, PIXELS, 10))
    ddp = parallel.DistributedDataParallel(model, group, bucket)
    optimizer, scaler = optim.Adam(model.parameters(), lr=1e-3), optim.DynamicLossScaler(2.0**10)
    r = np.random.default_rng(group.rank)
    images = policy.cast(mp.tensor(r.normal(size=(batch, 1, PIXELS, PIXELS)).astype("float32")))
    labels = mp.tensor(r.integers(0, 10, batch))
    found = []
    for _ in range(WARM + steps):
        group.barrier()
        exchanging, waited, sent = getattr(group, "seconds", 0.0), ddp.waited, ddp.sent
        began = time.perf_counter()
        with mp.use(policy):
            scaler.scale(ops.cross_entropy(model(images), labels)).backward()
            exchanging = getattr(group, "seconds", 0.0) - exchanging  # without the scaler's, which come now
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
        found.append([time.perf_counter() - began, ddp.waited - waited, exchanging, ddp.sent - sent])
    group.closing.close()  # else ddp would listen to the steps of the models to come
    return found[WARM:]


def worker(options: argparse.Namespace) -> None:
    """In each process; rank 0 prints what was found."""
    with parallel.init() as group:
        mp.backend.cpu.keep_freed_memory()
        steps, batch = (1, 8) if options.quick else (15, BATCH)
        part = batch // group.size
        cases = {"strong": (part, LATER), "small": (part, SMALL), "weak": (batch, LATER)}
        if group.size == 1:
            cases = {"alone": (batch, LATER)}
        found: dict[str, Any] = {}
        for name in POLICIES:
            found[name] = {}
            for case, (images, bucket) in cases.items():
                ms, waited, exchanging, sent = np.median(training(group, name, images, steps, bucket), 0).tolist()
                cell = {"ms": 1e3 * ms, "waited": 1e3 * waited, "in exchanges": 1e3 * exchanging, "sent": sent}
                found[name][case] = cell
        if group.rank == 0:
            print(json.dumps(found))


def started(n: int, quick: bool) -> dict[str, Any]:
    """What n processes have measured."""
    mpiexec = shutil.which("mpiexec", path=os.pathsep.join([os.path.dirname(sys.executable), os.environ["PATH"]]))
    if mpiexec is None:
        raise FileNotFoundError(f"benchmarks.parallel: no mpiexec: {hint('parallel')}")
    command = [mpiexec, "-n", str(n), sys.executable, "-m", "benchmarks.parallel", "--worker"]
    env = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
    process = subprocess.run(
        [*command, *(["--quick"] if quick else [])], stdout=subprocess.PIPE, text=True, check=True, cwd=ROOT, env=env
    )
    return json.loads(process.stdout.splitlines()[-1])


def middle(found: Sequence[Any]) -> Any:
    """The medians of what several starts have found."""
    if isinstance(found[0], dict):
        return {key: middle([one[key] for one in found]) for key in found[0]}
    if isinstance(found[0], list):
        return [middle(some) for some in zip(*found)]
    return statistics.median(found)


# --------------------------------------------------------------------------------------------------------- the report


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """In Markdown."""
    return "\n".join("| " + " | ".join(row) + " |" for row in (head, ["---"] * len(head), *rows))


def short(x: float) -> str:
    return f"{x:,.0f}" if abs(x) >= 100 else f"{x:.3g}"


def ratio(starts: dict[int, list[dict[str, Any]]], n: int, name: str, case: str) -> str:
    """How many times as long a step takes alone as it takes in n processes: the median of the starts, and the range."""
    found = [a[name]["alone"]["ms"] / b[name][case]["ms"] for a, b in zip(starts[1], starts[n])]
    return f"{statistics.median(found):.2f} ({min(found):.2f} to {max(found):.2f})"


def report(starts: dict[int, list[dict[str, Any]]]) -> str:
    """What was measured."""
    measured = {n: middle(found) for n, found in starts.items()}
    scaling, overlap = [], []
    for name in POLICIES:
        alone = measured[1][name]["alone"]["ms"]
        for n in (n for n in measured if n > 1):
            one = measured[n][name]
            strong, weak = one["strong"], one["weak"]
            speeds = [short(1e3 * images / ms) for images, ms in (
                (BATCH, alone), (BATCH, strong["ms"]), (n * BATCH, weak["ms"])
            )]  # fmt: skip
            ratios = [ratio(starts, n, name, case) for case in ("strong", "weak")]
            cells = speeds[0], speeds[1], ratios[0], speeds[2], ratios[1], short(strong["sent"] / 1024)
            scaling.append([name, str(n), *cells])
            steps = [f"{x['ms']:.1f} ({x['waited']:.1f})" for x in (strong, one["small"])]
            hidden = [f"{max(1 - x['waited'] / x['in exchanges'], 0):.0%}" for x in (strong, one["small"])]
            overlap.append([name, str(n), *steps, *hidden])
    head = ["MNIST CNN, images/s", "processes", "alone", "64 for all (strong)", "times as fast"]
    parts = [table([*head, "64 each (weak)", "efficiency", "KiB sent"], scaling)]
    head = ["ms per step (of them waited)", "processes", "buckets of 25 MiB", "of 0.1 MiB"]
    return "\n\n".join([*parts, table([*head, "hidden, 25 MiB", "0.1 MiB"], overlap)])


def main(arguments: list[str] | None = None) -> None:
    """Measure, print, write."""
    p = argparse.ArgumentParser(prog="python -m benchmarks.parallel", description=__doc__.split("\n\n")[0])
    p.add_argument(
        "--processes", nargs="+", type=int, default=[1, 2, 4], help="numbers of them; 1 is always one (default: 1 2 4)"
    )
    p.add_argument("--quick", action="store_true", help="few rounds: to see that it runs")
    p.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    default = pathlib.Path(__file__).with_name("results") / "parallel.json"
    p.add_argument("--out", type=pathlib.Path, default=default, help="the JSON to write")
    options = p.parse_args(arguments)
    if options.worker:
        worker(options)
        return
    if min(options.processes) < 1 or max(options.processes) < 2:
        p.error(f"--processes: expected numbers from 1 on, one of them 2 or more, got {options.processes}")
    machine = Machine()
    starts: dict[int, list[dict[str, Any]]] = {n: [] for n in sorted({1, *options.processes})}
    for _ in range(1 if options.quick else STARTS):  # what disturbs the machine for a while disturbs all alike
        for n, found in starts.items():
            found.append(started(n, options.quick))
    print(f"{report(starts)}\n\n{machine.verdict()}")
    measured = {n: middle(found) for n, found in starts.items()}
    write(options.out, {"measured": measured, "starts": starts, "environment": machine.state()})


if __name__ == "__main__":
    main()
