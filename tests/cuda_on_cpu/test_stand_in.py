"""The stand-in for CuPy: as strict as CuPy, and like it in what it returns."""

import copy
import json
import operator
import pathlib
import subprocess
import sys

import numpy as np
import pytest

from cuda_on_cpu import device, problem, stand_in


@pytest.fixture
def cp():
    with stand_in.install_modules(sys.modules) as module:
        yield module


def numbers(*shape, dtype="float32", seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


# ------------------------------------------------------------------------------------------------------------ strict


def test_no_implicit_conversion(cp):
    x, host = cp.ones(4, "float32"), np.ones(4, np.float32)
    for forbidden in (
        lambda: np.asarray(x),
        lambda: np.array([x, x]),
        lambda: np.add(host, x),
        lambda: x + host,
        lambda: host + x,
        lambda: x < host,
        lambda: x + np.ones((), np.float32),
        lambda: operator.iadd(x, host),
        lambda: operator.iadd(host, x),
        lambda: cp.exp(host),
        lambda: cp.where(x > 0, x, host),
        lambda: cp.concatenate([x, host]),
        lambda: cp.sum(host),
        lambda: np.linalg.norm(x),
    ):
        with pytest.raises((TypeError, AttributeError)):
            forbidden()
    with pytest.raises(TypeError, match="Implicit conversion to a NumPy array"):
        np.asarray(x)
    with pytest.raises(TypeError, match=r"Unsupported type <class 'numpy\.ndarray'>"):
        cp.add(x, host)
    with pytest.raises(ValueError, match="non-scalar"):
        x[...] = host
    x[...] = np.float32(3)
    x[1:2] = np.full((), 4.0)
    assert x.tolist() == [3, 4, 3, 3]


def test_what_cupy_does_not_have(cp):
    x = cp.ones((2, 3), "float32")
    for missing in (
        lambda: cp.nonsense,
        lambda: cp.block,
        lambda: x.nonsense,
        lambda: x.flags.writeable,
        lambda: x.ctypes,
    ):
        with pytest.raises(AttributeError):
            missing()
    for refused in (
        lambda: cp.sum(x, initial=0),
        lambda: x.sum(where=x > 0),
        lambda: cp.add(x, x, where=x > 0),
        lambda: x.astype("float16", casting="safe"),
        lambda: operator.index(cp.ones((), "int32")),
        lambda: [1, 2, 3][cp.ones((), "int32")],
        lambda: hash(x),
    ):
        with pytest.raises(TypeError):
            refused()
    for unsupported in (
        lambda: cp.maximum.reduce(x),
        lambda: cp.multiply.at(x, 0, 1),
        lambda: cp.subtract.accumulate(x),
    ):
        with pytest.raises(NotImplementedError):
            unsupported()
    with pytest.raises(ValueError, match="Unsupported dtype"):
        cp.asarray(["a"])
    with pytest.raises(ValueError, match="Unsupported dtype"):
        cp.empty(3, object)


def test_the_class_offers_nothing_that_cupy_does_not():
    from cuda_on_cpu.array import API, ndarray

    offered = {name for name in dir(ndarray) if not name.startswith("_")}
    assert offered <= {*API["methods"], *API["attributes"]}
    special = {name for name in vars(ndarray) if name.startswith("__") and name.endswith("__")}
    assert special <= {*API["special"], "__module__", "__slots__", "__weakref__", "__annotations__", "__qualname__"}


def test_the_record_is_that_of_the_installed_cupy():
    from cuda_on_cpu.array import API

    script = pathlib.Path(stand_in.__file__).with_name("record.py")
    code = "import cupy; print(cupy.__version__)"
    version = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    if version.returncode or version.stdout.split(".")[:2] != API["version"].split(".")[:2]:
        pytest.skip("the CuPy that was recorded is not installed")
    recorded = subprocess.run([sys.executable, "-I", str(script)], capture_output=True, text=True, check=True)
    assert json.loads(recorded.stdout) == API


def test_results_are_arrays_never_scalars(cp):
    x = cp.asarray(numbers(2, 3))
    for y in (x.sum(), x.max(), cp.exp(1.0), x[0, 0], x.mean(), (x > 0).any(), x.argmax(), cp.sum(x), x.dot(x.T)[0, 0]):
        assert type(y) is cp.ndarray
        assert y.shape == ()


def test_truth_and_numbers(cp):
    assert bool(cp.ones(1)) and not cp.zeros((1, 1))
    assert float(cp.full((), 2.5)) == 2.5
    assert int(cp.full((), 7)) == 7
    with pytest.raises(ValueError, match="ambiguous"):
        bool(cp.ones(2))
    with pytest.raises(ValueError, match="size 1"):
        cp.ones(2).item()
    with pytest.raises(TypeError, match="len"):
        len(cp.ones(()))


# -------------------------------------------------------------------------------------------------------- like NumPy


@pytest.mark.parametrize(
    "f",
    [
        lambda xp, x: x + 1,
        lambda xp, x: 2 / x,
        lambda xp, x: -x * x - abs(x),
        lambda xp, x: x**2,
        lambda xp, x: (x > 0) & ~(x < 1),
        lambda xp, x: xp.exp(x).sum(axis=(0, 2)),
        lambda xp, x: x.max(axis=1, keepdims=True),
        lambda xp, x: x.reshape(6, -1).T,
        lambda xp, x: x.transpose(2, 0, 1).reshape(-1),
        lambda xp, x: x[1, ..., None, ::-2],
        lambda xp, x: x[:, xp.asarray([2, 0])],
        lambda xp, x: x[xp.asarray([0, 1]), xp.asarray([2, 1])],
        lambda xp, x: x[x > 0],
        lambda xp, x: xp.where(x > 0, x, 0),
        lambda xp, x: xp.concatenate([x, x * 2], axis=1),
        lambda xp, x: xp.stack([x, x]),
        lambda xp, x: xp.pad(x, ((0, 0), (1, 2), (0, 1))),
        lambda xp, x: xp.moveaxis(x, 0, 2),
        lambda xp, x: xp.broadcast_to(x[:, :1], (2, 3, 4)),
        lambda xp, x: xp.take_along_axis(x, x.argmax(-1)[..., None], -1),
        lambda xp, x: xp.cumsum(x, axis=1),
        lambda xp, x: xp.flip(x, 1),
        lambda xp, x: xp.clip(x, -0.5, None),
        lambda xp, x: xp.sqrt(x),
        lambda xp, x: xp.logaddexp(x, 1),
        lambda xp, x: x @ x.swapaxes(1, 2),
        lambda xp, x: xp.expand_dims(x, 1).squeeze(),
        lambda xp, x: xp.argwhere(x > 0),
        lambda xp, x: xp.sort(x, axis=0),
        lambda xp, x: x.astype("float16").view("uint16"),
        lambda xp, x: xp.arange(5) // 2,
        lambda xp, x: xp.linspace(0, 1, 5),
        lambda xp, x: xp.eye(3, 4, 1),
        lambda xp, x: np.maximum(x, 0.5),
        lambda xp, x: np.float32(2) - x,
        lambda xp, x: xp.einsum("ijk,ilk->jl", x, x),
        lambda xp, x: xp.split(x, 3, axis=1)[1],
        lambda xp, x: xp.std(x, axis=0),
    ],
)
@pytest.mark.filterwarnings("ignore:.*encountered")
def test_values_are_those_of_numpy(cp, f):
    x = numbers(2, 3, 4)
    mine, theirs = f(cp, cp.asarray(x)), f(np, x)
    assert isinstance(mine, cp.ndarray)
    assert mine.dtype == theirs.dtype
    assert mine.shape == np.shape(theirs)
    np.testing.assert_allclose(mine.get(), theirs, rtol=1e-6)


def test_fp16_sums_have_an_fp32_accumulator(cp):
    x = cp.full((10000,), 0.1, "float16")
    assert x.sum().dtype == np.float16
    assert abs(float(x.sum()) - 1000) < 1
    assert abs(float(x.reshape(-1, 1).sum(axis=0)[0]) - 1000) < 1
    assert abs(float(x.mean()) - 0.1) < 1e-3
    assert cp.full(3, 60000.0, "float16").mean() == 60000


def test_subnormal_fp32_numbers_are_0_for_what_computes(cp):
    x = cp.asarray(np.array([2.0**-127, -(2.0**-127), 2.0**-126], np.float32))
    for zeros in (x[:2] * 1, x[1:2] + x[:1], x[2:] / 2, x[:2].sum(), cp.abs(x[:2]), cp.not_equal(x[:2], 0)):
        assert not zeros.get().any()
    assert np.signbit((x * 1).get()).tolist() == [False, True, False]
    assert x.copy().tolist() == x.tolist() and (x * 1)[2] == 2.0**-126
    y = cp.asarray(np.array([2.0**-24], np.float16))
    assert (y * 1).item() == 2.0**-24 and (cp.asarray([2.0**-140]) * 1).item() == 2.0**-140


def test_arrays_without_axes_have_no_shares_memory(cp):
    x = cp.ones(3)
    assert cp.shares_memory(x, x[:1])
    with pytest.raises(NotImplementedError, match="without axes"):
        cp.shares_memory(x, x[0, ...])


def test_promotion_of_numbers(cp):
    x = cp.ones(3, "float16")
    assert (x * 2.0).dtype == (x + 1).dtype == (2 * x).dtype == np.float16
    assert (x * np.float32(2)).dtype == np.float32
    assert (x * cp.ones((), "float32")).dtype == np.float32
    assert (cp.ones(3, "int32") * 2.5).dtype == np.float64


def test_writing(cp):
    x = cp.zeros((3, 4), "float32")
    x[1] = cp.arange(4)
    x[:, 0] += 5
    x[2, 1:3] = 7.9
    x[cp.asarray([0, 2]), cp.asarray([3, 3])] = 2
    assert x.tolist() == [[5, 0, 0, 2], [5, 1, 2, 3], [5, np.float32(7.9), np.float32(7.9), 2]]
    x[x > 4] = 0
    assert x.tolist() == [[0, 0, 0, 2], [0, 1, 2, 3], [0, 0, 0, 2]]
    n = cp.zeros(3, "int32")
    n[...] = cp.asarray([1.7, -1.7, 3])  # truncates, as an assignment does
    assert n.tolist() == [1, -1, 3]
    with pytest.raises(TypeError, match="Cannot cast"):
        n += 0.5
    with pytest.raises(ValueError, match=r"broadcast|shape"):
        x[0] = cp.ones(3)
    with pytest.raises(ValueError, match="shape"):
        n += cp.ones((2, 3), "int32")
    cp.add.at(n, cp.asarray([0, 0, 2]), 10)
    assert n.tolist() == [21, -1, 13]
    cp.put_along_axis(x, cp.asarray([[1], [0], [3]]), 9, 1)
    assert x[:, :].tolist() == [[0, 9, 0, 2], [9, 1, 2, 3], [0, 0, 0, 9]]
    cp.copyto(n, cp.asarray([5, 6, 7], "int32"), where=cp.asarray([True, False, True]))
    assert n.tolist() == [5, -1, 7]
    n.fill(4)
    n.set(np.asarray([1, 2, 3], np.int32))
    assert n.tolist() == [1, 2, 3]
    with pytest.raises(TypeError, match="cannot be set"):
        n.set(np.ones(3))


def test_overlapping_writes_read_first(cp):
    x = cp.arange(6)
    x[1:] += x[:-1]
    assert x.tolist() == [0, 1, 3, 5, 7, 9]
    x[1:] = x[:-1]
    assert x.tolist() == [0, 0, 1, 3, 5, 7]


def test_indices_wrap_around(cp):
    x = cp.arange(3)
    assert x[cp.asarray([1, 3, -1, 100])].tolist() == [1, 0, 2, 1]
    assert x.take(cp.asarray([5])).tolist() == [2]
    x[cp.asarray([4])] = 9
    assert x.tolist() == [0, 9, 2]
    with pytest.raises(IndexError):
        x[3]
    assert x[[True, False, True]].tolist() == [0, 2]


def test_views_share_memory_and_know_their_base(cp):
    x = cp.asarray(numbers(2, 3, 4))
    for y in (
        x[1],
        x.T,
        x.reshape(6, 4),
        x.view(),
        x[..., None],
        x.swapaxes(0, 1),
        cp.broadcast_to(x, (5, 2, 3, 4)),
        x[0].T,
    ):
        assert y.base is x
        assert not y.flags.owndata
        assert x.data.mem is y.data.mem
    assert x.base is None and x.flags.owndata
    assert x[1].data.ptr == x.data.ptr + 48
    x[0].T[...] = 1
    assert (x[0] == 1).all()
    for y in (x.copy(), x.T.reshape(-1), x + 0, x[cp.asarray([0])], x.astype("float32")):
        assert y.base is None or y.base is not x
        assert y.data.mem is not x.data.mem
    assert x.astype("float32", copy=False) is x
    assert cp.asarray(x) is x
    assert cp.ascontiguousarray(x) is x
    as_strided = cp.lib.stride_tricks.as_strided
    assert as_strided(x, (3, 2), (4, 4)).tolist() == [[1, 1], [1, 1], [1, 1]]
    with pytest.raises(ValueError, match=r"strides|buffer"):
        as_strided(x, (30, 2), (4, 4))
    assert copy.deepcopy(x).data.ptr != x.data.ptr


# ------------------------------------------------------------------------------------------------------------- memory


def test_memory_order(cp):
    nchw = cp.asarray(numbers(3, 4, 5, 6).transpose(3, 0, 1, 2).copy()).transpose(1, 2, 3, 0)  # lies as (6, 3, 4, 5)
    steps = nchw.strides
    assert cp.asnumpy(nchw).shape == (3, 4, 5, 6) and steps == (80, 20, 4, 240)
    for kept in (
        nchw.astype("float16").astype("float32"),
        nchw.copy("K"),
        cp.empty_like(nchw),
        cp.zeros_like(nchw),
        cp.full_like(nchw, 1),
        cp.copy(nchw),
        cp.roll(nchw, 1, 0),
    ):
        assert kept.strides == steps
    for lost in (
        nchw + 0,
        cp.exp(nchw),
        cp.maximum(nchw, 0),
        nchw.copy(),
        cp.where(nchw > 0, nchw, 0),
        nchw[:, cp.arange(4)],
    ):
        assert lost.flags.c_contiguous
    assert nchw.sum(axis=0, keepdims=True).flags.c_contiguous
    assert (nchw.T + 1).flags.c_contiguous
    nchw += 1
    assert nchw.strides == steps
    f = np.asfortranarray(numbers(3, 4))
    assert cp.array(f).flags.f_contiguous
    assert cp.asarray(f).flags.c_contiguous
    assert cp.array(numbers(2, 3, 4).transpose(1, 0, 2)).flags.c_contiguous
    assert cp.broadcast_to(cp.ones((4, 1, 1)), (2, 4, 3, 3)).astype("float16").strides == (18, 36, 6, 2)


def test_fresh_memory_is_nan(cp):
    assert cp.isnan(cp.empty((2, 3), "float16")).all()
    assert (cp.empty(5, "int32") == -1).all()
    assert cp.empty(5).data.ptr % 512 == 0
    assert cp.empty(0).data.ptr == 0


def test_pools_count(cp):
    pool = cp.cuda.MemoryPool()
    with cp.cuda.using_allocator(pool.malloc):
        x = cp.zeros(1000, "float32")
        y = x[1:] * 2
        assert pool.used_bytes() == 2 * 4096
    del y
    assert (pool.used_bytes(), pool.total_bytes(), pool.free_bytes()) == (4096, 8192, 4096)
    pool.free_all_blocks()
    assert pool.total_bytes() == 4096
    pool.set_limit(size=10000)
    with cp.cuda.using_allocator(pool.malloc), pytest.raises(cp.cuda.memory.OutOfMemoryError, match="Out of memory"):
        cp.zeros(4000)
    default = cp.get_default_memory_pool()
    before = default.used_bytes()
    z = cp.zeros(10)
    assert default.used_bytes() == before + 512
    address = z.data.ptr
    assert device.block_at(address + 79) is z.data.mem.block
    assert device.block_at(address + 80) is None
    del z
    assert default.used_bytes() == before
    assert device.block_at(address) is not None  # work that was queued before may use it
    cp.cuda.get_current_stream().synchronize()
    assert device.block_at(address) is None


# ----------------------------------------------------------------------------------------------------- synchronisation


@pytest.mark.parametrize(
    "waits",
    [
        lambda cp, x: x.get(),
        lambda cp, x: x[0].item(),
        lambda cp, x: x.tolist(),
        lambda cp, x: float(x[0]),
        lambda cp, x: bool(x[0] > 0),
        lambda cp, x: repr(x),
        lambda cp, x: cp.asnumpy(x),
        lambda cp, x: x[x > 0],
        lambda cp, x: operator.setitem(x, x > 0, 1),
        lambda cp, x: cp.nonzero(x),
        lambda cp, x: cp.where(x > 0),
        lambda cp, x: cp.unique(x),
        lambda cp, x: cp.argwhere(x),
        lambda cp, x: cp.cuda.get_current_stream().synchronize(),
        lambda cp, x: cp.cuda.Device().synchronize(),
        lambda cp, x: cp.cuda.runtime.deviceSynchronize(),
        lambda cp, x: cp.cuda.get_current_stream().record().synchronize(),
    ],
)
def test_what_waits_for_the_device(cp, waits):
    x = cp.ones(3)
    cp.synchronisations.clear()
    waits(cp, x)
    assert len(cp.synchronisations) >= 1
    with cp.no_synchronisation(), pytest.raises(AssertionError, match="waits for the device"):
        waits(cp, x)
    stream = cp.cuda.Stream(non_blocking=True)
    with stream:
        stream.begin_capture()
        with pytest.raises(RuntimeError, match="capturing") as refused:
            waits(cp, x)
        if isinstance(refused.value, cp.cuda.runtime.CUDARuntimeError):  # refused by CUDA, not by CuPy before it
            with pytest.raises(cp.cuda.runtime.CUDARuntimeError, match="previous error during capture"):
                x += 1
            with pytest.raises(cp.cuda.runtime.CUDARuntimeError, match="previous error during capture"):
                stream.end_capture()
        else:
            stream.end_capture()
    assert not stream.is_capturing()


def test_what_cupy_itself_launches(cp):
    x, foreign = cp.ones((4, 4)), cp.foreign
    for work, names in (
        (lambda: x * 2, ["multiply"]),
        (lambda: x.T.copy(), ["copy"]),
        (lambda: (x.T[1:], x.reshape(2, 8), cp.empty(3)), []),
        (lambda: (-x).sum(0), ["__neg__", "sum"]),
        (lambda: cp.concatenate([x, x]), ["concatenate"]),
    ):
        foreign.clear()
        work()
        here = "cuda_on_cpu/test_stand_in.py:"
        assert [what.split(" in ")[0] for what in foreign] == names
        assert all(here in what for what in foreign)


def test_what_does_not_wait(cp):
    x = cp.ones((3, 3))
    with cp.no_synchronisation():
        y = cp.where(x > 0, x, 0).sum() + x[cp.asarray([0, 1])].max()
        x[0] = y
        x.fill(3)
        x += cp.asarray(np.ones((3, 3)))
        cp.asarray(2.0)


# ------------------------------------------------------------------------------------------------------------- graphs


def test_a_graph_is_written_down_and_replayed(cp):
    x, total = cp.ones(4, "float32"), cp.zeros((), "float32")
    stream = cp.cuda.Stream(non_blocking=True)
    pool = cp.cuda.MemoryPool()
    with stream, cp.cuda.using_allocator(pool.malloc):
        stream.begin_capture()
        assert stream.is_capturing()
        y = x * 2
        z = cp.zeros_like(y)
        z[1:3] = y[:2]
        z[cp.asarray(0)] = 5
        y[::2] += 1
        w = cp.concatenate([y, z]).reshape(2, 4)
        s = w.sum(axis=0)
        total += s.max()
        x += 1
        a, b = cp.split(w, 2)
        p = cp.put_along_axis(b, cp.zeros((1, 1), "int64"), -1, 1)
        assert p is None
        graph = stream.end_capture()
    assert not stream.is_capturing()
    for result in (y, z, w, s):
        assert cp.isnan(result).all()  # nothing has run
    assert x.tolist() == [1] * 4 and total == 0
    addresses = [r.data.ptr for r in (y, z, w, s)]
    graph.launch()
    assert y.tolist() == [3, 2, 3, 2]
    assert z.tolist() == [5, 2, 2, 0]
    assert w.tolist() == [[3, 2, 3, 2], [-1, 2, 2, 0]]
    assert s.tolist() == [8, 4, 5, 2]
    assert (total == 8) and x.tolist() == [2] * 4
    graph.launch(stream)
    stream.synchronize()
    assert y.tolist() == [5, 4, 5, 4]
    assert x.tolist() == [3] * 4
    assert addresses == [r.data.ptr for r in (y, z, w, s)]
    assert a.base is w or a.base is b.base


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
    assert y == 8
    with pytest.raises(RuntimeError, match="memory that the graph works on was given back"):
        shared.launch()  # x * 2 went back to the pool of everybody
    del pool
    with pytest.raises(RuntimeError, match="given back"):
        mine.launch()
    del z


def test_memory_that_is_given_back_in_a_capture_goes_out_again_in_it(cp):
    """As in CuPy, the smallest free piece that is large enough, of the same pool; the rest of it stays free."""
    stream, pool, other = cp.cuda.Stream(non_blocking=True), cp.cuda.MemoryPool(), cp.cuda.MemoryPool()
    with stream, cp.cuda.using_allocator(pool.malloc):
        small = cp.zeros(10, "float32")  # allocated before
        stream.begin_capture()
        x = cp.ones(1024, "float32")
        at, small_at = x.data.ptr, small.data.ptr
        late = cp.empty(1024, "float32")  # what is kept stays where it is
        del x, small
        y, z = cp.empty(100, "float32"), cp.empty(100, "float32")  # 512 bytes each
        assert (y.data.ptr, z.data.ptr) == (small_at, at)
        with cp.cuda.using_allocator(other.malloc):
            assert cp.empty(100, "float32").data.ptr not in (at, at + 512)
        w = cp.full(896, 3, "float32")  # the rest
        assert w.data.ptr == at + 512 and late.data.ptr != at
        late[:] = cp.concatenate([z, z, w[:824]])
        del z, w
        v = cp.empty(1024, "float32")  # both parts together
        assert v.data.ptr == at
        graph = stream.end_capture()
        assert cp.empty(1024, "float32").data.ptr != at
    v[:] = 5
    graph.launch()
    assert cp.isnan(v).all()  # its content is gone: the graph writes there before
    assert cp.isnan(late[:200]).all() and (late[200:] == 3).all()


def test_host_memory_in_a_capture(cp):
    x, runtime = cp.zeros(3, "float32"), cp.cuda.runtime
    memory = cp.cuda.alloc_pinned_memory(x.nbytes)
    host = np.frombuffer(memory, np.float32, 3)
    back = np.frombuffer(cp.cuda.alloc_pinned_memory(x.nbytes), np.float32, 3)
    stream, pool = cp.cuda.Stream(non_blocking=True), cp.cuda.MemoryPool()
    with stream, cp.cuda.using_allocator(pool.malloc):
        stream.begin_capture()
        for refused in (
            lambda: cp.asarray([1.0, 2.0]),
            lambda: x.set(host),
            lambda: x[[0, 1]],
            lambda: cp.stack([x] * 9),
            lambda: cp.concatenate([x, x.reshape(3)] * 5),
            lambda: x.get(out=back, blocking=False),
            lambda: x.data.copy_from_host_async(host.ctypes.data, host.nbytes),
        ):
            with pytest.raises(RuntimeError, match=r"stream is capturing, so [DH]2[DH] transfers are"):
                refused()
        cp.stack([x] * 8)  # by a copy of each
        y = cp.asarray(3.0) + x  # a number is the argument of a kernel
        runtime.memcpyAsync(x.data.ptr, host.ctypes.data, x.nbytes, runtime.memcpyHostToDevice, stream.ptr)
        x *= 2
        runtime.memcpyAsync(back.ctypes.data, x.data.ptr, x.nbytes, runtime.memcpyDeviceToHost, stream.ptr)
        with pytest.raises(runtime.CUDARuntimeError, match="not pinned"):
            runtime.memcpyAsync(np.ones(3).ctypes.data, x.data.ptr, x.nbytes, runtime.memcpyDeviceToHost, stream.ptr)
        graph = stream.end_capture()
    for value in (1, 5):
        host[:] = value
        graph.launch()
        assert x.tolist() == [2 * value] * 3
        assert back.tolist() == [2 * value] * 3
    assert y.tolist() == [5, 5, 5]


IN_CAPTURE = {
    "asarray of a list or a NumPy array": [lambda cp, x: cp.asarray([1.0]), lambda cp, x: cp.array(np.ones(3))],
    "ndarray.set": [lambda cp, x: x.set(np.ones((3, 3)))],
    "ndarray.get, and so float(), bool(), print": [
        *(lambda cp, x: x.get(), lambda cp, x: float(x[0, 0]), lambda cp, x: bool(x[0, 0]), lambda cp, x: str(x)),
        *(lambda cp, x: cp.asnumpy(x), lambda cp, x: x.tolist()),
    ],
    "an index that is a list or a NumPy array": [
        *(lambda cp, x: x[[0, 1]], lambda cp, x: x[np.array([0, 1])], lambda cp, x: operator.setitem(x, [0], 1.0)),
    ],
    "take of a list": [lambda cp, x: x.take([0, 1]), lambda cp, x: cp.take(x, [0], 1)],
    "a mask as index, read or written: its sum": [lambda cp, x: x[x > 0], lambda cp, x: operator.setitem(x, x > 0, 1)],
    "nonzero, argwhere, flatnonzero, where of one array, unique": [
        *(lambda cp, x: x.nonzero(), lambda cp, x: cp.argwhere(x), lambda cp, x: cp.flatnonzero(x)),
        *(lambda cp, x: cp.where(x > 0), lambda cp, x: cp.unique(x)),
    ],
    "repeat with a list": [lambda cp, x: x.repeat([1, 2, 3], 0), lambda cp, x: cp.repeat(x, [1, 2, 3], axis=0)],
    "concatenate and stack of more than 8 small arrays: addresses": [
        *(lambda cp, x: cp.concatenate([x] * 9), lambda cp, x: cp.stack([x] * 9)),
    ],
    "matmul, dot, inner, tensordot, einsum of floating arrays, but for a single result": [
        *(lambda cp, x: x @ x, lambda cp, x: cp.matmul(x, x), lambda cp, x: x.dot(x), lambda cp, x: cp.dot(x, x)),
        *(lambda cp, x: cp.inner(x, x), lambda cp, x: cp.tensordot(x, x, 1), lambda cp, x: cp.einsum("ij,jk", x, x)),
    ],
    "copy_from_device, copy_from_host, copy_to_host, memset": [
        *(lambda cp, x: x.data.copy_from_device(x.data, 8), lambda cp, x: x.data.memset(0, 8)),
        *(lambda cp, x: x.data.copy_from_host(0, 8), lambda cp, x: x.data.copy_to_host(0, 8)),
    ],
}


@pytest.mark.parametrize("what", device.REFUSED_IN_CAPTURE)
def test_what_cupy_does_inside_is_refused_in_a_capture(cp, what):
    """As in CuPy 14.2, whose lines are named there; and the capture goes on."""
    kind, _ = device.REFUSED_IN_CAPTURE[what]
    error, message, _ = device._IN_CAPTURE[kind]
    x, stream, pool = cp.ones((3, 3)), cp.cuda.Stream(non_blocking=True), cp.cuda.MemoryPool()
    with stream, cp.cuda.using_allocator(pool.malloc):
        stream.begin_capture()
        for refused in IN_CAPTURE[what]:
            with pytest.raises(error, match=message) as raised:
                refused(cp, x)
            assert type(raised.value) is error
        y = x + 1
        graph = stream.end_capture()
    cp.cuda.get_current_stream().synchronize()
    graph.launch()
    assert (y == 2).all()


def test_a_stream_joins_a_capture_by_an_event(cp):
    x, streams = cp.ones(3), [cp.cuda.Stream(non_blocking=True) for _ in range(2)]
    cp.cuda.get_current_stream().synchronize()
    pool = cp.cuda.MemoryPool()
    with cp.cuda.using_allocator(pool.malloc):
        with streams[0]:
            streams[0].begin_capture()
            x += 1
        streams[1].wait_event(streams[0].record())
        with streams[1]:
            x *= 3
        assert streams[1].is_capturing()
        streams[0].wait_event(streams[1].record())
        with streams[0]:
            x += 1
            graph = streams[0].end_capture()
    assert not streams[1].is_capturing() and (x == 1).all()
    graph.launch()
    assert (x == 7).all()
    before = cp.cuda.get_current_stream().record()
    with streams[0]:
        streams[0].begin_capture()
        with pytest.raises(cp.cuda.runtime.CUDARuntimeError, match="uncaptured work"):
            streams[0].wait_event(before)
        with pytest.raises(cp.cuda.runtime.CUDARuntimeError, match="previous error"):
            streams[0].end_capture()


def test_the_rest_is_taken(cp):
    """What CuPy does with kernels, scratch memory and copies on the device."""
    x, i = cp.ones((3, 3)), cp.asarray([0, 2])
    stream, pool = cp.cuda.Stream(non_blocking=True), cp.cuda.MemoryPool()
    cp.cuda.get_current_stream().synchronize()
    with stream, cp.cuda.using_allocator(pool.malloc):
        stream.begin_capture()
        found = [x.sum(0), x.max(), cp.cumsum(x, 1), cp.sort(x), cp.argsort(x), x.argmax(1), x[i], x.take(i, 1)]
        found += [cp.where(x > 0, x, 0), cp.stack([x] * 8), cp.concatenate([x] * 3), x.repeat(2, 0), cp.tile(x, 2)]
        found += [cp.zeros(3), cp.full(3, 2.0), cp.arange(4), x.astype("float16"), cp.pad(x, 1), (x > 0).any()]
        found += [cp.searchsorted(x[0], x[1]), cp.take_along_axis(x, cp.zeros((3, 1), "int64"), 1), cp.clip(x, 0, 1)]
        found += [cp.vdot(x, x), x[0].dot(x[1]), x.astype("int32") @ x.astype("int32")]
        x[i] = 3.0
        graph = stream.end_capture()
    graph.launch()
    assert x[0, 0] == 3 and not any(cp.isnan(y.astype("float64")).any() for y in found)


def test_copies_from_the_host_arrive_late(cp):
    x, y = cp.empty(3, "float32"), cp.empty(3, "float32")
    host = np.ones(3, np.float32)
    with cp.no_synchronisation(), pytest.raises(AssertionError, match="pageable memory waits for the device"):
        x.data.copy_from_host_async(host.ctypes.data, host.nbytes)
    with cp.no_synchronisation():
        for array, value in ((x, 1), (y, 2)):
            memory = cp.cuda.alloc_pinned_memory(x.nbytes)
            np.frombuffer(memory, np.float32, 3)[:] = value
            array.data.copy_from_host_async(memory.ptr, x.nbytes)
            address = memory.ptr
            del memory  # and the next to ask gets it
            memory = cp.cuda.alloc_pinned_memory(x.nbytes)
            assert memory.ptr == address
        del memory
    assert np.isnan(x.get()).all() and np.isnan(y.get()).all()
    kept = cp.cuda.alloc_pinned_memory(x.nbytes)
    np.frombuffer(kept, np.float32, 3)[:] = 3
    x.data.copy_from_host_async(kept.ptr, x.nbytes)
    event = cp.cuda.Event()
    event.record()
    assert event.done
    np.frombuffer(kept, np.float32, 3)[:] = 4
    assert x.tolist() == [3] * 3


def test_allocating_in_a_capture(cp):
    runtime = cp.cuda.runtime
    for mode in (runtime.streamCaptureModeGlobal, runtime.streamCaptureModeThreadLocal):
        stream = cp.cuda.Stream(non_blocking=True)
        with stream:
            stream.begin_capture(mode)
            refused = pytest.raises(runtime.CUDARuntimeError, match="cudaMalloc")
            with cp.cuda.using_allocator(cp.cuda.MemoryPool().malloc), refused:
                cp.zeros(3)
            stream.end_capture()
    with pytest.raises(RuntimeError, match="default \\(legacy\\) stream"):
        cp.cuda.Stream.null.begin_capture()


def test_copies_by_address(cp):
    runtime = cp.cuda.runtime
    x, y = cp.arange(4), cp.zeros(4, "int64")
    runtime.memcpyAsync(y.data.ptr, x.data.ptr, 32, runtime.memcpyDeviceToDevice, 0)
    assert y.tolist() == [0, 1, 2, 3]
    host = np.full(4, 7)
    runtime.memcpyAsync(y.data.ptr, host.ctypes.data, 16, runtime.memcpyHostToDevice, 0)
    assert y.tolist() == [7, 7, 2, 3]
    runtime.memsetAsync(y.data.ptr, 0, 8, 0)
    runtime.memcpy(host.ctypes.data, y.data.ptr, 32, runtime.memcpyDeviceToHost)
    assert host.tolist() == [0, 7, 2, 3]
    with pytest.raises(runtime.CUDARuntimeError, match="IllegalAddress"):
        runtime.memsetAsync(y.data.ptr, 0, 33, 0)


# ------------------------------------------------------------------------------------------------------------ kernels

CODE = """
extern "C" __global__ void add_one(T* x, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) store(x + i, widen(x[i]) + 1.0f);
}
extern "C" __global__ void add_all(const unsigned long long* table, int arrays, int n) {
    for (int a = 0; a < arrays; a++) {
        T* x = reinterpret_cast<T*>(table[a]);
        if (threadIdx.x < n) store(x + threadIdx.x, widen(x[threadIdx.x]) + 1.0f);
    }
}
extern "C" __global__ void reversed(float* x) {
    DYNAMIC_SHARED(memory);
    float* shared = reinterpret_cast<float*>(memory);
    shared[threadIdx.x] = x[threadIdx.x];
    __syncthreads();
    x[threadIdx.x] = shared[blockDim.x - 1 - threadIdx.x];
}
"""


@pytest.fixture
def module(cp):
    if why := problem():
        pytest.skip(why)
    from cuda_on_cpu import HARDWARE
    from tinymp.gpu import kernels

    code = "\n".join([HARDWARE.read_text(), kernels.HEADERS[1].read_text(), CODE])
    return cp.RawModule(code=code, options=("-std=c++17", "-DSTORAGE=half"))


def test_kernels(cp, module):
    kernel = module.get_function("add_one")
    whole = cp.zeros(50, "float16")
    cp.launched.clear()
    kernel((2,), (32,), (whole[3:43], np.int32(40)))
    assert whole.tolist() == [0] * 3 + [1] * 40 + [0] * 7
    assert cp.launched == ["add_one"]
    arrays = [cp.full(4, i, "float16") for i in range(3)]
    table = cp.asarray(np.asarray([x.data.ptr for x in arrays], np.uint64))
    module.get_function("add_all")((1,), (32,), (table, np.int32(3), np.int32(4)))
    assert [x.tolist() for x in arrays] == [[i + 1.0] * 4 for i in range(3)]
    with pytest.raises(RuntimeError, match="NOT_FOUND"):
        module.get_function("nothing")


def test_kernels_in_a_graph(cp, module):
    x = cp.zeros(40, "float16")
    stream = cp.cuda.Stream(non_blocking=True)
    kernel = module.get_function("add_one")
    with stream:
        stream.begin_capture()
        kernel((2,), (32,), (x, np.int32(40)))
        graph = stream.end_capture()
    assert (x == 0).all()
    graph.launch()
    graph.launch()
    assert (x == 2).all()


def test_limits_of_a_launch(cp, module):
    kernel, x = module.get_function("reversed"), cp.arange(32, dtype="float32")
    kernel((1,), (32,), (x,), shared_mem=128)
    assert x.tolist() == list(range(31, -1, -1))
    for grid, block, shared in [((1,), (1025,), 0), ((1,), (32, 64), 0), ((1, 65536), (32,), 0), ((0,), (32,), 0)]:
        with pytest.raises(RuntimeError, match="INVALID_VALUE"):
            kernel(grid, block, (x,), shared_mem=shared)
    with pytest.raises(RuntimeError, match="INVALID_VALUE"):
        kernel((1,), (32,), (x,), shared_mem=49 * 1024)
    kernel.max_dynamic_shared_size_bytes = 100 * 1024
    kernel((1,), (32,), (x,), shared_mem=100 * 1024)
    with pytest.raises(RuntimeError, match="INVALID_VALUE"):
        kernel.max_dynamic_shared_size_bytes = 228 * 1024
    for arguments in ((x, 1), (np.zeros(4, np.float32),)):
        with pytest.raises(TypeError):
            kernel((1,), (32,), arguments, shared_mem=128)


# ------------------------------------------------------------------------------------------------------- installation


def test_installation_leaves_nothing_behind():
    import cuda_on_cpu
    from tinymp.backend import gpu
    from tinymp.gpu import cublas, kernels

    if why := problem():
        pytest.skip(why)
    before = gpu.xp, gpu.array_type, gpu._problem, kernels.HEADERS[0], cublas._library, sys.modules.get("cupy")
    with cuda_on_cpu.installed() as module:
        import cupy

        assert cupy is module is gpu.xp
        assert gpu.problem() is None
        assert gpu.array_type is cupy.ndarray
    after = gpu.xp, gpu.array_type, gpu._problem, kernels.HEADERS[0], cublas._library, sys.modules.get("cupy")
    assert all(a is b for a, b in zip(before, after))
    assert cuda_on_cpu.install() is sys.modules["cupy"]
    cuda_on_cpu.uninstall()
    assert sys.modules.get("cupy") is before[-1]


def test_events_and_properties(cp):
    start = cp.cuda.get_current_stream().record()
    end = cp.cuda.Event()
    with pytest.raises(cp.cuda.runtime.CUDARuntimeError):
        cp.cuda.get_elapsed_time(start, end)
    end.record()
    assert cp.cuda.get_elapsed_time(start, end) >= 0
    assert cp.cuda.Device().compute_capability == "90"
    assert cp.cuda.runtime.getDeviceProperties(0)["major"] == 9
    with pytest.raises(cp.cuda.runtime.CUDARuntimeError, match="InvalidDevice"):
        cp.cuda.Device(1)
    assert cp.get_array_module(cp.ones(1)) is cp
    assert cp.get_array_module(np.ones(1)) is np
    assert cp.ones(1).__dlpack_device__() == (2, 0)
