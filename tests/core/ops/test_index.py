"""Indexing against NumPy, and gradients in which repeated indices add up in FP32."""

from functools import partial

import numpy as np
import pytest

import tinymp as mp
from oracle import check, host, randn
from tinymp import ops

picks = partial(check, roundings=0, grad_roundings=1)  # exact values; each gradient is one sum, rounded once

MASK = np.array([[True, False, True], [False, False, True]])
INDICES = {
    "negative integer": (0, -1),
    "all integers": (1, 2, 3),
    "NumPy integer": np.int8(-1),
    "step": (slice(None), slice(-1, None, 2), slice(3, 0, None)),
    "empty slice": (slice(2, 1),),
    "none and dots": (None, ..., None, 0),
    "dots for nothing": (0, 1, ..., 2),
    "no index": (),
    "list": [1, 0, -2, 1],
    "empty list": [],
    "small integers": (slice(None), np.array([2, -1], np.int8)),
    "two arrays": ([0, 1, 0], [2, 2, 2]),
    "broadcast arrays": (np.array([[0], [1]]), np.array([0, -1])),
    "arrays apart": ([0, 1, 1], slice(1, None), [3, 0, 0]),
    "arrays apart behind an axis": (slice(None), [0, 1, 1], None, [3, 0, 0]),
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


def test_getitem_takes_integers_before_arrays_and_tensors_as_bounds():
    """As in PyTorch; NumPy moves the array's axis to the front."""
    picks(lambda x: ops.getitem(x, (0, slice(None), [1, 1])), lambda x: x[0][:, [1, 1]], randn(2, 3, 4), grad_length=2)
    picks(lambda x: ops.getitem(x, slice(mp.tensor(2))), lambda x: x[:2], randn(4, 5), grad_length=1)


@pytest.mark.parametrize("made", [mp.tensor, mp.nn.Parameter], ids=["Tensor", "Parameter"])
@pytest.mark.parametrize("case", [*INDICES, "integer before an array", "mask Tensor"])
def test_setitem_writes_what_getitem_reads(case, made):
    more = {"integer before an array": (0, slice(None), [1, 2]), "mask Tensor": mp.tensor(MASK)}
    index = more[case] if case in more else INDICES[case]
    x = mp.tensor(randn(2, 3, 4).astype("f4"), requires_grad=True)
    y = x[index]
    y.backward(np.ones(y.shape, "f4"))
    target = made(np.zeros((2, 3, 4), "f4"))
    for value, written in ((y, x.numpy()), (7, 7)):
        with mp.no_grad():
            target[index] = value
        np.testing.assert_array_equal(target.numpy(), np.where(host(x.grad) > 0, written, 0))


ZEROS = np.zeros(3000, np.int64)


@pytest.mark.parametrize("index", [ZEROS, (ZEROS, ZEROS)], ids=["one array", "two"])
def test_repeated_indices_add_up_in_fp32(index):
    x = mp.tensor(np.ones((2, 1), np.float16), requires_grad=True)
    y = ops.getitem(x, index)
    y.backward(np.ones(y.shape, np.float16))
    np.testing.assert_array_equal(host(x.grad), np.array([[3000], [0]], np.float16))  # FP16 sums of ones stall at 2048


@pytest.mark.parametrize(
    "write", [lambda x, v: x.__setitem__(0, v), lambda x, v: x.copy_(v.expand(3)), lambda x, v: x.add_(v)]
)
def test_a_value_whose_gradient_would_be_lost_is_refused(write):
    """PyTorch records the change in place; here nothing is."""
    x, v = mp.tensor(np.zeros(3, "float32")), mp.tensor([2.0], requires_grad=True)
    with pytest.raises(RuntimeError, match="part of a graph"):
        write(x, v)
    assert not x.numpy().any()
    write(x, v.detach())
    assert x.numpy()[0] == 2
