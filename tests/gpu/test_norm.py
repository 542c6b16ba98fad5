"""Batch norm and layer norm in CUDA against their definitions."""

import numpy as np
import pytest

import tinymp as mp
from gpu.both_ways import check_both_ways, launches, on_device
from oracle import randn
from tinymp import nn, ops, statistics
from tinymp.gpu import norm, rows

# A line of memory has 8 halves or 4 floats, a thread reads 4 lines at a time, a block has 256 threads.
IMAGES = [(300, 1, 1), (4, 3, 5), (3, 4, 5, 6), (16, 3, 3, 5), (4, 3, 1, 8), (9, 2, 3, 40), (2, 1, 37, 37)]
MATRICES = [(4, 3), (3, 8), (9, 300), (70, 16), (300, 5)]
SPLIT = pytest.mark.parametrize("split", [True], indirect=True)


@pytest.fixture(params=[False, True], ids=["whole", "split"])
def split(request, monkeypatch):
    """Whether several blocks share a channel: only from some thousand values on, unless told otherwise."""
    if request.param:
        monkeypatch.setattr(rows, "_parts", lambda groups, n: 3)
    return request.param


def single(*shape, seed):
    """FP32 values, which stay so beside FP16 ones."""
    return randn(*shape, seed=seed).astype("float32")


def affine(c, given="weight and bias"):
    return [single(c, seed=2 + i) for i, name in enumerate(("weight", "bias")) if name in given]


def training(x, *parameters):
    return ops.batch_norm(x, None, None, *parameters, training=True)


def lengths(x):
    """Terms per sum, with the operations around it: as in test_norm.py, where FP32 is held against FP64."""
    n = x.size // x.shape[1]
    return {"length": 20 * n, "grad_length": 8 * n}


@pytest.mark.parametrize("shape", IMAGES)
@pytest.mark.parametrize(("split", "chwn"), [(False, False), (True, False), (True, True)], indirect=["split"])
def test_batch_norm_of_images(gpu, split, shape, chwn):
    x, w, b = 1 + 2 * randn(*shape), *affine(shape[1])
    kernels = {"batch_norm_forward", "batch_norm_backward"}
    if split and not chwn:
        kernels |= {"batch_norm_moments", "batch_norm_sums"}
    check_both_ways(training, x, w, b, kernels=kernels, chwn=chwn, mixed=split, **lengths(x))


@pytest.mark.parametrize("shape", MATRICES)
def test_batch_norm_of_matrices(gpu, split, shape):
    x, w, b = 1 + 2 * randn(*shape), *affine(shape[1])
    kernels = {"batch_norm_forward_columns", "batch_norm_backward_columns"}
    if split:
        kernels |= {"batch_norm_moments_columns", "batch_norm_sums_columns"}
    check_both_ways(training, x, w, b, kernels=kernels, mixed=split, **lengths(x))


@pytest.mark.parametrize(("shape", "parts"), [((45, 130), 40), ((290, 1, 9), 280)])
def test_more_parts_than_threads_that_combine_them(gpu, monkeypatch, shape, parts):
    monkeypatch.setattr(rows, "_parts", lambda groups, n: parts)
    x = 1 + 2 * randn(*shape)
    check_both_ways(training, x, dtypes=("float16",), gradient=False, **lengths(x))


@SPLIT
@pytest.mark.parametrize("shape", [(6, 9), (5, 3, 4, 8)])
def test_some_parameters_and_some_gradients(gpu, split, shape):
    """None, one, those of FP16; gradients of x alone, and of the parameters alone."""
    x, (w, b) = randn(*shape), affine(shape[1])

    def frozen(t):
        return training(t, *(mp.tensor(v).to(t.device) for v in (w, b)))

    def input_fixed(w, b):
        return training(mp.tensor(x.astype("float32")).to(w.device), w, b)

    for op, *inputs in ((training, x), (training, x, w), (training, x, w.astype("f8"), b.astype("f8")), (frozen, x)):
        check_both_ways(op, *inputs, **lengths(x))
    check_both_ways(input_fixed, w, b, dtypes=("float32",), **lengths(x))


@SPLIT
@pytest.mark.parametrize("shape", [(5, 3, 4, 7), (9, 17)])
def test_batch_norm_of_views(gpu, split, shape):
    """Memory with gaps, and memory that starts between two multiples of 16 bytes."""
    x, c = randn(*shape), shape[1]
    check_both_ways(lambda x, w, b: training(x[..., 1:, :], w, b), x, *affine(c), **lengths(x))
    flat = randn(x.size + 1)
    check_both_ways(lambda x, w, b: training(x[1:].reshape(shape), w, b), flat, *affine(c), mixed=False, **lengths(x))
    check_both_ways(lambda x, w: training(x, w[::2]), x, single(2 * c, seed=2), mixed=False, **lengths(x))


