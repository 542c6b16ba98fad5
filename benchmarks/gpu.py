"""Speed and memory on a GPU, compared with PyTorch (cuDNN, AMP) where it is installed: sections of the bring-up.

Everything that is compared is timed in one process, in turn: a block of each, then the next block of each, so that a
clock that drifts slows both. Times are medians of CUDA events around blocks of steps, in which the host's time counts;
ratios are medians of the ratios of blocks. Blocks repeat the same batch: what fits into the L2 cache stays there, for
both sides.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import importlib
import math
import pathlib
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple
from unittest import mock

import numpy as np

import tinymp as mp
from tinymp import fast_path, nn

from . import models, peers, steps
from .peers import Work
from .report import Report

Network = Callable[[Any], Any]
Step = Callable[[], Any]
Times = dict[str, list[float]]


class Bench:
    """The sections share this: the device, arrays of random numbers, the report, the time that is left.

    report   where the rows go
    tiny     whether sizes are tiny and everything is timed as briefly as can be
    on_gpu   whether there is a real one
    seconds  how long the section may take
    """

    def __init__(self, report: Report, tiny: bool, on_gpu: bool, seconds: float) -> None:
        self.report, self.tiny, self.on_gpu = report, tiny, on_gpu
        self.end = time.monotonic() + (0 if tiny else seconds)
        self.xp = mp.backend.gpu.xp
        values = np.random.default_rng(0).standard_normal(1 << (10 if tiny else 20))
        self._values = self.xp.asarray(values.astype("float16"))

    def share(self, parts: int) -> float:
        """The seconds for the next measurement, where `parts` are still to come."""
        return max(self.end - time.monotonic(), 0) / parts

    def random(self, shape: Sequence[int]) -> Any:
        """Normal random numbers as an FP16 array on the device (a million of them, over and over)."""
        out = self.xp.empty(math.prod(shape), "float16")
        for i in range(0, out.size, self._values.size):
            part = out[i : i + self._values.size]
            part[...] = self._values[: part.size]
        return out.reshape(shape)

    def times(self, work: Work, seconds: float) -> Times:
        """Seconds per call of each work, one entry per round over all of them in turn.

        seconds: how long this may take, about; there are always two rounds.
        """
        calls, total = {}, 0.0
        for name, f in work.items():
            for _ in range(0 if self.tiny else 2):  # compiles, chooses algorithms, allocates
                f()
            mp.synchronize()
            start = time.perf_counter()
            f()
            mp.synchronize()
            took = time.perf_counter() - start
            calls[name] = 1 if self.tiny else max(2, min(50, int(5e-3 / took)))
            total += (calls[name] + 1) * took
        times: Times = {name: [] for name in work}
        for _ in range(1 if self.tiny else max(2, min(9, int(seconds / total)))):
            for name, f in work.items():
                times[name].append(self._block(f, calls[name]))
        return times

    def _block(self, f: Callable[[], Any], calls: int) -> float:
        """Seconds per call of f."""
        start, end = (self.xp.cuda.Event() for _ in range(2))
        if not self.tiny:
            f()  # the first call after another library's is its warm-up
        start.record()
        for _ in range(calls):
            f()
        end.record()
        end.synchronize()
        return self.xp.cuda.get_elapsed_time(start, end) / 1000 / calls


def ratio(times: Times, a: str, b: str) -> float:
    """The time of a divided by that of b."""
    return statistics.median(x / y for x, y in zip(times[a], times[b]))


class Workload(NamedTuple):
    """A network, and the shape of its batch: images (FP16), of `classes` kinds, or words below `vocabulary`."""

    network: Network
    shape: tuple[int, ...]
    classes: int = 10
    vocabulary: int = 0

    def step(self, bench: Bench, policy: mp.Policy) -> Step:
        """SGD with momentum on one batch."""
        images, labels = training_data(bench, self)
        images = images if self.vocabulary else images.to(policy.storage)
        return partial(models.momentum_step(made(self.network, policy), policy), images, labels)

    def peers(self, bench: Bench, policy: mp.Policy) -> Work:
        """PyTorch's: FP32 or AMP, channels_last, CUDA graphs. PyTorch has no FP16 LSTM on a CPU."""
        if self.vocabulary and not bench.on_gpu:
            return {}
        return peers.training(self.network, *(x.array for x in training_data(bench, self)), policy is not mp.FP32)


