"""The stand-in for `cupy.ndarray`, for CuPy's ufuncs and for the functions of the module.

An array wraps a NumPy array that lies in the memory of `device.py`. It is no subclass of NumPy's, so that it is as
strict as the real one: nothing converts it to the host unasked, and no operation takes an array of the host. What
differs between the two libraries follows the source of CuPy 14:

- Results of ufuncs, reductions and functions are C-contiguous, whatever the memory order of the operands. Only
  `astype`, `copy(order="K")`, `roll` and the `_like` functions keep it. (Reductions of an F-contiguous array are
  F-contiguous here, and sometimes there.)
- Reductions without axes left give arrays without axes, never scalars.
- Integer arrays used as indices wrap around instead of raising.
- FP16 sums and means accumulate in FP32.
- Functions take the arguments that CuPy's take (`cupy_api.json`), and there are no others.
"""

from __future__ import annotations

import json
import math
import operator
import pathlib
import types
import warnings

import numpy as np

from . import device
from .compile import FUNCTIONS, function

API = json.loads(pathlib.Path(__file__).with_name("cupy_api.json").read_text(encoding="utf-8"))
_float16, _float32 = np.dtype(np.float16), np.dtype(np.float32)
_SMALLEST = _float32.type(2.0**-126)  # of the normal numbers


def _quiet(compute):
    """The result of compute(), without NumPy's warnings: a GPU gives none."""
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return compute()


def _dtype(dtype):
    dtype = np.dtype(dtype)
    if dtype.kind not in "biufc" or dtype.itemsize > (16 if dtype.kind == "c" else 8):
        raise ValueError(f"Unsupported dtype {dtype}")
    return dtype


def _contiguous(shape, itemsize, fortran=False):
    strides, step = [], itemsize
    for n in shape if fortran else reversed(shape):
        strides.append(step)
        step *= max(n, 1)
    return tuple(strides if fortran else reversed(strides))


def _strides(x, order, dtype, shape=None):
    """Strides of a new array like x; order is one of CuPy's letters."""
    shape = x.shape if shape is None else shape
    letter = (order or "K")[0].upper()
    if letter not in "CFAK":
        raise ValueError(f"order not understood: {order}")
    fortran = letter == "F" or (letter in "AK" and x.flags.f_contiguous and not x.flags.c_contiguous)
    if letter != "K" or x.flags.forc or len(shape) != x.ndim:
        return _contiguous(shape, dtype.itemsize, fortran and len(shape) == x.ndim)
    strides, step = [0] * x.ndim, dtype.itemsize
    for _, axis in sorted((abs(s), -i) for i, s in enumerate(x.strides)):
        strides[-axis] = step
        step *= shape[-axis]
    return tuple(strides)


# ------------------------------------------------------------------------------------------- computing and writing down


def _host(x):
    """The NumPy array in an operand of a computation; numbers pass. TypeError for arrays of the host, as in CuPy."""
    if isinstance(x, ndarray):
        return x._a
    if isinstance(x, (bool, int, float, complex, np.generic)):
        return x
    raise TypeError(f"Unsupported type {type(x)}")


def _memories(operands):
    return [x.data.mem for x in operands if isinstance(x, ndarray)]


def _new(compute, operands, strides=None):
    """A new array with the result of compute(), C-contiguous unless its strides are given.

    compute holds on to memory (NumPy arrays), never to arrays of this module: a graph that kept those alive would hide
    that their memory was given back.
    """
    result = np.asarray(_quiet(compute))
    if strides == "F":
        strides = _contiguous(result.shape, result.itemsize, True)
    y = _allocate(result.shape, result.dtype, strides)
    _carry_out(y, compute, operands)
    return y


def _into(out, compute, operands, casting="unsafe"):
    """Write the result of compute() into the array out, and return out."""
    if not isinstance(out, ndarray):
        raise TypeError("Output arguments type must be cupy.ndarray")
    result = np.asarray(_quiet(compute))
    if np.broadcast_shapes(result.shape, out.shape) != out.shape:
        raise ValueError("Out shape is mismatched")
    if not np.can_cast(result.dtype, out.dtype, casting):
        raise TypeError(f"Cannot cast output from {result.dtype} to {out.dtype} with casting rule {casting!r}")
    _carry_out(out, compute, operands)
    return out


def _carry_out(y, compute, operands):
    """Queue that compute() is written into y: its operands may not be there yet."""
    target = y._a
    device.perform(lambda: _quiet(lambda: np.copyto(target, compute(), casting="unsafe")), _memories([y, *operands]))


