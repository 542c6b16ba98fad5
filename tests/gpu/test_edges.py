"""Kernels promise more than their definitions' values (test_kernels.py): places, edges, launches."""

import numpy as np
import pytest

import tinymp as mp
from cuda_on_cpu import device
from gpu.both_ways import channels_last, launches, on_device, without
from gpu.test_kernels import TILES, force, gru, lstm, recurrent_inputs
from oracle import randn, rng
from tinymp import ops
from tinymp.gpu import conv, row_sums, rows
from tinymp.ops.conv import Geometry, columns, fold

GPU, H100 = mp.backend.gpu, 132  # multiprocessors


# ------------------------------------------------------------------------------------------------------- convolutions


def tensor(a, offset=0):
    """`a` as an FP16 Tensor on the device, `offset` elements behind an address that is a multiple of 16."""
    flat = GPU.xp.empty(a.size + offset, "float16")[offset:].reshape(a.shape)
    flat[...] = on_device(a.astype("float16"))
    return mp.Tensor(flat)


def both_ways(x, w, **options):
    """y and the gradients of conv2d of FP16 inputs on the device."""
    x, w = tensor(x).requires_grad_(), tensor(w).requires_grad_()
    y = ops.conv2d(x, w, **options)
    y.backward(tensor(randn(*y.shape, seed=4)).array)
    return [mp.backend.to_cpu(a) for a in (y.array, x.grad_array, w.grad_array)]


def test_neither_tile_nor_address_changes_a_bit(monkeypatch):
    """Every tile sums in the same order: the choice, which knows the GPU's size, shows in time alone. Parts of larger
    arrays begin anywhere. Values that do not fit become infinite.
    """
    x, w, b = randn(3, 4, 4, 8), randn(8, 3, 4, 4, seed=2), randn(8, seed=3)
    with mp.no_grad():
        found = [
            [ops.conv2d(tensor(x, at).permute(3, 0, 1, 2), tensor(w, at), tensor(b, at), padding=2).numpy()]
            for at in (0, 1, 2, 4, 8)
        ]
    y, dx, dw = both_ways(np.full((8, 8, 4, 4), 100.0), np.full((8, 8, 3, 3), 100.0))
    assert np.isposinf(y).all() and np.isfinite(dx).all() and np.isfinite(dw).all()
    inputs, by_tile = (randn(8, 20, 4, 5), randn(9, 20, 3, 3, seed=2)), []
    for tile in TILES:
        for where in force(tile, 2):
            monkeypatch.setattr(*where)
        by_tile.append(both_ways(*inputs, padding=1, stride=2))
    for results in (found, by_tile):
        for other in results[1:]:
            for a, b in zip(results[0], other):
                np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize(
    ("width", "sizes", "tile", "parts"),
    [
        (8, (512, 100_000, 1, 4608, 18), "128x128", 1),  # much work of every kind
        (8, (512, 1568, 1, 4608, 1), "64x64", 1),  # 7 x 7 pixels of 32 images: 200 small blocks, or 52 large ones
        (8, (512, 1568, 1, 4608, 18), "128x128", 5),  # 52 blocks of 5 parts: two for each of 132 multiprocessors
        (1, (512, 100_000, 1, 4608, 18), "64x64", 1),  # the largest that a batch of 1 has
        (8, (4, 56 * 56 * 64, 32, 36, 1), "16x128", 1),  # 32 groups of 4 channels: ResNeXt-50
    ],
)
def test_which_tile(gpu, width, sizes, tile, parts):
    found, length, split = conv.schedule(width, *sizes, H100)
    assert (found, split) == (TILES[tile], parts)
    assert length % 32 == 0 and (split - 1) * length < sizes[3] <= split * length
    assert all(t.stages + 16 * t.columns <= 99 << 10 for t in conv.TILES)  # all that GeForce has from Ampere on
    halves = gpu.xp.empty(64, "float16")  # how much is read at once
    for n, most in ((2, 1), (4, 4), (8, 8), (12, 4)):
        assert [conv.at_once(n, halves, halves[i:]) for i in (0, 1, 4)] == [most, 1, min(most, 4)]
    if hasattr(gpu.xp, "launched"):
        with device.playing("RTX 3050"):
            assert conv.processors() == 20


@pytest.mark.parametrize("g", [Geometry((3, 3)), Geometry((3, 2), (2, 3), ((1, 0), (0, 2)), (1, 2))])
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_columns_and_their_sums_have_the_bits_of_the_definition(g, dtype):
    x = randn(4, 9, 8, 3).astype(dtype)
    host = columns(x, g)
    np.testing.assert_array_equal(columns(on_device(x), g).get(), host)
    wide = randn(*host.shape).astype("float32")
    host = fold(wide, x.shape, g, like=x)
    np.testing.assert_array_equal(fold(on_device(wide), x.shape, g, like=on_device(x)).get(), host)


