"""The special instructions of hardware.cuh (conversions, Tensor Cores, asynchronous copies) against NumPy.

Everything else that kernels do is plain CUDA C; here an error of the PTX would show, where no emulation can see it.
"""

import pathlib

import numpy as np
import pytest

from tinymp.backend import gpu as device
from tinymp.gpu.kernels import Kernels

KERNELS = Kernels(str(pathlib.Path(__file__).with_name("units.py")))
F16, F32 = np.dtype(np.float16), np.dtype(np.float32)


def run(name, grid, block, *arguments, shared=0):
    """Launch a kernel of units.cu on copies of the arrays; returns what they hold then."""
    if name != "convert" and name != "swap_packs" and device.compute_capability() < 80:
        pytest.skip("before Ampere, what Tensor Cores need is not there")
    values = [device.xp.asarray(x) if isinstance(x, np.ndarray) else x for x in arguments]
    KERNELS.launch(name, F16, grid, block, *values, shared=shared)
    return [device.to_numpy(x) for x in values if hasattr(x, "dtype")]


def same_bits(x, expected):
    """All NaNs are one."""
    bits = np.dtype(f"u{x.dtype.itemsize}")
    assert not ((x.view(bits) != expected.view(bits)) & ~(np.isnan(x) & np.isnan(expected))).any()


def test_conversions():
    """cvt.f32.f16 of all numbers; cvt.rn.f16.f32 of these, the ties between them and their neighbours, and others."""
    every = np.arange(65536, dtype=np.uint16).view(F16)
    exact = np.unique(every[np.isfinite(every)].astype(np.float64))
    ties = (exact[1:] + exact[:-1]) / 2
    near = [np.nextafter(ties.astype(F32), F32.type(to)) for to in (-np.inf, np.inf)]
    limits = [65504, 65519.996, 65520, 65536, 1e38, np.inf, 2.0**-24, 2.0**-25, 2.0**-26, 1e-45, 0.0, -0.0]
    normal = np.random.default_rng(0).standard_normal(1000) * 1e5
    u = np.concatenate([exact, ties, *near, limits, np.negative(limits), [np.nan], normal]).astype(F32)
    to = np.zeros(every.size, F32), np.zeros(u.size, F16)
    _, y, _, v = run("convert", 8, 256, every, to[0], u, to[1], every.size, u.size)
    same_bits(y, every.astype(F32))
    with np.errstate(over="ignore"):
        same_bits(v, u.astype(F16))


@pytest.mark.parametrize("transposed", [False, True])
def test_products(transposed):
    """ldmatrix and mma: of small integers, exact in any order."""
    rng = np.random.default_rng(1)
    a, b = (rng.integers(-8, 9, shape).astype(F16) for shape in ((16, 16), (16, 8)))
    d = rng.integers(-8, 9, (16, 8)).astype(F32)
    memory = np.ascontiguousarray(b.T if transposed else b)
    result = run("multiply", 1, 32, a, memory, d, int(transposed), shared=2 * 32 * 24)[2]
    np.testing.assert_array_equal(result, d + a.astype(F32) @ b.astype(F32))


def test_packs():
    """ld.global.v4 and st.global.v4."""
    x = np.arange(16, dtype=F16)
    np.testing.assert_array_equal(run("swap_packs", 1, 1, x, np.zeros_like(x))[1], np.roll(x, 8))


@pytest.mark.parametrize("size", [4, 8, 16])
def test_asynchronous_copies(size):
    """cp.async, every third copy of which is to be zeros."""
    threads = 64
    x = np.random.default_rng(2).integers(1, 256, 2 * threads * size).astype(np.uint8)
    valid = (np.arange(2 * threads) % 3 != 0).astype(np.uint8)
    y = run(f"copy_{size}", 1, threads, x, valid, np.full_like(x, 255), shared=x.size)[2]
    np.testing.assert_array_equal(y, x * np.repeat(valid, size))
