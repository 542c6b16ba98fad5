"""The autograd: Op, the graph that it records, and the backward pass.

A Tensor that was computed from something that requires a gradient knows the Op that made it. An Op is a node of the
graph: it remembers where its inputs came from and the arrays that its backward needs, nothing else, so that an
activation that no op saved is freed as soon as the forward pass lets go of it.

Rules:
- Ops never write into their inputs. `reshape`, `transpose`, slices, ... return views where NumPy does: they share
  memory, and `x += y` on a Tensor means `x = x + y`.
- Writing in place is for leaves, outside the graph: `with no_grad(): w[0] = 1.0`, `w.copy_(...)`. If an op saved an
  argument or its result, and that memory has been changed since through any tensor that shares it (a view, `detach()`),
  the op's backward raises. Writing into the array itself (`x.array`, `x.numpy()`) goes unnoticed, as in PyTorch.
- backward() frees the arrays that the ops on its way have saved; a second backward over such an op raises, unless the
  first one was given retain_graph=True. Ops that save none (+, reshape, split, ...) allow any number of backward calls.
  There is no double backward.
- An op stores the gradients of its arguments. Those of a tensor that is used several times are summed in FP32 in a
  fixed order (the reverse of the order of the forward pass), and the sum is rounded; two runs on the CPU agree bit for
  bit. Of several backward calls each leaves an FP16 leaf such a gradient; from the second on, `grad` is their FP32 sum.
"""

from __future__ import annotations

import heapq
import inspect
import re
from collections.abc import Mapping, Sequence
from contextvars import copy_context
from functools import partial, reduce
from itertools import count
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np

from . import backend, precision
from .dtypes import FLOATING, HALVES, float32
from .events import NAMES, during, here, tell, type_name
from .fast_path import find
from .grad_mode import is_grad_enabled
from .memory import explain
from .precision import DOT, LOSS, Kind, Policy, as_operand, current_policy, may_fuse, plain, store, under

Array = Any

_sequence = count()


class Variable:
    """The part of a Tensor that the graph needs. Users hold its subclass, Tensor (tensor.py).

    array          its values, in NumPy's or CuPy's array
    requires_grad  whether backward passes compute its gradient
    grad_array     of a leaf: the gradient (an array, or what stands for one), and `grad_scale`, its loss scale
    grad_fn        the Op that made it, as its result number `output_nr`; None for a leaf
    version        how often its memory was changed in place
    """

    __slots__ = (
        "__weakref__",
        "_version",
        "array",
        "grad_array",
        "grad_fn",
        "grad_scale",
        "output_nr",
        "requires_grad",
    )

    array: Array
    grad_array: Any
    grad_scale: Any
    grad_fn: Op | None

    def __init__(self, array: Array, requires_grad: bool) -> None:
        self.array = array
        self.grad_array = None
        self.grad_scale = 1.0
        self.requires_grad = requires_grad
        self.grad_fn = None
        self.output_nr = 0
        self._version = [0]  # in a list, so that views of its memory can share it

    version = property(lambda self: self._version[0], doc="How often its memory was changed in place.")

    def result(self, array: Array, requires_grad: bool) -> Any:
        """A new Tensor with this array, for the result of an op on this one."""
        raise NotImplementedError

    def bump_version(self) -> None:
        """Count a change of its memory in place, so that the backward of an op that saved this memory raises.

        For code that writes into `array` itself; `x[...] = value`, `copy_` and `zero_` count their changes.
        """
        self._version[0] += 1


# A gradient is an array, or something that stands for one. That has `shape`, `dtype` and `values`, the array of its
# numbers, and answers like(values), dense(), add(other), rows(x) and put(x); see sparse.SparseRows.


def values_of(g: Any) -> Any:
    """The array that holds a gradient's numbers."""
    return getattr(g, "values", g)


def with_values(g: Any, values: Array) -> Any:
    """A gradient like g with other numbers."""
    return g.like(values) if hasattr(g, "like") else values


def rows_of(x: Array, g: Any) -> Array:
    """The part of x that the gradient g is for: x itself, or a copy of some rows."""
    return g.rows(x) if hasattr(g, "rows") else x


def put(x: Array, g: Any) -> None:
    """x[...] = g in place, or only the rows that g names."""
    if hasattr(g, "rows"):
        g.put(x)
    else:
        x[...] = g


