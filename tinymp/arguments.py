"""Checks of arguments and saved states, shared by all public functions and classes. Nothing here computes."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from functools import wraps
from numbers import Real
from opcode import opmap
from pathlib import Path
from types import FunctionType
from typing import Any, TypeVar

import numpy as np

from .backend.extras import held
from .dtypes import FLOATING, FP32_OVERFLOW, require_fit
from .events import NAMES, type_name
from .events import flag as flag
from .tensor import Tensor

FP32_TINY = 2.0**-126  # the smallest normal FP32 number
MOST = 2**63 - 1  # the largest 64-bit integer
LONGEST = 2**30  # the most elements along an axis, and the largest step: GPUs count them in 32 bits


F = TypeVar("F", bound=Callable[..., Any])
K = TypeVar("K")


def no_attribute(message: str) -> Exception:
    """An AttributeError; in `from module import name`, which drops the text of an AttributeError, an ImportError."""
    asks = sys._getframe(2)
    return (ImportError if asks.f_code.co_code[asks.f_lasti] == opmap["IMPORT_FROM"] else AttributeError)(message)


def named(function: F) -> F:
    """Wrap `function` so that all its errors begin with its name, including those of inner ops, of conversions and of
    NumPy (ops/more/errors.py).
    """
    return _named(function, lambda args: function.__name__)


def named_by_class(method: F) -> F:
    """`named` for a constructor, or the forward of a layer made of others: errors begin with the class's name."""
    return _named(method, lambda args: type(args[0]).__name__)


def name_all(package: dict[str, Any], *but: Any) -> None:
    """Wrap all public functions and classes of a package, given by its globals: their errors begin with their names."""
    for name, x in list(package.items()):
        own = str(getattr(x, "__module__", "")).startswith(package["__name__"])
        if name.startswith("_") or not own:
            continue
        if isinstance(x, type):
            NAMES.update([name, *vars(x)])
        if hasattr(x, "__named__") or any(x is other for other in but):
            continue
        if isinstance(x, FunctionType):
            package[name] = named(x)
            setattr(sys.modules[x.__module__], name, package[name])  # where pickle looks for it
        elif isinstance(x, type):
            owner: Any = next(cls for cls in x.__mro__ if "__init__" in vars(cls))  # it or a base
            made = owner.__init__
            if isinstance(made, FunctionType) and made.__module__.startswith(__package__):
                owner.__init__ = made if hasattr(made, "__named__") else named_by_class(made)


def _named(function: F, name_of: Callable[[tuple], str]) -> F:
    NAMES.add(function.__name__)

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except Exception as error:
            return held("ops.convert.answered", _raised)(error, name_of(args), call, args, kwargs)

    vars(call)["__named__"] = True
    return call  # type: ignore[return-value]


def _raised(error: Exception, *call: Any) -> Any:
    raise error


def called(function: F, name: str, says: str, module: str) -> F:
    """A function that was made for a row of a table, with the name, docstring and module of that row."""
    function.__name__ = function.__qualname__ = name
    function.__doc__, function.__module__ = says, module
    return function


def tensor(op: str, name: str, x: Any) -> Tensor:
    """x, if it is a Tensor; else TypeError."""
    if isinstance(x, Tensor):
        return x
    raise TypeError(f"{op}: expected a Tensor for `{name}`, got {type_name(x)}; wrap it with tinymp.tensor(...)")


def floating(op: str, name: str, x: Any) -> Tensor:
    """x, if it is a floating Tensor; else TypeError."""
    if isinstance(x, Tensor) and x.array.dtype in FLOATING:
        return x
    got = tensor(op, name, x).dtype
    raise TypeError(f"{op}: expected `{name}` to be floating, got {got}; convert it with .float() or .half()")


def with_axes(op: str, name: str, x: Any, ndim: int, unbatched: int | None = None) -> Tensor:
    """x, if it is a floating Tensor with `ndim` axes, or with `unbatched` axes, without a batch; else an error."""
    if floating(op, name, x).ndim not in (ndim, unbatched):
        several = "" if unbatched is None else f" (or {unbatched} without batch)"
        raise ValueError(f"{op}: expected `{name}` to have {ndim} axes{several}, got shape {x.shape}")
    return x


