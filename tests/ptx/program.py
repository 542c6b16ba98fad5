"""The stand-in's kernels as PTX: `Program` takes the place of cuda_on_cpu's, which runs the source in C++."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from typing import Any

import numpy as np
import pytest

import cuda_on_cpu
from cuda_on_cpu import compile, device, stand_in
from cuda_on_cpu.compile import KernelError, Launching, addresses, declared_in
from cuda_on_cpu.memory import Fenced, bytes_at
from gpu import both_ways
from tinymp.gpu import kernels

from . import nvrtc
from .machine import Machine, PTXError, Region, Registers
from .parse import Module, parse
from .translate import BasicBlock, Translated

MOST_SHARED = {"70": 96 << 10, "80": 163 << 10, "90": 227 << 10}  # bytes that a block may ask for
LANES = 8192  # threads that run at once, in as many blocks as that makes


@cache
def module(code: str, storage: str, target: str) -> Module:
    """The parsed PTX of a source file, compiled for sm_90, say, or compute_90."""
    return parse(nvrtc.compiled(code, storage, target).ptx)


measured: dict[str, Counter] = {}  # "kernel storage" -> what it has done since somebody cleared this
_programs: dict[tuple, dict[str, Program]] = {}


@contextmanager
def installed(
    architecture: str, measure: bool = False, faults: tuple[tuple[str, str], ...] = ()
) -> Iterator[dict[str, Program]]:
    """The stand-in for a GPU, whose kernels run as PTX for "70", "80" or "90". The value: the programs that ran.

    measure: count what they do.  faults: (old, new), what is to be replaced in their source.
    """
    real, shim = (path.read_text("utf-8") for path in (kernels.HEADERS[0], cuda_on_cpu.HARDWARE))
    programs = _programs.setdefault((architecture, measure, faults), {})

    def compiled(self: stand_in.RawModule, log_stream: None = None) -> Program:
        code = self.code.replace(shim, real)
        for old, new in faults:
            code = code.replace(old, new)
        key = f"{self.options} {code}"
        if key not in programs:
            defines = dict(option[2:].split("=") for option in self.options if option.startswith("-D"))
            own = nvrtc.stand_in(code, defines["STORAGE"], architecture)  # what others compile, too
            programs[key] = Program(code, defines, f"compute_{architecture}" if faults else own, measure)
        return programs[key]

    with cuda_on_cpu.installed(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(stand_in.RawModule, "compile", compiled)
        patch.setattr(both_ways, "check_heard", lambda *run: None)  # by kernels with other results, which need no PTX
        patch.setattr(device.Device, "compute_capability", architecture)
        patch.setattr(device, "MAX_SHARED", MOST_SHARED[architecture])
        patch.setattr(compile, "MOST_SHARED", MOST_SHARED[architecture])
        yield programs


class Program:
    """A translation unit of CUDA C, as NVRTC compiles it for a target, run by the interpreter."""

    def __init__(self, code: str, defines: Mapping[str, str], target: str, measure: bool) -> None:
        self.arguments = kernels.signatures(code, defines["STORAGE"])
        self.parameters = {name: found for name, (found, _) in declared_in(code, self.arguments).items()}
        self.module = module(code, defines["STORAGE"], target)
        self.storage = defines["STORAGE"]
        self.translated: dict[str, Translated] = {}
        self.bounds = nvrtc.largest_blocks(code, self.arguments)
        self.measure = measure

    def launch(self, name: str, grid: Any, block: Any, args: Any, shared_bytes: int = 0, resolve: Any = None) -> None:
        """See cuda_on_cpu.Program.launch. A kernel runs once: the interpreter itself looks for races."""
        Launching(self, name, grid, block, args, shared_bytes, resolve).run_once()

    def most_threads(self, name: str) -> int:
        """The threads that a block of the kernel may have."""
        return self.bounds[name]

    def execute(self, launching: Launching, seed: int, lows: list[int], fenced: list[Fenced], shared: Fenced) -> None:
        """Run a launch on arrays that have been moved between fences."""
        name = launching.name
        if name not in self.translated:
            self.translated[name] = Translated(self.module, self.module.kernels[name])
        translated = self.translated[name]
        values = [
            np.array([lows[v]], np.uint64) if isinstance(v, int) else np.array(v).reshape(1) for v in launching.values
        ]
        for link in launching.by_value:
            addresses(values[link.table]).flat[link.entry] = lows[link.target] + link.offset
        regions = [Region(f.address, f.address + f.size, bytes_at) for f in fenced if f.size]
        blocks = launching.grid[0] * launching.grid[1] * launching.grid[2]
        threads = launching.block[0] * launching.block[1] * launching.block[2]
        at_once = max(LANES // threads, 1)
        for first in range(0, blocks, at_once):
            machine = Machine(
                launching.grid, launching.block, first, min(at_once, blocks - first), regions,
                translated.static_shared + launching.shared, translated.guards, translated.local_size, self.measure,
            )  # fmt: skip
            machine.parameters = values
            machine.constants = {v.name: v.content for v in self.module.constants}
            with np.errstate(all="ignore"):
                try:
                    counts = run(translated, machine)
                except PTXError as error:
                    raise KernelError(f"kernel {name}: {error}") from None
            done = measured.setdefault(f"{name} {self.storage}", Counter())
            done.update(machine.counts + counts)
        done["launches"] += 1
        done["elements"] += max((1, *(x.size for x in launching.arrays)))
        done["shared bytes"] = max(done["shared bytes"], translated.static_shared + launching.shared)
        done["threads"] = max(done["threads"], threads)


def run(translated: Translated, machine: Machine) -> Counter:
    """Until all threads have ended. Returns how many instructions warps have run, if the machine measures."""
    n, blocks = machine.n, translated.blocks
    registers, alive = Registers(), n
    ready: dict[int, tuple[np.ndarray, int]] = {0: (np.ones(n, bool), n)}  # block -> (its threads, how many)
    waiting: dict[int, tuple[np.ndarray, int]] = {}  # at a barrier, behind which is the block
    counts: Counter = Counter()

    def go(to: int, threads: np.ndarray, many: int, into: dict = ready) -> None:
        if to in into:
            other, others = into[to]
            threads, many = threads | other, many + others
        into[to] = threads, many

    while ready or waiting:
        if not ready:  # all that are left wait
            _check_barriers(machine, waiting)
            ready.update(waiting)
            waiting.clear()
            machine.epoch += 1
        number = min(ready)
        threads, many = ready.pop(number)
        block: BasicBlock = blocks[number]
        active = None if many == n else threads
        predicate = translated.run(block)(registers, machine, None if many == alive else threads, active)
        if machine.measure:
            counts["instructions"] += machine.many_warps(None if many == n else threads) * block.size
        if block.conditional:
            predicate = predicate ^ block.negated
            taken = predicate & threads if predicate.size > 1 else threads if predicate[0] else None
            taken_many = many if taken is threads else 0 if taken is None else int(np.count_nonzero(taken))
            if taken_many:
                go(block.target, taken, taken_many) if block.end == "bra" else machine.fail(f"@p {block.end}")
            if taken_many < many:
                go(block.next, threads if not taken_many else threads & ~taken, many - taken_many)
        elif block.end == "bra":
            go(block.target, threads, many)
        elif block.end == "ret":
            alive -= many
        elif block.end == "bar":
            go(block.next, threads, many, waiting)
        elif block.end == "trap":
            machine.fail("trap")
        elif block.next < len(blocks):
            go(block.next, threads, many)
        else:
            machine.fail("runs past its end")
    return counts


def _check_barriers(machine: Machine, waiting: dict) -> None:
    """An error if threads of one block of the launch wait at different barriers."""
    at = np.zeros(machine.n, np.int64)
    for to, (threads, _) in waiting.items():
        at[threads] = to
    by_block = at.reshape(-1, machine.threads)
    same = (by_block == by_block[:, :1]).all(1)
    if not same.all():
        machine.fail("bar.sync: threads of a block wait at different barriers, or some have ended")