def added(total: Any, part: Any) -> Any:
    """total + part for two gradients of one tensor, in FP32."""
    if hasattr(total, "add"):
        return total.add(part)
    return part.add(total) if hasattr(part, "add") else precision.accumulate([total, part])


def gather(parts: Sequence[Any], part: Any) -> list[Any]:
    """The gradients that a tensor has got so far, with one more. `joined` adds them up when they are complete.

    They wait for each other, so that they are read once, as long as they take no more memory than their sum in FP32.
    """
    found = [*parts, part]
    if any(hasattr(g, "add") for g in found):
        return [reduce(added, found)]
    wait = len(found) == 1 or sum(g.dtype.itemsize for g in found) <= float32.itemsize
    return found if wait else [precision.accumulate(found)]


def joined(parts: Sequence[Any], like: Any) -> Any:
    """The sum of what `gather` found, in FP32 and in its order, rounded once to the dtype of `like`."""
    if len(parts) == 1 and (parts[0].dtype == like.dtype or hasattr(parts[0], "like")):
        return with_values(parts[0], store(values_of(parts[0]), like))
    return precision.accumulate(parts, like)


class Target(NamedTuple):
    """What a gradient must look like: the argument that it belongs to, without its values."""

    shape: tuple[int, ...]
    dtype: np.dtype
    strides: tuple[int, ...]


_new = tuple.__new__  # makes a Target in half the time of its constructor


# Public names of forward's short arguments; an op whose arguments have other public names gives `arguments`.
_PUBLIC = {"x": "input", "w": "weight", "b": "bias"}


