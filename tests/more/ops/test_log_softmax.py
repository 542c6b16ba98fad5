"""log_softmax and logsumexp: exponentials and sums in FP32."""

import numpy as np
import pytest

import tinymp as mp
from oracle import check, host, randn
from tinymp import ops


@pytest.mark.parametrize(("shape", "dim"), [((7,), 0), ((3, 5), 1), ((3, 5), 0), ((2, 3, 4), -2), ((2, 1), 1)])
def test_log_softmax(shape, dim):
    check(
        lambda x: ops.log_softmax(x, dim),
        lambda x: np.log(np.exp(y := x - x.max(dim, keepdims=True)) / np.exp(y).sum(dim, keepdims=True)),
        3 * randn(*shape),
        length=12,
        grad_length=40,
    )


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_extreme_logits(dtype):
    x = mp.tensor(np.array([[65504, 0, -65504], [-np.inf, 0, 0]], dtype))
    z = ops.log_softmax(x, 1).numpy()
    lost = -np.inf if dtype == "float16" else -2 * 65504
    np.testing.assert_array_equal(z[0], np.array([0, -65504, lost], dtype))
    assert z[1, 0] == -np.inf


@pytest.mark.parametrize("size", [100, 10_000, 65_504])
def test_large_equal_logits_keep_their_gradient(size):
    """FP32 holds only 8 bits of ln 2 beside 65504: m and the sum are kept apart."""
    x = mp.tensor(np.full((1, 2), size, "float32"), requires_grad=True)
    ops.log_softmax(x, 1).backward(np.array([[1, 0]], "float32"))
    np.testing.assert_array_equal(host(x.grad), [[0.5, -0.5]])


def test_no_elements():
    for shape in [(0,), (0, 3), (3, 0)]:
        assert ops.log_softmax(mp.tensor(np.zeros(shape, "float16")), -1).shape == shape


def test_a_tensor_without_axes_has_one():
    assert [ops.log_softmax(mp.tensor(3.0), dim).item() for dim in (0, -1)] == [0, 0]


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("name", ["log_softmax", "logsumexp"])
def test_a_row_that_is_wholly_masked_is_as_in_pytorch(name, dtype):
    torch = pytest.importorskip("torch")
    x = np.array([[1, 2], [-np.inf, 3], [-np.inf, -np.inf]], dtype)
    y, e = getattr(ops, name)(mp.tensor(x), -1), getattr(torch, name)(torch.tensor(x), -1)
    np.testing.assert_allclose(host(y.array).astype("f4"), e.float().numpy(), rtol=2.0**-10)
