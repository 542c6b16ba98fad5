"""Hears events, and finds out for each where it belongs.

The model needs no changes. `events.here` says what runs when an event is told; the frames of Python's stack say which
modules called the op, and which line of the user's program called them. The place of an op's forward is remembered:
its backward belongs there, too.
"""

from __future__ import annotations

import sys
from contextlib import ExitStack
from types import FrameType
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary, WeakSet

from ..autograd import Op
from ..events import PACKAGE, Exchange, Observer, Update, here, observe
from ..nn.module import Module
from ..ops.more.graph import uses
from ..optim.optimizer import Optimizer
from ..optim.result import StepResult
from ..parameter import Parameter
from ..precision import REDUCTION, UPDATE, Kind, Policy, current_policy
from ..tensor import Tensor
from .callers import caller, line_of_primitive, modules, variable


class Site(NamedTuple):
    """Where in the model and in the user's program: "model.conv1", "train.py:17"."""

    module: str
    caller: str


class Place(NamedTuple):
    """Where an event belongs: what ran there, in which phase, and who called it.

    module  path of the module ("model.conv1"), or the parameter's for its update; empty outside of modules
    op      PyTorch's name of the op, or of the optimizer; "cast" for a conversion that the user asked for
    phase   "forward", "backward", "exchange" (between processes), "update" or "cast"
    kind    the kind of arithmetic; None for a cast
    where   file and line in tinymp ("ops/softmax.py:41"): of the primitive's call, or of the op
    caller  file and line in the user's program; of the forward call also for a backward
    """

    module: str
    op: str
    phase: str
    kind: Kind | None
    where: str
    caller: str


class Instrument:
    """The base class of instruments: a subclass overrides the events that it wants to hear. Arrays may be read; what is
    kept of them must be a copy.

    listener  set while it listens; `listener.iteration` is the number of the iteration that an event belongs to
    """

    listener: Listener

    def rounded(self, place: Place, x: Any, y: Any) -> None:
        """x, in FP32 or FP64, was rounded to y, in fewer bits."""

    def product(self, place: Place, a: Any, b: Any, accumulate: str) -> None:
        """a @ b, summed in accumulators of this dtype."""

    def reduced(self, place: Place, x: Any, axis: Any, how: str, accumulate: str) -> None:
        """A "sum", "mean", "max", "min" or "cumsum" of x, in an accumulator of this dtype."""

    def added(self, place: Place, part: Any, times: Any, accumulate: str) -> None:
        """A term, part (or part * times), of sums that an op builds up, in accumulators of this dtype."""

    def ran(self, place: Place, op: Op, inputs: tuple, outputs: tuple) -> None:
        """An op's forward or backward (place.phase) has run; inputs and outputs as in `Observer.ran`."""

    def written(self, place: Place, parameter: Parameter, value: Any) -> None:
        """A parameter is about to be set to `value` (FP32, or SparseRows of it)."""

    def deposited(self, leaf: Tensor, gradient: Any, scale: Any) -> None:
        """`backward` adds this gradient (or SparseRows), which carries a loss scale, to the `grad` of a leaf."""

    def stepped(self, optimizer: Optimizer, result: StepResult) -> None:
        """An optimizer has applied or skipped its update."""

    def limited(self, problem: Exception) -> None:
        """A loss scaler is about to raise this error, or to warn; see `Observer.limited`."""


