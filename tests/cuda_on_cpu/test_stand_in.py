"""The stand-in for CuPy: as strict as CuPy, and like it in what it returns. (Its values are held by tests/gpu.)"""

import json
import operator
import pathlib
import subprocess
import sys

import numpy as np
import pytest

from cuda_on_cpu import device, problem, stand_in
from cuda_on_cpu.array import API, ndarray


@pytest.fixture
def cp():
    with stand_in.install_modules(sys.modules) as module:
        yield module


@pytest.fixture
def pool(cp):
    """A pool that a graph can keep for itself, in use."""
    pool = cp.cuda.MemoryPool()
    with cp.cuda.using_allocator(pool.malloc):
        yield pool


HOST = np.ones(3, np.float32)
REFUSED = {
    "an array of the host": [
        *(lambda cp, x: np.asarray(x), lambda cp, x: np.add(HOST, x), lambda cp, x: x + HOST, lambda cp, x: HOST + x),
        *(lambda cp, x: x < HOST, lambda cp, x: operator.iadd(x, HOST), lambda cp, x: cp.exp(HOST)),
        *(lambda cp, x: cp.where(x > 0, x, HOST), lambda cp, x: cp.concatenate([x, HOST]), lambda cp, x: cp.sum(HOST)),
        *(lambda cp, x: np.linalg.norm(x), lambda cp, x: operator.setitem(x, ..., HOST)),
    ],
    "what CuPy does not have": [
        *(lambda cp, x: cp.nonsense, lambda cp, x: cp.block, lambda cp, x: x.nonsense, lambda cp, x: x.ctypes),
        *(lambda cp, x: cp.sum(x, initial=0), lambda cp, x: x.sum(where=x > 0), lambda cp, x: cp.add(x, x, where=x)),
        *(
            lambda cp, x: x.astype("float16", casting="safe"),
            lambda cp, x: hash(x),
            lambda cp, x: [1][cp.zeros((), int)],
        ),
        *(lambda cp, x: cp.maximum.reduce(x), lambda cp, x: cp.multiply.at(x, 0, 1), lambda cp, x: cp.asarray(["a"])),
        *(lambda cp, x: bool(x), lambda cp, x: x.item(), lambda cp, x: len(x[0]), lambda cp, x: x[3]),
        *(lambda cp, x: operator.iadd(x.astype(int), 0.5), lambda cp, x: operator.setitem(x, 0, cp.ones(3))),
        lambda cp, x: cp.lib.stride_tricks.as_strided(x, (30, 2), (4, 4)),
        lambda cp, x: cp.shares_memory(x, x[0, ...]),
    ],
}


@pytest.mark.parametrize("what", REFUSED)
def test_it_is_as_strict(cp, what):
    for refused in REFUSED[what]:
        with pytest.raises((TypeError, AttributeError, ValueError, NotImplementedError, IndexError)):
            refused(cp, cp.ones(3, "float32"))


def test_the_class_offers_nothing_that_cupy_does_not():
    assert {name for name in dir(ndarray) if not name.startswith("_")} <= {*API["methods"], *API["attributes"]}


def test_the_record_is_that_of_the_installed_cupy():
    script = pathlib.Path(stand_in.__file__).with_name("record.py")
    recorded = subprocess.run([sys.executable, "-I", str(script)], capture_output=True, text=True)
    if recorded.returncode or (found := json.loads(recorded.stdout))["version"][:4] != API["version"][:4]:
        pytest.skip("the CuPy that was recorded is not installed")
    assert found == API


