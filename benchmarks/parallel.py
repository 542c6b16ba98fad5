"""Several processes: what an exchange costs here, how training scales with it, and a model of time for many GPUs.

    python -m benchmarks.parallel [--processes 1 2 4] [--quick] [--out FILE] [--picture FILE]

Measured, each number of processes by an `mpiexec` of its own, five times in turns, as starts differ more than the steps
of one do; medians, and the ranges of ratios; one BLAS thread per process: `Group.all_reduce` of 4 KiB
to 16 MiB in FP32 and FP16; steps of examples.cnn with a batch of 64 for all together (strong scaling) and for
each (weak scaling); the bytes that a step sends, and how much of their exchange backward hides, in large buckets, in
small ones, and beside a step that sends everything when backward has ended.

What it would take on many GPUs is modelled in scaling.py, not measured; the report says by how much the model is off
here.
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
from contextlib import nullcontext
from typing import Any

import numpy as np

import tinymp as mp
from examples import cnn
from tinymp import ops, optim, parallel
from tinymp.backend.extras import hint
from tinymp.checkpoint import writing

from .machine import Machine, write
from .scaling import (
    BATCH,
    COUNTS,
    FLOPS,
    LATER,
    LINKS,
    PIXELS,
    UTILISATION,
    Link,
    Work,
    fit,
    ring,
    step,
    step_here,
    works,
)

ROOT = pathlib.Path(__file__).parent.parent
SIZES = [1 << n for n in range(12, 25, 2)]  # bytes
SMALL = 0.1  # MiB of small buckets
POLICIES = {
    "FP32": mp.FP32,
    "mixed, sent in FP32": mp.MIXED,
    "mixed, sent in FP16": dataclasses.replace(mp.MIXED, name="HALVES", exchange=mp.float16),
}

STARTS = 5  # of each number of processes
WARM = 3  # steps that are not timed


# --------------------------------------------------------------------------------------------------- what is measured


def messages(group: parallel.Group, rounds: int) -> dict[str, list[float]]:
    """Median seconds of an all-reduce of each size in the slowest process, by dtype."""
    found = {}
    for dtype in ("float32", "float16"):
        times = []
        for size in SIZES:
            x = np.zeros(size // np.dtype(dtype).itemsize, dtype)
            one = []
            for _ in range(rounds):
                group.barrier()
                began = time.perf_counter()
                group.all_reduce(x)
                one.append(time.perf_counter() - began)
            times.append(statistics.median(one))
        slowest = np.array(times)
        group.all_reduce(slowest, "max")
        found[dtype] = slowest.tolist()
    return found


def at_the_end(group: parallel.Group, params: Sequence[mp.nn.Parameter]) -> int:
    """Average all gradients when backward has ended, as a program without buckets does; the bytes that were sent."""
    sent = 0
    for dtype in (mp.float16, mp.float32):
        some = [p for p in params if (p.dtype == p.policy.exchange == mp.float16) == (dtype == mp.float16)]
        if some:
            flat = np.concatenate([p.grad.reshape(-1) for p in some]).astype(dtype)
            flat /= group.size
            group.all_reduce(flat)
            sent += flat.nbytes
            for p, g in zip(some, np.split(flat, np.cumsum([p.array.size for p in some])[:-1])):
                p.grad = g.reshape(p.shape)
    return sent


def training(group: parallel.Group, name: str, batch: int, steps: int, bucket: float | None) -> list[list[float]]:
    """Of each step of the CNN, of which this process has `batch` images: its seconds, those for which the program
    waited at the end of backward, those in the exchange of gradients, and its bytes. bucket: MiB, None: no overlap.
    """
    policy = POLICIES[name]
    mp.manual_seed(0)
    model = policy.cast(cnn.network(1, PIXELS, PIXELS, 10))
    ddp = parallel.DistributedDataParallel(model, group, bucket or LATER)
    optimizer, scaler = optim.Adam(model.parameters(), lr=1e-3), optim.DynamicLossScaler(2.0**10)
    r = np.random.default_rng(group.rank)
    images = policy.cast(mp.tensor(r.normal(size=(batch, 1, PIXELS, PIXELS)).astype("float32")))
    labels = mp.tensor(r.integers(0, 10, batch))
    found = []
    for _ in range(WARM + steps):
        group.barrier()
        exchanging, waited, sent = getattr(group, "seconds", 0.0), ddp.waited, ddp.sent
        began = time.perf_counter()
        with mp.use(policy), nullcontext() if bucket else ddp.no_sync():
            scaler.scale(ops.cross_entropy(model(images), labels)).backward()
            ended = time.perf_counter()
            if bucket is None:
                sent -= at_the_end(group, ddp.params)
                waited -= time.perf_counter() - ended
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
        rounds, steps, batch = (1, 1, 8) if options.quick else (21, 15, BATCH)
        part = batch // group.size
        cases: dict[str, tuple[int, float | None]] = {
            "strong": (part, LATER), "small": (part, SMALL), "at the end": (part, None), "weak": (batch, LATER)
        }  # fmt: skip
        if group.size == 1:
            cases = {"alone": (batch, LATER)}
        found: dict[str, Any] = {"messages": messages(group, rounds) if group.size > 1 else {}}
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


def off(n: int, times: Sequence[float], link: Link) -> list[float]:
    """By how much the model is wrong about each size."""
    return [ring(size, n, link) / t - 1 for size, t in zip(SIZES, times)]


def ratio(starts: dict[int, list[dict[str, Any]]], n: int, name: str, case: str) -> str:
    """How many times as long a step takes alone as it takes in n processes: the median of the starts, and the range."""
    found = [a[name]["alone"]["ms"] / b[name][case]["ms"] for a, b in zip(starts[1], starts[n])]
    return f"{statistics.median(found):.2f} ({min(found):.2f} to {max(found):.2f})"


def report(starts: dict[int, list[dict[str, Any]]], links: dict[str, Link], cores: int) -> str:
    """What was measured, and what the model says."""
    measured = {n: middle(found) for n, found in starts.items()}
    counts = [n for n in measured if n > 1]
    rows = []
    for dtype, link in links.items():
        for n in counts:
            times = measured[n]["messages"][dtype]
            wrong = sorted(off(n, times, link), key=abs)
            cells = [short(1e3 * t) for t in times]
            rows.append([dtype, str(n), *cells, f"{statistics.median(map(abs, wrong)):.0%}", f"{wrong[-1]:+.0%}"])
    head = ["all_reduce, ms", "processes", *(f"{size // 1024} KiB" for size in SIZES)]
    parts = [table([*head, "the fit is off by (median)", "(worst)"], rows)]
    parts.append(
        "\n".join(
            f"{dtype}: alpha {1e6 * a:.0f} us, {1e-9 / b:.2f} GB/s ({why})" for dtype, (a, b, why) in links.items()
        )
    )
    scaling, overlap = [], []
    cnn = next(iter(works().values()))
    for name in POLICIES:
        alone = measured[1][name]["alone"]["ms"]
        halves = name.endswith("FP16")
        for n in counts:
            one = measured[n][name]
            strong, weak = one["strong"], one["weak"]
            link, nbytes = links["float16" if halves else "float32"], cnn.dense(2 if halves else 4)
            modelled = [1e3 * step_here(1e-3 * alone, share, n, cores, nbytes, link) for share in (1 / n, 1.0)]
            scaling.append(
                [
                    name, str(n), short(BATCH / alone * 1e3), short(BATCH / strong["ms"] * 1e3),
                    ratio(starts, n, name, "strong"), f"{modelled[0] / strong['ms'] - 1:+.0%}",
                    short(n * BATCH / weak["ms"] * 1e3), ratio(starts, n, name, "weak"),
                    f"{modelled[1] / weak['ms'] - 1:+.0%}", short(strong["sent"] / 1024), short(nbytes / 1024),
                ]
            )  # fmt: skip
            cases = [one["at the end"], strong, one["small"]]
            steps = [f"{x['ms']:.1f} ({x['waited']:.1f})" for x in cases]
            hidden = [f"{max(1 - x['waited'] / x['in exchanges'], 0):.0%}" for x in cases[1:]]
            overlap.append([name, str(n), *steps, *hidden])
    head = ["MNIST CNN, images/s", "processes", "alone", "64 for all (strong)", "times as fast", "the model is off by"]
    parts.append(
        table([*head, "64 each (weak)", "efficiency", "the model is off by", "KiB sent", "predicted"], scaling)
    )
    head = ["ms per step (of them waited)", "processes", "sent at the end", "buckets of 25 MiB", "of 0.1 MiB"]
    parts.append(table([*head, "hidden, 25 MiB", "0.1 MiB"], overlap))
    rows = []
    for name, sent, work, itemsize in modelled_works():
        cells = [
            f"{short(1e3 * total)} ({idle / total:.0%})" for total, idle in (step(work, n, itemsize) for n in COUNTS)
        ]
        rows.append([name, sent, f"{(work.dense(itemsize) + work.sparse(itemsize)) / 2**20:.1f}", *cells])
    head = [
        "a model, not measured: ms per step (share in which it waits; the rest is the efficiency) by GPUs",
        "sent in",
    ]
    parts.append(table([*head, "MiB", *map(str, COUNTS)], rows))
    return "\n\n".join(parts)


def modelled_works() -> list[tuple[str, str, Work, int]]:
    """The lines of the model: name, dtype, work, bytes of an FP16 gradient."""
    return [
        (name, sent, work, itemsize) for name, work in works().items() for sent, itemsize in (("FP32", 4), ("FP16", 2))
    ]


def draw(path: pathlib.Path, measured: dict[int, dict[str, Any]], links: dict[str, Link]) -> None:
    """Left what was measured and fitted, right what the model says of GPUs."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    picture, (left, right) = plt.subplots(1, 2, figsize=(13, 5), layout="constrained")
    kib = [size / 1024 for size in SIZES]
    fine = np.geomspace(SIZES[0], SIZES[-1], 100)
    colors = plt.rcParams["axes.prop_cycle"].by_key()["color"]
    for (dtype, link), color in zip(links.items(), colors):
        for n, mark, style in zip((n for n in measured if n > 1), "os^", ("-", "--", ":")):
            times = [1e3 * t for t in measured[n]["messages"][dtype]]
            left.plot(kib, times, mark, color=color, label=f"{dtype}, {n} processes")
            fitted = [1e3 * ring(size, n, link) for size in fine]
            left.plot(
                fine / 1024, fitted, style, color=color, alpha=0.6, label=f"{dtype}, {n}, by the model {link.source}"
            )
    left.set(
        xscale="log", yscale="log", ylabel="ms", title="all_reduce here: measured (marks), alpha + beta bytes (lines)"
    )
    left.set_xticks(kib, [f"{k:.0f} KiB" if k < 1024 else f"{k / 1024:.0f} MiB" for k in kib])
    for i, (name, sent, work, itemsize) in enumerate(modelled_works()):
        alone = step(work, 1, itemsize)[0]
        shares = [100 * alone / step(work, n, itemsize)[0] for n in COUNTS]
        style = "--" if itemsize == 4 else "-"
        right.plot(
            COUNTS, shares, style, marker="o", markersize=4, color=colors[i // 2], label=f"{name}, sent in {sent}"
        )
    right.set(
        xscale="log", xlabel="GPUs", ylabel="efficiency, %", ylim=(0, 105), title="A model, not measured: many GPUs"
    )
    right.set_xticks(COUNTS, map(str, COUNTS))
    for one in (left, right):
        one.minorticks_off()
        one.grid(alpha=0.3)
    left.legend(fontsize=7.5)
    right.legend(fontsize=7.5, loc="center", bbox_to_anchor=(0.6, 0.41))  # between the lines
    writing.write_figure(path, picture, dpi=110)
    plt.close(picture)


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
    p.add_argument("--picture", type=pathlib.Path, help="a picture to write")
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
    measured = {n: middle(found) for n, found in starts.items()}
    first = min(n for n in measured if n > 1)
    links = {dtype: fit(SIZES, times, first) for dtype, times in measured[first]["messages"].items()}
    print(f"{report(starts, links, len(os.sched_getaffinity(0)))}\n\n{machine.verdict()}")
    model: dict[str, Any] = {"what": "computed from the figures above, not measured: ms per step, and of them waiting"}
    for name, sent, work, itemsize in modelled_works():
        model[f"{name}, sent in {sent}"] = {n: [1e3 * x for x in step(work, n, itemsize)] for n in COUNTS}
    content = {
        "measured": measured,
        "starts": starts,
        "fitted": {
            dtype: {
                **link._asdict(),
                "off": {n: off(n, measured[n]["messages"][dtype], link) for n in measured if n > 1},
            }
            for dtype, link in links.items()
        },
        "links": {name: link._asdict() for name, link in LINKS.items()},
        "flops": FLOPS,
        "utilisation": UTILISATION,
        "works": {name: work._asdict() for name, work in works().items()},
        "model": model,
        "environment": machine.state(),
    }
    write(options.out, content)
    if options.picture:
        draw(options.picture, measured, links)


if __name__ == "__main__":
    main()