class Op:
    """A differentiable function on arrays; an instance is one call of it, a node of the graph.

    A subclass gives `kind`, `forward(self, *arrays, **options)` and `backward(self, *dy)`, which returns one gradient
    per tensor argument of forward, in order, or None. Tensors, None and Python numbers are passed by position, all
    options by keyword. `save` keeps arrays for backward in `saved`; FP32 statistics are named as such.
    """

    kind: ClassVar[Kind]
    name: str  # PyTorch's name, for messages and reports
    arguments: ClassVar[tuple[str, ...]]  # the public names of forward's positional arguments; see _PUBLIC
    fp32: ClassVar[tuple[str, ...]] = ()  # arguments that may stay FP32 beside FP16 ones (batch norm's weight, ...)

    gradient: ClassVar[Kind | None] = None  # the kind of backward, where it differs: lookups, whose gradients add up
    casts: ClassVar[bool] = False  # whether its result has another dtype, because the user asks for it

    saved: Any = ()  # what `save` kept; None once backward has freed it
    statistics: tuple = ()
    keeps: bool = False  # whether there are saved arrays: backward frees them, and so runs only once
    needs: tuple[bool, ...] = ()  # which arguments require a gradient
    edges: tuple = ()  # per argument: None, a leaf Tensor, or (op, output index)
    targets: tuple = ()  # per argument: the Target that its gradient must match, or None where none is wanted
    versions: Sequence[tuple] = ()  # (counter, its value) of the arguments and results whose memory backward will read
    sequence: int  # its place in the order in which ops ran
    phase: str = "forward"  # "backward" once that has begun
    dtype: Any = None  # of its outputs
    device: Any = backend.cpu  # the backend of its arrays
    storage: Any = None  # the dtype of its floating arguments
    outputs: int = 1
    options: Mapping[str, Any] = {}  # what forward got by keyword; see `take`
    loss_scale: Any = None  # the scale that this op multiplies into gradients (optim.scaler)
    policy: Policy | None = None  # that of backward, where it is not the one in use (precision.follows_forward)

    if TYPE_CHECKING:  # what forward gets by keyword; see `take`

        def __getattr__(self, name: str) -> Any: ...

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "name" not in cls.__dict__:
            cls.name = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", cls.__name__).lower()
        NAMES.add(cls.name)
        if "forward" in cls.__dict__ and "arguments" not in cls.__dict__:
            parameters = list(inspect.signature(cls.forward).parameters.values())[1:]
            cls.arguments = tuple(_PUBLIC.get(p.name, p.name) for p in parameters if p.kind is not p.KEYWORD_ONLY)

    def forward(self, *arrays: Array, **options: Any) -> Any:
        raise NotImplementedError(f"{self.name} has no forward")

    def backward(self, *dy: Array) -> Any:
        raise NotImplementedError(f"{self.name} has no backward")

    def save(self, *arrays: Array, statistics: tuple = ()) -> None:
        """Keep arrays of the storage dtype (or integers) for backward, and FP32 statistics apart from them."""
        self.saved = arrays
        self.statistics = statistics

    def take(self, options: Mapping[str, Any]) -> None:
        """Keep forward's keyword arguments as attributes, for backward."""
        self.options = options
        vars(self).update(options)

    @classmethod
    def apply(cls, *args: Any, **options: Any) -> Any:
        """Run the op on Tensors, check what it promises about precision, and record it in the graph."""
        op = cls()
        arrays, needs = [], []
        source: Any = None
        storage: Any = None
        device: Any = None
        for i, a in enumerate(args):
            if isinstance(a, Variable):
                source, x = a, a.array
                if device is not (owner := backend.of(x)):
                    if device is not None:
                        cls._refuse_mixture(args)
                    device = owner
                if x.dtype is not storage and x.dtype in FLOATING:
                    if storage is None:
                        storage = x.dtype
                    elif x.dtype != storage:
                        beside = storage in HALVES and x.dtype == float32 and cls.name_of(i) in cls.fp32
                        if not beside:
                            cls._refuse_mixture(args)
                arrays.append(x)
                needs.append(a.requires_grad)
            elif a is None or isinstance(a, (int, float, np.generic)):
                arrays.append(a)
                needs.append(False)
            else:
                raise TypeError(
                    f"{cls.name}: expected a Tensor for `{cls.name_of(i)}`, got {type_name(a)}; "
                    "wrap it with tinymp.tensor(...)"
                )
        for name, value in options.items():
            if isinstance(value, np.generic):  # a np.float64 would promote FP32 arrays to FP64
                options[name] = value.item()
        if recording := True in needs and is_grad_enabled():
            op.needs = tuple(needs)
        if options:
            op.take(options)
        op.storage = storage
        if device is not backend.cpu:
            op.device = device
        try:
            y = during(op, copy_context().run, op._results, arrays, options)
        except Exception as error:
            explain(error, op, arrays)  # a full memory
            raise
        asarray = op.xp.asarray  # NumPy's results without axes are scalars
        ys = tuple([asarray(z) for z in y]) if isinstance(y, tuple) else (asarray(y),)
        if here.observers:
            tell("ran", op, args, ys)
        results = tuple([op._output(z, source, recording, i) for i, z in enumerate(ys)])
        for result in results:
            if result.array.base is not None:  # a view shares the change counter of the tensor that it shows
                owner = backend.owner_of(result.array)
                for a in args:
                    if isinstance(a, Variable) and backend.owner_of(a.array) is owner:
                        result._version = a._version
        if recording:
            op._record(args, results)
        else:
            op.saved = op.statistics = ()
        return results if isinstance(y, tuple) else results[0]

    def _results(self, arrays: list, options: dict) -> Any:
        """Run forward on operands as the policy in use takes them, as `events.quietly` would run it."""
        np.seterr(all="ignore")
        if self.kind is DOT:
            arrays[:] = [as_operand(x) for x in arrays]
        return self._compute(type(self).forward, arrays, options)

    def _gradients(self, dys: list) -> Any:
        """Add up the gradients of each result and run backward."""
        dys[:] = [joined(parts, self) if parts else None for parts in dys]  # in place: frees what it adds up
        if self.kind is DOT:
            dys[:] = [as_operand(dy, gradient=True) for dy in dys]
        return self._compute(type(self).backward, dys, {})

    def _compute(self, definition: Any, arrays: list, options: dict) -> Any:
        """Run the definition of a phase, or its fast path on this device where the policy in use allows one."""
        faster: Any = find(definition, self.device.name)
        able = faster is not None and (may_fuse if self.device is backend.gpu else plain)(self.storage)
        y = faster(self, *arrays, **options) if able else NotImplemented
        return definition(self, *arrays, **options) if y is NotImplemented else y

    def _output(self, y: Array, source: Variable, recording: bool, index: int) -> Variable:
        """Check that the result has the dtype that the op's kind promises, and make it a Tensor."""
        storage = self.storage
        differentiable = y.dtype in FLOATING
        if differentiable and storage is not None and not self.casts:
            promised = float32 if self.kind is LOSS and storage in HALVES else storage
            if y.dtype != promised:
                raise TypeError(f"{self.name}: a {self.kind.name} op on {storage} writes {promised}, got {y.dtype}")
        result = source.result(y, recording and differentiable)
        if recording and differentiable:
            result.grad_fn, result.output_nr, self.dtype = self, index, y.dtype
        return result

    def _record(self, args: tuple, results: tuple) -> None:
        """Make this op a node: where gradients go, what they must look like, what was saved."""
        edges, targets = [], []
        for a, need in zip(args, self.needs):
            edges.append(None if not need else a if a.grad_fn is None else (a.grad_fn, a.output_nr))
            targets.append(_new(Target, (a.array.shape, a.array.dtype, a.array.strides)) if need else None)
        self.edges, self.targets = tuple(edges), tuple(targets)
        kept = {id(backend.owner_of(s)) for s in (*self.saved, *self.statistics) if hasattr(s, "dtype")}
        if kept:
            self.keeps = True
            self.versions = [
                (t._version, t._version[0])
                for t in (*args, *results)
                if isinstance(t, Variable) and id(backend.owner_of(t.array)) in kept
            ]
        self.outputs = len(results)
        if precision.follows_forward.get():
            self.policy = current_policy()
        self.sequence = next(_sequence)
        assert self.saved is not None
        for a in self.saved:
            wrong = getattr(a, "dtype", self.storage) != self.storage and a.dtype in FLOATING
            if wrong and not any(isinstance(t, Variable) and a is t.array for t in args):
                raise TypeError(
                    f"{self.name}: saved {a.dtype} for backward, but storage is {self.storage}; see Op.save"
                )

    def run_backward(self, dys: list, retain: bool) -> tuple:
        """Add up each result's gradients, call backward, check that its own fit the inputs, and free what was saved."""
        if self.saved is None:
            raise RuntimeError(
                f"{self.name}: its saved arrays were freed by an earlier backward(); run the forward pass again "
                "(for several losses, add them up, or pass retain_graph=True in all calls but the last)"
            )
        for counter, value in self.versions:
            if counter[0] != value:
                raise RuntimeError(
                    f"{self.name}: a tensor that backward needs was changed in place after the forward pass; call "
                    "backward() before the optimizer's step and other in-place changes"
                )
        self.phase = "backward"
        try:
            dx = during(self, self._gradients, dys)
        except Exception as error:
            explain(error, self, dys)
            raise
        dxs = dx if isinstance(dx, tuple) else (dx,)
        if len(dxs) != len(self.edges):
            raise RuntimeError(f"{self.name}: backward gave {len(dxs)} gradients for {len(self.edges)} arguments")
        for i, (g, target) in enumerate(zip(dxs, self.targets)):
            if target is not None and (g is None or g.shape != target.shape or g.dtype != target.dtype):
                raise RuntimeError(
                    f"{self.name}: the gradient of `{self.name_of(i)}` must be {target.dtype} {target.shape} like the "
                    f"argument, got {'None' if g is None else f'{g.dtype} {g.shape}'}"
                )
        if here.observers:
            tell("ran", self, tuple(dys), dxs)
        if self.keeps and not retain:
            self.saved, self.statistics = None, ()
        return dxs

    @property
    def xp(self) -> Any:
        """The array module (NumPy, CuPy) of the arrays that the op works on."""
        return self.device.xp

    @classmethod
    def name_of(cls, i: int) -> str:
        """The name of argument i; an op on any number of tensors has one name for all of them."""
        return cls.arguments[i] if i < len(cls.arguments) else cls.arguments[-1]

    @classmethod
    def _refuse_mixture(cls, args: tuple) -> None:
        given = [(cls.name_of(i), a.array) for i, a in enumerate(args) if isinstance(a, Variable)]
        if len({backend.of(x) for _, x in given}) > 1:
            seen = ", ".join(f"`{name}` is on {backend.of(x).name}" for name, x in given)
            raise ValueError(f"{cls.name}: expected tensors on one device, got {seen}; move them with .to(device)")
        seen = ", ".join(f"`{name}` is {x.dtype}" for name, x in given if x.dtype in FLOATING)
        raise TypeError(
            f"{cls.name}: expected tensors of one dtype, got {seen}; nothing is promoted silently: give both the "
            "storage of one policy with policy.cast(...), or convert one with .half() or .float()"
        )


