"""The bytes and operations of a step: by hand for small ones, and the tables of docs/gpu.md have not drifted."""

from collections import Counter
from functools import partial

import numpy as np
import pytest

import tinymp as mp
from benchmarks import models, roofline
from benchmarks.machine import device
from tinymp import backend, ops
from tinymp.audit import meta
from tinymp.gpu import checks

pytestmark = [
    pytest.mark.cpu,
    pytest.mark.skipif("config.getoption('--backend') == 'gpu'", reason="walks on arrays that are none of a GPU"),
]


def tensor(*shape):
    return mp.Tensor(meta.empty(shape, "float16"), requires_grad=True)


def meta_float(*shape):
    return mp.Tensor(meta.empty(shape, "float32"))


def test_page_has_not_drifted():
    page = roofline.PAGE.read_text(encoding="utf-8")
    assert roofline.text() in page, "run: python -m benchmarks.roofline"


def test_a_kernel_by_hand():
    """softmax of n FP16 numbers: forward reads x and writes y; backward reads y and dy and writes dx."""
    with roofline.walking("90") as walk:
        x = tensor(1000, 8)
        ops.softmax(x, -1).backward(meta.empty(x.shape, "float16"))
    forward, backward = walk.work["softmax_rows"], walk.work["softmax_rows_backward"]
    assert (forward.launches, forward.read, forward.written, forward.operations) == (1, 16000, 16000, 0)
    assert (backward.launches, backward.read, backward.written) == (1, 32000, 16000)
    on = roofline.Hardware("", "90", bandwidth=32e3, tensor_cores=1.0)
    assert forward.seconds(on) == pytest.approx(1)
    assert forward.seconds(on, roofline.Efficiency(0.5, 1, 0.25)) == pytest.approx(2.25)
    assert forward.bound(on) == "memory"


@pytest.mark.parametrize("capability", ["90", "70"])
def test_products_by_hand(capability):
    """A convolution and its two gradients have as many operations each, and so has a product; on any GPU."""
    macs = 32 * 16 * 9 * 24 * 6 * 6
    with roofline.walking(capability) as walk:
        y = ops.conv2d(tensor(24, 16, 6, 6), tensor(32, 16, 3, 3), padding=1)
        y.backward(meta.empty(y.shape, "float16"))
    assert sum(work.operations for work in walk.work.values()) == 3 * 2 * macs
    assert ("images_to_columns" in walk.work) == (capability == "70")
    with roofline.walking(capability) as walk, mp.no_grad():
        ops.matmul(tensor(40, 64), tensor(64, 24))
    product = walk.work["cuBLAS"]
    assert (product.read, product.written) == (2 * (40 * 64 + 64 * 24), 2 * 40 * 24)
    assert product.operations == 2 * 40 * 64 * 24
    assert product.bound(roofline.Hardware("", "90", 1e12, 1e3)) == "Tensor Cores"


