"""Batch and layer normalisation: running statistics, and how they follow the optimizer's step."""

import copy
import pickle
import threading
import weakref

import numpy as np
import pytest

import tinymp as mp
from oracle import randn
from tinymp import nn, optim, statistics

SHAPES = {nn.BatchNorm1d: [(6, 3), (4, 3, 5)], nn.BatchNorm2d: [(2, 3, 4, 5)]}
CASES = [(layer, shape) for layer, shapes in SHAPES.items() for shape in shapes]


def settle(model, applied):
    """What the step of an optimizer over the model's parameters does."""
    statistics.settle(not applied, list(model.parameters()))


def batches(shape, n=3):
    return [randn(*shape, seed=i).astype("float32") * (i + 1) + i for i in range(n)]


def channel_statistics(x):
    axes = (0, *range(2, x.ndim))
    x = x.astype("float64")
    return x.mean(axes), x.var(axes), x.var(axes, ddof=1)


def normalised(x, mean, var, eps):
    shape = (1, -1, *[1] * (x.ndim - 2))
    return (x - mean.reshape(shape)) / np.sqrt(var.reshape(shape) + eps)


def ones(*shape):
    return mp.tensor(np.ones(shape, "float32"))


def buffers(m):
    """Copies of their values."""
    return {name: b.numpy().copy() for name, b in m.named_buffers()}


@pytest.mark.parametrize(("layer", "shape"), CASES)
@pytest.mark.parametrize("momentum", [0.1, 1.0, None])
def test_running_statistics(layer, shape, momentum):
    m = layer(3, momentum=momentum, eps=1e-3)
    mean, var = np.zeros(3), np.ones(3)
    for i, x in enumerate(batches(shape)):
        m.train()
        batch_mean, biased, unbiased = channel_statistics(x)
        y = m(mp.tensor(x)).numpy()
        np.testing.assert_allclose(y, normalised(x, batch_mean, biased, 1e-3), rtol=1e-4, atol=1e-5)
        f = 1 / (i + 1) if momentum is None else momentum
        mean, var = (1 - f) * mean + f * batch_mean, (1 - f) * var + f * unbiased
        np.testing.assert_allclose(m.running_mean.numpy(), mean, rtol=1e-5)
        np.testing.assert_allclose(m.running_var.numpy(), var, rtol=1e-5)
        assert m.num_batches_tracked.array == i + 1
        kept = buffers(m.eval())
        np.testing.assert_allclose(m(mp.tensor(x)).numpy(), normalised(x, mean, var, 1e-3), rtol=1e-4, atol=1e-5)
        np.testing.assert_equal(buffers(m), kept, "evaluation changes nothing")


def test_without_statistics_or_affine():
    m = nn.BatchNorm1d(3, affine=False, track_running_stats=False)
    assert list(m.named_parameters()) == []
    assert m.state_dict() == {}
    x = batches((6, 3))[1]
    np.testing.assert_array_equal(m(mp.tensor(x)).numpy(), m.eval()(mp.tensor(x)).numpy())
    assert [name for name, _ in nn.BatchNorm1d(3, bias=False).named_parameters()] == ["weight"]
    m = nn.BatchNorm1d(3)
    m.track_running_stats = False  # as in PyTorch: training leaves the buffers alone, evaluation still reads them
    m(mp.tensor(x))
    assert m.num_batches_tracked.array == 0
    np.testing.assert_allclose(m.eval()(mp.tensor(x)).numpy(), x, rtol=1e-4)


@pytest.mark.parametrize("policy", [mp.FP32, mp.MIXED, mp.PURE_FP16])
def test_a_skipped_step_leaves_no_trace(policy):
    m = policy.cast(nn.BatchNorm1d(3, momentum=None))
    xs = [policy.cast(mp.tensor(x)) for x in batches((6, 3))]
    m(xs[0])
    settle(m, applied=True)
    before = buffers(m)
    m(xs[1]), m(xs[2])  # two batches (gradient accumulation) before the step that is skipped
    assert m.num_batches_tracked.array == 3
    settle(m, applied=False)
    for name, b in buffers(m).items():
        np.testing.assert_array_equal(b, before[name], strict=True)
    m(xs[1])
    settle(m, applied=True)
    settle(m, applied=False)  # of a step without a training forward: nothing to undo
    assert m.num_batches_tracked.array == 2


@pytest.mark.parametrize(
    "act",
    [
        lambda m: m.load_state_dict(nn.BatchNorm1d(3).state_dict()),
        lambda m: m.reset_running_stats(),
        lambda m: mp.PURE_FP16.cast(m),
    ],
    ids=["load", "reset", "cast"],
)
def test_a_skipped_step_does_not_undo_what_the_user_did(act):
    m = nn.BatchNorm1d(3)
    m(mp.tensor(batches((6, 3))[0]))
    act(m)
    after = buffers(m)
    settle(m, applied=False)
    np.testing.assert_equal(buffers(m), after)


