"""Listens at the gates and at the ops, and says of each event where it belongs.

Nothing is asked of the model: the frames of Python's stack tell which op called a gate, which modules called the op
(`Module.__call__`), and which line of the user's program called them. What is found for an op's forward is kept beside
the op, and its backward belongs to the same place.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Mapping
from contextlib import ExitStack
from types import FrameType, ModuleType
from typing import Any, NamedTuple

from .. import precision
from .._caller import PACKAGE, caller, inside, line
from ..nn.module import Module
from ..nn.parameter import Parameter
from ..optim.optimizer import Optimizer, StepResult
from ..precision import UPDATE, Kind, Observer, Policy, current_policy
from ..tensor import Op, Tensor, _deposit, _propagate, watch

GATES = precision.__file__


class Site(NamedTuple):
    """Where in the model and in the user's program: "model.conv1", "train.py:17"."""

    module: str
    caller: str


class Place(NamedTuple):
    """Where an event belongs: what ran there, in which phase, and who called it.

    module  path of the module ("model.conv1"), or the parameter's for its update; empty outside of modules
    op      PyTorch's name of the op, or of the optimizer; "cast" for a conversion that the user asked for
    phase   "forward", "backward", "update" or "cast"
    kind    of arithmetic; None for a cast
    where   file and line in tinymp ("ops/softmax.py:41"): of the gate's call, or of the op
    caller  file and line in the user's program; of the forward call also for a backward
    """

    module: str
    op: str
    phase: str
    kind: Kind | None
    where: str
    caller: str


class Instrument:
    """Something that measures: a subclass overrides what it wants to hear of. Arrays may be read; what is kept of them
    must be a copy.

    listener  set while it listens; `listener.iteration` is the number of the iteration that an event belongs to
    """

    listener: Listener

    def rounded(self, place: Place, x: Any, y: Any) -> None:
        """x, in FP32 or FP64, became y, in fewer bits."""

    def product(self, place: Place, a: Any, b: Any, accumulate: str) -> None:
        """a @ b, summed in accumulators of this dtype."""

    def reduced(self, place: Place, x: Any, axis: Any, how: str, accumulate: str) -> None:
        """A sum or mean of x, likewise."""

    def ran(self, place: Place, op: Op, inputs: tuple, outputs: tuple) -> None:
        """An op's forward or backward (place.phase) has run, on these arrays (or None, numbers, SparseRows)."""

    def written(self, place: Place, parameter: Parameter, value: Any) -> None:
        """A parameter is about to be set to `value` (FP32, or SparseRows of it)."""

    def deposited(self, leaf: Tensor, gradient: Any, scale: Any) -> None:
        """`backward` adds this gradient (or SparseRows), which carries a loss scale, to the `grad` of a leaf."""

    def stepped(self, optimizer: Optimizer, result: StepResult) -> None:
        """An optimizer has applied or skipped its update."""


