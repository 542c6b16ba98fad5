"""Work in blocks that stay in the cache gives what the work as a whole gives, in the same order of memory."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import tinymp as mp
from layouts import laid_out, layouts
from oracle import rng
from tinymp import ops
from tinymp.backend import cpu

pytestmark = pytest.mark.cpu


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    monkeypatch.setattr(cpu, "BLOCK", 8)


def halves(*shape, order=None):
    """FP16 values of this shape, whose axes lie in memory in `order`."""
    order = order or range(len(shape))
    x = rng(0).standard_normal([shape[i] for i in order]).astype(np.float16)
    return x.transpose(np.argsort(list(order)))


def seen(f):
    """f, and the sizes of the first arguments that it was called with."""
    sizes = []

    def spy(*arrays):
        sizes.append(arrays[0].size)
        return f(*arrays)

    return spy, sizes


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1), (1, 2, 0)])
def test_blockwise(order):
    x, y = halves(3, 5, 7, order=order), halves(3, 5, 7, order=order).copy(order="K")
    f, sizes = seen(lambda x, y: cpu.cast(x, np.dtype("f4")) * y + 1)
    z = cpu.blockwise(f, x, y)
    np.testing.assert_array_equal(z, x.astype("f4") * y + 1)
    assert z.dtype == np.float32
    assert [s // 4 for s in z.strides] == [s // 2 for s in x.strides]
    assert sizes == [8] * 13 + [1]


@pytest.mark.parametrize(
    "arrays",
    [
        (halves(4, 6), halves(1, 6)),  # broadcast
        (halves(4, 6), halves(4, 6, order=(1, 0))),  # in different orders
        (halves(4, 12)[:, ::2],),  # with gaps
        (np.broadcast_to(halves(1, 6), (4, 6)),),
        (halves(2, 4),),  # one block
        (halves(0, 6),),
    ],
)
def test_blockwise_as_a_whole(arrays):
    f, sizes = seen(lambda *arrays: sum(arrays[1:], arrays[0] * 2))
    np.testing.assert_array_equal(cpu.blockwise(f, *arrays), f(*arrays))
    assert sizes == [arrays[0].size] * 2


@pytest.mark.parametrize(("order", "axis"), [((0, 1, 2), 1), ((1, 2, 0), 1), ((0, 1, 2), 0), ((0, 1, 2), 2)])
def test_along(order, axis):
    x = halves(6, 7, 8, order=order)
    others = tuple(i for i in range(3) if i != axis)
    w = rng(1).standard_normal([n if i == axis else 1 for i, n in enumerate(x.shape)])

    def f(x, w, nothing):
        assert nothing is None
        mean = x.mean(others, "f4", keepdims=True)
        return (x - mean) * w, None, mean

    g, sizes = seen(f)
    y, nothing, mean = cpu.along(axis, g, x, w, None)
    np.testing.assert_allclose(y, f(x, w, None)[0], rtol=1e-6)
    np.testing.assert_allclose(mean, f(x, w, None)[2], rtol=1e-6)
    assert nothing is None and y.dtype == np.float64 and mean.dtype == np.float32
    assert [s // 8 for s in y.strides] == [s // 2 for s in x.strides]
    assert sizes == [x.size // x.shape[axis]] * x.shape[axis]


def test_along_as_a_whole():
    f, sizes = seen(lambda x: (x + 1,))
    for x in (halves(2, 4), halves(1, 40), halves(0, 40)):
        np.testing.assert_array_equal(cpu.along(0, f, x)[0], x + 1)
        assert sizes.pop() == x.size and not sizes


# ------------------------------------------------------------------------------ whatever strides the arrays come with


@pytest.fixture
def block(monkeypatch):
    return lambda n: monkeypatch.setattr(cpu, "BLOCK", n)


fuzz = settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@fuzz
@given(layouts(), st.integers(1, 9), st.booleans())
def test_blockwise_over_any_strides(block, layout, n, alike):
    block(n)
    x = laid_out(layout, "f2", 1)
    shape, order, *rest = layout
    y = laid_out(layout if alike else (shape, order[::-1], *rest), "f4", 2)
    z = cpu.blockwise(lambda x, y: x * y - y, x, y)
    assert z.dtype == np.float32
    np.testing.assert_array_equal(z, x * y - y)


@fuzz
@given(layouts(), st.integers(1, 9), st.data())
def test_along_over_any_strides(block, layout, n, data):
    block(n)
    x = laid_out(layout, "f4", 1)
    axis = data.draw(st.integers(0, x.ndim - 1))
    others = tuple(i for i in range(x.ndim) if i != axis)

    def f(x, w):
        return x + w, np.maximum.reduce(x, others, initial=0, keepdims=True)

    w = rng(2).standard_normal([m if i == axis else 1 for i, m in enumerate(x.shape)]).astype("f4")
    for got, expected in zip(cpu.along(axis, f, x, w), f(x, w), strict=True):
        np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("op", [ops.relu, ops.tanh, ops.gelu, ops.exp], ids=lambda op: op.__name__)
def test_the_strides_of_an_axis_of_length_1_are_arbitrary(op):
    x = rng(0).standard_normal((6, 8)).astype("f2")
    odd = mp.tensor(x).T.unsqueeze(0).requires_grad_()
    plain = mp.tensor(np.ascontiguousarray(x.T[None]), requires_grad=True)
    for t in (odd, plain):
        op(t).sum().backward()
    np.testing.assert_array_equal(op(odd).numpy(), op(plain).numpy())
    np.testing.assert_array_equal(odd.grad, plain.grad)
