"""Tensor, Op and backward(): the whole autograd.

A Tensor is an array plus, when it was computed from something that requires a gradient, the Op that made it. An Op is
a node of the graph: it remembers where its inputs came from and the arrays that its backward needs, nothing else, so
that an activation nobody saved is freed as soon as the forward pass lets go of it.

Rules:
- Ops never write into their inputs. `reshape`, `transpose`, slices, ... return views where NumPy does: they share
  memory, and `x += y` on a Tensor means `x = x + y`.
- Writing in place is for leaves, outside the graph: `with no_grad(): w[0] = 1.0`, `w.copy_(...)`. Where an op saved an
  argument or its result and that memory was changed since, through any tensor that shares it (a view, `detach()`), the
  op's backward raises. Writing into the array itself (`x.data`, `x.numpy()`) is not seen, as in PyTorch.
- backward() frees the arrays that the ops it passes have saved; a second backward over such an op raises, unless the
  first one said retain_graph=True. Ops that save none (+, reshape, split, ...) are passed any number of times. There is
  no double backward.
- Gradients of a tensor that is used several times are summed in FP32 in a fixed order (the reverse of the order of
  the forward pass) and rounded once; two runs on the CPU agree bit for bit. Each backward call rounds the gradient of
  an FP16 leaf to FP16 once; what several calls leave is summed in FP32: from the second call on, `grad` is FP32.
"""

from __future__ import annotations

import heapq
import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import count
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np

from . import _dtypes, backend
from .events import here, tell
from .precision import (
    FLOATING,
    LOSS,
    MOVEMENT,
    POINTWISE,
    Kind,
    Policy,
    fit,
    float16,
    float32,
    float64,
    may_fuse,
    require_fit,
    scalar,
    store,
    to_dtype,
)
from .sparse import SparseRows, accumulate, dense_of, values_of, with_values

Array = Any

_grad_enabled: ContextVar[bool] = ContextVar("grad_enabled", default=True)
_sequence = count()


@contextmanager
def no_grad() -> Iterator[None]:
    """Within the block, no op records a graph: nothing is saved, results do not require gradients."""
    token = _grad_enabled.set(False)
    try:
        yield
    finally:
        _grad_enabled.reset(token)


@contextmanager
def enable_grad() -> Iterator[None]:
    """Within the block, ops record the graph again (the inverse of `no_grad`)."""
    token = _grad_enabled.set(True)
    try:
        yield
    finally:
        _grad_enabled.reset(token)


def is_grad_enabled() -> bool:
    """Whether ops record a graph here."""
    return _grad_enabled.get()


# ------------------------------------------------------------------------------------------------------------------ Op


class Like(NamedTuple):
    """What a gradient must look like: the shape and dtype of the argument it belongs to."""

    shape: tuple[int, ...]
    dtype: np.dtype