class Listener(Observer):
    """Passes what it hears on to instruments; only what the thread does that started it.

    models     that were called, outermost modules
    names      of their modules and parameters ("model.conv1", "model.conv1.weight"), by id
    policies   in use where ops ran, by id
    iteration  that what is heard now belongs to, from 0, over all that is trained in the audit

    No parameter is stepped twice in an iteration: the next one begins with the backward pass (or update) all of whose
    parameters were stepped in this one. So backward passes whose gradients add up share an iteration, and so do the
    optimizers of a GAN: the generator gets its gradients through the discriminator, which has stepped already, but has
    not stepped itself. A model that is first called after a step begins an iteration too: what is trained later goes on
    counting. What a forward pass is for is not known before its backward: after a step, its ops go to the next one.
    """

    def __init__(self, instruments: list[Instrument]) -> None:
        for i in instruments:
            if not isinstance(i, Instrument):
                got = f"the class {i.__name__}: write {i.__name__}()" if isinstance(i, type) else type(i).__name__
                raise TypeError(f"audit: expected instruments, got {got}")
        self.instruments = instruments
        self.names: dict[int, str] = {}
        self.policies: dict[int, Policy] = {}
        self.iteration = 0
        self._begun = 0  # iterations before the present one
        self._stepped: set[Parameter] = set()  # in it
        self._ever_stepped: set[Parameter] = set()
        self._reached: set[Parameter] = set()  # by a backward pass, ever
        self.models: list[Module] = []
        self._listening = ExitStack()
        for instrument in instruments:
            instrument.listener = self

    def __enter__(self) -> Listener:
        self._thread = threading.get_ident()
        self._listening.enter_context(precision.observe(self))
        self._listening.enter_context(watch(self._ran))
        return self

    def __exit__(self, *error: Any) -> None:
        self._listening.close()

    # ---- what the gates and the ops say

    def rounded(self, x: Any, y: Any) -> None:
        if (place := self._place(sys._getframe(1))) is not None:
            for i in self.instruments:
                i.rounded(place, x, y)

    def product(self, a: Any, b: Any, accumulate: str) -> None:
        if (place := self._place(sys._getframe(1))) is not None:
            for i in self.instruments:
                i.product(place, a, b, accumulate)

    def reduced(self, x: Any, axis: Any, how: str, accumulate: str) -> None:
        if (place := self._place(sys._getframe(1))) is not None:
            for i in self.instruments:
                i.reduced(place, x, axis, how, accumulate)

    def written(self, parameter: Any, value: Any) -> None:
        if (place := self._place(sys._getframe(1))) is not None:
            if place.kind is UPDATE:
                self._enter({parameter})
            for i in self.instruments:
                i.written(place, parameter, value)

    def deposited(self, leaf: Any, gradient: Any, scale: Any) -> None:
        if threading.get_ident() == self._thread:
            for i in self.instruments:
                i.deposited(leaf, gradient, scale)

    def stepped(self, optimizer: Any, result: Any) -> None:
        if threading.get_ident() == self._thread:
            parameters = set(optimizer._parameters())
            self._enter(parameters)
            for i in self.instruments:
                i.stepped(optimizer, result)
            self._stepped |= parameters
            self._ever_stepped |= parameters
            self.iteration = self.iterations

    @property
    def iterations(self) -> int:
        """How many there were in which an optimizer stepped."""
        return self._begun + bool(self._stepped)

    def name_of(self, parameter: Any) -> str:
        """What a parameter is called: its path behind its model's name, as far as they are known."""
        return self.names.get(id(parameter)) or getattr(parameter, "name", None) or f"parameter {parameter.shape}"

    def _ran(self, phase: str, op: Op, inputs: tuple, outputs: tuple) -> None:
        if threading.get_ident() != self._thread:
            return
        policy = current_policy()
        self.policies[id(policy)] = policy
        if phase == "backward" and frame_of(_PROPAGATE).f_locals["root"]._op is op:
            self._begin(_parameters_behind(op))
        place = self._place_of(phase, op, _line_of(type(op)), sys._getframe(1))
        for i in self.instruments:
            i.ran(place, op, inputs, outputs)

    def _begin(self, parameters: set[Parameter]) -> None:
        """A backward pass that reaches these parameters begins. Those that an earlier one has reached and no optimizer
        has stepped are nobody's, and do not count.
        """
        self._enter({p for p in parameters if p in self._ever_stepped or p not in self._reached})
        self._reached |= parameters

    def _enter(self, parameters: set[Parameter]) -> None:
        """What happens now is done to these parameters: it belongs to the present iteration or begins the next one."""
        if parameters:
            if parameters <= self._stepped:
                self._next()
            self.iteration = self._begun

    def _next(self) -> None:
        self._begun, self._stepped = self.iterations, set()

    # ---- where it belongs

    def _place(self, frame: FrameType | None) -> Place | None:
        """The place of a gate's call, whose frame this is; None for another thread's."""
        if threading.get_ident() != self._thread:
            return None
        while frame is not None and frame.f_code.co_filename == GATES:
            frame = frame.f_back
        assert frame is not None
        where = line(frame) if inside(frame) else ""
        while frame is not None and inside(frame):
            code, local = frame.f_code, frame.f_locals
            if code is _APPLY:
                return self._place_of("forward", local["op"], where, frame)
            if code is _BACKWARD or (code is _PROPAGATE and "op" in local):  # the latter rounds sums of gradients
                op = local["self"] if code is _BACKWARD else local["op"]
                return self._place_of("backward", op, where, frame)
            if code is _DEPOSIT:
                name = self.name_of(local["leaf"])
                return Place(name, "sum of gradients", "backward", None, where, caller(frame))
            if code is _WRITE and (optimizer := _optimizer_behind(frame)) is not None:
                rule = type(optimizer).__name__.lower()
                return Place(self.name_of(local["self"]), rule, "update", UPDATE, where, caller(frame))
            frame = frame.f_back
        return Place("", "cast", "cast", None, where, caller(frame))

    def _place_of(self, phase: str, op: Op, where: str, frame: FrameType | None) -> Place:
        """The place of an op that runs. Its site is found once, in forward, from this frame outwards."""
        if "_site" not in vars(op):
            op._site = _BEFORE if phase == "backward" else self._site(frame)  # type: ignore[attr-defined]
        kind = op.gradient or op.kind if phase == "backward" else op.kind
        module, caller = vars(op)["_site"]
        return Place(module, op.name, phase, kind, where, caller)

    def _site(self, frame: FrameType | None) -> Site:
        called_at, chain = caller(frame), []
        while frame is not None:
            if frame.f_code is _CALL:
                chain.append(frame.f_locals["self"])
                outer = frame.f_back
            frame = frame.f_back
        if not chain:
            return Site("", called_at)
        inner, root = chain[0], chain[-1]
        if id(inner) not in self.names:
            self._name(root, outer)
        return Site(self.names.get(id(inner)) or type(inner).__name__, called_at)

    def _name(self, root: Module, frame: FrameType | None) -> None:
        """Name a model that is called for the first time, and its modules, by what its caller calls it."""
        name = self.names.get(id(root)) or (frame and _variable(frame, root)) or type(root).__name__.lower()
        self.models.append(root)
        for path, part in (*root.named_modules(), *root.named_parameters()):
            self.names.setdefault(id(part), f"{name}.{path}" if path else name)
        if any(True for _ in root.parameters()):  # a loss has none
            self._next()


