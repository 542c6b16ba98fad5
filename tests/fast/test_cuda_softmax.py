"""softmax in CUDA against its definition."""

import numpy as np
import pytest

import tinymp as mp
from fast.both_ways import check_both_ways, on_device
from oracle import randn
from tinymp import ops
from tinymp.fast.cuda import rows, softmax

INF, NAN = np.inf, np.nan

# A line of memory has 8 halves or 4 floats, a thread reads 4 lines at a time, a block has 256 threads.
ROWS = [(7,), (1, 1), (3, 5), (5, 8), (33, 9), (2, 3, 64), (2, 255), (2, 256), (2, 1023), (2, 1025), (1, 8200)]
COLUMNS = [((3, 5), 0), ((2, 3, 4), 1), ((3, 7, 8), 1), ((2, 1, 9), 1), ((260, 3), 0), ((70, 136), 0), ((3, 2060), 0)]


def check(x, dim, *, columns=False, view=lambda x: x, n=1, **options):
    """columns: neighbours in memory belong to different sums: left to the definition. n: the length of the sums.

    Backward reads a stored y, which may be one rounding away, twice, and its two terms may cancel.
    """
    kernels = set() if columns else {"softmax_forward", "softmax_backward"}
    sizes = {"length": 12 + n, "grad_length": 40 + 4 * n, "inherited": 8}
    check_both_ways(lambda x: ops.softmax(view(x), dim), x, kernels=kernels, **sizes, **options)


@pytest.mark.parametrize("shape", ROWS)
def test_rows(gpu, shape):
    check(3 * randn(*shape), -1, n=shape[-1])


@pytest.mark.parametrize(("shape", "dim"), COLUMNS)
def test_columns(gpu, shape, dim):
    check(3 * randn(*shape), dim, columns=True, n=shape[dim])


@pytest.mark.parametrize("shape", [(16, 5, 2, 3), (3, 5, 2, 1), (1, 4, 2, 2)])
@pytest.mark.parametrize("dim", [0, 1, 3])
def test_memory_order_of_convolutions(gpu, shape, dim):
    """(N, C, H, W) that lies as C, H, W, N: the batch is a row; an axis of length 1 has no place in memory."""
    fastest = 0 if shape[0] > 1 else 3
    check(3 * randn(*shape), dim, chwn=True, columns=dim != fastest, n=shape[dim])


@pytest.mark.parametrize("dim", [0, 1])
def test_views(gpu, dim):
    """Memory that starts between two multiples of 16 bytes, and memory with gaps."""
    check(3 * randn(121), dim, columns=dim == 0, view=lambda x: x[1:].reshape(3, 40), n=40)
    check(3 * randn(5, 18), dim, columns=dim == 0, view=lambda x: x[:, 1:], n=18)
    check(3 * randn(6, 18), dim, columns=dim == 1, view=lambda x: x.T, n=18)


@pytest.mark.parametrize("length", [1, 2, 40, 1200])
@pytest.mark.parametrize("dim", [0, 1])
def test_infinities_and_nan(gpu, length, dim):
    """In each row, `length` copies of the middle values; long rows are combined from threads that see one of them."""
    rows = [[6, 0, -6], [-INF, 0, 0], [-INF, -INF, 0], [-INF, -INF, -INF], [INF, 0, 0], [-INF, INF, 0], [0, NAN, -INF]]
    x = np.array(rows).repeat([1, length, 1], axis=1)
    check(x if dim else np.ascontiguousarray(x.T), dim, columns=dim == 0, n=length + 2)


def test_a_single_value(gpu):
    check_both_ways(lambda x: ops.softmax(x, 0), np.array(2.0), kernels={"softmax_forward"}, mixed=False)


@pytest.mark.parametrize("dim", [0, 1])
def test_what_is_too_long_for_32_bits_is_left_to_the_definition(gpu, monkeypatch, dim):
    monkeypatch.setattr(rows, "LONGEST", 4)
    monkeypatch.setattr(softmax, "KERNELS", None)
    check_both_ways(lambda x: ops.softmax(x, dim), randn(5, 5), length=12, grad_length=40, inherited=8, magnitude=10)


@pytest.mark.parametrize("shape", [(1, 60_000), (20_000, 4)])
def test_a_thread_adds_in_blocks(gpu, shape):
    """The gradient of equal logits with equal dy is 0, but for the error of the sum of y dy."""
    x = mp.Tensor(on_device(np.zeros(shape, "float32"))).requires_grad_()
    ops.softmax(x, -1).backward(on_device(np.full(shape, 0.1, "float32")))
    assert np.abs(x.grad.numpy()).max() <= 0.1 * 1e-6 / shape[1]
