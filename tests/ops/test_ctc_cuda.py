"""The CUDA twin of ctc_loss against its definition."""

import numpy as np
import pytest

import tinymp as mp
from oracle import randn, rng
from tinymp import ops
from tinymp.ops import ctc
from tinymp.ops.ctc import CTCLoss
from twins import check_twin, on_device

KERNELS = {"ctc_forward", "ctc_backward"}


@pytest.fixture(autouse=True)
def _gpu(gpu):
    pass


def problem(frames, n, classes, longest, seed=1):
    """Log-probabilities, targets with repetitions, and lengths: some empty, some too long for their input."""
    generator = rng(seed)
    x = 2 * randn(frames, n, classes, seed=seed)
    x -= np.log(np.exp(x).sum(2, keepdims=True))
    targets = generator.integers(1, min(classes, 4), (n, longest))
    inputs, lengths = generator.integers(0, frames + 1, n), generator.integers(0, longest + 1, n)
    inputs[0], lengths[0] = frames, min(longest, frames // 2)
    return x, targets, inputs, lengths


def hold(x, *given, op=ops.ctc_loss, **options):
    size = len(x) * np.abs(x).max()
    check_twin(
        lambda x, *given: op(x, *given, **options),
        x,
        *map(np.asarray, given),
        kernels=KERNELS,
        length=8 * len(x),
        magnitude=size * (x.shape[1] if options.get("reduction") == "sum" else 1),
        grad_length=8 * size,
        grad_magnitude=1.0,
    )


@pytest.mark.parametrize(("reduction", "zero_infinity"), [("none", False), ("mean", True), ("sum", True)])
@pytest.mark.parametrize("shape", [(1, 1, 2, 1), (6, 3, 4, 3), (9, 2, 200, 4), (20, 2, 5, 9), (3, 2, 4, 0)])
def test_against_the_definition(shape, reduction, zero_infinity):
    hold(*problem(*shape), reduction=reduction, zero_infinity=zero_infinity)


def test_more_states_than_threads():
    """The mirror image of a short target in a wide row begins behind the first 256."""
    x, targets, _, _ = problem(8, 3, 4, 280)
    hold(x, targets, [8, 6, 8], [4, 2, 280], reduction="none", zero_infinity=True)


def test_views_and_blank():
    """A view of (N, T, C), and the second half of all classes."""
    x, targets, inputs, lengths = problem(7, 3, 5, 3)
    batch_first = np.ascontiguousarray(x.transpose(1, 0, 2))
    hold(batch_first, targets, inputs, lengths, op=lambda x, *a, **k: ops.ctc_loss(x.transpose(0, 1), *a, **k))
    wide = np.concatenate([x, x], 2)
    hold(
        wide, targets - 1, inputs, lengths, op=lambda x, *a: ops.ctc_loss(x[:, :, 5:], *a, blank=4, zero_infinity=True)
    )


def both(x, *given, **options):
    """The loss and its gradient by the definition and by the twin."""
    found = []
    for made in (mp.Tensor, lambda a: mp.Tensor(on_device(a))):
        leaf = made(x).requires_grad_()
        y = ops.ctc_loss(leaf, *(made(np.asarray(a)) for a in given), reduction="none", **options)
        y.sum().backward()
        found.append((y.numpy(), mp.backend.to_cpu(leaf.grad)))
    return found


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("zero_infinity", [False, True])
def test_infinities_and_nan(dtype, zero_infinity):
    """A label that cannot be, a frame that cannot be, a target that does not fit, nan."""
    x, *_ = problem(6, 5, 4, 2)
    x[2, 0, 1] = x[3, 1] = -np.inf
    x[1, 3, 2] = np.nan
    given = [[1, 2], [1, 2], [2, 2], [1, 2], [0, 0]], [6, 6, 2, 6, 3], [2, 2, 2, 2, 0]
    (loss, dx), (twin_loss, twin_dx) = both(x.astype(dtype), *given, zero_infinity=zero_infinity)
    assert np.isnan(loss[3])
    np.testing.assert_array_equal(np.isinf(loss), [False, not zero_infinity, not zero_infinity, False, False])
    np.testing.assert_allclose(twin_loss, loss, rtol=1e-6)
    usual = [0, 1, 2, 4]  # all of a sequence with nan is nan
    np.testing.assert_allclose(twin_dx[:, usual], dx[:, usual], atol=1e-3 if dtype == "float16" else 1e-6)
    assert np.isnan(twin_dx[1, 3]).any()


BAD = [
    (0, 1, 9),
    (0, 1, -1),
    (0, 1, 0),
    (1, 0, 7),
    (1, 0, -1),
    (2, 1, 3),
    (2, 1, -2),
]  # in the first sequence, or the second
NAMES = "targets", "input_lengths", "target_lengths"


def bad(which, place, value):
    given = [np.array([[1, 2], [2, 1]]), np.array([6, 5]), np.array([2, 2])]
    given[which].reshape(-1)[place] = value
    x = mp.Tensor(on_device(randn(6, 2, 4).astype("float16"))).requires_grad_()
    return x, *(mp.Tensor(on_device(a)) for a in given)


@pytest.mark.parametrize(("which", "place", "value"), BAD)
def test_kernels_do_not_trust_values(which, place, value):
    """What will be reported later is no index until then; the other sequence does not suffer."""
    given = bad(which, place, value)
    loss = CTCLoss.apply(*given, blank=0, reduction="none", zero_infinity=True)
    loss.backward(on_device(np.ones(2, "float32")))
    other = ops.ctc_loss(*bad(2, 0, 2), reduction="none").numpy()
    good = 0 if which == 2 else 1
    assert loss.numpy()[good] == other[good]
    assert np.isfinite(mp.backend.to_cpu(given[0].grad)).all()


@pytest.mark.parametrize(("which", "place", "value"), BAD)
def test_bad_values_are_reported(gpu, which, place, value):
    with pytest.raises(ValueError, match=f"^ctc_loss: expected every value of `{NAMES[which]}` .* earlier call"):
        gpu.to_numpy(ops.ctc_loss(*bad(which, place, value)).array)


def test_targets_that_are_too_long_for_the_kernel(monkeypatch):
    """The definition stands in."""
    monkeypatch.setattr(ctc, "LONGEST", 1)
    (loss, dx), (other_loss, other_dx) = both(randn(6, 2, 4).astype("float32"), [[1, 2], [3, 3]], [6, 5], [2, 2])
    np.testing.assert_allclose(other_loss, loss, rtol=1e-6)
    np.testing.assert_allclose(other_dx, dx, atol=1e-6)


def test_lengths_on_the_host():
    """They say which labels are needed, are checked at once, and moved. So is what lies on a GPU beside a CPU."""
    x, targets = mp.Tensor(on_device(randn(6, 2, 4).astype("float32"))), np.array([1, 2, 3])
    expected = ops.ctc_loss(mp.Tensor(x.numpy()), mp.Tensor(targets), [6, 5], [2, 1]).item()
    for given in (mp.Tensor(on_device(targets)), targets, [[1, 2, 0], [3, 0, 0]]):
        assert ops.ctc_loss(x, given, [6, 5], [2, 1]).item() == pytest.approx(expected, rel=1e-6)
    assert ops.ctc_loss(mp.Tensor(x.numpy()), mp.Tensor(on_device(targets)), [6, 5], [2, 1]).item() == expected
    with pytest.raises(ValueError, match=r"`target_lengths` in \[0, 3\], .* got 4 at index 1"):
        ops.ctc_loss(x, [[1, 2, 0], [3, 0, 0]], [6, 5], [2, 4])


def test_nothing_waits_for_the_device():
    import cupy

    if not hasattr(cupy, "no_synchronisation"):
        pytest.skip("only the stand-in knows")
    x = mp.Tensor(on_device(randn(6, 2, 4).astype("float16"))).requires_grad_()
    given = [mp.Tensor(on_device(np.array(a))) for a in ([[1, 2], [3, 3]], [6, 5], [2, 2])]
    with cupy.no_synchronisation():
        ops.ctc_loss(x, *given, zero_infinity=True).backward()