def _result(compute, operands, out=None, casting="same_kind"):
    return _new(compute, operands) if out is None else _into(out, compute, operands, casting)


def _allocate(shape, dtype, strides=None):
    """A new array; strides may be any that are dense."""
    dtype = _dtype(dtype)
    pointer = device.alloc(math.prod(shape) * dtype.itemsize)
    return ndarray(shape, dtype, pointer, _contiguous(shape, dtype.itemsize) if strides is None else strides)


def _shape(shape):
    return tuple(map(operator.index, shape)) if isinstance(shape, (tuple, list)) else (operator.index(shape),)


# ------------------------------------------------------------------------------------------------------------ the class


THREADS = 16  # at least so many share a sum in CuPy's reductions, each adding every 16th term


def _sum(a, axis=None, dtype=None, keepdims=False):
    """numpy.sum, but of many floating numbers in an order that is no worse than CuPy's."""
    axes = {i % a.ndim for i in ((axis,) if isinstance(axis, int) else axis or range(a.ndim))} if a.ndim else set()
    if a.dtype.kind != "f" or math.prod(a.shape[i] for i in axes) <= 8 * THREADS:
        return np.sum(a, axis=axis, dtype=dtype, keepdims=keepdims)
    rest = [n for i, n in enumerate(a.shape) if i not in axes]
    flat = np.moveaxis(a, sorted(axes), range(len(axes))).reshape(-1, *rest)
    parts = np.stack([np.add.reduce(flat[i::THREADS], axis=0, dtype=dtype) for i in range(THREADS)])
    total = np.add.reduce(parts, axis=0, dtype=dtype)
    return total.reshape([1 if i in axes else n for i, n in enumerate(a.shape)]) if keepdims else total


