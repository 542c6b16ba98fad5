"""view, contiguous, repeat, unbind, tril, triu, clip, scatter and index_add."""

import numpy as np
import pytest

import tinymp as mp
from oracle import check, distinct, host, randn
from tinymp import ops

EXACT = {"roundings": 0, "length": -4}


@pytest.mark.cpu  # the memory of two copies on the host
def test_view_shares_memory_or_raises():
    x = mp.tensor(randn(3, 4))
    for y in (x.view(2, 6), x.view((-1,)), x.view(12), x.T.view(4, 3), x[1:].view(8)):
        assert np.shares_memory(y.numpy(), x.numpy())
    check(lambda x: x.view(4, -1), lambda x: x.reshape(4, 3), randn(3, 4), **EXACT)
    with pytest.raises(ValueError, match=r"view: a tensor of shape \(4, 3\) .* no view of shape \(12,\); use reshape"):
        x.T.view(12)
    assert mp.tensor(np.zeros((0, 3))).view(3, 0).shape == (3, 0)


def test_contiguous():
    x = mp.tensor(randn(3, 4))
    assert x.contiguous() is x
    y = x.T.contiguous()
    assert y.array.flags.c_contiguous and not np.shares_memory(y.numpy(), x.numpy())
    assert y.view(12).tolist() == x.numpy().T.reshape(-1).tolist()
    check(lambda x: x.T.contiguous(), np.transpose, randn(3, 4), **EXACT)


@pytest.mark.parametrize("times", [(2, 3), (1, 1), (2, 1, 3), (0, 2), (3, 2, 2, 1)])
def test_repeat(times):
    check(lambda x: x.repeat(*times), lambda x: np.tile(x, times), randn(2, 3), grad_length=36, **EXACT)
    check(lambda x: x.repeat(times), lambda x: np.tile(x, times), randn(2, 3), grad_length=36, **EXACT)


def test_repeat_of_no_axes():
    check(lambda x: x.repeat(3), lambda x: np.tile(x, 3), randn(), grad_length=3, **EXACT)
    assert mp.tensor(1.0).repeat().shape == ()


@pytest.mark.parametrize("dim", [0, 1, -1])
def test_unbind(dim):
    x = randn(2, 3, 4)
    parts = mp.tensor(x).unbind(dim)
    assert isinstance(parts, tuple) and len(parts) == x.shape[dim]
    for i, part in enumerate(parts):
        np.testing.assert_array_equal(part.numpy(), np.take(x, i, dim))
    check(lambda x: x.unbind(dim)[1] * 2, lambda x: np.take(x, 1, dim) * 2, x)
    assert ops.unbind(mp.tensor(np.zeros((2, 0))), 1) == ()


@pytest.mark.parametrize("diagonal", [-5, -1, 0, 2, 9])
@pytest.mark.parametrize("shape", [(3, 4), (2, 4, 3), (0, 3)])
@pytest.mark.parametrize("name", ["tril", "triu"])
def test_triangles(name, shape, diagonal):
    def oracle(x):
        return getattr(np, name)(x, diagonal) if x.size else x

    check(lambda x: getattr(ops, name)(x, diagonal), oracle, randn(*shape), **EXACT)
    for dtype in ("bool", "int32"):
        y = getattr(mp.tensor(np.ones((3, 4), dtype)), name)(diagonal)
        np.testing.assert_array_equal(y.numpy(), getattr(np, name)(np.ones((3, 4), dtype), diagonal), strict=True)


def test_clip():
    check(lambda x: x.clip(-0.25, max=0.5), lambda x: np.clip(x, -0.25, 0.5), distinct(4, 5))


INDEX = np.array([[2, 0, 3], [1, 3, 0]])


def put(x, src, index=INDEX, dim=1):
    y = np.array(x)
    np.put_along_axis(y, index, src, dim)
    return y


def test_scatter():
    check(lambda x, s: x.scatter(1, mp.tensor(INDEX), s), put, randn(2, 5), randn(2, 3, seed=1), **EXACT)
    check(lambda x: x.scatter(1, mp.tensor(INDEX), 0.5), lambda x: put(x, 0.5), randn(2, 5), **EXACT)
    check(
        lambda x, s: x.scatter(0, mp.tensor(INDEX.T), s),
        lambda x, s: put(x, s, INDEX.T, 0),
        randn(5, 2),
        randn(3, 2, seed=1),
        **EXACT,
    )
    assert mp.tensor([1, 2, 3]).scatter(0, mp.tensor([2]), value=9).tolist() == [1, 2, 9]


