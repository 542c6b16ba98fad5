"""Functions of one tensor, attention and batch norm, done in parts on a CPU: the bits are those of the definition."""

import numpy as np
import pytest

import tinymp as mp
from gpu.both_ways import channels_last
from oracle import host, randn
from tinymp import fast_path, ops
from tinymp.backend.devices import Device
from tinymp.fast.cpu import devices, threads, unary
from tinymp.ops.norm import BatchNorm, Running

pytestmark = [pytest.mark.cpu, pytest.mark.skipif(threads._set is None, reason="another BLAS")]
BOTH = {"forward", "backward"}


def results(monkeypatch, off, op, tensors):
    """The results of op and the gradients without these fast paths, and how often two threads shared the work."""
    shared, original = [], threads._shared
    before = threads._get()
    with monkeypatch.context() as patch:
        patch.setattr(fast_path, "off", off)
        patch.setattr(threads, "_shared", lambda f, items, n: shared.append(len(items)) or original(f, items, n))
        threads._set(2)
        try:
            y, *others = op(*tensors)
            y.backward(mp.tensor(randn(*y.shape, seed=9).astype(y.dtype)))
        finally:
            threads._set(before)
    grads = [host(t.grad) for t in tensors if t is not None and t.requires_grad]
    return [y.array, *others, *grads], len(shared)


def check(monkeypatch, op, *arrays, calls=(1, 1)):
    """calls: how often forward and backward share their work. Arrays of float64 become tensors of each dtype."""
    for dtype in ("float64", "float32", "float16"):
        given = [None if a is None else a.astype(dtype) if a.dtype == "f8" else a for a in arrays]

        def tensors(given=given):
            return [a if a is None else mp.tensor(a, requires_grad=a.dtype.kind == "f") for a in given]

        expected, shared = results(monkeypatch, BOTH, op, tensors())
        assert not shared
        for off, wanted in ((set(), sum(calls)), ({"forward"}, calls[1]), ({"backward"}, calls[0])):
            got, shared = results(monkeypatch, off, op, tensors())
            assert shared == wanted, (dtype, off)
            for e, y in zip(expected, got, strict=True):
                assert (y.dtype, y.strides, y.tobytes()) == (e.dtype, e.strides, e.tobytes()), (dtype, off)


@pytest.mark.parametrize(
    ("op", "options", "memory"),
    [
        ("gelu", ("tanh",), channels_last),
        ("leaky_relu", (0.2,), np.asarray),
    ],
)
def test_functions_of_one_tensor(monkeypatch, op, options, memory):
    check(monkeypatch, lambda x: [getattr(ops, op)(x, *options)], memory(3 * randn(5, 32, 64, 64)))


@pytest.mark.parametrize("name", ["exp", "gelu", "tanh", "silu", "elu", "softplus", "hardswish", "sqrt", "reciprocal"])
def test_every_half_has_the_bits_of_the_definition(monkeypatch, name):
    """FP16 is looked up in tables: of y, and of the slope."""
    made = unary.table.cache_info().misses
    halves = np.tile(np.arange(1 << 16, dtype=np.uint16).view(np.float16), 8)
    bits = []
    for off in (set(), BOTH):
        monkeypatch.setattr(fast_path, "off", off)
        x = mp.tensor(halves, requires_grad=True)
        y = getattr(ops, name)(x)
        y.backward(mp.tensor(randn(*y.shape).astype(np.float16)))
        bits.append((y.array.tobytes(), x.grad.array.tobytes()))
    assert bits[0] == bits[1]
    assert unary.table.cache_info().misses == made + 2


@pytest.mark.parametrize(("n_rows", "n"), [(1024, 300), (5, 300), (2, 1000)])
def test_wide_rows_are_added_in_the_order_of_the_definition(n_rows, n):
    """The last has more rows of one index than are added one after the other: that is left to the definition."""
    index, rows = np.random.default_rng(0).integers(0, n_rows, n), randn(n, 64).astype(np.float32)
    expected = Device.scatter_add_rows.__wrapped__(mp.backend.cpu, n_rows, index, rows)
    got = devices.scatter_add_rows(mp.backend.cpu, n_rows, index, rows)
    assert (got is NotImplemented) == (n_rows == 2)
    assert got is NotImplemented or got.tobytes() == expected.tobytes()


B, H, L, E = 32, 4, 64, 16  # products so small that BLAS has one thread for each
QKV = [randn(B, H, L, E, seed=i) for i in range(3)]
SEEN, ADDED = randn(L, L) < 1, randn(B, 1, L, L)


@pytest.mark.parametrize(
    ("arrays", "options", "calls"),
    [
        (QKV, {}, (1, 1)),
        (QKV, {"is_causal": True}, (1, 1)),
        (QKV, {"dropout_p": 0.2}, (1, 1)),
        ([*QKV, SEEN], {}, (1, 1)),
        ([*QKV, ADDED], {}, (1, 1)),
        ([QKV[0], QKV[1][:1], QKV[2]], {}, (1, 0)),
        ([x[:2] for x in QKV], {}, (0, 0)),
    ],
)
def test_attention(monkeypatch, arrays, options, calls):
    def attention(*arrays):
        mp.manual_seed(0)
        return [ops.scaled_dot_product_attention(*arrays, **options)]

    check(monkeypatch, attention, *arrays, calls=calls)


@pytest.mark.parametrize(
    ("affine", "tracked", "memory"),
    [(True, True, np.asarray), (True, True, channels_last), (False, True, channels_last), (True, False, np.asarray)],
)
def test_batch_norm(monkeypatch, affine, tracked, memory):
    x, w, b = memory(randn(5, 32, 64, 64)), randn(32, seed=1), randn(32, seed=2)

    def batch_norm(x, w, b):
        mean, var = np.zeros(32, x.dtype), np.ones(32, x.dtype)
        running = Running(mean, var, np.zeros((), "i8"), 0.1) if tracked else Running(None, None, None, 0.1)
        y = BatchNorm.apply(x, w, b, eps=1e-5, running=running)
        return [y, mean, var, *([running.count] if tracked else [])]

    check(monkeypatch, batch_norm, x, w if affine else None, b if affine else None)
