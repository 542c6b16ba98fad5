"""An audit sums a sample of the products of a run as the Tensor Cores of other GPUs do."""

import numpy as np
import pytest

import tinymp as mp
from tinymp import ops
from tinymp.study.tensor_core import tensor_core

pytestmark = pytest.mark.cpu


def halves(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float16)


def audited(a, b, *names):
    with mp.audit(accumulators=names) as audit, mp.use(mp.MIXED):
        ops.matmul(mp.tensor(a), mp.tensor(b))
    return audit


def test_the_errors_are_those_of_the_sums():
    a, b = halves(20, 300), halves(300, 10, seed=1)
    (row,) = audited(a, b, "volta", "hopper").accumulators.rows
    exact = a.astype(np.float64) @ b.astype(np.float64)
    assert (row.k, row.op, row.phase, list(row.errors)) == (300, "matmul", "forward", ["fp32", "volta", "hopper"])
    for name in ("volta", "hopper"):
        found, e = tensor_core(a, b, None, name).astype(np.float64), row.errors[name]
        unit = abs(exact).sum() / 2**23
        assert e.n == 200
        assert e.ulps == pytest.approx(abs(found - exact).sum() / unit)
        assert e.bias == pytest.approx((abs(found) - abs(exact)).sum() / unit)
        assert e.felt == (found.astype(np.float16) != exact.astype(np.float16)).mean()
    assert row.errors["hopper"].bias < -0.5 * row.errors["hopper"].ulps  # what is cut off pulls to 0
    assert row.errors["fp32"].ulps < row.errors["hopper"].ulps


def test_what_a_tensor_core_does_not_take_is_left_out():
    a, b = np.float32(halves(4, 5)), np.float32(halves(5, 3))
    assert audited(a * 1.0001, b, "hopper").accumulators.rows == []  # FP32
    bf16 = mp.BF16.cast(mp.tensor(a)), mp.BF16.cast(mp.tensor(b))
    with mp.audit(accumulators=["volta", "ampere"]) as audit, mp.use(mp.BF16):
        ops.matmul(*bf16)
    assert list(audit.accumulators.rows[0].errors) == ["fp32", "ampere"]  # Volta has no BF16
