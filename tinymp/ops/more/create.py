"""New tensors of evenly spaced numbers, eye, and zeros or ones like a tensor."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from ... import backend
from ...arguments import called, constant, flag, integers, number
from ...dtypes import FLOATING, float32, float64
from ...precision import to_dtype
from ...tensor import Tensor
from ..create import dtype_of, full_like

__all__ = ["arange", "empty_like", "eye", "linspace", "ones_like", "zeros_like"]


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
    found = dtype_of("arange", dtype, int if whole else float32)
    for name, value in (("start", first), ("end", last), ("step", step)):
        if not math.isfinite(constant("arange", name, value, float64)):
            raise ValueError(f"arange: expected `{name}` to be finite, got {value}")
        if found not in FLOATING and value % 1:
            constant("arange", name, value, found)
    if step == 0 or (last - first) * step < 0:
        raise ValueError(f"arange: expected a `step` that leads from start to end, got {first}, {last} and {step}")
    requires_grad = flag("arange", "requires_grad", requires_grad)
    n = -((first - last) // step) if whole else math.ceil((last - first) / step)
    for value in (first, first + (n - 1) * step) if n else ():  # the end is exclusive
        constant("arange", "start + i * step", value, found)
    first, step = (first, step) if whole else (float(first), float(step))
    xp = (backend.default() if device is None else backend.get(device)).xp
    return Tensor(to_dtype(xp.arange(n) * step + first, found), requires_grad=requires_grad)


def linspace(
    start: Any, end: Any, steps: int, *, dtype: Any = None, device: str | None = None, requires_grad: bool = False
) -> Tensor:
    """`steps` evenly spaced values from start to end, numbers or tensors of one, both included; rounded once."""
    start, end = (v.item() if isinstance(v, Tensor) else v for v in (start, end))
    found, requires_grad = dtype_of("linspace", dtype, float32), flag("linspace", "requires_grad", requires_grad)
    for name, value in (("start", start), ("end", end)):
        constant("linspace", name, value, found)
        number("linspace", name, value)
    (n,) = integers("linspace", "steps", steps, 1, 0)
    there = backend.default() if device is None else backend.get(device)
    return Tensor(there.asarray(to_dtype(np.linspace(float(start), float(end), n), found)), requires_grad=requires_grad)


def eye(
    n: int, m: int | None = None, *, dtype: Any = None, device: str | None = None, requires_grad: bool = False
) -> Tensor:
    """The n x m matrix (n x n without m) with ones on its diagonal, else zeros."""
    found, requires_grad = dtype_of("eye", dtype, float32), flag("eye", "requires_grad", requires_grad)
    rows, columns = (integers("eye", name, k, 1, 0)[0] for name, k in (("n", n), ("m", n if m is None else m)))
    there = backend.default() if device is None else backend.get(device)
    return Tensor(there.asarray(to_dtype(np.eye(rows, columns), found)), requires_grad=requires_grad)


def _like(name: str, value: float, says: str) -> Callable[..., Tensor]:
    def function(input: Tensor, *, dtype: Any = None, device: str | None = None, requires_grad: bool = False) -> Tensor:
        return full_like(input, value, dtype=dtype, device=device, requires_grad=requires_grad)

    return called(function, name, says, __name__)


zeros_like = _like("zeros_like", 0, "Zeros of input's shape; dtype and device too, unless given.")
ones_like = _like("ones_like", 1, "Ones of input's shape; dtype and device too, unless given.")
empty_like = _like("empty_like", 0, "`empty` of input's shape; dtype and device too, unless given.")
