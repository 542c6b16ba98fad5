"""Indexing against NumPy, and gradients in which repeated indices add up in FP32."""

from functools import partial

import numpy as np
import pytest

import tinymp as mp
from oracle import check, host, randn, rng, shared
from tinymp import backend, ops

picks = partial(check, roundings=0, grad_roundings=1)  # exact values; each gradient is one sum, rounded once

MASK = np.array([[True, False, True], [False, False, True]])
INDICES = {
    "integer": 1,
    "negative integer": (0, -1),
    "all integers": (1, 2, 3),
    "NumPy integer": np.int8(-1),
    "slice": (slice(None), slice(-2, None)),
    "step": (slice(None), slice(None, None, 2), slice(3, 0, None)),
    "empty slice": (slice(2, 1),),
    "none and dots": (None, ..., None, 0),
    "dots for nothing": (0, 1, ..., 2),
    "no index": (),
    "list": [1, 0, -2, 1],
    "empty list": [],
    "array": np.array([[0, 1], [1, 1]]),
    "middle array": (slice(None), [2, 0, 2]),
    "small integers": (slice(None), np.array([2, -1], np.int8)),
    "two arrays": ([0, 1, 0], [2, 2, 2]),
    "broadcast arrays": (np.array([[0], [1]]), np.array([0, -1])),
    "arrays apart": ([0, 1, 1], slice(1, None), [3, 0, 0]),
    "arrays apart behind an axis": (slice(None), [0, 1, 1], None, [3, 0, 0]),
    "array and slice and none": (slice(1), None, [1, 1]),
    "array after dots": (..., [3, 3, 0]),
    "mask": MASK,
    "mask of one axis": (slice(None), np.array([True, False, True])),
    "mask that selects nothing": np.zeros((2, 3, 4), bool),
    "mask and array": (np.array([True, True]), [0, 2]),
    "mask and integer": (MASK, 1),
    "true": True,
    "false": (np.False_, slice(1)),
}


@pytest.mark.parametrize("case", INDICES)
def test_getitem(case):
    index = INDICES[case]
    picks(lambda x: ops.getitem(x, index), lambda x: x[index], randn(2, 3, 4), grad_length=4)


def test_getitem_takes_integers_before_arrays():
    """As in PyTorch; NumPy moves the array's axis to the front."""
    picks(lambda x: ops.getitem(x, (0, slice(None), [1, 1])), lambda x: x[0][:, [1, 1]], randn(2, 3, 4), grad_length=2)


@pytest.mark.parametrize("index", [np.array([1, -1, 1]), np.array(1), np.array([True, False])], ids=str)
def test_getitem_with_tensors(index):
    picks(lambda x: ops.getitem(x, mp.tensor(index)), lambda x: x[index], randn(2, 3), grad_length=3)
    picks(lambda x: ops.getitem(x, (mp.tensor(index), 0)), lambda x: x[index, 0], randn(2, 3), grad_length=3)


@pytest.mark.parametrize("made", [mp.tensor, mp.nn.Parameter], ids=["Tensor", "Parameter"])
@pytest.mark.parametrize("case", [*INDICES, "integer before an array", "integer Tensor", "mask Tensor"])
def test_setitem_writes_what_getitem_reads(case, made):
    index = {
        "integer before an array": (0, slice(None), [1, 2]),
        "integer Tensor": (slice(None), mp.tensor([2, 0])),
        "mask Tensor": mp.tensor(MASK),
    }.get(case) if case not in INDICES else INDICES[case]  # fmt: skip
    x = mp.tensor(randn(2, 3, 4).astype("f4"), requires_grad=True)
    y = x[index]
    y.backward(np.ones(y.shape, "f4"))
    target = made(np.zeros((2, 3, 4), "f4"))
    with mp.no_grad():
        target[index] = y
    np.testing.assert_array_equal(target.numpy(), np.where(host(x.grad) > 0, x.numpy(), 0))
    with mp.no_grad():
        target[index] = 7
    np.testing.assert_array_equal(target.numpy(), np.where(host(x.grad) > 0, 7, 0))


def test_setitem_broadcasts():
    x = mp.tensor(np.zeros((2, 3, 4), "f4"))
    x[:, [0, 2]] = np.arange(4)
    x[0, 1] = [[5.0]]
    x[1, 1] = mp.tensor(np.float64(6))
    expected = np.zeros((2, 3, 4), "f4")
    expected[:, [0, 2]], expected[0, 1], expected[1, 1] = np.arange(4), 5, 6
    np.testing.assert_array_equal(x.numpy(), expected)


def test_slices_bounded_by_tensors():
    k = mp.tensor(2)
    picks(lambda x: ops.getitem(x, (slice(k), slice(None, None, k))), lambda x: x[:2, ::2], randn(4, 5), grad_length=1)


def test_basic_indices_are_views_and_others_copies():
    x = mp.tensor(randn(2, 3))
    for index, view in [(0, True), ((1, 2), True), ((..., None, slice(1)), True), ([0], False), (x.array > 0, False)]:
        assert shared(ops.getitem(x, index).array, x.array) == view


def test_rows_of_a_tensor_without_gradient():
    x = mp.tensor(np.arange(6).reshape(2, 3))
    assert [row.tolist() for row in (ops.getitem(x, i) for i in range(2))] == [[0, 1, 2], [3, 4, 5]]


@pytest.mark.parametrize("dim", [0, 1, -1])
@pytest.mark.parametrize("index", [[2, 0, 2, 2], [], [1]])
def test_index_select(dim, index):
    index = np.array(index, np.int64)
    picks(lambda x, i: ops.index_select(x, dim, i), lambda x, i: x.take(i, dim), randn(3, 4, 3), index, grad_length=3)