class ndarray:
    """cupy.ndarray."""

    __slots__ = ("__weakref__", "_a", "base", "data")
    __array_priority__ = 100
    __hash__ = None

    def __init__(self, shape, dtype=float, memptr=None, strides=None, order="C"):
        shape, dtype = _shape(shape), _dtype(dtype)
        if any(n < 0 for n in shape):
            raise ValueError("Negative dimensions are not allowed")
        if strides is None:
            strides = _contiguous(shape, dtype.itemsize, (order or "C")[0] in "Ff")
        elif memptr is None:
            raise ValueError("memptr is required if strides is given.")
        self.data = device.alloc(math.prod(shape) * dtype.itemsize) if memptr is None else memptr
        self.base = None
        if math.prod(shape):  # NumPy checks that it fits into the memory
            self._a = np.ndarray(shape, dtype, self.data.mem.bytes.data, self.data._offset, strides)
        else:
            self._a = np.ndarray(shape, dtype)

    @classmethod
    def _view(cls, a, parent):
        """The NumPy view `a` of parent's memory as an array of its own."""
        x = cls.__new__(cls)
        x._a = a
        x.base = parent if parent.base is None else parent.base
        mem = parent.data.mem
        x.data = device.MemoryPointer(mem, a.__array_interface__["data"][0] - mem.ptr) if a.size else parent.data
        return x

    # ---- what it is

    shape = property(lambda self: self._a.shape)
    strides = property(lambda self: self._a.strides)
    dtype = property(lambda self: self._a.dtype)
    ndim = property(lambda self: self._a.ndim)
    size = property(lambda self: self._a.size)
    itemsize = property(lambda self: self._a.itemsize)
    nbytes = property(lambda self: self._a.nbytes)
    device = property(lambda self: self.data.device)

    @shape.setter
    def shape(self, shape):
        view = self._a.reshape(shape)
        if view.size and not np.may_share_memory(view, self._a):
            raise AttributeError("incompatible shape")
        self._a = view

    @property
    def flags(self):
        c, f = self._a.flags.c_contiguous, self._a.flags.f_contiguous
        return types.SimpleNamespace(
            c_contiguous=c, f_contiguous=f, owndata=self.base is None, fnc=f and not c, forc=f or c
        )

    @property
    def T(self):
        return self if self.ndim < 2 else self.transpose()

    def __len__(self):
        if not self.ndim:
            raise TypeError("len() of unsized object")
        return self.shape[0]

    def __iter__(self):
        if not self.ndim:
            raise TypeError("iteration over a 0-d array")
        return (self[i] for i in range(self.shape[0]))

    # ---- to the host

    def __array__(self, dtype=None, copy=None):
        raise TypeError("Implicit conversion to a NumPy array is not allowed. Please use `.get()`")

    def get(self, stream=None, order="C"):
        """A copy on the host, which waits for the device."""
        device.read("ndarray.get")
        return self._a.copy(order)

    def _upload(self, arr):
        if arr.size:
            device.refuse_in_capture("H2D")
        a, now = self._a, arr.copy()  # by way of pinned memory that CuPy holds, or waiting
        device.perform(lambda: np.copyto(a, now), _memories([self]))

    def item(self):
        if self.size != 1:
            raise ValueError("can only convert an array of size 1 to a Python scalar")
        return self.get().item()

    def __bool__(self):
        if self.size > 1:
            raise ValueError("The truth value of an array with more than one element is ambiguous")
        return self.size == 1 and bool(self.get())

    __int__, __float__, __repr__, __str__, tolist, tobytes = (
        lambda self, *a, how=how: how(self.get(), *a)
        for how in (int, float, repr, str, np.ndarray.tolist, np.ndarray.tobytes)
    )
    __deepcopy__ = __copy__ = lambda self, memo=None: self.copy()

    def __reduce__(self):
        return array, (self.get(),)

    # ---- to other libraries

    def __dlpack__(self, *, stream=None, max_version=None, dl_device=None, copy=None):
        device.arrive()
        return self._a.__dlpack__()

    def __dlpack_device__(self):
        return 2, 0  # kDLCUDA

    def __array_ufunc__(self, ufunc, method, *inputs, **kwargs):
        """numpy.exp(x) is cupy.exp(x); arrays of the host among the operands are refused there."""
        if method != "__call__" or ufunc.__name__ not in API["ufuncs"]:
            return NotImplemented
        if "out" in kwargs:
            (kwargs["out"],) = kwargs["out"]
        if ufunc.__name__ in _COMPARISONS.values():
            inputs = map(_number, inputs)
        return ufuncs[ufunc.__name__](*inputs, **kwargs)

    def __array_function__(self, func, types, args, kwargs):
        name = func.__name__
        if func.__module__ != "numpy" or name not in API["functions"] or not set(types) <= {ndarray, np.ndarray}:
            return NotImplemented
        return functions(name)(*args, **kwargs)

    # ---- views and copies

    def view(self, dtype=None, type=None):
        if dtype is None:
            return ndarray._view(self._a.view(), self)
        dtype = _dtype(dtype)
        if dtype.itemsize != self.itemsize and not self.flags.c_contiguous:
            raise ValueError("To change to a dtype of a different size, the array must be C-contiguous")
        return ndarray._view(self._a.view(dtype), self)

    def reshape(self, *shape, order="C", copy=None):
        shape = shape[0] if len(shape) == 1 and isinstance(shape[0], (tuple, list)) else shape
        a = np.reshape(self._a, shape, order=order)
        if (copy is not True and np.may_share_memory(a, self._a)) or not a.size:
            return ndarray._view(a, self)
        if copy is False:
            raise ValueError("Unable to avoid creating a copy while reshaping.")
        b = self._a
        return _new(lambda: np.reshape(b, shape, order=order), [self], "F" if order in "Ff" else None)

    def ravel(self, order="C"):
        return self.reshape(-1, order=order)

    def flatten(self, order="C"):
        return self.reshape(-1, order=order, copy=True)

    def transpose(self, *axes):
        axes = axes[0] if len(axes) == 1 and (axes[0] is None or isinstance(axes[0], (tuple, list))) else axes
        return ndarray._view(self._a.transpose(axes or None), self)

    def diagonal(self, offset=0, axis1=0, axis2=1):
        y = self._a.diagonal(offset, axis1, axis2)
        y.flags.writeable = self._a.flags.writeable  # CuPy's can be written to, NumPy's not
        return ndarray._view(y, self)

    def astype(self, dtype, order="K", casting=None, subok=None, copy=True):
        if casting is not None or subok is not None:
            raise TypeError("casting and subok are not supported yet")
        dtype = _dtype(dtype)
        strides = _strides(self, order, dtype)
        if not copy and dtype == self.dtype and (order in (None, "K") or strides == self.strides):
            return self
        a = self._a
        return _new(lambda: a.astype(dtype), [self], strides)

    def copy(self, order="C"):
        return self.astype(self.dtype, order)

    def fill(self, value):
        if isinstance(value, (ndarray, np.ndarray)):
            if value.shape != ():
                raise ValueError(f"non-scalar {type(value).__name__} cannot be used for fill")
            value = value if isinstance(value, ndarray) else value.item()
        source, dtype = _host(value), self.dtype
        _into(self, lambda: np.asarray(source).astype(dtype), [value])

    # ---- indexing

    def __getitem__(self, index):
        index, kind, used = _index(self, index)
        if kind == "basic":
            view = self._a[index]
            return ndarray._view(view if isinstance(view, np.ndarray) else self._a[(*index, ...)], self)
        if kind == "mask":
            device.read("indexing with a mask")
        a = self._a
        return _new(lambda: a[_wrapped(a, index)].copy(), [self, *used])

    def __setitem__(self, index, value):
        index, kind, used = _index(self, index)
        if kind == "basic":
            target = self[index]
            if isinstance(value, ndarray):
                source, shape = value._a, target.shape
                if (shape, source.strides, value.data.ptr) != (source.shape, target.strides, target.data.ptr):
                    ones = max(source.ndim - len(shape), 0)  # leading axes of length 1 may be dropped
                    source = source.reshape(source.shape[ones:]) if set(source.shape[:ones]) <= {1} else source
                    _into(target, lambda: np.broadcast_to(source, shape), [value])
            else:
                target.fill(value)
            return
        if kind == "mask":
            device.read("writing through a mask")
        if not isinstance(value, ndarray):
            value = array(value, self.dtype)

        a, source = self._a, value._a
        if device.capturing():
            _quiet(lambda: operator.setitem(a.copy(), _wrapped(a, index), source))  # for its errors
        device.perform(
            lambda: _quiet(lambda: operator.setitem(a, _wrapped(a, index), source)), _memories([self, value, *used])
        )

    def scatter_add(self, slices, value, ufunc=np.add):
        index, _, used = _index(self, slices)
        a, source = self._a, _host(value)
        device.perform(lambda: _quiet(lambda: ufunc.at(a, _wrapped(a, index), source)), _memories([self, value, *used]))

    def take(self, indices, axis=None, out=None):
        if isinstance(indices, (list, np.ndarray)):
            indices = array(indices, int)
        index = _host(indices)
        length = self.size if axis is None else self.shape[axis]
        if np.asarray(index).dtype.kind not in "iu" or (not length and np.size(index)):
            raise TypeError("take: the indices must be integers, and none of an empty axis")
        a = self._a
        return _result(lambda: np.take(a, np.mod(index, max(length, 1)), axis), [self, indices], out, "no")

    def nonzero(self):
        device.read("nonzero")
        return tuple(_new(lambda i=i: i, [self]) for i in self._a.nonzero())

    def sort(self, axis=-1, kind=None):
        a = self._a
        _into(self, lambda: np.sort(a, axis, kind="stable"), [self])

    def argsort(self, axis=-1, kind=None):
        a = self._a
        return _new(lambda: np.argsort(a, axis, kind="stable"), [self])

    # ---- reductions

    def _reduce(self, name, axis=None, dtype=None, out=None, keepdims=False, **others):
        """Sums and the like of FP16 have an FP32 accumulator, and are rounded once."""
        if axis is not None and not isinstance(axis, tuple):
            axis = operator.index(axis)
        a, how = self._a, _sum if name == "sum" else getattr(np, name)
        final = self.dtype if dtype is None else _dtype(dtype)
        accumulates = name in ("sum", "prod", "mean", "var", "std")
        options = {"axis": axis, "keepdims": bool(keepdims), **others}
        options |= {"dtype": _float32 if final == _float16 else dtype} if accumulates else {}

        def compute():
            y = _flushed(how(_flushed(a), **options))
            return y.astype(_float16) if accumulates and final == _float16 else y

        if out is None and self.flags.fnc:  # where the reduced axes lead, CUB reduces such arrays to such arrays
            return _new(compute, [self], strides="F")
        return _result(compute, [self], out, "unsafe")

    def _scan(self, name, axis=None, dtype=None):
        """As in CuPy: in place, on a copy in which the axis is the last; the result may be a view of it."""
        how = getattr(np, name)
        x = self.astype(how(np.zeros(1, self.dtype), dtype=dtype).dtype, "C")
        x, axis = (x.ravel(), 0) if axis is None else (x, axis)
        last = functions("moveaxis")(x, axis, -1)
        flat = last.reshape(-1, last.shape[-1]) if x.size else last
        a = flat._a
        _into(flat, lambda: how(a, -1), [flat])
        return functions("moveaxis")(flat.reshape(last.shape), -1, axis)

    def clip(self, min=None, max=None, out=None):
        a, low, high = (None if x is None else _host(x) for x in (self, min, max))

        def clipped():
            if low is None or high is None or a.dtype.kind != "f":
                return np.clip(a, low, high)
            x, least, most = (_flushed(np.asarray(v).astype(a.dtype)) for v in (a, low, high))  # as CuPy's kernel
            return np.where(least > most, most, np.where(x < least, least, np.where(x > most, most, x)))

        return _result(clipped, [self, min, max], out)