# What forward calls x, users know as `input`. An op whose arguments have other public names gives `arguments`.
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

    gradient: ClassVar[Kind | None] = None  # the kind of backward where it is another: lookups whose gradients add up
    casts: ClassVar[bool] = False  # whether its result has another dtype, on the user's word

    # The CUDA twins of forward and backward, where an op has them. They take the same arguments, save the same arrays
    # and return the same values, or NotImplemented for a case that they leave to the definition.
    forward_cuda: ClassVar[Any] = None
    backward_cuda: ClassVar[Any] = None

    saved: Any = ()  # what `save` kept; None once backward has freed it
    statistics: tuple = ()
    keeps: bool = False  # whether arrays are among them: then they are freed, and backward runs once
    needs: tuple[bool, ...] = ()  # which arguments require a gradient
    edges: tuple = ()  # per argument: None, a leaf Tensor, or (op, output index)
    like: tuple = ()  # per argument: the Like that its gradient must match, or None where none is wanted
    versions: Sequence[tuple] = ()  # (counter, its value) of the arguments and results whose memory backward will read
    sequence: int  # its place in the order in which ops ran
    phase: str = "forward"  # or "backward", from where that begins
    dtype: Any = None  # of its outputs
    device: Any = backend.cpu  # the backend of its arrays
    storage: Any = None  # the dtype of its floating arguments
    outputs: int = 1
    options: Mapping[str, Any] = {}  # what forward got by keyword
    loss_scale: Any = None  # the scale that this op multiplies into gradients (optim.scaler)

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "name" not in cls.__dict__:
            cls.name = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", cls.__name__).lower()
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

    @classmethod
    def apply(cls, *args: Any, **options: Any) -> Any:
        """Run the op on Tensors, check what it promises about precision, and record it in the graph."""
        op = cls()
        arrays = []
        recording = False
        storage: Any = None
        device: Any = None
        for i, a in enumerate(args):
            if isinstance(a, Tensor):
                x = a.data
                if device is not (owner := backend.of(x)):
                    if device is not None:
                        cls._mixed_devices(args)
                    device = owner
                if x.dtype is not storage and x.dtype in FLOATING:
                    if storage is None:
                        storage = x.dtype
                    elif x.dtype != storage:
                        beside = storage == float16 and x.dtype == float32 and cls._name_of(i) in cls.fp32
                        if not beside:
                            cls._mixed_dtypes(args)
                recording = recording or a.requires_grad
                arrays.append(x)
            elif a is None or isinstance(a, (int, float, np.generic)):
                arrays.append(a)
            else:
                raise TypeError(
                    f"{cls.name}: expected a Tensor for `{cls._name_of(i)}`, got {type_name(a)}; "
                    "wrap it with tinymp.tensor(...)"
                )
        for name, value in options.items():
            if isinstance(value, np.generic):  # a np.float64 would lift FP32 arrays to FP64
                options[name] = value.item()
        recording = recording and _grad_enabled.get()
        if recording:
            op.needs = tuple([isinstance(a, Tensor) and a.requires_grad for a in args])
        # inf and nan are values here: the scaler and the finite checks look for them
        op.options, op.storage = options, storage
        outer, here.running = here.running, op
        try:
            with np.errstate(all="ignore"):
                if device is backend.cpu or device is None:
                    y = op.forward(*arrays, **options)
                else:
                    op.device = device
                    y = op._on_device(op.forward, cls.forward_cuda, arrays, options)
        finally:
            here.running = outer
        ys = y if isinstance(y, tuple) else (y,)
        if here.observers:
            tell("ran", op, args, ys)
        results = tuple([op._output(op.xp.asarray(y), storage, recording, i) for i, y in enumerate(ys)])
        for result in results:
            if result.data.base is not None:  # a view counts its changes together with what it shows
                owner = _owner(result.data)
                for a in args:
                    if isinstance(a, Tensor) and _owner(a.data) is owner:
                        result._version = a._version
        if recording:
            op._record(args, results, storage)
        else:
            op.saved = op.statistics = ()
        return results if isinstance(y, tuple) else results[0]

    def _on_device(self, definition: Any, twin: Any, arrays: Any, options: dict) -> Any:
        """On a GPU: run the CUDA twin where there is one and the policy allows it, else the definition."""
        try:
            able = twin is not None and self.device is backend.gpu and may_fuse(self.storage)
            y = twin(self, *arrays, **options) if able else NotImplemented
            return definition(*arrays, **options) if y is NotImplemented else y
        except Exception as error:
            if self.device.is_out_of_memory(error):
                raise MemoryError(
                    f"{self.name}: the GPU's memory is full ({error}); use a smaller batch, or mixed precision "
                    "(tinymp.MIXED), which halves the activations"
                ) from error
            raise

    def _output(self, y: Array, storage: Any, recording: bool, index: int) -> Tensor:
        """Hold the result to the dtype that the op's kind promises, and make it a Tensor."""
        differentiable = y.dtype in FLOATING
        if differentiable and storage is not None and not self.casts:
            promised = float32 if self.kind is LOSS and storage == float16 else storage
            if y.dtype != promised:
                raise TypeError(f"{self.name}: a {self.kind.name} op on {storage} writes {promised}, got {y.dtype}")
        result = Tensor.__new__(Tensor)
        result._set(y, recording and differentiable)
        if recording and differentiable:
            result._op, result._index, self.dtype = self, index, y.dtype
        return result

    def _record(self, args: tuple, results: tuple, storage: Any) -> None:
        """Make this op a node: where gradients go, what they must look like, what was saved."""
        edges, like = [], []
        for a, need in zip(args, self.needs):
            edges.append(None if not need else a if a._op is None else (a._op, a._index))
            like.append(Like(a.data.shape, a.data.dtype) if need else None)
        self.edges, self.like = tuple(edges), tuple(like)
        kept = {id(_owner(s)) for s in (*self.saved, *self.statistics) if hasattr(s, "dtype")}
        if kept:
            self.keeps = True
            self.versions = [
                (t._version, t._version[0])
                for t in (*args, *results)
                if isinstance(t, Tensor) and id(_owner(t.data)) in kept
            ]
        self.outputs = len(results)
        self.sequence = next(_sequence)
        assert self.saved is not None
        for a in self.saved:
            if getattr(a, "dtype", storage) != storage and a.dtype in FLOATING and not _is_argument(a, args):
                raise TypeError(f"{self.name}: saved {a.dtype} for backward, but storage is {storage}; see Op.save")

    def run_backward(self, dys: list, retain: bool) -> tuple:
        """Call backward and hold its gradients to the shape and dtype of the inputs; then free what was saved."""
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
        self.phase, outer, here.running = "backward", here.running, self
        try:
            dys = [None if dy is None else store(dy, like=self) for dy in dys]  # FP32 sums are rounded once
            if self.device is backend.cpu:
                dx = self.backward(*dys)
            else:
                dx = self._on_device(self.backward, type(self).backward_cuda, dys, {})
        finally:
            here.running = outer
        dxs = dx if isinstance(dx, tuple) else (dx,)
        if len(dxs) != len(self.edges):
            raise RuntimeError(f"{self.name}: backward gave {len(dxs)} gradients for {len(self.edges)} arguments")
        for i, (g, like) in enumerate(zip(dxs, self.like)):
            if like is not None and (g is None or g.shape != like.shape or g.dtype != like.dtype):
                raise RuntimeError(
                    f"{self.name}: the gradient of `{self._name_of(i)}` must be {like.dtype} {like.shape} like the "
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
    def _name_of(cls, i: int) -> str:
        """The name of argument i; an op on any number of tensors calls all of them by its one name."""
        return cls.arguments[i] if i < len(cls.arguments) else cls.arguments[-1]

    @classmethod
    def _mixed_devices(cls, args: tuple) -> None:
        seen = ", ".join(f"`{cls._name_of(i)}` is on {a.device}" for i, a in enumerate(args) if isinstance(a, Tensor))
        raise ValueError(f"{cls.name}: expected tensors on one device, got {seen}; move them with .to(device)")

    @classmethod
    def _mixed_dtypes(cls, args: tuple) -> None:
        seen = ", ".join(
            f"`{cls._name_of(i)}` is {a.dtype}"
            for i, a in enumerate(args)
            if isinstance(a, Tensor) and a.dtype in FLOATING
        )
        raise TypeError(
            f"{cls.name}: expected tensors of one dtype, got {seen}; nothing is promoted silently: give both the "
            "storage of one policy with policy.cast(...), or convert one with .half() or .float()"
        )


# -------------------------------------------------------------------------------------------------------------- Tensor


class Tensor:
    """An array that can require a gradient.

    data           the array (NumPy or CuPy), of any shape; float16, float32, float64, integer or bool. Another array
                   may take its place, of any shape, as in PyTorch: unchecked, as a check would cost every op a
                   microsecond (a Parameter's is)
    requires_grad  whether backward() should fill `grad`; only for floating dtypes
    grad           after backward(), the gradient as an array of the same shape, or None; in the storage dtype after
                   one backward call, FP32 once several calls accumulated or a scaler unscaled it. SparseRows where
                   all that the tensor was used for gives some of its rows (`embedding(..., sparse=True)`)
    grad_scale     the loss scale that `grad` still carries (1.0: none)

    Functions of `tinymp.ops` whose first argument is a tensor are methods too: `x.sum(0)` is `ops.sum(x, 0)`.
    """

    __slots__ = ("__weakref__", "_index", "_op", "_version", "data", "grad", "grad_scale", "requires_grad")
    __array_ufunc__ = None  # numpy_array * tensor asks the Tensor, not the array element by element

    data: Array
    grad: Array | None
    grad_scale: Any
    requires_grad: bool
    _op: Op | None
    _version: list[int]

    def __init__(self, data: Any, dtype: Any = None, requires_grad: bool = False) -> None:
        source, data = (data, data.data) if isinstance(data, Tensor) else (None, data)
        try:
            array = backend.of(data).xp.asarray(data)
        except ValueError as error:
            raise ValueError(f"Tensor: expected numbers in rows of equal length; {error}") from None
        if array.dtype.kind not in "fiub":
            raise TypeError(f"Tensor: expected real numbers, got {type(data).__name__} with dtype {array.dtype}")
        if dtype is None and array.dtype == float64 and not hasattr(data, "dtype"):
            dtype = float32  # Python floats become FP32, as in PyTorch; float64 arrays stay float64
        array = array if dtype is None else fit("Tensor", array, _dtypes.as_dtype(dtype))
        if array.dtype.kind not in "iub" and array.dtype not in FLOATING:
            raise TypeError(f"Tensor: expected float16, float32, float64, an integer or bool, got {array.dtype}")
        if requires_grad and array.dtype not in FLOATING:
            raise TypeError(f"Tensor: only floating tensors can require a gradient, got {array.dtype}")
        self._set(array, requires_grad)
        if source is not None and array is source.data:
            self._version = source._version

    def _set(self, data: Array, requires_grad: bool) -> None:
        self.data = data
        self.grad = None
        self.grad_scale = 1.0
        self.requires_grad = requires_grad
        self._op = None
        self._index = 0
        self._version = [0]  # how often its memory was changed in place; shared with views of it

    # ---- what it is

    shape = property(lambda self: self.data.shape, doc="The lengths of its axes.")
    dtype = property(lambda self: self.data.dtype, doc="Its NumPy dtype.")
    ndim = property(lambda self: self.data.ndim, doc="The number of its axes.")
    nbytes = property(lambda self: self.data.nbytes, doc="The size of its data in bytes.")
    device = property(lambda self: backend.of(self.data).name, doc='Where its data is: "cpu".')
    is_leaf = property(lambda self: self._op is None, doc="Whether it was made by the user, not by an op.")
    version = property(lambda self: self._version[0], doc="How often its memory was changed in place.")
    T = property(lambda self: _transposed(self), doc="The transposed matrix; a vector or a number is its own.")

    def numel(self) -> int:
        """The number of elements."""
        return self.data.size

    def size(self, dim: int | None = None) -> Any:
        """The shape, or the length of axis `dim`. IndexError if there is no such axis."""
        if dim is None:
            return self.shape
        if isinstance(dim, bool) or not isinstance(dim, (int, np.integer)):
            raise TypeError(f"size: expected `dim` to be an integer, got {type_name(dim)}")
        if not -self.ndim <= dim < self.ndim:
            raise IndexError(f"size: expected an axis of shape {self.shape}, got dim={dim}")
        return self.shape[int(dim)]

    def dim(self) -> int:
        """The number of axes."""
        return self.data.ndim

    def __len__(self) -> int:
        if not self.data.ndim:
            raise TypeError("len: a tensor without axes has no length")
        return self.data.shape[0]

    def __iter__(self) -> Iterator[Tensor]:
        return (self[i] for i in range(len(self)))

    def __repr__(self) -> str:
        body = np.array2string(backend.to_cpu(self.data), precision=4, threshold=50, prefix="tensor(")
        parts = [body, f"dtype={self.dtype}", f"device={self.device}"]
        if self._op is not None:
            parts.append(f"from={self._op.name}")
        elif self.requires_grad:
            parts.append("requires_grad=True")
        return f"tensor({', '.join(parts)})"

    # ---- leaving the graph

    def numpy(self) -> np.ndarray:
        """Its data as a NumPy array outside the graph: shared with the tensor, or from a GPU a copy."""
        return backend.to_cpu(self.data)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        if copy is False and backend.of(self.data) is not backend.cpu:
            raise ValueError("__array__: the data is on the GPU and can only be copied; leave out copy=False")
        return np.array(backend.to_cpu(self.data), dtype=dtype, copy=copy)

    def __array_function__(self, function: Callable, types: Any, args: tuple, options: dict) -> Any:
        """numpy.mean(x) and its like: NumPy's result for NumPy's arrays, outside the graph."""
        return function(*map(_host, args), **{name: _host(x) for name, x in options.items()})

    def __dlpack__(self, **options: Any) -> Any:
        return self.data.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.data.__dlpack_device__()

    def item(self) -> Any:
        """The one element as a Python number. ValueError if there is not exactly one."""
        if self.data.size != 1:
            raise ValueError(f"item: expected one element, got shape {self.shape}")
        return backend.to_cpu(self.data).item()

    def tolist(self) -> Any:
        """Its elements as nested lists of Python numbers."""
        return backend.to_cpu(self.data).tolist()

    def __float__(self) -> float:
        return float(self.item())

    def __int__(self) -> int:
        return int(self.item())

    def __index__(self) -> int:
        if self.dtype.kind not in "iu":
            raise TypeError(f"index: expected an integer tensor, got {self.dtype}")
        return int(self.item())

    def __format__(self, spec: str) -> str:
        return format(self.item() if spec else str(self), spec)  # f"{loss:.3f}"

    def __bool__(self) -> bool:
        if self.data.size != 1:
            raise ValueError(f"bool: a tensor of shape {self.shape} is neither true nor false; use .all() or .any()")
        return bool(self.item())

    def detach(self) -> Tensor:
        """The same data outside the graph (shared memory, no gradient)."""
        return Tensor(self)

    def clone(self) -> Tensor:
        """A copy of the data, inside the graph."""
        return Copy.apply(self)

    # ---- dtype and device

    def to(self, target: Any) -> Tensor:
        """This tensor with another dtype, or on another device ("cpu", "gpu"); itself where nothing changes.

        FP16 to FP32 is exact; FP32 to FP16 is one rounding, like every store. Differentiable between floating dtypes;
        integers cut off the fraction. A dtype may be PyTorch's. ValueError for a value that an integer dtype cannot
        hold (300 in int8, nan), an integer beyond FP16, or a device that does not exist; RuntimeError for a device that
        does not work: it says why.
        """
        if target is None or (isinstance(target, str) and target not in _dtypes.NAMES):
            device = backend.get(target)
            return self if device is backend.of(self.data) else Move.apply(self, to=device)
        try:
            dtype = _dtypes.as_dtype(target)
        except TypeError as error:
            raise TypeError(f"to: expected a dtype or a device, got {target!r}") from error
        if dtype == self.dtype:
            return self
        if dtype not in FLOATING or self.dtype not in FLOATING:
            return Tensor(fit("to", self.data, dtype))
        return Cast.apply(self, dtype=dtype)

    def half(self) -> Tensor:
        """This tensor in FP16 (one rounding)."""
        return self.to(float16)

    def float(self) -> Tensor:
        """This tensor in FP32 (exact from FP16)."""
        return self.to(float32)

    def double(self) -> Tensor:
        """This tensor in FP64 (exact)."""
        return self.to(float64)

    def _cast_storage(self, policy: Policy) -> Tensor:
        if self.dtype not in FLOATING or self.dtype == policy.storage:
            return self
        if not self.requires_grad:
            return Tensor(fit("Policy.cast", self.data, policy.storage))
        return self.to(policy.storage)

    # ---- in place, outside the graph

    def copy_(self, source: Any) -> Tensor:
        """Overwrite the data with `source` (rounded to this dtype). Only outside the graph.

        ValueError for another shape, and for a value that this dtype cannot hold.
        """
        self.require_outside_graph("copy_")
        value = value_for("copy_", source, self.data)
        if np.shape(value) != self.shape:
            raise ValueError(f"copy_: expected source.shape == {self.shape}, got {np.shape(value)}")
        self.data[...] = value
        self.bump_version()
        return self

    def zero_(self) -> Tensor:
        """Overwrite the data with zeros. Only outside the graph."""
        self.require_outside_graph("zero_")
        self.data[...] = 0
        self.bump_version()
        return self

    def requires_grad_(self, requires_grad: bool = True) -> Tensor:
        """Set `requires_grad` of a leaf. RuntimeError for a result of an op; TypeError for integers."""
        if not isinstance(requires_grad, (bool, np.bool_)):
            raise TypeError(f"requires_grad_: expected True or False, got {type_name(requires_grad)}")
        if self._op is not None and not requires_grad:
            raise RuntimeError("requires_grad_: only leaves can stop requiring a gradient; use detach()")
        if requires_grad and self.dtype not in FLOATING:
            raise TypeError(f"requires_grad_: only floating tensors can require a gradient, got {self.dtype}")
        self.requires_grad = requires_grad
        return self

    def require_outside_graph(self, how: str) -> None:
        """RuntimeError where a change in place, which the user calls `how`, would be one of the graph."""
        if self._op is not None or (self.requires_grad and _grad_enabled.get()):
            raise RuntimeError(
                f"{how}: this tensor is part of a graph; change leaves inside `with tinymp.no_grad():`, or build a "
                "new tensor (where, masked_fill, cat, pad)"
            )

    def bump_version(self) -> None:
        """Count a change of its memory in place, so that the backward of an op that saved this memory raises.

        For code that writes into `data` itself; `x[...] = value`, `copy_` and `zero_` count their changes.
        """
        self._version[0] += 1

    # ---- backward

    def zero_grad(self) -> None:
        """Forget the gradient."""
        self.grad, self.grad_scale = None, 1.0

    def backward(self, gradient: Any = None, retain_graph: bool = False) -> None:
        """Compute the gradient of this tensor with respect to every leaf that requires one, and add it to their `grad`.

        gradient: dL/d(this), of this shape and dtype; may be left out for a tensor of one element (1.0).
        retain_graph: keep the arrays that the ops behind it saved, for another backward over them; else they are freed.
        RuntimeError without a graph, over an op whose arrays were freed, or without a gradient on a tensor of several
        elements.
        """
        if not self.requires_grad:
            raise RuntimeError(
                "backward: this tensor does not require a gradient (no input had requires_grad=True, or it was "
                "computed under no_grad or from detached tensors)"
            )
        if gradient is None:
            if self.data.size != 1:
                raise RuntimeError(
                    f"backward: a tensor of shape {self.shape} needs an explicit gradient; reduce it to a scalar "
                    "with .sum() or .mean(), or pass gradient="
                )
            gradient = backend.of(self.data).xp.ones_like(self.data)
        else:
            gradient = gradient.data if isinstance(gradient, Tensor) else gradient
            gradient = backend.of(self.data).xp.asarray(gradient)
            if gradient.shape != self.shape or gradient.dtype != self.dtype:
                raise ValueError(
                    f"backward: expected gradient to be {self.dtype} {self.shape} like the tensor, got "
                    f"{gradient.dtype} {gradient.shape}"
                )
        with np.errstate(all="ignore"):
            run = Backward(self, gradient, retain_graph)
            run.propagate()
            run.deposit()

    if TYPE_CHECKING:  # tinymp.ops.bind gives Tensor these methods at import; see `ops/__init__.py`

        def __getattr__(self, name: str) -> Callable[..., Any]: ...
        def __getitem__(self, index: Any) -> Tensor: ...
        def __setitem__(self, index: Any, value: Any) -> None: ...
        def __add__(self, other: Any) -> Tensor: ...
        def __radd__(self, other: Any) -> Tensor: ...
        def __sub__(self, other: Any) -> Tensor: ...
        def __rsub__(self, other: Any) -> Tensor: ...
        def __mul__(self, other: Any) -> Tensor: ...
        def __rmul__(self, other: Any) -> Tensor: ...
        def __truediv__(self, other: Any) -> Tensor: ...
        def __rtruediv__(self, other: Any) -> Tensor: ...
        def __pow__(self, exponent: Any) -> Tensor: ...
        def __neg__(self) -> Tensor: ...
        def __matmul__(self, other: Any) -> Tensor: ...


class Backward:
    """One run of `Tensor.backward`. While it propagates, observers find it as `events.here.backward`.

    root, gradient  where it begins, and with what gradient
    retain          whether ops keep what they saved, for another run
    leaves          {id of leaf: [leaf, gradient, loss scale]} in the order in which the leaves were reached. A gradient
                    travels with the loss scale that it carries (1.0: none), and two meet only under one scale
    """

    def __init__(self, root: Tensor, gradient: Array, retain: bool = False) -> None:
        self.root, self.gradient, self.retain = root, gradient, retain
        self.leaves: dict[int, list] = {}

    def propagate(self) -> None:
        """Walk the graph from root in the reverse of the order in which its ops ran; no recursion."""
        root, leaves = self.root, self.leaves
        waiting: dict[Op, list] = {}  # op -> gradients of its outputs so far, and their loss scale
        queue: list[tuple[int, Op]] = []  # the op that ran last comes first: all its users have been visited

        def send(edge: Any, dx: Array, scale: Any) -> None:
            if isinstance(edge, Tensor):
                slot, i = leaves.setdefault(id(edge), [edge, None, scale]), 1
            else:
                (op, i), dx = edge, dense_of(dx)
                if op not in waiting:
                    waiting[op] = [None] * op.outputs + [scale]
                    heapq.heappush(queue, (-op.sequence, op))
                slot = waiting[op]
            if slot[-1] is not scale and slot[-1] != scale:
                raise RuntimeError(
                    f"backward: gradients with loss scales {float(slot[-1]):g} and {float(scale):g} meet; pass every "
                    "part of the loss through scaler.scale, once"
                )
            slot[i] = dx if slot[i] is None else accumulate(slot[i], dx)

        send(root if root._op is None else (root._op, root._index), self.gradient, 1.0)
        outer, here.backward = here.backward, self
        try:
            while queue:
                _, op = heapq.heappop(queue)
                *dys, scale = waiting.pop(op)
                dxs = op.run_backward(dys, self.retain)
                if op.loss_scale is not None:
                    scale = scale * op.loss_scale
                for edge, dx in zip(op.edges, dxs):
                    if edge is not None and dx is not None:
                        send(edge, dx, scale)
        finally:
            here.backward = outer

    def deposit(self) -> None:
        """Add what was found to the leaves' `grad`, in FP32 where there is one already."""
        owned = {id(self.gradient), id(self.gradient.base)}
        for leaf, _, scale in self.leaves.values():  # all of them before the first is written
            if leaf.grad is not None and leaf.grad_scale is not scale and leaf.grad_scale != scale:
                raise RuntimeError(
                    f"backward: a gradient with loss scale {float(scale):g} meets one with {float(leaf.grad_scale):g} "
                    f"in the same `grad` (shape {leaf.shape}); accumulate with one scale, then unscale_, step and "
                    "zero_grad"
                )
        for leaf, dx, scale in self.leaves.values():
            dx = self.stored(leaf, dx)
            if here.observers:
                tell("deposited", leaf, dx, scale)
            if isinstance(dx, SparseRows):  # made for this leaf alone
                leaf.grad, leaf.grad_scale = dx if leaf.grad is None else accumulate(leaf.grad, dx), scale
                continue
            if leaf.grad is None:
                xp = backend.of(leaf.data).xp
                dx = xp.asarray(dx)  # NumPy computes scalars from arrays without axes
                owner = _owner(dx)
                if id(owner) in owned or owner.nbytes != dx.nbytes or not backend.writeable(dx):
                    dx = dx.copy()  # a leaf's grad is its own: never another tensor's memory, nor a broadcast view
                owned.add(id(owner))
                leaf.grad, leaf.grad_scale = dx, scale
            else:
                leaf.grad = backend.of(leaf.data).xp.asarray(accumulate(leaf.grad, dx))

    @staticmethod
    def stored(leaf: Tensor, dx: Any) -> Any:
        """A leaf's gradient, which may be a sum in FP32, rounded once to the leaf's dtype."""
        outer, here.running = here.running, leaf
        try:
            return with_values(dx, store(values_of(dx), leaf.data))
        finally:
            here.running = outer


def _owner(x: Array) -> Array:
    """The array that owns the memory of x, or the one nearest to what does (a file's pages, another library's)."""
    while getattr(x.base, "dtype", None) is not None:
        x = x.base
    return x


def type_name(x: Any) -> str:
    """The type of x for messages, with its module unless it is built in: another library has a Tensor, too."""
    kind = type(x)
    return kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__name__}"


