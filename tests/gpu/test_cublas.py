"""Products while a step is captured: cuBLAS by ctypes, on the stand-in for it (or the real one under --backend gpu)."""

import ctypes

import numpy as np
import pytest

from oracle import randn
from tinymp.gpu import cublas, recording
from tinymp.precision import gemm


@pytest.fixture
def cp(gpu):
    """The array module of the device."""
    return gpu.xp


def captured(cp, work):
    """Output of `work`, captured on its own stream, after its graph is started; and the stream."""
    stream, pool = cp.cuda.Stream(non_blocking=True), cp.cuda.MemoryPool()
    cp.cuda.get_current_stream().synchronize()
    with stream, cp.cuda.using_allocator(pool.malloc), recording.record() as recorded:
        stream.begin_capture()
        result = work()
        graph = stream.end_capture()
    with stream:
        for later in recorded.after:
            later()
        graph.launch(stream)
        stream.synchronize()
    return result, stream


@pytest.mark.parametrize(("dtype", "bias"), [("float16", True), ("float32", True), ("float64", False)])
def test_a_captured_product_has_the_bits_of_one_that_is_not(cp, dtype, bias):
    a, b, c = (cp.asarray(randn(*shape).astype(dtype)) for shape in ((2, 3, 5), (5, 6), (6,)))
    for x, y in ((a, b), (a.swapaxes(1, 2), a), (a[:, :, 1:], b[1:])):
        given = c if bias and y is b else None
        expected = gemm(x, y, given).get()
        found, _ = captured(cp, lambda x=x, y=y, given=given: gemm(x, y, given))
        np.testing.assert_array_equal(found.get(), expected)


@pytest.mark.parametrize(("capability", "size"), [("70", 4 << 20), ("90", 32 << 20)])
def test_settings_of_the_library(monkeypatch, cp, capability, size):
    library = cublas._cublas()
    if not hasattr(library, "calls"):
        pytest.skip("a GPU tells nobody")
    monkeypatch.setattr(cp.cuda.Device, "compute_capability", capability)
    a, seen = cp.ones((2, 2), "float16"), []
    for _ in range(2):
        _, stream = captured(cp, lambda: gemm(a, a))
        state = library._handles[cp.cuda.device.get_cublas_handle()]
        assert state.math_mode == 16  # default, and reduced-precision reductions disallowed
        assert (state.stream, state.workspace[1]) == (stream.ptr, size)
        seen.append((stream, state.workspace))
    assert seen[0][1] != seen[1][1]  # products on two streams may run at once
    before = len(library.calls)
    gemm(a, a)  # which is not captured, is CuPy's
    assert len(library.calls) == before
    library.cublasGemmStridedBatchedEx = lambda *args: 15
    with pytest.raises(RuntimeError, match=r"cublasGemmStridedBatchedEx\(.*: CUBLAS_STATUS_NOT_SUPPORTED"):
        captured(cp, lambda: gemm(a, a))


def test_the_real_library_has_what_is_called():
    try:
        library = ctypes.CDLL(cublas._path())
    except Exception as error:
        pytest.skip(f"no cuBLAS here: {error}")
    for name in cublas._SIGNATURES:
        assert getattr(library, name)
