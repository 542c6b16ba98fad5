"""Compiling CUDA kernels for the CPU, and launching them on NumPy arrays.

Every launch runs twice, from the same memory: first with threads and blocks in their order, then shuffled. Arrays are
copied between fences, one directly behind them at first, then one directly before. KernelError: the kernel used memory
that is not its own or a misaligned address, threads raced for shared memory, or waited for one another, or their order
made a difference. What a GPU may leave unnoticed is an error here.

What this cannot find: threads that race for global memory and agree on the result in both orders; what only the weak
order of a GPU's memory shows; the rounding of a GPU's expf and fused multiply-adds (here each operation rounds).
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import math
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple
from unittest import mock

import numpy as np

from kept import kept
from tinymp.gpu import kernels

from .memory import Fenced, Group, extent, groups

HERE = pathlib.Path(__file__).parent
HARDWARE = HERE / "hardware.cuh"
SECONDS = 60  # of CPU time for one run of a kernel
SHUFFLED = 0x9E3779B97F4A7C15  # seed of the second run

FLAGS = ("-std=c++17", "-fPIC", "-g1", "-w", "-ffp-contract=off", "-U_FORTIFY_SOURCE", f"-I{HERE}")
LINK_FLAGS = ("-shared", "-Wl,-Bsymbolic")  # a kernel named like a function of the C library is still the kernel
RUNTIME_FLAGS = ("-O2",)
KERNEL_FLAGS = (
    "-O1",
    "-fno-strict-aliasing",
    "-fsignaling-nans",  # x * -1 is a product, which flushes
    "-fno-toplevel-reorder",  # shared arrays lie in memory as written, between their guards
    "-fsanitize=thread,bounds,null,alignment,shift-exponent,signed-integer-overflow,integer-divide-by-zero",
    "-fno-sanitize-recover=all",
)


class KernelError(RuntimeError):
    """A kernel did what it must not do."""


class RaceError(KernelError):
    """The result of a kernel depends on the order in which its threads run."""


# ---------------------------------------------------------------------------------------------------------- compiling


def problem() -> str | None:
    """Why kernels cannot run on this CPU, or None."""
    if not sys.platform.startswith("linux"):
        return "the runtime needs Linux"
    return None if _compiler() else "no C++ compiler (g++, or what $CXX names)"


@functools.cache
def _compiler() -> tuple[str, ...]:
    for command in (os.environ.get("CXX"), "g++", "c++"):
        if command and shutil.which(shlex.split(command)[0]):
            return tuple(shlex.split(command))
    return ()


def _run(*command: str, given: str | None = None) -> str:
    done = subprocess.run(command, input=given, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{shlex.join(command)}:\n{done.stderr}")
    return done.stdout


@functools.cache
def _surroundings() -> str:
    """Inputs of compiled code besides its source and flags."""
    if why := problem():
        raise RuntimeError(f"CUDA kernels cannot run on this CPU: {why}")
    return _run(*_compiler(), "--version") + (HERE / "runtime.h").read_text(encoding="utf-8")


def _shared_object(name: str, code: str, flags: Sequence[str]) -> pathlib.Path:
    """The compiled code, kept from the last time if nothing has changed."""

    def make(path: pathlib.Path) -> None:
        source, compiled = path.with_suffix(".cpp"), path.with_suffix(".o")
        source.write_text(code, encoding="utf-8")
        _run(*_compiler(), *flags, "-c", str(source), "-o", str(compiled))
        _run(*_compiler(), *LINK_FLAGS, str(compiled), "-o", str(path))  # without the others: no sanitizer's library

    return kept(f"{name}.so", [_surroundings(), *flags, *LINK_FLAGS, code], make)


class _Index(ctypes.Structure):
    _fields_ = [(axis, ctypes.c_uint) for axis in "xyz"]

    def __str__(self) -> str:
        return f"({self.x}, {self.y}, {self.z})"


class _Region(ctypes.Structure):
    _fields_ = [(name, ctypes.c_void_p) for name in ("mapping", "mapping_end", "data", "data_end")]

    @classmethod
    def of(cls, f: Fenced) -> _Region:
        return cls(f.low, f.high, f.address, f.address + f.size)


class _Launch(ctypes.Structure):
    _fields_ = [
        ("kernel", ctypes.c_void_p),
        ("arguments", ctypes.POINTER(ctypes.c_void_p)),
        ("grid", _Index),
        ("block", _Index),
        ("module", ctypes.c_void_p),
        ("regions", ctypes.POINTER(_Region)),
        ("region_count", ctypes.c_int),
        ("dynamic", _Region),
        ("seed", ctypes.c_uint64),
        ("seconds", ctypes.c_int),
    ]


class _Report(ctypes.Structure):
    _fields_ = [
        ("message", ctypes.c_char * 2000),
        ("block", _Index),
        ("thread", _Index),
        ("in_thread", ctypes.c_int),
        ("file", ctypes.c_char_p),
        ("line", ctypes.c_int),
        ("program", ctypes.c_void_p),
        ("address", ctypes.c_void_p),
    ]


@functools.cache
def _runtime() -> Any:
    """runtime.cpp, loaded so that kernels find it. It keeps the GIL: one launch at a time."""
    path = _shared_object("runtime", (HERE / "runtime.cpp").read_text(encoding="utf-8"), FLAGS + RUNTIME_FLAGS)
    library = ctypes.PyDLL(str(path), mode=ctypes.RTLD_GLOBAL)
    library.cuda_on_cpu_run.restype = ctypes.POINTER(_Report)
    return library


FUNCTIONS = dict.fromkeys(("exp", "expm1", "log", "log2", "log10", "log1p", "sin", "cos", "tan", "sinh", "cosh"), 1)
FUNCTIONS |= {"tanh": 1, "arcsin": 1, "arccos": 1, "arctan": 1}
FUNCTIONS |= {"power": 2, "maximum": 2, "minimum": 2}


@functools.cache
def _functions() -> ctypes.CDLL:
    lines = [
        '#include "runtime.h"',
        "#define LOOP(T, E) Flush flush; for (long i = 0; i < n; i++) { T a = x[i], b = y[i]; z[i] = E; }",
    ]
    for (name, operands), (dtype, kind) in itertools.product(
        FUNCTIONS.items(), (("float32", "float"), ("float64", "double"))
    ):
        c = name.replace("arc", "a").replace("power", "pow").replace("imum", "") + ("f" if kind == "float" else "")
        call = f"{'f' if name.endswith('imum') else ''}{c}(a{', b' if operands == 2 else ''})"
        value = f"a != a || b != b ? NAN : {call}" if name.endswith("imum") else call
        parameters = f"const {kind}* x, const {kind}* y, {kind}* z, long n"
        lines.append(f'extern "C" void {name}_{dtype}({parameters}) {{ LOOP({kind}, {value}) }}')
    return ctypes.CDLL(str(_shared_object("functions", "\n".join(lines) + "\n", [*FLAGS, *RUNTIME_FLAGS])))


def function(name: str, dtype: np.dtype, *operands: np.ndarray) -> np.ndarray:
    """A ufunc on FP32 or FP64 by the function that kernels call: NumPy has its own, of other bits."""
    whole = [np.ascontiguousarray(x, dtype) for x in np.broadcast_arrays(*operands)]
    z = np.empty(np.shape(operands[0]) if len(operands) == 1 else np.broadcast_shapes(*map(np.shape, operands)), dtype)
    first, last, to = (ctypes.c_void_p(x.ctypes.data) for x in (whole[0], whole[-1], z))
    getattr(_functions(), f"{name}_{dtype}")(first, last, to, ctypes.c_long(z.size))
    return z


class Parameter(NamedTuple):
    """Properties that `kernels.Argument` lacks: the kernel may write there; it requires no overlap."""

    written: bool
    restrict: bool


def declared_in(code: str, names: Iterable[str]) -> dict[str, tuple[list[Parameter], str]]:
    """{kernel: (its parameters, how many threads a block may have, as the source says it)}."""
    plain = re.sub(r"//[^\n]*|/\*.*?\*/", "", code, flags=re.S)
    found = {}
    for name in names:
        bounds, declared = re.search(rf"__global__\s+void\s+([^;{{]*?)\b{name}\s*\(([^)]*)\)\s*\{{", plain).groups()
        parameters = [
            Parameter("*" in p and "const" not in p.split(), "__restrict__" in p) for p in declared.split(",")
        ]
        threads = re.search(r"__launch_bounds__\s*\(([^)]*)\)", bounds)
        found[name] = parameters, threads[1] if threads else "1024"
    return found


class Program:
    """A translation unit of CUDA C, compiled for the CPU.

    code: as `kernels.source` gives it. defines: macros; STORAGE is half or float.
    RuntimeError where there is no C++ compiler, or it finds errors.
    """

    def __init__(self, code: str, defines: Mapping[str, str]) -> None:
        _runtime()
        self.arguments = kernels.signatures(code, defines["STORAGE"], defines.get("RESULT"))
        declared = declared_in(code, self.arguments)
        self.parameters = {name: parameters for name, (parameters, _) in declared.items()}
        entries = [f"CUDA_ON_CPU_KERNEL({name}, {threads})\n" for name, (_, threads) in declared.items()]
        whole = f'{code}\n#line 1 "compile.py"\n{"".join(entries)}CUDA_ON_CPU_MODULE\n'
        flags = [*FLAGS, *KERNEL_FLAGS, *(f"-D{name}={value}" for name, value in defines.items())]
        self.path = _shared_object("kernels", whole, flags)
        self.library = ctypes.CDLL(str(self.path))

    @classmethod
    def of(cls, text: str, storage: str = "half") -> Program:
        """The kernels in `text`, behind hardware.cuh and common.cuh as in `kernels.source`."""
        parts = [(path.name, path.read_text(encoding="utf-8")) for path in (HARDWARE, kernels.HEADERS[1])]
        code = "\n".join(f'#line 1 "{name}"\n{part}' for name, part in [*parts, ("text.cu", text)])
        return cls(code, {"STORAGE": storage})

    def launch(
        self,
        name: str,
        grid: int | tuple[int, ...],
        block: int | tuple[int, ...],
        args: Sequence[Any],
        shared_bytes: int = 0,
        resolve: Callable[[int], np.ndarray | None] | None = None,
    ) -> None:
        """Run a kernel on NumPy arrays (behind pointers), NumPy scalars, and np.uint64(0) for a null pointer.

        resolve: where kernels take tables of addresses: the array in which one lies, or None, handled like an argument.
        """
        Launching(self, name, grid, block, args, shared_bytes, resolve).run_twice()

    def most_threads(self, name: str) -> int:
        """The threads that a block of the kernel may have."""
        return ctypes.c_uint.in_dll(self.library, f"cuda_on_cpu_most_threads_{name}").value

    def execute(self, launching: Launching, seed: int, lows: list[int], fenced: list[Fenced], shared: Fenced) -> None:
        """Run a launch on arrays that have been moved: number i begins at lows[i]."""
        boxes = [np.array(lows[v], np.uint64) if isinstance(v, int) else np.array(v) for v in launching.values]
        for link in launching.links:
            addresses(boxes[link.table]).flat[link.entry] = lows[link.target] + link.offset
        launch = _Launch(
            ctypes.cast(self.library[f"cuda_on_cpu_call_{launching.name}"], ctypes.c_void_p),
            (ctypes.c_void_p * len(boxes))(*(box.ctypes.data for box in boxes)),
            _Index(*launching.grid),
            _Index(*launching.block),
            ctypes.addressof(ctypes.c_char.in_dll(self.library, "cuda_on_cpu_module")),
            (_Region * len(fenced))(*(_Region.of(f) for f in fenced)),
            len(fenced),
            _Region.of(shared),
            seed,
            SECONDS,
        )
        report = _runtime().cuda_on_cpu_run(ctypes.byref(launch))
        if report:
            raise KernelError(launching.describe(report.contents, fenced, shared))

    def line(self, code: int) -> str:
        """The line of the source at an address in the compiled code, and the line that it was inlined in, ..."""
        try:
            found = _run("addr2line", "-i", "-e", str(self.path), hex(code - 1)).splitlines()
        except (OSError, RuntimeError):
            return "line unknown"
        return ", in ".join(pathlib.Path(place.split()[0]).name for place in found)


# ---------------------------------------------------------------------------------------------------------- launching


def _three(n: int | tuple[int, ...]) -> tuple[int, int, int]:
    x, y, z = (*(n if isinstance(n, tuple) else (n,)), 1, 1)[:3]
    return int(x), int(y), int(z)


def addresses(x: np.ndarray) -> np.ndarray:
    """The addresses in a structure that a kernel takes by value (`Rows` of many.cuh), (rows, columns)."""
    return x["row"]["at"][0]


class _Link(NamedTuple):
    """An entry of a table of addresses: value number `table` holds at `entry` that of array `target`, plus `offset`."""

    table: int
    entry: int
    target: int
    offset: int


@contextmanager
def once() -> Iterator[None]:
    """Within the block each kernel runs once, which finds no races: for those that run in two orders elsewhere."""
    with mock.patch.object(Launching, "run_twice", Launching.run_once):
        yield


class Launching:
    """One launch of a Program."""

    def __init__(self, program: Any, name: str, grid: Any, block: Any, args: Any, shared: int, resolve: Any):
        if name not in program.arguments:
            raise ValueError(f"no kernel {name!r}; there are {', '.join(program.arguments)}")
        self.program, self.name, self.shared = program, name, shared
        self.grid, self.block = _three(grid), _three(block)
        self.values: list[Any] = []  # for each argument a NumPy scalar, or the number of an array (int)
        self.arrays: list[np.ndarray] = []
        self.labels: list[str] = []  # of the arrays
        self.links: list[_Link] = []
        threads, most = math.prod(self.block), program.most_threads(name)
        if threads > most:
            raise ValueError(f"kernel {name}: a block of {threads} threads; at most {most}")
        self._take(args)
        if resolve is not None:
            self._follow(resolve)
        self.groups = groups(self.arrays)
        self.gaps = [g.gaps(self.arrays) for g in self.groups]
        self._check_restrict()

    def _take(self, args: Sequence[Any]) -> None:
        declared = self.program.arguments[self.name]
        if len(args) != len(declared):
            raise TypeError(f"kernel {self.name} takes {len(declared)} arguments, got {len(args)}")
        for a, x in zip(declared, args):
            null = isinstance(x, np.uint64) and x == 0
            if isinstance(x, np.ndarray) and x.dtype.names:
                self.values.append(x)
                continue
            if not (a.pointer and null) and not (
                isinstance(x, np.ndarray if a.pointer else np.generic) and x.dtype.name in a.dtypes
            ):
                wanted = f"an array of {a.dtypes[0]}" if a.pointer else a.dtypes[0]
                raise TypeError(f"kernel {self.name} expects {wanted} for `{a.name}`, got {x!r}")
            self.values.append(len(self.arrays) if isinstance(x, np.ndarray) else x)
            if isinstance(x, np.ndarray):
                self.arrays.append(x)
                self.labels.append(a.name)

    def _follow(self, resolve: Callable[[int], np.ndarray | None]) -> None:
        """Add the arrays that tables of addresses point to."""
        numbers: dict[tuple[int, int], int] = {}
        tables = [(i, addresses(x).ravel().tolist()) for i, x in enumerate(self.values) if isinstance(x, np.ndarray)]
        for table, entry, address in ((i, entry, at) for i, found in tables for entry, at in enumerate(found)):
            target = resolve(address) if address else None
            if target is not None:
                low, high = extent(target)
                if (low, high) not in numbers:
                    numbers[low, high] = len(self.arrays)
                    self.arrays.append(target)
                    self.labels.append(f"rows[{entry}]")
                self.links.append(_Link(table, entry, numbers[low, high], address - low))

    def _check_restrict(self) -> None:
        arguments = {v: p for v, p in zip(self.values, self.program.parameters[self.name]) if isinstance(v, int)}
        for g in self.groups:
            members = [m for m in g.members if m in arguments and self.arrays[m].size]
            for i, a in enumerate(members):
                for b in members[i + 1 :]:
                    p, q = arguments[a], arguments[b]
                    overlap = np.shares_memory(self.arrays[a], self.arrays[b])
                    if overlap and (p.written or q.written) and (p.restrict or q.restrict):
                        raise KernelError(
                            f"kernel {self.name}: `{self.labels[a]}` and `{self.labels[b]}` overlap, and it may write "
                            "there; but its __restrict__ says that they do not"
                        )

    def run_twice(self) -> None:
        first = self._run(seed=0, at_end=True, filler=0xFF)
        second = self._run(seed=SHUFFLED, at_end=False, filler=0x7E)
        for g, a, b in zip(self.groups, first, second):
            if not np.array_equal(a, b):
                offset = int(np.flatnonzero(a != b)[0])
                raise RaceError(
                    f"kernel {self.name}: {self._place(g, offset)} differs when threads run in another order: "
                    "a barrier is missing, the order counts, or memory that nobody wrote or that lies in no array"
                )
        self._keep(first)

    def run_once(self) -> None:
        """For programs that find races themselves."""
        self._keep(self._run(seed=0, at_end=True, filler=0xFF))

    def _keep(self, memory: list[np.ndarray]) -> None:
        for g, a in zip(self.groups, memory):
            if not np.array_equal(a, g.before):
                ctypes.memmove(g.low, a.ctypes.data, a.size)

    def _run(self, seed: int, at_end: bool, filler: int) -> list[np.ndarray]:
        """The memory of the groups after one run."""
        fenced = [Fenced(g.high - g.low, g.low % 16, at_end, filler) for g in self.groups]
        shared = Fenced(self.shared, 0, at_end, filler)
        try:
            moved = {}  # number of an array: how far its copy is from it
            for g, f, gaps in zip(self.groups, fenced, self.gaps):
                f.data[:] = g.before
                f.data[gaps] = filler
                moved.update(dict.fromkeys(g.members, f.address - g.low))
            lows = [extent(x)[0] + moved[i] for i, x in enumerate(self.arrays)]
            self.program.execute(self, seed, lows, fenced, shared)
            for g, f, gaps in zip(self.groups, fenced, self.gaps):
                if (changed := gaps[f.data[gaps] != filler]).size:
                    where = self._place(g, int(changed[0]))
                    raise KernelError(f"kernel {self.name}: writes between the elements of a view: {where}")
                f.data[gaps] = g.before[gaps]
            return [f.data.copy() for f in fenced]
        finally:
            for f in (*fenced, shared):
                f.free()

    def describe(self, report: _Report, fenced: list[Fenced], shared: Fenced) -> str:
        text = f"kernel {self.name}, block {report.block}"
        if report.in_thread:
            text += f", thread {report.thread}"
        if report.program:
            text += f", {self.program.line(report.program)}"
        elif report.file:
            text += f", {report.file.decode()}:{report.line}"
        text += f": {report.message.decode()}"
        if (address := report.address) is None:
            return text
        if shared.low <= address < shared.high:
            return f"{text}: dynamic shared memory ({self.shared} bytes) at byte {address - shared.address}"
        for g, f in zip(self.groups, fenced):
            if f.low <= address < f.high:
                return f"{text}: {self._place(g, address - f.address)}"
        return f"{text}: address {address:#x}"

    def _place(self, group: Group, offset: int) -> str:
        """A byte of a group, or one near it, in terms of the array that it belongs to."""
        address = group.low + offset
        bounds = {m: extent(self.arrays[m]) for m in group.members}
        number = min(bounds, key=lambda m: max(bounds[m][0] - address, address - bounds[m][1]))
        x = self.arrays[number]
        offset = address - extent(x)[0]
        return f"`{self.labels[number]}`, {x.dtype} of shape {x.shape}, at byte {offset} (item {offset // x.itemsize})"
