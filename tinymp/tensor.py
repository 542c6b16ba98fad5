"""Tensor: the user's array, which can require a gradient. Recording and propagation are in autograd.py."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from . import backend, dtypes
from .autograd import Array, Backward, Op, Variable, gradients_held, is_grad_enabled
from .backend.extras import Held
from .dtypes import FLOATING, HALVES, float32, float64, real, require_fit
from .events import flag, quietly, type_name
from .precision import Policy, fit, scalar, widen

FIRST_ORDER = "there are no second derivatives: what an op saved is freed as backward passes it"


class Tensor(Variable):
    """An array that can require a gradient.

    array          its values (NumPy or CuPy), of any shape; float16, float32, float64, integer or bool. Assignment is
                   unchecked, because a check would cost every op a microsecond (a Parameter checks it)
    data           as in PyTorch, a Tensor outside the graph that shares its memory and its count of changes. A Tensor
                   or an array of any shape can be assigned: its memory becomes this tensor's
    requires_grad  True if backward() computes `grad`; only for floating dtypes
    grad           the gradient after backward(), a Tensor of the same shape, or None. It has the storage dtype after
                   one backward call, and is FP32 after several calls or when a scaler unscaled it. SparseRows if every
                   use of the tensor gave a sparse gradient (`embedding(..., sparse=True)`)
    grad_scale     the loss scale that `grad` still carries (1.0: none)

    Functions of `tinymp.ops` whose first argument is a tensor are also methods: `x.sum(0)` is `ops.sum(x, 0)`.
    """

    __slots__ = ()
    __array_ufunc__ = None  # numpy_array * tensor calls Tensor.__rmul__, not NumPy's ufunc element by element

    def __init__(self, data: Any, dtype: Any = None, requires_grad: bool = False) -> None:
        source, data = (data, data.array) if isinstance(data, Tensor) else (None, data)
        array = real("Tensor", array_of("Tensor", data), data)
        if dtype is None and array.dtype == float64 and not hasattr(data, "dtype"):
            dtype = float32  # Python floats become FP32, as in PyTorch; float64 arrays stay float64
        array = array if dtype is None else fit("Tensor", array, dtypes.as_dtype(dtype, "Tensor"))
        requires_grad = flag("Tensor", "requires_grad", requires_grad)
        if requires_grad and array.dtype not in FLOATING:
            raise TypeError(f"Tensor: only floating tensors can require a gradient, got {array.dtype}")
        super().__init__(array, requires_grad)
        if source is not None and array is source.array:
            self._version = source._version

    def result(
        self, array: Array, requires_grad: bool = False, grad_fn: Op | None = None, output_nr: int = 0
    ) -> Tensor:
        made = Tensor.__new__(Tensor)
        Variable.__init__(made, array, requires_grad, grad_fn, output_nr)
        return made

    # ---- properties

    shape = property(lambda self: self.array.shape, doc="The lengths of its axes.")
    dtype = property(lambda self: self.array.dtype, doc="Its NumPy dtype.")
    ndim = property(lambda self: self.array.ndim, doc="The number of its axes.")
    nbytes = property(lambda self: self.array.nbytes, doc="The size of its data in bytes.")
    device = property(lambda self: backend.of(self.array).name, doc='Where its data is: "cpu".')
    is_leaf = property(lambda self: self.grad_fn is None, doc="True if the user made it, not an op.")
    T = property(lambda self: _transposed(self), doc="The transposed matrix; a vector or a number stays as it is.")

    def numel(self) -> int:
        """The number of elements."""
        return self.array.size

    def __len__(self) -> int:
        if not self.array.ndim:
            raise TypeError("len: expected a tensor with an axis, got one of shape ()")
        return self.array.shape[0]

    def __repr__(self) -> str:
        values = backend.to_cpu(self.numbers)
        values = widen(values) if self.dtype.kind == "V" else values  # NumPy prints its numbers like integers
        body = np.array2string(values, precision=4, threshold=50, prefix="tensor(")
        origin = f", from={self.grad_fn.name}" if self.grad_fn else ", requires_grad=True" * self.requires_grad
        return f"tensor({body}, dtype={self.dtype}, device={self.device}{origin})"

    # ---- leaving the graph

    numbers = property(lambda self: self.array, doc="The array that `numpy`, `item`, `tolist` and prints read.")

    def numpy(self) -> np.ndarray:
        """Its data as a NumPy array outside the graph: in shared memory, or a copy from a GPU.

        For a weight with a master it is the master, read-only; `p[...] = x` under `no_grad` changes master and copy.
        """
        return backend.to_cpu(self.numbers)

    def item(self) -> Any:
        """The one element as a Python number. ValueError if there is not exactly one."""
        if self.array.size != 1:
            raise ValueError(f"item: expected one element, got shape {self.shape}")
        return backend.to_cpu(self.numbers).item()

    def tolist(self) -> Any:
        """Its elements as nested lists of Python numbers."""
        return backend.to_cpu(self.numbers).tolist()

    def detach(self) -> Tensor:
        """The same data outside the graph (shared memory, no gradient)."""
        return Tensor(self)

    def cast_storage(self, policy: Policy) -> Tensor:
        if self.dtype not in FLOATING or self.dtype == policy.storage:
            return self
        return self.to(policy.storage) if self.requires_grad else Tensor(fit("Policy.cast", self.array, policy.storage))

    _assign = Held("ops.more.protocols.assign")
    data = property(lambda self: self.detach(), lambda self, value: self._assign(value), doc="See the class.")

    @property
    def grad(self) -> Any:
        """The gradient (see the class)."""
        if not hasattr(self.grad_array, "strides"):
            return self.grad_array
        known = gradients_held.get(id(self))
        if known is None or known.array is not self.grad_array:
            known = gradients_held[id(self)] = Gradient(self)
        return known

    @grad.setter
    def grad(self, value: Any) -> None:
        """Set the gradient, on its device. ValueError for another shape, TypeError for integers and, unless this tensor
        is FP64, for FP64.
        """
        if value is not None and not hasattr(value, "rows"):
            value = real_array("grad", value if hasattr(value, "dtype") else Tensor(value))  # Python's floats are FP32
            value = backend.of(self.array).asarray(value)
        if value is not None:
            fits = value.dtype in FLOATING and (value.dtype != float64 or self.dtype == float64)
            if value.shape != self.shape or not fits:
                expected = f"{self.dtype if self.dtype == float64 else 'FP16 or FP32'} numbers of shape {self.shape}"
                raise (ValueError if fits else TypeError)(f"grad: expected {expected}, got {value.dtype} {value.shape}")
        self.grad_array = value

    # ---- in place, outside the graph

    def copy_(self, source: Any) -> Tensor:
        """Overwrite the data with `source` (rounded to this dtype). Only outside the graph.

        ValueError for another shape, and for a value that this dtype cannot hold; RuntimeError for a value that
        requires a gradient, which would be lost (not inside `no_grad`).
        """
        return self.overwrite("copy_", source)

    def overwrite(self, how: str, source: Any) -> Tensor:
        """`copy_`, with errors in the name of the user's call, `how`."""
        self.require_outside_graph(how, source)
        value = value_for(how, source, self.array)
        if np.shape(value) != self.shape:
            raise ValueError(f"{how}: expected source.shape == {self.shape}, got {np.shape(value)}")
        self.array[...] = value  # rounds: never, `value_for` made it of this dtype
        self.bump_version()
        return self

    def requires_grad_(self, requires_grad: bool = True) -> Tensor:
        """Set `requires_grad` of a leaf. RuntimeError for a result of an op; TypeError for integers."""
        requires_grad = flag("requires_grad_", "requires_grad", requires_grad)
        if self.grad_fn is not None and not requires_grad:
            raise RuntimeError("requires_grad_: only leaves can stop requiring a gradient; use detach()")
        if requires_grad and self.dtype not in FLOATING:
            raise TypeError(f"requires_grad_: only floating tensors can require a gradient, got {self.dtype}")
        self.requires_grad = requires_grad
        return self

    def require_outside_graph(self, how: str, *values: Any) -> None:
        """RuntimeError if this tensor, or a value for it, is part of a graph. `how` names the change in place."""
        own = self.grad_fn is not None or (self.requires_grad and is_grad_enabled())
        if own or (is_grad_enabled() and any(getattr(x, "requires_grad", False) for x in values)):
            raise RuntimeError(
                f"{how}: {'this tensor' if own else 'the value'} is part of a graph; change leaves inside `with "
                "tinymp.no_grad():`, pass value.detach(), or build a new tensor (where, masked_fill, cat, pad)"
            )

    # ---- backward

    def zero_grad(self) -> None:
        """Forget the gradient."""
        self.grad_array, self.grad_scale = None, 1.0

    def backward(self, gradient: Any = None, retain_graph: bool = False, create_graph: bool = False) -> None:
        """Compute the gradient of this tensor with respect to every leaf that requires one, and add it to their `grad`.

        gradient: dL/d(this), of this shape and dtype; may be left out for a tensor of one element (1.0).
        retain_graph: keep the arrays that its ops saved, for another backward; otherwise they are freed.
        RuntimeError without a graph, over an op whose arrays were freed, or without a gradient on a tensor of several
        elements; TypeError for create_graph, as there are no second derivatives.
        """
        if create_graph is not False or not isinstance(retain_graph, bool):
            kept = f"create_graph=False: {FIRST_ORDER}" if create_graph is not False else f"a bool, got {retain_graph=}"
            raise TypeError(f"backward: expected {kept}")
        if not self.requires_grad:
            raise RuntimeError("backward: this tensor does not require a gradient: no input does or no_grad cut it off")
        if gradient is None:
            if self.array.size != 1:
                raise RuntimeError(
                    f"backward: a tensor of shape {self.shape} needs an explicit gradient; reduce it to a scalar "
                    "with .sum() or .mean(), or pass gradient="
                )
            gradient = backend.of(self.array).xp.ones_like(self.array)
        else:
            if not isinstance(gradient, Tensor):
                gradient = Tensor(real("backward", array_of("backward", gradient), gradient))
            gradient = backend.of(self.array).asarray(gradient.array)
            if gradient.shape != self.shape or gradient.dtype != self.dtype:
                raise ValueError(
                    f"backward: expected gradient to be {self.dtype} {self.shape} like the tensor, got "
                    f"{gradient.dtype} {gradient.shape}"
                )
        quietly(Backward(self, gradient, retain_graph).run)

    if TYPE_CHECKING:  # tinymp.ops.bind gives Tensor these methods at import; see `ops/__init__.py`

        def __getattr__(self, name: str) -> Callable[..., Any]: ...
        def __setitem__(self, index: Any, value: Any) -> None: ...
        def __neg__(self) -> Tensor: ...
        def _operator(self, other: Any) -> Tensor: ...

        __iter__: Callable[..., Iterator[Tensor]]
        __index__: Callable[..., int]
        __int__: Callable[..., int]
        __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = _operator
        __truediv__ = __rtruediv__ = __pow__ = __matmul__ = __getitem__ = _operator