class Example(NamedTuple):
    """A step of an example, by a policy; and PyTorch's on a GPU, by autocast's dtype, "" for FP32."""

    step: Callable[[Bench, mp.Policy], Step]
    theirs: Callable[[Bench, str], Step]

    def peers(self, bench: Bench, policy: mp.Policy) -> Work:
        return {"PyTorch": self.theirs(bench, "" if policy is mp.FP32 else "float16")} if bench.on_gpu else {}


def gan(shape: tuple[int, ...], width: int) -> Example:
    """The DCGAN example: both networks, two optimizers, one loss scaler."""
    return Example(
        lambda bench, policy: steps.gan(policy, bench.random(shape).astype(policy.storage), width),
        lambda bench, autocast: steps.torch_gan(peers.shared(bench.random(shape)).float(), width, autocast),
    )


GPT = Example(lambda _, policy: steps.gpt(policy), lambda _, autocast: steps.torch_gpt(autocast, "cuda"))


def words(length: int, batch: int, vocabulary: int, *sizes: int) -> Workload:
    """LSTMs that predict the next word. sizes: of embeddings, cells, layers, and what cells are projected to."""
    return Workload(lambda nn: models.language_model(nn, vocabulary, *sizes), (length, batch), 0, vocabulary)


def workloads(tiny: bool) -> dict[str, Any]:
    """The networks to train. bigLSTM's cell: Jozefowicz et al. (2016), 8192 cells projected to 1024 numbers."""
    if tiny:
        cnn = Workload(partial(models.cnn, size=4, width=2), (2, 1, 4, 4))
        return {"CNN": cnn, "LSTM": words(2, 2, 8, 2, 3, 1), "DCGAN": gan((2, 1, 8, 8), 2)}
    return {
        "MNIST CNN, batch 64": Workload(models.cnn, (64, 1, 28, 28)),
        "LSTM 2 x 1024, 64 words, batch 64": words(64, 64, 10000, 1024, 1024),
        "GPT, batch 16": GPT,
        "DCGAN 64 x 64, batch 128": gan((128, 1, 64, 64), 64),
        "ResNet-50, batch 128": Workload(models.resnet50, (128, 3, 224, 224), classes=1000),
        "bigLSTM's cell, 20 words, batch 128": words(20, 128, 10000, 1024, 8192, 1, 1024),
    }


@contextlib.contextmanager
def definitions() -> Iterator[None]:
    """Within the block definitions run by CuPy and cuBLAS alone, without kernels of tinymp's own."""
    fast_path.enabled.remove("gpu")
    try:
        yield
    finally:
        fast_path.enabled.add("gpu")


POLICIES = {"FP32": mp.FP32, "mixed": mp.MIXED}


def training(bench: Bench) -> None:
    """Steps of each network in FP32 and mixed, by kernels, captured and by definitions: losses, and times next to
    PyTorch's.
    """
    every = [(name, kind) for name in workloads(bench.tiny) for kind in POLICIES]
    for i, (name, kind) in enumerate(every):
        work = partial(train, bench, workloads(bench.tiny)[name], POLICIES[kind], len(every) - i)
        bench.report.case("training", f"{name}, {kind}", work)
    for entry in bench.report.cases["training"]:
        ms = entry.get("ms", {})
        for own in ms.keys() & OWN:
            rivals = [ms[k] for k in ms.keys() - OWN if ("graph" in k) == (own == "captured")]
            beside = min(rivals, default=None) if own != "definitions" else None
            bench.report.add(f"{entry['case']}, training step, {own}", ms[own], "ms", peer=beside)


