"""Sums in FP16, and sums as Tensor Cores were found to make them. For study: none of this is fast."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from .. import backend
from ..precision import store, widen

Array = Any
_F16, _F32, _F64 = np.dtype(np.float16), np.dtype(np.float32), np.dtype(np.float64)


def matmul_fp16(a: Array, b: Array, chunk: int, acc: Array | None = None) -> Array:
    """The product a @ b (+ acc) of FP32 operands with an FP16 accumulator, returned in FP32.

    `chunk` products at a time are summed exactly enough and then added to the accumulator with one rounding to FP16,
    as a Tensor Core with FP16 accumulators does with its step of 4 (NVG section 2.2). In FP64 up to 16 products, as
    many as Tensor Cores take in a step: no bit depends on the order of BLAS, which follows the shapes. More in FP32.
    """
    device, wide = backend.of(a), _F64 if chunk <= 16 else _F32
    a_wide, b_wide = a.astype(wide, copy=False), b.astype(wide, copy=False)  # rounds: never, FP16's values are exact
    for k in range(0, a.shape[-1], chunk):
        # rounds: the products of one chunk, in FP64 (FP32 from 17 products)
        part = device.gemm(a_wide[..., k : k + chunk], b_wide[..., k : k + chunk, :], None, None, wide, False, False)
        part = part.astype(_F32, copy=False)  # rounds: the sum of one chunk, from FP64 to FP32
        # rounds: an FP16 accumulator, after every chunk
        acc = device.cast(device.cast(part if acc is None else acc + part, _F16), _F32)
    # rounds: never, an empty inner dimension gives zeros
    return device.xp.matmul(a, b) if acc is None else acc  # an empty inner dimension gives zeros


def matmul_aligned(a: Array, b: Array, bits: int, chunk: int, promote: int, acc: Array | None = None) -> Array:
    """The product a @ b (+ acc) of FP32 operands in FP32, summed as Tensor Cores were found to sum (Fasi et al. 2021,
    PeerJ CS 7:e330).

    `chunk` exact products and the accumulator are aligned to the largest of them, cut off (towards 0) behind its first
    `bits` bits, and added; of the sum again `bits` bits stay. After every `promote` products (0: never) it is added to
    an FP32 sum with one rounding, and begins at 0. Slow: FP64 arrays of chunk times the result.
    """
    xp = backend.of(a).xp
    a, b = a.astype(_F64), b.astype(_F64)  # rounds: never, to FP64, which is exact
    shape = (*np.broadcast_shapes(a.shape[:-2], b.shape[:-2]), a.shape[-2], b.shape[-1])
    total = xp.zeros(shape, _F64) if acc is None else xp.broadcast_to(acc, shape).astype(_F64)  # rounds: never, to FP64
    promoted = xp.zeros(shape, _F32)
    for k in range(0, a.shape[-1], chunk):
        terms = a[..., k : k + chunk, None] * b[..., None, k : k + chunk, :]
        terms = xp.concatenate([terms, total[..., None, :]], -2)
        # rounds: products and accumulator, cut off behind `bits` bits
        total = _cut(xp, _cut(xp, terms, bits, abs(terms).max(-2, keepdims=True)).sum(-2), bits)
        if promote and (k + chunk) % promote == 0:
            promoted += total.astype(_F32)  # rounds: a promoted sum, FP32
            total = xp.zeros(shape, _F64)
    return promoted + total.astype(_F32) if promote else total.astype(_F32)  # rounds: both sums, to FP32


def _cut(xp: Any, x: Array, bits: int, largest: Array | None = None) -> Array:
    """x without what lies behind the first `bits` bits of the largest (by default of each number itself)."""
    exponent = xp.frexp(x if largest is None else largest)[1] - bits
    # rounds: what lies behind the first `bits` bits is cut off
    return xp.ldexp(xp.trunc(xp.ldexp(x, -exponent)), exponent)


def reduce_fp16(x: Array, axis: Any, how: str) -> Array:
    """sum, mean or cumsum with one FP16 accumulator that runs along the axes; returned in FP32.

    This is the reduction that MPT section 3.3 warns of: it stalls as soon as a term is below half an ulp of the sum.
    On the host, also for a GPU's arrays: NumPy's `accumulate` alone promises the order of its additions.
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

    def product(self, a: Array, b: Array, acc: Array | None, like: Array) -> Array:
        device = backend.of(a)
        if not device.has_values:
            return device.gemm(a, b, None, acc, _F32, False, False)  # rounds: never, arrays without memory
        return matmul_fp16(a, b, self.chunk, acc)

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
class Aligned:
    """The accumulators of products on Tensor Cores; see `matmul_aligned`."""

    bits: int
    chunk: int
    promote: int

    @property
    def name(self) -> str:
        return f"{self.bits} aligned bits"

    def product(self, a: Array, b: Array, acc: Array | None, like: Array) -> Array:
        device = backend.of(a)
        if not device.has_values:
            return device.gemm(a, b, None, acc, _F32, False, False)  # rounds: never, arrays without memory
        return matmul_aligned(a, b, self.bits, self.chunk, self.promote, acc)

    def add(self, total: Array, part: Array) -> None:
        total += part


@dataclass(frozen=True)
class Split:
    """Products in `parts` parts of the inner dimension, each rounded to storage before they are added up."""

    parts: int
    fp16: Fp16 | None

    @property
    def name(self) -> str:
        return "float32" if self.fp16 is None else "float16"

    def product(self, a: Array, b: Array, acc: Array | None, like: Array) -> Array:
        device, step = backend.of(a), max(-(-a.shape[-1] // self.parts), 1)
        for k in range(0, max(a.shape[-1], 1), step):
            some = a[..., k : k + step], b[..., k : k + step, :]
            part = (
                self.fp16.product(*some, None, like)
                if self.fp16
                else device.gemm(*some, None, None, _F32, False, False)  # rounds: the products of one part, FP32 sums
            )
            part = part if a.shape[-1] <= step else widen(store(part, like))
            acc = part if acc is None else acc + part
        return acc

    def add(self, total: Array, part: Array) -> None:
        if self.fp16:
            self.fp16.add(total, part)
        else:
            total += part
