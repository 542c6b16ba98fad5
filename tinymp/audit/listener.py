"""Hears events, and finds out for each where it belongs. The model needs no changes: the frames of Python's stack say
which modules called an op, and from which line of the user's program. An op's backward belongs where its forward did.
"""

from __future__ import annotations

import sys
from contextlib import ExitStack
from dataclasses import dataclass
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
from .callers import caller, function, line_of_primitive, modules, variable


class Place(NamedTuple):
    """Where an event belongs: what ran there, in which phase, and who called it.

    module  path of the module ("model.conv1"), or the parameter's for its update; outside of modules that of the
            function, as in a traceback: "train()", "<module>"
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


PLACE = ("module", "op", "phase", "caller", "where")


@dataclass
class At:
    """The base of rows about one place; fields as in `Place`."""

    module: str
    op: str
    phase: str
    caller: str
    where: str

    @classmethod
    def place(cls, place: Place, *more: Any) -> Any:
        return cls(*[getattr(place, name) for name in PLACE], *more)

    def __str__(self) -> str:
        return " ".join(dict.fromkeys((self.module, self.op, self.phase))).strip()  # "cast" only once

    def site(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in PLACE}


def _passed_on(event: str) -> Any:
    """The method that passes an event from within an op or update on to all instruments, with its place."""

    def hear(self: Listener, *what: Any) -> None:
        place = self.place()
        for i in self.instruments:
            getattr(i, event)(place, *what)

    return hear


class Instrument:
    """The base class of instruments: a subclass overrides the events that it wants to hear. Arrays may be read; what is
    kept of them must be a copy. `listener.iteration` is the number of the iteration that an event belongs to.
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
    scale      the loss scale of the gradients that an op's backward is given
    loss       the value from which the backward pass began, and its loss scale; None where it is no single number

    No parameter is stepped twice in an iteration: the next one begins with the backward pass (or update) all of whose
    parameters were stepped in this one. So backward passes whose gradients add up share an iteration, and so do a
    GAN's optimizers. A model that is first called after a step begins one too. After a step, the ops of a forward pass
    count for the next iteration.
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
        self.hears, self._hearing = False, ExitStack()
        self._sites: WeakKeyDictionary[Op, tuple[str, str]] = WeakKeyDictionary()  # module and caller
        self._listening, self._steps = ExitStack(), _Steps(self, every)
        for instrument in instruments:
            instrument.listener = self

    def __enter__(self) -> Listener:
        self._listening.enter_context(observe(self._steps))
        self.hear(True)
        return self

    def __exit__(self, *error: Any) -> None:
        self.hear(False)
        self._listening.close()

    def hear(self, on: bool) -> None:
        """Hear from now on, or no longer: then ops run as without an audit."""
        if on and not self.hears:
            self._hearing.enter_context(observe(self))
        elif not on:
            self._hearing.close()
        self.hears = on

    # ---- the events

    def ran(self, op: Op, inputs: tuple, outputs: tuple) -> None:
        policy = current_policy()
        self.policies[id(policy)] = policy
        if op.phase == "backward" and begins_backward(op):
            self._begin({leaf for leaf, _ in uses(op).values() if isinstance(leaf, Parameter)})
            loss, scale = here.backward.root.array, 1.0 if op.loss_scale is None else float(op.loss_scale)
            self.loss = (float(loss.reshape(-1)[0]) / scale, scale) if loss.size == 1 else None
        code = type(op).forward.__code__
        where = f"{code.co_filename.removeprefix(PACKAGE)}:{code.co_firstlineno}"  # where its forward begins
        place = self.place_of(op, where, sys._getframe(1))
        for i in self.instruments:
            i.ran(place, op, inputs, outputs)

    rounded, product, reduced, added = map(_passed_on, ("rounded", "product", "reduced", "added"))

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

    # in which an optimizer stepped
    iterations = property(lambda self: self._begun + bool(self._stepped))
    scale = property(lambda self: 1.0 if here.backward is None else float(here.backward.scale))

    def name_of(self, parameter: Any) -> str:
        """A parameter's name: its model's name and its path in the model, as far as they are known."""
        return self.names.get(id(parameter)) or getattr(parameter, "name", None) or f"parameter {parameter.shape}"

    def _begin(self, parameters: set[Parameter]) -> None:
        """A backward pass that reaches these parameters begins. Those that an earlier one has reached, but no optimizer
        has stepped, do not count.
        """
        self._enter({p for p in parameters if p in self._ever_stepped or p not in self._reached})
        self._reached |= parameters

    def _enter(self, parameters: set[Parameter]) -> None:
        """These parameters are used now: in the present iteration, or else in the next one, which begins."""
        if parameters:
            if parameters <= self._stepped:
                self._begun, self._stepped = self.iterations, set()
            self.iteration = self._begun

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
        return Place(function(frame), "cast", "cast", None, where, caller(frame))

    def place_of(self, op: Op, where: str, frame: FrameType | None) -> Place:
        """The place of an op that runs. Its site is found once, in forward, from this frame outwards."""
        if op not in self._sites:
            self._sites[op] = ("", "before the audit") if op.phase == "backward" else self._site(frame)
        kind = op.gradient or op.kind if op.phase == "backward" else op.kind
        module, called_at = self._sites[op]
        return Place(module, op.name, op.phase, kind, where, called_at)

    def _site(self, frame: FrameType | None) -> tuple[str, str]:
        called_at, (chain, outer) = caller(frame), modules(frame)
        if not chain:
            return function(frame), called_at
        inner, root = chain[0], chain[-1]
        if id(inner) not in self.names:
            self._name(root, outer)
        return self.names.get(id(inner)) or type(inner).__name__, called_at

    def _name(self, root: Module, frame: FrameType | None) -> None:
        """Name a model that is called for the first time, and its modules, after its caller's variable for it."""
        name = self.names.get(id(root)) or (frame and variable(frame, root)) or type(root).__name__.lower()
        self.models.append(root)
        for path, part in (*root.named_modules(), *root.named_parameters()):
            self.names.setdefault(id(part), f"{name}.{path}" if path else name)
        if any(True for _ in root.parameters()):  # a loss has none
            self._begun, self._stepped = self.iterations, set()


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


def begins_backward(op: Op) -> bool:
    """True if a backward pass is running and begins with this op."""
    return here.backward is not None and here.backward.root.grad_fn is op
