"""A definition on many arrays in one launch: a rule on all parameters, the copies of all statistics.

A network has a hundred parameters, most of them small; a launch for each would leave the GPU waiting. Here a kernel
made from a definition walks rows of arrays, in chunks. Their addresses and sizes are an argument of it, by value: a
captured CUDA graph copies them, and nothing is uploaded.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np

from ..backend.devices import Array, Device
from ..backend.gpu import require_one_gpu
from ..fast_path import fast_path
from .elementwise import THREADS, indented, kernel, neighbours
from .kernels import NULL, TYPES
from .layout import power_of_two
from .symbols import C_TYPES, Symbol, Trace

CHUNK = 8192  # elements per block; many.cuh has the same number
LEAST_ROWS = 8  # a kernel has room for so many rows, or twice, four times, ... as many


class Many:
    """A kernel on rows of arrays, while it is written, and once `write` has been called, to be launched.

    name     of the kernel, behind which comes a hash of its text
    columns  the dtypes of a row's arrays, which have one size, by their names
    counts   names of further arrays of a row, int32 of one element
    shared   names of what all rows share -> its type in C
    drawing  whether there are random bits: then the first of `shared` is their state (philox.py)

    symbols  the arrays, for a definition to be called with. `trace` has what it computes
    """

    def __init__(
        self, name: str, columns: Mapping[str, np.dtype], counts: Sequence[str] = (),
        shared: Mapping[str, str] | None = None, drawing: bool = False,
    ) -> None:  # fmt: skip
        draw = "draw<1>(draws{0}, chunk.first + i + k).at[0]"
        self.trace = Trace(draw.format if drawing else None)
        self.name, self.columns, self.counts, self.shared = name, dict(columns), [*counts], dict(shared or {})
        self.symbols = {n: Symbol(self.trace, dtype, (1,), f"a{i}") for i, (n, dtype) in enumerate(columns.items())}
        self._body = ""
        self._texts: dict[int, str] = {}  # by the number of rows

    def count(self, name: str, row: str = "chunk.row") -> str:
        """The C of a count's address, by default in the row that this block works on."""
        return f"reinterpret_cast<int*>(rows.row[{row}].at[{len(self.columns) + self.counts.index(name)}])"

    def write(self, results: Mapping[str, Symbol], begin: Sequence[str] = (), end: Sequence[str] = ()) -> Many:
        """Have the kernel write these to their columns. begin, end: C before and behind that, once per thread."""
        dtypes, places = [*self.columns.values()], {name: i for i, name in enumerate(self.columns)}
        written = {places[name] for name, y in results.items() if y.name != f"a{places[name]}"}
        lines, names = [], re.findall(r"\w+", " ".join([*self.trace.lines, *[y.name for y in results.values()]]))
        for i, dtype in enumerate(dtypes):
            constant = "" if i in written else "const "
            lines.append(f"{constant}{C_TYPES[dtype]}* const x{i} = chunk.in<{constant}{C_TYPES[dtype]}>(rows, {i});")
        draws = self.trace.draws
        for n in range(draws):  # as `cast_stochastic` draws for one array after another
            number = f"static_cast<unsigned long long>(rows.row[chunk.row].place) * {draws} + {n}"
            lines.append(f"const unsigned long long draws{n}[2] = {{random[0], random[1] + {number}}};")
        lines += [*begin, *self.trace.numbers]
        loads = {i: f"few(width, x{i} + i)" for i in range(len(dtypes)) if f"a{i}" in names}
        puts = [(f"x{places[name]} + i", C_TYPES[self.columns[name]], y.name) for name, y in results.items()]
        puts = [put for put, name in zip(puts, results) if places[name] in written]
        aligned = " && ".join(f"aligned16(x{i})" for i in range(len(dtypes)))
        types = {i: C_TYPES[dtype] for i, dtype in enumerate(dtypes)}
        lines += [f"chunk.each({aligned}, [&](auto width, int i) {{"]
        lines += [*indented(neighbours(loads, types, self.trace.lines, puts)), "});", *end]
        parameters = ", ".join(["const __grid_constant__ Many rows", *[f"{c} {n}" for n, c in self.shared.items()]])
        body = "\n".join(indented(["const Chunk chunk(rows);", *lines]))
        self._body = f"({parameters}) {{\n{body}\n}}\n"
        return self

    def text(self, rows: int) -> str:
        includes = [f'#include "{file}"' for file in ("random.cuh", "many.cuh")[not self.trace.draws :]]
        typedef = f"typedef Rows<{len(self.columns) + len(self.counts)}, {rows}> Many;"
        name = f"{self.name}_{hashlib.sha256((typedef + self._body).encode()).hexdigest()[:16]}"
        head = f'extern "C" __global__ void __launch_bounds__({THREADS}) {name}'
        return "\n".join([*includes, typedef, head + self._body])

    def launch(self, xp: Any, rows: Sequence[Sequence[Array] | None], *shared: Any) -> None:
        """Run it on these rows (None is left out, but counted), with arrays and numbers that they share (None: null).

        TypeError for an array of another dtype or size than the kernel reads, or with gaps.
        """
        require_one_gpu(xp)
        wanted = [*self.columns.values(), *[np.dtype(np.int32)] * len(self.counts)]
        todo = [(i, row, row[0].size) for i, row in enumerate(rows) if row is not None]
        for _, row, n in todo:
            for column, (x, dtype) in enumerate(zip(row, wanted, strict=True)):
                size = n if column < len(self.columns) else 1
                if x.dtype != dtype or x.size != size or not x.flags.c_contiguous:
                    raise TypeError(
                        f"{[*self.columns, *self.counts][column]}: expected a C-contiguous {dtype} of size {size}, "
                        f"got {x.dtype}{list(x.shape)}, strides {x.strides}"
                    )
        values = [
            NULL if x is None else TYPES[kind][0].type(x) if kind in TYPES else x
            for kind, x in zip(self.shared.values(), shared, strict=True)
        ]
        most = _most(xp, len(wanted))
        for start in range(0, len(todo), most):
            some = todo[start : start + most]
            room = min(max(power_of_two(len(some)), LEAST_ROWS), most)
            table, blocks = np.zeros(1, _dtype(len(wanted), room)), [-(-n // CHUNK) for _, _, n in some]
            entries, table["count"] = table["row"][0, : len(some)], len(some)
            entries["at"] = [[x.data.ptr for x in arrays] for _, arrays, _ in some]
            entries["n"], entries["place"] = [n for _, _, n in some], [i for i, _, _ in some]
            entries["first"] = np.cumsum([0, *blocks[:-1]])  # rounds: never, whole numbers
            text = self._texts.get(room) or self._texts.setdefault(room, self.text(room))
            kernel(xp, text)((max(sum(blocks), 1),), (THREADS,), (table, *values))


@cache
def _dtype(columns: int, rows: int) -> np.dtype:
    """`Rows` of many.cuh."""
    row = np.dtype([("at", "u8", columns), ("n", "i8"), ("first", "i4"), ("place", "i4")], align=True)
    return np.dtype([("row", row, rows), ("count", "i4")], align=True)


@cache
def _most(xp: Any, columns: int) -> int:
    """The number of rows for which a kernel's arguments have room: 32,764 bytes from CUDA 12.1 and its driver on."""
    runtime = xp.cuda.runtime
    size = 32_764 if min(runtime.runtimeGetVersion(), runtime.driverGetVersion()) >= 12_010 else 4_096
    return (size - 96) // (8 * columns + 16)  # the others, and `count`


# ------------------------------------------------------------------------------------------------------------- copies


@cache
def _copies() -> Many:
    two = np.dtype(np.uint16)
    many = Many("copy_all", {"source": two, "target": two}, shared={"wanted": "const bool*"})
    return many.write({"target": many.symbols["source"]}, begin=["if (wanted && !*wanted) return;"])


@fast_path(Device.copy_all)
def copy_all(device: Device, sources: Sequence[Array], targets: Sequence[Array], wanted: Any = True) -> None:
    """In one launch. wanted: a bool, or an array of one on the device."""
    if not all(x.flags.c_contiguous and x.nbytes % 2 == 0 for x in (*sources, *targets)):
        raise ValueError("copy_all: expected C-contiguous arrays of numbers with 2 bytes or more")
    pairs = [[x.reshape(-1).view(np.uint16) for x in pair] for pair in zip(sources, targets, strict=True)]
    _copies().launch(device.xp, pairs, None if wanted is True else wanted)
