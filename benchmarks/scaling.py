"""A model of time for training in many processes. Nothing here is measured: benchmarks.parallel holds it to what is.

A ring's all-reduce of G bytes among N processes takes 2 (N - 1) (alpha + beta G / N), as it sends 2 (N - 1) messages of
G / N bytes, one after the other (Patarasuk & Yuan, "Bandwidth optimal all-reduce algorithms for clusters of
workstations", 2009; Thakur, Rabenseifner & Gropp, "Optimization of collective communication operations in MPICH",
2005). alpha and beta are fitted to measurements; for GPUs, LINKS has published figures. Each bucket of gradients is a
ring of its own.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

import tinymp as mp
from examples import cnn, paper
from examples.paper import language_model
from tinymp.parallel.gradients import FIRST

BATCH, PIXELS = 64, 28  # of MNIST's CNN
LATER = 25.0  # MiB of every bucket but the first: DistributedDataParallel's default


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
FLOPS = 989e12  # FP16 with FP32 sums: NVIDIA H100 SXM datasheet, 1,979 TFLOP/s "with sparsity", half of it without
UTILISATION = 0.35  # assumed: what trainings reach of it
COUNTS = (1, 8, 16, 32, 64, 128, 256, 512, 1024)


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


@functools.cache
def works() -> dict[str, Work]:
    """MNIST's CNN, ResNet-50 and bigLSTM, with the batches that each GPU then has."""
    found = {}
    small, resnet = cnn.network(1, PIXELS, PIXELS, 10), paper.preact_resnet50()
    for name, model, shape in (
        (f"MNIST CNN, {BATCH} images", small, (BATCH, 1, PIXELS, PIXELS)),
        ("ResNet-50, 256 images", resnet, (256, 3, 224, 224)),
    ):
        summary = mp.summary(model, shape)
        norms = sum(p.array.size for p in model.parameters() if p.normalisation)
        weights = sum(p.array.size for p in model.parameters()) - norms
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


def ring(nbytes: float, n: int, link: Link, rings: int = 1) -> float:
    """Seconds of an all-reduce of so many bytes among n processes, in so many rings one after the other."""
    return 2 * (n - 1) * (rings * link.alpha + link.beta * nbytes / n) if nbytes else 0.0


def gather(nbytes: float, n: int, link: Link) -> float:
    """Seconds in which n processes in a ring get so many bytes from each of the others."""
    return (n - 1) * (link.alpha + link.beta * nbytes) if nbytes else 0.0


def buckets(nbytes: float) -> int:
    """In how many buckets DistributedDataParallel sends gradients of so many bytes, at most."""
    return 1 + math.ceil(max(nbytes - FIRST, 0.0) / 2**20 / LATER)


def sums(nbytes: float, n: int) -> float:
    """Seconds of an all-reduce among n GPUs. A ring within each machine; between machines a ring for each of their
    GPUs, which has an eighth of the sum then, but they share one network.
    """
    inside, machines, rings = min(n, MACHINE), -(-n // MACHINE), buckets(nbytes)
    near, far = LINKS["NVLink 4"], LINKS["100 Gb Ethernet"]
    return ring(nbytes, inside, near, rings) + ring(nbytes, machines, far, rings)


def rows(nbytes: float, n: int) -> float:
    """Seconds in which n GPUs get so many bytes of rows from each of the others. They are not added up on their way: a
    machine sends those of all its GPUs, and these then hand each other what they got from other machines.
    """
    inside, machines = min(n, MACHINE), -(-n // MACHINE)
    near, far = LINKS["NVLink 4"], LINKS["100 Gb Ethernet"]
    return gather(inside * nbytes, machines, far) + gather(machines * nbytes, inside, near)


def waiting(compute: float, dense: float, sparse: float = 0.0) -> float:
    """Seconds of a step in which nothing is computed. Backward takes two thirds of the computing, as its products are
    twice as many, and can hide as much of the sums, at best: the last bucket is full when it has ended. Rows are sent
    after it.
    """
    return max(dense - 2 / 3 * compute, 0.0) + sparse


def step(work: Work, n: int, itemsize: int) -> tuple[float, float]:
    """Seconds of a step among n GPUs, and of them those in which nothing is computed."""
    compute = 3 * 2 * work.multiply_adds / (FLOPS * UTILISATION)
    idle = waiting(compute, sums(work.dense(itemsize), n), rows(work.sparse(itemsize), n)) if n > 1 else 0.0
    return compute + idle, idle


def step_here(alone: float, share: float, n: int, cores: int, nbytes: float, link: Link) -> float:
    """Seconds of a step in n processes on so many cores: `alone` is what one takes for a batch, of which each has
    this share.
    """
    compute = alone * share * max(n / cores, 1.0)
    return compute + waiting(compute, ring(nbytes, n, link))


def fit(sizes: Sequence[float], seconds: Sequence[float], n: int) -> Link:
    """alpha and beta of `ring`: least squares of the relative errors, as the times differ by orders of magnitude."""
    steps, times = 2 * (n - 1), np.asarray(seconds, float)
    matrix = np.stack([np.full(len(times), float(steps)), steps * np.asarray(sizes, float) / n], 1)
    (alpha, beta), *_ = np.linalg.lstsq(matrix / times[:, None], np.ones(len(times)), rcond=None)
    return Link(float(alpha), float(beta), f"fitted with {n} processes")