# -------------------------------------------------------------------------------------------------------------- norms


@pytest.mark.parametrize("shape", [(400, 2), (24, 2, 5, 5)])
@pytest.mark.parametrize("split", [False, True])
def test_large_mean_does_not_cancel(monkeypatch, split, shape):
    """A spread of 0.1 (FP32) and 1 (FP16) around 1000: E[x^2] - E[x]^2 would be wrong by 0.06 or more.

    The mean is off by 1000 u_w per rounding on the longest path, some 16 of them, and the variance by its square. For
    layer norm, y is off by error / spread, and by the roundings of y.
    """
    if split:
        monkeypatch.setattr(rows, "_parts", lambda groups, n: 3)
    error = 16 * 1000 * 2.0**-24
    for dtype, spread in (("float32", 0.1), ("float16", 1.0)):
        host = (1000 + spread * randn(*shape)).astype(dtype)
        mean, var = (ops.zeros(2).to("gpu") for _ in range(2))
        ops.batch_norm(mp.tensor(host).to("gpu"), mean, var, training=True, momentum=1.0)
        wide, axes = host.astype("float64"), (0, *range(2, len(shape)))
        np.testing.assert_allclose(mean.numpy(), wide.mean(axes), rtol=0, atol=error)
        np.testing.assert_allclose(var.numpy(), wide.var(axes, ddof=1), rtol=32 * 2.0**-24, atol=error**2)
    host = (1000 + 0.1 * randn(3, 700)).astype("float32")
    y = ops.layer_norm(mp.tensor(host).to("gpu"), 700, eps=0.0).numpy()
    wide = host.astype("float64")
    expected = (wide - wide.mean(1, keepdims=True)) / wide.std(1, keepdims=True)
    np.testing.assert_allclose(y, expected, rtol=32 * 2.0**-24, atol=error / 0.1)


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
def test_running_statistics(shape, momentum, dtype, given):
    """By the kernel that normalises, in place; FP16 ones as the definition says."""
    x, (first, second) = randn(*shape).astype("float16"), (randn(11, seed=s).astype(dtype) for s in (2, 3))
    results = []
    for place in ("cpu", "gpu"):
        mean, var, count = (mp.tensor(v).to(place) for v in (first, second, np.array(7)))
        arrays = mean.array, var.array, count.array
        m = mp.tensor(np.array(0.25, dtype)).to(place).array if momentum == "on the device" else momentum
        running = mean if given != "var" else None, var if given != "mean" else None
        counted = {"num_batches_tracked": count} if given == "all" else {}
        y = ops.batch_norm(mp.tensor(x).to(place), *running, training=True, momentum=m, **counted)
        assert all(v.array is a for v, a in zip((mean, var, count), arrays))
        assert [v.version for v in (mean, var, count)] == [given != "var", given != "mean", given == "all"]
        results.append([v.numpy() for v in (mean, var, count, y)])
    for e, r, error in zip(*results, [1e-6 if dtype == "float32" else 1e-3] * 3 + [1e-3]):
        np.testing.assert_allclose(r, e, rtol=error, atol=error)
    assert results[1][2] == 7 + (given == "all")


def test_a_thread_adds_in_blocks(monkeypatch):
    """Each thread has thousands of terms of its sums, as all blocks are busy with other channels."""
    monkeypatch.setattr(rows, "ENOUGH", 1)
    x = randn(1, 2, 500, 500).astype("float32")
    b = mp.Tensor(on_device(np.zeros(2, "float32"))).requires_grad_()
    y = ops.batch_norm(mp.Tensor(on_device(x)), None, None, None, b, training=True)
    y.backward(on_device(np.full(x.shape, 0.1, "float32")))
    assert (np.abs(b.grad.numpy() / (500 * 500 * float(np.float32(0.1))) - 1) <= 1e-6).all()
    row = mp.Tensor(on_device(x.reshape(2, -1))).requires_grad_()
    ops.layer_norm(row, row.shape[1]).backward(on_device(np.full(row.shape, 0.1, "float32")))
    assert np.abs(row.grad.numpy()).max() <= 0.1 * 1e-6  # equal dy move nothing, but for the error of their sum


# ------------------------------------------------------------------------------------------------------------- losses


def losses(x, target, dtype, **options):
    """The loss and its gradient by the definition (CPU) and by the fast path."""
    found = []
    for made in (mp.Tensor, lambda a: mp.Tensor(on_device(a))):
        logits = made(x.astype(dtype)).requires_grad_()
        y = ops.cross_entropy(logits, made(target), **options)
        y.sum().backward()
        found.append((y.numpy(), logits.grad.numpy()))
    return found