class Backward:
    """One run of `Tensor.backward`. While it propagates, observers find it as `events.here.backward`.

    root, gradient  where it begins, and with what gradient
    retain          whether ops keep what they saved, for another run
    scale           the loss scale that the gradients carry which the op that runs now was given
    leaves          {id of leaf: [leaf, gradients, loss scale]} in the order in which the leaves were reached. Gradients
                    travel with the loss scale that they carry (1.0: none), and meet only under one scale
    """

    def __init__(self, root: Variable, gradient: Array, retain: bool = False) -> None:
        self.root, self.gradient, self.retain = root, gradient, retain
        self.leaves: dict[int, list] = {}
        self.scale: Any = 1.0

    def run(self) -> None:
        """Do all that `Tensor.backward` does."""
        self.propagate()
        self.deposit()
        if here.observers:
            tell("summed", self)

    def propagate(self) -> None:
        """Walk the graph from root in the reverse of the order in which its ops ran; no recursion."""
        root, leaves = self.root, self.leaves
        waiting: dict[Op, list] = {}  # op -> for each output its gradients so far; then their loss scale
        queue: list[tuple[int, Op]] = []  # the op that ran last first: all ops that used its results have been visited

        def send(edge: Any, dx: Array, scale: Any) -> None:
            if isinstance(edge, Variable):
                slot, i = leaves.setdefault(id(edge), [edge, (), scale]), 1
            else:
                (op, i), dx = edge, dx.dense() if hasattr(dx, "dense") else dx
                if op not in waiting:
                    waiting[op] = [()] * op.outputs + [scale]
                    heapq.heappush(queue, (-op.sequence, op))
                slot = waiting[op]
            if slot[-1] is not scale and slot[-1] != scale:
                raise RuntimeError(
                    f"backward: gradients with loss scales {float(slot[-1]):g} and {float(scale):g} meet; pass every "
                    "part of the loss through scaler.scale, once"
                )
            slot[i] = gather(slot[i], dx)

        send(root if root.grad_fn is None else (root.grad_fn, root.output_nr), self.gradient, 1.0)
        outer = here.backward
        try:
            here.backward = self
            while queue:
                _, op = heapq.heappop(queue)
                *dys, scale = waiting.pop(op)
                self.scale = scale
                run = op.run_backward if op.policy is None else partial(under, op.policy, op.run_backward)
                dxs = run(dys, self.retain)
                scale = scale if op.loss_scale is None else scale * op.loss_scale
                for edge, dx in zip(op.edges, dxs):
                    if edge is not None and dx is not None:
                        send(edge, dx, scale)
                dxs, dx = (), None  # what the next op adds up is freed before its backward runs
            here.backward = outer  # as in `events.during`
        finally:
            here.backward = outer

    def deposit(self) -> None:
        """Add what was found to the leaves' `grad`, in FP32 where there is one already."""
        owned = {id(backend.owner_of(self.gradient))}
        for leaf, _, scale in self.leaves.values():  # check all of them before the first is written
            if leaf.grad_array is not None and leaf.grad_scale is not scale and leaf.grad_scale != scale:
                raise RuntimeError(
                    f"backward: a gradient with loss scale {float(scale):g} meets one with {float(leaf.grad_scale):g} "
                    f"in the same `grad` (shape {leaf.shape}); accumulate with one scale, then unscale_, step and "
                    "zero_grad"
                )
        for leaf, parts, scale in self.leaves.values():
            dx = self.stored(leaf, parts)
            if here.observers:
                tell("deposited", leaf, dx, scale)
            if hasattr(dx, "dense"):  # no array, and made for this leaf alone
                dx = dx if leaf.grad_array is None else added(leaf.grad_array, dx)
                leaf.grad_array, leaf.grad_scale = dx, scale
                continue
            if leaf.grad_array is None:
                xp = backend.of(leaf.array).xp
                dx = xp.asarray(dx)  # NumPy's results of arrays without axes are scalars
                owner = backend.owner_of(dx)
                if id(owner) in owned or owner.nbytes != dx.nbytes or not backend.writeable(dx):
                    dx = dx.copy()  # a leaf's grad is its own: never another tensor's memory, nor a broadcast view
                owned.add(id(owner))
                leaf.grad_array, leaf.grad_scale = dx, scale
            else:
                leaf.grad_array = backend.of(leaf.array).xp.asarray(added(leaf.grad_array, dx))

    @staticmethod
    def stored(leaf: Variable, parts: Sequence[Any]) -> Any:
        """The sum of a leaf's gradients, rounded once to the leaf's dtype."""
        return during(leaf, joined, parts, leaf.array) if here.inside else joined(parts, leaf.array)