class Gradient(Tensor):
    """The gradient of a leaf, as `grad` returns it; its repr shows the loss scale that it carries."""

    __slots__ = ("leaf",)

    def __init__(self, leaf: Tensor) -> None:
        Variable.__init__(self, leaf.grad_array, False)
        self.leaf, self.grad_scale = leaf, leaf.grad_scale

    weight = property(lambda self: self if self.dtype in HALVES else None, doc="Itself in FP16; see `autograd.taken`.")
    data = property(
        lambda self: self, lambda self, value: self._assign(value), doc="Itself; assignment sets the leaf's gradient."
    )

    def detach(self) -> Gradient:
        """Itself, as `data`."""
        return self

    _assign, wide = Held("ops.more.gradient.assign"), Held("ops.more.gradient.wide")
    selected, overwrite = Held("ops.more.gradient.selected"), Held("ops.more.gradient.overwrite")
    become_fp32, __setitem__ = Held("ops.more.gradient.become_fp32"), Held("ops.more.gradient.__setitem__")
    __reduce__ = Held("ops.more.gradient.__reduce__")

    def __repr__(self) -> str:
        scale, shown = float(self.grad_scale), super().__repr__()
        return shown if scale == 1 else f"{shown[:-1]}, loss scale {scale:g})"


_SPECIAL = "array array_function bool dlpack dlpack_device float format index int iter reduce_ex"
for _name in _SPECIAL.split():
    setattr(Tensor, f"__{_name}__", Held(f"ops.more.protocols.__{_name}__"))
