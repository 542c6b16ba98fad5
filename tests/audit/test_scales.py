"""Every planted overflow is found where it was planted, with its number, and what is replayed leaves nothing behind."""

import numpy as np
import pytest

import tinymp as mp
from job import Job, same
from tinymp import nn, ops, optim
from tinymp.audit.listener import Listener
from tinymp.audit.scales import Scales
from tinymp.events import Setting, in_pass


@pytest.fixture(autouse=True)
def _forward():
    """These tests stand for a module's forward: weights are read as their copies."""
    with Setting(in_pass, True):
        yield


def half(*values):
    return mp.MIXED.cast(mp.tensor(np.array(values, "f4")))


def parameter(*values):
    return mp.MIXED.cast(nn.Parameter(np.array(values, "f4")))


def explained(loss, parameters, scaler=None, steps=1, lr=0.0, between=lambda: None):
    """Scales after some steps with the losses that the function `loss` gives."""
    optimizer, scaler = optim.SGD(parameters, lr=lr), scaler or optim.StaticLossScaler(2.0**10)
    found = Scales()
    with Listener([found]):
        for _ in range(steps):
            optimizer.zero_grad()
            scaler.scale(loss()).backward()
            between()
            scaler.step(optimizer)
            scaler.update()
    return found


def total(x):
    """The sum in FP32: a scalar loss whose gradient is S everywhere."""
    return x.float().sum()


def product(w, *factors):
    for factor in factors:
        w = w * factor
    return w


def used_twice(w):
    x = w * 1.0
    return x * 40.0 + x * 40.0


def masked(w):
    x = half(100, 3)
    ops.exp(x)  # infinite, and nobody reads it
    return w * x + ops.softmax(ops.masked_fill(x, x > 50, float("-inf")), 0) * w


def not_taken(w):
    x = w * w
    return ops.where(x < 1.0, x * x, 1.0)  # the gradient of what is not taken is 0, times infinity


HIGH, FORWARD, NO_VALUE = "loss scale too high", "forward overflow", "not finite in the forward pass"
S, LOST, ROUNDED_UP = 2.0**10, (32.0, 2.0**15, 2.0**15, 2.0**-15, 2.0**-15), (2.0**15, 2.0**15, 2.0**-12, 3 * 2.0**-14)


@pytest.mark.parametrize(
    ("y", "weights", "scale", "cause", "op", "value", "fits", "text"),
    [
        (lambda w: w * half(100, 3), [1, 1], S, HIGH, "mul", 102400, 512, "the largest gradient is 100; up to S = 512"),
        (lambda w: w * 300 * 300, [0], 1.0, HIGH, "mul", 90000, 0.5, "at S = 1 the largest gradient is 90,000"),
        (lambda w: product(w, *LOST), [2.0**-20], 2.0**15, HIGH, "mul", 2**20, S, ""),  # S 2^-30 on the way
        (lambda w: product(w, *ROUNDED_UP), [2.0**-20], 2.0**12, HIGH, "mul", 3 * 2**16, S, ""),  # 0.75 S 2^-24, too
        (lambda w: w * 40.0 + w * 40.0, [1], S, HIGH, "sum of gradients", 81920, 512, ""),  # each of them fits
        (used_twice, [1], S, HIGH, "mul", 81920, 512, ""),
        (masked, [1, 1], S, HIGH, "mul", 102400, 512, ""),
        (
            lambda w: ops.sqrt(w * 1.0),
            [0, 4],
            2.0**-14,
            "backward overflow",
            "sqrt",
            None,
            None,
            "whatever the loss sc",
        ),
        (lambda w: w * w * w + ops.exp(w), [200, 12], S, FORWARD, "mul", 8e6, None, ""),  # the first of two
        (lambda w: w * ops.exp(half(12)), [1], S, FORWARD, "exp", float(np.exp(np.float32(12))), None, ""),
        (not_taken, [300], S, FORWARD, "mul", 90000, None, ""),
        (lambda w: ops.log(w * 1.0), [0], S, NO_VALUE, "log", None, None, "an infinity from finite arguments"),
        (lambda w: w / w, [0], S, NO_VALUE, "div", None, None, "a NaN from finite arguments"),
        (lambda w: w * half(np.nan), [1], S, "input not finite", "mul", None, None, "argument `other` holds"),
    ],
)
def test_causes(y, weights, scale, cause, op, value, fits, text):
    (found,) = explained(lambda: total(y(w)), [w := parameter(*weights)], optim.StaticLossScaler(scale)).causes
    assert (found.iteration, found.scale, found.cause, found.op) == (0, scale, cause, op)
    assert (found.value, found.largest_scale) == (value, fits) and text in found.text
    assert found.caller.startswith("test_scales.py:")


@pytest.mark.parametrize(("largest", "fits"), [(65504, 1), (2047, 32), (2048, 16), (0.5, 2**15)])
def test_the_largest_scale_is_right_at_the_edges(largest, fits):
    w, x = parameter(1), half(largest)
    (cause,) = explained(lambda: total(w * x), [w], optim.StaticLossScaler(2.0**18)).causes
    assert cause.largest_scale == fits  # below it, S itself is the largest gradient
    w.zero_grad()
    for scale in (fits, 2 * fits):
        again = explained(lambda: total(w * x), [w], optim.StaticLossScaler(float(scale)))
        assert again.skipped == ([] if scale == fits else [0])


