"""Cross entropy in CUDA: every reduction, every way in which threads share rows, every layout."""

import numpy as np
import pytest

import tinymp as mp
from gpu.both_ways import check_both_ways, on_device
from oracle import randn, rng
from tinymp import ops

HOW = [("mean", 0.0, False), ("mean", 0.25, True), ("sum", 0.25, False), ("none", 1.0, True), ("none", 0.0, True)]
ROWS = [
    (5,),
    (1, 1),
    (3, 7),  # a thread per row
    (257, 3),  # more than one block
    (9, 8),
    (70, 40),  # a few lanes per row; aligned
    (5, 333),  # a warp per row, which starts anywhere
    (3, 1101),  # a block per row
    (2, 2200),
    (2, 3, 1),
    (2, 11, 3, 5),  # classes that are not neighbours in memory: left to the definition
]


def labels(shape, ignored=-100):
    """Labels for logits of this shape; some rows, but not the first, are ignored."""
    axis = min(1, len(shape) - 1)
    rows = shape[:axis] + shape[axis + 1 :]
    target = np.where(rng(4).random(rows) < 0.3, ignored, rng(3).integers(0, shape[axis], rows))
    target[(0,) * target.ndim] = 0
    return target


def check_rows(x, target, reduction, weighted=False, op=ops.cross_entropy, **options):
    classes = x.shape[min(1, x.ndim - 1)]
    w = rng(7).integers(1, 9, classes) / 4  # exact in FP16

    def loss(x, t):
        weight = None
        if weighted:
            weight = on_device(w.astype(x.dtype)) if x.device == "gpu" else w.astype(x.dtype)
        return op(x, t, None if weight is None else mp.Tensor(weight), reduction=reduction, **options)

    kernels = {"cross_entropy_forward", "cross_entropy_backward"}
    largest = np.abs(x).max()
    check_both_ways(
        loss,
        x,
        target,
        kernels=kernels if x.ndim < 3 or x.strides[1] == x.itemsize or 1 in x.shape[2:] else (),
        length=classes + target.size,
        magnitude=(target.size if reduction == "sum" else 1) * 2 * (2 * largest + np.log(classes)),
        grad_length=2 * classes + 2 * largest + 8,  # the error of exp grows with its argument
    )


@pytest.mark.parametrize(("shape", "how"), [(shape, HOW[(i + j) % 5]) for i, shape in enumerate(ROWS) for j in (0, 2)])
def test_cross_entropy(shape, how):
    reduction, smoothing, weighted = how
    check_rows(2 * randn(*shape), labels(shape), reduction, weighted, label_smoothing=smoothing)


@pytest.mark.parametrize(("dtype", "ignored"), [("int32", 1), ("uint8", 200)])
def test_labels_of_other_integers(dtype, ignored):
    target = labels((20, 7), ignored).astype(dtype)
    check_rows(randn(20, 7), target, "mean", ignore_index=ignored)


@pytest.mark.parametrize(
    ("order", "reduction"), [((1, 2, 3, 0), "none"), ((0, 2, 3, 1), "mean"), ((3, 1, 0, 2), "none")]
)
def test_memory_orders(order, reduction):
    """Rows are counted in the order of memory, labels and gradients in their own; logits may begin anywhere."""
    x = np.ascontiguousarray(randn(3, 10, 2, 5).transpose(order)).transpose(np.argsort(order))
    check_rows(x, labels(x.shape), reduction, weighted=True)
    for rows in (slice(1, None), slice(None, None, 2)):
        x = randn(7, 45)
        op = lambda x, *a, rows=rows, **k: ops.cross_entropy(x[rows], *a, **k)  # noqa: E731
        check_rows(x, labels(x[rows].shape), "mean", op=op)


def results(x, target, dtype, **options):
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
def test_infinities_and_nan(dtype, shape, smoothing):
    """They come out in the same places; a class of -inf has no part in its row."""
    rows = [
        {0: -np.inf}, {1: -np.inf, 3: 65504}, {1: np.inf}, {0: np.nan}, {2: 65504, 3: 65504, 5: -65504},
        dict.fromkeys(range(8), -np.inf), dict.fromkeys(range(shape[1]), -np.inf), {0: np.inf, 4: np.nan},
    ]  # fmt: skip
    x = np.concatenate([randn(*shape) for _ in rows])
    for row, values in zip(x, rows):
        for c, value in values.items():
            row[c] = value
    target = np.broadcast_to(np.array([0, 3, 1, 2, 3, 8, 5, 1]).reshape(-1, *[1] * (len(shape) - 2)), x[:, 0].shape)
    (loss, dx), (fast_loss, fast_dx) = results(x, target.copy(), dtype, reduction="none", label_smoothing=smoothing)
    np.testing.assert_allclose(fast_loss, loss, rtol=1e-5)
    np.testing.assert_allclose(
        fast_dx.astype("f8"), dx.astype("f8"), rtol=2e-3 if dtype == "float16" else 1e-5, atol=1e-6
    )


def test_large_logits_keep_their_digits():
    """Also where label smoothing adds up all of them."""
    x = np.array([[65504, 65472, 65440], [-65504, -65472, -65504]])
    for dtype in ("float16", "float32"):
        (loss, _), (fast, _) = results(x, np.array([1, 1]), dtype, reduction="none", label_smoothing=0.5)
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


@pytest.mark.parametrize(
    ("x", "target"),
    [(randn(3, 4), [-100] * 3), (np.empty((0, 3)), []), (np.array([[1, 2], [np.nan, np.inf]]), [1, -100])],
)
def test_rows_that_are_ignored_whatever_they_hold(x, target):
    for reduction in ("mean", "sum")[not target :]:
        (loss, dx), (fast, fast_dx) = results(x, np.array(target, int), "float16", reduction=reduction)
        np.testing.assert_allclose(fast, loss, rtol=1e-6)  # nan for a mean over nothing
        np.testing.assert_allclose(fast_dx, dx, rtol=2e-3)
        assert not np.isfinite(x).all() or not dx[np.array(target, int) < 0].any()
