"""What benchmarks/gpu.py measures with: blocks of calls between CUDA events, and their rates."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import numpy as np

import tinymp as mp
from tinymp.gpu.kernels import Kernels

from .report import Report

KERNELS = Kernels(__file__)
Work = dict[str, Callable[[], Any]]
Times = dict[str, list[float]]


class Bench:
    """What the sections share: the device, its clock, arrays of random numbers, the report, the time that is left.

    report   where the rows go
    tiny     whether sizes are tiny and everything is timed as briefly as can be
    on_gpu   whether there is a real one
    seconds  how long the section may take
    """

    def __init__(self, report: Report, tiny: bool, on_gpu: bool, seconds: float) -> None:
        self.report, self.tiny, self.on_gpu = report, tiny, on_gpu
        self.end = time.monotonic() + (0 if tiny else seconds)
        self.xp = mp.backend.gpu.xp
        self._scratch = self.xp.zeros(1, "uint32")
        values = np.random.default_rng(0).standard_normal(1 << (10 if tiny else 20))
        self._values = {d: self.xp.asarray(values.astype(d)) for d in ("float16", "float32")}

    def share(self, parts: int) -> float:
        """The seconds for the next measurement, where `parts` are still to come."""
        return max(self.end - time.monotonic(), 0) / parts

    def random(self, shape: Sequence[int], dtype: Any = "float16") -> Any:
        """Normal random numbers as an array on the device (a million of them, over and over)."""
        values = self._values[np.dtype(dtype).name]
        out = self.xp.empty(math.prod(shape), dtype)
        for i in range(0, out.size, values.size):
            part = out[i : i + values.size]
            part[...] = values[: part.size]
        return out.reshape(shape)

    def like(self, y: mp.Tensor) -> Any:
        """Random numbers in the dtype, shape and memory order of y."""
        out = self.xp.empty_like(y.array)
        out[...] = self.random(y.shape, y.dtype)
        return out

    def gradient(self, op: Callable[[], mp.Tensor]) -> Callable[[], Any]:
        """The backward of one op as something to be called again and again: `Tensor.backward` frees what it passes."""
        y = op()
        node, dy = y.grad_fn, self.like(y)
        assert node is not None, "an input must require a gradient"
        return lambda: node.run("backward", [dy], {})

    def times(self, work: Work, seconds: float, host: bool = False) -> Times:
        """Seconds per call of each work, one entry per round over all of them in turn.

        seconds: how long this may take, about; there are always two rounds. host: whether the host's time counts.
        """
        plans, total = {}, 0.0
        for name, f in work.items():
            for _ in range(0 if self.tiny else 2):  # compiles, chooses algorithms, allocates
                f()
            mp.synchronize()
            start = time.perf_counter()
            f()
            queued = time.perf_counter() - start
            mp.synchronize()
            took = time.perf_counter() - start
            calls = 1 if self.tiny else max(2, min(50 if host else 20, int(5e-3 / took)))
            wait = 0.0 if host else 1e-6 if self.tiny else 1.5 * queued * (calls + 1) + 2e-5
            plans[name] = calls, wait
            total += (calls + 1) * took + wait
        times: Times = {name: [] for name in work}
        for _ in range(1 if self.tiny else max(2, min(9, int(seconds / total)))):
            for name, f in work.items():
                times[name].append(self._block(f, *plans[name]))
        return times

    def _spin(self, rounds: int) -> None:
        KERNELS.launch("spin", np.dtype("float32"), 1, 32, self._scratch, rounds)

    @cached_property
    def _round(self) -> float:
        """The seconds that a round of the kernel `spin` takes, measured."""
        rounds, (start, end) = 64 if self.tiny else 1 << 20, (self.xp.cuda.Event() for _ in range(2))
        self._spin(1)
        start.record()
        self._spin(rounds)
        end.record()
        end.synchronize()
        return max(self.xp.cuda.get_elapsed_time(start, end) / 1000 / rounds, 1e-10)

    def _block(self, f: Callable[[], Any], calls: int, wait: float) -> float:
        """Seconds per call of f; the GPU is kept busy for `wait` seconds in which the host asks for all of them."""
        cuda = self.xp.cuda
        start, end = cuda.Event(), cuda.Event()
        if wait:
            self._spin(round(min(wait, 0.05) / self._round))
        if not self.tiny:
            f()  # the first call after another library's is its warm-up
        start.record()
        for _ in range(calls):
            f()
        end.record()
        end.synchronize()
        return cuda.get_elapsed_time(start, end) / 1000 / calls


def ratio(times: Times, a: str, b: str) -> float:
    """How many times as long a takes as b."""
    return statistics.median(x / y for x, y in zip(times[a], times[b]))


def rates(times: Times, flop: float) -> dict[str, Any]:
    """A case of `Report.summary`: TFLOP/s of "FP16", of "FP32" and "definition" where there are such, and of the best
    of the peers (all others), and the ratios.
    """
    rate = {name: flop / statistics.median(t) / 1e12 for name, t in times.items()}
    entry: dict[str, Any] = {"FP16": rate["FP16"]}
    for other in rate.keys() & {"FP32", "definition"}:
        entry |= {other: rate[other], f"to {other}": ratio(times, other, "FP16")}
    if peers := times.keys() - {"FP16", "FP32", "definition"}:
        best = max(peers, key=rate.__getitem__)
        entry |= {"PyTorch": rate[best], "PyTorch's choice": best, "to PyTorch": ratio(times, best, "FP16")}
    return entry
