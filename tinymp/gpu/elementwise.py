"""`device.map` on a GPU: the definition is called once with symbols, and what it computes becomes one kernel.

By CuPy a pointwise op is two to five kernels, each of which reads and writes memory, FP16 two bytes at a time: a
quarter of an H200's speed. Here an element is read once and written once, eight neighbours by each thread, 16 bytes at
a time.

Arrays in one memory order are walked as flat memory. An operand that is broadcast is read eight at a time as well,
where rows have a multiple of eight elements; other orders and addresses one by one. Results lie in the memory order of
the first operand that has their shape. While an observer listens, the definition itself runs: the bits are the same.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Sequence
from functools import cache
from math import prod
from types import CellType, FunctionType
from typing import Any, NamedTuple

import numpy as np

from ..autograd import Op
from ..backend.devices import Array, Device
from ..backend.gpu import require_one_gpu
from ..events import here
from ..fast_path import fast_path
from ..precision import policy_in_use
from .kernels import with_headers
from .symbols import C_TYPES, OF_NUMBERS, SYMBOLS, NotTraced, Number, Symbol, Trace

PACK = 8  # neighbours that a thread reads at once
THREADS = 256
OPTIONS = ("-std=c++17", "--fmad=false", "-DSTORAGE=half")  # without fused multiply-adds each operation rounds
MOST_PLANS = 1 << 14

_plans: dict[tuple, tuple[Any, Plan | None]] = {}  # by what a kernel depends on, whose code stays; None: not traced


@fast_path(Device.map)
def map(device: Device, f: Callable, *operands: Any, **options: Any) -> Any:
    plan = None if here.inside else _plan(f, operands, options, ())
    return NotImplemented if plan is None else plan.run(device.xp, (*operands, *options.values()))


@fast_path(Device.map_into)
def map_into(device: Device, targets: Sequence[Array], f: Callable, *operands: Any) -> Any:
    plan = None if here.inside else _plan(f, operands, {}, tuple(targets))
    return NotImplemented if plan is None else plan.run(device.xp, (*operands, *targets))


def _plan(f: Callable, operands: tuple, options: dict, targets: tuple) -> Plan | None:
    key = (
        id(f.__code__),
        *[_fixed(cell.cell_contents) for cell in getattr(f, "__closure__", None) or ()],
        policy_in_use.get().rounding,
        *[_seen(x) for x in (*operands, *targets)],
        *[(name, _seen(x)) for name, x in options.items()],
    )
    if (known := _plans.get(key)) is None:
        if len(_plans) == MOST_PLANS:
            _plans.clear()
        known = _plans[key] = f.__code__, plan_of(f, operands, options, targets)
    return known[1]


def _fixed(x: Any) -> Any:
    """The part of a held variable on which a kernel depends: an op's class, as its options are arguments."""
    return type(x) if isinstance(x, Op) else (type(x), x)


def _seen(x: Any) -> Any:
    """The part of an argument on which a kernel depends: an array's layout, a number's type, all of others."""
    if hasattr(x, "strides"):
        if isinstance(x, np.generic):
            return np.generic, x.dtype
        return x.dtype, x.shape, x.strides, x.data.ptr % 16
    return type(x) if type(x) in (float, int) else (type(x), x)


class Plan(NamedTuple):
    """One kernel on arrays of these layouts, and where the definition's results are found."""

    results: Any  # places in `arguments + outputs`, or None: one, or a tuple of them
    outputs: list[np.dtype]
    shape: list[int]  # of the outputs as they lie in memory
    axes: list[int] | None  # their axes in the order of the definition's, None if that is memory's
    code: str  # "" where nothing is to be computed
    blocks: int
    arrays: list[int]  # the places of the arrays among the arguments
    numbers: list[tuple[int, Callable]]  # the places of the numbers, and how a kernel takes them
    layout: tuple  # the lengths and strides that the kernel takes

    def run(self, xp: Any, arguments: Sequence) -> Any:
        """Launch the kernel, unless there is nothing to compute, and return what the definition returns."""
        made = [xp.empty(self.shape, dtype) for dtype in self.outputs]
        if self.code:
            require_one_gpu(xp)
            numbers = [to(arguments[i]) for i, to in self.numbers]
            values = *[arguments[i] for i in self.arrays], *made, *self.layout, *numbers
            kernel(xp, self.code)((self.blocks,), (THREADS,), values)
        places = (*arguments, *(made if self.axes is None else [y.transpose(self.axes) for y in made]))
        if isinstance(self.results, tuple):
            return tuple([None if i is None else places[i] for i in self.results])
        return None if self.results is None else places[self.results]


@cache
def kernel(xp: Any, code: str) -> Any:
    """A kernel of this text, compiled at its first use (CuPy keeps that on disk)."""
    return xp.RawModule(code=with_headers(code), options=OPTIONS).get_function(name_of(code))


