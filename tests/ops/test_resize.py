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


def image(*shape):
    return mp.tensor(np.ones(shape, "float32"))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x: ops.interpolate(x), "exactly one of `size` and `scale_factor`"),
        (lambda x: ops.interpolate(x, 2, 2), "exactly one of `size` and `scale_factor`"),
        (lambda x: ops.interpolate(x, 2, mode="bicubic"), "`mode` to be one of 'nearest', 'bilinear', got 'bicubic'"),
        (
            lambda x: ops.interpolate(x, 2, align_corners=True),
            '`align_corners` has a meaning only with mode="bilinear"',
        ),
        (lambda x: ops.interpolate(x, scale_factor=0.1), "leaves nothing"),
        (lambda x: ops.interpolate(x, scale_factor=-1), "`scale_factor` to be positive"),
        (lambda x: ops.interpolate(x[0], 2), r"`input` \(N, C, H, W\)"),
        (lambda x: ops.pixel_shuffle(x, 2), r"a multiple of upscale_factor\^2 = 4"),
    ],
)
def test_refused_values(call, message):
    with pytest.raises(ValueError, match=message):
        call(image(1, 3, 4, 4))


def test_refused_arguments():
    with pytest.raises(TypeError, match="argument `antialias` is not supported"):
        ops.interpolate(image(1, 3, 4, 4), 2, antialias=True)
