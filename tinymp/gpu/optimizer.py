"""An optimizer's step on a GPU: its rule as it is written, traced, on all parameters of a dtype in one launch.

`Optimizer.updated` is called once with symbols; what it computes becomes a kernel (many.py) with the definition's bits.
Nothing waits for the device: options (lr, betas, ...), step counts, the loss scale and whether to skip are read there,
so that a captured CUDA graph follows their changes. Options that are True or False, whether one on which the rule
branches is 0, and what is trained at all, stay as they were when it was captured.

Left to the definition, one parameter after another: a rule that branches on its step count or on values, reads
attributes of its optimizer, or takes a norm; sparse gradients; BF16; weights with gaps; and all rules while an observer
listens.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np

from .. import backend
from ..autograd import Array
from ..backend import gpu
from ..dtypes import float32, float64
from ..events import here, under
from ..fast_path import fast_path
from ..optim.groups import Group
from ..optim.optimizer import Optimizer
from ..optim.result import StepResult
from ..parameter import Parameter
from ..precision import policy_in_use, store
from . import philox, recording
from .layout import contiguous
from .many import Many
from .symbols import C_TYPES, NotTraced, Number, Option, Symbol

Ready = list[tuple[Group, Parameter]]


class Known(NamedTuple):
    """An optimizer's rules as kernels, its options on the device, and a counter of blocks."""

    rules: dict[tuple, Rule]
    options: dict[int, tuple[np.ndarray, Array]]  # by the id of the group: as they were uploaded, and where
    ended: Array  # of many.cuh


class Rule(NamedTuple):
    """A rule as a kernel, for parameters of one kind in a group. many: None where it cannot be traced."""

    many: Many | None
    group: Group
    asked: dict[int, bool]  # see symbols.Option


_known: WeakKeyDictionary[Any, Known] = WeakKeyDictionary()


@fast_path(Optimizer.apply)
def apply(optimizer: Optimizer, ready: Ready, skip: Any) -> Any:
    """skip may be a boolean array of one element: then the GPU decides, and the result is a PendingResult."""
    if not ready or skip is True:
        return optimizer.apply(ready, skip)
    left, pending = ready if here.inside else _step(optimizer, ready, skip), skip is not False
    if left:
        optimizer.apply(left, bool(backend.to_cpu(skip).any()) if pending else False)
    return PendingResult(skip) if pending else StepResult.APPLIED


def _step(optimizer: Optimizer, ready: Ready, skip: Any) -> Ready:
    """Update what can be updated in one launch for each kind of parameters; returns the rest."""
    left: Ready = []
    if optimizer not in _known:
        _known[optimizer] = Known({}, {}, _count(0))
    known = _known[optimizer]
    for key, alike in _alike(optimizer, ready).items():
        group, p, arrays = alike[0]
        rule = known.rules.get(key)
        if rule is None or rule.group is not group or not _as_asked(rule):
            rule = known.rules[key] = _traced(optimizer, group, p, arrays)
        if (many := rule.many) is None:
            left += [(group, p) for _, p, _ in alike]
            continue
        values = {"skip": None if skip is False else skip, "ended": known.ended, "options": _options(optimizer, rule)}
        values |= {"scale": scale_value(p.grad_scale), "random": philox.state() if "random" in many.shared else None}
        rows = [_row(optimizer.state[p], arrays, many) for _, p, arrays in alike]
        many.launch(gpu.xp, rows, *[values[name] for name in many.shared])
        if many.trace.draws:
            philox.advance(len(alike) * many.trace.draws, skip)
        for _, p, _ in alike:
            p.bump_version()
    return left


def _alike(optimizer: Optimizer, ready: Ready) -> dict[tuple, list[tuple[Group, Parameter, dict[str, Array]]]]:
    """The parameters that one kernel can take, with their arrays, by what they have in common."""
    found: dict[tuple, list] = {}
    for group, p in ready:
        arrays = _arrays(optimizer, group, p)
        flags = [(name, value) for name, value in group.items() if isinstance(value, bool)]
        kinds = _walked(arrays), "started_at" in optimizer.state[p], p.grad_scale, p.policy.rounding
        key = id(group), *[(name, x.dtype) for name, x in arrays.items()], *flags, *kinds
        found.setdefault(key, []).append((group, p, arrays))
    return found