class Listener(Observer):
    """Passes what it hears on to instruments.

    models     the outermost modules that were called
    names      {id: name} of their modules and parameters ("model.conv1", "model.conv1.weight")
    policies   {id: policy} of the policies in use where ops ran
    iteration  the number of the current iteration, from 0, counted over everything that is trained in the audit
    scale      the loss scale that the gradients carry which the backward of an op is given
    loss       the value from which the backward pass under way began, and the loss scale that it was multiplied by;
               None where it is no single number

    No parameter is stepped twice in an iteration: the next one begins with the backward pass (or update) all of whose
    parameters were stepped in this one. So backward passes whose gradients add up share an iteration, and so do the
    optimizers of a GAN: the generator gets its gradients through the discriminator, which has stepped already, but has
    not stepped itself. A model that is first called after a step begins an iteration too: a second training goes on
    counting. Which parameters a forward pass serves is known only at its backward: after a step, its ops count for the
    next iteration.
    """

    def __init__(self, instruments: list[Instrument], every: int = 1) -> None:
        """every: hear one step of each optimizer, and what leads to it, in so many; all steps are counted."""
        for i in instruments:
            if not isinstance(i, Instrument):
                got = f"the class {i.__name__}: write {i.__name__}()" if isinstance(i, type) else type(i).__name__
                raise TypeError(f"audit: expected instruments, got {got}")
        self.instruments = instruments
        self.names: dict[int, str] = {}
        self.policies: dict[int, Policy] = {}
        self.iteration = 0
        self.loss: tuple[float, float] | None = None
        self._begun = 0  # iterations before the present one
        self._stepped: set[Parameter] = set()  # in the present iteration
        self._ever_stepped: set[Parameter] = set()
        self._reached: set[Parameter] = set()  # by any backward pass so far
        self.models: list[Module] = []
        self._hearing: ExitStack | None = None
        self._sites: WeakKeyDictionary[Op, Site] = WeakKeyDictionary()
        self._listening, self._steps = ExitStack(), _Steps(self, every)
        for instrument in instruments:
            instrument.listener = self

    def __enter__(self) -> Listener:
        if self._steps.every > 1:
            self._listening.enter_context(observe(self._steps))
        self.hear(True)
        return self

    def __exit__(self, *error: Any) -> None:
        self.hear(False)
        self._listening.close()

    def hear(self, on: bool) -> None:
        """Hear from now on, or no longer: then nobody observes the primitives, and ops run as without an audit."""
        if on and self._hearing is None:
            self._hearing = ExitStack()
            self._hearing.enter_context(observe(self))
        elif not on and self._hearing is not None:
            self._hearing.close()
            self._hearing = None

    @property
    def hears(self) -> bool:
        return self._hearing is not None

    # ---- the events

    def ran(self, op: Op, inputs: tuple, outputs: tuple) -> None:
        policy = current_policy()
        self.policies[id(policy)] = policy
        if op.phase == "backward" and begins_backward(op):
            self._begin(_parameters_behind(op))
            self.loss = _loss(here.backward.root, op)
        place = self.place_of(op, _line_of(type(op)), sys._getframe(1))
        for i in self.instruments:
            i.ran(place, op, inputs, outputs)

    def rounded(self, x: Any, y: Any) -> None:
        place = self.place()
        for i in self.instruments:
            i.rounded(place, x, y)

    def product(self, a: Any, b: Any, accumulate: str) -> None:
        place = self.place()
        for i in self.instruments:
            i.product(place, a, b, accumulate)

    def reduced(self, x: Any, axis: Any, how: str, accumulate: str) -> None:
        place = self.place()
        for i in self.instruments:
            i.reduced(place, x, axis, how, accumulate)

    def added(self, part: Any, times: Any, accumulate: str) -> None:
        place = self.place()
        for i in self.instruments:
            i.added(place, part, times, accumulate)

    def written(self, parameter: Any, value: Any) -> None:
        place = self.place()
        if place.kind is UPDATE:
            self._enter({parameter})
        for i in self.instruments:
            i.written(place, parameter, value)

    def deposited(self, leaf: Any, gradient: Any, scale: Any) -> None:
        for i in self.instruments:
            i.deposited(leaf, gradient, scale)

    def stepped(self, optimizer: Any, result: Any) -> None:
        parameters = set(optimizer.parameters())
        self._enter(parameters)
        result = StepResult(result.value)  # waits for a step on a GPU
        for i in self.instruments:
            i.stepped(optimizer, result)
        self._stepped |= parameters
        self._ever_stepped |= parameters
        self.iteration = self.iterations

    def limited(self, problem: Any) -> None:
        for i in self.instruments:
            i.limited(problem)

    # ---- iterations

    @property
    def iterations(self) -> int:
        """How many there were in which an optimizer stepped."""
        return self._begun + bool(self._stepped)

    @property
    def scale(self) -> float:
        return 1.0 if here.backward is None else float(here.backward.scale)

    def name_of(self, parameter: Any) -> str:
        """The name of a parameter: its model's name and its path in the model, as far as they are known."""
        return self.names.get(id(parameter)) or getattr(parameter, "name", None) or f"parameter {parameter.shape}"

    def _begin(self, parameters: set[Parameter]) -> None:
        """A backward pass that reaches these parameters begins. Parameters that an earlier one has reached, but no
        optimizer has stepped, belong to no optimizer and do not count.
        """
        self._enter({p for p in parameters if p in self._ever_stepped or p not in self._reached})
        self._reached |= parameters

    def _enter(self, parameters: set[Parameter]) -> None:
        """These parameters are used now: in the present iteration, or else in the next one, which begins."""
        if parameters:
            if parameters <= self._stepped:
                self._next()
            self.iteration = self._begun

    def _next(self) -> None:
        self._begun, self._stepped = self.iterations, set()

    # ---- where it belongs

    def place(self) -> Place:
        """Where an event belongs that a primitive is telling."""
        frame = sys._getframe(2)
        where, runs = line_of_primitive(frame), here.running
        if isinstance(runs, Op):
            return self.place_of(runs, where, frame)
        if isinstance(runs, Update):
            rule = type(runs.optimizer).__name__.lower()
            return Place(self.name_of(runs.parameter), rule, "update", UPDATE, where, caller(frame))
        if isinstance(runs, Exchange):
            return Place(self.name_of(runs.parameter), "all_reduce", runs.phase, REDUCTION, where, caller(frame))
        if isinstance(runs, Tensor):
            return Place(self.name_of(runs), "sum of gradients", "backward", None, where, caller(frame))
        return Place("", "cast", "cast", None, where, caller(frame))

    def place_of(self, op: Op, where: str, frame: FrameType | None) -> Place:
        """The place of an op that runs. Its site is found once, in forward, from this frame outwards."""
        if op not in self._sites:
            self._sites[op] = _BEFORE if op.phase == "backward" else self._site(frame)
        kind = op.gradient or op.kind if op.phase == "backward" else op.kind
        module, called_at = self._sites[op]
        return Place(module, op.name, op.phase, kind, where, called_at)

    def _site(self, frame: FrameType | None) -> Site:
        called_at, (chain, outer) = caller(frame), modules(frame)
        if not chain:
            return Site("", called_at)
        inner, root = chain[0], chain[-1]
        if id(inner) not in self.names:
            self._name(root, outer)
        return Site(self.names.get(id(inner)) or type(inner).__name__, called_at)

    def _name(self, root: Module, frame: FrameType | None) -> None:
        """Name a model that is called for the first time, and its modules, after its caller's variable for it."""
        name = self.names.get(id(root)) or (frame and variable(frame, root)) or type(root).__name__.lower()
        self.models.append(root)
        for path, part in (*root.named_modules(), *root.named_parameters()):
            self.names.setdefault(id(part), f"{name}.{path}" if path else name)
        if any(True for _ in root.parameters()):  # a loss has none
            self._next()


