"""The autograd: Op, the graph that it records, and the backward pass.

A Tensor computed from one that requires a gradient refers to the Op that made it. An Op is a node of the graph. It
refers to the origins of its inputs and to the arrays that its backward needs, nothing else: an activation that no op
saved is freed as soon as the forward pass drops it.

Rules:
- Ops never write into their inputs. `reshape`, `transpose`, slices, ... return views where NumPy does: they share
  memory. `x += y` writes into x outside the graph; in it x becomes the result, or an error says why it cannot.
- Writing in place is for leaves, outside the graph: `with no_grad(): w[0] = 1.0`, `w.copy_(...)`. If an op saved an
  argument or its result, and that memory has been changed since through any tensor that shares it (a view, `detach()`),
  the op's backward raises. Writing into the array itself (`x.array`, `x.numpy()`) is not noticed, as in PyTorch.
- backward() frees the arrays that its ops saved. A second backward over such an op raises, unless the first one had
  retain_graph=True. Ops that save nothing (+, reshape, split, ...) allow any number of backward calls. There is no
  double backward.
- An op stores the gradients of its arguments. The gradients of a tensor with several uses are summed in FP32 in a fixed
  order (the reverse of the forward pass), and the sum is rounded once; two runs on the CPU agree bit for bit. The first
  backward call gives an FP16 leaf a gradient in FP16; from the second call on, `grad` is the FP32 sum of all calls.
"""

from __future__ import annotations

import inspect
import re
from bisect import insort
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar, copy_context
from itertools import count
from typing import TYPE_CHECKING, Any, ClassVar
from weakref import WeakValueDictionary

import numpy as np

from . import backend
from .dtypes import FLOATING, HALVES, float32
from .events import NAMES, Setting, here, in_pass, running, tell, type_name, under
from .events import backward as backward_run
from .fast_path import find
from .gradients import Target, added, gathered, joined
from .precision import DOT, LOSS, Kind, Policy, plain, policy_in_use

Array = Any

_sequence = count()


# --------------------------------------------------------------------------------------------------------- recording


_grad_enabled: ContextVar[bool] = ContextVar("grad_enabled", default=True)


def no_grad() -> Setting:
    """Within the block, no op records a graph: nothing is saved, results do not require gradients."""
    return Setting(_grad_enabled, False)


def enable_grad() -> Setting:
    """Within the block, ops record the graph again (the inverse of `no_grad`)."""
    return Setting(_grad_enabled, True)


def is_grad_enabled() -> bool:
    """True if ops record a graph here."""
    return _grad_enabled.get()


# ----------------------------------------------------------------------------------------------------------- the graph


