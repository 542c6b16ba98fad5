"""The special instructions of hardware.cuh (conversions, Tensor Cores, asynchronous copies) against NumPy.

Everything else that kernels do is plain CUDA C; here an error of the PTX would show, where no emulation can see it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tinymp.backend import gpu
from tinymp.gpu.kernels import Kernels

KERNELS = Kernels(__file__)
F16, F32 = np.dtype(np.float16), np.dtype(np.float32)


def halves() -> np.ndarray:
    """All FP16 numbers."""
    return np.arange(65536, dtype=np.uint16).view(F16)


def floats() -> np.ndarray:
    """FP32 numbers: all of FP16, the ties between them and their neighbours, the limits of FP16, and random ones."""
    every = halves()
    exact = np.unique(every[np.isfinite(every)].astype(np.float64))
    ties = (exact[1:] + exact[:-1]) / 2
    near = [np.nextafter(ties.astype(F32), F32.type(to)) for to in (-np.inf, np.inf)]
    limits = [65504, 65519.996, 65520, 65536, 1e38, np.inf, 2.0**-24, 2.0**-25, 2.0**-26, 1e-45, 0.0, -0.0]
    normal = np.random.default_rng(0).standard_normal(1000) * 1e5
    return np.concatenate([exact, ties, *near, limits, np.negative(limits), [np.nan], normal]).astype(F32)


def _run(name: str, grid: int, block: int, *arguments: Any, shared: int = 0) -> list[np.ndarray]:
    """Launch a kernel of units.cu on copies of the arrays; returns what they hold then."""
    values = [gpu.xp.asarray(x) if isinstance(x, np.ndarray) else x for x in arguments]
    KERNELS.launch(name, F16, grid, block, *values, shared=shared)
    return [gpu.to_numpy(x) for x in values if hasattr(x, "dtype")]


def _differ(x: np.ndarray, expected: np.ndarray) -> int:
    """How many bit patterns differ; all NaNs are one."""
    bits = np.dtype(f"u{x.dtype.itemsize}")
    return int(((x.view(bits) != expected.view(bits)) & ~(np.isnan(x) & np.isnan(expected))).sum())


def widening() -> int:
    """cvt.f32.f16 of all numbers."""
    every, u = halves(), floats()
    _, y, _, _ = _run("convert", 8, 256, every, np.zeros(every.size, F32), u, np.zeros(u.size, F16), every.size, u.size)
    return _differ(y, every.astype(F32))


def rounding() -> int:
    """cvt.rn.f16.f32 of all ties, limits, and others."""
    every, u = halves(), floats()
    _, _, _, v = _run("convert", 8, 256, every, np.zeros(every.size, F32), u, np.zeros(u.size, F16), every.size, u.size)
    with np.errstate(over="ignore"):
        return _differ(v, u.astype(F16))


def _multiply(transposed: bool) -> int:
    """How many results of a product of small integers (exact in any order) are wrong."""
    rng = np.random.default_rng(1)
    a, b = (rng.integers(-8, 9, shape).astype(F16) for shape in ((16, 16), (16, 8)))
    d = rng.integers(-8, 9, (16, 8)).astype(F32)
    memory = np.ascontiguousarray(b.T if transposed else b)
    result = _run("multiply", 1, 32, a, memory, d, int(transposed), shared=2 * 32 * 24)[2]
    return int((result != d + a.astype(F32) @ b.astype(F32)).sum())


def packs() -> int:
    """ld.global.v4 and st.global.v4."""
    x = np.arange(16, dtype=F16)
    return int((_run("swap_packs", 1, 1, x, np.zeros_like(x))[1] != np.roll(x, 8)).sum())


def _copies(size: int) -> int:
    """How many bytes of copies of `size` bytes are wrong, every third of which is to be zeros."""
    threads = 64
    x = np.random.default_rng(2).integers(1, 256, 2 * threads * size).astype(np.uint8)
    valid = (np.arange(2 * threads) % 3 != 0).astype(np.uint8)
    y = _run(f"copy_{size}", 1, threads, x, valid, np.full_like(x, 255), shared=x.size)[2]
    return int((y != x * np.repeat(valid, size)).sum())


UNITS: dict[str, Callable[[], int]] = {
    "widen (cvt.f32.f16)": widening,
    "round (cvt.rn.f16.f32)": rounding,
    "16-byte accesses": packs,
    "ldmatrix.trans + mma": lambda: _multiply(False),
    "ldmatrix + mma": lambda: _multiply(True),
    "cp.async, 4 bytes": lambda: _copies(4),
    "cp.async, 8 bytes": lambda: _copies(8),
    "cp.async, 16 bytes": lambda: _copies(16),
}


def check() -> dict[str, int]:
    """How many results of each unit are wrong. Before Ampere, what Tensor Cores need is not there, and not tried."""
    some = {n: f for n, f in UNITS.items() if gpu.compute_capability() >= 80 or not n.startswith(("ldm", "cp."))}
    return {name: f() for name, f in some.items()}
