"""ctc_loss against PyTorch; its edges; long sequences; on a GPU."""

import numpy as np
import pytest

import tinymp as mp
from gpu.both_ways import on_device
from oracle import check, host, randn, rng
from tinymp import ops

torch = pytest.importorskip("torch")


def theirs(x, targets, *lengths, **options):
    """PyTorch's loss, in FP64; what lies beyond a target's end is not read, but must be a class there."""
    targets = np.where(np.asarray(targets) < x.shape[2], targets, 0)
    given = (torch.tensor(np.asarray(v)) for v in (x, targets, *lengths))
    return torch.nn.functional.ctc_loss(*given, reduction="none", **options).numpy()


def hold(x, targets, *lengths, **options):
    """Forward and gradient, in every dtype. A loss adds up one value per frame, and so do the logarithms of states."""
    size = len(x) * np.abs(x).max()
    check(
        lambda x, t: ops.ctc_loss(x, t, *lengths, reduction="none", **options),
        lambda x, t: theirs(x, t, *lengths, **options),
        x,
        np.asarray(targets),
        length=8 * len(x),
        magnitude=size,
        grad_length=8 * len(x) * size,
        result="float32",
    )


TARGETS = [[1, 2, 1], [1, 1, 7], [2, 2, 7], [7, 7, 7], [2, 7, 7]]  # what is 7 lies beyond a target's end


@pytest.mark.parametrize("blank", [0, 1])
@pytest.mark.parametrize("input_lengths", [[5, 5, 5, 5, 5], [5, 4, 3, 2, 1]])
def test_losses_are_those_of_pytorch(input_lengths, blank):
    """Repeated labels, an empty target, targets that just fit."""
    targets = np.array(TARGETS)
    if blank:
        targets = np.where(targets == 1, 0, targets)
    hold(randn(5, 5, 3), targets, input_lengths, [3, 2, 2, 0, 1], blank=blank)


def run(x, *args, dtype="float64", dy=1.0, **options):
    """The loss and the gradient at log_probs."""
    x = mp.tensor(np.asarray(x, dtype), requires_grad=True)
    y = ops.ctc_loss(x, *args, **options)
    y.backward(np.full(y.shape, dy, y.dtype))
    return y.numpy(), host(x.grad)


X = randn(4, 3, 3)
PADDED = mp.tensor([[1, 2, 1], [2, 0, 0], [1, 1, 0]]), [4, 2, 4], [3, 1, 2]


@pytest.mark.parametrize("dtype", ["float16", "float64"])
@pytest.mark.parametrize("zero_infinity", [False, True])
def test_targets_that_do_not_fit(zero_infinity, dtype):
    """Two frames for two equal labels; no frame for a label. No frame for no label is certain."""
    targets, lengths = mp.tensor([[1, 2], [1, 1], [1, 1], [1, 1]]), ([4, 2, 0, 0], [2, 2, 1, 0])
    loss, dx = run(
        X[:, [0, 1, 2, 2]], targets, *lengths, dtype=dtype, reduction="none", zero_infinity=zero_infinity, dy=8.0
    )
    assert np.isfinite(loss[0])
    np.testing.assert_array_equal(loss[1:], [0, 0, 0] if zero_infinity else [np.inf, np.inf, 0])
    assert np.isfinite(dx[:, 0]).all()
    np.testing.assert_array_equal(dx[:2, 1], 0 if zero_infinity else np.nan)
    assert not dx[2:, 1].any()
    assert not dx[:, 2:].any()


def test_probabilities_of_zero():
    """A class that cannot be is passed by; if all that fits is impossible, the loss is infinite, but no nan."""
    x = np.array(X)
    x[1, 0] = [-np.inf, 0, -np.inf]
    x[0, 1, 2] = x[1, 1, 2] = -np.inf
    loss, dx = run(x, *PADDED, reduction="none")
    np.testing.assert_allclose(loss, theirs(x, host(PADDED[0].array), *PADDED[1:]), rtol=1e-14)
    assert loss[1] == np.inf and np.isfinite(dx[:, [0, 2]]).all() and not dx[1, 0, [0, 2]].any()


def test_long_sequences_keep_their_digits():
    """A loss of 6,000 has an ulp of 5e-4 in FP32; what its gradient is made of stays small."""
    x, targets, lengths = randn(2000, 2, 29), rng().integers(1, 29, (2, 200)), ([2000, 1993], [200, 195])
    x = host(ops.log_softmax(mp.tensor(x), -1).array).astype("float32")
    (loss, dx), (exact, exact_dx) = (
        run(x, mp.tensor(targets), *lengths, dtype=dtype, reduction="none") for dtype in ("float32", "float64")
    )
    assert (exact > 6000).all()
    np.testing.assert_allclose(loss, exact, rtol=3e-7)
    np.testing.assert_allclose(dx, exact_dx, atol=2e-4)
    frames = np.arange(2000)[:, None] < lengths[0]
    np.testing.assert_allclose(dx.sum(2), np.where(frames, -1, 0), atol=1e-5)  # every frame has one state


# ---- on a GPU ----


def there(*arrays):
    return [mp.Tensor(on_device(np.asarray(a))) for a in arrays]


@pytest.mark.parametrize(("which", "place", "value"), [(0, 1, 9), (0, 1, 0), (1, 0, 7), (1, 0, -1), (2, 1, 3)])
def test_a_gpu_reports_bad_values_later(gpu, which, place, value):
    """But before a result can be seen."""
    given = [np.array([[1, 2], [2, 1]]), np.array([6, 5]), np.array([2, 2])]
    given[which].reshape(-1)[place] = value
    x, *labels = there(randn(6, 2, 4).astype("float16"), *given)
    name = ("targets", "input_lengths", "target_lengths")[which]
    with pytest.raises(ValueError, match=f"^ctc_loss: expected every value of `{name}` .* earlier call"):
        ops.ctc_loss(x.requires_grad_(), *labels).numpy()
