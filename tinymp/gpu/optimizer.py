"""An optimizer's work on a GPU, on all parameters in one launch: checking gradients, unscaling, the updates.

A network has a hundred parameters, most of them small; a launch for each would leave the GPU waiting. Here a kernel
gets a table of addresses and works on all tensors at once, in chunks. Nothing waits for the device: scale, skip flag,
step counts and options are read there, so that a captured CUDA graph follows their changes.

Arguments that are lists have one entry per parameter, None where it has no such array. Gradients are FP16 or FP32 (both
may occur in one list: one launch each); masters and state are FP32 and working copies FP16, all C-contiguous.

The definition of a rule is its `update` in optim/rules.py; this follows it where a parameter is FP16 or FP32 with FP32
state and a dense gradient. Options that are numbers (lr, betas, ...) are kept on the device, where a captured CUDA
graph reads them anew at each replay; options that are True or False, and what is trained at all, stay as they were when
it was captured.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np

from .. import backend
from ..autograd import Array
from ..backend import gpu
from ..dtypes import float16, float32, float64
from ..events import Update, during, here
from ..fast_path import fast_path
from ..optim.more.rules import Adagrad
from ..optim.optimizer import Optimizer
from ..optim.result import StepResult
from ..optim.rules import SGD, Adam
from ..parameter import Parameter
from ..precision import widen
from . import philox, recording, tables
from .kernels import Kernels, signatures
from .layout import THREADS, contiguous

KERNELS = Kernels(__file__)
CHUNK = 8192  # elements per block; optimizer.cu has the same number
ROW = 12  # room for the FP32 constants of an update, per parameter; optimizer.cu has the same number

NONE = 2**31 - 1  # in `found`: every gradient is finite
INT = np.dtype(np.int32)
Arrays = Sequence[Any]  # of device arrays and None


# ---------------------------------------------------------------------------------------------- checking the gradients


def check(grads: Arrays, found: Array, scale: Array | None = None) -> None:
    """Lower `found` (int32, one element) to the place of the first gradient that is not finite, if there is one.

    It starts as NONE. Places count from 0 in `grads`, whose entries may be None. scale: the loss scale that the
    gradients carry (FP32, one element); None stands for 1. It is g / scale that must be finite.
    """
    _rescale(grads, [None] * len(grads), scale, found)


def unscale(grads: Arrays, scale: Array | None, found: Array | None = None) -> list[Array | None]:
    """g / scale for every gradient, in new FP32 arrays (NVG section 2.3.1, step 5); None where the gradient is None.

    scale: FP32, one element; None stands for 1. found: see `check`, done along the way.
    """
    results = [None if g is None else gpu.xp.empty(g.shape, float32.name) for g in grads]
    _rescale(grads, results, scale, found)
    return results


def _rescale(grads: Arrays, results: Arrays, scale: Array | None, found: Array | None) -> None:
    for table in _tables("rescale", [grads := _placed(grads), results], (None, float32)):
        table.launch("rescale", scale, found)


def _placed(grads: Arrays) -> list[Array | None]:
    """The gradients as kernels can read them: a table holds only addresses, so the caller keeps them until it ran."""
    return [None if g is None else contiguous(gpu.xp, g) for g in grads]


# ------------------------------------------------------------------------------------------------- tables of addresses


class Table(NamedTuple):
    """What a kernel is given to find its tensors, and their gradients' dtype; optimizer.cu explains the arrays."""

    dtype: np.dtype
    addresses: Array
    tensors: Array
    chunks: Array

    @property
    def blocks(self) -> int:
        return len(self.chunks)

    def launch(self, kernel: str, *args: Any) -> None:
        """One block per chunk."""
        if self.blocks:
            lists = self.addresses, self.tensors, self.chunks
            KERNELS.launch(kernel, self.dtype, self.blocks, THREADS, *lists, *args)


def _tables(what: str, lists: list[Arrays], dtypes: tuple[np.dtype | None, ...]) -> Iterator[Table]:
    """A table for the tensors with an FP16 gradient, and one for those with an FP32 gradient.

    lists: gradients first; dtypes: what each list must have, None for the gradient's. TypeError for arrays that the
    kernels cannot read.
    """
    grads = lists[0]
    for g in grads:
        if g is not None and g.dtype not in (float16, float32):
            raise TypeError(f"optimizer.{what}: expected gradients in FP16 or FP32, got {g.dtype}")
    for dtype in (float16, float32):
        places = tuple(i for i, g in enumerate(grads) if g is not None and g.dtype == dtype)
        if not places:
            continue
        sizes = tuple(grads[i].size for i in places)
        addresses = np.zeros((len(places), len(lists)), np.uint64)
        for column, (arrays, wanted) in enumerate(zip(lists, dtypes, strict=True)):
            for row, (i, size) in enumerate(zip(places, sizes, strict=True)):
                x, wanted = arrays[i], wanted or dtype
                if x is None:
                    continue
                if x.dtype != wanted or x.size != (1 if wanted == INT else size) or not x.flags.c_contiguous:
                    raise TypeError(
                        f"optimizer.{what}: expected a C-contiguous {wanted} of size {size} in list {column}, got "
                        f"{x.dtype}{list(x.shape)}, strides {x.strides}"
                    )
                addresses[row, column] = x.data.ptr
        tensors, chunks = _layout(sizes, places)
        columns = (addresses.tobytes(), "uint64", len(lists)), (tensors, "int64", 2), (chunks, "int32", 2)
        yield Table(dtype, *(tables.on_device(*column) for column in columns))


