"""Every planted overflow is found where it was planted, with its number, and what is replayed leaves nothing behind."""

import itertools
import json

import numpy as np
import pytest

import tinymp as mp
from tinymp import nn, ops, optim
from tinymp.audit.listener import Instrument, Listener
from tinymp.audit.scales import Scales
from tinymp.events import Setting, in_pass

FP16 = np.float16


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


def line_of(function, after=0):
    """What the audit calls a line of a function of this file."""
    return f"test_scales.py:{function.__code__.co_firstlineno + after}"


def total(x):
    """The sum in FP32: a scalar loss whose gradient is S everywhere."""
    return x.float().sum()


def test_a_scale_that_is_too_high_is_recognised_with_the_one_that_fits():
    w, x = parameter(1, 1), half(100, 3)

    def loss():
        return total(w * x)  # dw = S x

    (cause,) = explained(loss, [w]).causes
    assert (cause.iteration, cause.scale, cause.cause) == (0, 1024, "loss scale too high")
    assert (cause.op, cause.phase, cause.caller) == ("mul", "backward", line_of(loss, 1))
    assert cause.where.startswith("ops/pointwise.py:")  # the line that rounded
    assert cause.value == 102400
    assert cause.largest_scale == 512  # 51200; 1024 gives 102400
    assert "the largest gradient is 100; up to S = 512 it fits" in cause.text


@pytest.mark.parametrize(("largest", "fits"), [(65504, 1), (2047, 32), (2048, 16), (0.5, 2**15)])
def test_the_largest_scale_is_right_at_the_edges(largest, fits):
    w, x = parameter(1), half(largest)
    (cause,) = explained(lambda: total(w * x), [w], optim.StaticLossScaler(2.0**18)).causes
    assert cause.largest_scale == fits  # below it, S itself is the largest gradient
    w.zero_grad()
    for scale in (fits, 2 * fits):
        again = explained(lambda: total(w * x), [w], optim.StaticLossScaler(float(scale)))
        assert again.skipped == ([] if scale == fits else [0])


@pytest.mark.parametrize(
    ("factors", "scale", "fits"),
    [
        ((2.0**5, 2.0**15, 2.0**15, 2.0**-15, 2.0**-15), 2.0**15, 2**10),  # S 2^-30 on the way, which S = 1 loses
        ((2.0**15, 2.0**15, 2.0**-12, 0.75 * 2.0**-12), 2.0**12, 2**10),  # 0.75 S 2^-24, which S = 1 rounds up
    ],
)
def test_the_scale_that_fits_is_tried(factors, scale, fits):
    w = parameter(2.0**-20)

    def loss():
        y = w
        for factor in factors:
            y = y * factor
        return total(y)

    (cause,) = explained(loss, [w], optim.StaticLossScaler(scale)).causes
    assert (cause.cause, cause.largest_scale) == ("loss scale too high", fits)


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


