"""dtypes: those that hold floating values, what each can hold, and how users name them. Nothing here rounds."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from . import backend

float16, float32, float64 = np.dtype(np.float16), np.dtype(np.float32), np.dtype(np.float64)
bfloat16: Any = None  # FP32's first 16 bits, on the CPU alone; None without ml_dtypes, which NumPy has them from
try:
    import ml_dtypes

    bfloat16 = np.dtype(ml_dtypes.bfloat16)
except ModuleNotFoundError:
    pass
HALVES = tuple([dtype for dtype in (float16, bfloat16) if dtype is not None])  # what stands beside FP32
HALF = {dtype.name for dtype in HALVES}
FLOATING = (*HALVES, float32, float64)
NAMES = {dtype: dtype.name for dtype in FLOATING}  # NumPy takes 3 us to make one
KNOWN = (*NAMES.values(), "int8", "int16", "int32", "int64", "uint8", "bool")

FP16_MAX = 65504.0  # the largest finite FP16 value (NVG section 2.1)
FP16_OVERFLOW = 65520.0  # halfway from there to 2^16: from here on, rounding to nearest gives infinity
FP32_OVERFLOW = 2.0**128 - 2.0**103  # the same for FP32
_OVERFLOW = {float16: FP16_OVERFLOW, float32: FP32_OVERFLOW, bfloat16: 2.0**128 - 2.0**119}
_LARGEST = {
    float16: ("FP16, whose largest value is 65504", "FP32"),
    float32: ("FP32", "FP64"),
    bfloat16: ("BF16", "FP32"),
}


def as_dtype(dtype: Any, how: str = "dtype") -> np.dtype:
    """dtype as NumPy's; `torch.float16` and its like by their names. TypeError, in the name of `how`, for what is none.

    PyTorch is not imported: its dtypes are recognised by how they print.
    """
    name = str(dtype)
    if name.startswith("torch.") and not isinstance(dtype, str):
        if name[6:] not in KNOWN:
            raise TypeError(f"{how}: expected a dtype, one of {', '.join(KNOWN)}, got {name}")
        return np.dtype(name[6:])
    try:
        return np.dtype(dtype)
    except (TypeError, ValueError, SyntaxError):  # the last for a string such as "f,"
        raise TypeError(f"{how}: expected a dtype, one of {', '.join(KNOWN)}, got {dtype!r}") from None


def require_bfloat16(what: str) -> np.dtype:
    """bfloat16. ImportError, in the name of `what`, where ml_dtypes is missing."""
    if bfloat16 is None:
        raise ImportError(f"{what}: BF16 needs ml_dtypes: pip install 'tinymp[bf16]'")
    return bfloat16


def _info(dtype: np.dtype) -> Any:
    return np.finfo(dtype) if dtype.kind == "f" else ml_dtypes.finfo(dtype)


def limits(dtype: np.dtype) -> tuple[float, float]:
    """The smallest normal number of a floating dtype, and its largest."""
    info = _info(dtype)
    return float(info.smallest_normal), float(info.max)


@cache
def patterns(dtype: np.dtype) -> tuple[int, int, int, int]:
    """Bits of a floating dtype's magnitudes, as integers in the order of their values: the mask that cuts the sign off,
    the smallest normal number, infinity, and the first power of two whose double is infinite.
    """
    normal, mask = 1 << _info(dtype).nmant, (1 << 8 * dtype.itemsize - 1) - 1
    infinite = mask + 1 - normal
    return mask, normal, infinite, infinite - normal


def fits(x: Any, dtype: np.dtype) -> bool:
    """Whether dtype can hold all values of x, an array or a number.

    FP16, BF16 and FP32 cannot hold a finite value that rounding would make infinite; an integer dtype cannot hold a
    value beyond its range, nor nan and infinities.
    """
    limit = _OVERFLOW.get(dtype)
    if isinstance(x, (int, float)):
        return limit is None or not limit <= abs(x) < float("inf")
    if x.dtype == dtype or np.can_cast(x.dtype, dtype):
        return True
    if limit is not None:
        return not (((x >= limit) | (x <= -limit)) & backend.of(x).xp.isfinite(x)).any()
    return dtype.kind not in "iu" or bool(_in_range(x, dtype).all())


def _in_range(x: Any, dtype: np.dtype) -> Any:
    """Where x, its fraction cut off, is within the range of an integer dtype."""
    low, high = int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)
    if x.dtype.kind in "iub":
        return (x >= low) & (x <= high)
    xp = backend.of(x).xp
    whole = xp.trunc(x)
    with np.errstate(over="ignore"):  # powers of two: exact, or beyond all that x's dtype holds
        return xp.isfinite(x) & (whole >= float(low)) & (whole < float(high + 1))


def require_fit(what: str, x: Any, dtype: np.dtype) -> None:
    """ValueError unless `fits`. `what` is what the user called."""
    if fits(x, dtype):
        return
    largest, wider = _LARGEST.get(dtype, ("FP64", "FP64"))
    if isinstance(x, (int, float)):
        raise ValueError(
            f"{what}: the constant {x:g} does not fit {largest} (use float('inf'), a smaller constant, or compute in "
            f"{wider})"
        )
    if dtype in FLOATING:
        finite = x[backend.of(x).xp.isfinite(x)]
        raise ValueError(
            f"{what}: a value of magnitude {max(float(finite.max()), -float(finite.min())):g} does not fit {largest}; "
            f"scale the values, or keep them in {wider}"
        )
    bad, limits = x[~_in_range(x, dtype)].reshape(-1)[0], np.iinfo(dtype)
    raise ValueError(f"{what}: the value {bad} does not fit {dtype}, whose values go from {limits.min} to {limits.max}")
