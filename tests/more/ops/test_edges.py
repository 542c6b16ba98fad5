"""Ops leave the range of a dtype, meet zeros, infinities and NaN, or differ from PyTorch on purpose."""

import math

import numpy as np
import pytest

import tinymp as mp
from oracle import host, randn
from tinymp import ops

torch = pytest.importorskip("torch")
INF, NAN = float("inf"), float("nan")


def leaf(x, dtype="float32"):
    return mp.tensor(np.array(x, dtype), requires_grad=True)


# ---- arithmetic ----


def test_gradients_at_0_are_finite():
    x, y = leaf([0]), leaf([0])
    ops.atan2(y, x).sum().backward()
    assert x.grad.tolist() == y.grad.tolist() == [0]
    x, w = leaf([0.0, INF, -2.0]), leaf([0.25])
    ops.prelu(x, w).sum().backward()
    assert host(x.grad).tolist() == [0.25, 1, 0.25] and host(w.grad).tolist() == [-2]
    for p in (1, 2, 3, INF):
        x = leaf([[0.0, 0.0], [3.0, 0.0]], "float16")
        x.norm(p, 1).sum().backward()
        assert host(x.grad).tolist() == [[0, 0], [1, 0]]


def test_what_counts_nothing_is_not_read():
    """`input` of addmm with beta = 0, as in PyTorch; targets of 0; the padding row of a table."""
    a, b = randn(4, 6), randn(6, 4)
    assert ops.addmm(mp.tensor(np.array([NAN])), mp.tensor(a), mp.tensor(b), beta=0).tolist() == (a @ b).tolist()
    x, t = leaf([[-1.0, -INF]]), leaf([[1.0, 0.0]])
    loss = ops.kl_div(x, t, reduction="sum")
    loss.backward()
    assert loss.item() == 1 and host(x.grad).tolist() == [[-1, 0]] and np.isfinite(host(t.grad)).all()
    table, f = mp.tensor(np.array([[1, 2], [NAN, INF], [3, 4]])), leaf(np.ones((1, 3)), "float64")
    y = ops.embedding_bag(mp.tensor([[0, 1, 2]]), table, mode="sum", per_sample_weights=f, padding_idx=1)
    y.sum().backward()
    assert (y.tolist(), host(f.grad).tolist()) == ([[4, 6]], [[3, 0, 7]])


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_erf_keeps_its_digits_near_0_and_at_the_seam(dtype):
    x = np.concatenate([np.geomspace(1e-30, 6, 2000), [0.5, np.nextafter(0.5, 0), np.nextafter(0.5, 1)]]).astype(dtype)
    expected = np.array([math.erf(v) for v in x.astype("float64")])
    # 7 units of erfc, which is below erf from 1/2 on, and the rounding of 1 - erfc
    np.testing.assert_allclose(host(ops.erf(mp.tensor(x))), expected, rtol=(7 + 1) * np.finfo(dtype).eps)
    assert (host(ops.erf(mp.tensor(-x))) == -host(ops.erf(mp.tensor(x)))).all()


# ---- range: what is kept apart or wide ----


@pytest.mark.parametrize("size", [1e-30, 1e-10, 1, 1e18, 1e30])
@pytest.mark.parametrize("p", [2, 3, 4.5])
def test_norms_of_small_and_large_values(p, size):
    """y of `normalize` does not depend on the size of x, and dx is inversely proportional to it."""
    x, dy = randn(1, 5), randn(1, 5, seed=1)
    n = (np.abs(x) ** p).sum() ** (1 / p)
    t, u = leaf(x * size), leaf(x * size)
    y, z = t.norm(p), ops.normalize(u, p)
    y.backward()
    z.backward(dy.astype("float32"))
    slope = np.sign(x) * np.abs(x / n) ** (p - 1)
    np.testing.assert_allclose(y.item(), n * size, rtol=1e-6)
    np.testing.assert_allclose(host(t.grad), slope, rtol=1e-5)
    if size > 1e-12:  # eps of normalize
        np.testing.assert_allclose(z.detach().numpy(), x / n, rtol=1e-5)
        np.testing.assert_allclose(host(u.grad) * size, (dy - slope * (dy * x / n).sum()) / n, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("op", ["group_norm", "rms_norm", "instance_norm"])
def test_weights_of_norms_stay_fp32_beside_fp16_and_large_values_fit(op):
    x = leaf(randn(2, 4, 6) * 300, "float16")  # squares beyond FP16
    w = leaf(np.ones(6 if op == "rms_norm" else 4))
    y = {
        "group_norm": lambda: ops.group_norm(x, 2, w),
        "rms_norm": lambda: ops.rms_norm(x, 6, w),
        "instance_norm": lambda: ops.instance_norm(x, weight=w),
    }[op]()
    y.sum().backward()
    assert y.dtype == x.grad.dtype == "float16" and w.grad.dtype == "float32"
    assert np.isfinite(y.numpy()).all() and np.abs(y.numpy()).max() < 4


def test_rms_norm_eps_is_that_of_the_dtype_that_computes():
    x = np.full((1, 4), 2.0**-14)
    for dtype, eps in (("float16", 2.0**-23), ("float32", 2.0**-23), ("float64", 2.0**-52)):
        expected = 2.0**-14 / np.sqrt(2.0**-28 + eps)
        np.testing.assert_allclose(ops.rms_norm(mp.tensor(x.astype(dtype)), 4).numpy(), expected, rtol=1e-3)


def test_instance_norm_moves_and_uses_running_statistics():
    x = randn(4, 3, 8).astype("float32")
    ours, theirs = ([make(v) for v in (np.zeros(3, "f4"), np.ones(3, "f4"))] for make in (mp.tensor, torch.tensor))
    read_before = mp.ones(3, requires_grad=True) * ours[0]
    for moving in (True, False):
        y = ops.instance_norm(mp.tensor(x), *ours, use_input_stats=moving, momentum=0.25)
        z = torch.nn.functional.instance_norm(torch.tensor(x), *theirs, use_input_stats=moving, momentum=0.25)
        for a, b in zip((y, *ours), (z, *theirs)):
            np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-4, atol=1e-5)
    with pytest.raises(RuntimeError, match="changed in place"):
        read_before.sum().backward()