def test_an_overflow_of_the_forward_pass_is_named_with_its_value():
    class Planted(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = nn.Linear(1, 1, bias=False)

        def forward(self, x):
            return self.first(x)

    model = mp.MIXED.cast(Planted())
    with mp.no_grad():
        model.first.weight[...] = 300.0

    def loss():
        return total(ops.relu(-model(half([1.0], [-250.0]))) * 1.0)

    found = explained(loss, model.parameters())
    (cause,) = found.causes
    assert (cause.cause, cause.module, cause.op) == ("forward overflow", "model.first", "linear")
    assert cause.value == -75000
    assert cause.caller == f"test_scales.py:{Planted.forward.__code__.co_firstlineno + 1}"
    assert cause.where.startswith("ops/dot.py:")
    assert "the value -75,000 became infinite; no loss scale cures that" in str(found)


def test_the_first_of_several_overflows_counts():
    w = parameter(200, 12)

    def loss():
        return total(w * w * w + ops.exp(w))

    (cause,) = explained(loss, [w]).causes
    assert (cause.op, cause.value) == ("mul", 8_000_000)
    with mp.no_grad():
        w[0] = 1.0
    (cause,) = explained(loss, [w]).causes
    assert (cause.op, cause.value) == ("exp", pytest.approx(np.exp(np.float32(12))))


def test_what_is_not_finite_without_an_overflow():
    w = parameter(0)
    found = explained(lambda: total(ops.log(w * 1.0)), [w])
    (cause,) = found.causes
    assert (cause.cause, cause.op, cause.value) == ("not finite in the forward pass", "log", None)
    assert "an infinity from finite arguments" in cause.text
    (cause,) = explained(lambda: total(w / w), [w]).causes
    assert (cause.cause, cause.op) == ("not finite in the forward pass", "div")
    assert "a NaN from finite arguments" in cause.text


def test_data_and_weights_that_are_not_finite():
    w, x = parameter(1), half(np.nan)
    (cause,) = explained(lambda: total(w * x), [w]).causes
    assert (cause.cause, cause.op) == ("input not finite", "mul")
    assert "argument `other` holds infinities or NaNs already" in cause.text
    w.name = "layer.weight"
    with mp.no_grad():
        w[0] = np.inf
    (cause,) = explained(lambda: total(w * half(1)), [w]).causes
    assert "parameter layer.weight holds" in cause.text


def test_an_overflow_whatever_the_scale():
    w = parameter(0, 4)

    def loss():
        return total(ops.sqrt(w * 1.0))  # 1 / 2 sqrt 0

    (cause,) = explained(loss, [w], optim.StaticLossScaler(2.0**-14)).causes
    assert (cause.cause, cause.op, cause.phase) == ("backward overflow", "sqrt", "backward")
    assert (cause.caller, cause.value, cause.largest_scale) == (line_of(loss, 1), None, None)
    assert "whatever the loss scale" in cause.text


def test_sums_of_gradients_overflow():
    w, v = parameter(1), parameter(1)
    (cause,) = explained(lambda: total(w * 40.0 + w * 40.0), [w]).causes  # each gradient of a leaf fits
    assert (cause.op, cause.value, cause.largest_scale) == ("sum of gradients", 81920, 512)

    def loss():
        x = v * 1.0
        return total(x * 40.0 + x * 40.0)

    (cause,) = explained(loss, [v]).causes
    assert (cause.op, cause.value, cause.largest_scale) == ("mul", 81920, 512)
    assert cause.where.startswith("autograd.py:")
    assert cause.caller == line_of(loss, 1)


def test_a_weight_that_changed_before_the_step():
    w, v, products = parameter(100), parameter(1), []

    def loss():
        products.append(v * w)
        return total(products[-1])

    (cause,) = explained(loss, [v], between=lambda: w.write(w.master * 1)).causes
    assert cause.cause == "unknown"
    assert "changed in place" in cause.text
    with pytest.raises(RuntimeError, match="freed by an earlier backward"):
        products[0].backward(half(1).array)


def test_the_replay_follows_the_policy_of_the_pass():
    w, x, scaler = parameter(1), half(60, 60, -60), optim.StaticLossScaler(2.0**10)
    optimizer, found = optim.SGD([w], lr=0.0), Scales()
    with Listener([found]):
        with mp.use(mp.FP16_REDUCTIONS):  # the sum of the gradients fits, but an FP16 accumulator does not get there
            scaler.scale(total(w.expand(3) * x)).backward()
        scaler.step(optimizer)
    (cause,) = found.causes
    assert (cause.cause, cause.op, cause.value, cause.largest_scale) == ("loss scale too high", "expand", None, 512)


def test_a_backward_pass_before_the_audit():
    w, scaler = parameter(1), optim.StaticLossScaler(2.0**20)
    optimizer, found = optim.SGD([w], lr=0.0), Scales()
    scaler.scale(total(w * 1.0)).backward()
    with Listener([found]):
        scaler.step(optimizer)
    assert [c.cause for c in found.causes] == ["unknown"]
    assert (str(found)).startswith("loss scale: none was used; 1 of 1 iterations skipped\n")


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


def test_passes_of_micro_batches_are_kept_only_if_they_went_wrong():
    w, scaler = parameter(1), optim.StaticLossScaler(2.0**10)
    optimizer, found = optim.SGD([w], lr=0.0), Scales()
    with Listener([found]):
        for factor in (1.0, 2.0, 100.0, 3.0):
            scaler.scale(total(w * factor)).backward()
        w * 1.0
        assert len(found._passes) == 1
        scaler.step(optimizer)
        scaler.update()
        w * 1.0  # the next iteration
        assert not found._passes
        assert found._current is None
    assert [(c.op, c.value, c.largest_scale) for c in found.causes] == [("mul", 102400, 512)]


class Counts(Instrument):
    def __init__(self):
        self.events = []

    def rounded(self, place, x, y):
        self.events.append(("rounded", place.op, place.phase))

    def ran(self, place, op, inputs, outputs):
        self.events.append(("ran", place.op, place.phase))


def test_the_run_is_the_same_with_and_without():
    policy = mp.STOCHASTIC_ROUNDING

    def run(*instruments):
        mp.manual_seed(3)
        model = policy.cast(
            nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, 3))
        )
        optimizer, scaler = optim.Adam(model.parameters(), lr=0.01), optim.DynamicLossScaler(2.0**20)
        x, y = half(*np.random.default_rng(0).standard_normal((12, 6))), mp.tensor(np.arange(12) % 3)
        losses = []
        with mp.use(policy), Listener(list(instruments)):
            for _ in range(8):
                loss = ops.cross_entropy(model(x), y)
                scaler.scale(loss).backward()
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()
                losses.append(loss.item())
        state = [p.master for p in model.parameters()] + [b.array for b in model.buffers()]
        return losses, [mp.backend.to_cpu(x).copy() for x in state], mp.backend.get_rng_state()

    plain, alone, beside = Counts(), Counts(), Scales()
    losses, state, random = run(alone)
    same, same_state, same_random = run(plain, beside)
    assert beside.causes
    assert "unknown" not in {c.cause for c in beside.causes}
    assert losses == same
    assert random == same_random
    assert all(np.array_equal(a, b) for a, b in zip(state, same_state, strict=True))
    assert plain.events == alone.events  # a replay tells nobody


