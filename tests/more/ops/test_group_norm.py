"""group_norm, rms_norm, instance_norm: against their formulas; weights in FP32; running statistics."""

import numpy as np
import pytest

import tinymp as mp
from oracle import check, host, randn
from tinymp import ops


def group_norm(x, w, b, groups, eps=1e-5):
    g = x.reshape(x.shape[0], groups, -1)
    y = (g - g.mean(-1, keepdims=True)) / np.sqrt(g.var(-1, keepdims=True) + eps)
    shape = (1, -1, *[1] * (x.ndim - 2))
    return y.reshape(x.shape) * w.reshape(shape) + b.reshape(shape)


@pytest.mark.parametrize("groups", [1, 2, 6])
@pytest.mark.parametrize("shape", [(3, 6, 4, 5), (2, 6, 7)])
def test_group_norm(shape, groups):
    """Each gradient is a sum over a group or over all but the channel, of terms up to max |dy| times a few."""
    n = int(np.prod(shape))
    check(
        lambda x, w, b: ops.group_norm(x, groups, w, b),
        lambda x, w, b: group_norm(x, w, b, groups),
        randn(*shape) + 0.5,
        randn(6, seed=1),
        randn(6, seed=2),
        length=n,
        grad_length=4 * n,
    )


def test_group_norm_without_weights_and_with_rows_alone():
    ones, zeros = np.ones(6), np.zeros(6)
    check(
        lambda x: ops.group_norm(x, 2, eps=0.1),
        lambda x: group_norm(x, ones, zeros, 2, 0.1),
        randn(4, 6),
        length=24,
        grad_length=96,
    )


@pytest.mark.parametrize("weighted", [True, False])
@pytest.mark.parametrize("shape", [(6,), (4, 6)])
def test_rms_norm(shape, weighted):
    axes = tuple(range(-len(shape), 0))

    def oracle(x, w=1.0):
        return x / np.sqrt((x**2).mean(axes, keepdims=True) + 1e-3) * w

    weights = [randn(*shape, seed=1)] if weighted else []
    check(
        lambda x, w=None: ops.rms_norm(x, shape, w, 1e-3), oracle, randn(3, 4, 6), *weights, length=24, grad_length=96
    )


def test_rms_norm_eps_is_that_of_the_dtype_that_computes():
    x = np.full((1, 4), 2.0**-14)
    for dtype, eps in (("float16", 2.0**-23), ("float32", 2.0**-23), ("float64", 2.0**-52)):
        expected = 2.0**-14 / np.sqrt(2.0**-28 + eps)
        np.testing.assert_allclose(ops.rms_norm(mp.tensor(x.astype(dtype)), 4).numpy(), expected, rtol=1e-3)


@pytest.mark.parametrize("op", ["group_norm", "rms_norm", "instance_norm"])
def test_weights_stay_in_fp32_beside_fp16_and_large_values_fit(op):
    x = mp.tensor((randn(2, 4, 6) * 300).astype("float16"), requires_grad=True)  # squares beyond FP16
    w = mp.tensor(np.ones(6 if op == "rms_norm" else 4, "float32"), requires_grad=True)
    y = {
        "group_norm": lambda: ops.group_norm(x, 2, w),
        "rms_norm": lambda: ops.rms_norm(x, 6, w),
        "instance_norm": lambda: ops.instance_norm(x, weight=w),
    }[op]()
    y.sum().backward()
    assert y.dtype == x.grad.dtype == "float16" and w.grad.dtype == "float32"
    assert np.isfinite(y.numpy()).all() and np.abs(y.numpy()).max() < 4


@pytest.mark.parametrize("shape", [(2, 3, 8), (2, 3, 4, 5)])
def test_instance_norm(shape):
    n = int(np.prod(shape))
    check(
        lambda x, w, b: ops.instance_norm(x, weight=w, bias=b),
        lambda x, w, b: group_norm(x, w, b, 3),
        randn(*shape) + 0.5,
        randn(3, seed=1),
        randn(3, seed=2),
        length=n,
        grad_length=4 * n,
        inherited=2,  # FP16 weights are repeated for each example, and so are their gradients stored
    )


def test_instance_norm_moves_and_uses_running_statistics():
    x = randn(4, 3, 8).astype("float32")
    mean, var = (mp.tensor(v.copy()) for v in (np.zeros(3, "float32"), np.ones(3, "float32")))
    read_before = mp.ones(3, requires_grad=True) * mean
    y = ops.instance_norm(mp.tensor(x), mean, var, momentum=0.25)
    with pytest.raises(RuntimeError, match="changed in place"):
        read_before.sum().backward()
    np.testing.assert_allclose(y.numpy(), group_norm(x, np.ones(3), np.zeros(3), 3), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(host(mean.array), 0.25 * x.mean(2).mean(0), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(host(var.array), 0.75 + 0.25 * x.var(2, ddof=1).mean(0), rtol=1e-5)
    fixed = ops.instance_norm(mp.tensor(x), mean, var, use_input_stats=False).numpy()
    m, v = (host(t.array).reshape(3, 1) for t in (mean, var))
    np.testing.assert_allclose(fixed, (x - m) / np.sqrt(v + 1e-5), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("shape", [(0, 4), (2, 4, 0), (0, 4, 3)])
def test_no_elements(shape):
    x, w, b = (mp.tensor(np.ones(s, "float32"), requires_grad=True) for s in (shape, 4, 4))
    y = ops.group_norm(x, 2, w, b)
    y.sum().backward()
    assert y.shape == x.grad.shape == shape
    assert host(w.grad).tolist() == host(b.grad).tolist() == [0] * 4
