"""The backend of arrays without memory: they have a shape, a dtype and strides, and all values read as 0. Code that
runs on them computes only shapes, in the time that Python takes, for a model of any size:

    with mp.device("meta"):
        model = models.GPT()  # 124 million parameters

All arrays share one mapping of pages that cannot be written and are never touched; views are made as by NumPy, and
copies lie in the order of their axes. Results whose size depends on values are as large as they can be.
"""

from __future__ import annotations

import math
import mmap
import sys
from collections.abc import Callable, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np

from ..backend import Device
from ..dtypes import HALVES

Array = Any
_F16, _F32, _F64, _INT, _BOOL = (np.dtype(d) for d in (np.float16, np.float32, np.float64, np.int64, np.bool_))
_NOTHING = np.zeros((), "V0")  # copies of it take no memory
_pages: Any = None  # the map, as bytes


def _memory(size: int) -> Array:
    """Bytes of address space, of which views can be made, without memory behind them."""
    global _pages
    if _pages is not None and len(_pages) >= size:
        return _pages
    if sys.maxsize < 1 << 32:  # in a browser a map is memory, and WASI has none: no more than is asked for
        _pages = np.frombuffer(bytes(max(size, 1)), np.uint8)
    else:
        size = max(size, 1 << 30)
        try:
            pages = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, prot=mmap.PROT_READ)
        except AttributeError:  # Windows
            pages = mmap.mmap(-1, size, access=mmap.ACCESS_READ)
        _pages = np.frombuffer(pages, np.uint8)
    return _pages


