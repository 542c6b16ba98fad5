"""Symbols in place of arrays: a definition that is called with them writes down, as C, what it computes.

`store(op.xp.exp(widen(x)), like=x)` on a symbol x of FP16 becomes three lines: `widen(x)`, `expf(...)` and
`round_to_half(...)`. The primitives of precision.py run as they are: a symbol lies on the device `SYMBOLS`. Each line
computes in NumPy's dtype, in the order of the definition, by the function that CuPy's own kernel calls: the same bits.

NotTraced: the definition branches on a value, sums, or asks for something else that is no function of one element.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from ..backend.devices import Device
from .kernels import TYPES

_F16, _F32, _F64, _I64, _BOOL = (np.dtype(d) for d in (np.float16, np.float32, np.float64, np.int64, np.bool_))
C_TYPES = {dtype: kind for kind, dtypes in TYPES.items() for dtype in dtypes}
OF_NUMBERS = {float: "double", int: "long long", bool: "bool"}  # Python's numbers have no dtype, and adapt to arrays

# ufuncs in C. {f} is "f" for FP32, whose functions end in it. Those of CuPy: cupy/_core/_routines_math.pyx, cupy/_math/
_BOTH = {"add": "+", "subtract": "-", "multiply": "*"}
_AS_IN_C = "exp expm1 log log2 log10 log1p sqrt rint floor ceil trunc sin cos tan sinh cosh tanh"
_FLOATING = {
    "divide": "{0} / {1}",
    "negative": "{0} * -1",  # which flushes what is below 2^-126, as CuPy's kernel does
    "absolute": "fabs{f}({0})",
    "square": "{0} * {0}",
    "reciprocal": "1 / {0}",
    "power": "pow{f}({0}, {1})",
    "maximum": "{0} != {0} || {1} != {1} ? {nan} : fmax{f}({0}, {1})",
    "minimum": "{0} != {0} || {1} != {1} ? {nan} : fmin{f}({0}, {1})",
    "sign": "{0} < 0 || {0} > 0 ? copysign{f}(1, {0}) : {0} - {0}",
    "copysign": "copysign{f}({0}, {1})",
    "signbit": "copysign{f}(1, {0}) < 0",
    "isnan": "{0} != {0}",
    "isfinite": "fabs{f}({0}) < {inf}",
    "isinf": "fabs{f}({0}) == {inf}",
    **{name: f"{name}{{f}}({{0}})" for name in _AS_IN_C.split()},
    **{f"arc{name}": f"a{name}{{f}}({{0}})" for name in ("sin", "cos", "tan", "sinh", "cosh", "tanh")},
}
_COMPARING = {
    "equal": "==",
    "not_equal": "!=",
    "less": "<",
    "less_equal": "<=",
    "greater": ">",
    "greater_equal": ">=",
}
_TRUTHS = {
    "logical_and": "{0} && {1}",
    "logical_or": "{0} || {1}",
    "bitwise_and": "{0} && {1}",
    "bitwise_or": "{0} || {1}",
    "bitwise_xor": "{0} != {1}",
    "logical_not": "!{0}",
    "invert": "!{0}",
}
_INTEGERS = {"bitwise_and": "{0} & {1}", "bitwise_or": "{0} | {1}", "bitwise_xor": "{0} ^ {1}", "invert": "~{0}"}
_BITS = {
    (_F32, np.dtype(np.uint32)): "__float_as_uint({})",
    (np.dtype(np.uint32), _F32): "__uint_as_float({})",
    (_F16, np.dtype(np.uint16)): "{}.bits",
    (np.dtype(np.uint16), _F16): "half{{{}}}",
}
INF = "__uint_as_float(0x7f800000u)"


class NotTraced(Exception):
    """A definition asks more of a symbol than is known of it."""


class _Unknown(NotTraced, AttributeError):
    """As `hasattr` expects it."""


class Trace:
    """The C that a definition has written so far: `numbers` once per thread, `lines` once per element.

    drawing  the C of an element's random bits, for its n-th draw; None where there is no source of them
    """

    def __init__(self, drawing: Callable[[int], str] | None = None) -> None:
        self.numbers: list[str] = []
        self.lines: list[str] = []
        self.drawing, self.draws = drawing, 0
        self._count = 0

    def variable(self, kind: str, code: str, number: bool = False) -> str:
        name = f"{'s' if number else 'v'}{self._count}"
        self._count += 1
        (self.numbers if number else self.lines).append(f"const {kind} {name} = {code};")
        return name

    def element(self, dtype: np.dtype, shape: tuple, code: str) -> Symbol:
        """The symbol of an array whose elements are computed by `code`."""
        return Symbol(self, dtype, shape, self.variable(C_TYPES[dtype], code))


class _Operand(np.lib.mixins.NDArrayOperatorsMixin):
    """A part of an expression. Python's operators are NumPy's ufuncs."""

    trace: Trace
    name: str

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        out, dtype = options.pop("out", (None,)), options.pop("dtype", None)
        if method != "__call__" or options:
            raise NotTraced(f"{ufunc.__name__}.{method}, {sorted(options)}")
        y = _apply(self.trace, ufunc, inputs, dtype)
        if out[0] is None:
            return y
        if (type(y), y.shape, y.dtype) != (Symbol, out[0].shape, out[0].dtype):
            raise NotTraced(f"{ufunc.__name__} in place, of another shape or dtype")
        out[0].name = y.name  # whoever holds the array sees its new values
        return out[0]

    def __array_function__(self, function: Any, types: Any, args: tuple, options: dict) -> Any:
        own = _FUNCTIONS.get(function.__name__)
        if own is None:
            raise NotTraced(function.__name__)
        return own(*args, **options)

    def __getattr__(self, name: str) -> Any:
        raise _Unknown(f"`{name}` of a symbol")

    def __bool__(self) -> bool:
        raise NotTraced("a branch on a value")

    def __array__(self, *args: Any, **options: Any) -> Any:
        raise NotTraced("the values")

    __iter__ = __len__ = __index__ = __float__ = __int__ = __getitem__ = __setitem__ = __array__


class Number(_Operand):
    """A number of Python's, which a kernel gets as an argument: numbers alone are computed in FP64, or in 64 bits."""

    def __init__(self, trace: Trace, kind: type, name: str) -> None:
        self.trace, self.kind, self.name = trace, kind, name


