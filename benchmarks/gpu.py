"""Speed and memory on a GPU, beside PyTorch (cuDNN, AMP) where it is installed.

    python -m benchmarks.gpu [--only SECTION] [--out FILE] [--device cuda-on-cpu --tiny]

Everything that a row compares is timed in one process, in turn: a block of each, then the next block of each, so that a
clock that drifts slows both. Times are medians of CUDA events around blocks of calls; ratios are medians of the ratios
of blocks, then geometric means over the cases. What runs on the GPU alone queues up behind a kernel that waits, so that
the time the host takes to ask for it does not count; a training step is driven by the host, and there it counts. Blocks
repeat the same operands: what fits into the L2 cache stays there, for both sides.

An error costs its row. A kernel that crashes or hangs costs all that comes after it: benchmarks.bringup runs each
section in a process of its own. The exit code is 1 if something failed (not if a target was missed).
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import pathlib
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

import tinymp as mp
from tinymp import nn, ops
from tinymp.ops.conv import batch_first
from tinymp.precision import gemm as gemm_primitive
from tinymp.study.tensor_core import ARCHITECTURES as UNITS

from . import models, peers
from .machine import device, write
from .report import Report
from .timing import Bench, Work, rates, ratio

HERE = pathlib.Path(__file__).parent


def deepbench(kind: str) -> list[dict[str, Any]]:
    """Every fourth of DeepBench's training sizes of "gemm", "conv" or "recurrent": 40, 24 and 10."""
    content = json.loads((HERE / "deepbench.json").read_text())
    return [dict(zip(content[f"{kind}_columns"], row)) for row in content[kind][::4]]


def gemm(bench: Bench) -> None:
    """DeepBench's matrix products."""
    group, cases = "DeepBench GEMM", deepbench("gemm")
    if bench.tiny:
        cases = [{"m": 24, "n": 8, "k": 40, "a_t": a_t, "b_t": b_t} for a_t, b_t in ((0, 0), (1, 0), (0, 1))]
    for i, case in enumerate(cases):
        m, n, k, a_t, b_t = case.values()
        name = f"{m}x{n}x{k} {'T' if a_t else 'N'}{'T' if b_t else 'N'}"
        with bench.report.case(group, name) as entry, mp.no_grad():
            # C = op(A) op(B), whose columns lie in memory one after the other, is C' = op(B)' op(A)' by rows
            a, b = bench.random((m, k) if a_t else (k, m)), bench.random((k, n) if b_t else (n, k))
            x, y = b.T if b_t else b, a.T if a_t else a
            work: Work = {
                "FP16": partial(ops.matmul, mp.Tensor(x), mp.Tensor(y)),
                "FP32": partial(ops.matmul, mp.Tensor(x.astype("float32")), mp.Tensor(y.astype("float32"))),
            }
            if peers.torch:
                work |= peers.matmul(x, y)
            entry |= rates(bench.times(work, bench.share(len(cases) - i)), 2 * m * n * k)
    bench.report.summary(group, to_peer=">= 0.95", to_fp32=">= 3.85")


def conv(bench: Bench) -> None:
    """DeepBench's convolutions: x and dy lie in memory as the ops of either library leave them in a network."""
    parts, cases = ("forward", "input gradient", "weight gradient"), deepbench("conv")
    if bench.tiny:
        same = {"n": 2, "k": 8, "filter_w": 3, "filter_h": 3, "pad_w": 1, "pad_h": 1}
        cases = [{"w": 7, "h": 6, "c": c, "wstride": s, "hstride": s} | same for c, s in ((1, 2), (8, 1))]
    for i, c in enumerate(cases):
        kernel, stride = (c["filter_h"], c["filter_w"]), (c["hstride"], c["wstride"])
        padding = c["pad_h"], c["pad_w"]
        name = (
            f"{c['w']}x{c['h']}x{c['c']} n{c['n']} k{c['k']} {kernel[1]}x{kernel[0]} "
            f"pad {padding[1]}x{padding[0]} stride {stride[0]}"
        )
        for j, part in enumerate(parts):
            with bench.report.case(f"DeepBench conv {part}", name) as entry:
                x = batch_first(bench.random((c["c"], c["h"], c["w"], c["n"])))
                w = bench.random((c["k"], c["c"], *kernel))
                work: Work = {
                    "FP16": conv_part(bench, part, x, w, stride, padding),
                    "FP32": conv_part(bench, part, x.astype("float32"), w.astype("float32"), stride, padding),
                }
                if peers.torch:
                    work |= peers.conv(part, x, w, stride, padding)
                times = bench.times(work, bench.share(len(parts) * (len(cases) - i) - j))
                y = ops.conv2d(mp.Tensor(x), mp.Tensor(w), stride=stride, padding=padding)
                entry |= rates(times, 2 * y.numel() * math.prod(w.shape[1:]))
    for part in parts:
        bench.report.summary(f"DeepBench conv {part}", to_peer=">= 0.6", to_fp32=">= 2.6")


