"""New tensors. Their dtype is the one that the user asks for; by default float32 (int64 for `arange` of integers)."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from .. import backend
from ..arguments import constant, flag, number, sizes, tensor
from ..dtypes import FLOATING, as_dtype, float32
from ..precision import scalar, to_dtype
from ..tensor import Tensor


def _dtype(op: str, dtype: Any, default: Any) -> np.dtype:
    """The user's dtype, or the default. TypeError for anything but a real dtype or bool."""
    try:
        found = as_dtype(default if dtype is None else dtype)
    except TypeError:
        found = np.dtype(object)
    if found.kind not in "iub" and found not in FLOATING:
        raise TypeError(f"{op}: expected `dtype` to be float16, float32, float64, an integer or bool, got {dtype!r}")
    return found


def _filled(op: str, size: tuple, value: Any, dtype: np.dtype, requires_grad: bool, device: str | None) -> Tensor:
    shape = sizes(op, "size", size, {})
    requires_grad = flag(op, "requires_grad", requires_grad)
    if min(shape, default=0) < 0:
        raise ValueError(f"{op}: expected no negative length in the shape, got {shape}")
    xp = (backend.default() if device is None else backend.get(device)).xp
    return Tensor(xp.full(shape, scalar(constant(op, "fill_value", value, dtype), dtype)), requires_grad=requires_grad)


def _filled_like(op: str, x: Any, value: Any, dtype: Any, requires_grad: bool, device: str | None) -> Tensor:
    found = _dtype(op, dtype, tensor(op, "input", x).dtype)
    return _filled(op, (x.shape,), value, found, requires_grad, x.device if device is None else device)


def zeros(*size: Any, dtype: Any = None, device: str | None = None, requires_grad: bool = False) -> Tensor:
    """Zeros of shape `size` (integers or one tuple)."""
    return _filled("zeros", size, 0, _dtype("zeros", dtype, float32), requires_grad, device)


def ones(*size: Any, dtype: Any = None, device: str | None = None, requires_grad: bool = False) -> Tensor:
    """Ones of shape `size` (integers or one tuple)."""
    return _filled("ones", size, 1, _dtype("ones", dtype, float32), requires_grad, device)


def full(
    size: Any, fill_value: Any, *, dtype: Any = None, device: str | None = None, requires_grad: bool = False
) -> Tensor:
    """`fill_value` in every element of shape `size`; without dtype float32, int64 or bool, after the value.

    ValueError for a value that the dtype cannot hold.
    """
    own = np.asarray(fill_value).dtype
    found = _dtype("full", dtype, own if own.kind in "iub" else float32)
    return _filled("full", (size,), fill_value, found, requires_grad, device)


def zeros_like(input: Tensor, *, dtype: Any = None, device: str | None = None, requires_grad: bool = False) -> Tensor:
    """Zeros of input's shape; dtype and device too, unless given."""
    return _filled_like("zeros_like", input, 0, dtype, requires_grad, device)


def ones_like(input: Tensor, *, dtype: Any = None, device: str | None = None, requires_grad: bool = False) -> Tensor:
    """Ones of input's shape; dtype and device too, unless given."""
    return _filled_like("ones_like", input, 1, dtype, requires_grad, device)


def full_like(
    input: Tensor, fill_value: Any, *, dtype: Any = None, device: str | None = None, requires_grad: bool = False
) -> Tensor:
    """`fill_value` in input's shape; dtype and device too, unless given. ValueError if the dtype cannot hold it."""
    return _filled_like("full_like", input, fill_value, dtype, requires_grad, device)


def arange(
    start: float,
    end: float | None = None,
    step: float = 1,
    *,
    dtype: Any = None,
    device: str | None = None,
    requires_grad: bool = False,
) -> Tensor:
    """start, start + step, ... up to but without end; `arange(end)` starts at 0. int64 if all three are integers.

    Each value is start + i * step in float64, rounded once. ValueError for a step of 0 or away from end.
    """
    first, last = (0, start) if end is None else (start, end)
    # Python's numbers do not wrap around
    first, last, step = (v.item() if isinstance(v, np.generic) else v for v in (first, last, step))
    whole = all(isinstance(v, (int, np.integer)) for v in (first, last, step))
    found = _dtype("arange", dtype, int if whole else float32)
    for name, value in (("start", first), ("end", last), ("step", step)):
        constant("arange", name, value, found)
        if not math.isfinite(value):
            raise ValueError(f"arange: expected `{name}` to be finite, got {value}")
    if step == 0 or (last - first) * step < 0:
        raise ValueError(f"arange: expected a `step` that leads from start to end, got {first}, {last} and {step}")
    requires_grad = flag("arange", "requires_grad", requires_grad)
    n = math.ceil((last - first) / step)
    first, step = (first, step) if whole else (float(first), float(step))
    xp = (backend.default() if device is None else backend.get(device)).xp
    return Tensor(to_dtype(xp.arange(n) * step + first, found), requires_grad=requires_grad)


def linspace(
    start: Any,
    end: Any,
    steps: int,
    *,
    dtype: Any = None,
    device: str | None = None,
    requires_grad: bool = False,
) -> Tensor:
    """`steps` evenly spaced values from start to end, numbers or tensors of one, both included; rounded once."""
    start, end = (v.item() if isinstance(v, Tensor) else v for v in (start, end))
    found, requires_grad = _dtype("linspace", dtype, float32), flag("linspace", "requires_grad", requires_grad)
    for name, value in (("start", start), ("end", end)):
        constant("linspace", name, value, found)
        number("linspace", name, value)
    (n,) = sizes("linspace", "steps", (steps,), {})
    if n < 0:
        raise ValueError(f"linspace: expected `steps` to be at least 0, got {n}")
    there = backend.default() if device is None else backend.get(device)
    return Tensor(there.asarray(to_dtype(np.linspace(float(start), float(end), n), found)), requires_grad=requires_grad)


def eye(
    n: int, m: int | None = None, *, dtype: Any = None, device: str | None = None, requires_grad: bool = False
) -> Tensor:
    """The n x m matrix (n x n without m) with ones on its diagonal, else zeros."""
    found, requires_grad = _dtype("eye", dtype, float32), flag("eye", "requires_grad", requires_grad)
    rows, columns = sizes("eye", "n", (n, n if m is None else m), {})
    if min(rows, columns) < 0:
        raise ValueError(f"eye: expected no negative length in the shape, got {(rows, columns)}")
    there = backend.default() if device is None else backend.get(device)
    return Tensor(there.asarray(to_dtype(np.eye(rows, columns), found)), requires_grad=requires_grad)


def empty(*size: Any, dtype: Any = None, device: str | None = None, requires_grad: bool = False) -> Tensor:
    """A tensor of shape `size` for values that are yet to come: zeros, so that no run depends on what memory held."""
    return _filled("empty", size, 0, _dtype("empty", dtype, float32), requires_grad, device)


def empty_like(input: Tensor, *, dtype: Any = None, device: str | None = None, requires_grad: bool = False) -> Tensor:
    """`empty` of input's shape; dtype and device too, unless given."""
    return _filled_like("empty_like", input, 0, dtype, requires_grad, device)
