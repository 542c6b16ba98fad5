"""What benchmarks/gpu.py measures with: blocks of calls between CUDA events, and a report that outlives errors."""

from __future__ import annotations

import contextlib
import math
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

import tinymp as mp
from tinymp.fast.cuda.kernels import Kernels

KERNELS = Kernels(__file__)
Work = dict[str, Callable[[], Any]]
Times = dict[str, list[float]]


class Report:
    """The table, and the cases behind its geometric means. What fails becomes a row, too. save: called after each."""

    def __init__(self, save: Callable[[Report], None] = lambda _: None) -> None:
        self.rows: list[dict[str, Any]] = []
        self.cases: dict[str, list[dict[str, Any]]] = {}
        self._save = save

    failed = property(
        lambda self: any(row["error"] for row in self.rows), doc="Whether something could not be measured."
    )

    def head(self, section: str) -> None:
        """The heading of a section's table."""
        print(f"\n{section:<70} {'measured':>9} {'':<8} {'PyTorch':>9}  target", flush=True)

    def add(
        self, work: str, value: float, unit: str, target: str = "", peer: float | None = None, error: str | None = None
    ) -> None:
        """One row; target like ">= 0.95" or empty; peer is PyTorch's value in the same unit."""
        reached = None
        if target:
            sign, number = target.split()
            reached = value <= float(number) if sign == "<=" else value >= float(number)
        value_or_null = None if math.isnan(value) else value  # JSON has no nan
        row = {"work": work, "value": value_or_null, "unit": unit, "peer": peer, "target": target, "reached": reached}
        self.rows.append(row | {"error": error})
        beside = "" if peer is None else f"{peer:.4g}"
        mark = {None: "", True: "reached", False: "NOT reached"}[reached]
        print(f"{work:<70} {value:>9.4g} {unit:<8} {beside:>9}  {target:<8} {mark}", flush=True)
        if error:
            print(f"    FAILED: {error}", flush=True)
        self._save(self)

    @contextlib.contextmanager
    def row(self, work: str) -> Iterator[None]:
        """An error within the block becomes a row of its own."""
        try:
            yield
        except Exception as error:  # whatever it is: the other rows shall still be measured
            self.add(work, math.nan, "", error=_in_one_line(error))

    @contextlib.contextmanager
    def case(self, group: str, name: str) -> Iterator[dict[str, Any]]:
        """One case of a group, as a dict to be filled; an error within the block is noted in it."""
        entry: dict[str, Any] = {"case": name}
        self.cases.setdefault(group, []).append(entry)
        try:
            yield entry
        except Exception as error:  # the other cases shall still be measured
            entry["error"] = _in_one_line(error)
        self._save(self)

    def summary(self, group: str, to_peer: str, to_fp32: str = "") -> None:
        """The rows of a group of `rates`: geometric means, and the ratios with these targets."""
        cases = self.cases[group]
        done = [c for c in cases if "error" not in c]
        errors = [f"{c['case']}: {c['error']}" for c in cases if "error" in c]
        failed = f"{len(errors)} of {len(cases)} cases, the first: {errors[0]}" if errors else None
        if not done:
            self.add(f"{group}, FP16", math.nan, "TFLOP/s", error=failed)
            return

        def mean(key: str) -> float:
            return math.exp(statistics.fmean(math.log(c[key]) for c in done))

        compared = "PyTorch" in done[0]
        self.add(f"{group}, FP16", mean("FP16"), "TFLOP/s", peer=mean("PyTorch") if compared else None, error=failed)
        if "FP32" in done[0]:
            self.add(f"{group}, FP32", mean("FP32"), "TFLOP/s")
        if compared:
            self.add(f"{group}, FP16 / PyTorch", mean("to PyTorch"), "x", to_peer)
            slow = sorted(done, key=lambda c: c["to PyTorch"])[:3]
            print("    least: " + "; ".join(f"{c['case']} {c['to PyTorch']:.2f} x" for c in slow), flush=True)
        if "FP32" in done[0]:
            self.add(f"{group}, FP16 / own FP32", mean("to FP32"), "x", to_fp32)


def _in_one_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:500]


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
        return lambda: node._compute(type(node).backward, [dy], {})

    def times(self, work: Work, seconds: float, host: bool = False) -> Times:
        """Seconds per call of each work, one entry per round over all of them in turn.

        seconds: how long this may take, about; there are always two rounds. host: whether the host's time counts.
        """
        plans, total = {}, 0.0
        for name, f in work.items():
            for _ in range(1 if self.tiny else 2):  # compiles, chooses algorithms, allocates
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

    def _block(self, f: Callable[[], Any], calls: int, wait: float) -> float:
        """Seconds per call of f; the GPU is kept busy for `wait` seconds in which the host asks for all of them."""
        cuda = self.xp.cuda
        start, end = cuda.Event(), cuda.Event()
        if wait:
            nanoseconds = min(round(wait * 1e9), 50_000_000)
            KERNELS.launch("spin", np.dtype("float32"), 1, 32, self._scratch, nanoseconds // 2)
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
    """A case of `Report.summary`: TFLOP/s of "FP16", of "FP32" where there is one, and of the best of the peers (all
    others), and the ratios.
    """
    rate = {name: flop / statistics.median(t) / 1e12 for name, t in times.items()}
    entry: dict[str, Any] = {"FP16": rate["FP16"]}
    if "FP32" in rate:
        entry |= {"FP32": rate["FP32"], "to FP32": ratio(times, "FP32", "FP16")}
    if peers := times.keys() - {"FP16", "FP32"}:
        best = max(peers, key=rate.__getitem__)
        entry |= {"PyTorch": rate[best], "PyTorch's choice": best, "to PyTorch": ratio(times, best, "FP16")}
    return entry
