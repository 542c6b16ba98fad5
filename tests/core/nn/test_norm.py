"""Batch normalisation: running statistics, and how they follow the optimizer's step."""

import numpy as np
import pytest

import tinymp as mp
from oracle import device_array, randn
from tinymp import nn, optim

SHAPES = {nn.BatchNorm1d: [(6, 3), (4, 3, 5)], nn.BatchNorm2d: [(2, 3, 4, 5)]}
CASES = [(layer, shape) for layer, shapes in SHAPES.items() for shape in shapes]

HALF = mp.Policy("HALF", master=False, norm="float16")


def settle(model, applied):
    """A step of an optimizer over the model's parameters, applied or skipped, that changes none of them."""
    for p in model.parameters():
        p.grad = device_array(np.full(p.shape, 0 if applied else np.inf, str(p.dtype)))
    assert bool(optim.NoLossScaler().step(optim.SGD(model.parameters(), lr=0.0))) == applied


def batches(shape=(6, 3), n=3):
    return [randn(*shape, seed=i).astype("float32") * (i + 1) + i for i in range(n)]


def normalised(x, mean, var, eps):
    shape = (1, -1, *[1] * (x.ndim - 2))
    return (x - mean.reshape(shape)) / np.sqrt(var.reshape(shape) + eps)


def buffers(m):
    """Copies of their values."""
    return {name: b.numpy().copy() for name, b in m.named_buffers()}


def counted(m):
    return m.num_batches_tracked.item()


@pytest.mark.parametrize(("layer", "shape"), CASES)
@pytest.mark.parametrize("momentum", [0.1, 1.0, None])
def test_running_statistics(layer, shape, momentum):
    m, axes = layer(3, momentum=momentum, eps=1e-3), (0, *range(2, len(shape)))
    mean, var = np.zeros(3), np.ones(3)
    for i, x in enumerate(batches(shape)):
        wide = x.astype("float64")
        y = m.train()(mp.tensor(x)).numpy()
        np.testing.assert_allclose(y, normalised(x, wide.mean(axes), wide.var(axes), 1e-3), rtol=1e-4, atol=1e-5)
        f = 1 / (i + 1) if momentum is None else momentum
        mean, var = (1 - f) * mean + f * wide.mean(axes), (1 - f) * var + f * wide.var(axes, ddof=1)
        np.testing.assert_allclose(m.running_mean.numpy(), mean, rtol=1e-5)
        np.testing.assert_allclose(m.running_var.numpy(), var, rtol=1e-5)
        assert counted(m) == i + 1
        kept = buffers(m.eval())
        np.testing.assert_allclose(m(mp.tensor(x)).numpy(), normalised(x, mean, var, 1e-3), rtol=1e-4, atol=1e-5)
        np.testing.assert_equal(buffers(m), kept, "evaluation changes nothing")


@pytest.mark.parametrize("policy", [mp.FP32, mp.MIXED, HALF])
def test_a_skipped_step_leaves_no_trace(policy):
    m = policy.cast(nn.BatchNorm1d(3, momentum=None))
    xs = [policy.cast(mp.tensor(x)) for x in batches()]
    assert m(xs[0]).dtype == policy.storage and m.running_mean.dtype == m.weight.dtype
    settle(m, applied=True)
    before = buffers(m)
    m(xs[1]), m(xs[2])  # two batches (gradient accumulation) before the step that is skipped
    assert counted(m) == 3
    settle(m, applied=False)
    for name, b in buffers(m).items():
        np.testing.assert_array_equal(b, before[name], strict=True)
    m(xs[1])
    settle(m, applied=True)
    settle(m, applied=False)  # of a step without a training forward: nothing to undo
    assert counted(m) == 2


@pytest.mark.parametrize(
    "act",
    [
        lambda m: m.load_state_dict(nn.BatchNorm1d(3).state_dict()),
        lambda m: m.reset_running_stats(),
        lambda m: HALF.cast(m),
        lambda m: m.num_batches_tracked.copy_(np.array(7)),
    ],
    ids=["load", "reset", "cast", "write"],
)
def test_a_skipped_step_does_not_undo_what_the_user_did(act):
    m = nn.BatchNorm1d(3)
    m(mp.tensor(batches()[0]))
    act(m)
    after = counted(m)
    settle(m, applied=False)
    assert counted(m) == after
    m.num_batches_tracked.zero_()
    if m.weight.dtype == np.float32:  # a forward after it is undone alone
        m(mp.tensor(batches()[1]))
        settle(m, applied=False)
        assert counted(m) == 0


def test_a_failing_forward_changes_nothing_and_calibration_is_not_part_of_a_step():
    m = nn.BatchNorm1d(3)
    with pytest.raises(ValueError, match="more than one value per channel"):
        m(mp.ones(1, 3))
    assert counted(m) == 0 and not m.running_mean.numpy().any()
    with mp.no_grad():
        for x in batches():
            m(mp.tensor(x))
    settle(m, applied=False)
    assert counted(m) == 3


@pytest.mark.parametrize("first", [0, 1])
def test_each_optimizer_settles_the_layers_it_trains(first):
    """A GAN: the discriminator's applied step says nothing about the generator's statistics."""
    networks = nn.BatchNorm1d(3), nn.BatchNorm1d(3)
    x = mp.tensor(batches()[1])
    for m in networks:
        x = m(x)
    for i in (first, 1 - first):
        settle(networks[i], applied=i == 1)
    assert [counted(m) for m in networks] == [0, 1]


class Net(nn.Module):
    """A batch norm, and a head behind it."""

    def __init__(self, **options):
        super().__init__()
        self.norm, self.head = nn.BatchNorm1d(3, **options), nn.Linear(3, 1)

    def forward(self, x):
        return self.head(self.norm(x))


def train(model, optimizer, scaler, x, size=1.0):
    """One iteration; a size of 1e38 makes the gradients overflow."""
    optimizer.zero_grad()
    scaler.scale((model(mp.tensor(x)) * size).mean()).backward()
    result = scaler.step(optimizer, allow_missing=True)
    scaler.update()
    return result


@pytest.mark.parametrize("freeze", [False, True])
@pytest.mark.parametrize("options", [{}, {"affine": False}], ids=str)
def test_statistics_of_a_layer_that_was_not_trained_are_kept(options, freeze):
    """Steps of the head alone; then all is trained, and the first step overflows."""
    model = Net(**options)
    model.norm.requires_grad_(not freeze)
    head = optim.SGD(model.head.parameters(), lr=0.01)
    if freeze:  # a skipped step leaves no trace in a frozen layer, either
        before = buffers(model.norm)
        assert not train(model, head, optim.StaticLossScaler(8.0), batches()[0], 1e38)
        np.testing.assert_equal(buffers(model.norm), before)
    for x in batches((6, 3), 5):
        assert train(model, head, optim.NoLossScaler(), x)
    before = buffers(model.norm)
    model.norm.requires_grad_(True)
    model.norm.eval() if freeze else None
    whole = optim.SGD(model.parameters(), lr=0.01)
    assert not train(model, whole, optim.StaticLossScaler(8.0), x, 1e38)
    np.testing.assert_equal(buffers(model.norm), before)