class Variable:
    """The part of a Tensor that the graph needs. Users hold its subclass, Tensor (tensor.py).

    array          its values, in NumPy's or CuPy's array
    requires_grad  True if backward passes compute its gradient
    grad_array     the gradient of a leaf: an array, or an object of rows; `grad_scale` is its loss scale
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
    weight: Any = None  # itself, if a wider array stands behind it (a weight's master, a gradient in FP16): see `taken`
    apart: bool = False  # True for a weight's `data` and `detach()`: read as the master even in a module's call
    result: Callable[..., Any]  # a new Tensor with this array, for the result of an op on this one

    def __init__(self, array: Array, requires_grad: bool, grad_fn: Op | None = None, output_nr: int = 0) -> None:
        self.array, self.requires_grad = array, requires_grad
        self.grad_array, self.grad_scale = None, 1.0
        self.grad_fn, self.output_nr = grad_fn, output_nr
        self._version = [0]  # in a list, so that views of its memory can share it

    version = property(lambda self: self._version[0], doc="The number of changes of its memory in place.")

    def replace_grad(self, array: Any, scale: Any) -> None:
        """Give this leaf another gradient. What the program holds as `grad` becomes it: PyTorch changes it in place."""
        held, old = gradients_held.get(id(self)), self.grad_array
        self.grad_array, self.grad_scale = array, scale  # on one line: an interrupt finds both or neither
        if held is not None and held.array is old and hasattr(array, "strides"):
            held.array, held.grad_scale = array, scale

    def bump_version(self) -> None:
        """Count a change of its memory in place, so that the backward of an op that saved this memory raises.

        For code that writes into `array` itself; `x[...] = value`, `copy_` and `zero_` count their changes.
        """
        self._version[0] += 1


# By id(leaf) the Gradient that `grad` has returned and the program holds, so that `p.grad is p.grad`, as in PyTorch.
gradients_held: WeakValueDictionary[int, Any] = WeakValueDictionary()

# Public names of forward's short arguments; an op whose arguments have other public names gives `arguments`.
_PUBLIC = {"x": "input", "y": "other", "w": "weight", "b": "bias"}


class Op:
    """A differentiable function on arrays; an instance is one call of it, a node of the graph.

    A subclass gives `kind`, `forward(self, *arrays, **options)` and `backward(self, *dy)`, which returns one gradient
    per tensor argument of forward, in order, or None. Tensors, None and Python numbers are passed by position, all
    options by keyword. `save` keeps arrays for backward in `saved`, and takes FP32 statistics as a separate argument.
    """

    kind: ClassVar[Kind]
    name: str  # PyTorch's name, for messages and reports
    arguments: ClassVar[tuple[str, ...]]  # the public names of forward's positional arguments; see _PUBLIC
    fp32: ClassVar[tuple[str, ...]] = ()  # arguments that may be FP32 when others are FP16 (batch norm's weight, ...)
    _fp32: ClassVar[tuple[int, ...]] = ()  # their positions

    gradient: ClassVar[Kind | None] = None  # the kind of backward, if it differs: the gradients of lookups are sums
    casts: ClassVar[bool] = False  # True if the user asks for a result of another dtype
    selects: ClassVar[bool] = False  # True if it returns a view of its first argument, or looks numbers up in it

    saved: Any = ()  # the arrays of `save`; None once backward has freed them
    statistics: tuple = ()
    saved_ids: Any = ()  # ids of the memory of saved arrays; backward frees it, and therefore runs only once
    edges: tuple = ()  # per argument: None, a leaf Tensor, or (op, output index)
    targets: tuple = ()  # per argument: the Target that its gradient must match, or None where none is wanted
    versions: Sequence[tuple] = ()  # (counter, its value) of the arguments and results whose memory backward will read
    sequence: int  # its number in the order of execution
    phase: str = "forward"  # "backward" once that has begun
    dtype: Any = None  # of its outputs
    device: Any = backend.cpu  # the backend of its arrays
    storage: Any = None  # the dtype of its floating arguments
    outputs: int = 1
    options: Mapping[str, Any] = {}  # forward's keyword arguments, which are also attributes
    loss_scale: Any = None  # the scale that this op multiplies into gradients (optim.scaler)
    policy: Policy  # the one in use in its forward pass, which its backward follows

    if TYPE_CHECKING:  # forward's keyword arguments

        def __getattr__(self, name: str) -> Any: ...

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "name" not in cls.__dict__:
            cls.name = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", cls.__name__).lower()
        NAMES.add(cls.name)
        if "forward" in cls.__dict__ and "arguments" not in cls.__dict__:
            parameters = list(inspect.signature(cls.forward).parameters.values())[1:]
            cls.arguments = tuple(_PUBLIC.get(p.name, p.name) for p in parameters if p.kind is not p.KEYWORD_ONLY)
        cls._fp32 = tuple(i for i, name in enumerate(getattr(cls, "arguments", ())) if name in cls.fp32)

    def forward(self, *arrays: Array, **options: Any) -> Any:
        raise NotImplementedError(f"{self.name} has no forward")

    def backward(self, *dy: Array) -> Any:
        raise NotImplementedError(f"{self.name} has no backward")

    def save(self, *arrays: Array, statistics: tuple = ()) -> None:
        """Keep arrays of the storage dtype (or integers) for backward; FP32 statistics are passed separately."""
        self.saved, self.statistics = arrays, statistics

    @classmethod
    def apply(cls, *args: Any, **options: Any) -> Any:
        """Run the op on Tensors, check the dtypes that its kind promises, and record it in the graph."""
        op, args = cls(), taken(cls, args, options)
        tensors = op._connect(args)
        # for backward; a np.float64 would promote FP32 arrays
        op.options = {name: x.item() if isinstance(x, np.generic) else x for name, x in options.items()}
        vars(op).update(op.options)
        y = op.run("forward", [a.array if isinstance(a, Variable) else a for a in args], op.options)
        results = [op._output(z, tensors, i) for i, z in enumerate(y if isinstance(y, tuple) else (y,))]
        if here.observers:
            tell("ran", op, args, tuple([result.array for result in results]))
        if op.targets:
            op.outputs = len(results)
            op._record(tensors + results)
        return tuple(results) if isinstance(y, tuple) else results[0]

    def _connect(self, args: tuple) -> list[Variable]:
        """Set the common device and floating dtype of the Tensors, and per argument the destination of its gradient and
        its Target. Returns the Tensors. TypeError or ValueError for any other argument.
        """
        device, storage, tensors = None, None, []
        edges: Any = [None] * len(args)
        targets: Any = [None] * len(args)
        for i, a in enumerate(args):
            if isinstance(a, Variable):
                tensors.append(a)
                owner, dtype = backend.of(a.array), a.array.dtype
                device = device or owner
                if storage is None and dtype in FLOATING:
                    storage = dtype
                other = dtype != storage and dtype in FLOATING
                if owner is not device or (other and not (i in self._fp32 and dtype == float32 and storage in HALVES)):
                    self._refuse_mixture(args)
                if a.requires_grad and is_grad_enabled():
                    leaf = a if a.weight is None else a.weight
                    edges[i] = leaf if a.grad_fn is None else (a.grad_fn, a.output_nr)
                    targets[i] = Target(a.array.shape, dtype, a.array.strides)
            elif not (a is None or isinstance(a, (int, float, np.generic))):
                raise TypeError(
                    f"{self.name}: expected a Tensor for `{self.name_of(i)}`, got {type_name(a)}; "
                    "wrap it with tinymp.tensor(...)"
                )
        self.device, self.storage = device, storage
        if any(targets):
            self.edges, self.targets = tuple(edges), tuple(targets)
        return tensors

    def run(self, phase: str, arrays: list, options: Mapping[str, Any]) -> Any:
        """Run the definition of a phase, "forward" or "backward", or its fast path.

        It runs in a copy of the context: not even an interrupt can leave a setting changed.
        """
        self.phase = phase
        return copy_context().run(self._compute, getattr(type(self), phase), arrays, options)

    def _compute(self, definition: Any, arrays: list, options: Mapping[str, Any]) -> Any:
        """Rounds `arrays` in place, so that the FP32 sums of gradients in it are freed."""
        running.set(self)
        np.seterr(all="ignore")  # as in `events.quietly`
        if backward := self.phase == "backward":
            policy_in_use.set(self.policy)
            arrays[:] = [dy if dy is None else joined(dy, Target((), self.dtype)) for dy in arrays]
        if (study := policy_in_use.get().study) is not None and self.kind is DOT:
            arrays[:] = [study.operand(x, backward) if hasattr(x, "dtype") else x for x in arrays]
        faster: Any = find(definition, self.device.name) if plain(self.storage) else None
        y = NotImplemented if faster is None else faster(self, *arrays, **options)
        return definition(self, *arrays, **options) if y is NotImplemented else y

    def _output(self, y: Any, tensors: list, index: int) -> Variable:
        """Check that the result has the dtype that the op's kind promises, and make it a Tensor."""
        y = self.device.xp.asarray(y)  # NumPy has scalars without axes
        promised = float32 if self.kind is LOSS and self.storage in HALVES else self.storage
        if y.dtype != promised and y.dtype in FLOATING and not self.casts and promised is not None:
            raise TypeError(f"{self.name}: a {self.kind.name} op on {self.storage} writes {promised}, got {y.dtype}")
        records = bool(self.targets) and y.dtype in FLOATING
        self.dtype = y.dtype if records else self.dtype
        result = tensors[0].result(y, records, self if records else None, index)
        if y.base is not None:  # a view shares the change counter of the tensor that it shows
            owner = backend.owner_of(y)
            for a in tensors:
                if backend.owner_of(a.array) is owner:
                    result._version = a._version
        x: Any = tensors[0]
        if self.selects and x.weight is x and (x.apart or not in_pass.get()):
            return x.selected(self, result, tensors[1:])
        return result

    def _record(self, tensors: list) -> None:
        """Make this op a node of the graph, and note the versions of the arguments and results that it saved."""
        self.saved_ids = ids = {id(backend.owner_of(s)) for s in (*self.saved, *self.statistics) if hasattr(s, "dtype")}
        if ids:
            self.versions = [(t._version, t._version[0]) for t in tensors if id(backend.owner_of(t.array)) in ids]
        self.sequence, self.policy = next(_sequence), policy_in_use.get()
        for s in self.saved:
            wrong = getattr(s, "dtype", self.storage) != self.storage and s.dtype in FLOATING
            if wrong and not any(s is t.array for t in tensors):
                raise TypeError(
                    f"{self.name}: saved {s.dtype} for backward, but storage is {self.storage}; see Op.save"
                )

    def run_backward(self, dys: list, retain: bool) -> tuple:
        """Call backward, check that its gradients fit the arguments, and free the saved arrays."""
        if self.saved is None:
            raise RuntimeError(
                f"{self.name}: its saved arrays were freed by an earlier backward(); run the forward pass again "
                "(for several losses, add them up, or pass retain_graph=True in all calls but the last)"
            )
        if any(counter[0] != value for counter, value in self.versions):
            raise RuntimeError(
                f"{self.name}: a tensor that backward needs was changed in place after the forward pass; call "
                "backward() before the optimizer's step and other in-place changes"
            )
        dx = self.run("backward", dys, {})
        dxs = dx if isinstance(dx, tuple) else (dx,)
        if len(dxs) != len(self.edges):
            raise RuntimeError(f"{self.name}: backward gave {len(dxs)} gradients for {len(self.edges)} arguments")
        for i, (g, target) in enumerate(zip(dxs, self.targets)):
            own = isinstance(g, Variable) or not hasattr(g, "dtype")  # no array
            if target is not None and (own or g.shape != target.shape or g.dtype != target.dtype):
                raise RuntimeError(
                    f"{self.name}: the gradient of `{self.name_of(i)}` must be an array, {target.dtype} {target.shape} "
                    f"like the argument, got {type_name(g) if own else f'{g.dtype} {g.shape}'}"
                )
        if here.observers:
            under(policy_in_use, self.policy, tell, "ran", self, tuple(dys), dxs)
        if self.saved_ids and not retain:
            self.saved, self.statistics = None, ()
        return dxs

    @property
    def needs(self) -> tuple[bool, ...]:
        """True for each argument that requires a gradient; () where none does."""
        return tuple([target is not None for target in self.targets])

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
        given = [(f"`{cls.name_of(i)}`", a.array) for i, a in enumerate(args) if isinstance(a, Variable)]
        if len({backend.of(x) for _, x in given}) > 1:
            seen = ", ".join(f"{name} is on {backend.of(x).name}" for name, x in given)
            raise ValueError(f"{cls.name}: expected tensors on one device, got {seen}; move them with .to(device)")
        given = [(name, x.dtype) for name, x in given if x.dtype in FLOATING]
        raise TypeError(
            f"{cls.name}: expected tensors of one dtype, got {', '.join(f'{name} is {x}' for name, x in given)}; where "
            f"{max(given, key=lambda x: x[1].itemsize)[0]} is made, write policy.cast(zeros(...)) or policy.cast(model)"
        )


