"""Tensor Cores, bit for bit: the sums that a V100, A100, H100 or B200 makes of a matrix product.

A Tensor Core adds n products a_i b_i at a time to an accumulator c. One such step, for one number of the result:

    e(x) = floor(log2 |x|), and at least the exponent of the smallest normal number of x's format
    E    = the largest of e(c) and of those e(a_i) + e(b_i) with a_i b_i != 0
    t    = cut(c 2^(F - E)) + cut(a_1 b_1 2^(F - E)) + ... + cut(a_n b_n 2^(F - E))
    c'   = t 2^(E - F), cut off to FP32 or rounded to FP16

`cut` takes away what lies behind the binary point, towards 0; the sum t is exact. So all terms are aligned to the
largest *sum of exponents*, and F bits behind its point stay. It is not the exponent of the largest product: the
significands lie in [1, 2), their product in [1, 4), and nobody normalises it first. The next step begins with c'. All
that differs between GPUs is in ARCHITECTURES.

Sources: results of GPUs, and the models that their authors fitted to them (Khattak and Mikaitis 2025, arXiv 2512.07004,
github.com/north-numerical-computing/MATLAB-tensor-core); mmasim (Xie et al. 2025, arXiv 2511.10909); for Volta, Turing
and Ampere Fasi et al. 2021 (PeerJ CS 7:e330). tests/study/test_tensor_core.py holds this file to the first two.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from .. import backend
from .formats import FORMATS, FP16, FP32, Format

Array = Any
_F64 = np.dtype(np.float64)
RESULTS = {"fp32": (FP32, np.dtype(np.float32)), "fp16": (FP16, np.dtype(np.float16))}
BLOCK = 1 << 15  # numbers of the result that are computed at a time: what they need lies in a core's cache
NOTHING = -4096  # the exponent of a zero operand, below that of every product


@dataclass(frozen=True)
class Unit:
    """The way in which the Tensor Cores of an architecture sum products of one format.

    products  n: how many products one step adds to the accumulator
    bits      F: how many bits of each term stay behind the point
    zero      the exponent that a zero accumulator counts with, which lies below that of every other accumulator
    result    the format of accumulator and result: FP32, cut off (of its 23 bits behind the point no more than F are
              kept), or FP16, rounded to nearest, ties to even
    source    the GPUs whose results agree, or who says so
    by_fp16   the instruction makes FP16 numbers of FP8 operands, and adds c at the end (see `_by_fp16`)
    """

    products: int
    bits: int
    zero: int
    result: Format
    source: str
    by_fp16: bool = False


def _units(zero: int, *rows: tuple[str, int, int, str]) -> dict[tuple[str, str], Unit]:
    """The units of one architecture, by format and accumulator. zero: the exponent of a zero in FP16."""
    units = {}
    for formats, products, bits, source in rows:
        for name in formats.split():
            units[name, "fp32"] = Unit(products, bits, zero - 112, FP32, source)  # FP32 begins 112 binades below FP16
            if name not in ("bf16", "tf32"):
                units[name, "fp16"] = Unit(products, bits, zero, FP16, source)
    return units


ARCHITECTURES = {
    "volta": _units(-19, ("fp16", 4, 23, "V100")),
    "turing": _units(-20, ("fp16", 8, 24, "mmasim; Fasi et al. 2021 (T4)")),
    "ampere": _units(-20, ("fp16 bf16", 8, 24, "A100, A2"), ("tf32", 4, 24, "A100, A2")),
    "ada": _units(
        -20, *[(*row, "L40S, RTX 1000") for row in (("fp16 bf16", 8, 24), ("tf32", 4, 24), ("e4m3 e5m2", 16, 13))]
    ),
    "hopper": _units(
        -21,
        ("fp16 bf16", 16, 25, "H100, H200"),
        ("tf32", 8, 25, "H100, H200 for 4 products; mmasim for 8"),
        ("e4m3 e5m2", 32, 13, "H100, H200 in FP32; mmasim in FP16"),
    ),
    "blackwell": _units(
        -21,
        ("fp16 bf16", 16, 25, "B200"),
        ("tf32", 8, 25, "B200 for 4 products; mmasim for 8"),
        ("e4m3 e5m2", 32, 25, "mmasim"),
    ),
}
# PTX's mma has FP8 operands on these GPUs, too, whose own FP8 instructions are wgmma and tcgen05
for _name in ("hopper", "blackwell"):
    ARCHITECTURES[f"{_name}-mma"] = {
        key: replace(unit, products=16, bits=25, source="H100, H200, B200", by_fp16=True)
        for key, unit in ARCHITECTURES[_name].items()
        if key[0] in ("e4m3", "e5m2")
    }


def tensor_core(
    a: Array,
    b: Array,
    c: Array | None = None,
    architecture: str = "hopper",
    operands: str | tuple[str, str] = "fp16",
    accumulate: str = "fp32",
) -> Array:
    """a @ b + c with the bits of a GPU's Tensor Cores: one matrix instruction after the other, along k.

    a             (..., m, k) and
    b             (..., k, n): arrays of floating-point numbers, of any dtype, that the format `operands` holds exactly.
                  "tf32" takes every FP32 number and cuts off its last 13 bits, as the instruction does
    c             (..., m, n): the accumulator at the start, of numbers that `accumulate` holds. None: zeros
    architecture  "volta", "turing", "ampere", "ada", "hopper" or "blackwell"; "hopper-mma" and "blackwell-mma" for FP8
                  by the instruction mma
    operands      "fp16", "bf16", "tf32", "e4m3" or "e5m2"; a tuple of two where a and b have different FP8 formats
    accumulate    "fp32" or "fp16": the format of the accumulator and of the result

    Returns (..., m, n) in float32 or float16. Zeros fill k up to whole steps, as kernels do it. Infinities and NaN in
    operands, and sums that are too large, give infinities and NaN; a sum of zeros is +0. Axes before the last two
    broadcast. Source: the head of this file.

    ValueError for a combination that the hardware does not have, shapes that do not fit, numbers that a format does not
    hold; TypeError for what is no array of floating-point numbers.
    """
    names = operands if isinstance(operands, tuple) else (operands, operands)
    unit = find(architecture, names, accumulate)
    with np.errstate(all="ignore"):  # infinities and NaN are results like others
        x, y = _exact("a", a, names[0]), _exact("b", b, names[1])
        if x.ndim < 2 or y.ndim < 2 or x.shape[-1] != y.shape[-2] or not _fit(x.shape[:-2], y.shape[:-2]):
            raise ValueError(
                f"tensor_core: expected a of shape (..., m, k) and b of shape (..., k, n), got {x.shape} and {y.shape}"
            )
        shape = (*np.broadcast_shapes(x.shape[:-2], y.shape[:-2]), x.shape[-2], y.shape[-1])
        start = None if c is None else _exact("c", c, accumulate)
        if start is not None and not (start.ndim <= len(shape) and _fit(start.shape, shape, one_way=True)):
            raise ValueError(f"tensor_core: expected c to broadcast to the result's shape {shape}, got {start.shape}")
        result = multiply(x, y, start, unit, (FORMATS[names[0]], FORMATS[names[1]]))
        return result.astype(RESULTS[accumulate][1])  # rounds: never, the numbers are of this format


def _fit(one: tuple[int, ...], two: tuple[int, ...], one_way: bool = False) -> bool:
    """True if shapes broadcast; one_way: the first to the second."""
    pairs = zip(reversed(one), reversed(two), strict=False)
    return all(i in (1, j) or (j == 1 and not one_way) for i, j in pairs)


def find(architecture: str, operands: tuple[str, ...], accumulate: str) -> Unit:
    """The unit for these formats; ValueError with those that there are."""
    if not isinstance(architecture, str) or architecture not in ARCHITECTURES:
        raise ValueError(
            f"tensor_core: expected architecture to be one of {', '.join(ARCHITECTURES)}, got {architecture!r}"
        )
    units = ARCHITECTURES[architecture]
    found = [units.get((str(name), str(accumulate))) for name in operands]
    if len(found) != 2 or found[0] is None or found[0] != found[1]:
        those = ", ".join(f"{name} with {result}" for name, result in units)
        mixed = "; E4M3 and E5M2 also one of each" * any(name == "e4m3" for name, _ in units)
        raise ValueError(
            f"tensor_core: expected operands and accumulate to be what {architecture} has ({those}{mixed}), "
            f"got {' and '.join(map(repr, operands))} with {accumulate!r}"
        )
    return found[0]


def _exact(name: str, x: Array, kind: str) -> Array:
    """The numbers of x in FP64, each of which the format holds; see `tensor_core`."""
    xp = backend.of(x).xp
    if not isinstance(x, xp.ndarray) or x.dtype.kind not in "fV" or x.dtype.names:  # "V": BF16 and FP8
        got = x.dtype if isinstance(x, xp.ndarray) else type(x).__name__
        hint = "; take its .array" * hasattr(x, "array")
        raise TypeError(f"tensor_core: expected {name} to be an array of floating-point numbers, got {got}{hint}")
    wide = x.astype(_F64)  # rounds: never, to FP64, which is exact
    if kind == "tf32" and x.dtype == np.float32:
        return truncate(x).astype(_F64)  # rounds: never, to FP64, which is exact
    f = RESULTS[kind][0] if name == "c" else FORMATS[kind]
    if not (held := (round_to(wide, f, xp.trunc) == wide) | ~xp.isfinite(wide)).all():
        place = tuple(int(i) for i in np.argwhere(~held)[0])
        raise ValueError(
            f"tensor_core: expected {name} to hold {f.name.upper()} numbers, got {float(wide[place])!r} at {place}; "
            "round it first: astype, or tinymp.study.formats.FORMATS[name].round(x)"
        )
    return wide


def truncate(x: Array) -> Array:
    """FP32 x without the last 13 bits, as an instruction reads it (PTX ISA, wgmma.mma_async; mmasim).

    cuBLAS rounds before that, as seen from an A100: see `Device.tf32`, which a policy with tf32=True calls.
    """
    # rounds: FP32 operands, cut off to TF32
    return (x.view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32)


def multiply(a: Array, b: Array, c: Array | None, unit: Unit, formats: tuple[Format, Format]) -> Array:
    """`tensor_core` of FP64 arrays, which are not checked, in FP64. formats: those of a and b."""
    if unit.by_fp16:
        return _by_fp16(a, b, c, unit)
    xp, m, n = backend.of(a).xp, a.shape[-2], b.shape[-1]
    batch = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    out = xp.zeros((*batch, m, n), _F64)
    if c is not None:
        out += c
    count = math.prod(batch)
    a, b = (xp.broadcast_to(x, (*batch, *x.shape[-2:])).reshape(count, *x.shape[-2:]) for x in (a, b))
    flat = out.reshape(count, m, n)
    ea, eb = _exponents(a, formats[0], NOTHING), _exponents(b, formats[1], NOTHING)
    rows = max(min(BLOCK // max(n, 1), m), 1)
    many = max(BLOCK // max(rows * n, 1), 1)
    for i in range(0, count, many):
        for j in range(0, m, rows):
            at, some = slice(i, i + many), slice(j, j + rows)
            flat[at, some] = _steps(a[at, some], ea[at, some], b[at], eb[at], flat[at, some], unit)
    return out


def _steps(a: Array, ea: Array, b: Array, eb: Array, c: Array, unit: Unit) -> Array:
    """c + a @ b for arrays (batch, m, k), (batch, k, n), (batch, m, n): the rule, step after step."""
    xp = backend.of(a).xp
    for k in range(0, a.shape[-1], unit.products):
        step = range(k, min(k + unit.products, a.shape[-1]))
        e = _exponents(c, unit.result, unit.zero)
        for i in step:
            xp.maximum(e, ea[..., i, None] + eb[..., None, i, :], out=e)
        lift = xp.ldexp(_F64.type(1), unit.bits - e)
        t = xp.trunc(c * lift)
        for i in step:
            t += xp.trunc(a[..., i, None] * b[..., None, i, :] * lift)  # rounds: a term, cut off behind F bits
        # rounds: the sum of a step, cut off to FP32 or rounded to FP16
        c = round_to(t / lift, unit.result, xp.trunc if unit.result is FP32 else xp.rint, unit.bits)
    return c


def _exponents(x: Array, f: Format, zero: int) -> Array:
    """e(x) of numbers in a format; `zero` for zeros. Infinities and NaN count with the smallest: they win anyway."""
    xp, smallest = backend.of(x).xp, 1 - f.bias
    e = xp.where(xp.isfinite(x), xp.maximum(xp.frexp(x)[1] - 1, smallest), smallest)
    return xp.where(x == 0, zero, e).astype(np.int16)  # rounds: never, integers


def round_to(x: Array, f: Format, how: Any, bits: int = 52) -> Array:
    """FP64 x as numbers of a format, with at most `bits` bits behind the point. how: xp.trunc or xp.rint."""
    xp = backend.of(x).xp
    lift = xp.ldexp(_F64.type(1), min(f.fraction, bits) - _exponents(x, f, 0))
    y = how(x * lift) / lift + 0.0  # -0 becomes +0
    return xp.where(abs(y) > f.largest, xp.copysign(np.inf, y), y)


def _by_fp16(a: Array, b: Array, c: Array | None, unit: Unit) -> Array:
    """FP8 by the instruction mma on Hopper and Blackwell, as vectors of an H100, H200 and B200 show it.

    FP8 operands become FP16, which is exact. Of 32 products at a time two FP16 steps are made, which begin at 0: the
    first of those products whose k mod 4 is 0 or 1, the second of the others. c is added at the end, to nearest.
    """
    xp, k, plain = backend.of(a).xp, a.shape[-1], replace(unit, by_fp16=False)
    first = np.arange(k) % 4 < 2
    total = xp.zeros((), _F64) if c is None else c
    for i in range(0, max(k, 1), 32):
        part, t = slice(i, i + 32), None
        for half in (first[part], ~first[part]):
            t = multiply(a[..., part][..., half], b[..., part, :][..., half, :], t, plain, (FP16, FP16))
        total = round_to(total + t, unit.result, xp.rint)  # rounds: the sum of an instruction and its accumulator
    return total