def name_of(code: str) -> str:
    """The kernel's name. It ends in a hash of its text: no two share one."""
    return re.findall(r"\) (\w+)\(", code)[0]


# ----------------------------------------------------------------------------------------------- what is to be computed


def plan_of(f: Callable, operands: tuple, options: dict, targets: tuple = ()) -> Plan | None:
    """A plan that runs a definition on arguments like these; None without arrays, or if it cannot be traced. targets:
    where the results go, behind the arguments; by default they are new arrays.
    """
    arguments = [*operands, *options.values(), *targets]
    into = len(arguments) - len(targets)
    arrays = {i: x for i, x in enumerate(arguments) if hasattr(x, "strides") and not isinstance(x, np.generic)}
    if not arrays or any(
        x.dtype not in C_TYPES or any(s < 0 or s % x.itemsize for s in x.strides) for x in arrays.values()
    ):
        return None
    shape, trace = np.broadcast_shapes(*[x.shape for x in arrays.values()]), Trace()
    numbers: list[tuple[int, str, Callable]] = []

    def symbol(i: int, x: Any) -> Any:
        if i in arrays:
            return Symbol(trace, x.dtype, x.shape, f"a{i}")
        if type(x) not in (float, int) and not isinstance(x, np.generic):
            return x
        whole = isinstance(x, (int, np.integer, np.bool_))
        numbers.append((i, "long long" if whole else "double", np.int64 if whole else np.float64))
        if type(x) in OF_NUMBERS:
            return Number(trace, type(x), f"n{i}")
        wide = f"static_cast<{'float' if x.dtype == np.float16 else C_TYPES[x.dtype]}>(n{i})"
        trace.numbers.append(
            # rounds: never, the number has this dtype already
            f"const {C_TYPES[x.dtype]} a{i} = {f'round_to_half({wide})' if x.dtype == np.float16 else wide};"
        )
        return Symbol(trace, x.dtype, (), f"a{i}")

    symbols = [symbol(i, x) for i, x in enumerate(arguments)]
    outputs: list[Symbol] = []

    def place(y: Any) -> int | None:
        if y is None:
            return None
        for i, x in enumerate(symbols):
            if y is x and y.name == f"a{i}" and not targets:  # an argument as it is
                return i
        if not isinstance(y, Symbol) or y.shape != shape:
            raise NotTraced("a result of another shape")
        outputs.append(y)
        return len(symbols) + len(outputs) - 1

    try:
        found = _on_symbols(f)(*symbols[: len(operands)], **dict(zip(options, symbols[len(operands) : into])))
        results = tuple([place(y) for y in found]) if isinstance(found, tuple) else place(found)
    except Exception as error:
        if isinstance(error, NotTraced) or isinstance(error.__cause__, NotTraced):  # a public function names its errors
            return None
        raise
    if targets and [(y.dtype, y.shape) for y in outputs] != [(x.dtype, x.shape) for x in targets]:
        raise TypeError(f"map_into: {f.__qualname__} has other results than its targets")
    return _laid_out(results, outputs, shape, arrays, numbers, trace, into)


def _on_symbols(f: Callable) -> Callable:
    """f with another op around it: of its class, on the device of symbols, without options, which are arguments."""
    cells = getattr(f, "__closure__", None)
    if not cells:
        return f

    def stand_in(x: Any) -> Any:
        if not isinstance(x, Op):
            return SYMBOLS if isinstance(x, Device) else x
        op = type(x)()
        op.device = SYMBOLS
        return op

    held = tuple([CellType(stand_in(cell.cell_contents)) for cell in cells])
    return FunctionType(f.__code__, f.__globals__, f.__name__, f.__defaults__, held)


# ---------------------------------------------------------------------------------------------------- layouts and text