for _name in ("add", "and", "matmul", "mul", "or", "pow", "sub", "truediv"):  # x += y, ...
    setattr(Tensor, f"__i{_name}__", Held(f"ops.more.in_place.__i{_name}__"))
for _name in ("dim", "fill_", "size", "zero_"):
    setattr(Tensor, _name, Held(f"ops.more.protocols.{_name}"))


def array_of(how: str, x: Any) -> Array:
    """x (a number, nested lists, an array) as an array, on its own device. ValueError, in the name of `how`, for rows
    of different lengths.
    """
    try:
        return backend.of(x).xp.asarray(_numbers(x))
    except ValueError as error:
        raise ValueError(f"{how}: expected numbers in rows of equal length; {error}") from None
    except (TypeError, RuntimeError) as error:  # PyTorch's, of a tensor that NumPy cannot hold or that has a graph
        raise type(error)(
            f"{how}: expected numbers; {error}; write x.detach().float() for a tensor of PyTorch"
        ) from None


def real_array(how: str, x: Any) -> Array:
    """x as an array: for a weight its master, for any other Tensor its array, for anything else `array_of`. TypeError
    unless it holds real numbers (`real`).
    """
    if not isinstance(x, Tensor):
        return real(how, array_of(how, x), x)
    return x.array if x.weight is None else x.wide().array


