"""The machine that a benchmark runs on, the stand-in for a GPU, and whether anything else ran there meanwhile."""

from __future__ import annotations

import contextlib
import os
import platform
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import tinymp as mp
from tinymp.audit.trace import commit
from tinymp.checkpoint.writing import write_json

FOREIGN = 0.05  # the share of all cores that others may take before a run is not to be trusted
SHORTEST = 1.0  # seconds: the kernel counts work in hundredths, which say nothing about less


@contextlib.contextmanager
def device(name: str) -> Iterator[None]:
    """Within the block, "gpu" is the GPU or its stand-in from the tests, and new tensors lie there."""
    with contextlib.ExitStack() as stack:
        if name == "cuda-on-cpu":
            tests = str(Path(__file__).parents[1] / "tests")
            if tests not in sys.path:
                sys.path.append(tests)
            import cuda_on_cpu  # type: ignore[import-not-found]

            stack.enter_context(cuda_on_cpu.installed())
        stack.enter_context(mp.device("gpu"))
        yield


def write(path: Path, content: Any) -> None:
    """JSON, in folders that are made where they are missing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, content)


class Machine:
    """The machine of a measurement, for its JSON. Make it before the first measurement; ask `state` after the last.

    The load of others is the cores' busy time (Linux: /proc/stat, including time taken by a hypervisor) less that of
    this process and its finished children.
    """

    def __init__(self) -> None:
        self._start = self._seconds()

    def state(self) -> dict[str, Any]:
        """CPU, cores, kernels and versions, and "foreign_load", the share of the cores that others took.

        It is None where nothing tells, and within the first second.
        """
        start, now = self._start, self._seconds()
        foreign = None
        if start is not None and now is not None:
            wall, busy, own = (b - a for a, b in zip(start, now))
            if wall >= SHORTEST:
                foreign = round(min(max(busy - own, 0.0) / (wall * (os.cpu_count() or 1)), 1.0), 3)
        try:
            import torch

            peer = f"{torch.__version__}, {torch.get_num_threads()} threads"
        except ImportError:
            peer = None
        return {
            **mp.info(),
            "CPU": _cpu(),
            "commit": commit(str(Path(__file__).parent)),
            "PyTorch": peer,
            "foreign_load": foreign,
        }

    def verdict(self) -> str:
        """One line: whether the figures are to be trusted."""
        foreign = self.state()["foreign_load"]
        if foreign is None:
            return "Whether the machine was quiet is unknown: compare only ratios."
        if foreign > FOREIGN:
            return f"NOT TO BE TRUSTED: other programs took {foreign:.0%} of the cores; run it on a quiet machine."
        return f"The machine was quiet: other programs took {foreign:.1%} of the cores."

    @staticmethod
    def _seconds() -> tuple[float, float, float] | None:
        """Seconds so far: on the clock, of work of all cores, of that by this process and its children."""
        try:
            first = Path("/proc/stat").read_text(encoding="ascii").split("\n", 1)[0].split()
        except OSError:
            return None
        user, nice, system, _, _, irq, softirq, steal = map(int, first[1:9])
        busy = (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")
        times = os.times()
        return time.monotonic(), busy, times.user + times.system + times.children_user + times.children_system


def _cpu() -> str:
    """The model of the CPU, as Linux calls it; else the architecture."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.machine()
    facts = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    return f"{facts.get('model name', platform.machine())} (family {facts.get('cpu family', '?')})"
