"""What benchmarks/gpu.py measures with: blocks of calls between CUDA events."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import tinymp as mp

from .report import Report

Work = dict[str, Callable[[], Any]]
Times = dict[str, list[float]]


class Bench:
    """What the sections share: the device, arrays of random numbers, the report, the time that is left.

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
    """How many times as long a takes as b."""
    return statistics.median(x / y for x, y in zip(times[a], times[b]))