def test_the_first_steps_of_a_dynamic_scale_are_explained():
    mp.manual_seed(0)
    model = mp.MIXED.cast(nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 4)))
    x, y = half(*np.random.default_rng(0).standard_normal((32, 8))), mp.tensor(np.arange(32) % 4)
    scaler = optim.DynamicLossScaler(2.0**24)
    found = explained(lambda: ops.cross_entropy(model(x), y), model.parameters(), scaler, steps=14)
    skipped = len(scaler.history)
    assert 4 < skipped < 12
    assert found.skipped == list(range(skipped))
    assert [c.scale for c in found.causes] == [2.0 ** (24 - i) for i in range(skipped)]
    assert {c.cause for c in found.causes} == {"loss scale too high"}
    assert {c.largest_scale for c in found.causes} == {scaler.get_scale()}  # that is where the scaler ended
    ends = [(skipped, scaler.get_scale()), (13, scaler.get_scale())]
    assert found.history == [(i, 2.0 ** (24 - i)) for i in range(skipped)] + ends


def test_an_overflow_of_a_layer_is_named_with_its_line():
    model = mp.MIXED.cast(nn.Sequential(nn.Linear(1, 1, bias=False), nn.ReLU()))
    with mp.no_grad():
        model[0].weight[...] = 300.0
    found = explained(lambda: total(model(half([1.0], [250.0]))), model.parameters())
    (cause,) = found.causes
    assert (cause.cause, cause.module, cause.op, cause.value) == (FORWARD, "model.0", "linear", 75000)
    assert cause.where.startswith("ops/dot.py:")
    assert "the value 75,000 became infinite; no loss scale cures that" in str(found)


def test_a_weight_that_changed_before_the_step():
    w, v = parameter(100), parameter(1)
    (cause,) = explained(lambda: total(v * w), [v], between=lambda: w.write(w.master * 1)).causes
    assert cause.cause == "unknown" and "changed in place" in cause.text


def test_the_replay_follows_the_policy_of_the_pass():
    w, x, scaler = parameter(1), half(60, 60, -60), optim.StaticLossScaler(2.0**10)
    optimizer, found = optim.SGD([w], lr=0.0), Scales()
    with Listener([found]):
        with mp.use(mp.FP16_REDUCTIONS):  # the sum of the gradients fits, but an FP16 accumulator does not get there
            scaler.scale(total(w.expand(3) * x)).backward()
        scaler.step(optimizer)
    (cause,) = found.causes
    assert (cause.cause, cause.op, cause.value, cause.largest_scale) == ("loss scale too high", "expand", None, 512)


def test_gradients_that_were_unscaled_and_clipped_before_the_step():
    w, scaler = parameter(0, 4), optim.StaticLossScaler(2.0**10)
    optimizer, found = optim.SGD([w], lr=0.0), Scales()
    with Listener([found]):
        scaler.scale(total(ops.sqrt(w * 1.0))).backward()
        scaler.unscale_(optimizer)
        optim.clip_grad_norm_([w], 1.0)
        scaler.step(optimizer)
    (cause,) = found.causes
    assert (cause.cause, cause.op, cause.scale) == ("backward overflow", "sqrt", 2.0**10)


def test_two_optimizers_with_a_pass_each():
    a, b = parameter(1), parameter(1)
    first, second, scaler = optim.SGD([a], lr=0.0), optim.SGD([b], lr=0.0), optim.StaticLossScaler(2.0**10)
    found = Scales()
    with Listener([found]):
        for factor in (1.0, 100.0, 1.0):
            scaler.scale(total(a * factor)).backward()
            scaler.scale(total(b * (2 * factor))).backward()
            for optimizer in (first, second):
                scaler.step(optimizer)
                optimizer.zero_grad()
            scaler.update()
    assert [(c.iteration, c.cause, c.value, c.largest_scale) for c in found.causes] == [
        (1, "loss scale too high", 102400, 512),
        (1, "loss scale too high", 204800, 256),
    ]
    assert found.skipped == [1]
    assert found.history == [(0, 1024), (2, 1024)]


def test_the_run_is_the_same_with_and_without():
    def run(*instruments):
        job = Job("cpu", policy=mp.STOCHASTIC_ROUNDING, scale=2.0**24)
        with mp.use(job.policy), Listener(list(instruments)):
            for i in range(8):
                job.step(*job.batch(i))
        return job.state()

    same(run(found := Scales()), run())
    assert found.causes and "unknown" not in {c.cause for c in found.causes}


def test_sparse_gradients():
    table, index = parameter([1.0], [2.0], [3.0]), mp.tensor([0, 2, 2])
    (cause,) = explained(lambda: total(ops.embedding(index, table, sparse=True) * 50.0), [table]).causes
    assert (cause.op, cause.value, cause.largest_scale) == ("embedding", 102400, 512)  # the row that comes twice
