"""gemm against float64 products, on the stand-in for cuBLAS (or the real one under --backend gpu)."""

import ctypes
import itertools

import numpy as np
import pytest

import tinymp as mp
from tinymp.fast.cuda import cublas

UNIT = {"float16": 2.0**-11, "float32": 2.0**-24, "float64": 2.0**-53}


@pytest.fixture
def cp(gpu):
    """The array module of the device."""
    return gpu.xp


def random(shape, dtype="float16", seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def layouts(cp, x):
    """x on the device: contiguous, transposed, with gaps between rows, both, and with gaps within rows."""
    *batch, rows, columns = x.shape
    plain = cp.asarray(x)
    transposed = cp.asarray(np.ascontiguousarray(x.swapaxes(-1, -2))).swapaxes(-1, -2)
    wide = cp.full((*batch, rows + 1, columns + 3), float("nan"), x.dtype)
    gaps = wide[..., 1:, 2:-1]
    gaps[...] = plain
    tall = cp.full((*batch, columns + 2, rows + 5), float("nan"), x.dtype)
    both = tall[..., 1:-1, 3:-2].swapaxes(-1, -2)
    both[...] = plain
    every_other = cp.full((*batch, rows * 2, columns * 2), float("nan"), x.dtype)[..., ::2, ::2]
    every_other[...] = plain
    return {"plain": plain, "transposed": transposed, "gaps": gaps, "both": both, "every other": every_other}


def check(cp, a, b, out, tf32=False, beta=0):
    """Run gemm and compare with float64; its bound: one rounding of the result, k of the accumulator."""
    exact = np.matmul(*(cp.asnumpy(x).astype(np.float64) for x in (a, b)))
    absolute = np.matmul(*(np.abs(cp.asnumpy(x).astype(np.float64)) for x in (a, b)))
    if beta:
        exact, absolute = exact + cp.asnumpy(out), absolute + np.abs(cp.asnumpy(out))
    k = a.shape[-1]
    cublas.gemm(a, b, out, tf32=tf32, beta=beta)
    tiny = 2.0**-25 if out.dtype == np.float16 else 0
    rounding = UNIT[out.dtype.name] * (np.abs(exact) + 2.0**-10 * absolute) + tiny
    unit = UNIT["float16" if tf32 else "float64" if a.dtype == np.float64 else "float32"]
    bound = rounding + 2 * (k + 2) * unit * absolute
    got = cp.asnumpy(out).astype(np.float64)
    assert np.all(np.abs(got - exact) <= bound), (
        f"off by {np.max(np.abs(got - exact) / np.maximum(bound, 1e-300)):g} bounds"
    )


def calls(cp):
    """What cuBLAS was asked for; None on a real GPU."""
    return getattr(cublas._cublas(), "calls", None)


KINDS = [
    ("float16", "float16", False),
    ("float16", "float32", False),
    ("float32", "float32", False),
    ("float32", "float32", True),
    ("float64", "float64", False),
]


@pytest.mark.parametrize(("dtype", "result", "tf32"), KINDS)
def test_every_kind(cp, dtype, result, tf32):
    for m, k, n in [(1, 1, 1), (3, 5, 7), (8, 16, 8), (1, 33, 4), (5, 2, 1)]:
        a, b = cp.asarray(random((m, k), dtype)), cp.asarray(random((k, n), dtype, 1))
        check(cp, a, b, cp.empty((m, n), result), tf32)
        check(cp, a, b, cp.asarray(random((m, n), result, 2)), tf32, beta=1)


@pytest.mark.parametrize("beta", [0, 1])
def test_every_layout(cp, beta):
    a, b = random((5, 6)), random((6, 3), seed=1)
    for x, y in itertools.product(layouts(cp, a).values(), layouts(cp, b).values()):
        check(cp, x, y, cp.asarray(random((5, 3), seed=2)), beta=beta)


def test_nothing_is_copied_where_rows_or_columns_are_contiguous(cp):
    asked = calls(cp)
    if asked is None:
        pytest.skip("a GPU keeps no list of calls")
    used = cp.get_default_memory_pool()
    for a, b in itertools.product(("plain", "transposed", "gaps", "both"), repeat=2):
        x, y, z = layouts(cp, random((5, 6)))[a], layouts(cp, random((6, 3)))[b], cp.empty((5, 3), "float16")
        cublas.gemm(x, y, z)  # the workspace is there now
        used.free_all_blocks()
        before, count = used.used_bytes(), len(asked)
        cublas.gemm(x, y, z)
        assert used.total_bytes() == before, (a, b)
        assert len(asked) == count + 1


@pytest.mark.parametrize("layout", ["plain", "transposed", "gaps", "both", "every other"])
def test_batches(cp, layout):
    a, b = layouts(cp, random((4, 3, 5)))[layout], layouts(cp, random((4, 5, 2), seed=1))[layout]
    check(cp, a, b, cp.asarray(random((4, 3, 2), seed=2)), beta=1)
    if (asked := calls(cp)) is not None:
        assert asked[-1]["batch"] == 4
    check(cp, a, b[2], cp.empty((4, 3, 2), "float16"))  # broadcast operands
    check(cp, a[1], b, cp.empty((4, 3, 2), "float16"))
    check(cp, a[:, None], b[:2], cp.empty((4, 2, 3, 2), "float32"))
    check(cp, a[::2], b[1::2], cp.empty((2, 3, 2), "float16"))
    check(cp, a[::-1], b, cp.empty((4, 3, 2), "float16"))
    check(cp, cp.broadcast_to(a[:1], (4, 3, 5)), b, cp.empty((4, 3, 2), "float16"))


def test_a_batch_that_shares_b_is_one_product(cp):
    b = cp.asarray(random((5, 6), seed=1))
    for shape in [(4, 3, 5), (2, 4, 3, 5), (4, 1, 5), (2, 3, 1, 5)]:
        check(cp, cp.asarray(random(shape)), b, cp.empty((*shape[:-1], 6), "float16"))
        if (asked := calls(cp)) is not None:
            assert (asked[-1]["batch"], asked[-1]["n"]) == (1, np.prod(shape[:-1]))
    a = cp.asarray(random((4, 3, 5)))[:, 1:2]  # single rows, far apart
    check(cp, a, b, cp.empty((4, 1, 6), "float16"))
    a = cp.asarray(random((4, 3, 3))).swapaxes(1, 2)  # columns do not go on in the next matrix
    check(cp, a, b[:3], cp.empty((4, 3, 6), "float16"))


def test_batches_of_several_axes(cp):
    """Attention heads: (N, T, H, D) seen as (N, H, T, D), whose leading axes do not merge."""
    q, k = (cp.asarray(random((2, 5, 3, 4), seed=s)).transpose(0, 2, 1, 3) for s in (0, 1))
    check(cp, q, k.swapaxes(-1, -2), cp.empty((2, 3, 5, 5), "float16"))
    check(cp, cp.asarray(random((2, 3, 5, 5))), k, cp.empty((2, 3, 5, 4), "float16"))
    a, b = cp.asarray(random((2, 1, 3, 2, 4))), cp.asarray(random((5, 1, 4, 3)))
    check(cp, a, b, cp.empty((2, 5, 3, 2, 3), "float16"))


def test_strides_along_axes_of_length_one(cp):
    """They mean nothing and may be anything: no reason to copy."""
    as_strided = cp.lib.stride_tricks.as_strided
    a, b = cp.asarray(random((6,))), cp.asarray(random((6,), seed=1))
    for odd in (0, 2, 14):
        column, row = as_strided(a, (6, 1), (2, odd)), as_strided(b, (1, 6), (odd, 2))
        for x, y, shape in ((column, row, (6, 6)), (row, column, (1, 1))):
            check(cp, x, y, cp.empty(shape, "float16"))


def test_overlapping_rows(cp):
    """A sliding window, whose rows overlap, is no matrix for cuBLAS."""
    windows = cp.lib.stride_tricks.as_strided(cp.asarray(random((9,))), (7, 3), (2, 2))
    check(cp, windows, cp.asarray(random((3, 4))), cp.empty((7, 4), "float16"))
    check(cp, cp.asarray(random((4, 7))), windows, cp.empty((4, 3), "float16"))


def test_empty_sizes(cp):
    a, b = cp.asarray(random((3, 0))), cp.asarray(random((0, 4)))
    out = cp.full((3, 4), float("nan"), "float16")
    cublas.gemm(a, b, out)
    assert cp.asnumpy(out == 0).all()
    out.fill(7)
    cublas.gemm(a, b, out, beta=1)
    assert cp.asnumpy(out == 7).all()
    for m, k, n in [(0, 3, 2), (2, 3, 0), (0, 0, 0)]:
        cublas.gemm(cp.empty((m, k), "float16"), cp.empty((k, n), "float16"), cp.empty((m, n), "float16"))
    batch = cp.empty((0, 2, 3), "float16"), cp.empty((3, 4), "float16"), cp.empty((0, 2, 4), "float16")
    cublas.gemm(*batch)


def test_accumulators(cp):
    """32768 + 1 + 1 + ... stays 32768 in FP16, whose next number is 32800; in FP32 every 1 counts."""
    a = np.ones((1, 512), np.float16)
    a[0, 0] = 32768
    for result, expected in (("float32", 32768 + 511), ("float16", 33280)):  # one rounding, to a multiple of 32
        out = cp.empty((1, 1), result)
        cublas.gemm(cp.asarray(a), cp.ones((512, 1), "float16"), out)
        assert out.item() == expected
    big = cp.full((1, 2), 60000.0, "float16")
    for result, expected in (("float32", 2 * big[0, 0].item()), ("float16", np.inf)):
        out = cp.empty((1, 1), result)
        cublas.gemm(big, cp.ones((2, 1), "float16"), out)
        assert out.item() == expected


def test_fp32_is_never_tf32(cp):
    x = cp.asarray(np.full((4, 4), 1 + 2.0**-20, np.float32))
    out = cp.empty((4, 4), "float32")
    cublas.gemm(x, cp.eye(4, dtype="float32"), out)
    assert cp.asnumpy(out == x).all()
    cublas.gemm(x, cp.eye(4, dtype="float32"), out, tf32=True)
    assert cp.asnumpy(out == 1).all()


def test_a_bias_is_rounded_once(cp):
    """1 + 2^-11 + 2^-11: each alone would be lost beside 1 in FP16."""
    out = cp.full((1, 1), 2.0**-11, "float16")
    a, b = cp.asarray(np.array([[1, 2.0**-11]], np.float16)), cp.ones((2, 1), "float16")
    cublas.gemm(a, b, out, beta=1)
    assert out.item() == 1 + 2.0**-10


@pytest.mark.parametrize("rounded", [True, False])
def test_accumulators_and_a_bias_are_rounded_once(gpu, rounded):
    """1 + 2^-12 + 2^-12 + 2^-11: rounded to FP16 at any time before the end, at least one of them is lost."""
    acc, bias = gpu.xp.full((1, 1), 1 + 2.0**-12, "float32"), gpu.xp.full((1,), 2.0**-12, "float16")
    a, b = gpu.xp.full((1, 1), 2.0**-11, "float16"), gpu.xp.ones((1, 1), "float16")
    c = gpu.gemm(a, b, bias, acc, np.dtype("float16"), False, rounded)
    assert c.dtype == ("float16" if rounded else "float32")
    assert c.item() == 1 + 2.0**-10


@pytest.mark.parametrize(("batch", "second"), [(2, "float16"), (1, "float32")])
def test_gradients_of_a_product_are_rounded_by_cublas(cp, monkeypatch, batch, second):
    """Not written in FP32 and cast, but where they are still to be summed over a broadcast batch."""
    a, b = (mp.Tensor(cp.asarray(random(shape))).requires_grad_() for shape in ((2, 3, 4), (batch, 4, 5)))
    c, written = a @ b, []
    gemm = cublas.gemm
    monkeypatch.setattr(cublas, "gemm", lambda a, b, out, **how: written.append(out) or gemm(a, b, out, **how))
    c.backward(c.array)
    assert [out.dtype.name for out in written] == ["float16", second]


@pytest.mark.parametrize(("capability", "size"), [("70", 4 << 20), ("80", 4 << 20), ("90", 32 << 20)])
def test_settings_of_the_library(monkeypatch, cp, capability, size):
    library = cublas._cublas()
    if not hasattr(library, "calls"):
        pytest.skip("a GPU tells nobody")
    monkeypatch.setattr(cp.cuda.Device, "compute_capability", capability)
    check(cp, cp.ones((2, 2), "float16"), cp.ones((2, 2), "float16"), cp.empty((2, 2), "float16"))
    state = library._handles[cp.cuda.device.get_cublas_handle()]
    assert state.math_mode == 16  # default, and reduced-precision reductions disallowed
    assert state.workspace[1] == size
    stream = cp.cuda.Stream(non_blocking=True)
    first = state.workspace
    with stream:
        check(cp, cp.ones((2, 2), "float16"), cp.ones((2, 2), "float16"), cp.empty((2, 2), "float16"))
        assert state.stream == stream.ptr
        assert state.workspace != first


def test_in_a_graph(cp):
    a, b = (cp.asarray(random((3, 3), seed=s)) for s in (0, 1))
    out = cp.zeros((3, 3), "float32")
    stream = cp.cuda.Stream(non_blocking=True)
    cp.cuda.get_current_stream().synchronize()
    with stream:
        cublas.gemm(a, b, out)  # makes the handle and the workspace
        out.fill(0)
        stream.begin_capture()
        cublas.gemm(a, b, out, beta=1)
        graph = stream.end_capture()
        stream.synchronize()
        assert cp.asnumpy(out == 0).all()
        for times in (1, 2):
            graph.launch(stream)
            stream.synchronize()
            expected = times * (cp.asnumpy(a).astype("float64") @ cp.asnumpy(b).astype("float64"))
            np.testing.assert_allclose(cp.asnumpy(out), expected, rtol=1e-5, atol=1e-5)
        a *= 2
        graph.launch(stream)
        stream.synchronize()
        expected = 4 / 2 * (cp.asnumpy(a).astype("float64") @ cp.asnumpy(b).astype("float64"))
        np.testing.assert_allclose(cp.asnumpy(out), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("a", "b", "out", "message"),
    [
        ((3, 4), (5, 6), (3, 6), "a is"),
        ((3, 4), (4, 6), (3, 5), "expected a"),
        ((2, 3, 4), (4, 6), (3, 6), "expected a"),
    ],
)
def test_shapes_that_do_not_match(cp, a, b, out, message):
    with pytest.raises(ValueError, match=message):
        cublas.gemm(*(cp.zeros(s, "float16") for s in (a, b, out)))


def test_other_errors(cp):
    half, single = cp.zeros((2, 2), "float16"), cp.zeros((2, 2), "float32")
    for a, b, out, tf32 in [
        (half, single, half, False),
        (single, single, half, False),
        (half, half, half, True),
        (cp.zeros((2, 2), "int32"), cp.zeros((2, 2), "int32"), half, False),
    ]:
        with pytest.raises(TypeError, match="gemm: there is no product"):
            cublas.gemm(a, b, out, tf32=tf32)
    with pytest.raises(ValueError, match="expected out to be C-contiguous"):
        cublas.gemm(half, half, half.T)


def test_a_status_is_an_error_with_its_name(cp):
    library = cublas._cublas()
    if not hasattr(library, "calls"):
        pytest.skip("a GPU does as it is told")
    half = cp.zeros((2, 2), "float16")
    library.cublasGemmStridedBatchedEx = lambda *args: 15
    with pytest.raises(RuntimeError, match=r"BatchedEx of a float16 \(2, 2\).*CUBLAS_STATUS_NOT_SUPPORTED"):
        cublas.gemm(half, half, half.copy())


def test_the_real_library_has_what_is_called():
    try:
        library = ctypes.CDLL(cublas._path())
    except Exception as error:
        pytest.skip(f"no cuBLAS here: {error}")
    for name in cublas._SIGNATURES:
        assert getattr(library, name)