def _arrays(optimizer: Optimizer, group: Group, p: Parameter) -> dict[str, Array]:
    """The arrays that an update reads and writes, by name; those of the state have "state " before theirs."""
    state = optimizer.state_of(group, p)
    masters = {} if p.master is p.array else {"master": p.master}
    states = {f"state {name}": state[name] for name in optimizer.initial(group)}
    return {"gradient": p.grad_array, "weight": p.array, **masters, **states}


def _walked(arrays: dict[str, Array]) -> bool:
    """True if a kernel can walk them: a dense gradient, of which it may take a copy, and arrays without gaps."""
    return not hasattr(arrays["gradient"], "rows") and all(
        x.dtype in C_TYPES and x.dtype.kind == "f" and (x is arrays["gradient"] or x.flags.c_contiguous)
        for x in arrays.values()
    )


def _row(state: dict[str, Any], arrays: dict[str, Array], many: Many) -> list[Array]:
    """The arrays of a parameter as the kernel takes them; its counts move to the device, where a replay goes on."""
    for name in many.counts:
        if not hasattr(state[name], "dtype"):
            state[name] = _count(state[name])
    gradient = contiguous(gpu.xp, arrays["gradient"])  # what is written is never a copy
    return [gradient, *[arrays[name] for name in [*many.columns][1:]], *[state[name] for name in many.counts]]


def _traced(optimizer: Optimizer, group: Group, p: Parameter, arrays: dict[str, Array]) -> Rule:
    asked: dict[int, bool] = {}
    rule = Rule(None, group, asked)
    if not _walked(arrays):
        return rule
    random = {"random": "const unsigned long long*"} if p.policy.rounding == "stochastic" else {}
    shared = {**random, "skip": "const bool*", "ended": "int*", "options": "const double*"}
    started, scale = "started_at" in optimizer.state[p], scale_type(p.grad_scale)
    many = Many(
        type(optimizer).__name__.lower(),
        {name: x.dtype for name, x in arrays.items()}, ["step", *["started_at"] * started],
        shared | ({"scale": scale} if scale else {}), drawing=bool(random),
    )  # fmt: skip
    trace, places = many.trace, iter(range(len(_numbers(group))))
    symbolic = {name: _with(value, lambda x: Option(trace, next(places), x, asked)) for name, value in group.items()}
    counts = {"started_at": Number(trace, int, f"*{many.count('started_at')}") if started else 0}
    counts["step"] = Number(trace, int, trace.variable("long long", f"*{many.count('step')} + 1", number=True))
    names = {name: f"state {name}" for name in optimizer.initial(group)}

    def work() -> dict[str, Symbol]:
        states = {name: many.symbols[column] for name, column in names.items()}
        weight = many.symbols["weight"]
        w = many.symbols.get("master", weight)
        g, s = many.symbols["gradient"], scale_of(many)
        w, new = Optimizer.updated(_bare(optimizer), w, g, s, states, counts, symbolic)
        results = {column: new[name] for name, column in names.items()}
        return {"weight": store(w, like=weight), **({"master": w} if "master" in arrays else {}), **results}

    counted = f"for (int i = 0; i < rows.count; i++) ++*{many.count('step', 'i')};"
    try:
        results = under(policy_in_use, p.policy, work)
    except Exception:  # a rule of the user's, to which symbols are strange: if it is wrong, its definition says so
        return rule
    skips, counts_on = "if (skip && *skip) return;", f"if (last_to_end(ended)) {counted}"
    return rule._replace(many=many.write(results, begin=[skips], end=[counts_on]))


def _bare(optimizer: Optimizer) -> Any:
    """An optimizer of this class without attributes of its own, so that no kernel depends on one."""

    def refuse(*args: Any) -> Any:
        raise NotTraced("an attribute of the optimizer")

    kind = type(optimizer)
    return object.__new__(type(kind.__name__, (kind,), {"__getattr__": refuse, "__setattr__": refuse}))