def _is_argument(a: Array, args: tuple) -> bool:
    return any(isinstance(t, Tensor) and a is t.data for t in args)


def _host(x: Any) -> Any:
    """x with every Tensor in it as a NumPy array."""
    if isinstance(x, (list, tuple)) and not hasattr(x, "_fields"):
        return type(x)(map(_host, x))
    return x.numpy() if isinstance(x, Tensor) else x


def _transposed(x: Tensor) -> Tensor:
    if x.ndim > 2:
        raise AttributeError(f"T: expected a matrix, got shape {x.shape}; use transpose(dim0, dim1) or permute(...)")
    return x.transpose(0, 1) if x.ndim == 2 else x


def value_for(how: str, value: Any, into: Array) -> Any:
    """What the user wants written into the array `into`: in its dtype, and where it lies.

    A number is a constant, rounded to nearest; for others, see `fit`. TypeError for what is no number, ValueError for a
    value that the dtype cannot hold.
    """
    value = value.data if isinstance(value, Tensor) else value
    array = backend.of(value).xp.asarray(value)
    if array.dtype.kind not in "fiub":
        raise TypeError(f"{how}: expected real numbers, got {type_name(value)} with dtype {array.dtype}")
    if isinstance(value, (int, float, np.generic)):
        require_fit(how, array, into.dtype)
        return scalar(value, into.dtype)
    return backend.of(into).asarray(fit(how, array, into.dtype))


