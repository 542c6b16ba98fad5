"""The primitives and the policies: every decision about precision, held against arithmetic written out here."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tinymp as mp
from layouts import laid_out, layouts
from oracle import randn
from tinymp import nn, ops
from tinymp.autograd import added
from tinymp.backend import cpu
from tinymp.dtypes import require_fit
from tinymp.fast.cpu import devices as fast_device
from tinymp.precision import (
    BF16,
    FP32,
    KINDS,
    MIXED,
    NO_MASTER,
    STOCHASTIC_ROUNDING,
    TF32,
    Policy,
    current_policy,
    gemm,
    plain,
    reduce,
    store,
    to_dtype,
    use,
    widen,
)
from tinymp.study import FP8, FP16_ACCUMULATE, FP16_REDUCTIONS, POLICIES, PURE_FP16

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


@pytest.fixture(params=["numkong", "numpy"])
def casts(request, monkeypatch):
    """Run with NumKong's casts and with the fallback."""
    if request.param == "numpy":
        monkeypatch.setattr(fast_device, "_NAMES", {})
    elif fast_device.numkong is None:
        pytest.skip("numkong is not installed (the extra test)")


# -------------------------------------------------------------------------------------------------------------- widen


def test_widen_is_exact_on_every_half(casts):
    wide = widen(HALVES)
    sign, exponent, fraction = bits(HALVES) >> 15, (bits(HALVES) >> 10) & 31, (bits(HALVES) & 1023).astype(F64)
    normal = np.ldexp(1024 + fraction, exponent.astype(int) - 25)
    value = np.where(exponent == 0, np.ldexp(fraction, -24), normal)
    value = np.where(exponent == 31, np.where(fraction == 0, np.inf, np.nan), value) * np.where(sign == 1, -1.0, 1.0)
    assert wide.dtype == F32
    np.testing.assert_array_equal(wide.astype(F64), value)
    np.testing.assert_array_equal(np.signbit(wide), sign == 1)


@pytest.mark.parametrize("x", [np.ones(2, F32), np.ones(2, F64), np.arange(3), np.array([True]), 2.5, 3, F32(2.0)])
def test_widen_passes_everything_else(x):
    assert widen(x) is x


# -------------------------------------------------------------------------------------------------------------- store


def test_store_rounds_to_nearest_even(casts):
    x = fp32_values()
    np.testing.assert_array_equal(bits(store(x, LIKE)), bits(nearest(x.astype(F64))))


@pytest.mark.parametrize(
    ("x", "expected"),
    [
        (65504.0, 65504.0), (65519.99, 65504.0), (65520.0, np.inf), (-65519.99, -65504.0), (-65520.0, -np.inf),
        (1 + 2**-11, 1.0), (1 + 3 * 2**-11, 1 + 2**-9), (1 + 2**-11 + 2**-20, 1 + 2**-10), (2049.0, 2048.0),
        (2051.0, 2052.0),
        (2.0**-24, 2.0**-24), (2.0**-25, 0.0), (2.0**-25 + 2.0**-40, 2.0**-24), (3 * 2.0**-25, 2.0**-23),
        (-(2.0**-25), -0.0), (0.0, 0.0), (-0.0, -0.0), (np.inf, np.inf), (-np.inf, -np.inf),
    ],
)  # fmt: skip
@pytest.mark.parametrize("shape", [(), (1,), (100,)])
def test_store_at_the_edges(x, expected, shape, casts):
    np.testing.assert_array_equal(bits(store(np.full(shape, x, F32), LIKE)), bits(np.full(shape, expected, F16)))


@pytest.mark.parametrize("policy", [MIXED, STOCHASTIC_ROUNDING], ids=str)
def test_every_half_is_a_fixed_point_of_store(policy, casts):
    with use(policy):
        stored = store(widen(HALVES), LIKE)
    nan = np.isnan(HALVES)
    np.testing.assert_array_equal(bits(stored)[~nan], bits(HALVES)[~nan])
    assert np.isnan(stored[nan]).all()


def test_store_leaves_other_dtypes_alone():
    for dtype in (F32, F64, np.int64):
        x = np.ones(2, dtype)
        assert store(x, x[:1]) is x
    counts = np.ones(2, np.int64)
    assert store(counts, np.zeros(1, np.uint8)) is counts
    with pytest.raises(TypeError, match="store: float64 would be rounded to float32"):
        store(np.ones(2), np.ones(2, F32))