def _numbers(x: Any) -> Any:
    """x with numbers in place of Tensors of one element in its rows: they add no axes, as in PyTorch."""
    if not isinstance(x, (list, tuple)) or not x or not isinstance(x[0], (list, tuple, Tensor)):
        return x
    return [y.numpy().reshape(()) if isinstance(y, Tensor) and y.array.size == 1 else _numbers(y) for y in x]


def _transposed(x: Tensor) -> Tensor:
    if x.ndim > 2:
        raise AttributeError(f"T: expected a matrix, got shape {x.shape}; use transpose(dim0, dim1) or permute(...)")
    return x.transpose(0, 1) if x.ndim == 2 else x


def value_for(how: str, value: Any, into: Array) -> Any:
    """value converted to the dtype and device of the array `into`.

    A number is a constant, rounded to nearest; for arrays, see `fit`. TypeError for anything but real numbers,
    ValueError for a value that the dtype cannot hold and for memory that is read-only.
    """
    if not backend.writeable(into):
        raise ValueError(f"{how}: expected a tensor whose memory can be written to, got a read-only one; clone() it")
    array = real_array(how, value)
    if isinstance(value, (int, float, np.generic)):
        require_fit(how, array, into.dtype)
        return scalar(value, into.dtype)
    return backend.of(into).asarray(fit(how, array, into.dtype))


def tensor(data: Any, dtype: Any = None, requires_grad: bool = False, device: str | None = None) -> Tensor:
    """A Tensor with a copy of `data` (number, nested lists, array). Python floats become float32.

    device: by default that of `data` if it is a Tensor or an array on a GPU, else that of `mp.device`.
    """
    made = Tensor(data.wide() if isinstance(data, Tensor) and data.weight is not None else data, dtype)
    here = backend.of(made.array)
    stays = here is not backend.cpu or isinstance(data, Tensor)
    there = backend.get(device) if device is not None else here if stays else backend.default()
    made.array = there.asarray(made.array)
    if there is here and not isinstance(data, (int, float, list, tuple)):  # its memory may belong to another object
        made.array = made.array.copy()
    return made.requires_grad_(requires_grad)


def from_numpy(array: np.ndarray) -> Tensor:
    """A Tensor that shares memory with `array`, also if another object owns it (a mapped file, a PyTorch tensor).

    TypeError unless it is a NumPy array of real numbers in this machine's byte order; `tensor` copies other orders.
    """
    if not isinstance(array, np.ndarray):
        raise TypeError(f"from_numpy: expected a NumPy array, got {type_name(array)}")
    if not array.dtype.isnative:
        raise TypeError(
            f"from_numpy: expected an array in this machine's byte order, got {array.dtype}, whose memory a Tensor "
            "cannot share; tensor(array) copies it"
        )
    return Tensor(array)
