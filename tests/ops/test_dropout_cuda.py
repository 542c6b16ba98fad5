"""The CUDA twin of dropout. It draws other numbers than the CPU, so what it must be is checked, not what it drew."""

import numpy as np
import pytest

import tinymp as mp
from oracle import randn
from tinymp import ops
from tinymp.backend import philox
from twins import channels_last, launches, on_device, twins


@pytest.fixture(autouse=True)
def _gpu(gpu):
    mp.manual_seed(3)


def run(x, p, dy=None, forward=True, backward=True):
    """y and dx of dropout of x on the device; x and dy arrays there."""
    x = mp.Tensor(x).requires_grad_()
    with twins(forward, backward):
        y = ops.dropout(x, p)
        y.backward(y.array.copy() if dy is None else dy)
    return y.array, x.grad


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_the_share_that_survives(dtype, p):
    n = 20_000
    x, dy = on_device(np.ones(n, dtype)), on_device(np.full(n, 2, dtype))
    y, dx = (a.get() for a in run(x, p, dy))
    kept = y != 0
    assert y.dtype == dx.dtype == dtype
    assert abs(kept.mean() - (1 - p)) < 5 * np.sqrt(p * (1 - p) / n)  # five standard deviations
    np.testing.assert_array_equal(y, np.where(kept, np.float32(1 / (1 - p)), 0).astype(dtype))
    np.testing.assert_array_equal(dx, np.where(kept, np.float32(2 / (1 - p)), 0).astype(dtype))
    assert abs(np.corrcoef(kept[:-1], kept[1:])[0, 1]) < 5 / np.sqrt(n)  # neighbours are independent


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("n", [0, 1, 3, 4, 7, 8, 9, 2051])
@pytest.mark.parametrize("start", [0, 1])
def test_sizes_and_unaligned_starts(n, start, dtype):
    x = on_device(randn(n + start).astype(dtype))[start:]
    dy = on_device(randn(n + start, seed=1).astype(dtype))[start:]
    before = len(launches() or ())
    y, dx = run(x, 0.5, dy)
    if n and launches() is not None:
        assert {"dropout_forward", "dropout_backward"} <= set(launches()[before:])
    kept = y.get() != 0  # x has no zeros
    np.testing.assert_array_equal(y.get(), np.where(kept, 2 * x.get(), 0))
    np.testing.assert_array_equal(dx.get(), np.where(kept, 2 * dy.get(), 0))


@pytest.mark.parametrize("combination", [(True, True), (True, False), (False, True)])
def test_memory_orders_and_mixed_twins(combination):
    """The gradient may come in another order than x; either backward follows either forward."""
    x, dy = channels_last(randn(3, 2, 5, 7).astype("float16")), randn(3, 2, 5, 7, seed=1).astype("float16")
    y, dx = run(on_device(x), 0.5, on_device(dy), *combination)
    kept = y.get() != 0
    assert 0 < kept.sum() < kept.size
    np.testing.assert_array_equal(y.get(), np.where(kept, 2 * x, 0))
    np.testing.assert_array_equal(dx.get(), np.where(kept, 2 * dy, 0))
    if combination[0]:
        assert list(y.strides) == list(x.strides)


def test_gaps_and_broadcast_gradients():
    x = on_device(randn(6, 10).astype("float32"))[:, ::3]
    y, dx = run(x, 0.5, on_device(np.ones(1, "float32"))[np.newaxis].repeat(4, 1) + x * 0)
    np.testing.assert_array_equal(y.get() != 0, dx.get() != 0)
    x = mp.Tensor(x).requires_grad_()
    ops.dropout(x, 0.5).sum().backward()
    assert set(np.unique(x.grad.get())) == {0, 2}


def test_seed_and_state_repeat_the_mask():
    x = on_device(np.ones(100, "float16"))
    drawn = []
    for _ in range(2):
        mp.manual_seed(7)
        drawn.append([run(x, 0.5)[0].get() for _ in range(2)])
    np.testing.assert_array_equal(drawn[0], drawn[1])
    assert (drawn[0][0] != drawn[0][1]).any()
    state = mp.get_rng_state()
    third = run(x, 0.5)[0].get()
    mp.set_rng_state(state)
    np.testing.assert_array_equal(run(x, 0.5)[0].get(), third)


def test_the_definition_draws_the_same_numbers():
    """Element i of a contiguous array has number i of the draw, in the twin and in the definition."""
    x = on_device(np.ones(1000, "float16"))
    y = run(x, 0.3)[0].get()
    mp.manual_seed(3)
    np.testing.assert_array_equal(run(x, 0.3, forward=False)[0].get(), y)


def test_edges():
    x = np.array([np.inf, -np.inf, np.nan, 65504, 6e-8] * 40, "float16")
    y, dx = (a.get() for a in run(on_device(x), 0.5, on_device(x)))
    kept = y != 0
    assert 0 < kept.sum() < kept.size
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(y, np.where(kept, 2 * x, 0))  # what is dropped is 0, also of infinities and nan
    np.testing.assert_array_equal(dx, y)
    y, dx = (a.get() for a in run(on_device(x), 1.0, on_device(x)))
    np.testing.assert_array_equal(y, 0)
    np.testing.assert_array_equal(dx, 0)


def test_a_graph_drops_others_at_each_replay():
    import cupy

    philox.state()
    x = mp.Tensor(on_device(np.ones(200, "float16"))).requires_grad_()
    dy = on_device(np.ones(200, "float16"))
    ops.dropout(x).backward(dy)  # compiles
    stream, pool = cupy.cuda.Stream(non_blocking=True), cupy.cuda.MemoryPool()
    with stream, cupy.cuda.using_allocator(pool.malloc):  # what the graph works on stays its own
        stream.begin_capture()
        x.zero_grad()
        y = ops.dropout(x)
        y.backward(dy)
        graph = stream.end_capture()
        seen = []
        for _ in range(2):
            graph.launch(stream)
            stream.synchronize()
            seen.append((y.array.get(), x.grad.get()))
    assert (seen[0][0] != seen[1][0]).any()
    for y, dx in seen:
        np.testing.assert_array_equal(y, dx)


def test_nothing_waits_for_the_device():
    import cupy

    if not hasattr(cupy, "no_synchronisation"):
        pytest.skip("only the stand-in knows")
    x, dy = on_device(randn(9).astype("float16")), on_device(randn(9).astype("float16"))
    with cupy.no_synchronisation():
        run(x, 0.5, dy)
