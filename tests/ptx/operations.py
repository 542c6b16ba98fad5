"""What instructions compute, element by element, where NumPy has no operator for it (PTX ISA, "Instructions")."""

from __future__ import annotations

from typing import Any

import numpy as np

F32, F64 = np.float32, np.float64
MAGNITUDE, ONE, SMALLEST = np.uint32(0x7FFFFFFF), np.uint32(1), np.uint32(0x7FFFFF)  # the last: 2^-126, less one


def flushed(x: np.ndarray) -> np.ndarray:
    """.ftz: FP32 numbers below 2^-126, which are zeros of their sign."""
    bits = x.view(np.uint32) & MAGNITUDE
    bits -= ONE  # zeros are now the largest
    return np.where(bits < SMALLEST, np.copysign(F32(0), x), x) if np.minimum.reduce(bits) < SMALLEST else x


def divided(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Towards zero, as CUDA; by 0, which lanes that are not active may do, anything."""
    b = np.where(b == 0, b.dtype.type(1), b)
    q = a // b
    return q + ((q < 0) & (q * b != a)).astype(q.dtype) if q.dtype.kind == "i" else q


def remainder(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return a - divided(a, b) * np.where(b == 0, b.dtype.type(1), b)


def shifted(how: str, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """By more bits than there are: 0, or the sign."""
    bits = 8 * a.dtype.itemsize
    few = np.minimum(b, np.uint32(bits - 1)).astype(a.dtype)
    y = a << few if how == "shl" else a >> few
    return y if a.dtype.kind == "i" else np.where(b >= bits, a.dtype.type(0), y)


def inserted(a: np.ndarray, b: np.ndarray, at: np.ndarray, length: np.ndarray) -> np.ndarray:
    """bfi: the low `length` bits of a, in b from bit `at` on."""
    bits = 8 * a.dtype.itemsize
    at, length = int(at[0]), min(int(length[0]), bits - int(at[0]))
    mask = a.dtype.type(((1 << length) - 1) << at)
    return (b & ~mask) | (a << a.dtype.type(at)) & mask


def permuted(a: np.ndarray, b: np.ndarray, selector: np.ndarray) -> np.ndarray:
    """prmt.b32: four of the eight bytes of b, a."""
    both = a.astype(np.uint64) | b.astype(np.uint64) << np.uint64(32)
    y = np.zeros(1, np.uint32)
    for i in range(4):
        pick = selector.astype(np.uint64) >> np.uint64(4 * i) & np.uint64(15)
        byte = both >> (pick & np.uint64(7)) * np.uint64(8) & np.uint64(255)
        byte = np.where(pick & np.uint64(8), (byte >> np.uint64(7)) * np.uint64(255), byte)
        y = y | (byte << np.uint64(8 * i)).astype(np.uint32)
    return y


def high(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """mul.hi of 32 bits."""
    wide = np.int64 if a.dtype.kind == "i" else np.uint64
    return (a.astype(wide) * b.astype(wide) >> wide(32)).astype(a.dtype)


def fused(a: np.ndarray, b: np.ndarray, c: np.ndarray, rounding: str) -> np.ndarray:
    """a b + c in FP64 (the product is exact, the sum is not always), then FP32 by the rounding: rn or rm, downwards."""
    exact = a.astype(F64) * b + c
    y = exact.astype(F32)
    return np.where(y > exact, np.nextafter(y, F32(-np.inf)), y) if rounding == "rm" else y


def added_towards_zero(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    exact = a.astype(F64) + b
    y = exact.astype(F32)
    return np.where(np.abs(y) > np.abs(exact), np.nextafter(y, F32(0)), y)


def to_integer(x: np.ndarray, dtype: Any, rounding: str) -> np.ndarray:
    """cvt: nan is 0, beyond the ends of the type its ends."""
    x = {"rni": np.rint, "rzi": np.trunc, "rmi": np.floor, "rpi": np.ceil}[rounding](x).astype(F64)
    info = np.iinfo(dtype)
    least, most = float(info.min), np.nextafter(float(info.max) + 1, 0) if dtype().itemsize == 8 else float(info.max)
    return np.nan_to_num(np.clip(x, least, most), nan=0.0).astype(dtype)


def saturated(x: np.ndarray) -> np.ndarray:
    """To [0, 1]; nan is 0."""
    return np.nan_to_num(np.clip(x, F32(0), F32(1)), nan=0.0)


def approximate(f: Any, x: np.ndarray) -> np.ndarray:
    """ex2.approx and others: the right result, rounded; a GPU's differs by a few units in the last place."""
    return f(x.astype(F64)).astype(F32)


COMPARE = {
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "eq": np.equal,
    "ne": np.not_equal,
}
OPPOSITE = {"ltu": "ge", "leu": "gt", "gtu": "le", "geu": "lt", "neu": "eq", "equ": "ne"}


def compared(how: str, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """setp: of floating numbers `ltu` and the like are true, too, where one is nan, `lt` and `ne` are not."""
    if how == "num" or how == "nan":
        nan = np.isnan(a) | np.isnan(b)
        return nan if how == "nan" else ~nan
    if how in OPPOSITE:
        y = ~COMPARE[OPPOSITE[how]](a, b)
        return y | np.isnan(a) | np.isnan(b) if how == "equ" else y
    y = COMPARE[how](a, b)
    return y & ~(np.isnan(a) | np.isnan(b)) if how == "ne" and a.dtype.kind == "f" else y


def merged(active: np.ndarray, new: np.ndarray, old: np.ndarray) -> np.ndarray:
    """A register after some threads have written to it."""
    return np.where(active, new, old)
