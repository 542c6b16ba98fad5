"""Accumulators for studies: FP16, FP64, those of Tensor Cores, and sums in parts. None of this is fast."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from .. import backend
from ..events import here
from ..precision import current_policy, store, widen
from .formats import FORMATS, largest_finite
from .tensor_core import RESULTS, find, multiply, truncate

Array = Any
_F16, _F32, _F64 = np.dtype(np.float16), np.dtype(np.float32), np.dtype(np.float64)


def matmul_fp16(a: Array, b: Array, chunk: int) -> Array:
    """The product a @ b with an FP16 accumulator, returned in FP32.

    `chunk` products at a time are summed exactly enough and then added to the accumulator with one rounding to FP16, as
    a Tensor Core with FP16 accumulators does with its step of 4 (NVG section 2.2): up to 16 products in FP64, so that
    no bit depends on the order of BLAS, which follows the shapes; more in FP32.
    """
    device, wide = backend.of(a), _F64 if chunk <= 16 else _F32
    a_wide, b_wide = device.cast(a, wide), device.cast(b, wide)  # rounds: never, FP16's values are exact
    acc: Any = None
    for k in range(0, a.shape[-1], chunk):
        # rounds: the products of one chunk, in FP64 (FP32 from 17 products)
        part = device.gemm(a_wide[..., k : k + chunk], b_wide[..., k : k + chunk, :])
        part = part.astype(_F32, copy=False)  # rounds: the sum of one chunk, from FP64 to FP32
        # rounds: an FP16 accumulator, after every chunk
        acc = device.cast(device.cast(part if acc is None else acc + part, _F16), _F32)
    return device.gemm(a, b) if acc is None else acc  # rounds: never, an empty inner dimension gives zeros


def reduce_fp16(x: Array, axis: Any, how: str) -> Array:
    """sum, mean or cumsum with one FP16 accumulator that runs along the axes; returned in FP32. MPT section 3.3 warns
    of it: it stalls as soon as a term is below half an ulp of the sum. On the host: NumPy's `accumulate` alone promises
    its order.
    """
    device = backend.of(x)
    if device is backend.gpu:
        return device.asarray(reduce_fp16(device.to_numpy(x), axis, how))
    halves = x if x.dtype == _F16 else device.cast(x, _F16)  # rounds: terms, to FP16
    with np.errstate(over="ignore"):
        if how == "cumsum":
            # rounds: running FP16 sums, after every term
            return device.cast(np.add.accumulate(halves, axis=axis), _F32)
        axes = (axis,) if isinstance(axis, int) else tuple(axis)
        kept = tuple(1 if i in [a % x.ndim for a in axes] else n for i, n in enumerate(x.shape))
        rows = np.moveaxis(halves, axes, range(len(axes))).reshape(device.count(x, axis), math.prod(kept))
        # accumulate, unlike reduce, never reorders into pairwise sums
        # rounds: an FP16 accumulator, after every term
        total = np.add.accumulate(rows, axis=0)[-1] if len(rows) else np.zeros(rows.shape[1], _F16)
        total = total.reshape(kept)
        # rounds: a mean: its sum times an FP16 1 / n, in FP16
        return device.cast((total * _F16.type(1 / max(device.count(x, axis), 1))) if how == "mean" else total, _F32)


@dataclass(frozen=True)
class Fp16:
    """An FP16 accumulator. Of a product it is rounded after every `chunk` products, of a sum after every term."""

    chunk: int = 4
    name = "float16"

    def product(self, a: Array, b: Array) -> Array:
        device = backend.of(a)
        # rounds: never, arrays without memory
        return matmul_fp16(a, b, self.chunk) if device.has_values else device.gemm(a, b)

    def reduce(self, x: Array, axis: Any, how: str) -> Array:
        device = backend.of(x)
        # rounds: terms to FP16, in arrays without memory
        return reduce_fp16(x, axis, how) if device.has_values else device.reduce(device.cast(x, _F16), axis, how)

    def add(self, total: Array, part: Array) -> None:
        """Each sum is rounded to FP16, but kept in an FP32 array."""
        device = backend.of(total)
        total += part
        total[...] = device.cast(device.cast(total, _F16), _F32)  # rounds: an FP16 accumulator, after every term

    def scatter_add(self, n_rows: int, index: Array, rows: Array, like: Array) -> Array:
        return widen(backend.of(rows).scatter_add_rows(n_rows, index, store(rows, like)))  # rounds: FP16 sums


@dataclass(frozen=True)
class TensorCore:
    """The accumulators of products on the Tensor Cores of an architecture; see `tensor_core.py`. storage: the name of
    the operands' format; fp8: the formats of FP8 operands, of activations and weights, and of gradients; scaled: True
    where each FP8 operand is scaled by a power of two; promote: see `Arithmetic`.
    """

    architecture: str
    accumulate: str
    storage: str
    fp8: tuple[str, ...] = ()
    scaled: bool = False
    promote: int = 0

    @property
    def name(self) -> str:
        return f"{RESULTS[self.accumulate][1]} of {self.architecture}"

    def product(self, a: Array, b: Array) -> Array:
        device = backend.of(a)
        if not device.has_values:
            return device.gemm(a, b)  # rounds: never, arrays without memory
        a, b = widen(a), widen(b)
        (one, s), (two, t) = self._format(a), self._format(b)
        if self.storage in (one, two):  # attention multiplies weights that it has computed itself: these are no FP8
            one, s, two, t = self.storage, 1.0, self.storage, 1.0
        unit, formats = find(self.architecture, (one, two), self.accumulate), (FORMATS[one], FORMATS[two])
        if one == "tf32":
            a, b = (device.tf32(a), device.tf32(b)) if current_policy().tf32 else (truncate(a), truncate(b))
        x, y = a.astype(_F64) * s, b.astype(_F64) * t  # rounds: never, FP64 times a power of two
        if self.promote:
            total = multiply(x[..., :0], y[..., :0, :], None, unit, formats)
            for k in range(0, x.shape[-1], self.promote):
                some = slice(k, k + self.promote)
                part = multiply(x[..., some], y[..., some, :], None, unit, formats)
                total = (total + part).astype(_F32).astype(_F64)  # rounds: a promoted sum, to FP32
        else:
            total = multiply(x, y, None, unit, formats)
        with np.errstate(over="ignore"):
            return (total / (s * t)).astype(_F32)  # rounds: never, but for what FP32 does not hold after the scaling

    def _format(self, x: Array) -> tuple[str, float]:
        """The format of an operand, and the power of two by which it is scaled: the first format that holds all its
        numbers, in a backward pass the gradients' first. Whatever both hold has the same bits in each, subnormal
        numbers apart.
        """
        for name in dict.fromkeys(reversed(self.fp8) if here.backward is not None else self.fp8[:1]):
            f = FORMATS[name]
            s = f.power_for(largest_finite(x)) if self.scaled else np.float32(1)  # rounds: never, a power of two
            if backend.of(x).xp.array_equal(f.round(x * s), x * s, equal_nan=True):
                return name, float(s)
        return self.storage, 1.0

    def add(self, total: Array, part: Array) -> None:
        Fp16().add(total, part) if self.accumulate == "fp16" else np.add(total, part, out=total)


@dataclass(frozen=True)
class Split:
    """Products in `parts` parts of the inner dimension, each rounded to storage before they are added up."""

    parts: int
    fp16: Fp16 | None

    @property
    def name(self) -> str:
        return "float32" if self.fp16 is None else "float16"

    def product(self, a: Array, b: Array) -> Array:
        step, acc = max(-(-a.shape[-1] // self.parts), 1), None
        for k in range(0, max(a.shape[-1], 1), step):
            some = a[..., k : k + step], b[..., k : k + step, :]
            part = (self.fp16.product if self.fp16 else backend.of(a).gemm)(*some)  # rounds: the products of one part
            part = part if a.shape[-1] <= step else widen(store(part, a))
            acc = part if acc is None else acc + part
        return acc

    def add(self, total: Array, part: Array) -> None:
        if self.fp16:
            self.fp16.add(total, part)
        else:
            total += part


class Fp64:
    """FP64 accumulators of FP16 operands. Their sums are rounded to FP32 when they are complete."""

    name = "float64"

    @staticmethod
    def product(a: Array, b: Array) -> Array:
        device = backend.of(a)
        a, b = device.cast(a, _F64), device.cast(b, _F64)  # rounds: never, FP32 -> FP64 is exact
        # rounds: products accumulated in FP64, then rounded to FP32
        return device.cast(device.gemm(a, b), _F32)

    @staticmethod
    def reduce(x: Array, axis: Any, how: str) -> Array:
        device = backend.of(x)
        return device.cast(device.reduce(device.cast(x, _F64), axis, how), _F32)  # rounds: FP64 sums to FP32

    @staticmethod
    def add(total: Array, part: Array) -> None:
        total += part

    @staticmethod
    def scatter_add(n_rows: int, index: Array, rows: Array, like: Array) -> Array:
        device = backend.of(rows)
        # rounds: sums accumulated in FP64, then rounded to FP32
        return device.cast(device.scatter_add_rows(n_rows, index, device.cast(rows, _F64)), _F32)