@functools.lru_cache(maxsize=64)
def _layout(sizes: tuple[int, ...], places: tuple[int, ...]) -> tuple[bytes, bytes]:
    """The arrays `tensors` and `chunks` of optimizer.cu."""
    counts = [-(-size // CHUNK) for size in sizes]
    tensors = np.array([sizes, places], np.int64).T
    chunks = [(row, number) for row, count in enumerate(counts) for number in range(count)]
    return tensors.tobytes(), np.array(chunks, np.int32).tobytes()


# ----------------------------------------------------------------------------------------------- a step of an optimizer

Ready = list[tuple[dict[str, Any], Parameter]]


class Rule(NamedTuple):
    """How optimizer.cu does an optimizer's rule: its kernel, and what it calls its numbers, flags and states."""

    kernel: str
    numbers: list[str]
    flags: list[str]
    states: list[str]

    def options(self, optimizer: Any, group: dict[str, Any]) -> tuple[np.ndarray, list[Any]]:
        """A parameter group's numbers, in FP64 (1 - beta2 of an FP32 0.999 would be wrong by 5e-5), and its flags.

        TypeError where the kernel and the optimizer do not have the same names.
        """
        flat = dict(zip(("beta1", "beta2"), group.get("betas", ())), **group)
        flags = {name: flat.get(name, getattr(optimizer, name, None)) for name in self.flags}
        unknown = [name for name in self.numbers if name not in flat]
        unknown += [name for name, value in flags.items() if value is None]
        unknown += [name for name in optimizer.initial(group) if name not in self.states]
        if unknown:
            raise TypeError(f"{type(optimizer).__name__} and the kernel {self.kernel} differ in the names {unknown}")
        # rounds: never, Python's are FP64
        return np.array([flat[name] for name in self.numbers], float64.name), [*flags.values()]


# By the definition of a rule: a subclass that inherits one is launched like it; one with an `update` of its own has no
# kernel.
RULES: dict[Any, str] = {rule.update: rule.__name__ for rule in (SGD, Adagrad, Adam)}


@functools.cache
def rule_of(name: str) -> Rule:
    """The names in the struct `name` of optimizer.cu, and in the kernel that begins its steps."""
    kernel, code = name.lower(), KERNELS.path.read_text(encoding="utf-8")
    body = code.partition(f"struct {name} {{")[2]
    states, numbers = (
        re.search(pattern, body)[1].split(", ")  # type: ignore[index]
        for pattern in (r"enum \{ (.*), STATES \};", r"struct Options \{ double (.*); \};")
    )
    begin = signatures(code, "half")[f"{kernel}_begin"]
    return Rule(kernel, numbers, [a.name for a in begin if not a.pointer and a.name != "n"], states)


@fast_path(Optimizer.apply)
def apply(optimizer: Optimizer, ready: Ready, skip: Any) -> Any:
    """skip may be a boolean array of one element: then the GPU decides, and the result is a PendingResult. While an
    observer listens, which hears of updates that are made, the host looks first.
    """
    pending = not isinstance(skip, bool)
    known = bool(backend.to_cpu(skip).any()) if pending and here.inside else skip
    left = ready if known is True else _step(optimizer, ready, known)
    if not pending:
        return optimizer.apply(left, skip) if left else StepResult.APPLIED
    if left and not backend.to_cpu(skip).any():
        optimizer.apply(left, False)
    return PendingResult(skip)


def _step(optimizer: Optimizer, ready: Ready, skip: Any) -> Ready:
    """Update what can be updated in one launch per group; returns the rest.

    skip: False, or a boolean device array of one element: where it holds, nothing changes.
    """
    left: Ready = []
    for group, rounding, scale, params in _alike(optimizer, ready, left):
        rule = rule_of(RULES[type(optimizer).update])
        options, flags = _options(optimizer, group)
        states = [optimizer.state_of(group, p) for p in params]
        for state in states:
            for name in ("step", "since"):
                if name in state and not hasattr(state[name], "dtype"):  # counted on the host so far
                    state[name] = _count(state[name])
        masters = [p.master if p.master.dtype == float32 else None for p in params]
        copies = [p.array if p.dtype == float16 else None for p in params]
        if here.inside:  # new weights, which `write` stores in front of the observer
            masters, copies = [widen(p.master).copy() for p in params], [None] * len(params)
        late = rule.kernel == "sgd"  # its momentum may begin at any time
        names = [name if late or name in optimizer.initial(group) else "" for name in rule.states] + ["since"] * late
        lists: list[Any] = [
            _placed([p.grad_array for p in params]),
            masters,
            copies,
            *[[state.get(name) for state in states] for name in ("step", *names)],
        ]
        lists += [[None] * len(params)] * (7 - len(lists))
        kinds = None, float32, float16, INT, float32, INT if late else float32, float32
        skipped, random = None if skip is False else skip, philox.state() if rounding == "stochastic" else None
        for table in _tables(rule.kernel, lists, kinds):
            n, begin = len(table.addresses), f"{rule.kernel}_begin"
            constants = gpu.xp.empty((n, ROW), float32.name)
            arguments = table.addresses, n, skipped, options, *flags, constants
            KERNELS.launch(begin, table.dtype, -(-n // 32), 32, *arguments)
            table.launch(rule.kernel, constants, skipped, number(scale), int(group["maximize"]), random)
            if random is not None:
                philox.advance()
        for p, new in zip(params, masters):
            if here.inside:
                during(Update(optimizer, p), p.write, new)
            else:
                p.bump_version()
    return left


def _alike(optimizer: Any, ready: Ready, left: Ready) -> Iterator[tuple[dict, str, Any, list[Parameter]]]:
    """The parameters that one launch can take, as (group, rounding, loss scale, parameters); others go to `left`."""
    found: dict[tuple, tuple] = {}
    for group, p in ready:
        ours = p.dtype in (float16, float32) and p.policy.state != float16 and not hasattr(p.grad_array, "rows")
        ours = ours and (p.policy.rounding == "nearest" or not here.inside)
        if type(optimizer).update not in RULES or not ours:
            left.append((group, p))
            continue
        key = id(group), p.policy.rounding, id(p.grad_scale) if hasattr(p.grad_scale, "array") else p.grad_scale
        found.setdefault(key, (group, p.policy.rounding, p.grad_scale, []))[3].append(p)
    yield from found.values()


def _count(n: int) -> Array:
    """A number of steps on the device, where a captured graph counts on: it is not set again at each replay."""
    array = recording.lasting((), "int32")  # `int` of it waits for the device
    recording.after_capture(lambda: array.fill(n))
    return array


def number(scale: Any) -> Array | None:
    """A loss scale as FP32 of one element on the device; None for 1."""
    if hasattr(scale, "array"):
        return scale.array
    return None if scale == 1 else gpu.xp.full(1, scale, float32.name)


_uploaded: WeakKeyDictionary[Any, dict[int, tuple[np.ndarray, Array]]] = WeakKeyDictionary()


def _options(optimizer: Any, group: dict[str, Any]) -> tuple[Array, list[Any]]:
    """The group's numbers on the device, always at one address, and its flags.

    A captured graph has the numbers refreshed before it runs.
    """
    rule = rule_of(RULES[type(optimizer).update])
    captured = rule.options(optimizer, group)[1]
    own = _uploaded.setdefault(optimizer, {})

    def refresh() -> None:
        if not any(g is group for g in optimizer.param_groups):  # the graph would go on with the state of before
            raise recording.Outdated(
                f"{type(optimizer).__name__}.load_state_dict has put new groups and state in place"
            )
        optimizer.check_options(group)
        now, flags = rule.options(optimizer, group)
        if flags != captured:
            raise recording.Outdated(f"an option of {type(optimizer).__name__} that is True or False has changed")
        before, device = own.get(id(group), (None, None))
        if device is None:
            device = recording.lasting(now.shape, now.dtype.name)
        if before is None or not np.array_equal(before, now):
            own[id(group)] = now, device
            recording.after_capture(lambda: recording.upload(now, device))

    refresh()
    recording.before_replay(refresh)
    return own[id(group)][1], captured


class PendingResult:
    """The StepResult of a step on a GPU, which the host has not looked at: each look (`applied`, bool, ==) waits.

    After a step that was captured in a CUDA graph it tells of the last replay.
    """

    def __init__(self, skipped: Array) -> None:
        self._skipped = skipped

    def result(self) -> StepResult:
        """APPLIED or SKIPPED. Waits for the GPU."""
        return StepResult.SKIPPED if backend.to_cpu(self._skipped).any() else StepResult.APPLIED

    applied = property(lambda self: self.result().applied, doc="Whether the parameters were updated.")
    name = property(lambda self: self.result().name, doc="The name of the StepResult.")
    value = property(lambda self: self.result().value, doc="The value of the StepResult.")

    def __bool__(self) -> bool:
        return self.applied

    def __eq__(self, other: object) -> bool:
        if isinstance(other, PendingResult):
            return self.result() is other.result()
        return self.result() is other

    def __hash__(self) -> int:
        return hash(self.result())

    def __repr__(self) -> str:
        return f"PendingResult({self.result()})"
