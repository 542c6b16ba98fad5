"""softmax: exponentials and sums in FP32."""

import numpy as np
import pytest

import tinymp as mp
from oracle import check, host, randn
from tinymp import ops


def softmax(x, dim):
    e = np.exp(x - x.max(dim, keepdims=True))
    return e / e.sum(dim, keepdims=True)


@pytest.mark.parametrize(("shape", "dim"), [((7,), 0), ((3, 5), 1), ((3, 5), 0), ((2, 3, 4), -2), ((2, 1), 1)])
def test_softmax(shape, dim):
    """Backward reads the stored y twice, and both terms of dx may cancel: each is below max |dy| y."""
    check(
        lambda x: ops.softmax(x, dim),
        lambda x: softmax(x, dim),
        3 * randn(*shape),
        length=12,
        grad_length=40,
        inherited=8,
    )


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_extreme_logits(dtype):
    x = mp.tensor(np.array([[65504, 0, -65504], [-np.inf, 0, 0], [np.inf, 0, 0], [np.nan, 0, 0]], dtype))
    y = ops.softmax(x, 1).numpy()
    np.testing.assert_array_equal(y[:2], np.array([[1, 0, 0], [0, 0.5, 0.5]], dtype))
    assert np.isnan(y[2:]).any(1).all()  # inf / inf and nan are not hidden


def test_no_elements():
    for shape in [(0,), (0, 3), (3, 0)]:
        assert ops.softmax(mp.tensor(np.zeros(shape, "float16")), -1).shape == shape


def test_long_rows_sum_in_fp32():
    """50 000 equal logits: an FP16 sum of exponentials would stall at 2048."""
    y = ops.softmax(mp.tensor(np.zeros((1, 50_000), "float16")), 1).numpy()
    np.testing.assert_array_equal(y, np.float16(1 / 50_000))


def test_a_tensor_without_axes_has_one():
    assert [ops.softmax(mp.tensor(3.0), dim).item() for dim in (0, -1)] == [1, 1]


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_a_row_that_is_wholly_masked_is_as_in_pytorch(dtype):
    """NaN for the softmax: no probabilities add up to 1 there."""
    torch = pytest.importorskip("torch")
    x = np.array([[1, 2], [-np.inf, 3], [-np.inf, -np.inf]], dtype)
    y, e = ops.softmax(mp.tensor(x), -1), torch.softmax(torch.tensor(x), -1)
    np.testing.assert_allclose(host(y.array).astype("f4"), e.float().numpy(), rtol=2.0**-10)