def _method(name, through):
    """A method by another one, or by a function: it takes the parameters that CuPy's has."""

    def call(self, *args, **kwargs):
        given = dict(zip(API["methods"][name], args)) | kwargs
        if len(args) > len(API["methods"][name]) or not given.keys() <= {*API["methods"][name]}:
            raise TypeError(f"{name}() got unexpected arguments {args} {kwargs}")
        return through(self, name, **given)

    setattr(ndarray, name, call)


for _name in ("sum", "prod", "mean", "var", "std", "max", "min", "ptp", "all", "any", "argmax", "argmin"):
    _method(_name, ndarray._reduce)
for _name in ("cumsum", "cumprod"):
    _method(_name, ndarray._scan)
for _name in ("swapaxes", "squeeze", "repeat", "round", "dot"):
    _method(_name, lambda self, name, **given: _delegate(name, (self,), given))


def _index(x, index):
    """The index with its arrays on the host, its kind ("basic", "integer", "mask"), and the device arrays in it."""
    parts, kind, used = [], "basic", []
    for part in index if isinstance(index, tuple) else (index,):
        if isinstance(part, (list, np.ndarray)):
            part = array(np.asarray(part) if np.size(part) else np.asarray(part, np.int32))
        if isinstance(part, ndarray):
            used.append(part)
            if part.dtype.kind not in "iub":
                raise IndexError(f"arrays used as indices must be of integer or boolean type, got {part.dtype}")
            if part.dtype.kind == "b":
                kind = "mask"
            elif kind == "basic":
                kind = "integer"
            part = part._a
        elif not (part is None or part is Ellipsis or isinstance(part, (int, slice, np.integer))):
            raise IndexError(f"no valid index: {type(part)}")
        parts.append(part)
    return tuple(parts), kind, used


