"""capture(): a whole training step as one CUDA graph.

A step of a small network is a few hundred short kernels; launching them from Python takes longer than running them. A
CUDA graph is recorded once and then started as a whole. Its kernels run on the addresses that they were recorded with:
what a step keeps stays where it is and is changed in place, on the device; inputs are copied to where those of the
recording lay.
"""

from __future__ import annotations

import gc
import inspect
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from .. import backend
from ..backend import gpu
from ..events import Observer, here, inside, observe, type_name
from ..nn.module import Module
from ..tensor import Tensor
from . import recording
from .recording import Recording, record


def capture(step: Callable[..., Any], warmup: int = 3) -> Captured:
    """`step` as a callable that, from the call after `warmup` calls on, replays a CUDA graph of it.

    step    a function of Tensors (and other arguments, which must not change) that does all of a training step:
            forward, scaler.scale(loss).backward(), unscale_, clipping, scaler.step, scaler.update, zero_grad. It may
            return Tensors, the StepResult, and tuples, lists or dicts of them
    warmup  how many calls run normally before one is recorded: they compile kernels and allocate memory

    The Tensors that a replay returns are the same ones each time: the next call overwrites them, so read (or clone)
    them before. Whatever else `step` does in Python happens never in a replay: schedules and printing belong outside.
    Learning rates reach the graph, random numbers go on, and skipped steps and the loss scale are decided on the
    device.

    On the CPU, and while it is audited, `step` is simply called each time. So it is, and a RuntimeWarning says why
    once, for inputs whose number, shape, dtype or device differ from the first call's; while a module that `step` names
    (or its object has) is in evaluation but was not, or the reverse; for good in a step that reads the device from the
    host (item(), print(loss), ...), and once an optimizer's flag has changed or its state was loaded.

    RuntimeError if the step copies values of the host to the device, which is found out while it is captured.
    """
    if not callable(step):
        raise TypeError(f"capture: expected a function that does one training step, got {type(step).__name__}")
    if isinstance(warmup, bool) or not isinstance(warmup, int) or warmup < 1:
        raise ValueError(f"capture: expected `warmup` to be a positive integer, got {warmup!r}")
    return Captured(step, warmup)


class _Gradients(Observer):
    """Remembers what the leaves that get a gradient had in `grad` before."""

    def __init__(self) -> None:
        self.before: dict[int, tuple[Any, Any, Any]] = {}

    def deposited(self, leaf: Any, gradient: Any, scale: Any) -> None:
        self.before.setdefault(id(leaf), (leaf, leaf.grad_array, leaf.grad_scale))

    def put_back(self) -> None:
        for leaf, grad, scale in self.before.values():
            leaf.replace_grad(grad, scale)


# What a capture refused, and what to do about it
_UPLOAD = (
    "it moves values from the host to the device (mp.tensor(...) or Tensor(...).to('gpu') of host values, a list or a "
    "NumPy array as operand or index); make such Tensors before the step and pass them as inputs"
)
_READ = (
    "most often reading a value of the device from the host (item(), print(loss), bool(tensor), a mask as index); "
    "return the Tensor and read it after the step"
)


def _where(error: BaseException) -> str:
    """Where in the user's program: the line that called into tinymp last."""
    outside, place = None, ""
    for frame, _ in traceback.walk_tb(error.__traceback__):
        if not inside(frame):
            outside = frame
        elif outside is not None:
            place, outside = f" (at {Path(outside.f_code.co_filename).name}:{outside.f_lineno})", None
    return place


def _modules(step: Callable[..., Any]) -> Iterator[Module]:
    """The modules that step names, in its closure or its globals, or that its object has."""
    owner, function = getattr(step, "__self__", step), inspect.unwrap(getattr(step, "__func__", step))
    names = inspect.getclosurevars(function)[:2] if inspect.isfunction(function) else ()  # around it, and globals
    for value in (owner, *getattr(owner, "__dict__", {}).values(), *(x for some in names for x in some.values())):
        if isinstance(value, Module):
            yield from value.modules()