def test_a_failing_forward_changes_nothing():
    m = nn.BatchNorm1d(3)
    before = buffers(m)
    with pytest.raises(ValueError, match="more than one value per channel"):
        m(ones(1, 3))
    np.testing.assert_equal(buffers(m), before)


def test_mixed_keeps_statistics_and_parameters_in_fp32():
    m = mp.MIXED.cast(nn.BatchNorm2d(3))
    y = m(mp.tensor(batches((2, 3, 4, 5))[2]).half())
    y.sum().backward()
    assert y.dtype == "float16"
    assert {b.dtype.name for b in m.buffers()} == {"float32", "int64"}
    assert {p.grad.dtype.name for p in m.parameters()} == {"float32"}


@pytest.mark.parametrize("value", [-1.0, 5.0, float("nan"), float("inf"), "0.1", True])
@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda v: nn.BatchNorm1d(3, eps=v), "eps"),
        (lambda v: nn.BatchNorm2d(3, momentum=v), "momentum"),
        (lambda v: nn.Dropout(v), "p"),
        (lambda v: nn.LSTM(3, 3, 2, dropout=v), "dropout"),
    ],
)
def test_every_number_is_checked(make, name, value):
    if (name, value) == ("eps", 5.0):
        assert make(value).eps == 5
        return
    with pytest.raises((TypeError, ValueError), match=rf"^\w+: expected .*{name}"):
        make(value)


def test_each_optimizer_settles_the_layers_it_trains():
    """A GAN: the discriminator's applied step says nothing about the generator's statistics."""
    g, d = nn.BatchNorm1d(3), nn.BatchNorm1d(3)
    x = mp.tensor(batches((6, 3))[1])
    d(g(x))
    settle(d, applied=True)
    settle(g, applied=False)
    assert d.num_batches_tracked.array == 1
    assert g.num_batches_tracked.array == 0


def test_a_skipped_step_restores_its_own_layers_though_another_was_applied():
    """One scaler for both networks of a GAN: the discriminator steps first."""
    g, d = nn.BatchNorm1d(3), nn.BatchNorm1d(3)
    d(g(mp.tensor(batches((6, 3))[1])))
    scaler = optim.NoLossScaler()
    for layer, gradient, counted in ((d, 1, 1), (g, np.inf, 0)):
        for p in layer.parameters():
            p.grad = np.full(3, gradient, "float32")
        assert bool(scaler.step(optim.SGD(layer.parameters()))) == counted
        assert layer.num_batches_tracked.item() == counted


def test_calibration_is_not_part_of_a_step():
    m = nn.BatchNorm1d(3)
    with mp.no_grad():
        for x in batches((6, 3)):
            m(mp.tensor(x))
    settle(m, applied=False)
    assert m.num_batches_tracked.array == 3


def test_notes_do_not_keep_a_layer_alive():
    m = nn.BatchNorm1d(3)
    m(mp.tensor(batches((6, 3))[0]))
    buffer = weakref.ref(m.running_mean)
    assert len(statistics.iteration.open) == 1
    del m  # the last reference: no collector has to come by, which in another thread would be in the midst of its work
    assert buffer() is None and not statistics.iteration.open


class Net(nn.Module):
    """A batch norm, and a head behind it."""

    def __init__(self, **options):
        super().__init__()
        self.norm, self.head = nn.BatchNorm1d(3, **options), nn.Linear(3, 1)

    def forward(self, x):
        return self.head(self.norm(x))


def train(model, optimizer, scaler, x, size=1.0):
    """One iteration; a size of 1e38 makes the gradients overflow. scaler None: without one."""
    optimizer.zero_grad()
    loss = (model(mp.tensor(x)) * size).mean()
    if scaler is None:
        loss.backward()
        return optimizer.step(allow_missing=True)
    scaler.scale(loss).backward()
    result = scaler.step(optimizer, allow_missing=True)
    scaler.update()
    return result


@pytest.mark.parametrize("freeze", [False, True])
@pytest.mark.parametrize("options", [{}, {"affine": False}], ids=str)
@pytest.mark.parametrize("scaled", [False, True])
def test_statistics_of_a_layer_that_was_not_trained_are_kept(scaled, options, freeze):
    """Twenty steps of the head alone; then all is trained, and the first step overflows."""
    model = Net(**options)
    model.norm.requires_grad_(not freeze)
    scaler = optim.StaticLossScaler(2.0) if scaled else None
    head = optim.SGD(model.head.parameters(), lr=0.01)
    for x in batches((6, 3), 20):
        assert train(model, head, scaler, x)
    before = buffers(model.norm)
    model.norm.requires_grad_(True)
    model.norm.eval() if freeze else None
    whole = optim.SGD(model.parameters(), lr=0.01)
    assert not train(model, whole, optim.StaticLossScaler(8.0), x, 1e38)
    np.testing.assert_equal(buffers(model.norm), before)