def _wrapped(x, index):
    """The index with its integer arrays brought into range, as CuPy does instead of raising."""
    axes = sum(p.ndim if isinstance(p, np.ndarray) and p.dtype == bool else p is not None for p in index)
    axes -= any(p is Ellipsis for p in index)
    wrapped, axis = [], 0
    for part in index:
        if part is Ellipsis:
            axis += x.ndim - axes
        elif isinstance(part, np.ndarray) and part.dtype == bool:
            axis += part.ndim
        elif part is not None:
            if isinstance(part, np.ndarray) and x.shape[axis]:
                part = part.astype(np.int64) % x.shape[axis]
            axis += 1
        wrapped.append(part)
    return tuple(wrapped)


# --------------------------------------------------------------------------------------------------------------- ufuncs


def _flushed(x):
    """x, with zeros of their sign for FP32 numbers below 2^-126: CuPy compiles what computes with -ftz=true."""
    if isinstance(x, tuple):
        return tuple(map(_flushed, x))
    small = np.abs(x) < _SMALLEST if getattr(x, "dtype", None) == _float32 else np.False_
    return np.where(small, np.copysign(_float32.type(0), x), x) if small.any() else x


class ufunc:
    """cupy.ufunc."""

    def __init__(self, name, nin, nout, at):
        self.__name__, self.nin, self.nout = name, nin, nout
        self.name = f"cupy_{name}"
        self._at = at
        self._numpy = getattr(np, name, None)

    def __call__(self, *args, out=None, dtype=None, casting="same_kind", **kwargs):
        if kwargs:
            raise TypeError(f"Wrong arguments {kwargs}")
        if not self.nin <= len(args) <= self.nin + self.nout or (len(args) > self.nin and out is not None):
            raise TypeError(f"Wrong number of arguments for {self.name!r}: {len(args)}")
        args, out = args[: self.nin], args[self.nin :] or out
        operands = [_host(x) for x in args]
        keywords = {} if dtype is None else {"dtype": _dtype(dtype)}

        def compute():
            flushed = [*map(_flushed, operands)]
            if self.__name__ in FUNCTIONS:
                kinds = [x.dtype if isinstance(x, (np.ndarray, np.generic)) else type(x) for x in flushed]
                computes = keywords.get("dtype") or self._numpy.resolve_dtypes((*kinds, None))[-1]
                if computes in (_float32, np.float64):
                    return _flushed(function(self.__name__, computes, *flushed))
            if self.__name__ == "power" and np.result_type(*flushed).kind in "iu":  # what is not there yet is -1:
                flushed[1] = np.maximum(flushed[1], 0)  # NumPy raises where an exponent is below 0, CuPy does not
            return _flushed(self._numpy(*flushed, **keywords))

        if self.nout == 1:
            out = out[0] if isinstance(out, tuple) else out
            return _result(compute, args, out, casting)
        if out is not None:
            raise TypeError(f"the stand-in's {self.__name__} takes no out")
        return tuple(_new(lambda i=i: compute()[i], args) for i in range(self.nout))

    def at(self, a, indices, b=None):
        if self._at is None:
            raise NotImplementedError(f"`{self.name}.at` is not supported yet")
        a.scatter_add(indices, b, self._numpy)