class Captured:
    """A step that runs as a CUDA graph; made by `capture`.

    calls  how many steps there have been
    """

    def __init__(self, step: Callable[..., Any], warmup: int) -> None:
        self._step, self._warmup = step, warmup
        self.calls = 0
        self._why_plain = ""  # why no graph is used any more
        self._said: set[str] = set()
        self._graph: Any = None
        self._signature: str | None = None
        self._inputs: tuple = ()  # the Tensors that the graph reads
        self._outputs: Any = None
        self._training: list[tuple[Module, bool]] = []  # the modules, and whether the graph trains them
        self._recorded = Recording()  # what the host does before and after each replay
        self._stream: Any = None  # of its own, as the default one cannot be captured; it has cuBLAS's workspace
        self._idle: Any = None  # an event behind the last replay: no two write to the graph's memory at the same time
        self._pool: Any = None  # the graph's own memory: nothing else may be placed where the graph writes

    def __call__(self, *inputs: Any) -> Any:
        tensors = [x for x in inputs if isinstance(x, Tensor)]
        elsewhere = gpu.array_type is None or (tensors and not any(backend.of(x.array) is gpu for x in tensors))
        if elsewhere or here.inside or self._why_plain:  # a replay passes no primitive that could be observed
            return self._plainly(inputs)
        if why := self._unlike_first(inputs):
            return self._plainly(inputs, why)
        if self._graph is None and self.calls < self._warmup:
            before = recording.reads
            result = self._aside(lambda: self._step(*inputs))
            self.calls += 1
            if recording.reads > before and self.calls == self._warmup:
                self._why_plain = "it reads the device from the host (item(), print(loss), bool(tensor), ...)"
                self._say(self._why_plain)
            return result
        if self._graph is None:
            try:
                self._aside(lambda: self._record(inputs))
            finally:  # also if the capture failed: the waiting uploads are still needed
                while self._recorded.after:
                    self._recorded.after.pop(0)()
        if any(module.training != trained for module, trained in self._training):
            return self._plainly(inputs, "train() or eval() was called since it was recorded")
        try:
            for work in self._recorded.before_replay:
                work()
        except recording.Outdated as error:
            self._why_plain, self._graph = str(error), None
            return self._plainly(inputs, self._why_plain)
        stream = gpu.xp.cuda.get_current_stream()
        stream.wait_event(self._idle)
        for own, x in zip(self._inputs, inputs):
            if isinstance(own, Tensor) and own.array is not x.array:
                own.array[...] = x.array  # rounds: never, both have one dtype, which a replay checks
        self._graph.launch()
        self._idle.record(stream)
        self.calls += 1
        for callback in self._recorded.callbacks:  # what went wrong on the device some steps ago is raised here
            callback.poll()
        return self._outputs

    def _plainly(self, inputs: tuple, why: str = "") -> Any:
        self._say(why)
        self.calls += 1
        return self._step(*inputs)

    def _say(self, why: str) -> None:
        if why and why not in self._said:
            self._said.add(why)
            name = getattr(self._step, "__name__", "the step")
            warnings.warn(f"capture: {name} runs without a CUDA graph: {why}", RuntimeWarning, stacklevel=4)

    def _unlike_first(self, inputs: tuple) -> str:
        """The difference between the inputs and those of the first call, or ""."""
        signature = ", ".join(
            f"{x.dtype} {x.shape} on {x.device}" if isinstance(x, Tensor) else f"{type_name(x)} {x!r}" for x in inputs
        )
        self._signature = signature if self._signature is None else self._signature
        if signature == self._signature:
            return ""
        return (
            f"expected inputs ({self._signature}) as in the first call, got ({signature}); a graph has fixed shapes: "
            "capture another step for these, or drop the last batch (DataLoader's drop_last)"
        )

    def _aside(self, work: Callable[[], Any]) -> Any:
        """Do work on the stream of its own, with memory from the graph's pool."""
        cuda = gpu.xp.cuda
        if self._stream is None:
            self._stream, self._idle = cuda.Stream(non_blocking=True), cuda.Event(disable_timing=True)
            self._pool = self._pool or cuda.MemoryPool()
        cuda.get_current_stream().synchronize()
        with self._stream as stream, cuda.using_allocator(self._pool.malloc):
            stream.wait_event(self._idle)
            result = work()
            stream.synchronize()
        return result

    def _record(self, inputs: tuple) -> None:
        copies = [Tensor(x.array.copy(), requires_grad=x.requires_grad) if isinstance(x, Tensor) else x for x in inputs]
        stream, gradients, collects = gpu.xp.cuda.get_current_stream(), _Gradients(), gc.isenabled()
        stream.synchronize()
        try:
            with record() as self._recorded, observe(gradients):
                gc.disable()  # what it destroys (memory, events, graphs) may call what a capture does not permit
                stream.begin_capture()
                try:
                    outputs = self._step(*copies)
                    graph = stream.end_capture()
                except BaseException as error:
                    try:
                        stream.end_capture()
                    except Exception:  # what failed has invalidated the capture: there is no graph to end
                        self._stream = None
                    gradients.put_back()  # those of this step were never computed
                    if "captur" not in str(error).lower():
                        raise
                    why = f"{_where(error)}: {_UPLOAD if 'H2D' in str(error) else _READ}: {error}"
                    raise RuntimeError(f"capture: the step does what a CUDA graph cannot record{why}") from error
        finally:
            if collects:
                gc.enable()
        self._inputs, self._outputs, self._graph = tuple(copies), outputs, graph
        self._training = [(module, module.training) for module in _modules(self._step)]

    def __del__(self) -> None:
        if self._pool is not None and not sys.is_finalizing():
            self._graph, self._inputs, self._outputs, self._recorded = None, (), None, Recording()
            self._pool.free_all_blocks()  # CuPy never frees the blocks of a pool that is dropped

    def __repr__(self) -> str:
        state = "captured" if self._graph is not None else f"{self.calls} of {self._warmup} warm-up calls"
        return f"Captured({getattr(self._step, '__name__', self._step)}, {state})"