OWN = {"kernels", "captured", "definitions"}


def train(bench: Bench, workload: Any, policy: mp.Policy, parts: int) -> dict[str, Any]:
    """One of them."""
    own = [workload.step(bench, policy) for _ in OWN]
    work: Work = {"kernels": own[0], "captured": mp.capture(own[1]), "definitions": definitions()(own[2])}
    losses = {kind: [float(step()) for _ in range(5 if bench.tiny else 20)] for kind, step in work.items()}
    found: dict[str, Any] = {"losses": losses}
    first = losses["definitions"][0]
    apart = max(abs(line[0] - first) for line in losses.values())
    if not all(math.isfinite(x) for line in losses.values() for x in line) or apart > 0.02 * abs(first):
        found["error"] = "losses are not finite, or the first ones differ by more than 2 %"
    work |= workload.peers(bench, policy) if peers.torch else {}
    times = bench.times(work, bench.share(parts))
    found["ms"] = {kind: 1000 * statistics.median(t) for kind, t in times.items()}
    work.clear(), own.clear()
    freed(bench)
    return found


def same_bits(bench: Bench) -> None:
    """Steps while an audit listens, and captured ones, give the losses and weights of other steps, bit for bit."""
    for name, workload in workloads(bench.tiny).items():
        if isinstance(workload, Workload):
            bench.report.case("bits", name, partial(same_bits_of, bench, workload))


def same_bits_of(bench: Bench, workload: Workload) -> dict[str, Any]:
    """One network: which losses and weights differ."""
    found: dict[str, dict[str, Any]] = {}
    for way in ("", "audited", "captured"):
        model, batch = made(workload.network, mp.MIXED), training_data(bench, workload)
        step = models.momentum_step(model, mp.MIXED)
        step = mp.capture(step) if way == "captured" else step
        with mp.audit() if way == "audited" else contextlib.nullcontext():
            losses = {f"loss {i}": step(*batch).numpy() for i in range(6)}
        found[way] = {name: x.tobytes() for name, x in (losses | model.state_dict()).items()}
    usual = found.pop("")
    other_bits = [f"{way}: {name}" for way, x in found.items() for name in x if x[name] != usual[name]]
    return {"other bits": other_bits} | ({"error": f"{len(other_bits)} values differ"} if other_bits else {})


def files() -> list[str]:
    """The files of tinymp/gpu that stand in for definitions."""
    folder = pathlib.Path(fast_path.__file__).parent / "gpu"
    for path in folder.glob("[!_]*.py"):
        importlib.import_module(f"tinymp.gpu.{path.stem}")
    return sorted({name.rpartition(".")[2] for way in fast_path._found.values() if ".gpu." in (name := way.__module__)})


def without(step: Step, file: str) -> Step:
    """The step by the definitions for which one file of tinymp/gpu stands in, else by kernels."""
    find = fast_path._find

    @functools.cache
    def some(definition: Any, device: str) -> Any:
        found = find(definition, device)
        return None if found is None or found.__module__ == f"tinymp.gpu.{file}" else found

    def run() -> Any:
        with mock.patch.object(fast_path, "_find", some):
            return step()

    return run


def gains(bench: Bench) -> None:
    """A step by kernels, and without one file of them at a time: what each gains, how far apart the losses are.

    The last row of each file is its best network: it should gain 10 % on one.
    """
    every = workloads(bench.tiny)
    for i, (name, workload) in enumerate(every.items()):
        bench.report.case("gains", name, partial(gains_of, bench, workload, len(every) - i))
    for file in files():
        seen = {c["case"]: c["ratios"][file] for c in bench.report.cases["gains"] if file in c.get("ratios", {})}
        if seen:
            best = max(seen, key=seen.__getitem__)
            bench.report.add(f"gpu/{file}: without / with it, {best}", seen[best], "x", ">= 1.1")