def test_log_softmax_of_extreme_logits():
    for dtype, lost in (("float16", -INF), ("float32", -2 * 65504)):
        z = ops.log_softmax(mp.tensor(np.array([[65504, 0, -65504], [-INF, 0, 0]], dtype)), 1).numpy()
        np.testing.assert_array_equal(z[0], np.array([0, -65504, lost], dtype))
        assert z[1, 0] == -INF
    for size in (100, 65_504):  # FP32 holds only 8 bits of ln 2 beside 65504: m and the sum are kept apart
        x = leaf(np.full((1, 2), size))
        ops.log_softmax(x, 1).backward(np.array([[1, 0]], "float32"))
        np.testing.assert_array_equal(host(x.grad), [[0.5, -0.5]])
    masked = np.array([[1, 2], [-INF, 3], [-INF, -INF]], "float32")
    for name in ("log_softmax", "logsumexp"):
        y, e = getattr(ops, name)(mp.tensor(masked), -1), getattr(torch, name)(torch.tensor(masked), -1)
        np.testing.assert_allclose(y.numpy(), e.numpy(), rtol=2.0**-20)


def test_products_with_zeros_and_beyond_the_range_on_the_way():
    x = leaf([[2.0, 0.0, 3.0], [0.0, 0.0, 5.0], [1.0, 2.0, 4.0]], "float16")
    x.prod(1).sum().backward()
    assert host(x.grad).tolist() == [[0, 6, 0], [0, 0, 0], [8, 4, 2]]
    values = np.array([[2.0, 0.0, 3.0, -1.5], [0.0, 0.0, 5.0, 2.0]], "float32")
    x, t = leaf(values), torch.tensor(values, requires_grad=True)
    ops.cumprod(x, 1).backward(values)  # all are exact
    torch.cumprod(t, 1).backward(torch.tensor(values))
    assert host(x.grad).tolist() == t.grad.tolist()
    large = np.array([300.0, 300.0, 1e-3, 1e-3], "float16")
    assert mp.tensor(large).prod().item() == np.float16(np.prod(large.astype("float64")))
    assert ops.prod(mp.tensor([2, 3, 2**33])).item() == 6 * 2**33


# ---- rows ----


def test_sums_of_rows_are_rounded_once():
    ones = mp.ones(4096, dtype="float16")  # added one by one in FP16 they end at 2048
    y = ops.index_add(mp.zeros(2, dtype="float16"), 0, mp.tensor(np.ones(4096, int)), ones)
    assert y.tolist() == [0, 4096]
    y = ops.scatter_add(mp.zeros(1, 2, dtype="float16"), 1, mp.tensor(np.ones((1, 4096), int)), ones[None])
    assert y.tolist() == [[0, 4096]]
    w = leaf(np.full((2, 1), 60000.0), "float16")
    y = ops.embedding_bag(mp.tensor([[0, 1, 1, 1]]), w)  # a sum on the way to a mean may leave FP16
    y.sum().backward()
    assert y.tolist() == [[60000]] and host(w.grad).tolist() == [[0.25], [0.75]]


def test_equal_elements_keep_their_order_and_nan_is_the_largest():
    x = mp.tensor(np.array([2, 1, NAN, 2, 1], "float16"))
    assert x.sort().indices.tolist() == [1, 4, 0, 3, 2]
    assert x.argsort(descending=True).tolist() == [2, 0, 3, 1, 4]
    assert x.topk(2).indices.tolist() == [2, 0]
    x = leaf(np.ones((1, 1, 3, 3)))
    ops.adaptive_max_pool2d(x, 2).sum().backward()  # and the first of equal maxima gets the gradient
    assert x.grad[0, 0].tolist() == [[1, 1, 0], [1, 1, 0], [0, 0, 0]]