@pytest.mark.parametrize(
    ("shape", "dtype", "smoothing"),
    [((1, 9), "float16", 0.0), ((1, 9), "float32", 0.5), ((1, 700), "float16", 0.5), ((1, 9, 1, 2), "float32", 0.0)],
)
def test_losses_of_infinities_and_nan(dtype, shape, smoothing):
    """They come out in the same places; a class of -inf has no part in its row."""
    special = [
        {0: -np.inf}, {1: -np.inf, 3: 65504}, {1: np.inf}, {0: np.nan}, {2: 65504, 3: 65504, 5: -65504},
        dict.fromkeys(range(8), -np.inf), dict.fromkeys(range(shape[1]), -np.inf), {0: np.inf, 4: np.nan},
    ]  # fmt: skip
    x = np.concatenate([randn(*shape) for _ in special])
    for row, values in zip(x, special):
        for c, value in values.items():
            row[c] = value
    target = np.broadcast_to(np.array([0, 3, 1, 2, 3, 8, 5, 1]).reshape(-1, *[1] * (len(shape) - 2)), x[:, 0].shape)
    (loss, dx), (fast, fast_dx) = losses(x, target.copy(), dtype, reduction="none", label_smoothing=smoothing)
    np.testing.assert_allclose(fast, loss, rtol=1e-5)
    error = 2e-3 if dtype == "float16" else 1e-5
    np.testing.assert_allclose(fast_dx.astype("f8"), dx.astype("f8"), rtol=error, atol=1e-6)
    large = np.array([[65504, 65472, 65440], [-65504, -65472, -65504]])  # they keep their digits
    (loss, _), (fast, _) = losses(large, np.array([1, 1]), dtype, reduction="none", label_smoothing=0.5)
    np.testing.assert_array_max_ulp(fast, loss, 1)


@pytest.mark.parametrize("bad", [-1, 5, 2**40])
def test_a_class_that_does_not_exist_is_nan(bad, gpu):
    """The check of labels raises later; until then no kernel may use one as an index."""
    x = mp.Tensor(on_device(randn(4, 5).astype("float16"))).requires_grad_()
    loss = ops.cross_entropy(x, mp.Tensor(on_device(np.array([0, bad, -100, 4]))), reduction="none")
    loss.backward(on_device(np.ones(4, "float32")))
    with pytest.raises(ValueError, match="expected every value of `target` to be a class"):
        gpu.to_numpy(loss.array)
    np.testing.assert_array_equal(np.isnan(gpu.to_numpy(loss.array)), [False, True, False, False])
    np.testing.assert_array_equal(np.isnan(gpu.to_numpy(x.grad_array)).any(1), [False, True, False, False])


# ---------------------------------------------------------------------------------------------- pooling, rows by index


def test_max_pool2d_with_ties_infinities_and_nan():
    """Values and places, bit for bit, over small integers, both zeros, infinities and nan."""
    values = np.array([-np.inf, -np.inf, -1, -0.0, 0.0, 1, 1, np.inf, np.nan])
    x = values[rng().integers(0, len(values), (8, 4, 6, 6))]
    x[:, 0] = -np.inf
    for images, dtype, *options in ((3, "float16", 2, 2, 0), (8, "float32", 3, 1, 1), (8, "float16", 3, 2, 1)):
        one = x[:images].astype(dtype)
        host, found = (ops.max_pool2d(mp.Tensor(a), *options, return_indices=True) for a in (one, on_device(one)))
        for i in (0, 1):
            np.testing.assert_array_equal(found[i].numpy(), host[i].numpy())
    first = mp.Tensor(on_device(np.array([[[[1, 2], [4, 3]]]], "float16")), requires_grad=True)
    ops.max_pool2d(first, 2).backward(on_device(np.full((1, 1, 1, 1), np.inf, "float16")))
    np.testing.assert_array_equal(first.grad.numpy()[0, 0], [[0, 0], [np.inf, 0]])
    rows_of_a_grid = randn(1, 65537, 1, 1).astype("float16")  # it has 65 535 blocks along its second axis
    np.testing.assert_array_equal(ops.max_pool2d(mp.Tensor(on_device(rows_of_a_grid)), 1).numpy(), rows_of_a_grid)


def test_gradients_of_max_pool2d():
    """1025 windows whose gradient of 2 all go to one element: FP16 would stall at 2048. They lie as x does."""
    x = np.zeros((1, 1, 1, 1025 + 1024), "float16")
    x[..., 1024] = 1
    x = mp.Tensor(on_device(x), requires_grad=True)
    y = ops.max_pool2d(x, (1, 1025), 1)
    y.backward(on_device(np.full(y.shape, 2, "float16")))
    assert x.grad.numpy()[0, 0, 0, 1024] == 2050
    x = mp.Tensor(on_device(channels_last(randn(8, 3, 4, 4).astype("float16"))), requires_grad=True)
    y = ops.max_pool2d(x, 2)
    y.backward(y.array)
    assert y.array.transpose(1, 2, 3, 0).flags.c_contiguous
    assert x.grad_array.transpose(1, 2, 3, 0).flags.c_contiguous