def test_what_differs_from_numpy(cp):
    x = cp.asarray(np.ones((2, 3), np.float32))
    for y in (x.sum(), x.max(), cp.exp(1.0), x[0, 0], (x > 0).any(), x.argmax()):
        assert type(y) is cp.ndarray and y.shape == ()
    tenths = cp.full((10000,), 0.1, "float16")  # sums have an FP32 accumulator
    assert tenths.sum().dtype == np.float16 and abs(float(tenths.sum()) - 1000) < 1
    assert cp.full(3, 60000.0, "float16").mean() == 60000
    i = cp.arange(3)
    assert i[cp.asarray([1, 3, -1, 100])].tolist() == [1, 0, 2, 1]  # indices wrap around
    i[cp.asarray([4])] = 9
    assert i.tolist() == [0, 9, 2]
    small = cp.asarray(np.array([2.0**-127, -(2.0**-127), 2.0**-126], np.float32))  # subnormal numbers are 0
    for zeros in (small[:2] * 1, small[2:] / 2, small[:2].sum(), cp.not_equal(small[:2], 0)):
        assert not zeros.get().any()
    assert np.signbit((small * 1).get()).tolist() == [False, True, False]
    assert small.copy().tolist() == small.tolist() and (small * 1)[2] == 2.0**-126
    assert cp.isnan(cp.empty((2, 3), "float16")).all() and (cp.empty(5, "int32") == -1).all()


# ----------------------------------------------------------------------------------------- waiting, streams and graphs


@pytest.mark.parametrize(
    "waits",
    [
        *(lambda cp, x: x.get(), lambda cp, x: bool(x[0] > 0), lambda cp, x: repr(x), lambda cp, x: cp.asnumpy(x)),
        *(lambda cp, x: x[x > 0], lambda cp, x: operator.setitem(x, x > 0, 1), lambda cp, x: cp.nonzero(x)),
        *(lambda cp, x: cp.where(x > 0), lambda cp, x: cp.unique(x), lambda cp, x: cp.cuda.Device().synchronize()),
        lambda cp, x: cp.cuda.get_current_stream().synchronize(),
    ],
)
def test_what_waits_for_the_device(cp, waits):
    x = cp.ones(3)
    with cp.no_synchronisation():
        y = cp.where(x > 0, x, 0).sum() + x[cp.asarray([0, 1])].max()  # does not
        x += y
        with pytest.raises(AssertionError, match="waits for the device"):
            waits(cp, x)
    stream = cp.cuda.Stream(non_blocking=True)
    with stream:
        stream.begin_capture()
        with pytest.raises(RuntimeError, match="capturing") as refused:
            waits(cp, x)
        if isinstance(refused.value, cp.cuda.runtime.CUDARuntimeError):  # refused by CUDA, not by CuPy before it
            with pytest.raises(cp.cuda.runtime.CUDARuntimeError, match="previous error during capture"):
                stream.end_capture()
        else:
            stream.end_capture()


def test_a_graph_needs_its_memory(cp):
    x = cp.ones(4)
    stream, pool = cp.cuda.Stream(non_blocking=True), cp.cuda.MemoryPool()
    with stream:
        stream.begin_capture()
        with cp.cuda.using_allocator(pool.malloc):
            y = (x * 2).sum()
        mine = stream.end_capture()
        stream.begin_capture()
        z = (x * 2).sum()
        shared = stream.end_capture()
    mine.launch()
    assert y == 8 and z.shape == ()
    with pytest.raises(RuntimeError, match="memory that the graph works on was given back"):
        shared.launch()  # x * 2 went back to the pool of everybody
    del pool
    with pytest.raises(RuntimeError, match="given back"):
        mine.launch()


def test_memory_that_is_given_back_in_a_capture_goes_out_again_in_it(cp, pool):
    """As in CuPy, the smallest free piece that is large enough, of the same pool; the rest of it stays free."""
    stream, other = cp.cuda.Stream(non_blocking=True), cp.cuda.MemoryPool()
    with stream:
        small = cp.zeros(10, "float32")  # allocated before
        stream.begin_capture()
        x = cp.ones(1024, "float32")
        at, small_at = x.data.ptr, small.data.ptr
        del x, small
        y, z = cp.empty(100, "float32"), cp.empty(100, "float32")  # 512 bytes each
        assert (y.data.ptr, z.data.ptr) == (small_at, at)
        with cp.cuda.using_allocator(other.malloc):
            assert cp.empty(100, "float32").data.ptr not in (at, at + 512)
        w = cp.full(896, 3, "float32")  # the rest
        assert w.data.ptr == at + 512
        del z, w
        v = cp.empty(1024, "float32")  # both parts together
        assert v.data.ptr == at
        graph = stream.end_capture()
        assert cp.empty(1024, "float32").data.ptr != at
    v[:] = 5
    graph.launch()
    assert cp.isnan(v).all()  # its content is gone: the graph writes there before