def test_scatter_without_axes():
    x, s = mp.tensor(2.0, requires_grad=True), mp.tensor(3.0, requires_grad=True)
    y = x.scatter(0, mp.tensor(0), s)
    y.backward()
    assert (y.item(), y.shape, x.grad, s.grad) == (3, (), 0, 1)
    assert x.scatter(-1, mp.tensor(0), 7.0).item() == 7


ROWS = np.array([0, 3, 3, 1, 0])


def added(x, src, axis=0, alpha=1.0):
    y, rows = np.moveaxis(x.copy(), axis, 0), np.moveaxis(src, axis, 0)
    np.add.at(y, ROWS, alpha * rows)
    return np.moveaxis(y, 0, axis)


def test_index_add():
    for axis, shapes in ((0, ((4, 3), (5, 3))), (-1, ((2, 4), (2, 5)))):
        check(
            lambda x, s, axis=axis: ops.index_add(x, axis, mp.tensor(ROWS), s, alpha=-0.5),
            lambda x, s, axis=axis: added(x, s, axis, -0.5),
            randn(*shapes[0]),
            randn(*shapes[1], seed=1),
            length=4,
        )


def test_index_add_as_in_pytorch():
    torch = pytest.importorskip("torch")
    values, more = np.arange(12.0).reshape(4, 3), np.arange(15.0).reshape(5, 3) - 7
    x, s = mp.tensor(values, requires_grad=True), mp.tensor(more, requires_grad=True)
    t, u = torch.tensor(values, requires_grad=True), torch.tensor(more, requires_grad=True)
    y, z = ops.index_add(x, 0, mp.tensor(ROWS), s, alpha=3), torch.index_add(t, 0, torch.tensor(ROWS), u, alpha=3)
    y.backward(values), z.backward(torch.tensor(values))
    for ours, theirs in ((y, z), (x.grad, t.grad), (s.grad, u.grad)):
        assert host(ours).tolist() == theirs.tolist()


def test_index_add_rounds_once():
    ones = mp.ones(4096, dtype="float16")  # added one by one in FP16 they end at 2048
    y = ops.index_add(mp.zeros(2, dtype="float16"), 0, mp.tensor(np.ones(4096, int)), ones)
    assert y.tolist() == [0, 4096]


def test_scatter_reads_as_much_of_src_as_the_index_is_large():
    check(
        lambda x, s: x.scatter(1, mp.tensor(INDEX[:1]), s),
        lambda x, s: np.concatenate([put(x[:1], s[:1, :3], INDEX[:1]), x[1:]]),
        randn(2, 5),
        randn(2, 4, seed=1),
        **EXACT,
    )


def test_conversions():
    x = mp.tensor([-1.7, 0.0, 2.5])
    assert x.long().dtype == "int64" and x.long().tolist() == [-1, 0, 2]
    assert x.int().dtype == "int32" and x.bool().tolist() == [True, False, True]
    assert x.cpu().device == "cpu"
    with pytest.raises(TypeError, match="cuda: expected one GPU and no `device`, got tensor"):
        x.cuda(x)


class float_dtype:  # what torch.float16 looks like from outside
    def __init__(self, name):
        self.name = name

    def __repr__(self):
        return f"torch.{self.name}"


def test_dtypes_of_pytorch_are_understood():
    half = float_dtype("float16")
    assert mp.tensor([1.0]).to(half).dtype == "float16"
    assert mp.tensor([1.0], dtype=half).dtype == ops.zeros(2, dtype=half).dtype == np.float16
    for target in (float_dtype("float8_e5m2"), [], object, complex):
        with pytest.raises(TypeError, match=r"to: expected a device .* or a dtype \(one of float16, .*\)") as raised:
            mp.tensor([1.0]).to(target)
        assert str(raised.value).endswith(f", got {target!r}")
    with pytest.raises(TypeError, match=r"zeros: expected a dtype .* got torch\.float8_e5m2"):
        ops.zeros(2, dtype=float_dtype("float8_e5m2"))