# ---------------------------------------------------------------------------------------- the two ops of Tensor's own


class Cast(Op):
    """y = x in another floating dtype;  dx = dy in x's dtype.

    The one op whose result has another dtype than its input: it is the user's explicit word.
    """

    kind = POINTWISE
    casts = True

    def forward(self, x: Array, *, dtype: np.dtype) -> Array:
        self.source = x.dtype
        return to_dtype(x, dtype)

    def backward(self, dy: Array) -> Array:
        return to_dtype(dy, self.source)


class Move(Op):
    """y = x on another device;  dx = dy on the device of x."""

    kind = MOVEMENT
    name = "to"

    def forward(self, x: Array, *, to: Any) -> Array:
        self.source, self.device = self.device, to
        return to.asarray(x)

    def backward(self, dy: Array) -> Array:
        return self.source.asarray(dy)


class Copy(Op):
    """y = x in new memory;  dx = dy."""

    kind = MOVEMENT
    name = "clone"

    def forward(self, x: Array) -> Array:
        return x.copy()

    def backward(self, dy: Array) -> Array:
        return dy


def saved_nbytes(root: Tensor) -> int:
    """The bytes that the graph behind `root` keeps for backward: see `kept_by`."""
    graph: set[Op] = set()
    ops = [root._op]
    while ops:
        op = ops.pop()
        if op is not None and op not in graph:
            graph.add(op)
            ops += [edge[0] for edge in op.edges if isinstance(edge, tuple)]
    return sum(_owner(x).nbytes for x in kept_by(graph).values())