LAYOUTS = {
    "C": lambda x: x,
    "F": np.asfortranarray,
    "transposed": lambda x: x.transpose(2, 0, 1),
    "strided": lambda x: x[::2, :, 1::3],
    "flipped": lambda x: x[::-1, :, ::-1],
    "broadcast": lambda x: np.broadcast_to(x[:, :1], (7, 40, 9)),
    "broadcast in front": lambda x: np.broadcast_to(x, (2, *x.shape)),
    "one element, repeated": lambda x: np.broadcast_to(x[:1, :1, :1], (5, 5, 5)),
    "length-1 axes": lambda x: x.reshape(7, 1, 45, 1).transpose(3, 2, 1, 0),
    "0-d": lambda x: x[0, 0, 0],
    "empty": lambda x: x[:0],
    "read-only": lambda x: np.broadcast_to(x, x.shape),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_memory_orders(layout, casts):
    x = LAYOUTS[layout](randn(7, 5, 9).astype(F32))
    half = store(x, LIKE)
    assert half.dtype == F16
    assert half.shape == x.shape
    np.testing.assert_array_equal(bits(half), bits(nearest(x.astype(F64))))
    np.testing.assert_array_equal(bits(widen(half)), bits(np.asarray(half).astype(F32)))


def order_of(x):
    """The axes from the slowest to the fastest; those of length 1 mean nothing."""
    return sorted([a for a in range(x.ndim) if x.shape[a] != 1], key=lambda a: -abs(x.strides[a]))


@pytest.mark.cpu
@settings(max_examples=300, deadline=None)
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


@pytest.mark.cpu
@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("op", [ops.tanh, ops.sigmoid, ops.gelu, ops.sqrt, ops.exp, lambda x: x * x.detach()])
def test_the_memory_order_of_a_gradient_does_not_depend_on_the_size(op, dtype):
    """NumPy computes in temporaries of 256 KiB and more: without `store`, the result would have their order then."""
    orders = set()
    for n in (2, 40):
        x = mp.from_numpy(np.ones((6, n, n, n), dtype).transpose(3, 0, 1, 2)).requires_grad_()  # C, H, W, N
        dx = op(x).grad_fn.backward(np.ones(x.shape, dtype))
        orders.add(tuple(order_of(dx[0] if isinstance(dx, tuple) else dx)))
        parts = [x.array, np.ones(x.shape, dtype)]
        for some in (parts, parts[::-1]):
            assert order_of(added(*some)) == order_of(some[0])
    assert len(orders) == 1


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1), (1, 2, 0)])
def test_casts_keep_the_memory_order(order, casts):
    x = randn(7, 5, 9).astype(F32).transpose(order)
    assert [s // 2 for s in store(x, LIKE).strides] == [s // 4 for s in x.strides]
    assert widen(store(x, LIKE)).strides == x.strides


def offset(x):
    """A copy of x that begins one byte after an address that its dtype would want."""
    y = np.frombuffer(b"." + x.tobytes(), x.dtype, x.size, offset=1).reshape(x.shape)
    assert not y.flags.aligned
    return y


def packed(x):
    """A copy of x as a field of records without padding."""
    records = np.zeros(x.shape, [("label", "u1"), ("x", x.dtype)])
    records["x"] = x
    assert not records["x"].flags.aligned
    return records["x"]


@pytest.mark.cpu
@pytest.mark.parametrize("dtype", [F16, F32, F64])
@pytest.mark.parametrize("unaligned", [offset, packed])
class TestUnalignedArrays:
    """np.frombuffer and packed records bring them: they are worth what their aligned copies are."""

    def test_casts(self, unaligned, dtype, casts):
        x = randn(20, 30).astype(dtype)
        for view in (lambda x: x, lambda x: x.T, lambda x: x[::2]):
            for other in (F16, F32, F64):
                np.testing.assert_array_equal(bits(to_dtype(view(unaligned(x)), other)), bits(to_dtype(view(x), other)))

    def test_tensors_and_ops(self, unaligned, dtype):
        x, dy = randn(20, 30).astype(dtype), randn(20, 30, seed=1).astype(dtype)
        for op in (ops.relu, ops.exp, ops.tanh, ops.gelu, ops.abs, lambda x: ops.softmax(x, 1), lambda x: x * x + 1,
                   lambda x: ops.cumsum(x, 0), lambda x: ops.layer_norm(x, 30), lambda x: ops.where(x > 0, x, -x),
                   lambda x: ops.linear(x, x[:5]) @ x[:5], lambda x: x[np.arange(20)]):  # fmt: skip
            results = []
            for make in (np.copy, unaligned):
                for tensor in (mp.tensor, mp.from_numpy):
                    t = tensor(make(x)).requires_grad_()
                    y = op(t)
                    y.backward(make(dy))
                    results.append((y.numpy(), t.grad_array))
            for y, grad in results[1:]:
                np.testing.assert_array_equal(bits(y), bits(results[0][0]))
                np.testing.assert_array_equal(bits(grad), bits(results[0][1]))

    def test_policies_and_state_dicts(self, unaligned, dtype):
        x = randn(20, 30).astype(dtype)
        np.testing.assert_array_equal(MIXED.cast(unaligned(x)), MIXED.cast(x))
        model = nn.Linear(30, 20, bias=False)
        model.load_state_dict({"weight": unaligned(x)})
        np.testing.assert_array_equal(model.weight.array, x.astype(F32))


@pytest.mark.skipif(fast_device.numkong is None, reason="numkong is not installed (the extra test)")
@pytest.mark.parametrize(("x", "dtype"), [(fp32_values(), "float16"), (HALVES, "float32"), (HALVES, "float64")])
def test_numkong_and_numpy_give_the_same_bits(x, dtype, monkeypatch):
    fast = cpu.cast(x, np.dtype(dtype))
    monkeypatch.setattr(fast_device, "_NAMES", {})
    np.testing.assert_array_equal(bits(fast), bits(cpu.cast(x, np.dtype(dtype))))


def test_fp64_is_rounded_once(casts):
    x = np.full(100, 1 + 2.0**-11 + 2.0**-40)  # through FP32 this would become a tie, and then 1
    np.testing.assert_array_equal(to_dtype(x, F16), F16(1 + 2**-10))


# ------------------------------------------------------------------------------------------------ stochastic rounding


def draws(x, n=40_000):
    with use(STOCHASTIC_ROUNDING):
        return store(np.full(n, x, F32), LIKE).astype(F64)


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize(
    ("low", "ulp", "p"),
    [(1.0, 2.0**-10, 0.3), (1.0, 2.0**-10, 0.01), (1.999, 2.0**-10, 0.5), (1000.0, 0.5, 0.7), (32768.0, 32.0, 0.25),
     (65504.0, 32.0, 0.5), (0.0, 2.0**-24, 0.3), (0.0, 2.0**-24, 2**-6), (5 * 2.0**-24, 2.0**-24, 0.6),
     (2.0**-14, 2.0**-24, 0.4)],
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


@pytest.mark.parametrize("x", [0.0, -0.0, 1.0, 65504.0, -65504.0, 2.0**-24, 2.0**-14, 1 + 2**-10, np.inf, -np.inf])
def test_stochastic_rounding_keeps_exact_values(x):
    assert set(bits(draws(x, 1000).astype(F16))) == {int(bits(F16(x)))}


def test_stochastic_rounding_of_special_values():
    assert np.isnan(draws(np.nan, 10)).all()
    assert np.isinf(draws(65536.0, 10)).all()
    tiny = draws(-1e-30, 1000)  # below any chance of 2^-24: -0, not +0
    assert (tiny == 0).all()
    assert np.signbit(tiny).all()
    with use(STOCHASTIC_ROUNDING):
        assert store(np.array(0.1, F32), LIKE).shape == ()
        assert store(np.zeros((0, 2), F32), LIKE).shape == (0, 2)


def test_stochastic_rounding_follows_the_seed():
    def run(seed):
        mp.manual_seed(seed)
        return draws(1.0001, 1000)

    np.testing.assert_array_equal(run(3), run(3))
    assert (run(3) != run(4)).any()


# --------------------------------------------------------------------------------------------------------------- gemm


def test_gemm_rounds_product_and_bias_once():
    a = b = F16([[1 + 2**-10]])
    bias = F16([2**-11])
    assert F16(F32(a) * F32(b)) + bias == F16(1 + 2**-9)  # rounding twice: the bias is half an ulp, a tie, and is lost
    assert gemm(a, b, bias) == F16(1 + 3 * 2**-10)
    assert gemm(a, b, bias, wide=True) == F32(1 + 2**-9 + 2**-20 + 2**-11)


def test_gemm_accumulates_in_fp32():
    a, b = np.ones((2, 16384), F16), np.ones((16384, 3), F16)
    np.testing.assert_array_equal(gemm(a, b), np.full((2, 3), 16384, F16))
    with use(FP16_ACCUMULATE):  # 8192 + 4 is a tie of FP16, and the chunk of 4 is lost
        np.testing.assert_array_equal(gemm(a, b), np.full((2, 3), 8192, F16))
    with use(mp.study.change(FP16_ACCUMULATE, chunk=1)):
        np.testing.assert_array_equal(gemm(a, b), np.full((2, 3), 2048, F16))


@pytest.mark.parametrize("chunk", [1, 3, 4, 100])
@pytest.mark.parametrize("k", [1, 4, 10])
def test_fp16_accumulate_against_a_slow_loop(chunk, k):
    rng = np.random.default_rng(k)
    a, b = (rng.integers(-1000, 1000, shape).astype(F16) / F16(16) for shape in [(3, k), (k, 5)])
    expected = np.zeros((3, 5), F16)
    for i, j in np.ndindex(3, 5):
        for start in range(0, k, chunk):  # exact in float64; one rounding per chunk
            part = sum(float(a[i, t]) * float(b[t, j]) for t in range(start, min(start + chunk, k)))
            expected[i, j] = F16(float(expected[i, j]) + part)
    with use(mp.study.change(FP16_ACCUMULATE, chunk=chunk)):
        np.testing.assert_array_equal(gemm(a, b), expected)
        wide = gemm(a.astype(F32), b.astype(F32))  # FP32 operands: no policy touches them
    np.testing.assert_array_equal(wide, (a.astype(F64) @ b.astype(F64)).astype(F32))


@pytest.mark.parametrize("split", [1, 2, 3, 10, 99])
@pytest.mark.parametrize("wide", [False, True])
def test_split_k_rounds_the_sum_of_each_part(split, wide):
    rng = np.random.default_rng(split)
    a, b = (rng.integers(-1000, 1000, shape).astype(F16) / F16(16) for shape in [(2, 3, 10), (10, 5)])
    bias = F16(np.arange(5))
    expected = np.zeros((2, 3, 5)) + bias
    step = -(-10 // min(split, 10))
    for k in range(0, 10, step):
        part = a[..., k : k + step].astype(F64) @ b[k : k + step].astype(F64)  # exact
        expected += part if split == 1 else part.astype(F16)
    with use(mp.study.change(MIXED, split=split)):
        c = gemm(a, b, bias, wide=wide)
        full = gemm(a.astype(F32), b.astype(F32))  # FP32 operands: no policy touches them
    np.testing.assert_array_equal(c, expected.astype(F32 if wide else F16))
    np.testing.assert_array_equal(full, (a.astype(F64) @ b.astype(F64)).astype(F32))


@pytest.mark.cpu
def test_split_k_on_a_gpu(gpu):
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-1000, 1000, shape).astype(F16) / F16(16) for shape in [(3, 24), (24, 8)])
    with use(mp.study.change(MIXED, split=3)):
        c = mp.tensor(a).to("gpu") @ mp.tensor(b).to("gpu")
        np.testing.assert_array_equal(c.numpy(), gemm(a, b))


def test_split_k_over_nothing():
    with use(mp.study.change(MIXED, split=4)):
        np.testing.assert_array_equal(gemm(np.ones((2, 0), F16), np.ones((0, 3), F16), F16([1, 2, 3])), [[1, 2, 3]] * 2)


@pytest.mark.parametrize("policy", [MIXED, FP16_ACCUMULATE], ids=str)
@pytest.mark.parametrize(
    ("a", "b"),
    [((3, 8), (8, 5)), ((2, 3, 8), (8, 5)), ((2, 3, 8), (2, 8, 5)), ((4, 1, 3, 8), (2, 8, 5)), ((0, 8), (8, 5))],
)
@pytest.mark.parametrize("transposed", [False, True])
def test_gemm_shapes(a, b, transposed, policy):
    x, y = (np.round(randn(*s) * 8).astype(F16) for s in (a, b))  # small integers: every sum is exact in FP16
    if transposed:  # the same values behind another memory order
        x, y = (np.ascontiguousarray(v.swapaxes(-1, -2)).swapaxes(-1, -2) for v in (x, y))
    with use(policy):
        c = gemm(x, y, F16(np.arange(5)))
    assert c.dtype == F16
    np.testing.assert_array_equal(c, x.astype(F64) @ y.astype(F64) + np.arange(5))


@pytest.mark.parametrize("policy", [MIXED, FP16_ACCUMULATE], ids=str)
def test_gemm_over_nothing_is_zero(policy):
    with use(policy):
        np.testing.assert_array_equal(gemm(np.ones((2, 0), F16), np.ones((0, 3), F16), F16([1, 2, 3])), [[1, 2, 3]] * 2)
        assert gemm(np.ones((2, 0), F16), np.ones((0, 3), F16)).dtype == F16


@pytest.mark.parametrize(
    ("dtype", "wide", "result"), [(F16, True, F32), (F32, True, F32), (F32, False, F32), (F64, False, F64)]
)
def test_gemm_dtypes(dtype, wide, result):
    assert gemm(np.ones((2, 3), dtype), np.ones((3, 2), dtype), np.ones(2, dtype), wide=wide).dtype == result


# ------------------------------------------------------------------------------------------------------------- reduce


def test_ten_thousand_tenths():
    x = np.full((10_000, 3), 0.1, F16)
    exact = 10_000 * float(F16(0.1))
    assert store(reduce(x, 0, "sum"), x)[0, 0] == F16(exact)  # 1000 (999.76 to three digits of 0.1)
    assert abs(reduce(x, 0, "mean")[0, 0] - exact / 10_000) < 1e-7
    with use(FP16_REDUCTIONS):
        np.testing.assert_array_equal(reduce(x, 0, "sum"), np.full((1, 3), 256, F32))  # 256 + 0.1 is 256
        np.testing.assert_array_equal(reduce(x, (0, 1), "sum"), [[256]])
        np.testing.assert_array_equal(reduce(x, 0, "mean"), np.full((1, 3), F16(256) / F16(10_000), F32))
        assert reduce(x, 0, "cumsum")[-1, 0] == 256


@pytest.mark.parametrize("policy", [MIXED, FP16_REDUCTIONS], ids=str)
@pytest.mark.parametrize("axis", [0, 1, -1, (0, 2), (2, 0), (-1, -3), (0, 1, 2)])
@pytest.mark.parametrize("how", ["sum", "mean", "max", "min"])
def test_reduce_over_axes(how, axis, policy):
    x = np.arange(2 * 4 * 8).reshape(2, 4, 8)[::-1]  # sums below 2048, means with 6 bits behind the point: exact
    with use(policy):
        y = reduce(x.astype(F16), axis, how)
    assert y.dtype == F32
    np.testing.assert_array_equal(y, getattr(np, how)(x.astype(F64), axis=axis, keepdims=True))


@pytest.mark.parametrize("policy", [MIXED, FP16_REDUCTIONS], ids=str)
def test_reduce_cumsum(policy):
    x = np.arange(24).reshape(4, 6).astype(F16)
    with use(policy):
        np.testing.assert_array_equal(reduce(x, 1, "cumsum"), np.cumsum(x.astype(F32), axis=1))


def test_fp16_reductions_leave_fp32_alone():
    x = np.full(10_000, 0.1, F32)
    with use(FP16_REDUCTIONS):
        assert abs(reduce(x, 0, "sum")[0] - 1000) < 0.01  # no `like`: a loss
        assert abs(reduce(x, 0, "sum", like=x)[0] - 1000) < 0.01
        assert reduce(x, 0, "sum", like=LIKE)[0] == 256  # computed from a stored FP16 tensor
        assert reduce(np.full(10, 70_000, F32), 0, "max", like=LIKE)[0] == 70_000


def study(*only, **changes):
    return mp.study.change(MIXED, name="STUDY", only=only, **changes)


def test_only_the_ops_named_are_reduced_in_fp16():
    x = mp.tensor(np.zeros((1, 10_000))).half()
    total = mp.tensor(np.full(10_000, 0.1)).half()
    label = mp.tensor([0])
    for only, softmax, loss, summed in (
        (("softmax",), 1 / 2048, np.log(10_000), 1000),
        (("cross_entropy",), 1e-4, np.log(2048), 1000),
        (("sum",), 1e-4, np.log(10_000), 256),
        (("softmax", "cross_entropy", "sum"), 1 / 2048, np.log(2048), 256),
        (("conv2d",), 1e-4, np.log(10_000), 1000),
    ):
        with use(study(*only, reduce=F16)):
            assert ops.softmax(x, 1)[0, 0].item() == pytest.approx(softmax, rel=1e-3), only
            assert ops.cross_entropy(x, label).item() == pytest.approx(loss, rel=2e-3), only
            assert total.sum().item() == summed, only
            # no policy touches FP32 operands, and a primitive that no op called is not a named op's
            assert ops.cross_entropy(x.float(), label).item() == pytest.approx(np.log(10_000), rel=1e-4)
            assert store(reduce(total.array, 0, "sum"), total.array)[0] == 1000


@pytest.mark.cpu  # on a GPU cuBLAS, not `chunk`, says in which order FP16 accumulators add up
def test_only_holds_for_backward_and_for_products():
    x, w = (mp.tensor(np.ones(shape)).half().requires_grad_() for shape in [(3000, 1), (4, 1)])
    b = mp.tensor(np.zeros(4)).half().requires_grad_()
    for only, bias_gradient, weight_gradient in ((("linear",), 2048, 2048), (("matmul",), 3000, 3000)):
        with use(study(*only, reduce=F16, accumulate=F16, chunk=1)):
            ops.linear(x, w, b).backward(np.ones((3000, 4), F16))
        assert b.grad[0] == bias_gradient
        assert w.grad[0, 0] == weight_gradient
        for v in (x, w, b):
            v.zero_grad()


@pytest.mark.parametrize("policy", [MIXED, FP16_REDUCTIONS], ids=str)
def test_reduce_nothing(policy):
    with use(policy):
        np.testing.assert_array_equal(reduce(np.ones((0, 3), F16), 0, "sum"), np.zeros((1, 3)))
        assert reduce(np.ones((3, 0), F16), 0, "max").shape == (1, 0)
        np.testing.assert_array_equal(reduce(np.array(3, F16), (), "sum"), 3)


def test_reduce_counts():
    assert reduce(np.array([True, False, True]), 0, "sum").dtype == np.int64
    assert reduce(np.full(3, 200, np.uint8), 0, "sum").tolist() == [600]


# ------------------------------------------------------------------------------------------- what is built from them


def test_accumulate_keeps_partial_sums_in_fp32():
    total = added(F16([2048.0]), F16([1.0]))
    assert total.dtype == F32
    assert total == 2049
    complete = store(added(total, F16([1.0])), like=F16([0.0]))
    assert complete.dtype == F16
    assert complete == 2050  # 2048 + 1 would have been rounded to 2048


@pytest.mark.parametrize(
    ("x", "dtype", "result"),
    [(F32([0.1]), F16, F16([0.1])), (F16([0.1]), F64, F16([0.1]).astype(F64)), (F64([0.1]), F32, F32([0.1])),
     (np.array([1, 2]), F16, F16([1, 2])), (F32([1.5, -2]), np.int64, np.array([1, -2])),
     (np.array([True]), F32, F32([1]))],
)  # fmt: skip
def test_to_dtype(x, dtype, result):
    got = to_dtype(x, dtype)
    assert got.dtype == result.dtype
    np.testing.assert_array_equal(got, result)
    assert to_dtype(got, dtype) is got


def test_to_dtype_rounds_as_the_policy_says():
    mp.manual_seed(0)
    with use(STOCHASTIC_ROUNDING):
        assert len(np.unique(to_dtype(np.full(1000, 1.0001, F32), F16))) == 2


@pytest.mark.parametrize("value", [65520, -65520.0, 1e30])
def test_require_fp16_refuses(value):
    with pytest.raises(ValueError, match=r"mul: the constant .* does not fit FP16, whose largest value is 65504"):
        require_fit("mul", value, np.dtype(F16))


@pytest.mark.parametrize("value", [65504, 65519.99, -65504, float("inf"), -float("inf"), float("nan"), 0, True])
def test_require_fp16_accepts(value):
    require_fit("mul", value, np.dtype(F16))
    require_fit("mul", 1e30, np.dtype(F32))


# ----------------------------------------------------------------------------------------------------------- policies


@pytest.mark.parametrize(
    ("policy", "halves", "singles"),
    [
        (MIXED, True, True),
        (STOCHASTIC_ROUNDING, False, True),
        (dataclasses.replace(MIXED, accumulate=F64), False, True),
        (dataclasses.replace(MIXED, reduce=F64), False, True),
        (mp.FP16_REDUCTIONS, False, False),
    ],
    ids=str,
)
def test_fast_paths_stand_in_where_a_policy_asks_for_nothing_else(policy, halves, singles):
    with use(policy):
        assert (plain(np.dtype(F16)), plain(np.dtype(F32))) == (halves, singles)


def test_policies_are_frozen_and_named():
    with pytest.raises(dataclasses.FrozenInstanceError):
        MIXED.storage = np.dtype(F32)
    assert all(policy.name == name for name, policy in POLICIES.items())
    named = {FP32, TF32, MIXED, BF16, NO_MASTER, STOCHASTIC_ROUNDING, FP8, FP16_ACCUMULATE, FP16_REDUCTIONS, PURE_FP16}
    assert {p for p in POLICIES.values() if not getattr(p.study, "tensor_core", "")} == named
    assert Policy("mine", storage="float16", reduce="f8") == Policy("mine", reduce=np.float64)
    assert len({kind.name for kind in KINDS}) == len(KINDS) == 6


@pytest.mark.parametrize(
    ("policy", "text"),
    [
        (MIXED, "MIXED(storage=float16, FP32 accumulators and masters)"),
        (FP32, "FP32(storage=float32)"),
        (NO_MASTER, "NO_MASTER(master=False)"),
        (mp.study.change(FP16_ACCUMULATE, chunk=8), "FP16_ACCUMULATE(accumulate=float16, chunk=8)"),
        (PURE_FP16, "PURE_FP16(master=False, norm=float16, state=float16, accumulate=float16, reduce=float16)"),
    ],
)
def test_policy_as_text(policy, text):
    assert str(policy) == text


def test_what_a_study_decides_is_no_field_of_a_policy():
    with pytest.raises(TypeError, match="unexpected keyword argument 'chunk'"):
        Policy("mine", chunk=4)
    with pytest.raises(ValueError, match=r"expected reduce to be one of float32, float64.*tinymp\.study\.change"):
        Policy("mine", reduce="float16")
    with pytest.raises(TypeError, match=r"study\.change: expected fields among .*, got chunks"):
        mp.study.change(MIXED, chunks=4)
    with pytest.raises(TypeError, match="Policy: expected a study, got 3"):
        Policy("mine", study=3)


def test_fp64_accumulators_are_rounded_once():
    """300 sums of 1000 terms, against FP64: MIXED differs from many in the last place, the policy from none."""
    policy = Policy("FP64", accumulate="float64", reduce="float64")
    a, b = randn(300, 1000).astype(F16), randn(1000, 1).astype(F16)
    product, total = (a.astype("f8") @ b.astype("f8")).astype(F32), a.astype("f8").sum(1, keepdims=True).astype(F32)
    for used, exact in ((MIXED, False), (policy, True)):
        with use(used):
            assert (gemm(a, b, wide=True) == product).all() == exact
            assert (reduce(a, 1, "sum") == total).all() == exact


def test_use_nests_and_restores():
    assert current_policy() is MIXED
    with use(FP16_REDUCTIONS) as policy:
        assert current_policy() is policy is FP16_REDUCTIONS
        with use(FP32):
            assert current_policy() is FP32
        with pytest.raises(KeyError), use(FP32):
            raise KeyError
        assert current_policy() is FP16_REDUCTIONS
    assert current_policy() is MIXED
    with pytest.raises(TypeError, match=r"use: expected a Policy, got str; see tinymp.POLICIES"), use("MIXED"):
        pass


def test_cast():
    x, n = F32([0.1]), np.array([1, 2])
    batch = {"x": x, "rest": [n, (mp.tensor(x), mp.tensor(n))]}
    cast = MIXED.cast(batch)
    assert cast["x"].dtype == F16
    assert cast["rest"][0] is n
    assert isinstance(cast["rest"][1], tuple)
    assert isinstance(cast["rest"], list)
    t, i = cast["rest"][1]
    assert t.dtype == F16
    assert i.dtype == n.dtype
    assert isinstance(t, mp.Tensor)
    assert batch["x"] is x
    assert x.dtype == F32
    assert FP32.cast(cast)["x"].dtype == F32
    assert MIXED.cast(np.array([True])).dtype == bool
    w = mp.tensor(x, requires_grad=True)
    MIXED.cast(w).backward(F16([2]))
    assert w.grad.dtype == F32
    assert w.grad == 2


@pytest.mark.parametrize("target", [3, 1.5, "x", None, MIXED])
def test_cast_refuses(target):
    with pytest.raises(TypeError, match=r"Policy\.cast: expected a Module, Tensor, array or a collection of them"):
        MIXED.cast(target)


@pytest.mark.parametrize(
    "name",
    [
        "Policy",
        "FP32",
        "MIXED",
        "NO_MASTER",
        "FP16_ACCUMULATE",
        "FP16_REDUCTIONS",
        "STOCHASTIC_ROUNDING",
        "PURE_FP16",
        "POLICIES",
        "use",
        "current_policy",
        "float16",
        "float32",
        "float64",
        "Tensor",
        "tensor",
        "from_numpy",
        "no_grad",
        "enable_grad",
        "is_grad_enabled",
        "observe",
        "manual_seed",
        "ops",
        "nn",
        "optim",
        "data",
        "backend",
    ],
)
def test_top_level_names(name):
    assert hasattr(mp, name)


class Heard(mp.Observer):
    """Counts roundings."""

    roundings = 0

    def rounded(self, x, y):
        self.roundings += 1


def test_constants_are_rounded_to_nearest():
    """A number that where, masked_fill, full or pad stores, or a comparison reads: under every policy, unobserved."""
    x, mask = mp.tensor(np.zeros(2, "float16")), mp.tensor([True, False])
    tenth = mp.tensor(np.full(1, 0.1, "float16"))

    def assigned():
        x[0] = 0.1
        return x.array[0]

    made = {
        "masked_fill": lambda: ops.masked_fill(x, mask, 0.1).array[0],
        "where": lambda: ops.where(mask, 0.1, x).array[0],
        "full": lambda: ops.full((1,), 0.1, dtype="float16").array[0],
        "pad": lambda: ops.pad(x, (1, 0), value=0.1).array[0],
        "x[0] = 0.1": assigned,
        "==": lambda: np.float16(0.1) if (tenth == 0.1).item() else None,
    }
    heard = Heard()
    for name, make in made.items():
        with mp.use(mp.STOCHASTIC_ROUNDING), mp.observe(heard):
            before = mp.get_rng_state()
            assert {float(make()) for _ in range(100)} == {float(np.float16(0.1))}, name
            assert mp.get_rng_state() == before
    assert heard.roundings == 0


INT8 = [300, -129, 128.0, float("nan"), float("inf"), np.uint64(2**64 - 1)]


@pytest.mark.parametrize("value", INT8)
@pytest.mark.parametrize("how", ["tensor", "to", "x[0] = value", "x[:1] = values", "copy_"])
def test_a_value_beyond_an_integer_dtype_is_refused(how, value):
    """None is wrapped. PyTorch refuses the first, and wraps the others."""
    x = mp.tensor(np.array([7], np.int8))
    calls = {
        "tensor": lambda: mp.tensor([value], dtype="int8"),
        "to": lambda: mp.tensor(np.array([value])).to(np.int8),
        "x[0] = value": lambda: x.__setitem__(0, value),
        "x[:1] = values": lambda: x.__setitem__(slice(1), np.array([value])),
        "copy_": lambda: x.copy_([value]),
    }
    with pytest.raises(ValueError, match=r"the value .* does not fit int8, whose values go from -128 to 127"):
        calls[how]()
    assert x.tolist() == [7]


def test_values_within_an_integer_dtype_are_kept():
    for dtype in ("int8", "uint8", "int32", "int64", "uint64"):
        low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
        assert mp.tensor(np.array([low, high], dtype)).tolist() == [low, high]
        small = mp.tensor([float(low), 1.75, -0.5], dtype=dtype)
        assert small.tolist() == [low, 1, 0]
    with pytest.raises(ValueError, match=r"tensor: the value 9.22\d*e\+18 does not fit int64"):
        mp.tensor([2.0**63], dtype="int64")
    assert mp.tensor([0.5, 0.0, float("nan")], dtype=bool).tolist() == [True, False, True]


@pytest.mark.cpu  # a GPU finds it out later: tests/core/backend/test_gpu.py
@pytest.mark.parametrize("n", [70000, -70000, 2**62])
def test_an_integer_tensor_beyond_fp16_is_refused_beside_fp16(n):
    x, big = mp.tensor(np.ones(1, "float16")), mp.tensor([n])
    for call in (lambda: x + big, lambda: big * x, lambda: ops.where(mp.tensor([True]), x, big)):
        with pytest.raises(ValueError, match=r"(add|mul|where): a value of the int64 tensor does not fit FP16"):
            call()
    assert (x + mp.tensor([65504])).tolist() == [65504]
    assert (x.float() + big).tolist() == [np.float32(n) + 1]


def test_writing_into_a_parameter_rounds_once():
    p = mp.STOCHASTIC_ROUNDING.cast(mp.nn.Linear(3, 2)).weight
    with mp.no_grad(), mp.use(mp.STOCHASTIC_ROUNDING):
        for write in (lambda: p.copy_(p.master * 2), lambda: p.__setitem__(0, 0.3)):
            heard = Heard()
            with mp.observe(heard):
                write()
            assert heard.roundings == 1


def test_tf32_rounds_the_operands_of_fp32_products_and_nothing_else():
    """A TF32 product is exact on 11-bit operands; FP32 stays FP32 unless the policy says otherwise."""
    fine = np.array([[1 + 2.0**-11, 1 + 2.0**-10, 1 + 3 * 2.0**-11, np.inf]], F32)
    coarse = np.array([[1 + 2.0**-10, 1 + 2.0**-10, 1 + 2.0**-9, np.inf]], F32)  # ties away from 0, as cvt.rna's
    one = np.ones((1, 1), F32)
    np.testing.assert_array_equal(gemm(fine.T, one).ravel(), fine.ravel())
    with use(TF32):
        np.testing.assert_array_equal(gemm(fine.T, one).ravel(), coarse.ravel())
        np.testing.assert_array_equal(gemm(fine.T.astype(F64), one.astype(F64)).ravel(), fine.ravel())
        assert np.isnan(gemm(np.full((1, 1), np.nan, F32), one)).all()
        assert reduce(fine[:, :3], 1, "sum")[0, 0] == F32(3 + 6 * 2.0**-11)
        half = np.full((2, 2), 1 + 2.0**-10, F16)
        np.testing.assert_array_equal(gemm(half, half), gemm(half.astype(F32), half.astype(F32)).astype(F16))
