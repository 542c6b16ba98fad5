"""Accumulators as Tensor Cores have them: aligned to the largest term and cut off; held to an exact model."""

from fractions import Fraction

import numpy as np
import pytest

import tinymp as mp
from job import Job
from oracle import rng
from tinymp import nn, ops
from tinymp.study.sums import matmul_aligned

pytestmark = pytest.mark.cpu


def cut(x, exponent, bits):
    """x without what lies behind `bits` bits of a number in [2^(exponent - 1), 2^exponent); exact, on Fractions."""
    unit = Fraction(2) ** (exponent - bits)
    return int(x / unit) * unit  # int() goes towards 0


def exponent_of(x):
    e = 0
    while x and abs(x) >= Fraction(2) ** e:
        e += 1
    while x and abs(x) < Fraction(2) ** (e - 1):
        e -= 1
    return e


def exact(a, b, bits, chunk, promote):
    """The definition, for two vectors, on Fractions."""
    total, promoted = Fraction(0), np.float32(0)
    for k in range(0, len(a), chunk):
        terms = [Fraction(float(x)) * Fraction(float(y)) for x, y in zip(a[k : k + chunk], b[k : k + chunk])]
        terms.append(total)
        e = exponent_of(max(terms, key=abs))
        total = sum(cut(t, e, bits) for t in terms)
        total = cut(total, exponent_of(total), bits)
        if promote and (k + chunk) % promote == 0:
            promoted, total = np.float32(promoted + np.float32(float(total))), Fraction(0)
    return np.float32(promoted + np.float32(float(total)))


@pytest.mark.parametrize(("bits", "chunk", "promote"), [(24, 4, 0), (24, 8, 0), (14, 32, 128), (14, 4, 0), (8, 16, 16)])
@pytest.mark.parametrize("spread", [0, 6])
def test_it_is_the_exact_model(bits, chunk, promote, spread):
    for seed in range(4):
        g = rng(seed)
        a, b = (np.ldexp(g.standard_normal((3, 150)), g.integers(-spread, spread + 1, (3, 150))) for _ in "ab")
        a, b = a.astype(np.float16), b.astype(np.float16)
        found = matmul_aligned(a, b.T, bits, chunk, promote)
        assert found.dtype == np.float32
        for i in range(3):
            for j in range(3):
                assert found[i, j] == exact(a[i], b[j], bits, chunk, promote)


def test_what_is_cut_off_is_lost_not_rounded():
    """Fasi et al. 2021: no guard digits, towards 0 for either sign, an order that does not matter within a step."""
    one, tiny = np.float16(1), np.float16(2.0**-12)
    for sign in (1, -1):
        a, b = np.float16([[one, tiny, tiny, tiny]]) * np.float16(sign), np.float16([[one, tiny, tiny, tiny]]).T
        assert matmul_aligned(a, b, 24, 4, 0)[0, 0] == sign  # 3 * 2^-24: each below 2^-23
        assert (a.astype("f8") @ b.astype("f8"))[0, 0] == sign * (1 + 3 * 2.0**-24)
        assert matmul_aligned(a[:, ::-1], b[::-1], 24, 4, 0)[0, 0] == sign
    assert matmul_aligned(a, b, 24, 1, 0)[0, 0] == -1


def test_sums_on_hopper_stall_and_are_promoted():
    """14 bits: 1 no longer moves 2^14. A promotion every 128 products mends it (DeepSeek-V3)."""
    ones = np.ones((1, 2**15), np.float16)
    assert matmul_aligned(ones, ones.T, 14, 1, 0)[0, 0] == 2**14
    assert matmul_aligned(ones, ones.T, 14, 1, 128)[0, 0] == 2**15


def test_accumulators_and_batches():
    a, b = rng(0).standard_normal((2, 3, 8)).astype("f2"), rng(1).standard_normal((2, 8, 5)).astype("f2")
    acc = np.float32(np.ones((2, 3, 5)))
    close = np.matmul(a.astype("f4"), b.astype("f4")) + acc
    np.testing.assert_allclose(matmul_aligned(a, b, 24, 4, 0, acc), close, rtol=1e-5, atol=1e-5)
    assert matmul_aligned(a[:, :, :0], b[:, :0], 24, 4, 0).tolist() == np.zeros((2, 3, 5)).tolist()
    a[0, 0, 0] = np.inf
    assert np.isinf(matmul_aligned(a, b, 24, 4, 0)[0, 0]).all()


@pytest.mark.parametrize("policy", [mp.FP16_VOLTA, mp.FP8_HOPPER], ids=str)
def test_policies_use_it_in_every_product(policy):
    layer, x = policy.cast(nn.Linear(64, 3)), policy.cast(mp.randn(2, 64))
    with mp.audit() as a, mp.use(policy):
        y = layer(x)
        y.float().sum().backward()
    assert {row.accumulated for row in a.ledger.filter(kind="DOT")} >= {f"{policy.study.aligned} aligned bits"}
    plain = mp.study.change(policy, name="plain", aligned=0, promote=0)
    with mp.use(plain):
        z = layer(x)
    np.testing.assert_allclose(y.float().numpy(), z.float().numpy(), rtol=0.02, atol=0.02)
    only = mp.study.change(mp.FP16_VOLTA, name="only", only=("matmul",))
    with mp.audit() as a, mp.use(only):
        ops.linear(mp.MIXED.cast(mp.randn(2, 4)), mp.MIXED.cast(mp.randn(3, 4)))
    assert [row.accumulated for row in a.ledger.filter(op="linear")] == ["float32"]


def test_training_under_it():
    job = Job("cpu", policy=mp.FP8_HOPPER, scale=1.0)
    with mp.use(mp.FP8_HOPPER):
        losses = [job.step(*job.batch())[0].item() for _ in range(8)]
    assert losses[-1] < 0.6 * losses[0]


@pytest.mark.parametrize(
    "wrong", [{"aligned": -1}, {"aligned": 25}, {"aligned": 1.5}, {"promote": 30}, {"promote": True}]
)
def test_wrong_policies(wrong):
    with pytest.raises(ValueError, match=r"study: expected (aligned|promote)"):
        mp.study.change(mp.MIXED, **wrong)