IN_CAPTURE = {
    "H2D": [
        *(lambda cp, x: cp.asarray([1.0]), lambda cp, x: cp.array(np.ones(3))),
        *(lambda cp, x: x[[0, 1]], lambda cp, x: x[np.array([0, 1])], lambda cp, x: operator.setitem(x, [0], 1.0)),
        *(lambda cp, x: x.take([0, 1]), lambda cp, x: cp.repeat(x, [1, 2, 3], axis=0)),
        *(lambda cp, x: cp.concatenate([x] * 9), lambda cp, x: cp.stack([x] * 9)),
    ],
    "D2H": [
        *(lambda cp, x: x.get(), lambda cp, x: float(x[0, 0]), lambda cp, x: str(x), lambda cp, x: x.tolist()),
        *(lambda cp, x: x[x > 0], lambda cp, x: operator.setitem(x, x > 0, 1), lambda cp, x: x.nonzero()),
        *(lambda cp, x: cp.argwhere(x), lambda cp, x: cp.where(x > 0), lambda cp, x: cp.unique(x)),
    ],
    "cuBLAS": [lambda cp, x: x @ x, lambda cp, x: x.dot(x), lambda cp, x: cp.einsum("ij,jk", x, x)],
}


@pytest.mark.parametrize("kind", IN_CAPTURE)
def test_what_cupy_does_inside_is_refused_in_a_capture(cp, pool, kind):
    """As in CuPy 14.2, whose lines are named there; and the capture goes on."""
    error, message, _ = device._IN_CAPTURE[kind]
    x, stream = cp.ones((3, 3)), cp.cuda.Stream(non_blocking=True)
    with stream:
        stream.begin_capture()
        for refused in IN_CAPTURE[kind]:
            with pytest.raises(error, match=message):
                refused(cp, x)
        y = x + 1
        graph = stream.end_capture()
    cp.cuda.get_current_stream().synchronize()
    graph.launch()
    assert (y == 2).all()


# ---------------------------------------------------------------------------------------------- launches, installation


@pytest.mark.skipif(problem() is not None, reason=str(problem()))
def test_limits_of_a_launch(cp):
    from cuda_on_cpu import HARDWARE
    from tinymp.gpu import kernels

    code = 'extern "C" __global__ void add_one(T* x) { store(x + threadIdx.x, widen(x[threadIdx.x]) + 1.0f); }'
    code = "\n".join([HARDWARE.read_text(), kernels.HEADERS[1].read_text(), code])
    kernel = cp.RawModule(code=code, options=("-std=c++17", "-DSTORAGE=half")).get_function("add_one")
    x = cp.zeros(50, "float16")
    kernel((1,), (40,), (x[3:43],))
    assert x.tolist() == [0] * 3 + [1] * 40 + [0] * 7 and cp.launched == ["add_one"]
    for grid, block, shared in [((1,), (1025,), 0), ((1, 65536), (32,), 0), ((0,), (32,), 0), ((1,), (32,), 49 << 10)]:
        with pytest.raises(RuntimeError, match="INVALID_VALUE"):
            kernel(grid, block, (x,), shared_mem=shared)
    kernel.max_dynamic_shared_size_bytes = 100 << 10
    kernel((1,), (32,), (x,), shared_mem=100 << 10)
    with pytest.raises(RuntimeError, match="INVALID_VALUE"):
        kernel.max_dynamic_shared_size_bytes = 228 << 10
    for arguments in ((1,), (np.zeros(4, np.float32),)):
        with pytest.raises(TypeError):
            kernel((1,), (32,), arguments)


@pytest.mark.skipif(problem() is not None, reason=str(problem()))
def test_installation_leaves_nothing_behind():
    import cuda_on_cpu
    from tinymp.backend import gpu
    from tinymp.gpu import cublas, kernels

    def state():
        return gpu.xp, gpu.array_type, gpu._problem, kernels.HEADERS[0], cublas._library, sys.modules.get("cupy")

    before = state()
    with cuda_on_cpu.installed() as module:
        assert sys.modules["cupy"] is module is gpu.xp and gpu.array_type is module.ndarray
    assert all(a is b for a, b in zip(before, state()))