@pytest.mark.parametrize("causal", [False, True])
def test_attention_by_hand(causal):
    """Nothing else is launched, and nothing with an element for each pair of a query and a key is written or read."""
    b, h, n, keys, e, ev = 2, 3, 1000, 1500, 64, 32
    with roofline.walking("90") as walk:
        q, k, v = tensor(b, h, n, e), tensor(b, h, keys, e), tensor(b, h, keys, ev)
        y = ops.scaled_dot_product_attention(q, k, v, is_causal=causal)
        y.backward(meta.empty((b, n, h, ev), "float16").swapaxes(1, 2))  # as it comes from joined heads
    row, pairs = b * h * n, b * h * (n * (n + 1) // 2 if causal else n * keys)
    in_q, in_k, in_v, in_y, statistic = 2 * row * e, 2 * b * h * keys * e, 2 * b * h * keys * ev, 2 * row * ev, 4 * row
    found = {name: (w.launches, w.read, w.written, w.operations) for name, w in walk.work.items()}
    read = in_q + in_k + in_v
    assert found == {
        "attention_64": (1, read, in_y + statistic, 2 * pairs * (2 * e + ev)),
        "attention_queries_64": (1, read + in_y + statistic, in_q + 2 * statistic, 2 * pairs * (3 * e + 2 * ev)),
        "attention_keys_64": (1, read + in_y + 3 * statistic, in_k + in_v, 2 * pairs * (2 * e + 2 * ev)),
    }


def test_an_operation_of_cupy_is_counted():
    with roofline.walking("90") as walk:
        backend.gpu.xp.sort(meta.empty((40, 3), "float16"))
        meta.empty((10, 10), "float32") + meta.empty((10, 1), "float32")
    assert (walk.work["CuPy: sort"].read, walk.work["CuPy: sort"].written) == (240, 240)
    assert (walk.work["CuPy: add"].read, walk.work["CuPy: add"].written) == (440, 400)


@pytest.mark.parametrize("fast", [True, False])
def test_the_walk_launches_what_a_step_launches(fast):
    """The same step on the stand-in for a GPU: the same kernels, as often, and as many products by cuBLAS."""
    import cuda_on_cpu

    if why := cuda_on_cpu.problem():
        pytest.skip(f"CUDA kernels cannot run on this CPU: {why}")
    network, shape = partial(models.resnet, blocks=1, width=2), (2, 3, 4, 4)
    walked = roofline.step_work(network, shape, "90", fast)
    with device("cuda-on-cpu", fast):
        from cupy_backends.cuda.libs import cublas

        images = mp.Tensor(np.random.default_rng(0).standard_normal(shape).astype("float16")).to("gpu")
        step = models.momentum_step(mp.MIXED.cast(network(mp.nn)), mp.MIXED)
        for _ in range(2):
            backend.gpu.xp.launched.clear()
            cublas.calls.clear()
            step(images, mp.Tensor(np.arange(2)).to("gpu"))
        expected = Counter(backend.gpu.xp.launched)
        products = len(cublas.calls)
    assert {name: w.launches for name, w in walked.items() if ":" not in name and name != "cuBLAS"} == expected
    assert walked["cuBLAS"].launches == products > 0


def test_the_base_by_hand():
    """softmax by the base, and what the host takes; a sum is one operation of CuPy's; a batch that shares an operand
    reads it once.
    """
    with roofline.walking("90", fast=False) as walk:
        ops.softmax(tensor(1000, 8), -1).backward(meta.empty((1000, 8), "float16"))
        ops.sum(meta_float(40, 3), 1)
        ops.matmul(meta_float(5, 4, 6), meta_float(6, 2))
    forward, backward = walk.work["softmax_rows"], walk.work["softmax_rows_backward"]
    assert (forward.launches, forward.read, forward.written) == (1, 16000, 16000)
    assert (backward.launches, backward.read, backward.written) == (1, 32000, 16000)
    assert "CuPy: sum" not in walk.work and walk.work["CuPy: add"].launches == 1
    assert walk.work["cuBLAS"].read == 4 * (5 * 4 * 6 + 6 * 2)
    assert forward.host() == roofline.HOST["kernel"]
    assert walk.work["cuBLAS"].host() == roofline.HOST["cuBLAS"]
    assert walk.work["CuPy: add"].host() == roofline.HOST["CuPy"]


def test_what_it_does_not_know_is_an_error(monkeypatch):
    """A kernel that multiplies under another name, and one that finds its arrays in a table."""
    monkeypatch.setattr(roofline, "PRODUCTS", ())
    with pytest.raises(RuntimeError, match="conv2d forward: kernels with 0 operations"), roofline.walking("90"):
        ops.conv2d(tensor(8, 8, 4, 4), tensor(8, 8, 3, 3))
    monkeypatch.delitem(roofline.TABLES, "copy_all")
    x = [np.ones(4, "f4")]
    with pytest.raises(ValueError, match="copy_all finds its arrays in a table"), roofline.walking("90"):
        backend.gpu.copy_all(*[list(map(meta.asarray, x))] * 2)


def test_nothing_is_left_behind():
    before = backend.gpu.xp, backend.gpu.array_type, meta.MetaArray, checks._flags
    with roofline.walking("90"):
        assert backend.of(meta.empty((2,), "float16")) is backend.gpu
    assert before == (backend.gpu.xp, backend.gpu.array_type, meta.MetaArray, checks._flags)
    assert isinstance(ops.relu(mp.tensor(np.ones(3, "f4"))).array, np.ndarray)
