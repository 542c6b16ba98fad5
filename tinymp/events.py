"""Events: the only connection between the engine and its observers.

The engine does not know its observers. It notes what runs in a thread (`here.running`) and reports ten events:

    ran        an op has run, forward or backward       autograd.py
    rounded    an array was stored in fewer bits        precision.py
    product    a matrix product is about to run         precision.py
    reduced    a sum or mean is about to run            precision.py
    added      a term is about to be added to a sum     precision.py
    written    a parameter is about to be set           parameter.py
    deposited  a leaf is about to receive a gradient    autograd.py
    summed     a backward pass has left all gradients   autograd.py
    stepped    an optimizer has stepped or skipped      optimizer.py
    limited    a loss scaler has come to a limit        scaler.py

An observer hears only the thread in which it was opened: a loader that prepares batches in the background is not part
of the observed step.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import ContextDecorator, contextmanager, suppress
from contextvars import ContextVar, copy_context
from dataclasses import dataclass
from importlib import import_module
from inspect import isgeneratorfunction
from pathlib import Path
from types import FrameType
from typing import Any, ClassVar, TypeVar

import numpy as np

Result = TypeVar("Result")


class Setting(threading.local, ContextDecorator):
    """Sets a context variable within a block or a decorated function; `given` is the value for `as`.

    It may be entered repeatedly, also within itself, and in several threads at once. Each step of a decorated generator
    runs within it, but the generator's caller does not, as in PyTorch.
    """

    def __init__(self, variable: ContextVar, value: Any, given: Any = None) -> None:
        self._variable, self._value, self._given = variable, value, given
        self._before: list[Any] = []  # per thread: threading.local runs __init__ in each

    def __enter__(self) -> Any:
        self._before.append(self._variable.get())
        try:
            self._variable.set(self._value)
            return self._given
        except BaseException:  # an interrupt: then `with` does not call __exit__
            self._variable.set(self._before.pop())
            raise

    def __exit__(self, *error: object) -> None:
        try:
            self._variable.set(self._before[-1])
        finally:
            self._variable.set(self._before.pop())  # again: the interrupt came before it was done

    def __call__(self, function: Any) -> Any:
        steps = import_module(f"{__package__}.ops.more.generator") if isgeneratorfunction(function) else None
        return super().__call__(function) if steps is None else steps.each_step(self, function)


class Observer:
    """The base class of observers: a subclass overrides the events that it wants to hear, and `observe` opens it.

    Methods are called during the work. They may read arrays, and must copy those that they keep. An observer's own
    computations belong under `unobserved`.
    """

    inside: ClassVar[bool] = False  # True if it hears events from inside an op or an update; see `here`

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls.inside = any(getattr(cls, name) is not getattr(Observer, name) for name in _INSIDE)

    def ran(self, op: Any, inputs: tuple, outputs: tuple) -> None:
        """The forward or backward of op (see `op.phase`) has run.

        inputs   forward: its arguments, Tensors, numbers or None. backward: arrays, the gradients of its results
        outputs  forward: arrays. backward: arrays, SparseRows or None, the gradients of its arguments
        """

    def rounded(self, x: Any, y: Any) -> None:
        """The array x, in FP32 or FP64, was rounded to y, in fewer bits."""

    def product(self, a: Any, b: Any, accumulate: str) -> None:
        """a @ b, summed in accumulators of this dtype ("float16", "float32", "tf32", "float64")."""

    def reduced(self, x: Any, axis: Any, how: str, accumulate: str) -> None:
        """A "sum", "mean", "max", "min" or "cumsum" of x over axis, in an accumulator of this dtype."""

    def added(self, part: Any, times: Any, accumulate: str) -> None:
        """`part` (times `times`, unless None) is about to be added to a running sum, in this accumulator's dtype."""

    def written(self, parameter: Any, value: Any) -> None:
        """A parameter is about to be set to `value` (FP32, or SparseRows of it), by an optimizer or by the user."""

    def deposited(self, leaf: Any, gradient: Any, scale: Any) -> None:
        """`backward` adds this gradient (or SparseRows), which carries a loss scale, to the `grad` of a leaf."""

    def summed(self, run: Any) -> None:
        """A backward pass (an autograd.Backward) has ended: the leaves' `grad` hold its gradients."""

    def stepped(self, optimizer: Any, result: Any) -> None:
        """An optimizer has updated its parameters or skipped the update: result is the StepResult."""

    def limited(self, problem: Any) -> None:
        """A loss scaler is about to raise this error, or to warn, because it skipped too many steps. An observer that
        knows the origin of the first infinity may append it to `problem.args`.
        """


_INSIDE = ("rounded", "product", "reduced", "added", "written")


@dataclass(frozen=True)
class Update:
    """Runs while an optimizer updates a parameter."""

    optimizer: Any
    parameter: Any
    phase: ClassVar[str] = "update"

    def __str__(self) -> str:
        return f"{type(self.optimizer).__name__}, parameter {self.optimizer.label(self.parameter)} and its state"