def taken(op: Any, args: tuple, options: Mapping[str, Any] = {}) -> tuple:
    """The arguments converted for `op`, a class or the name of a function of several ops. A rule of the policy in use
    converts them, if it has one. Otherwise, outside of module calls, and in them if there are no other arguments than
    `data` of weights, weights become their FP32 masters and gradients FP32, unless another argument is an FP16 tensor
    (the table in docs/policies.md).
    """
    if (rule := policy_in_use.get().arguments) is not None:
        return rule(op, args, options)
    if in_pass.get():
        for a in args:
            if isinstance(a, Variable) and not a.apart:
                return args
    if getattr(op, "selects", False):
        return args
    if any(isinstance(a, Variable) and a.weight is None and a.array.dtype in HALVES for a in args):
        return args
    return tuple([a if getattr(a, "weight", None) is None else a.wide(op) for a in args])


class Backward:
    """One run of `Tensor.backward`. While it propagates, observers find it as `events.here.backward`.

    root, gradient  the tensor at which it begins, and that tensor's gradient
    retain          True if ops keep their saved arrays for another run
    scale           loss scale of the gradients that enter the current op, or, after it ran, leave it
    leaves          {id of leaf: [leaf, sum of its gradients, loss scale]} in the order in which leaves were reached.
                    Each gradient carries a loss scale (1.0: none); only gradients with the same scale are added
    """

    scale: Any = 1.0

    def __init__(self, root: Variable, gradient: Array, retain: bool = False) -> None:
        self.root, self.gradient, self.retain = root, gradient, retain
        self.leaves: dict[int, Any] = {}

    def run(self) -> None:
        """Perform `Tensor.backward`, in a context of its own (`events.quietly`)."""
        backward_run.set(self)
        in_pass.set(True)
        self.propagate()
        self.deposit()
        if here.observers:
            tell("summed", self)

    def propagate(self) -> None:
        """Visit the ops from root in the reverse of their order of execution; no recursion."""
        waiting: dict[Op, list] = {}  # op -> the sum of each output's gradients so far, and last their loss scale
        queue: list[tuple[int, Op]] = []  # in order of execution: all ops that used the last one's results are done
        edges: Any = [self.root if self.root.grad_fn is None else (self.root.grad_fn, self.root.output_nr)]
        dxs: Any = [self.gradient]
        while True:
            for edge, dx in zip(edges, dxs):
                if edge is None or dx is None:
                    continue
                if isinstance(edge, Variable):
                    carried = self.scale if edge.grad_array is None else edge.grad_scale
                    slot, i = self.leaves.setdefault(id(edge), [edge, None, carried]), 1
                else:
                    (op, i), dx = edge, dx.dense() if hasattr(dx, "dense") else dx
                    if op not in waiting:
                        waiting[op] = [None] * op.outputs + [self.scale]
                        insort(queue, (op.sequence, op))
                    slot = waiting[op]
                if slot[-1] is not self.scale and slot[-1] != self.scale:
                    raise RuntimeError(
                        f"backward: gradients with loss scales {float(slot[-1]):g} and {float(self.scale):g} meet; "
                        "pass every part of the loss through scaler.scale, once; before S changes, unscale_, step and "
                        "zero_grad"
                    )
                slot[i] = dx if slot[i] is None else gathered(slot[i], dx)
            dxs = dx = slot = None  # frees the gradients that were added up, before the next backward runs
            if not queue:
                return
            _, op = queue.pop()
            *dys, self.scale = waiting.pop(op)
            edges, dxs = op.edges, op.run_backward(dys, self.retain)
            self.scale = self.scale if op.loss_scale is None else self.scale * op.loss_scale

    def deposit(self) -> None:
        """Add the gradients to the leaves' `grad`; in FP32 if a leaf already has one."""
        owned = {id(backend.owner_of(self.gradient))}  # memory that no `grad` may share
        for leaf, total, scale in self.leaves.values():
            if not leaf.requires_grad:  # any more
                continue
            running.set(leaf)
            dx = joined(total, leaf.array)  # rounded once to the leaf's dtype
            running.set(None)
            if here.observers:
                tell("deposited", leaf, dx, scale)
            old = leaf.grad_array
            dx = dx if old is None else added(old, dx)
            if hasattr(old, "strides") and old.dtype == dx.dtype and backend.writeable(old):
                old[...] = dx  # rounds: never; it may be memory of the program's
                dx = old
            elif not hasattr(dx, "dense"):
                dx = backend.of(dx).xp.asarray(dx)  # NumPy has scalars without axes
                owner = backend.owner_of(dx)
                if id(owner) in owned or owner.nbytes != dx.nbytes or not backend.writeable(dx):
                    dx = dx.copy()
                owned.add(id(backend.owner_of(dx)))
            leaf.replace_grad(dx, scale)