def conv_part(bench: Bench, part: str, x: Any, w: Any, stride: tuple, padding: tuple) -> Callable[[], Any]:
    """A convolution, or one of its two gradients alone."""
    a = mp.Tensor(x, requires_grad=part == "input gradient")
    b = mp.Tensor(w, requires_grad=part == "weight gradient")
    forward = partial(ops.conv2d, a, b, stride=stride, padding=padding)
    return forward if part == "forward" else bench.gradient(forward)


def recurrent(bench: Bench) -> None:
    """DeepBench's LSTMs and GRUs, forward and backward: ours as a captured graph, PyTorch's (cuDNN) as it is used.

    The host's time counts: launching the kernels of a thousand steps is a part of the work that a graph does away with.
    """
    cases, groups = deepbench("recurrent"), dict[str, str]()
    if bench.tiny:
        cases = [{"cell": cell, "hidden": 6, "batch": 2, "steps": 3} for cell in ("lstm", "gru")]
    for i, (cell, hidden, batch, steps) in enumerate(case.values() for case in cases):
        kind, gates = cell.upper(), 4 if cell == "lstm" else 3
        group = groups[kind] = f"DeepBench {kind} forward + backward, captured"
        with bench.report.case(group, f"{hidden} units, batch {batch}, {steps} steps") as entry:
            x, dy = (bench.random((steps, batch, hidden)) for _ in range(2))
            work: Work = {"FP16": recurrent_step(kind, hidden, x, dy)}
            if peers.torch:
                work |= peers.recurrent(kind, hidden, x, dy)
            times = bench.times(work, bench.share(len(cases) - i), host=True)
            # two products per gate, with x and with h; in backward twice as much: the gradients of either operand
            entry |= rates(times, 3 * 2 * gates * 2 * hidden * hidden * batch * steps)
            entry["us"] = {name: 1e6 * statistics.median(t) / steps for name, t in times.items()}
            del x, dy, work  # before the next case: the longest takes some GiB
    for group in groups.values():
        bench.report.summary(group, to_peer=">= 0.6")
        with bench.report.row(f"{group}, a time step"):
            each = [c["us"] for c in bench.report.cases[group] if "us" in c]
            us = {name: statistics.geometric_mean([times[name] for times in each]) for name in each[0]}
            bench.report.add(f"{group}, a time step", us["FP16"], "us", peer=us.get("PyTorch"))


def recurrent_step(kind: str, hidden: int, x: Any, dy: Any) -> Callable[[], Any]:
    """Forward and backward of a layer in mixed precision, captured: gradients of x and of all weights."""
    model = mp.MIXED.cast(getattr(nn, kind)(hidden, hidden)).to("gpu")
    leaves = [mp.Tensor(x, requires_grad=True), *model.parameters()]

    def run() -> None:
        for leaf in leaves:
            leaf.grad = None
        model(leaves[0])[0].backward(dy)

    step = mp.capture(run, warmup=1)
    for _ in range(2):  # once as usual, then recorded
        step()
    return step


Network = Callable[[Any], Any]


class Workload(NamedTuple):
    """A network, and the shape of its batch: images (FP16), of `classes` kinds, or words below `vocabulary`."""

    network: Network
    shape: tuple[int, ...]
    classes: int = 10
    vocabulary: int = 0


