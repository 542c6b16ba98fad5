"""Floating-point formats as data, and the rounding of FP32 numbers to any of them: values on the grid of a format, in
FP32 arrays. For studies of formats that no array here has; FP16's own rounding is the primitives'.

Sources: IEEE 754-2019 (binary16), Kalamkar et al. 2019, arXiv 1905.12322 (BF16), Micikevicius et al. 2022, arXiv
2209.05433 (E4M3 and E5M2), OCP Microscaling Formats 1.0 (blocks of 32 with a power of two: MX; E2M1).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..backend import of

Array = Any
_F32, _U32 = np.dtype(np.float32), np.dtype(np.uint32)


@dataclass(frozen=True)
class Format:
    """A binary format: a sign, `exponent` bits and `fraction` bits.

    bias        of the exponent: the smallest normal number is 2^(1 - bias)
    largest     the largest finite number
    infinities  whether there are any; without them, what is too large becomes NaN
    bits        of one number in memory
    """

    name: str
    exponent: int
    fraction: int
    bias: int
    largest: float
    infinities: bool = True

    @property
    def bits(self) -> int:
        return 1 + self.exponent + self.fraction

    @property
    def smallest_normal(self) -> float:
        return 2.0 ** (1 - self.bias)

    @property
    def smallest(self) -> float:
        """The smallest (subnormal) number above 0."""
        return 2.0 ** (1 - self.bias - self.fraction)

    def round(self, x: Array, saturate: bool = False) -> Array:
        """FP32 x on this format's grid, in FP32: to nearest, ties to even, subnormal numbers kept. NaN stays NaN.

        What is too large becomes infinite, or NaN in a format without infinities, or with `saturate` the largest number
        of its sign. Infinities stay, or become NaN, with `saturate`, too: a loss scaler must hear of them. TypeError
        for another dtype than FP32.
        """
        if x.dtype != _F32:
            raise TypeError(f"{self.name}: expected FP32 numbers, got {x.dtype}")
        bits = x.view(_U32)
        xp, sizes, cut = of(x).xp, abs(x), 23 - self.fraction
        half = (bits >> cut & 1) + np.uint32((1 << cut - 1) - 1)  # ties to even
        # rounds: FP32 to another format, to nearest, ties to even
        y = ((bits + half) & np.uint32(0x7FFFFFFF >> cut << cut)).view(_F32)  # a carry goes to the exponent
        if self.bias < 127:  # else FP32's subnormal numbers are cut like all others
            # rounds: never, a power of two
            lift = np.float32(2.0 ** (24 - self.bias - self.fraction))  # its last bit is worth `smallest`
            small = sizes < np.float32(self.smallest_normal)  # rounds: never, a limit of the format
            y = xp.where(small, xp.where(small, sizes, lift) + lift - lift, y)
        infinite = np.float32(math.inf if self.infinities else math.nan)  # rounds: never, infinity or nan
        # rounds: never, a limit of the format
        y = xp.where(y > np.float32(self.largest), np.float32(self.largest) if saturate else infinite, y)
        if saturate:
            y = xp.where(sizes < np.float32(math.inf), y, infinite)  # rounds: never, infinity
        return xp.where(x != x, x, (y.view(_U32) | bits & np.uint32(0x80000000)).view(_F32))

    def power_for(self, largest: Array) -> Array:
        """The largest power of two by which numbers up to `largest` (an FP32 array) can be multiplied and fit, within
        [2^-126, 2^126]; 2^0 where largest is 0 or not finite.
        """
        xp = of(largest).xp
        fraction, power = xp.frexp(largest)  # largest = fraction * 2^power, fraction in [1/2, 1)
        mantissa, top = math.frexp(self.largest)
        power = xp.clip(top - power - (fraction > mantissa), -126, 126)
        known = (largest > 0) & (largest < math.inf)
        return xp.ldexp(xp.ones_like(largest), xp.where(known, power, 0))


FP32 = Format("fp32", 8, 23, 127, (2 - 2.0**-23) * 2.0**127)
FP16 = Format("fp16", 5, 10, 15, 65504.0)
BF16 = Format("bf16", 8, 7, 127, (2 - 2.0**-7) * 2.0**127)
TF32 = Format("tf32", 8, 10, 127, (2 - 2.0**-10) * 2.0**127)
E4M3 = Format("e4m3", 4, 3, 7, 448.0, infinities=False)
E5M2 = Format("e5m2", 5, 2, 15, 57344.0)
E2M1 = Format("e2m1", 2, 1, 1, 6.0, infinities=False)
FORMATS = {f.name: f for f in (FP16, BF16, TF32, E4M3, E5M2, E2M1)}


@dataclass(frozen=True)
class Scaled:
    """A format, and how numbers are scaled to fit it before they are rounded.

    scaling  "none"; "tensor": a power of two per array, from its largest magnitude; "block": a number per `block`
             neighbours, along the last axis, row after row
    scale    of a block: "power", of two (OCP MX), or "e4m3", below one FP32 number per array (NVFP4)
    """

    name: str
    format: Format
    scaling: str = "none"
    block: int = 32
    scale: str = "power"

    def round(self, x: Array) -> Array:
        """FP32 x as this scaled format holds it, in FP32. Finite numbers saturate where scaled; see `Format`."""
        lifted, s = self._lift(x, largest_finite(x))
        y = self.format.round(lifted, saturate=self.scaling != "none") / s
        return y if y.shape == x.shape else y.reshape(-1)[: x.size].reshape(x.shape)

    def loss(self, x: Array, largest: Array | None = None) -> np.ndarray:
        """The losses of FP32 x, as an FP64 array with one number for each of LOSSES. What is no finite number in x
        is left out, and of the last four sums what is none afterwards. largest: that of the whole array where x is a
        sample.
        """
        lifted, s = self._lift(x, largest_finite(x) if largest is None else largest)
        xp, f, saturates = of(x).xp, self.format, self.scaling != "none"
        y = f.round(lifted, saturate=saturates)
        known, size = abs(lifted) < math.inf, abs(y)
        # rounds: never, a limit of the format
        beyond = known & (abs(lifted) > np.float32(f.largest) if saturates else ~(size < math.inf))
        small = (size < np.float32(f.smallest_normal)) & known  # rounds: never, a limit of the format
        counted = known & (lifted != 0), small & (size == 0) & (lifted != 0), small & (size > 0), beyond
        at = known & (size < math.inf)
        # rounds: never, to FP64, which is exact
        before, after = (xp.where(at, v, np.float32(0)).astype(np.float64) / s for v in (lifted, y))
        error = after - before
        sums = error, abs(before), error * error, before * before
        # rounds: the losses of a format, in FP64
        found = xp.stack([*(xp.asarray(xp.count_nonzero(c), np.float64) for c in counted), *(v.sum() for v in sums)])
        return found if xp is np else found.get()

    def _lift(self, x: Array, top: Array) -> tuple[Array, Array]:
        """x times a scale, and the scale: a number, or one for each row of x cut into blocks and filled up with 0."""
        xp = of(x).xp
        if self.scaling == "none":
            return x, np.float32(1)
        if self.scaling != "block":
            s = self.format.power_for(top)
            return x * s, s
        n, flat = self.block, x.reshape(-1)
        rows = xp.zeros((-(-flat.size // n), n), x.dtype)
        rows.reshape(-1)[: flat.size] = flat
        sizes = abs(rows)
        most = xp.max(xp.where(sizes < math.inf, sizes, np.float32(0)), axis=1, keepdims=True)
        if self.scale == "power":
            # the exponent of the largest number in the block, less that of the format's largest: it may saturate
            power = math.frexp(self.format.largest)[1] - xp.frexp(most)[1]
            s = xp.ldexp(xp.ones_like(most), xp.clip(xp.where(most > 0, power, 0), -126, 126))
            return rows * s, s
        unit = np.float32(max(float(top) / (E4M3.largest * self.format.largest), 2.0**-100))  # rounds: a scale, to FP32
        # rounds: never, a limit of the format
        step = E4M3.round(most / (unit * np.float32(self.format.largest)), saturate=True) * unit
        s = 1 / xp.where(step > 0, step, unit)
        return rows * s, s


LOSSES = ("elements", "zero", "subnormal", "beyond", "error", "magnitude", "noise", "signal")
_PLAIN = [Scaled(f.name, f) for f in (FP16, BF16, E4M3, E5M2)]
_TENSOR = [Scaled(f"{f.name}-tensor", f, "tensor") for f in (E4M3, E5M2)]
_BLOCK = Scaled("mxfp8", E4M3, "block"), Scaled("mxfp8-e5m2", E5M2, "block"), Scaled("nvfp4", E2M1, "block", 16, "e4m3")
SCALED = {f.name: f for f in (*_PLAIN, *_TENSOR, *_BLOCK)}


def largest_finite(x: Array) -> Array:
    """The largest finite magnitude in x, as an array of one number; 0 where there is none."""
    xp = of(x).xp
    if not x.size:
        return xp.zeros((), x.dtype)
    if xp is np and (most := np.maximum(x.max(), -x.min())) < math.inf:  # a GPU would be waited for
        return most
    sizes = abs(x)
    return xp.max(xp.where(sizes < np.float32(math.inf), sizes, np.float32(0)))  # rounds: never, infinity
