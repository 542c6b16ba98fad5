"""interpolate and pixel_shuffle."""

import numpy as np
import pytest

import tinymp as mp
from oracle import check, randn
from tinymp import ops


def nearest(x, rows, cols):
    return x[:, :, rows][:, :, :, cols]


@pytest.mark.parametrize(
    ("options", "rows", "cols"),
    [
        ({"scale_factor": 2}, [0, 0, 1, 1, 2, 2], [0, 0, 1, 1, 2, 2, 3, 3]),
        ({"scale_factor": (1, 0.5)}, [0, 1, 2], [0, 2]),
        ({"size": (5, 3)}, [0, 0, 1, 1, 2], [0, 1, 2]),
        ({"size": 1}, [0], [0]),
        ({"scale_factor": 1.2}, [0, 1, 2], [0, 1, 2, 3]),  # the same size: as it is
        ({"scale_factor": (2.3, 1)}, [0, 0, 1, 1, 2, 2], [0, 1, 2, 3]),  # twice the size: each place twice
        ({"size": (123, 1)}, [i * 3 // 123 - (i in (41, 82)) for i in range(123)], [0]),  # 41 * (3 / 123) < 1 in FP32
    ],
)
def test_nearest(options, rows, cols):
    check(
        lambda x: ops.interpolate(x, **options),
        lambda x: nearest(x, rows, cols),
        randn(2, 3, 3, 4),
        roundings=0,
        length=-4,
        grad_length=41,
    )


def linear_matrix(n, out, align, factor=None):
    """Row o holds the weights of the input places for output place o."""
    m = np.zeros((out, n))
    for o in range(out):
        if align:
            p = o * (n - 1) / (out - 1) if out > 1 else 0.0
        else:
            p = max((o + 0.5) * (1 / factor if factor else n / out) - 0.5, 0)
        i = min(int(p), n - 1)
        f = min(p - i, 1.0)
        m[o, i] += 1 - f
        m[o, min(i + 1, n - 1)] += f
    return m


@pytest.mark.parametrize("align", [True, False])
@pytest.mark.parametrize("size", [(6, 8), (5, 3), (1, 1), (3, 4)])
def test_bilinear(size, align):
    rows, cols = linear_matrix(3, size[0], align), linear_matrix(4, size[1], align)
    check(
        lambda x: ops.interpolate(x, size, mode="bilinear", align_corners=align),
        lambda x: rows @ x @ cols.T,
        randn(2, 3, 3, 4),
        length=8,
        grad_length=16,
    )


def test_bilinear_by_a_factor_uses_the_factor_itself():
    rows, cols = linear_matrix(3, 7, False, 2.6), linear_matrix(4, 10, False, 2.6)
    check(
        lambda x: ops.interpolate(x, scale_factor=2.6, mode="bilinear"),
        lambda x: rows @ x @ cols.T,
        randn(1, 2, 3, 4),
        length=8,
        grad_length=16,
    )


def test_bilinear_to_the_same_size_changes_nothing():
    x = randn(1, 2, 3, 4)
    np.testing.assert_array_equal(ops.interpolate(mp.tensor(x), scale_factor=1.2, mode="bilinear").numpy(), x)


def cubic_matrix(n, out, align, factor=None):
    """As linear_matrix, by the cubic that passes 4 neighbours' values with the slopes (x_(i+1) - x_(i-1)) * 3/4."""
    m = np.zeros((out, n))
    for o in range(out):
        if align:
            p = o * (n - 1) / (out - 1) if out > 1 else 0.0
        else:
            p = (o + 0.5) * (1 / factor if factor else n / out) - 0.5
        i = int(np.floor(p))
        t = p - i
        h00, h10, h01, h11 = 2 * t**3 - 3 * t**2 + 1, t**3 - 2 * t**2 + t, 3 * t**2 - 2 * t**3, t**3 - t**2
        weights = [-0.75 * h10, h00 - 0.75 * h11, h01 + 0.75 * h10, 0.75 * h11]
        for k, w in enumerate(weights):
            m[o, np.clip(i - 1 + k, 0, n - 1)] += w
    return m


@pytest.mark.parametrize("options", [{"size": (6, 8)}, {"size": (2, 3)}, {"scale_factor": 2.6}, {"size": (1, 4)}])
@pytest.mark.parametrize("align", [True, False])
def test_bicubic(options, align):
    factor = None if align else options.get("scale_factor")
    size = options.get("size") or (7, 10)
    rows, cols = cubic_matrix(3, size[0], align, factor), cubic_matrix(4, size[1], align, factor)
    check(
        lambda x: ops.interpolate(x, **options, mode="bicubic", align_corners=align),
        lambda x: rows @ x @ cols.T,
        randn(2, 2, 3, 4),
        length=32,
        magnitude=lambda x: 4 * x.max(),
        grad_length=64,
    )


@pytest.mark.parametrize("align", [True, False])
def test_linear_and_trilinear(align):
    m = [linear_matrix(n, o, align) for n, o in ((2, 5), (3, 2), (4, 6))]
    check(
        lambda x: ops.interpolate(x, 6, mode="linear", align_corners=align),
        lambda x: x @ m[2].T,
        randn(2, 3, 4),
        length=8,
        grad_length=16,
    )
    check(
        lambda x: ops.interpolate(x, (5, 2, 6), mode="trilinear", align_corners=align),
        lambda x: np.einsum("ncdhw,ad,bh,ew->ncabe", x, *m),
        randn(1, 2, 2, 3, 4),
        length=12,
        grad_length=48,
    )


def test_nearest_of_signals_and_volumes():
    check(
        lambda x: ops.interpolate(x, 6), lambda x: x[:, :, [0, 0, 1, 2, 2, 3]], randn(2, 3, 4), roundings=0, length=-4
    )
    check(
        lambda x: ops.interpolate(x, scale_factor=(2, 1, 0.5)),
        lambda x: x[:, :, [0, 0, 1, 1]][..., [0, 2]],
        randn(1, 2, 2, 3, 4),
        roundings=0,
        length=-4,
    )


@pytest.mark.parametrize(("n", "places"), [(2, [1, 3]), (3, [0, 2, 3]), (8, [0, 0, 1, 1, 2, 2, 3, 3]), (4, range(4))])
def test_nearest_exact_takes_the_pixel_at_the_centre(n, places):
    check(
        lambda x: ops.interpolate(x, n, mode="nearest-exact"),
        lambda x: x[:, :, list(places)],
        randn(2, 3, 4),
        roundings=0,
        length=-4,
    )


@pytest.mark.parametrize(("shape", "size"), [((2, 3, 7), (3,)), ((2, 3, 5, 6), (2, 4)), ((2, 2, 5, 4, 3), (2, 3, 2))])
def test_area_is_the_mean_of_cells(shape, size):
    def oracle(x):
        for a, o in enumerate(size, 2):
            n = x.shape[a]
            cells = [x.take(range(i * n // o, -(-(i + 1) * n // o)), a).mean(a) for i in range(o)]
            x = np.stack(cells, a)
        return x

    dtypes = ("float64", "float32", "float16") if len(size) < 3 else ("float64", "float32")  # volumes round twice
    check(lambda x: ops.interpolate(x, size, mode="area"), oracle, randn(*shape), length=30, dtypes=dtypes)


@pytest.mark.parametrize("mode", ["nearest", "nearest-exact", "bilinear", "bicubic", "area"])
def test_an_empty_batch(mode):
    x = mp.tensor(np.zeros((0, 3, 4, 5), "float16"), requires_grad=True)
    y = ops.interpolate(x, (2, 7), mode=mode)
    assert y.shape == (0, 3, 2, 7) and y.dtype == "float16"
    y.sum().backward()
    assert x.grad.shape == x.shape


def test_pixel_shuffle():
    def oracle(x):
        n, c, h, w = x.shape
        y = np.empty((n, c // 4, 2 * h, 2 * w))
        for k in range(c // 4):
            for i in range(2):
                for j in range(2):
                    y[:, k, i::2, j::2] = x[:, 4 * k + 2 * i + j]
        return y

    check(lambda x: ops.pixel_shuffle(x, 2), oracle, randn(2, 8, 3, 4), roundings=0, length=-4)
