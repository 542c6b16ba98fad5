"""New tensors of random numbers, drawn on the host from `manual_seed`'s generator.

One seed gives the same numbers on every device.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from .. import backend
from ..arguments import flag, sizes, tensor
from ..autograd import Array
from ..dtypes import FLOATING, as_dtype, float16, float32, float64
from ..precision import to_dtype
from ..tensor import Tensor

Draw = Callable[[np.random.Generator, tuple, np.dtype], Array]


def _drawn(op: str, draw: Draw, size: tuple, dtype: Any, device: str | None, requires_grad: bool = False) -> Tensor:
    shape, found = sizes(op, "size", size, {}), as_dtype(dtype)
    if min(shape, default=0) < 0:
        raise ValueError(f"{op}: expected no negative length in the shape, got {shape}")
    requires_grad = flag(op, "requires_grad", requires_grad)
    there = backend.default() if device is None else backend.get(device)
    if there.name == "meta":  # no memory, no numbers
        return Tensor(there.empty(shape, found), requires_grad=requires_grad)
    values = np.asarray(draw(backend.cpu.generator, shape, found))
    return Tensor(to_dtype(there.asarray(values), found), requires_grad=requires_grad)


def _floating(op: str, dtype: Any) -> np.dtype:
    if as_dtype(dtype) not in FLOATING:
        raise TypeError(f"{op}: expected a floating `dtype`, got {dtype!r}")
    return as_dtype(dtype)


def _uniform(generator: np.random.Generator, shape: tuple, dtype: np.dtype) -> Array:
    """Numbers in [0, 1) that dtype holds exactly: rounding others could give 1."""
    if dtype == float64:
        return generator.random(shape)
    values = backend.cpu.uniform(shape)
    return np.floor(values * 2048) / 2048 if dtype == float16 else values


def rand(*size: Any, dtype: Any = float32, device: str | None = None, requires_grad: bool = False) -> Tensor:
    """Uniform on [0, 1), of shape `size` (integers or one tuple). In FP16 multiples of 2^-11, as in PyTorch."""
    return _drawn("rand", _uniform, size, _floating("rand", dtype), device, requires_grad)


def randn(*size: Any, dtype: Any = float32, device: str | None = None, requires_grad: bool = False) -> Tensor:
    """Standard normal, of shape `size` (integers or one tuple); drawn in FP64 and rounded once."""

    def normal(generator: np.random.Generator, shape: tuple, dtype: np.dtype) -> Array:
        return generator.standard_normal(shape)

    return _drawn("randn", normal, size, _floating("randn", dtype), device, requires_grad)


def rand_like(input: Tensor, *, dtype: Any = None, device: str | None = None, requires_grad: bool = False) -> Tensor:
    """`rand` of input's shape; dtype and device too, unless given."""
    x = tensor("rand_like", "input", input)
    given = {"dtype": x.dtype if dtype is None else dtype, "device": x.device if device is None else device}
    return rand(x.shape, **given, requires_grad=requires_grad)


def randn_like(input: Tensor, *, dtype: Any = None, device: str | None = None, requires_grad: bool = False) -> Tensor:
    """`randn` of input's shape; dtype and device too, unless given."""
    x = tensor("randn_like", "input", input)
    given = {"dtype": x.dtype if dtype is None else dtype, "device": x.device if device is None else device}
    return randn(x.shape, **given, requires_grad=requires_grad)


def randint(low: int, high: Any = None, size: Any = None, *, dtype: Any = "int64", device: str | None = None) -> Tensor:
    """Integers from low to high - 1, of shape `size`; randint(high, size) starts at 0. ValueError unless low < high."""
    first, end, shape = (0, low, high) if size is None else (low, high, size)
    if not all(hasattr(n, "__index__") for n in (first, end)):
        raise TypeError(f"randint: expected integers for `low` and `high`, got {first!r} and {end!r}")
    if not first < end:
        raise ValueError(f"randint: expected low < high, got {first} and {end}")
    return _drawn("randint", lambda generator, shape, _: generator.integers(first, end, shape), (shape,), dtype, device)


def randperm(n: int, *, dtype: Any = "int64", device: str | None = None) -> Tensor:
    """The integers from 0 to n - 1 in a random order."""
    return _drawn("randperm", lambda generator, shape, _: generator.permutation(*shape), (n,), dtype, device)