_APPLY: Any = Op.apply.__func__.__code__  # type: ignore[attr-defined]
_BACKWARD = Op._run_backward.__code__
_PROPAGATE = _propagate.__code__
_DEPOSIT = _deposit.__code__
_WRITE = Parameter.write.__code__
_UPDATE = Optimizer._update_one.__code__
_CALL = Module.__call__.__code__
_BEFORE = Site("", "before the audit")


def frame_of(code: Any) -> FrameType:
    """The innermost frame of a function that is running."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code is not code:
        frame = frame.f_back
    assert frame is not None
    return frame


def _line_of(cls: type[Op]) -> str:
    """File and line in tinymp at which an op's forward begins."""
    code = cls.forward.__code__
    return f"{code.co_filename.removeprefix(PACKAGE)}:{code.co_firstlineno}"


def _parameters_behind(root: Op) -> set[Parameter]:
    """Those that the backward pass from this op on reaches."""
    found: set[Parameter] = set()
    seen, waiting = {root}, [root]
    while waiting:
        for edge in waiting.pop().edges:
            if isinstance(edge, Parameter):
                found.add(edge)
            elif isinstance(edge, tuple) and edge[0] not in seen:
                seen.add(edge[0])
                waiting.append(edge[0])
    return found


def _optimizer_behind(frame: FrameType | None) -> Optimizer | None:
    while frame is not None and inside(frame):
        if frame.f_code is _UPDATE:
            return frame.f_locals["self"]
        frame = frame.f_back
    return None


def _variable(frame: FrameType, thing: Any) -> str | None:
    """What a frame calls a thing: a variable, or an attribute of one."""
    if name := _name_in(frame.f_locals, thing):
        return name
    for name, value in frame.f_locals.items():
        fields = getattr(value, "_fields", None) or getattr(value, "__dict__", None)
        if isinstance(fields, (tuple, dict)) and not isinstance(value, (type, ModuleType, Module)):
            for field in list(fields):
                if isinstance(field, str) and getattr(value, field, None) is thing:
                    return field if name == "self" else f"{name}.{field}"
    return _name_in(frame.f_globals, thing)


def _name_in(names: Mapping[str, Any], thing: Any) -> str | None:
    """The name of a thing; not "_" or "_7", under which notebooks keep results."""
    return next((name for name, value in names.items() if value is thing and name.strip("_0123456789")), None)