@pytest.mark.parametrize("options", [{}, {"affine": False}], ids=str)
def test_a_skipped_step_leaves_no_trace_in_a_frozen_layer(options):
    model, x = Net(**options), batches((6, 3))[1]
    optimizer, scaler = optim.SGD(model.head.parameters(), lr=0.01), optim.StaticLossScaler(8.0)
    model.norm.requires_grad_(False)
    before = buffers(model.norm)
    assert not train(model, optimizer, scaler, x, 1e38)
    np.testing.assert_equal(buffers(model.norm), before)
    assert train(model, optimizer, scaler, x)
    assert model.norm.num_batches_tracked.item() == 1


def test_statistics_of_a_step_that_was_left_out():
    """It would have been skipped, or not: that decides."""
    model, x = Net(), batches((6, 3))[1]
    optimizer, scaler = optim.SGD(model.parameters()), optim.StaticLossScaler(8.0)
    for size, expected in ((1.0, 1), (1e38, 1), (1.0, 2)):
        optimizer.zero_grad()
        scaler.scale((model(mp.tensor(x)) * size).mean()).backward()
        scaler.unscale_(optimizer)
        scaler.update()
        assert model.norm.num_batches_tracked.item() == expected


def test_what_the_user_writes_between_two_forwards_stays():
    m, xs = nn.BatchNorm1d(3), [mp.tensor(x) for x in batches((6, 3))]
    m(xs[0])
    with mp.no_grad():
        m.num_batches_tracked.copy_(np.array(7))
    settle(m, applied=False)
    assert m.num_batches_tracked.item() == 7
    m(xs[0])
    with mp.no_grad():
        m.num_batches_tracked.zero_()
    m(xs[1])
    settle(m, applied=False)
    assert m.num_batches_tracked.item() == 0
    m(xs[0])
    with mp.no_grad():
        m(xs[1])  # a forward of the layer itself is undone together with the one before
    settle(m, applied=False)
    assert m.num_batches_tracked.item() == 0


def test_another_threads_step_settles_nothing_here():
    m = nn.BatchNorm1d(3)
    m(mp.tensor(batches((6, 3))[1]))
    other = threading.Thread(target=statistics.settle, args=(False,))
    other.start()
    other.join()
    statistics.settle(True)
    assert m.num_batches_tracked.item() == 0


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))], ids=["copy", "pickle"])
def test_a_copied_layer_has_an_iteration_of_its_own(duplicate):
    m = nn.BatchNorm1d(3)
    m(mp.tensor(batches((6, 3))[1]))
    other = duplicate(m)
    other(mp.tensor(batches((6, 3))[1]))
    statistics.settle(True)
    assert m.num_batches_tracked.item() == 0 and other.num_batches_tracked.item() == 1


@pytest.mark.parametrize(("layer", "shape"), [(nn.InstanceNorm1d, (4, 3, 6)), (nn.InstanceNorm2d, (2, 3, 4, 5))])
def test_instance_norm(layer, shape):
    """Of every example alone; running statistics follow the mean over the examples, and an undone step undoes them."""
    x = randn(*shape).astype("float32") * 2 + 1
    axes = tuple(range(2, x.ndim))
    mean, var = x.mean(axes, keepdims=True), x.var(axes, keepdims=True)
    plain = layer(3)
    expected = (x - mean) / np.sqrt(var + 1e-5)
    np.testing.assert_allclose(plain(mp.tensor(x)).numpy(), expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(plain.eval()(mp.tensor(x[0])).numpy(), expected[0], rtol=1e-4, atol=1e-5)

    m = layer(3, momentum=0.25, affine=True, track_running_stats=True)
    m(mp.tensor(x))
    n = x[0, 0].size
    np.testing.assert_allclose(m.running_mean.numpy(), 0.25 * mean.mean(0).reshape(3), rtol=1e-4)
    moved = 0.75 + 0.25 * (var * n / (n - 1)).mean(0).reshape(3)
    np.testing.assert_allclose(m.running_var.numpy(), moved, rtol=1e-4)
    settle(m, True)
    kept = buffers(m)
    m(mp.tensor(x * 3))
    assert not np.array_equal(m.running_mean.numpy(), kept["running_mean"])
    settle(m, False)
    np.testing.assert_array_equal(m.running_mean.numpy(), kept["running_mean"])
    y = m.eval()(mp.tensor(x)).numpy()
    np.testing.assert_allclose(y, normalised(x, kept["running_mean"], kept["running_var"], 1e-5), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "layer", [lambda: nn.GroupNorm(2, 4), lambda: nn.RMSNorm(6), lambda: nn.InstanceNorm1d(4, affine=True)]
)
def test_parameters_stay_in_fp32(layer):
    m, x = mp.MIXED.cast(layer()), mp.tensor(randn(3, 4, 6).astype("float16"))
    assert {p.dtype.name for p in m.parameters()} == {"float32"} and m(x).dtype == "float16"