@dataclass(frozen=True)
class Exchange:
    """Runs while the gradient of a parameter is sent to other processes and added to theirs."""

    parameter: Any
    phase: ClassVar[str] = "exchange"


running: ContextVar[Any] = ContextVar("running", default=None)
backward: ContextVar[Any] = ContextVar("backward", default=None)  # autograd.Backward sets it, for its context
in_pass: ContextVar[bool] = ContextVar("in_pass", default=False)  # in a module's call or a backward pass


class _Here(threading.local):
    """The observers of this thread, and the op that runs.

    observers  all of them
    inside     those that hear events from inside an op or an update. While there is one, CUDA kernels that do the work
               of several primitives leave their results in FP32, and `store` rounds them
    running    the innermost Op (in its `phase`, "forward" or "backward"), the Update, the Exchange, or the leaf Tensor
               whose gradient is being added up; None if none of them runs: then the user converts or writes
    backward   the current run of `Tensor.backward` (autograd.Backward), or None
    rank       the number of this process among those that train together; 0 for a single process
    agree      agree(value, how) combines the values of these processes; for a single process it is the value.
               how: "first": per item of a tuple, the item of the first process in which it is not None; "all": of
               lists, one list by rank
    """

    running = property(lambda self: running.get())
    backward = property(lambda self: backward.get())
    rank: int = 0
    agree: Any = staticmethod(lambda value, how="first": value)

    def __init__(self) -> None:
        self.observers: list[Observer] = []
        self.inside: list[Observer] = []


here = _Here()


@contextmanager
def observe(observer: Observer) -> Iterator[Observer]:
    """Within the block, `observer` hears what this thread does. Several may listen at once.

    TypeError for anything but an Observer.
    """
    if not isinstance(observer, Observer):
        raise TypeError(f"observe: expected an Observer, got {observer!r}; subclass tinymp.Observer")
    # Remember the lists themselves: the block may be ended by another thread, or by a garbage collection there.
    lists = [here.observers, here.inside] if observer.inside else [here.observers]
    try:
        for listeners in lists:
            listeners.append(observer)
        yield observer
        _leave(lists, observer)
    finally:
        _leave(lists, observer)  # again: an interrupt that comes right before a `finally` skips it


def _leave(lists: list[list[Observer]], observer: Observer) -> None:
    while lists:
        with suppress(ValueError):  # an interrupt came before it was in this one
            lists[-1].remove(observer)
        lists.pop()


@contextmanager
def unobserved() -> Iterator[None]:
    """Within the block no observer hears this thread, and `here` is empty: for what observers compute themselves."""
    before = here.observers, here.inside, running.get(), backward.get()
    try:
        here.observers, here.inside = [], []
        running.set(None)
        backward.set(None)
        yield
    finally:
        here.observers, here.inside = before[:2]
        running.set(before[2])
        backward.set(before[3])


def tell(event: str, *what: Any) -> None:
    """Call the method `event` of each observer that hears it. Callers first check that there is one."""
    for observer in tuple(here.inside if event in _INSIDE else here.observers):
        getattr(observer, event)(*what)


def under(variable: ContextVar, value: Any, work: Callable[..., Result], *args: Any, **options: Any) -> Result:
    """work(*args, **options) while a context variable (`running`, the policy in use) has this value.

    It runs in a copy of the context, which holds such variables and NumPy's settings: not even an interrupt can leave
    them changed.
    """
    context = copy_context()
    context.run(variable.set, value)
    return context.run(work, *args, **options)


def quietly(work: Callable[..., Result], *args: Any, **options: Any) -> Result:
    """work(*args, **options) without NumPy's warnings of infinities and NaNs, for which scalers and checks look.

    It runs in a copy of the context.
    """
    context = copy_context()
    context.run(np.seterr, all="ignore")
    return context.run(work, *args, **options)


# --------------------------------------------------------------------------- names and places, for errors

PACKAGE = str(Path(__file__).parent) + os.sep
_SHIPPED = PACKAGE + "share" + os.sep  # programs in a wheel (lab/shipped.py) count as the user's
NAMES = {"dtype", "len"}  # names of ops and of public functions and classes, as errors use them


def inside(frame: FrameType) -> bool:
    """True for a frame of tinymp's own."""
    file = frame.f_code.co_filename
    return file.startswith(PACKAGE) and not file.startswith(_SHIPPED)


def flag(op: str, name: str, value: Any) -> bool:
    """value as a bool, if it is True or False (or NumPy's); TypeError for anything else, also if truthy ("False")."""
    if not isinstance(value, (bool, np.bool_)):
        raise TypeError(f"{op}: expected `{name}` to be True or False, got {value!r}")
    return bool(value)


def type_name(x: Any) -> str:
    """The type of x for messages, with its module unless it is built in: other libraries have a Tensor as well."""
    kind = type(x)
    return kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__name__}"