def gains_of(bench: Bench, workload: Any, parts: int) -> dict[str, Any]:
    """One network: by file, the time without / with it, and the largest relative difference of a loss."""
    work: Work = {file: without(workload.step(bench, mp.MIXED), file) for file in ("", *files())}
    losses = {file: [float(step()) for _ in range(2 if bench.tiny else 5)] for file, step in work.items()}
    apart = {file: max(abs(a - b) / abs(b) for a, b in zip(losses[file], losses[""])) for file in work}
    times = bench.times(work, bench.share(parts))
    found: dict[str, Any] = {"ratios": {file: ratio(times, file, "") for file in work if file}, "losses apart": apart}
    if wrong := {file: most for file, most in apart.items() if not most <= 0.02}:
        found["error"] = f"losses differ without {wrong}"
    work.clear()
    freed(bench)
    return found


def freed(bench: Bench) -> None:
    """Give the memory of what was measured back to the device: CuPy and PyTorch have a pool each."""
    gc.collect()
    bench.xp.get_default_memory_pool().free_all_blocks()
    if peers.torch and bench.on_gpu:
        peers.torch.cuda.empty_cache()


def training_data(bench: Bench, workload: Workload) -> tuple[mp.Tensor, mp.Tensor]:
    """A batch of random images in FP16, or words, and labels."""
    rng, asarray = np.random.default_rng(0), bench.xp.asarray
    if most := workload.vocabulary:
        words, labels = rng.integers(0, most, workload.shape), rng.integers(0, most, math.prod(workload.shape))
        return mp.Tensor(asarray(words)), mp.Tensor(asarray(labels))
    labels = rng.integers(0, workload.classes, workload.shape[0])
    return mp.Tensor(bench.random(workload.shape)), mp.Tensor(asarray(labels))


def made(network: Network, policy: mp.Policy) -> nn.Module:
    """The network on the GPU; the same weights each time."""
    mp.manual_seed(0)
    return policy.cast(network(nn)).to("gpu")


def memory(bench: Bench) -> None:
    """The most memory that training a CNN holds at once, in mixed precision and in FP32."""
    shape: tuple = (1024, 3, 32, 32)
    network: Network = models.resnet
    if bench.tiny:
        shape, network = (8, 1, 4, 4), partial(models.cnn, size=4, width=2)
    name = f"ResNet, {shape[2]}x{shape[3]} images, batch {shape[0]}: peak memory"
    with bench.report.row(name):
        mixed, full = (peak_memory(bench, network, shape, policy) for policy in (mp.MIXED, mp.FP32))
        beside = peers.peak_memory(network, shape) / 2**20 if peers.torch and bench.on_gpu else None
        bench.report.add(f"{name}, mixed", mixed / 2**20, "MiB", peer=beside)
        bench.report.add(f"{name}, FP32", full / 2**20, "MiB")
        bench.report.add(f"{name}, mixed / own FP32", mixed / full, "x", "<= 0.6")


def peak_memory(bench: Bench, network: Network, shape: Sequence[int], policy: mp.Policy) -> int:
    """Bytes of images, weights, masters, optimizer state, activations, gradients and temporary arrays."""
    pool, peak = bench.xp.cuda.MemoryPool(), 0

    def allocate(size: int) -> Any:
        nonlocal peak
        pointer = pool.malloc(size)
        peak = max(peak, pool.used_bytes())  # it rises nowhere else
        return pointer

    def train(batch: int, steps: int) -> None:
        images, labels = training_data(bench, Workload(network, (batch, *shape[1:])))
        images, step = images.to(policy.storage), models.momentum_step(made(network, policy), policy)
        for _ in range(steps):
            step(images, labels)
        mp.synchronize()

    train(2, 1)  # what is made once and stays, such as cuBLAS's workspace, is not the training's
    gc.collect()
    with bench.xp.cuda.using_allocator(allocate):
        train(shape[0], 3)
    return peak


SECTIONS: dict[str, Callable[[Bench], None]] = {f.__name__: f for f in (training, same_bits, gains, memory)}