def shaped(op: str, name: str, x: Any, shape: tuple, like: str = "") -> None:
    """ValueError unless x is None or a floating Tensor of this shape; `like` names the origin of the shape."""
    if x is not None and floating(op, name, x).shape != shape:
        raise ValueError(f"{op}: expected {name}.shape == {shape}{like and f' like {like}'}, got {x.shape}")


def integer(value: Any) -> int | None:
    """value as an int, if it is an integer, or a Tensor or array of one; else None."""
    try:
        return None if isinstance(value, (bool, np.bool_)) else value.__index__()
    except (AttributeError, TypeError, ValueError):
        return None


def axis(op: str, dim: Any, ndim: int, name: str = "dim") -> int:
    """`dim` as a non-negative axis; IndexError if the tensor has no such axis."""
    if (i := integer(dim)) is None:
        raise TypeError(f"{op}: expected `{name}` to be an integer, got {dim!r}")
    if not -ndim <= i < ndim:
        those = f"{name} in [{-ndim}, {ndim - 1}]" if ndim else f"at least one axis for {name}"
        raise IndexError(f"{op}: expected {those} for a tensor with {ndim} axes, got {i}")
    return i % ndim


def axes(op: str, dim: Any, ndim: int) -> tuple[int, ...]:
    """`dim` (None for all, an integer, or a sequence) as sorted axes; ValueError for one that is named twice."""
    given = dim if isinstance(dim, (tuple, list)) else () if dim is None else (dim,)
    found = sorted(axis(op, d, ndim or 1) for d in given)  # a number has the axes 0 and -1, as in PyTorch
    if len(set(found)) != len(found):
        raise ValueError(f"{op}: expected every axis once in dim, got {tuple(dim)}")
    return tuple(found[:ndim]) or tuple(range(ndim))  # PyTorch reads an empty dim as "all"


def integers(op: str, name: str, value: Any, n: int, least: int, most: int = MOST) -> tuple[int, ...]:
    """An integer or a sequence of n integers as a tuple of n, each from `least` to `most`."""
    found: Any = [integer(v) for v in (value if isinstance(value, (tuple, list)) else [value])]
    if None in found:
        several = f" or {n} of them" if n > 1 else ""
        raise TypeError(f"{op}: expected `{name}` to be an integer{several}, got {value!r}")
    if len(found) not in (1, n):
        raise ValueError(f"{op}: expected `{name}` to have {n} values, got {len(found)}: {value!r}")
    if not all(least <= v <= most for v in found):
        above = "below 2^63" if most == MOST else f"at most {most}"
        bound = f"at least {least}" if min(found) < least else above
        raise ValueError(f"{op}: expected `{name}` to be {bound}, got {value!r}")
    return tuple(found * n if len(found) == 1 else found)


def sizes(op: str, name: str, shape: tuple, keyword: dict) -> tuple[int, ...]:
    """The sizes of reshape(2, 3), reshape((2, 3)) or reshape(shape=(2, 3)) as one tuple of integers."""
    if keyword:
        if list(keyword) != [name] or shape:
            raise TypeError(f"{op}: expected {name} once, got positions {shape} and keywords {sorted(keyword)}")
        shape = (keyword[name],)
    if len(shape) == 1 and isinstance(shape[0], (tuple, list)):
        shape = tuple(shape[0])
    found = [integer(n) for n in shape]
    if None in found:
        raise TypeError(f"{op}: expected integers for `{name}`, got {shape!r}")
    return tuple([n for n in found if n is not None])


def number(
    op: str, name: str, value: Any, least: float = -math.inf, most: float = math.inf, *, above: bool = False
) -> float:
    """value (a number, or a tensor without axes) as a Python float, if it is finite in FP32 and within least and most;
    with `above` it must be greater than least.

    A NumPy scalar must not stay one: a np.float64 would promote every FP32 array that it meets to FP64.
    """
    value = value.item() if isinstance(value, (Tensor, np.generic)) and not value.ndim else value
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"{op}: expected `{name}` to be a number, got {value!r}")
    size: Any = abs(value)
    x = float(value) if size < FP32_OVERFLOW else math.inf  # also for 10**400
    if not (x < math.inf and least <= x <= most) or (above and x == least):
        bounds = "finite" if least == -math.inf else f"{'above' if above else 'at least'} {least:g} and finite"
        if most < math.inf:
            bounds = f"at most {most:g}" if least == -math.inf else f"in [{least:g}, {most:g}]"
        in_fp32 = " in FP32" if FP32_OVERFLOW <= size < math.inf else ""
        raise ValueError(f"{op}: expected `{name}` to be {bounds}{in_fp32}, got {value!r}")
    return x


