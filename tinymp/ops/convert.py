"""Other dtypes, other devices, copies: `Tensor.to`, and PyTorch's methods for one dtype or device each."""

from __future__ import annotations

from typing import Any

import numpy as np

from .. import backend, dtypes
from ..autograd import Array, Op
from ..dtypes import FLOATING, float16, float32, float64
from ..precision import MOVEMENT, POINTWISE, fit, to_dtype
from ..tensor import Tensor


class Cast(Op):
    """y = x in another floating dtype;  dx = dy in x's dtype.

    The one op whose result has another dtype than its input: the user asks for it.
    """

    kind = POINTWISE
    casts = True

    def forward(self, x: Array, *, to: np.dtype) -> Array:
        self.source = x.dtype
        return to_dtype(x, to)

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


def to(input: Tensor, target: Any) -> Tensor:
    """input with another dtype, or on another device ("cpu", "gpu"); itself where nothing changes.

    FP16 to FP32 is exact; FP32 to FP16 is one rounding, like every store. Differentiable between floating dtypes;
    integers cut off the fraction. A dtype may be PyTorch's. ValueError for a value that an integer dtype cannot
    hold (300 in int8, nan), an integer beyond FP16, or a device that does not exist; RuntimeError for a device that
    does not work: it says why.
    """
    if target is None or (isinstance(target, str) and target not in dtypes.KNOWN):
        device = backend.get(target)
        return input if device is backend.of(input.data) else Move.apply(input, to=device)
    try:
        dtype = dtypes.as_dtype(target)
    except TypeError:
        dtype = np.dtype(object)
    if dtype.kind not in "iub" and dtype not in FLOATING:
        known = ", ".join(dtypes.KNOWN)
        raise TypeError(f"to: expected a device ('cpu', 'gpu') or a dtype (one of {known}), got {target!r}")
    if dtype == input.dtype:
        return input
    if dtype not in FLOATING or input.dtype not in FLOATING:
        return Tensor(fit("to", input.data, dtype))
    return Cast.apply(input, to=dtype)


def clone(input: Tensor) -> Tensor:
    """A copy of the data, inside the graph."""
    return Copy.apply(input)


def half(input: Tensor) -> Tensor:
    """input in FP16 (one rounding)."""
    return to(input, float16)


def float(input: Tensor) -> Tensor:
    """input in FP32 (exact from FP16)."""
    return to(input, float32)


def double(input: Tensor) -> Tensor:
    """input in FP64 (exact)."""
    return to(input, float64)


def long(input: Tensor) -> Tensor:
    """input as int64, fractions cut off; no gradient."""
    return to(input, "int64")


def int(input: Tensor) -> Tensor:
    """input as int32, fractions cut off; no gradient."""
    return to(input, "int32")


def bool(input: Tensor) -> Tensor:
    """Whether each element is not 0; no gradient."""
    return to(input, "bool")


def cpu(input: Tensor) -> Tensor:
    """input on the CPU; itself if it is there."""
    return to(input, "cpu")


def cuda(input: Tensor, device: Any = None) -> Tensor:
    """input on the GPU: `to("gpu")`. There is one GPU; TypeError for the name of another."""
    if str(device) not in ("None", "0", "cuda", "cuda:0", "gpu"):  # a torch.device, too
        raise TypeError(f"cuda: expected one GPU and no `device`, got {device!r}")
    return to(input, "gpu")


METHODS = (to, clone, half, float, double, long, int, bool, cpu, cuda)
