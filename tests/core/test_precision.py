"""The primitives and the policies: every decision about precision, held against arithmetic written out here."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tinymp as mp
from layouts import laid_out, layouts
from oracle import randn
from tinymp import ops
from tinymp.precision import (
    FP32,
    MIXED,
    STOCHASTIC_ROUNDING,
    TF32,
    Policy,
    plain,
    reduce,
    store,
    to_dtype,
    use,
    widen,
)

F16, F32, F64 = np.float16, np.float32, np.float64
HALVES = np.arange(65536, dtype=np.uint16)
HALVES = np.where(HALVES & 0x7FFF > 0x7C00, HALVES | 0x200, HALVES).view(F16)  # every FP16 value there is; nans quiet
FINITE = HALVES[:0x7C00]  # 0 <= x <= 65504, ascending
LIKE = np.zeros(1, F16)


def bits(x):
    return np.asarray(x).view(f"u{np.asarray(x).dtype.itemsize}")


def nearest(x):
    """x (float64) rounded to FP16, to nearest and ties to even, by search among all halves; 65536 stands for inf."""
    steps = np.append(FINITE.astype(F64), 65536.0)
    size = np.minimum(np.abs(x), 65536.0)
    low = np.minimum(np.searchsorted(steps, size, side="right") - 1, len(steps) - 2)
    below, above = size - steps[low], steps[low + 1] - size
    up = (above < below) | ((above == below) & (low % 2 == 1))
    return ((low + up).astype(np.uint16) | (np.signbit(x) * np.uint16(0x8000))).view(F16)


def fp32_values():
    """Random bit patterns; every tie between two halves, and the two FP32 values next to it."""
    random = np.random.default_rng(0).integers(0, 2**32, 300_000, dtype=np.uint32).view(F32)
    steps = np.append(FINITE.astype(F64), 65536.0)
    ties = ((steps[1:] + steps[:-1]) / 2).astype(F32)
    values = np.concatenate([ties, np.nextafter(ties, F32(0)), np.nextafter(ties, F32(np.inf)), FINITE.astype(F32)])
    return np.concatenate([random[np.isfinite(random)], values, -values, F32([np.inf, -np.inf])])


def half(x, **options):
    return mp.tensor(np.asarray(x, F16), **options)


def test_store_rounds_to_nearest_even():
    x = fp32_values()
    np.testing.assert_array_equal(bits(store(x, LIKE)), bits(nearest(x.astype(F64))))
    once = np.full(100, 1 + 2.0**-11 + 2.0**-40)  # through FP32 this would become a tie, and then 1
    np.testing.assert_array_equal(to_dtype(once, F16), F16(1 + 2**-10))


@pytest.mark.parametrize("policy", [MIXED, STOCHASTIC_ROUNDING], ids=str)
def test_every_half_is_a_fixed_point_of_store(policy):
    with use(policy):
        stored = store(widen(HALVES), LIKE)
    nan = np.isnan(HALVES)
    np.testing.assert_array_equal(bits(stored)[~nan], bits(HALVES)[~nan])
    assert np.isnan(stored[nan]).all()


def order_of(x):
    """The axes from the slowest to the fastest; those of length 1 mean nothing."""
    return sorted([a for a in range(x.ndim) if x.shape[a] != 1], key=lambda a: -abs(x.strides[a]))


@pytest.mark.cpu
@settings(max_examples=200, deadline=None)
@given(layouts(), st.data(), st.sampled_from(["float16", "float32"]))
def test_store_gives_the_memory_order_of_like(layout, data, dtype):
    x = laid_out(layout, "float32", 1)
    order = data.draw(st.permutations(range(x.ndim)))
    like = np.empty([x.shape[a] for a in order], dtype).transpose(np.argsort(order))
    y = store(x, like)
    np.testing.assert_array_equal(y, x.astype(dtype), strict=True)
    repeats = any(n != 1 and not s for n, s in zip(x.shape, x.strides))
    assert order_of(y) == order_of(like) or repeats or not x.size
    assert store(y, like) is y
    if dtype == "float32" and (order_of(x) == order_of(like) or repeats):
        assert y is x  # no copy


def draws(x, n=40_000):
    with use(STOCHASTIC_ROUNDING):
        return store(np.full(n, x, F32), LIKE).astype(F64)


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize(
    ("low", "ulp", "p"),
    [(1.0, 2.0**-10, 0.3), (1.999, 2.0**-10, 0.5), (1000.0, 0.5, 0.7), (65504.0, 32.0, 0.5), (0.0, 2.0**-24, 2**-6),
     (5 * 2.0**-24, 2.0**-24, 0.6), (2.0**-14, 2.0**-24, 0.4)],
)  # fmt: skip
def test_stochastic_rounding_is_unbiased(low, ulp, p, sign):
    mp.manual_seed(0)
    low = float(F16(low))
    x = F32(low + p * ulp)
    p, n = (float(x) - low) / ulp, 40_000
    got = draws(sign * x, n) * sign
    high = np.inf if low + ulp > 65504 else low + ulp
    assert np.isin(got, [low, high]).all()  # only its two neighbours
    assert abs((got == high).sum() - n * p) <= 5 * np.sqrt(n * p * (1 - p))  # five standard deviations


def test_products_accumulate_in_fp32_or_as_the_policy_says():
    a, b = half(np.ones((2, 16384))), half(np.ones((16384, 3)))
    for policy, expected in (
        (MIXED, 16384),
        (mp.FP16_ACCUMULATE, 8192),  # 8192 + 4 is a tie of FP16, and the chunk of 4 is lost
        (mp.study.change(mp.FP16_ACCUMULATE, chunk=1), 2048),
    ):
        with use(policy):
            np.testing.assert_array_equal((a @ b).numpy(), np.full((2, 3), expected, F16))
            assert ((a.float() @ b.float()).numpy() == 16384).all()  # FP32 operands: no policy touches them


@pytest.mark.parametrize("split", [1, 2, 3, 99])
def test_split_k_rounds_the_sum_of_each_part(split):
    rng = np.random.default_rng(split)
    a, b = (rng.integers(-1000, 1000, shape).astype(F16) / F16(16) for shape in [(2, 3, 10), (10, 5)])
    bias = F16(np.arange(5))
    expected = np.zeros((2, 3, 5)) + bias
    step = -(-10 // min(split, 10))
    for k in range(0, 10, step):
        part = a[..., k : k + step].astype(F64) @ b[k : k + step].astype(F64)  # exact
        expected += part if split == 1 else part.astype(F16)
    with use(mp.study.change(MIXED, split=split)):
        np.testing.assert_array_equal(ops.linear(half(a), half(b.T), half(bias)).numpy(), expected.astype(F16))


def test_fp64_accumulators_are_rounded_once():
    """300 sums of 1000 terms, against FP64: MIXED differs from many in the last place, the policy from none."""
    policy = Policy("FP64", accumulate="float64", reduce="float64")
    a = randn(300, 1000).astype(F16)
    total = a.astype("f8").sum(1, keepdims=True).astype(F32)
    for used, exact in ((MIXED, False), (policy, True)):
        with use(used):
            assert (reduce(a, 1, "sum") == total).all() == exact
    with use(policy):  # FP32 would lose the second product
        assert (half([[2.0**12, 2.0**-5, -(2.0**12)]]) @ half([[8], [2.0**-5], [8]])).item() == 2.0**-10


def test_tf32_rounds_the_operands_of_fp32_products_and_nothing_else():
    """A TF32 product is exact on 11-bit operands; FP32 stays FP32 unless the policy says otherwise."""
    fine = np.array([[1 + 2.0**-11, 1 + 2.0**-10, 1 + 3 * 2.0**-11, np.inf]], F32)
    coarse = np.array([[1 + 2.0**-10, 1 + 2.0**-10, 1 + 2.0**-9, np.inf]], F32)  # ties away from 0, as cvt.rna's

    def product(x):
        return (mp.tensor(x.T) @ mp.tensor(np.ones((1, 1), x.dtype))).numpy().T

    np.testing.assert_array_equal(product(fine), fine)
    with use(TF32):
        np.testing.assert_array_equal(product(fine), coarse)
        np.testing.assert_array_equal(product(fine.astype(F64)), fine)
        assert np.isnan(product(np.full((1, 1), np.nan, F32))).all()
        assert reduce(fine[:, :3], 1, "sum")[0, 0] == F32(3 + 6 * 2.0**-11)


@pytest.mark.parametrize("policy", ["MIXED", "FP16_REDUCTIONS"])
@pytest.mark.parametrize("axis", [0, -1, (2, 0), (-1, -3), (0, 1, 2), ()])
@pytest.mark.parametrize("how", ["sum", "mean", "max", "min"])
def test_reduce_over_axes(how, axis, policy):
    x = np.arange(2 * 4 * 8).reshape(2, 4, 8)[::-1]  # sums below 2048, means with 6 bits behind the point: exact
    with use(getattr(mp, policy)):
        y = reduce(x.astype(F16), axis, how)
        assert reduce(np.ones((3, 0), F16), 0, how).shape == (1, 0)
    np.testing.assert_array_equal(y, getattr(np, how)(x.astype(F64), axis=axis, keepdims=True))


def test_ten_thousand_tenths_in_fp16():
    x, wide = np.full((10_000, 3), 0.1, F16), np.full(10_000, 0.1, F32)
    with use(mp.FP16_REDUCTIONS):
        np.testing.assert_array_equal(reduce(x, 0, "sum"), np.full((1, 3), 256, F32))  # 256 + 0.1 is 256
        np.testing.assert_array_equal(reduce(x, 0, "mean"), np.full((1, 3), F16(256) / F16(10_000), F32))
        assert reduce(x, 0, "cumsum")[-1, 0] == reduce(x, (0, 1), "sum") == 256
        assert abs(reduce(wide, 0, "sum")[0] - 1000) < 0.01  # no `like`: a loss
        assert abs(reduce(wide, 0, "sum", like=wide)[0] - 1000) < 0.01
        assert reduce(wide, 0, "sum", like=LIKE)[0] == 256  # computed from a stored FP16 tensor
        assert reduce(np.full(10, 70_000, F32), 0, "max", like=LIKE)[0] == 70_000
    assert reduce(np.array([True, False, True]), 0, "sum").dtype == np.int64


def test_only_the_ops_named_are_reduced_in_fp16():
    x, total, label = half(np.zeros((1, 10_000))), half(np.full(10_000, 0.1)), mp.tensor([0])
    for only, softmax, loss, summed in (
        (("softmax",), 1 / 2048, np.log(10_000), 1000),
        (("cross_entropy",), 1e-4, np.log(2048), 1000),
        (("softmax", "cross_entropy", "sum"), 1 / 2048, np.log(2048), 256),
        (("conv2d",), 1e-4, np.log(10_000), 1000),
    ):
        with use(mp.study.change(MIXED, name="STUDY", only=only, reduce=F16)):
            assert ops.softmax(x, 1)[0, 0].item() == pytest.approx(softmax, rel=1e-3), only
            assert ops.cross_entropy(x, label).item() == pytest.approx(loss, rel=2e-3), only
            assert total.sum().item() == summed, only
            # no policy touches FP32 operands, and a primitive that no op called is not a named op's
            assert ops.cross_entropy(x.float(), label).item() == pytest.approx(np.log(10_000), rel=1e-4)
            assert store(reduce(total.array, 0, "sum"), total.array)[0] == 1000


@pytest.mark.parametrize(
    ("policy", "halves", "singles"),
    [
        (MIXED, True, True),
        (STOCHASTIC_ROUNDING, False, True),
        (dataclasses.replace(MIXED, accumulate=F64), False, True),
        (dataclasses.replace(MIXED, reduce=F64), False, True),
    ],
    ids=str,
)
def test_fast_paths_stand_in_where_a_policy_asks_for_nothing_else(policy, halves, singles):
    with use(policy):
        assert (plain(np.dtype(F16)), plain(np.dtype(F32))) == (halves, singles)


def test_cast():
    x, n = F32([0.1]), np.array([1, 2])
    batch = {"x": x, "rest": [n, (mp.tensor(x), mp.tensor(n))]}
    cast = MIXED.cast(batch)
    t, i = cast["rest"][1]
    assert cast["x"].dtype == t.dtype == F16 and cast["rest"][0] is n and i.dtype == n.dtype
    assert isinstance(cast["rest"], list) and isinstance(cast["rest"][1], tuple) and isinstance(t, mp.Tensor)
    assert batch["x"] is x and x.dtype == FP32.cast(cast)["x"].dtype == F32
    w = mp.tensor(x, requires_grad=True)
    MIXED.cast(w).backward(F16([2]))
    assert w.grad.dtype == F32 and w.grad.tolist() == [2]
    for target in (3, "x", None):
        with pytest.raises(TypeError, match=r"Policy\.cast: expected a Module, Tensor, array"):
            MIXED.cast(target)


@pytest.mark.parametrize("value", [300, -129, 128.0, float("nan"), np.uint64(2**64 - 1)])
def test_a_value_beyond_an_integer_dtype_is_refused(value):
    """None is wrapped. PyTorch refuses the first, and wraps the others."""
    x = mp.tensor(np.array([7], np.int8))
    for call in (
        lambda: mp.tensor([value], dtype="int8"),
        lambda: mp.tensor(np.array([value])).to(np.int8),
        lambda: x.__setitem__(0, value),
        lambda: x.__setitem__(slice(1), np.array([value])),
        lambda: x.copy_([value]),
    ):
        with pytest.raises(ValueError, match=r"the value .* does not fit int8"):
            call()
    assert x.tolist() == [7]


@pytest.mark.cpu  # a GPU finds it out later: tests/core/backend/test_gpu.py
def test_an_integer_tensor_beyond_fp16_is_refused_beside_fp16():
    x = half(np.ones(1))
    for n in (70000, -70000, 2**62):
        for call in (lambda big: x + big, lambda big: big * x):
            with pytest.raises(ValueError, match=r"(add|mul): a value of the int64 tensor does not fit FP16"):
                call(mp.tensor([n]))
        assert (x.float() + mp.tensor([n])).tolist() == [F32(n) + 1]
    assert (x + mp.tensor([65504])).tolist() == [65504]
