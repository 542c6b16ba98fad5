"""An optimizer's work on a GPU, on all parameters in one launch: checking gradients, unscaling, clipping, the updates.

A network has a hundred parameters, most of them small; a launch for each would leave the GPU waiting. Here a kernel
gets a table of addresses and works on all tensors at once, in chunks. Nothing waits for the device: scale, skip flag,
step counts and options are read there, so that a captured CUDA graph follows their changes.

Arguments that are lists have one entry per parameter. An update leaves alone a parameter whose gradient is None, and
an entry of another list is None where the parameter has no such array. Gradients are FP16 or FP32 (both may occur in
one list: one launch each); masters and state are FP32 and working copies FP16, all C-contiguous.

The definition of a rule is its `update` in optim/rules.py; this follows it where a parameter is FP16 or FP32 with FP32
state. Options that are numbers (lr, betas, ...) are kept on the device, where a captured CUDA graph reads them anew at
each replay; options that are True or False, and what is trained at all, stay as they were when it was captured.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np

from ... import backend
from ...autograd import Array, put, rows_of, values_of, with_values
from ...backend import gpu
from ...dtypes import float16, float32, float64
from ...events import here
from ...fast_path import fast_path
from ...optim.optimizer import Optimizer
from ...optim.result import StepResult
from ...optim.rules import SGD, Adagrad, Adam
from ...parameter import Parameter
from . import philox, recording, tables
from .kernels import Kernels
from .layout import THREADS, compact, matching

KERNELS = Kernels(__file__)
CHUNK = 8192  # elements per block; optimizer.cu has the same number
ROW = 12  # room for the FP32 constants of an update, per parameter; optimizer.cu has the same number

NONE = 2**31 - 1  # in `found`: every gradient is finite
Arrays = Sequence[Any]  # of device arrays and None


# ---------------------------------------------------------------------------------------------- checking the gradients


def check(grads: Arrays, found: Array, scale: Array | None = None) -> None:
    """Lower `found` (int32, one element) to the place of the first gradient that is not finite, if there is one.

    It starts as NONE. Places count from 0 in `grads`, whose entries may be None. scale: the loss scale that the
    gradients carry (FP32, one element); None stands for 1. It is g / scale that must be finite.
    """
    _rescale(grads, [None] * len(grads), scale, True, found)


def unscale(grads: Arrays, scale: Array | None, found: Array | None = None) -> list[Array | None]:
    """g / scale for every gradient, in new FP32 arrays (NVG section 2.3.1, step 5); None where the gradient is None.

    scale: FP32, one element; None stands for 1. found: see `check`, done along the way.
    """
    results = _like(grads)
    _rescale(grads, results, scale, True, found)
    return results


def multiply(grads: Arrays, factor: Array) -> list[Array | None]:
    """g * factor for every gradient, in new FP32 arrays. factor: FP32, one element; see `norm`."""
    results = _like(grads)
    _rescale(grads, results, factor, False, None)
    return results


def _like(grads: Arrays) -> list[Array | None]:
    return [None if g is None else gpu.xp.empty(g.shape, float32.name) for g in grads]


def _rescale(grads: Arrays, results: Arrays, factor: Array | None, divide: bool, found: Array | None) -> None:
    grads = [_placed(g, y) for g, y in zip(grads, results, strict=True)]
    for table in _tables("rescale", [grads, results], (None, float32)):
        table.launch("rescale", factor, int(divide), found)


def _placed(g: Array | None, like: Array | None) -> Array | None:
    """g as kernels can read it beside the C-contiguous `like`: itself, or a copy in that order."""
    if g is None or g.flags.c_contiguous:
        return g
    return compact(gpu.xp, g) if like is None else matching(gpu.xp, g, like)


def norm(grads: Arrays, p: float = 2.0, max_norm: float = math.inf) -> Array:
    """FP32 [norm, factor]: the p-norm of all gradients together, and min(1, max_norm / (norm + 1e-6)) for clipping.

    (sum |g|^p)^(1/p), or max |g| for p = inf, in FP32 and in a fixed order. The gradients carry no loss scale.
    """
    grads = [_placed(g, None) for g in grads]  # kept alive until the launches: a table holds only addresses
    tables = list(_tables("norm", [grads], (None,)))
    parts = gpu.xp.empty(sum(table.blocks for table in tables) + 1, float32.name)  # + 1: never empty
    result = gpu.xp.empty(2, float32.name)
    first = 0
    for table in tables:
        table.launch("norm_parts", p, parts, first)
        first += table.blocks
    KERNELS.launch("norm_finish", parts.dtype, 1, THREADS, parts, first, p, max_norm, result)
    return result


# --------------------------------------------------------------------------------------------------- the update rules


def options(names: Sequence[str], group: Mapping[str, Any]) -> np.ndarray:
    """These options of a parameter group, in this order, as the kernels of a rule read them on the device.

    In FP64, because 1 - beta2 of an FP32 0.999 would be wrong by 5e-5.
    """
    flat = dict(zip(("beta1", "beta2"), group.get("betas", ())), **group)
    return np.array([flat[name] for name in names], float64.name)  # rounds: never, Python's numbers are FP64


def sgd(
    grads: Arrays,
    masters: Arrays,
    copies: Arrays,
    steps: Arrays,
    momentum_buffers: Arrays,
    options: Array,
    *,
    since: Arrays | None = None,
    nesterov: bool = False,
    **how: Any,
) -> None:
    """One step of `optim.SGD`; see `_update`. momentum_buffers: None for all where momentum is 0.

    since: after how many steps each momentum buffer was made (int32, one element each; None: 0).
    """
    lists = [grads, masters, copies, steps, momentum_buffers, since or [None] * len(grads)]
    _update("sgd", (int(nesterov),), lists, options, **how)


def adagrad(
    grads: Arrays, masters: Arrays, copies: Arrays, steps: Arrays, sums: Arrays, options: Array, **how: Any
) -> None:
    """One step of `optim.Adagrad`; see `_update`."""
    _update("adagrad", (), [grads, masters, copies, steps, sums], options, **how)


def adam(
    grads: Arrays,
    masters: Arrays,
    copies: Arrays,
    steps: Arrays,
    exp_avgs: Arrays,
    exp_avg_sqs: Arrays,
    max_exp_avg_sqs: Arrays | None,
    options: Array,
    *,
    decoupled: bool = False,
    **how: Any,
) -> None:
    """One step of `optim.Adam`, or with `decoupled` of AdamW; see `_update`. max_exp_avg_sqs: given for amsgrad."""
    largest = [] if max_exp_avg_sqs is None else [max_exp_avg_sqs]
    lists = [grads, masters, copies, steps, exp_avgs, exp_avg_sqs, *largest]
    _update("adam", (len(largest), int(decoupled)), lists, options, **how)


def _update(
    rule: str,
    flags: tuple[int, ...],
    lists: list[Arrays],
    options: Array,
    *,
    maximize: bool = False,
    scale: Array | None = None,
    skip: Array | None = None,
    rounding: str = "nearest",
) -> None:
    """One step of a rule on the parameters of one group.

    lists     gradients, masters, working copies, step counts (int32, one element each), and the arrays of state (FP32;
              SGD's second: int32, see `sgd`). A parameter with a master and no copy is in FP32; one with a copy and no
              master is in FP16
    options   on the device; see the function `options`
    maximize  go up the gradient
    scale     the loss scale that the gradients carry (FP32, one element); None: none
    skip      bool, one element: if true, neither weights nor state nor step counts change. None: apply
    rounding  of the working copies: "nearest" or "stochastic"
    """
    lists = lists + [[None] * len(lists[0])] * (7 - len(lists))
    like = [w if w is not None else c for w, c in zip(lists[1], lists[2], strict=True)]
    lists[0] = [_placed(g, w) for g, w in zip(lists[0], like, strict=True)]
    random = philox.state() if rounding == "stochastic" else None
    count = np.dtype(np.int32)
    for table in _tables(
        rule, lists, (None, float32, float16, count, float32, count if rule == "sgd" else float32, float32)
    ):
        n = len(table.addresses)
        constants = gpu.xp.empty((n, ROW), float32.name)
        KERNELS.launch(
            f"{rule}_begin", table.dtype, -(-n // 32), 32, table.addresses, n, skip, options, *flags, constants
        )
        table.launch(rule, constants, skip, scale, int(maximize), random)
        if random is not None:
            philox.advance()


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

    lists: gradients first; dtypes: what each list must have, None for the gradient's. TypeError and ValueError for
    arrays that the kernels cannot read.
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
                x = arrays[i]
                if x is not None:
                    if x.dtype != (wanted or dtype) or x.size != (1 if wanted == np.int32 else size):
                        raise TypeError(f"optimizer.{what}: list {column} has an array {x.dtype}{list(x.shape)}")
                    if column > 0 and not x.flags.c_contiguous:
                        raise ValueError(f"optimizer.{what}: expected C-contiguous arrays in list {column}")
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


def _sgd(optimizer: SGD, lists: list, group: dict[str, Any], **how: Any) -> None:
    momentum = [] if group["momentum"] else [[None] * len(lists[0])]
    sgd(*lists, *momentum, nesterov=group["nesterov"], **how)


def _adagrad(optimizer: Adagrad, lists: list, group: dict[str, Any], since: list, **how: Any) -> None:
    adagrad(*lists, **how)


def _adam(optimizer: Adam, lists: list, group: dict[str, Any], since: list, **how: Any) -> None:
    largest = [] if group["amsgrad"] else [None]
    adam(*lists, *largest, decoupled=optimizer.decoupled, **how)


# {definition of a rule: what launches its kernel, and the options that it reads on the device}. A subclass that
# inherits a definition is launched like it; one with an `update` of its own has no kernel.
RULES: dict[Any, tuple[Any, tuple[str, ...]]] = {
    SGD.update: (_sgd, ("lr", "momentum", "dampening", "weight_decay")),
    Adagrad.update: (_adagrad, ("lr", "lr_decay", "weight_decay", "eps")),
    Adam.update: (_adam, ("lr", "beta1", "beta2", "weight_decay", "eps")),
}


@fast_path(Optimizer.apply)
def apply(optimizer: Optimizer, ready: Ready, skip: Any) -> Any:
    """skip may be a boolean array of one element: then the GPU decides, and the result is a PendingResult."""
    pending = not isinstance(skip, bool)
    left = ready if here.inside or skip is True else _step(optimizer, ready, skip)
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
        states = [optimizer.state_of(group, p) for p in params]
        for state in states:
            for name in ("step", "since"):
                if name in state and not hasattr(state[name], "dtype"):  # counted on the host so far
                    state[name] = _count(state[name])
        grads = [p.grad_array for p in params]
        arrays: list[Any] = [
            [p.master if p.master.dtype == float32 else None for p in params],
            [p.array if p.dtype == float16 else None for p in params],
            *[[state[name] for state in states] for name in optimizer.initial(group)],
        ]
        # Of a sparse gradient's parameter the kernel gets copies of its rows, which are written back behind it
        touched = [[x if x is None else rows_of(x, g) for x, g in zip(column, grads)] for column in arrays]
        lists = [[values_of(g) for g in grads], *touched[:2], [state["step"] for state in states], *touched[2:]]
        how = {
            "options": _options(optimizer, group),
            "maximize": group["maximize"],
            "scale": _number(scale),
            "skip": None if skip is False else skip,
            "rounding": rounding,
        }
        since = [state.get("since") for state in states]
        RULES[type(optimizer).update][0](optimizer, lists, group, since=since, **how)
        rows = [
            (x, with_values(g, new))
            for column, updated in zip(arrays, touched)
            for g, x, new in zip(grads, column, updated)
            if new is not x
        ]
        try:
            for x, new in rows:
                put(x, new)
        except BaseException:  # an interrupt between master and copy goes on when both are written
            for x, new in rows:
                put(x, new)
            raise
        for p in params:
            p.bump_version()
    return left


def _alike(optimizer: Any, ready: Ready, left: Ready) -> Iterator[tuple[dict, str, Any, list[Parameter]]]:
    """The parameters that one launch can take, as (group, rounding, loss scale, parameters); others go to `left`."""
    found: dict[tuple, tuple] = {}
    for group, p in ready:
        if type(optimizer).update not in RULES or p.dtype not in (float16, float32) or p.policy.state == float16:
            left.append((group, p))
            continue
        key = id(group), p.policy.rounding, id(p.grad_scale) if hasattr(p.grad_scale, "array") else p.grad_scale
        found.setdefault(key, (group, p.policy.rounding, p.grad_scale, []))[3].append(p)
    yield from found.values()


def _count(n: int) -> Array:
    """A number of steps on the device, where a captured graph counts on: it is not set again at each replay."""
    array = gpu.xp.empty((), "int32")  # `int` of it waits for the device
    recording.after_capture(lambda: array.fill(n))
    return array


def _number(scale: Any) -> Array | None:
    """A loss scale as FP32 of one element on the device; None for 1."""
    if hasattr(scale, "array"):
        return scale.array
    return None if scale == 1 else gpu.xp.full(1, scale, float32.name)


_uploaded: WeakKeyDictionary[Any, dict[int, tuple[np.ndarray, Array]]] = WeakKeyDictionary()


def _options(optimizer: Any, group: dict[str, Any]) -> Array:
    """The group's numbers on the device, always at one address; a captured graph has them refreshed before it runs."""
    own = _uploaded.setdefault(optimizer, {})

    def refresh() -> None:
        if not any(g is group for g in optimizer.param_groups):  # the graph would go on with the state of before
            raise RuntimeError(
                f"{type(optimizer).__name__}.load_state_dict has put new groups and state in place of those that this "
                "captured step works on: capture the step again"
            )
        optimizer.check_options(group)
        now = options(RULES[type(optimizer).update][1], group)
        before, device = own.get(id(group), (None, None))
        if device is None:
            device = gpu.xp.empty(now.shape, now.dtype)
        if before is None or not np.array_equal(before, now):
            own[id(group)] = now, device
            recording.after_capture(lambda: recording.upload(now, device))

    refresh()
    recording.before_replay(refresh)
    return own[id(group)][1]


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