@SPLIT
@pytest.mark.parametrize(("shape", "value"), [((40, 3), np.nan), ((8, 3, 4, 4), -np.inf)])
def test_infinities_and_nan(gpu, split, value, shape):
    """They reach all of their channel, and no other."""
    x = randn(*shape)
    x[3, 1] = value
    for chwn in {False, len(shape) == 4}:
        check_both_ways(training, x, *affine(3), chwn=chwn, mixed=not chwn, **lengths(x))


@pytest.mark.parametrize("shape", [(400, 2), (24, 2, 5, 5)])
def test_large_mean_does_not_cancel(gpu, split, shape):
    """A spread of 0.1 (FP32) and 1 (FP16) around 1000: E[x^2] - E[x]^2 would be wrong by 0.06 or more.

    The mean is off by 1000 u_w per rounding on the longest path, some 16 of them, and the variance by its square. For
    layer norm, y is off by error / spread, and by the roundings of y.
    """
    for dtype, spread in (("float32", 0.1), ("float16", 1.0)):
        host = (1000 + spread * randn(*shape)).astype(dtype)
        mean, var = (ops.zeros(2).to("gpu") for _ in range(2))
        ops.batch_norm(mp.tensor(host).to("gpu"), mean, var, training=True, momentum=1.0)
        wide, axes = host.astype("float64"), (0, *range(2, len(shape)))
        error = 16 * 1000 * 2.0**-24
        np.testing.assert_allclose(mean.numpy(), wide.mean(axes), rtol=0, atol=error)
        np.testing.assert_allclose(var.numpy(), wide.var(axes, ddof=1), rtol=32 * 2.0**-24, atol=error**2)
    host = (1000 + 0.1 * randn(3, 700)).astype("float32")
    y = ops.layer_norm(mp.tensor(host).to("gpu"), 700, eps=0.0).numpy()
    wide = host.astype("float64")
    expected = (wide - wide.mean(1, keepdims=True)) / wide.std(1, keepdims=True)
    np.testing.assert_allclose(y, expected, rtol=32 * 2.0**-24, atol=16 * 1000 * 2.0**-24 / 0.1)


@pytest.mark.parametrize(
    ("shape", "given", "dtype", "momentum"),
    [
        ((6, 11), "all", "float32", 0.25),
        ((6, 11), "all", "float16", "on the device"),
        ((6, 11, 30), "all", "float32", "on the device"),
        ((6, 11, 30), "mean", "float16", 0.25),
        ((6, 11), "var", "float32", 0.25),
    ],
)
def test_running_statistics(gpu, split, shape, momentum, dtype, given):
    """By the kernel that normalises, in place; FP16 ones as the definition says."""
    x, (first, second) = randn(*shape).astype("float16"), (randn(11, seed=s).astype(dtype) for s in (2, 3))
    results = []
    for device in ("cpu", "gpu"):
        mean, var, count = (mp.tensor(v).to(device) for v in (first, second, np.array(7)))
        arrays = mean.array, var.array, count.array
        m = mp.tensor(np.array(0.25, dtype)).to(device).array if momentum == "on the device" else momentum
        running = mean if given != "var" else None, var if given != "mean" else None
        counted = {"num_batches_tracked": count} if given == "all" else {}
        y = ops.batch_norm(mp.tensor(x).to(device), *running, training=True, momentum=m, **counted)
        assert all(v.array is a for v, a in zip((mean, var, count), arrays))
        assert [v.version for v in (mean, var, count)] == [given != "var", given != "mean", given == "all"]
        results.append([v.numpy() for v in (mean, var, count, y)])
    for e, r, error in zip(*results, [1e-6 if dtype == "float32" else 1e-3] * 3 + [1e-3]):
        np.testing.assert_allclose(r, e, rtol=error, atol=error)
    assert results[1][2] == 7 + (given == "all")


def test_a_training_step_of_batch_norm_is_a_few_launches(gpu):
    """Normalising and moving the statistics, keeping what they were, and settling that: one launch each."""
    if launches() is None:
        pytest.skip("a real GPU keeps no list of launches")
    model = nn.Sequential(nn.BatchNorm1d(3), nn.BatchNorm1d(3)).to("gpu")
    x = mp.tensor(randn(6, 3).astype("float32")).to("gpu")
    before = len(launches())
    model(x)
    statistics.settle(gpu.xp.zeros((), bool), list(model.parameters()))
    short = [name.removesuffix(name[-17:]) if name.startswith("copy_all") else name for name in launches()[before:]]
    assert short == ["copy_all", "batch_norm_forward_columns"] * 2 + ["copy_all"]
    assert [m.num_batches_tracked.item() for m in model] == [1, 1]
    model(x)
    statistics.settle(gpu.xp.ones((), bool), list(model.parameters()))
    assert [m.num_batches_tracked.item() for m in model] == [1, 1]