def expected(n_rows, index, values):
    total = np.zeros((n_rows, *values.shape[1:]))
    exists = (index >= 0) & (index < n_rows)
    np.add.at(total, index[exists], values.astype("f8")[exists])
    return total


INDICES = {
    "each once": (5, np.array([4, 0, 3, 1, 2])),
    "all the same": (3, np.full(200, 1)),
    "runs of several lengths": (9, rng(0).permutation(np.repeat([1, 2, 4, 8], [70, 1, 33, 5]))),
    "many, small": (50, rng(1).integers(0, 50, 300).astype("uint8")),
    "some that do not exist": (3, np.array([0, 7, -1, 2, 2**40, 0, 3])),
}


@pytest.mark.parametrize("name", INDICES)
def test_sums_of_rows_by_index(name):
    """Also of rows that begin between multiples of 16 bytes, and that are no runs of memory."""
    n_rows, index = INDICES[name]
    for width in ((), (3,), (2, 4), (20,)):
        values = np.asarray(rng(2).integers(-8, 9, (len(index) + 1, *width)) / 4).astype("float32")  # sums are exact
        for x, on in ((values[1:], on_device(values)[1:]), (values[:-1], on_device(values[:-1].T).T)):
            total = GPU.scatter_add_rows(n_rows, on_device(index), on)
            assert total.dtype == "float32"
            np.testing.assert_array_equal(total.get(), expected(n_rows, index, x))


def test_sums_of_very_many_rows_and_of_other_dtypes(gpu):
    """Gradient checks take FP64, and a study of FP16 accumulators rounds every addition: 3 000 ones are 2048 then."""
    index = on_device(np.ones(100_000, int))
    for width in (1, 8):
        total = GPU.scatter_add_rows(2, index, on_device(np.full((100_000, width), 0.1, "float32"))).get()
        assert (total[0] == 0).all() and (np.abs(total[1] / 1e5 / float(np.float32(0.1)) - 1) <= 1e-6).all()
    for dtype, stalled in (("float16", 2048), ("float64", 3000)):
        zeros, ones = on_device(np.zeros(3000, int)), on_device(np.ones((3000, 1), dtype))
        assert row_sums.scatter_add_rows(gpu, 2, zeros, ones) is NotImplemented
        assert gpu.scatter_add_rows(2, zeros, ones).get().tolist() == [[stalled], [0]]


# ---------------------------------------------------------------------------------------------------- recurrent layers


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize(("layer", "gates", "most"), [(ops.lstm_layer, 4, 2), (ops.gru_layer, 3, 3)])
def test_a_step_is_few_launches(layer, gates, most, dtype, gpu):
    if launches() is None:
        pytest.skip("a GPU keeps no list")

    def count(t):
        arrays = [randn(t, 3, 5), *recurrent_inputs(gates=gates)[1:5]]
        x, *weights = [mp.Tensor(on_device(v.astype(dtype)), requires_grad=True) for v in arrays]
        before = len(launches()) + len(gpu.xp.foreign)
        y = layer(x, None, *weights)[0]
        y.backward(y.array)
        return len(launches()) + len(gpu.xp.foreign) - before

    assert count(5) - count(4) == most  # products are not counted


@pytest.mark.parametrize(
    ("dtype", "h", "special"),
    [("float16", 16, True), ("float32", 1, True), ("float32", 6, False), ("float64", 6, True)],
)
@pytest.mark.parametrize(("layer", "gates"), [(lstm, 4), (gru, 3)], ids=["lstm", "gru"])
def test_steps_have_the_bits_of_their_definition(layer, gates, dtype, h, special):
    """On the device, operation by operation; with infinite products, which saturate gates, and a nan in one unit."""
    arrays = [v.astype(dtype) for v in recurrent_inputs(h, gates=gates)]
    if special:
        arrays[0][0, 0] = [np.inf, 100, -100, np.nan, 0]
        arrays[0][1, 1] = -np.inf
    found = []
    for off in ((), ("map", "map_into")):
        tensors = [mp.Tensor(on_device(v), requires_grad=True) for v in arrays]
        with without(*off):
            y = layer(*tensors)
            y.backward(y.array)
        found.append([y.numpy(), *(t.grad.numpy() for t in tensors)])
    for one, other in zip(*found, strict=True):
        np.testing.assert_array_equal(one, other)