class MetaArray(np.ndarray):
    """An array without memory. Nothing is written to it, and only the shapes of results are computed."""

    tinymp_backend: Any
    _owner: Any

    def __array_finalize__(self, obj: Any) -> None:
        if isinstance(obj, MetaArray) and not self.flags.owndata:
            self._owner = obj if obj._owner is None else obj._owner
        else:
            self._owner = None

    @property
    def base(self) -> Any:
        """The array whose memory it would share, or None."""
        return self._owner

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        out: Any = options.get("out") or ()
        if any(x is not None for x in out):
            return out[0] if len(out) == 1 else out
        if method == "__call__":
            return _called(ufunc, inputs, options.get("dtype"))
        return _reduced(ufunc, method, inputs[0], options)

    def __array_function__(self, function: Any, types: Any, args: Any, options: Any) -> Any:
        own = _FUNCTIONS.get(function.__name__)
        return super().__array_function__(function, types, args, options) if own is None else own(*args, **options)

    def __getitem__(self, index: Any) -> Any:
        parts = index if isinstance(index, tuple) else (index,)
        if not any(isinstance(p, (list, np.ndarray)) for p in parts):
            return super().__getitem__(index if index != () else ...)
        parts = tuple(part for p in parts for part in (p.nonzero() if getattr(p, "dtype", None) == _BOOL else (p,)))
        return empty(np.broadcast_to(_NOTHING, self.shape)[parts].shape, self.dtype)

    def __setitem__(self, index: Any, value: Any) -> None:
        pass

    def reshape(self, *shape: Any, order: Any = "C", copy: bool | None = None) -> Any:
        wanted = tuple(shape[0]) if len(shape) == 1 and isinstance(shape[0], (tuple, list)) else shape
        if -1 in wanted:
            rest = math.prod(n for n in wanted if n != -1)
            wanted = tuple(self.size // max(rest, 1) if n == -1 else n for n in wanted)
        if math.prod(wanted) != self.size:
            raise ValueError(f"cannot reshape array of size {self.size} into shape {shape}")
        try:
            return super().reshape(wanted, copy=False)
        except ValueError:
            return empty(wanted, self.dtype)

    def copy(self, order: Any = "C") -> Any:
        return empty(self.shape, self.dtype)

    def astype(  # type: ignore[override]
        self, dtype: Any, order: Any = "K", casting: Any = "", subok: bool = True, copy: bool = True
    ) -> Any:
        return self if not copy and self.dtype == dtype else empty_like(self, dtype)

    def all(self, axis: Any = None, *args: Any, **options: Any) -> Any:  # no element is wrong
        return True if axis is None else super().all(axis, *args, **options)

    def max(self, axis: Any = None, **options: Any) -> Any:  # type: ignore[override]
        return self.dtype.type(0) if axis is None else super().max(axis, **options)

    def min(self, axis: Any = None, **options: Any) -> Any:  # type: ignore[override]
        return self.dtype.type(0) if axis is None else super().min(axis, **options)

    def nonzero(self) -> tuple:
        """As if no element were 0; like NumPy's, the results are columns of one array."""
        found = empty((self.size, self.ndim), _INT)
        return tuple(found[:, axis] for axis in range(self.ndim))


def empty(shape: Any, dtype: Any = float, order: Any = "C") -> Array:
    """An array without memory."""
    shape, dtype = (shape,) if hasattr(shape, "__index__") else tuple(shape), np.dtype(dtype)
    return np.ndarray.__new__(MetaArray, shape, dtype, _memory(math.prod(shape) * dtype.itemsize))


def empty_like(x: Array, dtype: Any = None, shape: Any = None, **_: Any) -> Array:
    return empty(x.shape if shape is None else shape, x.dtype if dtype is None else dtype)


def _elementwise(dtype: Any, *operands: Any) -> Array:
    return empty(np.broadcast_shapes(*[np.shape(x) for x in operands]), dtype)


def _called(ufunc: Any, inputs: tuple, dtype: Any) -> Any:
    kinds = [dtype or getattr(x, "dtype", _BOOL if isinstance(x, bool) else type(x)) for x in inputs]
    dtypes = ufunc.resolve_dtypes((*kinds, *[None] * ufunc.nout))[ufunc.nin :]
    made = [_elementwise(d, *[x for x in inputs if hasattr(x, "dtype")]) for d in dtypes]
    return made[0] if ufunc.nout == 1 else tuple(made)


def _reduced(ufunc: Any, method: str, x: Array, options: dict) -> Any:
    if method != "reduce":
        raise NotImplementedError(f"{ufunc.__name__}.{method} of arrays without memory")
    dtype = options.get("dtype") or ufunc.reduce(np.ones(1, x.dtype)).dtype  # rounds: never, arrays without memory
    axis = options.get("axis", 0)
    axes = {a % max(x.ndim, 1) for a in (range(x.ndim) if axis is None else (axis,) if isinstance(axis, int) else axis)}
    keep = options.get("keepdims", False)
    return empty([1 if a in axes else n for a, n in enumerate(x.shape) if keep or a not in axes], dtype)


# ------------------------------------------------------------------------------------ what stands for NumPy: Meta.xp


def asarray(x: Any, dtype: Any = None) -> Array:
    """x, from any device, without its memory."""
    # rounds: never, arrays without memory
    x = x if hasattr(x, "dtype") and hasattr(x, "strides") else np.asarray(x, dtype)
    if isinstance(x, MetaArray) and dtype in (None, x.dtype):
        return x
    return empty_like(x, dtype)


def _filled(shape: Any, value: Any = 0, dtype: Any = None, **_: Any) -> Array:
    return empty(shape, np.asarray(value).dtype if dtype is None else dtype)


def _contiguous(x: Array, dtype: Any = None) -> Array:
    x = asarray(x, dtype)
    return x if x.flags.c_contiguous and x.ndim else empty(x.shape or (1,), x.dtype)


def _broadcast(x: Array, shape: Any) -> Array:
    steps = [s if n == m else 0 for s, n, m in zip(x.strides, x.shape, shape[len(shape) - x.ndim :])]
    return _strided(x, shape, [0] * (len(shape) - x.ndim) + steps)


_strided = partial(np.lib.stride_tricks.as_strided, subok=True)


def _as_numpy(function: Callable) -> Callable:
    """As a function of NumPy, whose result has the shape of that for elements that take no memory."""

    def call(arrays: Any, *args: Any, dtype: Any = None, **options: Any) -> Array:
        several = isinstance(arrays, (list, tuple))
        some = arrays if several else [arrays]
        hollow = [np.broadcast_to(_NOTHING, x.shape) for x in some]
        args = tuple(np.asarray(a) if isinstance(a, MetaArray) else a for a in args)  # indices, all of them 0
        shape = function(hollow if several else hollow[0], *args, **options).shape
        return empty(shape, dtype or np.result_type(*[x.dtype for x in some]))

    return call


_FUNCTIONS: dict[str, Callable] = {
    **dict.fromkeys(("empty", "zeros", "ones"), empty),
    **dict.fromkeys(("empty_like", "zeros_like", "ones_like"), empty_like),
    **dict.fromkeys(("put_along_axis", "copyto"), lambda *_, **__: None),
    "full": _filled,
    "arange": lambda *args, dtype=None: empty((len(range(*args)),), _INT if dtype is None else dtype),
    "asarray": asarray,
    "ascontiguousarray": _contiguous,
    "full_like": lambda x, value, dtype=None, shape=None, **_: empty_like(x, dtype, shape),
    "ix_": lambda *x: tuple(x[i].reshape([-1 if a == i else 1 for a in range(len(x))]) for i in range(len(x))),
    **{f.__name__: _as_numpy(f) for f in (np.concatenate, np.stack, np.pad, np.take, np.take_along_axis)},
    "broadcast_to": _broadcast,
    "sort": lambda x, *_, **__: empty_like(x),
    "argsort": lambda x, *_, **__: empty(x.shape, _INT),
    "searchsorted": lambda sorted_, values, *_, **__: empty(np.shape(values), _INT),
    "where": lambda mask, x, y: _elementwise(np.result_type(x, y), mask, x, y),
    "count_nonzero": lambda *_, **__: 0,
    "nonzero": lambda x: x.nonzero(),
}


class _Grid:
    def __getitem__(self, key: Any) -> Any:
        return tuple(map(asarray, np.ogrid[key]))


class _XP:
    """NumPy for arrays without memory: what makes new arrays is above; the rest is NumPy's own."""

    ogrid = _Grid()
    lib = SimpleNamespace(stride_tricks=SimpleNamespace(as_strided=_strided))

    def __getattr__(self, function: str) -> Any:
        return _FUNCTIONS.get(function) or getattr(np, function)


class _Generator:
    """The methods of numpy.random.Generator that initialisers use."""

    def uniform(self, low: float, high: float, size: Any = None) -> Array:
        return empty(size, _F64)

    normal = uniform


class Meta(Device):
    """The device of arrays without memory; see `Device`."""

    has_values = False

    def __init__(self) -> None:
        super().__init__("meta", _XP())
        self.array_type, self.generator = MetaArray, _Generator()

    def asarray(self, x: Any) -> Array:
        return asarray(x)

    def every(self, mask: Array) -> bool:
        return True

    def cast(self, x: Array, dtype: Any) -> Array:
        return empty_like(x, dtype)

    def cast_stochastic(self, x: Array) -> Array:
        return empty_like(x, _F16)

    def gemm(self, a: Array, b: Array, bias: Any = None, tf32: bool = False, rounded: bool = False) -> Array:
        batch = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
        return empty((*batch, a.shape[-2], b.shape[-1]), _F64 if a.dtype == _F64 else _F32)

    def reduce(self, x: Array, axis: Any, how: str) -> Array:
        x = self.cast(x, _F32) if x.dtype in HALVES else x  # rounds: never, arrays without memory
        if how == "cumsum":
            return empty_like(x)
        ufunc = {"max": np.maximum, "min": np.minimum}.get(how, np.add)
        y = _reduced(ufunc, "reduce", x, {"axis": axis, "keepdims": True})
        return y / 1 if how == "mean" else y

    def isfinite(self, x: Array) -> bool:
        return True

    def select(self, mask: Array, x: Array) -> Array:
        return _elementwise(x.dtype, x, mask)

    def where(self, mask: Array, x: Array, y: Array) -> Array:
        return _elementwise(x.dtype, x, y, mask)

    def concatenate(self, arrays: Sequence[Array], axis: int) -> Array:
        return self.xp.concatenate(arrays, axis)

    def uniform(self, shape: tuple[int, ...]) -> Array:
        return empty(shape, _F32)

    def scatter_add_rows(self, n_rows: int, index: Array, rows: Array) -> Array:
        return empty((n_rows, *rows.shape[1:]), rows.dtype)

    def copy_all(self, sources: Sequence[Array], targets: Sequence[Array], wanted: Any = True) -> None:
        """Nothing is copied."""


meta = Meta()
MetaArray.tinymp_backend = meta