ROWS = [(3, 4, 5), (5, 8), (300, 9), (3, 64), (7, 257), (2, 1025), (1, 2060), (600, 2)]


@pytest.mark.parametrize("shape", ROWS)
def test_layer_norm(gpu, split, shape):
    kernels = {"layer_norm_forward", "layer_norm_backward", "layer_norm_sums_columns"}
    n, count = shape[-1], np.prod(shape[:-1])
    sizes = {"length": 20 * n, "grad_length": 8 * n + count, "mixed": n < 1000 and split}
    check_both_ways(lambda x, *p: ops.layer_norm(x, n, *p), 1 + 2 * randn(*shape), *affine(n), kernels=kernels, **sizes)


@pytest.mark.parametrize("chwn", [False, True])
def test_layer_norm_over_several_axes(gpu, chwn):
    x, w, b = randn(3, 4, 5, 6), single(5, 6, seed=2), single(5, 6, seed=3)
    check_both_ways(
        lambda x, w, b: ops.layer_norm(x, (5, 6), w, b), x, w, b, chwn=chwn, kernels={"layer_norm_forward"},
        length=600, grad_length=300,
    )  # fmt: skip
    check_both_ways(lambda x: ops.layer_norm(x, x.shape), x, chwn=chwn, length=7200, grad_length=2880)


def test_layer_norm_of_views_and_some_parameters(gpu):
    sizes = {"length": 400, "grad_length": 200}
    check_both_ways(lambda x, w, b: ops.layer_norm(x[:, 1:], 16, w, b), randn(5, 17), *affine(16), **sizes)
    check_both_ways(lambda x, w, b: ops.layer_norm(x[1:].reshape(5, 16), 16, w, b), randn(81), *affine(16), **sizes)
    check_both_ways(lambda x, w: ops.layer_norm(x, 16, w[1:]), randn(5, 16), single(17, seed=2), **sizes)
    x, w, b = randn(6, 20), randn(20, seed=2), randn(20, seed=3)
    for parameters in ((), (w,), (w, b)):  # of FP16
        check_both_ways(lambda x, *p: ops.layer_norm(x, 20, *p), x, *parameters, **sizes)
    check_both_ways(lambda b: ops.layer_norm(mp.tensor(x).to(b.dtype.name).to(b.device), 20, None, b), b, length=400)


@pytest.mark.parametrize(("value", "n"), [(-np.inf, 20), (np.nan, 1100)])
def test_layer_norm_infinities_and_nan(gpu, value, n):
    x, sizes = randn(3, n), {"length": 20 * n, "grad_length": 8 * n, "mixed": n < 1000}
    x[1, 3] = value
    check_both_ways(lambda x, w, b: ops.layer_norm(x, n, w, b), x, *affine(n), **sizes)


def test_what_is_too_long_for_32_bits_is_left_to_the_definition(gpu, monkeypatch):
    monkeypatch.setattr(rows, "LONGEST", 4)
    monkeypatch.setattr(norm, "KERNELS", None)
    for op in (training, lambda x, w, b: ops.layer_norm(x, 5, w, b)):
        check_both_ways(op, randn(5, 5), *affine(5), length=100, grad_length=50)


def test_a_thread_adds_in_blocks(gpu, monkeypatch):
    """Where all blocks are busy with other channels, each thread has thousands of terms of its sums."""
    monkeypatch.setattr(rows, "ENOUGH", 1)
    x = randn(1, 2, 500, 500).astype("float32")
    b = mp.Tensor(on_device(np.zeros(2, "float32"))).requires_grad_()
    ops.batch_norm(mp.Tensor(on_device(x)), None, None, None, b, training=True).backward(
        on_device(np.full(x.shape, 0.1, "float32"))
    )
    assert (np.abs(b.grad.numpy() / (500 * 500 * float(np.float32(0.1))) - 1) <= 1e-6).all()
    row = mp.Tensor(on_device(x.reshape(2, -1))).requires_grad_()
    ops.layer_norm(row, row.shape[1]).backward(on_device(np.full(row.shape, 0.1, "float32")))
    assert np.abs(row.grad.numpy()).max() <= 0.1 * 1e-6  # equal dy move nothing, but for the error of their sum