def test_fp32_and_sparse_gradients():
    w = nn.Parameter(np.zeros(2, "f4"))
    (cause,) = explained(lambda: total(ops.sqrt(w * 1.0)), [w], optim.NoLossScaler()).causes
    assert (cause.cause, cause.op) == ("backward overflow", "sqrt")
    table = parameter([1.0], [2.0], [3.0])
    index = mp.tensor([0, 2, 2])
    found = explained(lambda: total(ops.embedding(index, table, sparse=True) * 50.0), [table])
    (cause,) = found.causes  # 51200 for one row, twice that for the other
    assert (cause.op, cause.value, cause.largest_scale) == ("embedding", 102400, 512)


def test_it_reports():
    w, x = parameter(1), half(100)
    found = explained(lambda: total(w * x), [w], optim.DynamicLossScaler(2.0**15), steps=8)
    report = found.as_dict()
    assert json.loads(json.dumps(report, allow_nan=False)) == report
    assert report["skipped"] == [0, 1, 2, 3, 4, 5] and report["history"][:2] == [[0, 2.0**15], [1, 2.0**14]]
    lines = str(found).splitlines()
    assert lines[0] == "loss scale: 32,768 at first, 512 at last; 6 of 8 iterations skipped"
    assert lines[1].startswith("iteration 0, S = 32,768: loss scale too high in the backward of mul (test_scales.py:")
    assert str(Scales()) == "loss scale: none was used"


def trained(policy, scaler, steps=4):
    """Scaled once per step at one line, with gradients that fit up to 512; the model is a new one."""
    model = policy.cast(nn.Linear(1, 1, bias=False))
    optimizer, x = optim.SGD(model.parameters(), lr=0.0), policy.cast(mp.tensor(np.array([[100.0]], "f4")))
    with mp.use(policy):
        for _ in range(steps):
            scaler.scale(total(model(x))).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()


def drawn(found):
    """The labels of the lines, and their x and y."""
    axes = pytest.importorskip("matplotlib.figure").Figure().subplots()
    found.draw(axes)
    return {line.get_label(): list(zip(line.get_xdata(), line.get_ydata())) for line in axes.lines}


def test_losses_are_without_the_loss_scale_and_few():
    with Listener([found := Scales()]):
        trained(mp.FP32, optim.NoLossScaler(), steps=400)
        trained(mp.MIXED, optim.StaticLossScaler(8.0), steps=4)
    (fp32, plain), (mixed, scaled) = found.losses.items()
    assert (fp32, mixed) == (f"FP32, {fp32.rpartition(', ')[2]}", f"MIXED, {fp32.rpartition(', ')[2]}")
    assert 200 <= len(plain) <= 400 and len({b - a for a, b in itertools.pairwise(plain)}) == 1
    assert all(abs(loss) < 1000 for loss in (*plain.values(), *scaled.values()))
    assert all(key >= 400 for key in scaled)


def test_several_runs_with_a_scaler_each():
    with Listener([found := Scales()]):
        for first in (10, 10, 12):
            trained(mp.MIXED, optim.DynamicLossScaler(2.0**first))
    runs = [[(0, 1024), (1, 512), (3, 512)], [(4, 1024), (5, 512), (7, 512)]]
    runs.append([(8, 4096), (9, 2048), (10, 1024), (11, 512)])
    assert found.history == [point for run in runs for point in run]
    assert found.skipped == [0, 4, 8, 9, 10]
    assert list(drawn(found).values())[:3] == runs


def test_on_a_gpu(gpu):
    with mp.device("gpu"):
        w, x = parameter(1, 1), half(100, 3)
        found = explained(lambda: total(w * x), [w], optim.DynamicLossScaler(2.0**11), steps=4)
    assert [(c.op, c.scale, c.value, c.largest_scale) for c in found.causes] == [
        ("mul", 2048, 204800, 512),
        ("mul", 1024, 102400, 512),
    ]
    assert found.history == [(0, 2048), (1, 1024), (2, 512), (3, 512)]
