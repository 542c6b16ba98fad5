"""Several processes: what an exchange costs here, how training scales with it, and a model of time for many GPUs.

    python -m benchmarks.parallel [--processes 2 4] [--quick] [--out FILE]

Measured, each number of processes by an `mpiexec` of its own, one BLAS thread per process: `Group.all_reduce` of 4 KiB
to 16 MiB in FP32 and FP16; steps of examples.mnist's CNN with a batch of 64 for all together (strong scaling) and for
each (weak scaling); the bytes that a step sends, and how much of their exchange backward hides.

Modelled, not measured: a ring's all-reduce of G bytes among N processes takes 2 (N - 1) (alpha + beta G / N), as it
sends 2 (N - 1) messages of G / N bytes, one after the other (Patarasuk & Yuan, 2009; Thakur, Rabenseifner & Gropp,
2005, section 4.5). alpha and beta are fitted here, and held against what was measured with another number. For GPUs,
LINKS has published figures.
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
from typing import Any, NamedTuple

import numpy as np

import tinymp as mp
from examples import language_model, mnist
from tinymp import models, ops, optim, parallel, writing

from .machine import Machine, write

ROOT = pathlib.Path(__file__).parent.parent
SIZES = [1 << n for n in range(12, 25, 2)]  # bytes
BATCH, PIXELS = 64, 28
POLICIES = {
    "FP32": mp.FP32,
    "mixed, sent in FP32": mp.MIXED,
    "mixed, sent in FP16": dataclasses.replace(mp.MIXED, name="HALVES", exchange=mp.float16),
}


class Link(NamedTuple):
    """What takes bytes from one process to another. alpha: seconds per message; beta: seconds per byte."""

    alpha: float
    beta: float
    source: str


# Both latencies are assumptions: of the order of what NCCL's own tests print for few bytes.
LINKS = {
    "NVLink 4": Link(5e-6, 1 / 450e9, "450 GB/s to each side: NVIDIA H100 datasheet, 900 GB/s for both; 5 us assumed"),
    "100 Gb Ethernet": Link(20e-6, 1 / 12.5e9, "100 Gbit/s of each machine, IEEE 802.3bm; 20 us assumed"),
}
MACHINE = 8  # GPUs in one
FLOPS = 989e12  # FP16 with FP32 sums: NVIDIA H100 SXM datasheet, dense
UTILISATION = 0.35  # assumed: what trainings reach of it
COUNTS = (1, 8, 16, 64, 256, 1024)


class Work(NamedTuple):
    """One GPU's part of a step.

    multiply_adds  of its forward pass
    halves, wides  how many gradients are FP16 in mixed precision, and how many stay FP32
    rows, columns  of its sparse gradients, which travel with an index of 8 bytes each
    """

    multiply_adds: float
    halves: int
    wides: int = 0
    rows: int = 0
    columns: int = 0

    def dense(self, itemsize: int) -> float:
        """Bytes to be added up, FP16 gradients sent with so many bytes each."""
        return itemsize * self.halves + 4 * self.wides

    def sparse(self, itemsize: int) -> float:
        """Bytes of rows, which every process gets from every other."""
        return self.rows * (itemsize * self.columns + 8)


def works() -> dict[str, Work]:
    """MNIST's CNN, ResNet-50 and bigLSTM, with the batches that each GPU then has."""
    found = {}
    cnn, resnet = mnist.cnn(1, PIXELS, PIXELS, 10), models.preact_resnet50()
    for name, model, shape in (
        (f"MNIST CNN, {BATCH} images", cnn, (BATCH, 1, PIXELS, PIXELS)),
        ("ResNet-50, 256 images", resnet, (256, 3, 224, 224)),
    ):
        summary = mp.summary(model, shape)
        norms = sum(p.data.size for p in model.parameters() if p.normalisation)
        weights = sum(p.data.size for p in model.parameters()) - norms
        found[name] = Work(summary.multiply_adds, weights, norms)
    c = language_model.CONFIGS["bigLSTM"]
    # per layer: four gates of inputs and of what the projection gives back, biases, and the projection itself
    layer = 4 * c.hidden * (c.embedding + c.projection + 2) + c.hidden * c.projection
    batch = c.batch // MACHINE
    rows = 2 * batch * c.bptt + c.negatives  # of the embedding, and of the sampled softmax: targets and negatives
    adds = batch * c.bptt * (c.layers * layer + (c.negatives + 1) * c.projection)
    found[f"bigLSTM, {batch} x {c.bptt} words"] = Work(adds, c.layers * layer, 0, rows, c.projection)
    return found


