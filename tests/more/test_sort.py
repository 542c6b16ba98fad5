"""sort, argsort, topk: values, places, ties, nan, and the gradient of each element."""

import numpy as np
import pytest

import tinymp as mp
from oracle import check, distinct
from tinymp import ops

NAN = float("nan")


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("dim", [0, 1, -1])
def test_sort(dim, descending):
    def oracle(x):
        return np.flip(np.sort(x, dim), dim) if descending else np.sort(x, dim)

    x = distinct(4, 5, 3)
    check(lambda x: ops.sort(x, dim, descending).values, oracle, x, roundings=0, length=-4)
    order = ops.argsort(mp.tensor(x), dim, descending).numpy()
    np.testing.assert_array_equal(np.take_along_axis(x, order, dim), oracle(x))
    assert order.dtype == np.int64


@pytest.mark.parametrize("largest", [True, False])
@pytest.mark.parametrize("k", [0, 2, 5])
def test_topk(k, largest):
    def oracle(x):
        return np.sort(x, 1)[:, ::-1][:, :k] if largest else np.sort(x, 1)[:, :k]

    check(lambda x: ops.topk(x, k, 1, largest).values, oracle, distinct(4, 5), roundings=0, length=-4)


def test_equal_elements_keep_their_order_and_nan_is_the_largest():
    x = mp.tensor(np.array([2, 1, NAN, 2, 1], "float16"))
    assert x.sort().indices.tolist() == [1, 4, 0, 3, 2]
    assert x.argsort(descending=True).tolist() == [2, 0, 3, 1, 4]
    values, indices = x.topk(2)
    assert np.isnan(values.numpy()[0]) and values.tolist()[1] == 2 and indices.tolist() == [2, 0]
    assert mp.tensor([3, 1, 2]).sort(descending=True).values.tolist() == [3, 2, 1]
    assert mp.tensor([True, False]).argsort().tolist() == [1, 0]


def test_without_axes():
    x = mp.tensor(2.5, requires_grad=True)
    values, indices = ops.sort(x)
    assert values.shape == indices.shape == () and indices.item() == 0
    (values + ops.topk(x, 1).values).backward()
    assert x.grad == 2
    assert ops.argsort(x).shape == ()


def test_refused():
    x = mp.tensor([1.0, 2.0])
    with pytest.raises(ValueError, match=r"topk: expected `k` in \[0, 2\], the length of axis 0, got 3"):
        x.topk(3)
    with pytest.raises(TypeError, match=r"topk: expected `k` to be an integer, got 1\.5"):
        x.topk(1.5)
    with pytest.raises(IndexError, match=r"sort: expected dim in \[-1, 0\]"):
        x.sort(1)