def test_index_select_with_an_index_without_axes():
    picks(lambda x, i: ops.index_select(x, 1, i), lambda x, i: x[:, 1:2], randn(3, 4), np.array(1))


@pytest.mark.parametrize(
    ("dim", "shape", "index_shape"),
    [(0, (3, 4), (5, 4)), (1, (3, 4), (2, 6)), (-1, (2, 3, 4), (1, 3, 2)), (0, (5,), (0,))],
)
def test_gather(dim, shape, index_shape):
    index = rng(2).integers(0, shape[dim], index_shape)
    kept = tuple(slice(None) if d == dim % len(shape) else slice(n) for d, n in enumerate(index_shape))
    picks(lambda x, i: ops.gather(x, dim, i), lambda x, i: np.take_along_axis(x[kept], i, dim), randn(*shape), index,
          grad_length=index_shape[dim])  # fmt: skip


ZEROS = np.zeros(3000, np.int64)


@pytest.mark.parametrize(
    "pick",
    [
        lambda x: ops.getitem(x, ZEROS),
        lambda x: ops.getitem(x, (ZEROS, ZEROS)),
        lambda x: ops.index_select(x, 0, mp.tensor(ZEROS)),
        lambda x: ops.gather(x, 0, mp.tensor(ZEROS[:, None])),
    ],
)
def test_repeated_indices_add_up_in_fp32(pick):
    x = mp.tensor(np.ones((2, 1), np.float16), requires_grad=True)
    y = pick(x)
    y.backward(np.ones(y.shape, np.float16))
    np.testing.assert_array_equal(host(x.grad), np.array([[3000], [0]], np.float16))  # FP16 sums of ones stall at 2048


@pytest.mark.parametrize("case", ["list", "two arrays", "mask"])
def test_special_values(case):
    bits = np.resize(np.array([0x8000, 0x0001, 0x7BFF, 0x7C00, 0xFC00, 0x7E01, 0xFE00], np.uint16), (2, 3, 4))
    y = ops.getitem(mp.tensor(bits.view(np.float16)), INDICES[case])
    np.testing.assert_array_equal(y.numpy().view(np.uint16), bits[INDICES[case]])


@pytest.mark.parametrize(
    "pick",
    [
        lambda x, i: ops.gather(x, 0, i[:, None]),
        lambda x, i: ops.index_select(x, 0, i),
        lambda x, i: ops.index_select(x, 0, i[0]),
    ],
)
def test_an_index_that_changes_before_backward(pick):
    x, i = mp.tensor(randn(2, 3).astype("f4"), requires_grad=True), mp.tensor([0, 1])
    y = pick(x, i)
    i[0] = 1
    with pytest.raises(RuntimeError, match="a tensor that backward needs was changed in place"):
        y.backward(np.ones(y.shape, "f4"))


# ---------------------------------------------------------------------------------------------------- the primitive


@pytest.mark.parametrize("shape", [(), (1,), (3,), (2, 3), (0,)])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_scatter_add_rows_adds_in_order_of_appearance(shape, dtype):
    index = rng(3).integers(0, 5, 200)
    rows = np.exp(4 * randn(200, *shape)).astype(dtype)
    expected = np.zeros((6, *shape), dtype)
    for i, row in zip(index, rows, strict=True):
        expected[i] += row
    np.testing.assert_array_equal(backend.cpu.scatter_add_rows(6, index, rows), expected)


def test_scatter_add_rows_with_a_narrow_index():
    rows = np.ones((2, 300), np.float32)
    got = backend.cpu.scatter_add_rows(256, np.array([255, 255], np.uint8), rows)
    np.testing.assert_array_equal(got[255], 2 * rows[0])
    assert got.sum() == 600


@pytest.mark.parametrize(
    ("f", "shape"),
    [
        (lambda x: ops.gather(x, 0, mp.tensor(0)), ()),
        (lambda x: ops.gather(x, -1, mp.tensor([0, 0])), (2,)),
        (lambda x: ops.gather(x.reshape(1), 0, mp.tensor(0)), ()),
        (lambda x: ops.index_select(x, 0, mp.tensor([0])), ()),
        (lambda x: ops.index_select(x, -1, mp.tensor(0)), ()),
    ],
)
def test_tensors_without_axes_count_as_one_element(f, shape):
    x = mp.tensor(2.5, requires_grad=True)
    y = f(x)
    assert y.shape == shape and (y.numpy() == 2.5).all()
    y.sum().backward()
    assert x.grad.shape == () and float(x.grad) == y.numel()


# --------------------------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize("write", [lambda x, v: x.__setitem__(0, v), lambda x, v: x.copy_(v.reshape(1).expand(3))])
def test_a_value_whose_gradient_would_be_lost_is_refused(write):
    """PyTorch records the change in place; here nothing is."""
    x, v = mp.tensor(np.zeros(3, "float32")), mp.tensor(2.0, requires_grad=True)
    with pytest.raises(RuntimeError, match="the value is part of a graph"):
        write(x, v)
    assert not x.numpy().any()
    with mp.no_grad():
        write(x, v)
    write(x, v.detach())
    assert x.numpy()[0] == 2


def test_what_is_computed_in_place_loses_no_gradient():
    x, v = mp.tensor(np.zeros(3, "float32")), mp.tensor(2.0, requires_grad=True)
    for change in (lambda: x.add_(v), lambda: x.masked_fill_(x == 0, v), lambda: x.sub_(other=v)):
        with pytest.raises(RuntimeError, match="part of a graph"):
            change()
    assert not x.numpy().any()
    with mp.no_grad():
        assert (x.add_(v).numpy() == 2).all()