def kept_by(ops: Iterable[Op]) -> dict[int, Array]:
    """The arrays that ops hold on to until backward, activations and statistics: one of each memory, by its owner's id.

    Not those of the leaves that require gradients (weights), and nothing of ops whose backward has run.
    """
    kept: dict[int, Array] = {}
    leaves: set[int] = set()
    for op in ops:
        if op.saved is None:
            continue
        leaves |= {id(_owner(edge.data)) for edge in op.edges if isinstance(edge, Tensor)}
        for value in vars(op).values():  # `saved`, `statistics`, and whatever else forward left there
            for x in value if isinstance(value, (tuple, list)) else (value,):
                if hasattr(x, "nbytes") and hasattr(x, "strides"):
                    kept[id(_owner(x))] = x
    return {owner: x for owner, x in kept.items() if owner not in leaves}


def tensor(data: Any, dtype: Any = None, requires_grad: bool = False, device: str | None = None) -> Tensor:
    """A Tensor with a copy of `data` (number, nested lists, array). Python floats become float32.

    device: where it lies; by default that of `data` if it is a Tensor or device array, else that of `mp.device`.
    """
    made = Tensor(data, dtype)
    here = backend.of(made.data)
    stays = here is not backend.cpu or isinstance(data, Tensor)
    there = backend.get(device) if device is not None else here if stays else backend.default()
    if there is not here:
        made.data = there.asarray(made.data)
    elif not isinstance(data, (int, float, list, tuple)):  # whatever else NumPy reads may share its memory
        made.data = made.data.copy()
    return made.requires_grad_() if requires_grad else made


def from_numpy(array: np.ndarray) -> Tensor:
    """A Tensor that shares memory with `array`."""
    if not isinstance(array, np.ndarray):
        raise TypeError(f"from_numpy: expected a NumPy array, got {type(array).__name__}")
    return Tensor(array)