class Option(Number):
    """A number of a parameter group, in device memory. asked: place -> whether it is not 0, where a definition asks
    that.
    """

    def __init__(self, trace: Trace, place: int, value: float, asked: dict[int, bool]) -> None:
        super().__init__(trace, float, trace.variable("double", f"options[{place}]", number=True))
        self.place, self.value, self.asked = place, value, asked

    def __bool__(self) -> bool:
        self.asked[self.place] = bool(self.value)
        return bool(self.value)


class Memory:
    """An array of which a definition that runs in one thread sets an element."""

    def __init__(self, trace: Trace, dtype: np.dtype, name: str) -> None:
        self.trace, self.dtype, self.name = trace, dtype, name

    def __setitem__(self, place: Symbol, value: Any) -> None:
        self.trace.lines.append(f"{self.name}[{place.name}] = {_code(value, self.dtype)};")


class Symbol(_Operand):
    """An array, of which dtype and shape are known, and the variable of C that holds an element."""

    tinymp_backend: Device
    strides = None  # any memory order will do

    def __init__(self, trace: Trace, dtype: np.dtype, shape: tuple, name: str) -> None:
        self.trace, self.dtype, self.shape, self.name = trace, dtype, shape, name

    ndim = property(lambda self: len(self.shape))
    size = property(lambda self: math.prod(self.shape))

    def astype(self, dtype: Any, copy: bool = True) -> Symbol:
        """Converted, for a GPU as C converts."""
        return _converted(self, np.dtype(dtype))

    def view(self, dtype: Any) -> Symbol:
        if np.dtype(dtype) == self.dtype:
            return self
        if (code := _BITS.get((self.dtype, np.dtype(dtype)))) is None:
            raise NotTraced(f"{self.dtype} seen as {np.dtype(dtype)}")
        return self.trace.element(np.dtype(dtype), self.shape, code.format(self.name))