ufuncs = {name: ufunc(name, **kinds) for name, kinds in API["ufuncs"].items()}

_OPERATORS = {"sub": "subtract", "mul": "multiply", "truediv": "true_divide", "floordiv": "floor_divide"}
_OPERATORS |= {"add": "add", "mod": "remainder", "pow": "power", "lshift": "left_shift", "rshift": "right_shift"}
_OPERATORS |= {"and": "bitwise_and", "or": "bitwise_or", "xor": "bitwise_xor", "matmul": "matmul", "divmod": "divmod"}
_COMPARISONS = {"lt": "less", "le": "less_equal", "eq": "equal"}
_COMPARISONS |= {"gt": "greater", "ge": "greater_equal", "ne": "not_equal"}


def _add_operators():
    def knows(other):
        """True if CuPy handles the operator: other classes may have their own right-hand operator."""
        return isinstance(other, ndarray) or getattr(other, "__array_ufunc__", 0) is not None

    for name, word in (_OPERATORS | _COMPARISONS).items():
        f = ufuncs[word] if word in ufuncs else functions(word)
        setattr(ndarray, f"__{name}__", lambda x, y, f=f: f(x, _number(y)) if knows(y) else NotImplemented)
        if name in _OPERATORS:
            setattr(ndarray, f"__{name}__", lambda x, y, f=f: f(x, y) if knows(y) else NotImplemented)
            setattr(ndarray, f"__r{name}__", lambda x, y, f=f: f(y, x) if knows(y) else NotImplemented)
        if name in _OPERATORS and name not in ("matmul", "divmod"):
            setattr(ndarray, f"__i{name}__", lambda x, y, f=f: f(x, y, x))
    for name, word in {"pos": "positive", "neg": "negative", "abs": "absolute", "invert": "invert"}.items():
        setattr(ndarray, f"__{name}__", lambda x, f=ufuncs[word]: f(x))


def _number(x):
    """CuPy compares with an array of the host that has no axes."""
    return x.item() if isinstance(x, np.ndarray) and x.ndim == 0 else x


# ------------------------------------------------------------------------------------------------------------ functions


def array(obj, dtype=None, copy=True, order="K", subok=False, ndmin=0, *, blocking=False):
    """cupy.array: the way from the host to the device. Without pinned memory it cannot be captured."""
    if isinstance(obj, ndarray):
        x = obj.astype(obj.dtype if dtype is None else dtype, order, copy=bool(copy))
    elif isinstance(obj, (list, tuple)) and _holds_device_arrays(obj):
        parts = [asarray(part) for part in obj]
        x = functions("stack")(parts).astype(dtype or np.result_type(*(part.dtype for part in parts)), copy=False)
    else:
        host = np.asarray(obj, dtype)
        fortran = order is not None and order[0] in "AaKk" and host.flags.fnc
        x = ndarray(host.shape, host.dtype, order="F" if fortran or order in ("F", "f") else "C")
        if host.ndim == 0:
            x.fill(host)  # by a kernel, which takes the value as an argument
        else:
            x._upload(host)
    return x.reshape((1,) * (ndmin - x.ndim) + x.shape) if x.ndim < ndmin else x


def _holds_device_arrays(obj):
    return any(isinstance(x, ndarray) or (isinstance(x, (list, tuple)) and _holds_device_arrays(x)) for x in obj)


def asarray(a, dtype=None, order=None, *, copy=None, blocking=False):
    return array(a, dtype, bool(copy), order)


def ascontiguousarray(a, dtype=None):
    x = array(a, dtype, False, "C")
    return x if x.ndim else x.reshape(1)


def asnumpy(a, stream=None, order="C"):
    return a.get(stream, order) if isinstance(a, ndarray) else np.asarray(a, order=order)