def loss_scale(op: str, name: str, value: Any, least: float = 0.0, most: float = math.inf) -> float:
    """value as a Python float, if it can be a loss scale: within least and most, and a normal number in FP32.

    A scale that is 0 in FP32 makes every gradient 0 / 0; a subnormal one has lost bits.
    """
    x = number(op, name, value, least, most, above=not least)
    if x < FP32_TINY:
        raise ValueError(f"{op}: expected `{name}` to be at least 2^-126, FP32's smallest normal number, got {value!r}")
    return x


def whole(op: str, name: str, value: Any) -> int:
    """value as a Python int, if it is a whole number from 0 to 2^31 - 2, the range of a counter on a GPU."""
    return integers(op, name, value, 1, 0, 2**31 - 2)[0]


def count(op: str, name: str, value: Any) -> int:
    """value as a Python int, if it is a positive integer."""
    return integers(op, name, value, 1, 1)[0]


def choice(op: str, name: str, value: Any, allowed: tuple) -> Any:
    """value, if it is one of `allowed`; else ValueError that lists them."""
    if isinstance(value, (Tensor, np.ndarray)) or value not in allowed:
        raise ValueError(f"{op}: expected `{name}` to be one of {', '.join(map(repr, allowed))}, got {value!r}")
    return value


def file(op: str, name: str, value: Any) -> Path:
    """value as a path; TypeError if it is none."""
    if not isinstance(value, (str, os.PathLike)):
        raise TypeError(f"{op}: expected `{name}` to be a path, got {type_name(value)}")
    return Path(value)


def function(op: str, name: str, value: Any) -> Any:
    """value, if it can be called."""
    if not callable(value):
        raise TypeError(f"{op}: expected `{name}` to be a function, got {type_name(value)}")
    return value


def listed(op: str, name: str, value: Any) -> list:
    """The items of value as a list; TypeError if it cannot be iterated."""
    try:
        return list(value)
    except TypeError:
        raise TypeError(f"{op}: expected `{name}` to be a list, got {type_name(value)}") from None


def instance(op: str, name: str, value: Any, kind: type[K]) -> K:
    """value, if it is of this class."""
    if not isinstance(value, kind):
        a = "an" if kind.__name__[0] in "AEIO" else "a"
        raise TypeError(f"{op}: expected `{name}` to be {a} {kind.__name__}, got {type_name(value)}")
    return value


def constant(op: str, name: str, value: Any, dtype: Any) -> Any:
    """value, if it is a number that an array of dtype can hold (FP16: rounded, but not to infinity)."""
    value = value.item() if isinstance(value, (np.generic, np.ndarray)) and not value.ndim else value
    if not isinstance(value, (int, float)):
        raise TypeError(f"{op}: expected `{name}` to be a number, got {type(value).__name__}")
    if dtype not in FLOATING:
        low, high = (0, 1) if dtype.kind == "b" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
        if not low <= value <= high or value % 1:
            raise ValueError(f"{op}: expected `{name}` to fit {dtype}, got {value!r}")
    require_fit(op, value, dtype)
    return value


def same_keys(where: str, what: str, got: Any, expected: Iterable, optional: Iterable = ()) -> None:
    """ValueError that names the missing and the unknown keys of `got`; TypeError if it is not a mapping."""
    if not isinstance(got, Mapping):
        raise TypeError(f"{where}: expected {what} to be a dict, got {type(got).__name__}")
    missing, extra = set(expected) - set(got) - set(optional), set(got) - set(expected) - set(optional)
    if missing or extra:
        wrong = [f"lacks {sorted(missing, key=str)}"] if missing else []
        wrong += [f"has unknown {sorted(extra, key=str)}"] if extra else []
        raise ValueError(f"{where}: expected other keys in {what}: it {' and '.join(wrong)}")


def require_unscaled(op: str, p: Tensor, remedy: str) -> None:
    """RuntimeError if p's gradient still carries a loss scale: clipping, weight decay and updates must not see it."""
    if p.grad_array is not None and p.grad_scale != 1:
        raise RuntimeError(f"{op}: gradients still carry the loss scale {float(p.grad_scale):g}: call {remedy}")