# --------------------------------------------------------------------------------------------------------- loss scales


def scale_type(scale: Any) -> str:
    """The type in C of a loss scale: a number, or a pointer to the device, where it may change; "" for a scale of 1."""
    return "" if scale == 1 else "const float*" if hasattr(scale, "array") else "double"


def scale_value(scale: Any) -> Any:
    return getattr(scale, "array", scale)


def scale_of(many: Many) -> Any:
    """The loss scale in a kernel, for `without_scale`."""
    kind, trace = many.shared.get("scale"), many.trace
    if kind is None:
        return 1
    if kind == "double":
        return SimpleNamespace(array=Number(trace, float, "scale"))
    return SimpleNamespace(array=Symbol(trace, float32, (), trace.variable("float", "*scale", number=True)))


# ------------------------------------------------------------------------------------------------- options and counts


def _with(value: Any, f: Any) -> Any:
    """f of each number in an option, which may be several; True and False stay."""
    if isinstance(value, tuple):
        return tuple([_with(x, f) for x in value])
    return f(float(value)) if type(value) in (float, int) else value


def _numbers(group: Group) -> np.ndarray:
    """The options of a group that are numbers, in their order, FP64 as Python's."""
    found: list[float] = []
    for value in group.values():
        _with(value, found.append)
    return np.array(found, float64.name)  # rounds: never, Python's are FP64


def _as_asked(rule: Rule) -> bool:
    """True if the options on which the rule branches are 0, or not 0, as they were when it was traced."""
    numbers = _numbers(rule.group)
    return all(bool(numbers[place]) is truth for place, truth in rule.asked.items())


def _options(optimizer: Optimizer, rule: Rule) -> Array:
    """The group's numbers on the device, always at one address. A graph has them refreshed before each replay."""
    group = rule.group
    captured = [value for value in group.values() if isinstance(value, bool)]

    def refresh() -> None:
        name = type(optimizer).__name__
        if not any(g is group for g in optimizer.param_groups):  # the graph would go on with the state of before
            raise recording.Outdated(f"{name}.load_state_dict has put new groups and state in place")
        optimizer.check_options(group)
        if [value for value in group.values() if isinstance(value, bool)] != captured or not _as_asked(rule):
            raise recording.Outdated(f"an option of {name} has changed on which it depends what is computed")
        _uploaded(optimizer, group)

    recording.before_replay(refresh)
    return _uploaded(optimizer, group)


def _uploaded(optimizer: Optimizer, group: Group) -> Array:
    """The group's numbers on the device, uploaded if they have changed."""
    own, now = _known[optimizer].options, _numbers(group)
    before, device = own.get(id(group), (None, None))
    if device is None:
        device = recording.lasting(now.shape, now.dtype.name)
    if before is None or not np.array_equal(before, now):
        own[id(group)] = now, device
        recording.after_capture(lambda: recording.upload(now, device))
    return device


def _count(n: int) -> Array:
    """A number of steps on the device, where a captured graph counts on: it is not set again at each replay."""
    array = recording.lasting((), "int32")  # `int` of it waits for the device
    recording.after_capture(lambda: array.fill(n))
    return array


class PendingResult:
    """The StepResult of a step on a GPU, of which each look (`applied`, bool, ==) waits; of a captured step that of the
    last replay.
    """

    def __init__(self, skipped: Array) -> None:
        self._skipped = skipped

    def result(self) -> StepResult:
        """APPLIED or SKIPPED. Waits for the GPU."""
        return StepResult.SKIPPED if backend.to_cpu(self._skipped).any() else StepResult.APPLIED

    applied = property(lambda self: self.result().applied)
    name = property(lambda self: self.result().name)
    value = property(lambda self: self.result().value)

    def __bool__(self) -> bool:
        return self.applied

    def __eq__(self, other: object) -> bool:
        return self.result() is (other.result() if isinstance(other, PendingResult) else other)

    def __hash__(self) -> int:
        return hash(self.result())

    def __repr__(self) -> str:
        return f"PendingResult({self.result()})"