def empty(shape, dtype=float, order="C"):
    return ndarray(shape, dtype, order=order)


def empty_like(prototype, dtype=None, order="K", subok=None, shape=None):
    _host(prototype)
    dtype = prototype.dtype if dtype is None else _dtype(dtype)
    shape = prototype.shape if shape is None else _shape(shape)
    return _allocate(shape, dtype, _strides(prototype, order, dtype, shape))


def full(shape, fill_value, dtype=None, order="C"):
    x = ndarray(shape, np.result_type(_host(fill_value)) if dtype is None else dtype, order=order)
    x[...] = fill_value
    return x


def full_like(a, fill_value, dtype=None, order="K", subok=None, shape=None):
    x = empty_like(a, dtype, order, subok, shape)
    x[...] = fill_value
    return x


def zeros(shape, dtype=float, order="C"):
    return full(shape, 0, dtype, order)


def ones(shape, dtype=float, order="C"):
    return full(shape, 1, dtype, order)


def zeros_like(a, dtype=None, order="K", subok=None, shape=None):
    return full_like(a, 0, dtype, order, subok, shape)


def ones_like(a, dtype=None, order="K", subok=None, shape=None):
    return full_like(a, 1, dtype, order, subok, shape)


def copy(a, order="K"):
    return a.copy(order)


def copyto(dst, src, casting="same_kind", where=None):
    source, mask = _host(src), True if where is None else _host(where)
    if not np.can_cast(source.dtype if isinstance(src, ndarray) else np.result_type(source), dst.dtype, casting):
        raise TypeError(f"Cannot cast {src.dtype} to {dst.dtype} in {casting} casting mode")
    if where is None:
        dst[...] = src
    else:
        target = dst._a
        _into(dst, lambda: np.where(mask, np.asarray(source).astype(target.dtype), target), [src, where])


def where(condition, x=None, y=None):
    if x is None and y is None:
        return condition.nonzero()
    mask = condition.astype("?", copy=False)
    a, b, m = _host(x), _host(y), mask._a
    return _new(lambda: np.where(m, a, b), [mask, x, y])


def take_along_axis(a, indices, axis):
    source, index, length = _host(a), _host(indices), a.size if axis is None else a.shape[axis]
    if index.dtype.kind not in "iu":
        raise IndexError("`indices` must be an integer array")
    return _new(lambda: np.take_along_axis(source, index % max(length, 1), axis), [a, indices])


def put_along_axis(arr, indices, values, axis):
    values = values if isinstance(values, ndarray) else array(values, arr.dtype)
    target, index, source, length = arr._a, _host(indices), values._a, max(arr.shape[axis], 1)
    if device.capturing():
        _quiet(lambda: np.put_along_axis(target.copy(), index % length, source, axis))  # for its errors
    device.perform(
        lambda: _quiet(lambda: np.put_along_axis(target, index % length, source, axis)),
        _memories([arr, indices, values]),
    )


def as_strided(x, shape=None, strides=None):
    shape = x.shape if shape is None else tuple(shape)
    return ndarray(shape, x.dtype, x.data, x.strides if strides is None else tuple(strides))


def broadcast_to(array, shape):
    return ndarray._view(
        np.lib.stride_tricks.as_strided(b := np.broadcast_to(array._a, shape), b.shape, b.strides), array
    )


def shares_memory(a, b, max_work=None):
    if not (a.ndim and b.ndim):
        raise NotImplementedError("CuPy 14.2 says that an array without axes shares nothing")
    return bool(np.shares_memory(_host(a), _host(b)))


def get_default_memory_pool():
    return device.default_pool


_METHODS = {name: name for name in API["methods"] if name in API["functions"] and hasattr(ndarray, name)}
for _name in ("sort", "swapaxes", "squeeze", "repeat", "round", "dot"):  # the first sorts a copy
    del _METHODS[_name]
_METHODS |= {"amax": "max", "amin": "min"}
_JOINING = {"concatenate", "stack", "hstack", "vstack", "dstack", "column_stack"}
_LARGE = 2 << 20  # bytes of an array on average, from which on CuPy joins any number of them one by one
_SYNCHRONISING = {"allclose", "argwhere", "bincount", "compress", "delete", "extract", "flatnonzero", "histogram"}
_SYNCHRONISING |= {"place", "setdiff1d", "union1d", "unique"}
_PRODUCTS = {"matmul", "dot", "vdot", "inner", "tensordot", "einsum"}
_OF_THE_HOST = {"broadcast_shapes", "can_cast", "isscalar", "issubdtype", "ndim", "result_type", "shape"}
_CREATING = {"arange", "eye", "identity", "indices", "linspace", "logspace", "tri"}
_OWN = {
    "array", "asarray", "ascontiguousarray", "asnumpy", "broadcast_to", "copy", "copyto", "empty",
    "empty_like", "full", "full_like", "get_default_memory_pool", "ones", "ones_like", "put_along_axis",
    "shares_memory", "take_along_axis", "where", "zeros", "zeros_like",
}  # fmt: skip