def _literal(value: Any, dtype: np.dtype) -> str:
    if dtype == _BOOL:
        return str(bool(value)).lower()
    if dtype.kind != "f":
        return f"static_cast<{C_TYPES[dtype]}>({int(value)}ll)"
    x = dtype.type(value)  # rounds: a constant, to nearest, as NumPy rounds it where it meets an array
    if np.isnan(x):
        code = "__uint_as_float(0x7fffffffu)"
    elif np.isinf(x):
        code = f"{'-' * bool(x < 0)}{INF}"
    else:
        code = f"{float(x)!r}{'' if dtype == _F64 else 'f'}"  # the digits that round to x
    return f"round_to_half({code})" if dtype == _F16 else code  # rounds: never, x was rounded above


def _converted(x: Any, dtype: np.dtype) -> Any:
    """x (a Symbol) in dtype, where that is a conversion which a GPU does as NumPy does."""
    if x.dtype == dtype:
        return x
    wide = f"widen({x.name})" if x.dtype == _F16 else x.name
    if (x.dtype, dtype) == (_F16, _F32):
        return x.trace.element(dtype, x.shape, wide)
    if dtype == _F16:
        if x.dtype != _F32:
            raise NotTraced(f"{x.dtype} to FP16")
        return x.trace.element(dtype, x.shape, f"round_to_half({x.name})")  # rounds: `store`, of a traced definition
    if x.dtype.kind == "f" and dtype.kind in "iu":
        raise NotTraced(f"{x.dtype} to {dtype}")
    return x.trace.element(
        dtype, x.shape, f"{wide} != 0" if dtype == _BOOL else f"static_cast<{C_TYPES[dtype]}>({wide})"
    )


def _code(x: Any, dtype: np.dtype) -> str:
    if isinstance(x, Symbol):
        return _converted(x, dtype).name
    if isinstance(x, Number):
        if dtype == _F16:
            raise NotTraced("a number in FP16")
        return f"static_cast<{C_TYPES[dtype]}>({x.name})"  # rounds: a number of Python's, to nearest
    return _literal(x, dtype)


def _kind(x: Any) -> Any:
    """The dtype of an operand, or of Python's numbers their type."""
    return x.kind if isinstance(x, Number) else getattr(x, "dtype", None) or type(x)


def _apply(trace: Trace, ufunc: Any, inputs: tuple, dtype: Any) -> Any:
    """A ufunc of operands of which one at least is a symbol or a number."""
    name, kinds = ufunc.__name__, [_kind(x) for x in inputs]
    if not any(isinstance(kind, np.dtype) for kind in kinds):
        return _of_numbers(trace, name, inputs, kinds)
    kinds = [_BOOL if kind is bool else kind for kind in kinds]
    asked = {} if dtype is None else {"signature": (*[None] * len(inputs), np.dtype(dtype))}
    *loop, result = ufunc.resolve_dtypes((*kinds, None), **asked)
    computes = loop[0]
    if computes == _F16 and result == _BOOL:
        computes = _F32  # to compare, to widen is exact
    if name in _COMPARING and computes.kind in "iu" and computes.itemsize < 8:
        computes = _I64  # a number may be beyond what the array can hold
    if computes == _F16 or any(d != loop[0] for d in loop) or (computes == np.uint64 and int in kinds):
        raise NotTraced(f"{name} on {', '.join(map(str, loop))}")
    operands = [_code(x, computes) for x in inputs]
    shape = np.broadcast_shapes(*[x.shape for x in inputs if hasattr(x, "shape")])
    return trace.element(result, shape, _expression(name, computes).format(*operands, **_details(computes)))