def training(bench: Bench) -> None:
    """Training steps: ours as a captured graph, PyTorch's AMP as it is commonly run and as a CUDA graph."""
    workloads = {
        "MNIST CNN, batch 64": Workload(models.cnn, (64, 1, 28, 28)),
        "ResNet-20, batch 128": Workload(models.resnet, (128, 3, 32, 32)),
        "ResNet-50, batch 128": Workload(models.resnet50, (128, 3, 224, 224), classes=1000),
        "LSTM 2 x 1024, 64 words, batch 64": Workload(
            partial(models.language_model, vocabulary=10000, embedding=1024, hidden=1024), (64, 64), vocabulary=10000
        ),
    }
    faces, width = (128, 1, 64, 64), 64
    if bench.tiny:
        workloads = {
            "MNIST CNN, tiny": Workload(partial(models.cnn, size=4, width=2), (2, 1, 4, 4)),
            "LSTM, tiny": Workload(
                partial(models.language_model, vocabulary=8, embedding=2, hidden=3, layers=1), (2, 2), vocabulary=8
            ),
        }
        faces, width = (2, 1, 8, 8), 2
    for i, (name, workload) in enumerate(workloads.items()):
        with bench.report.row(f"{name}, training step"):
            train_one(bench, name, workload, bench.share(len(workloads) + 1 - i))
    name = f"DCGAN {faces[2]} x {faces[3]}, batch {faces[0]}"
    with bench.report.row(f"{name}, training step"):
        train_gan(bench, name, faces, width)


def train_one(bench: Bench, name: str, workload: Workload, seconds: float) -> None:
    """The rows of one network."""
    batch, network = training_data(bench, workload), workload.network
    work: Work = {
        "captured": partial(mp.capture(models.momentum_step(made(network, mp.MIXED), mp.MIXED)), *batch),
        "eager": partial(models.momentum_step(made(network, mp.MIXED), mp.MIXED), *batch),
    }
    others: Work = {}
    if peers.torch and (bench.on_gpu or not workload.vocabulary):  # PyTorch has no FP16 LSTM on a CPU
        others = peers.training(network, *(x.array for x in batch))
    compare(bench, name, work, others, seconds)


def train_gan(bench: Bench, name: str, shape: tuple[int, ...], width: int) -> None:
    """The rows of the DCGAN example: both networks, two optimizers, one loss scaler."""
    from . import steps  # and with it the example, which imports more than the other sections

    faces = bench.random(shape)
    work: Work = {
        "captured": mp.capture(steps.gan(mp.MIXED, faces, width)),
        "eager": steps.gan(mp.MIXED, faces, width),
    }
    others: Work = {}
    if peers.torch and bench.on_gpu:
        others = {"PyTorch": steps.torch_gan(peers.shared(faces).float(), width, autocast="float16")}
    compare(bench, name, work, others, bench.share(1))


def compare(bench: Bench, name: str, work: Work, others: Work, seconds: float) -> None:
    """The rows of one kind of training step; others: PyTorch's, as a CUDA graph where the name says so."""
    for _ in range(5):  # three as usual, one recorded, one replayed
        losses = [float(step()) for step in work.values()]
    apart = abs(losses[0] / losses[1] - 1)
    times = bench.times(work | others, seconds, host=True)
    ms = {k: 1000 * statistics.median(t) for k, t in times.items()}
    graphs = [k for k in others if "graph" in k]
    for own, rivals in (("captured", graphs), ("eager", [k for k in others if k not in graphs])):
        beside = min((ms[k] for k in rivals), default=None)
        bench.report.add(f"{name}, training step, mixed, {own}", ms[own], "ms", peer=beside)
    for what, rivals, target in (("eager", set(others) - set(graphs), ">= 1.5"), ("as a CUDA graph", graphs, ">= 1")):
        if best := min(rivals, key=ms.__getitem__, default=None):
            bench.report.add(f"{name}, PyTorch AMP {what} / captured", ratio(times, best, "captured"), "x", target)
    bench.report.add(f"{name}, loss of step 5, |captured / eager - 1|", apart, "", "<= 0.01")


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


ARCHITECTURES = {100: "blackwell", 90: "hopper", 89: "ada", 80: "ampere", 75: "turing", 70: "volta"}  # from this sm on