def functions(name):
    """CuPy's function of this name. AttributeError where CuPy has none."""
    parameters = API["functions"].get(name, ())
    if name not in API["functions"]:
        raise AttributeError(f"module 'cupy' has no attribute {name!r}")
    if name in _OWN:
        return globals()[name]
    allowed = None if parameters is None or "**kwargs" in parameters else set(parameters)

    def call(*args, **kwargs):
        unknown = set(kwargs) - allowed if allowed is not None else ()
        if unknown:
            raise TypeError(f"{name}() got an unexpected keyword argument {min(unknown)!r}")
        if name in _METHODS and args and isinstance(args[0], ndarray):
            return getattr(args[0], _METHODS[name])(*args[1:], **kwargs)
        return _delegate(name, args, kwargs)

    call.__name__ = call.__qualname__ = name
    return call


def _delegate(name, args, kwargs):
    """The function of NumPy, on the memory of the device."""
    function = getattr(np, name, None)
    if function is None:
        raise AttributeError(f"the stand-in for CuPy has no {name}: NumPy has none")
    operands, out = [], kwargs.pop("out", None)
    args, kwargs = _lowered(args, operands), {key: _lowered(value, operands) for key, value in kwargs.items()}
    if name in _OF_THE_HOST:
        return function(*args, **kwargs)
    if not operands and name not in _CREATING and not any(isinstance(a, (int, float, np.generic)) for a in args):
        raise TypeError(f"{name}: CuPy takes arrays of the device")
    if name in _SYNCHRONISING:
        device.read(name)
    if name in _PRODUCTS:
        _by_cublas(function, *args, **kwargs)
    if name == "repeat" and any(isinstance(a, (list, tuple)) for a in (*args[1:], kwargs.get("repeats"))):
        device.refuse_in_capture("H2D")
    joined = name in _JOINING and len(operands) > 8 and len({x.dtype for x in operands}) == 1
    if joined and sum(x.nbytes for x in operands) < _LARGE * len(operands):
        array(np.array([x.data.ptr for x in operands]))  # one kernel reads them by a table: _routines_manipulation.pyx

    def compute():
        return function(*args, **kwargs)

    if out is not None:
        return _into(out, compute, operands, "same_kind")
    if name == "roll":
        x = operands[0]
        return _new(compute, operands, _strides(x, "K", x.dtype))
    if name == "pad" and operands[0].flags.fnc:
        return _new(compute, operands, "F")
    return _raise_to_device(_quiet(compute), compute, operands)


def _lowered(x, operands):
    """x, or what a tuple or list x holds, as NumPy's array, where it is one of the device, which joins `operands`.

    (A function within `_delegate` that calls itself would hold the operands until the garbage is collected.)
    """
    if isinstance(x, ndarray):
        operands.append(x)
        return x._a
    if isinstance(x, (tuple, list)):
        return type(x)([_lowered(y, operands) for y in x])
    if isinstance(x, np.ndarray):
        raise TypeError(f"Unsupported type {type(x)}")
    return x


def _by_cublas(product, *args, **kwargs):
    """Refuse a product in a capture where CuPy calls cuBLAS for it."""
    if device.capturing():
        result = _quiet(lambda: product(*args, **kwargs))
        if np.size(result) != 1 and result.dtype.kind == "f":
            device.refuse_in_capture("cuBLAS")


def _raise_to_device(result, compute, operands):
    """NumPy's result as device arrays: views of the operands where they are, else copies."""
    if isinstance(result, (tuple, list)):
        parts = [_raise_to_device(r, lambda i=i: compute()[i], operands) for i, r in enumerate(result)]
        return parts if isinstance(result, list) else tuple(parts)
    if isinstance(result, np.ndarray):
        for x in operands:
            if np.may_share_memory(result, x._a):
                return ndarray._view(result, x)
    if isinstance(result, (np.ndarray, np.generic, bool, int, float)):
        return _new(compute, operands)
    return result


_add_operators()