# --------------------------------------------------------------------------------------------------------- the model


def ring(nbytes: float, n: int, link: Link) -> float:
    """Seconds of an all-reduce of so many bytes among n processes in a ring."""
    return 2 * (n - 1) * (link.alpha + link.beta * nbytes / n) if nbytes else 0.0


def gather(nbytes: float, n: int, link: Link) -> float:
    """Seconds in which n processes in a ring get so many bytes from each of the others."""
    return (n - 1) * (link.alpha + link.beta * nbytes)


def exchange(work: Work, n: int, itemsize: int) -> float:
    """Seconds among n GPUs. A ring within each machine; between machines a ring for each of their GPUs, which has an
    eighth of the sum then, but they share one network. Rows are not added up on their way: a machine sends all of its.
    """
    near, far = LINKS["NVLink 4"], LINKS["100 Gb Ethernet"]
    inside, machines = min(n, MACHINE), -(-n // MACHINE)
    dense, sparse = work.dense(itemsize), work.sparse(itemsize)
    sums = ring(dense, inside, near) + ring(dense, machines, far)
    return sums + (gather(sparse, inside, near) + gather(inside * sparse, machines, far) if sparse else 0.0)


def step(work: Work, n: int, itemsize: int) -> tuple[float, float]:
    """Seconds of a step, and of them those in which nothing is computed: backward takes two thirds of the computing
    (its products are twice as many), and can hide as much of the exchange.
    """
    compute = 3 * 2 * work.multiply_adds / (FLOPS * UTILISATION)
    waiting = max(exchange(work, n, itemsize) - 2 / 3 * compute, 0.0) if n > 1 else 0.0
    return compute + waiting, waiting


def fit(sizes: Sequence[float], seconds: Sequence[float], n: int) -> Link:
    """alpha and beta of `ring`: least squares of the relative errors, as the times differ by orders of magnitude."""
    steps, times = 2 * (n - 1), np.asarray(seconds, float)
    matrix = np.stack([np.full(len(times), float(steps)), steps * np.asarray(sizes, float) / n], 1)
    (alpha, beta), *_ = np.linalg.lstsq(matrix / times[:, None], np.ones(len(times)), rcond=None)
    return Link(float(alpha), float(beta), f"fitted with {n} processes")


# --------------------------------------------------------------------------------------------------- what is measured


def messages(group: parallel.Group, rounds: int) -> dict[str, list[float]]:
    """Median seconds of an all-reduce of each size, by dtype."""
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
        found[dtype] = times
    return found


def training(group: parallel.Group, name: str, batch: int, steps: int, bucket: float) -> dict[str, float]:
    """Steps of the CNN, of which this process has `batch` images."""
    policy = POLICIES[name]
    mp.manual_seed(0)
    model = policy.cast(mnist.cnn(1, PIXELS, PIXELS, 10))
    ddp = parallel.DistributedDataParallel(model, group, bucket)
    optimizer, scaler = optim.Adam(model.parameters(), lr=1e-3), optim.DynamicLossScaler(2.0**10)
    r = np.random.default_rng(group.rank)
    images = policy.cast(mp.tensor(r.normal(size=(batch, 1, PIXELS, PIXELS)).astype("float32")))
    labels = mp.tensor(r.integers(0, 10, batch))
    times: list[float] = []
    waited = sending = 0.0
    for i in range(-3, steps):
        if i == 0:
            waited, sending = ddp.waited, getattr(group, "seconds", 0.0)
        group.barrier()
        began = time.perf_counter()
        with mp.use(policy):
            scaler.scale(ops.cross_entropy(model(images), labels)).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
        times.append(time.perf_counter() - began)
    sent = ddp.sent / max(ddp.passes, 1)
    waited, sending = ddp.waited - waited, getattr(group, "seconds", 0.0) - sending
    return {"ms": 1000 * statistics.median(times[3:]), "sent": sent, "waited": waited, "in exchanges": sending}


def worker(options: argparse.Namespace) -> None:
    """In each process; rank 0 prints what was found."""
    with parallel.init() as group:
        mp.backend.cpu.keep_freed_memory()
        rounds, steps, batch = (1, 1, 8) if options.quick else (21, 40, BATCH)
        found: dict[str, Any] = {"messages": messages(group, rounds) if group.size > 1 else {}}
        for name in POLICIES:
            found[name] = {
                "strong": training(group, name, batch // group.size, steps, 25.0),
                "weak": training(group, name, batch, steps, 25.0),
                "strong, small buckets": training(group, name, batch // group.size, steps, 0.1),
            }
        if group.rank == 0:
            print(json.dumps(found))


def started(n: int, quick: bool) -> dict[str, Any]:
    """What n processes have measured."""
    mpiexec = shutil.which("mpiexec", path=os.pathsep.join([os.path.dirname(sys.executable), os.environ["PATH"]]))
    if mpiexec is None:
        raise FileNotFoundError("benchmarks.parallel: no mpiexec: pip install 'tinymp[parallel]'")
    command = [mpiexec, "-n", str(n), sys.executable, "-m", "benchmarks.parallel", "--worker"]
    env = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
    process = subprocess.run(
        [*command, *(["--quick"] if quick else [])], stdout=subprocess.PIPE, text=True, check=True, cwd=ROOT, env=env
    )
    return json.loads(process.stdout.splitlines()[-1])


# --------------------------------------------------------------------------------------------------------- the report


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """In Markdown."""
    return "\n".join("| " + " | ".join(row) + " |" for row in (head, ["---"] * len(head), *rows))


def report(measured: dict[int, dict[str, Any]], links: dict[str, Link]) -> str:
    """What was measured, and what the model says."""
    counts = [n for n in measured if n > 1]
    rows = []
    for dtype, link in links.items():
        for n in counts:
            times = measured[n]["messages"][dtype]
            off = [abs(ring(size, n, link) / t - 1) for size, t in zip(SIZES, times)]
            cells = [f"{1e3 * t:.3g}" for t in times]
            rows.append([dtype, str(n), *cells, f"{statistics.median(off):.0%}"])
    head = ["all_reduce, ms", "processes", *(f"{size // 1024} KiB" for size in SIZES), "the model is off by"]
    parts = [table(head, rows)]
    parts.append(
        "\n".join(
            f"{dtype}: alpha {1e6 * a:.0f} us, {1e-9 / b:.2f} GB/s ({why})" for dtype, (a, b, why) in links.items()
        )
    )
    rows = []
    for name in POLICIES:
        alone = measured[1][name]
        for n in counts:
            one = measured[n][name]
            strong, weak, small = one["strong"], one["weak"], one["strong, small buckets"]
            hidden = [1 - x["waited"] / x["in exchanges"] for x in (strong, small)]
            rows.append(
                [
                    name, str(n), f"{alone['strong']['ms']:.1f}", f"{strong['ms']:.1f}",
                    f"{alone['strong']['ms'] / strong['ms']:.2f}", f"{alone['weak']['ms'] / weak['ms']:.2f}",
                    f"{strong['sent'] / 1024:.0f}", *(f"{max(share, 0):.0%}" for share in hidden),
                ]
            )  # fmt: skip
    head = ["MNIST CNN", "processes", "ms alone", "ms", "strong: times as fast", "weak: efficiency", "KiB sent"]
    parts.append(table([*head, "hidden, buckets of 25 MiB", "of 0.1 MiB"], rows))
    rows = []
    for name, work in works().items():
        for sent, itemsize in (("FP32", 4), ("FP16", 2)):
            steps = [step(work, n, itemsize) for n in COUNTS]
            cells = [f"{1e3 * total:.3g} ({waiting / total:.0%})" for total, waiting in steps]
            rows.append([name, sent, f"{(work.dense(itemsize) + work.sparse(itemsize)) / 2**20:.1f}", *cells])
    head = ["a model, not measured: ms per step (waiting)", "sent in", "MiB", *(f"{n} GPUs" for n in COUNTS)]
    parts.append(table(head, rows))
    return "\n\n".join(parts)


def draw(path: pathlib.Path, measured: dict[int, dict[str, Any]], links: dict[str, Link]) -> None:
    """Left what was measured and fitted, right what the model says of GPUs."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    picture, (left, right) = plt.subplots(1, 2, figsize=(13, 5), layout="constrained")
    kib = [size / 1024 for size in SIZES]
    colors = plt.rcParams["axes.prop_cycle"].by_key()["color"]
    for (dtype, link), color in zip(links.items(), colors):
        for n, mark in zip((n for n in measured if n > 1), "os^"):
            times = [1e3 * t for t in measured[n]["messages"][dtype]]
            left.plot(kib, times, mark, color=color, label=f"{dtype}, {n} processes")
            left.plot(kib, [1e3 * ring(size, n, link) for size in SIZES], color=color, alpha=0.5)
    left.set(
        xscale="log", yscale="log", xlabel="KiB", ylabel="ms", title="all_reduce here: measured, and the fit (lines)"
    )
    for (name, work), color in zip(works().items(), colors):
        for sent, itemsize, style in (("FP32", 4, "--"), ("FP16", 2, "-")):
            alone = step(work, 1, itemsize)[0]
            shares = [100 * alone / step(work, n, itemsize)[0] for n in COUNTS]
            right.plot(COUNTS, shares, style, marker="o", markersize=4, color=color, label=f"{name}, sent in {sent}")
    right.set(
        xscale="log", xlabel="GPUs", ylabel="efficiency, %", ylim=(0, 105), title="A model, not measured: many GPUs"
    )
    right.set_xticks(COUNTS, map(str, COUNTS))
    right.minorticks_off()
    for one in (left, right):
        one.grid(alpha=0.3)
        one.legend(fontsize=8, **({"loc": "center", "bbox_to_anchor": (0.62, 0.42)} if one is right else {}))
    writing.write_figure(path, picture, dpi=110)
    plt.close(picture)


def main(arguments: list[str] | None = None) -> None:
    """Measure, print, write."""
    p = argparse.ArgumentParser(prog="python -m benchmarks.parallel", description=__doc__.split("\n\n")[0])
    p.add_argument("--processes", nargs="+", type=int, default=[2, 4], help="numbers of them (default: 2 4)")
    p.add_argument("--quick", action="store_true", help="few rounds: to see that it runs")
    p.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    default = pathlib.Path(__file__).with_name("results") / "parallel.json"
    p.add_argument("--out", type=pathlib.Path, default=default, help="the JSON to write")
    p.add_argument("--picture", type=pathlib.Path, help="a picture to write")
    options = p.parse_args(arguments)
    if options.worker:
        worker(options)
        return
    if min(options.processes) < 2:
        p.error(f"--processes: expected numbers from 2 on, got {options.processes}")
    machine = Machine()
    measured = {n: started(n, options.quick) for n in sorted({1, *options.processes})}
    first = min(n for n in measured if n > 1)
    links = {dtype: fit(SIZES, times, first) for dtype, times in measured[first]["messages"].items()}
    text = report(measured, links)
    print(f"{text}\n\n{machine.verdict()}")
    content = {
        "measured": measured,
        "fitted": {dtype: link._asdict() for dtype, link in links.items()},
        "links": {name: link._asdict() for name, link in LINKS.items()},
        "flops": FLOPS,
        "utilisation": UTILISATION,
        "works": {name: work._asdict() for name, work in works().items()},
        "environment": machine.state(),
    }
    write(options.out, content)
    if options.picture:
        draw(options.picture, measured, links)


if __name__ == "__main__":
    main()
