"""Sums of rows by index on the GPU: the gradients of embedding, gather and indexing."""

import numpy as np
import pytest

import tinymp as mp
from gpu.both_ways import check_both_ways, on_device
from oracle import randn, rng
from tinymp import ops
from tinymp.gpu import row_sums

KERNELS, GPU = {"add_rows"}, mp.backend.gpu


@pytest.fixture(autouse=True)
def _gpu(gpu):
    pass


def expected(n_rows, index, rows):
    total = np.zeros((n_rows, *rows.shape[1:]))
    np.add.at(total, index, rows.astype("f8"))
    return total


INDICES = {
    "one": (4, np.array([2])),
    "none": (4, np.empty(0, int)),
    "each once": (5, np.array([4, 0, 3, 1, 2])),
    "all the same": (3, np.full(200, 1)),
    "runs of several lengths": (9, rng(0).permutation(np.repeat([1, 2, 4, 8], [70, 1, 33, 5]))),
    "many": (50, rng(1).integers(0, 50, 300)),
}


@pytest.mark.parametrize("width", [(), (1,), (3,), (8,), (2, 4), (20,), (24,)])
@pytest.mark.parametrize("name", INDICES)
def test_sum_rows(name, width):
    n_rows, index = INDICES[name]
    rows = np.asarray(rng(2).integers(-8, 9, (len(index), *width)) / 4).astype("float32")  # sums of them are exact
    total = GPU.scatter_add_rows(n_rows, on_device(index), on_device(rows))
    assert total.dtype == "float32"
    np.testing.assert_array_equal(total.get(), expected(n_rows, index, rows))


def test_unaligned_rows_and_other_integers():
    index = rng(1).integers(0, 5, 41).astype("uint8")
    rows = (rng(2).integers(-8, 9, 41 * 8 + 1) / 4).astype("float32")
    total = GPU.scatter_add_rows(5, on_device(index), on_device(rows)[1:].reshape(41, 8))
    np.testing.assert_array_equal(total.get(), expected(5, index, rows[1:].reshape(41, 8)))
    wide = np.ascontiguousarray(rng(2).integers(-8, 9, (8, 41)).astype("float32"))  # rows that are no runs of memory
    np.testing.assert_array_equal(
        GPU.scatter_add_rows(5, on_device(index), on_device(wide).T).get(), expected(5, index, wide.T)
    )


def test_indices_that_do_not_exist_are_left_out():
    index = np.array([0, 7, -1, 2, 2**40, 0, 3])
    rows = np.arange(7.0, dtype="float32").reshape(7, 1) + 1
    total = GPU.scatter_add_rows(3, on_device(index), on_device(rows)).get()
    np.testing.assert_array_equal(total, [[7], [0], [4]])


def test_sums_repeat_bit_for_bit():
    index, rows = rng(0).integers(0, 3, 500), randn(500, 9).astype("float32")
    first, second = (GPU.scatter_add_rows(3, on_device(index), on_device(rows)).get() for _ in range(2))
    np.testing.assert_array_equal(first, second)
    np.testing.assert_allclose(first, expected(3, index, rows), atol=500 * 2.0**-24 * 30)


@pytest.mark.parametrize("dtype", ["float16", "float64"])
def test_other_dtypes_are_left_to_the_definition(gpu, dtype):
    """Gradient checks take FP64, and a study of FP16 accumulators rounds every addition: 3 000 ones are 2048 then."""
    index, rows = on_device(np.zeros(3000, int)), on_device(np.ones((3000, 1), dtype))
    assert row_sums.scatter_add_rows(gpu, 2, index, rows) is NotImplemented
    assert gpu.scatter_add_rows(2, index, rows).get().tolist() == [[2048 if dtype == "float16" else 3000], [0]]


# --------------------------------------------------------------------------------------------------------------- ops


@pytest.mark.parametrize("index", [np.array(2), np.array([0, 3, 3, 3, 6]), np.array([[1, 2, 1], [6, 0, 1]])])
@pytest.mark.parametrize("padding", [None, 3])
@pytest.mark.parametrize("width", [4, 8])
def test_embedding(index, padding, width):
    check_both_ways(
        lambda w, i: ops.embedding(i, w, padding_idx=padding),
        randn(7, width),
        index,
        kernels=KERNELS,
        grad_length=index.size,
    )


def test_embedding_of_nothing():
    check_both_ways(lambda w, i: ops.embedding(i, w), randn(7, 4), np.empty((0, 2), int))


def test_embedding_adds_up_in_fp32_and_rounds_once():
    w = mp.Tensor(on_device(np.zeros((2, 1), "float16"))).requires_grad_()
    ops.embedding(mp.Tensor(on_device(np.ones(3000, int))), w).backward(on_device(np.ones((3000, 1), "float16")))
    assert w.grad.tolist() == [[0], [3000]]


def test_other_lookups():
    place = np.array([[0, 2, 2, 1], [1, 1, 0, 1]])
    check_both_ways(lambda x, i: ops.gather(x, 0, i), randn(3, 4), place, kernels=KERNELS, grad_length=8)
    check_both_ways(lambda x, i: ops.index_select(x, 1, i), randn(3, 4), place[0], kernels=KERNELS, grad_length=8)
    check_both_ways(lambda x, i: x[i], randn(3, 4, 2), place, kernels=KERNELS, grad_length=8)


def test_nothing_waits_for_the_device():
    import cupy

    if not hasattr(cupy, "no_synchronisation"):
        pytest.skip("only the stand-in knows")
    w, index = mp.Tensor(on_device(randn(7, 4).astype("float16"))).requires_grad_(), on_device(np.arange(6))
    dy = on_device(randn(6, 4).astype("float16"))
    with cupy.no_synchronisation():
        ops.embedding(mp.Tensor(index), w, padding_idx=1).backward(dy)


@pytest.mark.parametrize("width", [1, 8])
def test_a_row_that_is_looked_up_very_often(width):
    rows = np.full((100_000, width), 0.1, "float32")
    total = GPU.scatter_add_rows(2, on_device(np.ones(100_000, int)), on_device(rows)).get()
    assert (total[0] == 0).all()
    assert (np.abs(total[1] / (100_000 * float(rows[0, 0])) - 1) <= 1e-6).all()