def _laid_out(
    results: Any, outputs: list, shape: tuple, arrays: dict[int, Array], numbers: list, trace: Trace, into: int
) -> Plan:
    """The plan for arrays that lie so: see the head of this file. Those from `into` on are the outputs."""
    whole = next((x for x in arrays.values() if x.shape == shape and 0 not in x.strides), None)
    order = sorted(range(len(shape)), key=lambda a: 0 if whole is None else -whole.strides[a])
    steps = {i: _steps(x, shape, order) for i, x in arrays.items()}
    lengths, steps = _joined([shape[a] for a in order], steps)
    dense = [prod(lengths[a + 1 :]) for a in range(len(lengths))]
    flat = {i for i, s in steps.items() if s == dense}
    one = {i for i, s in steps.items() if not any(s)} - flat
    strided = [i for i in arrays if i not in flat and i not in one]
    inner = lengths[-1] if lengths else 1
    rows = all(steps[i][-1] in (0, 1) and not any(s % PACK for s in steps[i][:-1]) for i in strided)
    aligned = all(x.data.ptr % 16 == 0 for i, x in arrays.items() if i not in one)
    pack = PACK if aligned and rows and (inner % PACK == 0 or not strided) else 1
    n = prod(shape)
    back = None if order == sorted(order) else [order.index(a) for a in range(len(shape))]
    layout = (n, *(lengths[1:] if strided else ()), *[s for i in strided for s in steps[i]])
    code = _text(arrays, outputs, numbers, trace, flat, one, strided, len(lengths), pack, into) if outputs and n else ""
    made = [] if max(arrays) >= into else [y.dtype for y in outputs]
    return Plan(
        results if made else None, made, [shape[a] for a in order], back, code, -(-n // (THREADS * pack)),
        [*arrays], [(i, to) for i, _, to in numbers], tuple([np.int64(x) for x in layout]),
    )  # fmt: skip


def _steps(x: Array, shape: tuple, order: list[int]) -> list[int]:
    """The strides of x in elements, 0 where it is broadcast to shape, its axes in this order."""
    lead = len(shape) - x.ndim
    steps = [0] * lead + [0 if x.shape[a] != shape[lead + a] else s // x.itemsize for a, s in enumerate(x.strides)]
    return [steps[a] for a in order]


def _joined(lengths: list[int], steps: dict[int, list[int]]) -> tuple[list[int], dict[int, list[int]]]:
    """The same with axes joined where all arrays go on from one to the next, and without those of length 1."""
    kept: list[int] = []
    for a, n in enumerate(lengths):
        if n == 1:
            continue
        if kept and all(s[kept[-1]] == s[a] * n for s in steps.values()):
            lengths = [*lengths[:a], lengths[kept[-1]] * n, *lengths[a + 1 :]]
            kept[-1] = a
        else:
            kept.append(a)
    return [lengths[a] for a in kept], {i: [s[a] for a in kept] for i, s in steps.items()}


def _text(
    arrays: dict[int, Array], outputs: list[Symbol], numbers: list, trace: Trace, flat: set, one: set,
    strided: list[int], rank: int, pack: int, into: int,
) -> str:  # fmt: skip
    """The kernel in CUDA C: `each_pack` of elements.cuh walks, and calls what is written here for a few neighbours."""
    types = {i: C_TYPES[x.dtype] for i, x in arrays.items()}
    made = [] if max(arrays) >= into else [f"{C_TYPES[y.dtype]}* y{j}" for j, y in enumerate(outputs)]
    parameters = [f"{'const ' * (i < into)}{kind}* x{i}" for i, kind in types.items()] + made
    parameters += ["long long n"] + [f"long long l{a}" for a in range(1, rank) if strided]
    parameters += [f"long long p{i}_{a}" for i in strided for a in range(rank)]
    parameters += [f"{kind} n{i}" for i, kind, _ in numbers]
    begin = [f"const {types[i]} a{i} = *x{i};" for i in sorted(one)] + trace.numbers
    place, at = [], dict.fromkeys(flat, "i")
    if strided:  # the place along each axis, the last one first
        place.append("long long rest = i;")
        place += [f"const long long q{a} = rest % l{a}; rest /= l{a};" for a in range(rank - 1, 0, -1)]
        place.append("const long long q0 = rest;")
    at |= {i: " + ".join(f"q{a} * p{i}_{a}" for a in range(rank)) for i in strided}
    loads = {i: f"few(width, x{i} + i)" for i in sorted(flat) if i < into}
    loads |= {i: f"few_at(width, x{i}, {at[i]}, p{i}_{rank - 1})" for i in strided if i < into}
    to = [f"y{j} + i" if made else f"x{into + j} + {at[into + j]}" for j in range(len(outputs))]
    results = [(where, C_TYPES[y.dtype], y.name) for where, y in zip(to, outputs)]
    inner = [*place, *neighbours(loads, types, trace.lines, results)]
    body = [*begin, f"each_pack<{pack}>(n, [&](auto width, long long i) {{", *indented(inner), "});"]
    text = "\n".join(["(" + ", ".join(parameters) + ") {", *indented(body), "}\n"])
    name = "map_" + hashlib.sha256(text.encode()).hexdigest()[:16]
    return f'extern "C" __global__ void __launch_bounds__({THREADS}) {name}{text}'


def neighbours(loads: dict[int, str], types: dict[int, str], lines: list[str], results: list) -> list[str]:
    """C that loads the neighbours from i on, computes each and stores the results, as (where, type, variable)."""
    return [
        *[f"const auto f{i} = {load};" for i, load in loads.items()],
        *[f"Few<{kind}, width.length> r{j};" for j, (_, kind, _) in enumerate(results)],
        "#pragma unroll",
        "for (int k = 0; k < width.length; k++) {",
        *indented([f"const {types[i]} a{i} = f{i}.at[k];" for i in loads]),
        *indented(lines),
        *indented([f"r{j}.at[k] = {name};" for j, (_, _, name) in enumerate(results)]),
        "}",
        *[f"put({to}, r{j});" for j, (to, _, _) in enumerate(results)],
    ]


def indented(lines: list[str]) -> list[str]:
    return [f"    {line}" for line in lines]