def _of_numbers(trace: Trace, name: str, inputs: tuple, kinds: list) -> Number:
    """As Python computes: FP64 where one is a float or there is a division, else whole numbers."""
    kind = float if float in kinds or name in ("divide", "power") else int
    dtype = _F64 if kind is float else _I64
    operands = [f"static_cast<{C_TYPES[dtype]}>({getattr(x, 'name', None) or _literal(x, dtype)})" for x in inputs]
    code = _expression(name, dtype).format(*operands, **_details(dtype))
    kind = bool if name in _COMPARING else kind
    return Number(trace, kind, trace.variable(OF_NUMBERS[kind], code, number=True))


def _details(dtype: np.dtype) -> dict[str, str]:
    return {"f": "f" if dtype == _F32 else "", "nan": _literal(math.nan, _F32), "inf": INF}


def _expression(name: str, dtype: np.dtype) -> str:
    """The C of a ufunc that computes in dtype."""
    if name in _COMPARING:
        return f"{{0}} {_COMPARING[name]} {{1}}"
    if dtype == _BOOL:
        known = _TRUTHS
    elif dtype.kind == "f":
        known = _FLOATING | {name: f"{{0}} {c} {{1}}" for name, c in _BOTH.items()}
    else:  # wrapping around, as unsigned integers do in C
        kind = C_TYPES[dtype]
        wraps = (
            f"static_cast<{kind}>(static_cast<unsigned long long>({{0}}) {{c}} static_cast<unsigned long long>({{1}}))"
        )
        known = _INTEGERS | {name: wraps.replace("{c}", c) for name, c in _BOTH.items()}
    if name not in known:
        raise NotTraced(f"{name} on {dtype}")
    return known[name]


# ----------------------------------------------------------------------------------------- functions that are no ufuncs


def _where(mask: Any, x: Any, y: Any) -> Any:
    operands = mask, x, y
    if not any(hasattr(a, "shape") for a in operands):
        raise NotTraced("a choice between numbers")
    trace = next(a.trace for a in operands if isinstance(a, _Operand))
    examples = [np.empty(0, k) if isinstance(k := _kind(a), np.dtype) else k(0) for a in (x, y)]
    dtype, shape = np.result_type(*examples), np.broadcast_shapes(*[a.shape for a in operands if hasattr(a, "shape")])
    return trace.element(dtype, shape, f"{_code(mask, _BOOL)} ? {_code(x, dtype)} : {_code(y, dtype)}")


def _clip(x: Any, low: Any, high: Any) -> Any:
    if not isinstance(x, Symbol) or x.dtype not in (_F32, _F64):
        raise NotTraced("clip")
    a, b = _code(low, x.dtype), _code(high, x.dtype)
    code = f"{a} > {b} ? {b} : ({x.name} < {a} ? {a} : ({x.name} > {b} ? {b} : {x.name}))"
    return x.trace.element(x.dtype, x.shape, code)


def _full_like(x: Any, value: Any, dtype: Any = None) -> Any:
    dtype = x.dtype if dtype is None else np.dtype(dtype)
    return x.trace.element(dtype, x.shape, _code(value, dtype))


_FUNCTIONS: dict[str, Callable] = {
    "where": _where,
    "clip": _clip,
    "full_like": _full_like,
    "zeros_like": lambda x, dtype=None: _full_like(x, 0, dtype),
}


class Symbols(Device):
    """The device of symbols. NumPy's functions on them come back here."""

    keeps_order = False

    def cast(self, x: Any, dtype: np.dtype) -> Any:
        return _converted(x, dtype)

    def select(self, mask: Any, x: Any) -> Any:
        return _where(mask, x, x.dtype.type(0))

    def cast_stochastic(self, x: Any) -> Any:
        if x.trace.drawing is None:
            raise NotTraced("random numbers")
        x.trace.draws += 1
        # rounds: `store`, at random, of a traced definition
        return x.trace.element(_F16, x.shape, f"round_stochastically({x.name}, {x.trace.drawing(x.trace.draws - 1)})")

    def _refuse(self, *args: Any, **options: Any) -> Any:
        raise NotTraced("no function of one element")

    gemm = reduce = scatter_add_rows = uniform = require = concatenate = to_numpy = tf32 = _refuse


SYMBOLS = Symbols("symbols", np)
Symbol.tinymp_backend = SYMBOLS
