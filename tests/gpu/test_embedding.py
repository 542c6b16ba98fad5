"""Sums of rows by index on the GPU: the gradients of embedding, gather and indexing."""

import numpy as np
import pytest

import tinymp as mp
from gpu.both_ways import check_both_ways, on_device
from oracle import randn, rng
from tinymp import ops
from tinymp.gpu import row_sums

KERNELS, GPU = {"add_rows"}, mp.backend.gpu


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


@pytest.mark.parametrize("width", [(), (3,), (2, 4), (20,)])
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


@pytest.mark.parametrize("dtype", ["float16", "float64"])
def test_other_dtypes_are_left_to_the_definition(gpu, dtype):
    """Gradient checks take FP64, and a study of FP16 accumulators rounds every addition: 3 000 ones are 2048 then."""
    index, rows = on_device(np.zeros(3000, int)), on_device(np.ones((3000, 1), dtype))
    assert row_sums.scatter_add_rows(gpu, 2, index, rows) is NotImplemented
    assert gpu.scatter_add_rows(2, index, rows).get().tolist() == [[2048 if dtype == "float16" else 3000], [0]]


@pytest.mark.parametrize(
    ("index", "padding"),
    [(np.array(2), None), (np.array([0, 3, 3, 3, 6]), 3), (np.array([[1, 2, 1], [6, 0, 1]]), None)],
)
def test_embedding(index, padding):
    op = lambda w, i: ops.embedding(i, w, padding_idx=padding)  # noqa: E731
    check_both_ways(op, randn(7, 8), index, kernels=KERNELS, grad_length=index.size)
    check_both_ways(op, randn(7, 4), np.empty((0, 2), int))


def test_other_lookups():
    place = np.array([[0, 2, 2, 1], [1, 1, 0, 1]])
    check_both_ways(lambda x, i: ops.gather(x, 0, i), randn(3, 4), place, kernels=KERNELS, grad_length=8)
    check_both_ways(lambda x, i: ops.index_select(x, 1, i), randn(3, 4), place[0], kernels=KERNELS, grad_length=8)
    check_both_ways(lambda x, i: x[i], randn(3, 4, 2), place, kernels=KERNELS, grad_length=8)


@pytest.mark.parametrize("width", [1, 8])
def test_a_row_that_is_looked_up_very_often(width):
    rows = np.full((100_000, width), 0.1, "float32")
    total = GPU.scatter_add_rows(2, on_device(np.ones(100_000, int)), on_device(rows)).get()
    assert (total[0] == 0).all()
    assert (np.abs(total[1] / (100_000 * float(rows[0, 0])) - 1) <= 1e-6).all()