def sums(bench: Bench) -> None:
    """Have products the bits of `mp.tensor_core`? And how are FP32 operands made TF32?"""
    capability = int(bench.xp.cuda.Device().compute_capability)
    architecture = ARCHITECTURES[max(sm for sm in ARCHITECTURES if sm <= capability)]
    roundings: dict[str, Callable[[Any], Any]] = {
        "cut off": lambda u: u,
        "to nearest, ties away from 0": lambda u: u + 0x1000,
        "to nearest, ties to even": lambda u: u + 0x0FFF + (u >> 13 & 1),
    }
    for kind, policy in (("fp16", mp.MIXED), ("tf32", mp.TF32)):
        unit = UNITS[architecture].get((kind, "fp32"))
        if unit is None:
            continue
        with bench.report.row(f"{kind.upper()} sums"):  # of one step: the order of several is the kernel's
            shapes = (64, unit.products), (unit.products, 64)
            a, b = (np.random.default_rng(i).standard_normal(s).astype(policy.storage) for i, s in enumerate(shapes))
            with mp.use(policy):
                found = bench.xp.asnumpy(gemm_primitive(bench.xp.asarray(a), bench.xp.asarray(b), wide=True))
            for how, rounded in roundings.items() if kind == "tf32" else [("as stored", None)]:
                x, y = (v if rounded is None else rounded(v.view(np.uint32)).view(np.float32) for v in (a, b))
                other = (found != mp.tensor_core(x, y, None, architecture, kind)).mean()
                bench.report.add(f"{kind.upper()} operands {how}: sums unlike {architecture}'s", float(other), "")


SECTIONS: dict[str, tuple[Callable[[Bench], None], int]] = {  # and the seconds that each may take
    "gemm": (gemm, 70),
    "conv": (conv, 150),
    "recurrent": (recurrent, 40),
    "training": (training, 80),
    "memory": (memory, 20),
    "sums": (sums, 20),
}


# ---------------------------------------------------------------------------------------------------------------- main


def environment() -> dict[str, Any]:
    """GPU and versions."""
    found: dict[str, Any] = dict(mp.info())
    if smi := shutil.which("nvidia-smi"):
        query = [smi, "--query-gpu=driver_version", "--format=csv,noheader"]
        found["NVIDIA driver"] = subprocess.run(query, capture_output=True, text=True).stdout.partition("\n")[0]
    found["PyTorch"] = "not installed: no comparison with it"
    if torch := peers.torch:
        cudnn = torch.backends.cudnn.version() if torch.backends.cudnn.is_available() else None
        found["PyTorch"] = f"{torch.__version__}, CUDA {torch.version.cuda}, cuDNN {cudnn}"
    return found


def measured(
    names: Sequence[str], on: str, tiny: bool, out: pathlib.Path | None, seconds: float | None = None
) -> Report:
    """Run sections on a device; their rows, cases and environment are in the JSON `out` after each row.

    seconds: how long each may take, instead of its own number.
    """
    start = time.monotonic()

    def save(report: Report) -> None:
        if out:
            spent = round(time.monotonic() - start)
            write(out, {"rows": report.rows, "cases": report.cases, "environment": found, "seconds": spent})

    report = Report(save)
    with device(on):
        found = environment()
        print(*(f"{k}: {v}" for k, v in found.items()), sep="\n")
        for name in names:
            measure, usual = SECTIONS[name]
            report.head(name)
            with report.row(name):
                measure(Bench(report, tiny, on == "gpu", usual if seconds is None else seconds))
    return report


def main(arguments: list[str] | None = None) -> int:
    """Run the sections, print the tables, write the JSON. Returns the exit code."""
    p = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__.split("\n\n")[0])
    p.add_argument("--device", choices=("gpu", "cuda-on-cpu"), default="gpu", help="cuda-on-cpu: the tests' stand-in")
    p.add_argument("--tiny", action="store_true", help="tiny sizes: shows that everything runs, not how fast")
    p.add_argument("--only", choices=SECTIONS, action="append", help="a section to run (can be repeated)")
    p.add_argument("--out", type=pathlib.Path, help="the JSON (default: benchmarks/results/gpu.json, of a full run)")
    options = p.parse_args(arguments)
    if options.device == "cuda-on-cpu" and not options.tiny:
        p.error("--device cuda-on-cpu runs every thread of every kernel on the CPU: add --tiny")
    if options.device == "gpu" and (why := mp.backend.gpu.problem()):
        p.error(why)
    full_run = options.only is None and not options.tiny
    out = options.out or (HERE / "results" / "gpu.json" if full_run else None)
    report = measured(options.only or list(SECTIONS), options.device, options.tiny, out)
    print(f"\nwrote {out}" if out else "")
    return int(report.failed)


if __name__ == "__main__":
    sys.exit(main())