class _Steps(Observer):
    """Hears the optimizers' steps alone, and lets a listener hear one of each in so many."""

    def __init__(self, listener: Listener, every: int) -> None:
        self.listener, self.every = listener, every
        self.count, self.optimizers = 0, WeakSet[Optimizer]()

    def stepped(self, optimizer: Any, result: Any) -> None:
        if not self.listener.hears:  # else it has been told itself
            self.listener.stepped(optimizer, result)
        self.optimizers.add(optimizer)
        self.count += 1
        self.listener.hear(self.count % self.every < len(self.optimizers))


_BEFORE = Site("", "before the audit")


def _line_of(cls: type[Op]) -> str:
    """File and line in tinymp at which an op's forward begins."""
    code = cls.forward.__code__
    return f"{code.co_filename.removeprefix(PACKAGE)}:{code.co_firstlineno}"


def begins_backward(op: Op) -> bool:
    """Whether the backward pass under way, if one is, begins with this op."""
    return here.backward is not None and here.backward.root.grad_fn is op


def _loss(root: Tensor, op: Op) -> tuple[float, float] | None:
    scale = 1.0 if op.loss_scale is None else float(op.loss_scale)
    return (float(root.array.reshape(-1)[0]) / scale, scale) if root.array.size == 1 else None


def _parameters_behind(root: Op) -> set[Parameter]:
    """The parameters that a backward pass from this op reaches."""
    return {leaf for leaf, _ in uses(root).values() if isinstance(leaf, Parameter)}
