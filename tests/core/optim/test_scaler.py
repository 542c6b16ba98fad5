"""Loss scalers: the scaled loss, unscaling, skipping, S over time, and errors that name where a value arose."""

import contextlib
import gc
import inspect
import re
import time

import numpy as np
import pytest

import tinymp as mp
from oracle import device_array, host
from tinymp import nn, ops, optim
from tinymp.audit.listener import Listener
from tinymp.audit.scales import Scales
from tinymp.events import here
from tinymp.optim import StepResult
from tinymp.parameter import Parameter

APPLIED, SKIPPED, NO_GRADIENTS = StepResult


def nobody_watches():
    """Whether no watcher is left, once garbage is gone: another thread's collector, at work, makes ours a no-op."""
    deadline = time.monotonic() + 10
    while (gc.collect() or here.observers) and time.monotonic() < deadline:
        time.sleep(0.001)
    return not here.observers


@pytest.fixture(autouse=True)
def _nobody_watches_afterwards():
    yield
    assert nobody_watches()


def weight(*values, name="w", policy=mp.MIXED):
    p = policy.cast(Parameter(np.array(values, "float32")))
    p.name = name
    return p


def iterate(scaler, optimizer, grad, update=True):
    """One iteration whose backward pass left the unscaled gradient `grad`, maybe infinite, in every parameter."""
    for p in optimizer.param_groups[0]["params"]:
        p.grad = device_array(np.full(p.shape, grad * scaler.get_scale()).astype(p.dtype))
        p.grad_scale = scaler.get_scale()
    result = scaler.step(optimizer)
    if update:
        scaler.update()
    return result


def trace(scaler, optimizer, w, x, loss=None):
    """One iteration with loss = mean(x w), or loss(x w)."""
    optimizer.zero_grad()
    y = ops.mul(mp.tensor(np.array(x, "float16")), w)
    scaler.scale((loss or (lambda y: y.float().mean()))(y)).backward()
    result = scaler.step(optimizer)
    scaler.update()
    return result


# --------------------------------------------------------------------------------------------------- the scaled loss


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_scale_multiplies_the_loss_and_marks_the_gradients(dtype):
    p = Parameter(np.array([3.0], dtype))
    scaled = optim.StaticLossScaler(1024).scale(p.sum())
    assert scaled.dtype == dtype and scaled.shape == () and scaled.item() == 3072
    scaled.backward()
    assert p.grad.tolist() == [1024] and p.grad_scale == 1024 and p.grad.dtype == dtype


def test_scaling_saves_gradients_that_fp16_would_lose():
    w = weight(1.0, 1.0)
    x = mp.tensor(np.array([2.0**-26, 2.0**-24], "float32"))
    (ops.mul(x, w.float())).sum().backward()
    assert w.grad.tolist() == [0, 2.0**-24]
    w.zero_grad()
    scaler = optim.StaticLossScaler(8)
    optimizer = optim.SGD([w], lr=1.0)
    scaler.scale(ops.mul(x, w.float()).sum()).backward()
    scaler.unscale_(optimizer)
    assert w.grad.tolist() == [2.0**-26, 2.0**-24]


def test_several_losses_are_scaled_and_summed_or_run_one_after_the_other():
    scaler, grads = optim.StaticLossScaler(64), []
    for together in (True, False):
        w = weight(1.0, 2.0)
        first, second = (scaler.scale(ops.mul(w, x).float().sum()) for x in (2.0, 3.0))
        for loss in [first + second] if together else [first, second]:
            loss.backward()
        grads.append((w.grad.tolist(), w.grad_scale))
    assert grads[0] == grads[1] == ([320, 320], 64)


def test_scales_of_two_scalers_multiply_and_go_with_the_gradient():
    w = weight(1.0, 2.0)
    first, second = optim.StaticLossScaler(64), optim.StaticLossScaler(8)
    first.scale(second.scale(w.float().sum())).backward()
    assert (w.grad.tolist(), w.grad_scale) == ([512, 512], 512)
    w.zero_grad()
    w.grad = np.float32([1, 2])  # the user's own, without a scale
    optim.SGD([w], lr=1.0).step()
    assert w.master.tolist() == [0, 0]


def test_gradients_of_different_scales_do_not_meet():
    w = weight(1.0)
    loss = w.float().sum()
    with pytest.raises(RuntimeError, match=r"loss scales [18] and [18] meet"):
        (optim.StaticLossScaler(8).scale(loss) + loss).backward()
    w = weight(1.0)
    optim.StaticLossScaler(8).scale(w.float().sum()).backward()
    with pytest.raises(RuntimeError, match="loss scales 8 and 4 meet"):
        optim.StaticLossScaler(4).scale(w.float().sum()).backward()


def test_a_forgotten_part_of_the_loss_is_found_by_its_parameter():
    w, v = weight(1.0), weight(1.0, name="v")
    scaler = optim.StaticLossScaler(8)
    (scaler.scale(w.float().sum()) + v.float().sum()).backward()
    with pytest.raises(RuntimeError, match=r"parameter `v` \(1,\) carries no loss scale"):
        scaler.step(optim.SGD([w, v]))
    assert w.master == 1


# ---------------------------------------------------------------------------------------------------- unscale and step


def test_unscale_replaces_gradients_by_fp32_values():
    w, scaler = weight(1.0, 1.0), optim.StaticLossScaler(1024)
    optimizer = optim.SGD([w], lr=1.0)
    old = w.grad = device_array(np.array([3 * 2.0**-24, 65504], "float16"))
    w.grad_scale = 1024.0
    scaler.unscale_(optimizer)
    assert w.grad.dtype == "float32" and w.grad.tolist() == [3 * 2.0**-34, 65504 / 1024] and w.grad_scale == 1
    assert old.tolist() == [3 * 2.0**-24, 65504]
    optim.clip_grad_norm_([w], 1.0)
    assert scaler.step(optimizer) == APPLIED
    np.testing.assert_allclose(host(w.master), [1 - 3 * 2.0**-34 / 64, 0], atol=1e-6)


@pytest.mark.parametrize("rule", [optim.SGD, optim.Adam])
def test_step_alone_does_what_unscale_and_step_do(rule):
    weights = []
    for separately in (True, False):
        w, scaler = weight(*np.linspace(-1, 1, 9)), optim.DynamicLossScaler(2.0**10)
        optimizer = rule([w], lr=0.1)
        scaler.scale(ops.mul(w, w).float().mean()).backward()
        if separately:
            scaler.unscale_(optimizer)
        assert scaler.step(optimizer)
        assert w.grad.dtype == ("float32" if separately else "float16")
        weights.append(host(w.master))
    np.testing.assert_array_equal(*weights)


def test_weight_decay_sees_no_loss_scale():
    w, scaler = weight(1.0), optim.StaticLossScaler(1024)
    iterate(scaler, optim.SGD([w], lr=0.5, weight_decay=0.5), 0.25)
    assert w.master == 1 - 0.5 * (0.25 + 0.5)


@pytest.mark.parametrize("unscale", [True, False])
@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("policy", [mp.MIXED, mp.FP32], ids=str)
@pytest.mark.parametrize("make", [optim.NoLossScaler, lambda: optim.StaticLossScaler(8), optim.DynamicLossScaler])
def test_one_bad_element_skips_the_step(make, policy, bad, unscale):
    w, v, scaler = weight(*np.ones(99), policy=policy), weight(1.0, policy=policy), make()
    optimizer = optim.SGD([w, v], lr=1.0, momentum=0.9)
    for p in (w, v):
        p.grad, p.grad_scale = device_array(np.ones(p.shape, p.dtype)), scaler.get_scale()
    w.grad[70] = bad
    if unscale:
        scaler.unscale_(optimizer)
    assert scaler.step(optimizer) == SKIPPED
    assert (w.master == 1).all() and (v.master == 1).all() and not optimizer.state


@pytest.mark.parametrize("unscale", [True, False])
def test_a_gradient_that_a_scale_below_1_keeps_finite_is_infinite(unscale):
    w, scaler = weight(1.0, policy=mp.FP32), optim.StaticLossScaler(2.0**-14)
    optimizer = optim.SGD([w], lr=1.0)
    w.grad, w.grad_scale = device_array(np.array([1e36], "float32")), scaler.get_scale()  # 1.6e40 without the scale
    if unscale:
        scaler.unscale_(optimizer)
    assert scaler.step(optimizer) == SKIPPED and w.item() == 1
    scaler.update()
    assert iterate(scaler, optimizer, 0.5) == APPLIED and w.item() == 0.5


def test_several_optimizers_on_one_scaler():
    w, v, scaler = weight(1.0), weight(1.0), optim.DynamicLossScaler(8.0)
    first, second = optim.SGD([w], lr=1.0), optim.SGD([v], lr=1.0)
    assert iterate(scaler, first, np.inf, update=False) == SKIPPED
    assert iterate(scaler, second, 0.5, update=False) == APPLIED
    scaler.update()
    assert (w.item(), v.item(), scaler.get_scale()) == (1, 0.5, 4)


# ------------------------------------------------------------------------- steps that were interrupted, or left out


def scaled(scaler, w, grad):
    """What a backward pass that gives this gradient leaves in w."""
    w.grad = device_array(np.full(w.shape, grad * scaler.get_scale()).astype(w.dtype))
    w.grad_scale = scaler.get_scale()


@pytest.mark.parametrize("make", [lambda: optim.DynamicLossScaler(8.0, growth_interval=2)])
def test_update_ends_an_iteration_whose_step_was_left_out(make):
    """The norm was too large, say. S grows and backs off by what unscale_ found, as PyTorch's does."""
    w, scaler = weight(1.0), make()
    optimizer = optim.SGD([w], lr=1.0)
    scales = []
    for grad in (0.5, 0.5, np.inf):
        scaled(scaler, w, grad)
        scaler.unscale_(optimizer)
        scaler.update()
        scales.append(scaler.get_scale())
    assert scales == ([8, 16, 8] if isinstance(scaler, optim.DynamicLossScaler) else [8, 8, 0.5])
    assert scaler.iteration == 3 and "overflow in `w`" in scaler.history[-1][2]
    assert iterate(scaler, optimizer, 0.5) == APPLIED and w.item() == 0.5


class Interrupted(optim.SGD):
    """Its update is interrupted once."""

    armed = True

    def update(self, *args):
        if self.armed:
            self.armed = False
            raise KeyboardInterrupt
        return super().update(*args)


@pytest.mark.parametrize("unscale", [True, False])
@pytest.mark.parametrize("make", [optim.DynamicLossScaler, lambda: optim.StaticLossScaler(8)])
def test_update_ends_an_iteration_whose_step_was_interrupted(make, unscale):
    w, scaler = weight(1.0), make()
    optimizer = Interrupted([w], lr=1.0)
    scaled(scaler, w, 0.25)
    if unscale:
        scaler.unscale_(optimizer)
    with pytest.raises(KeyboardInterrupt):
        scaler.step(optimizer)
    with pytest.raises(RuntimeError, match=r"stepped already; call update\(\)"):
        scaler.step(optimizer)
    scaler.update()
    scaled(scaler, w, 0.25)
    if unscale:
        scaler.unscale_(optimizer)
    assert scaler.step(optimizer) == APPLIED and w.item() == 0.75
    scaler.update()
    assert scaler.iteration == 2


def test_a_step_that_was_refused_may_be_made_again():
    w, v, scaler = weight(1.0), weight(1.0, name="v"), optim.DynamicLossScaler(8.0)
    optimizer = optim.SGD([w, v], lr=1.0)
    scaled(scaler, w, 0.25)
    with pytest.raises(RuntimeError, match=r"parameter `v` .* has no gradient"):
        scaler.step(optimizer)
    assert w.item() == 1
    assert scaler.step(optimizer, allow_missing=True) == APPLIED and (w.item(), v.item()) == (0.75, 1)
    scaler.update()
    assert scaler.iteration == 1


def _raises(update):
    with pytest.raises(RuntimeError, match=r"expected step\(optimizer\) before it"):
        update()


@pytest.mark.parametrize("end", [lambda s, saved: s.load_state_dict(saved), lambda s, saved: _raises(s.update)])
def test_a_forgotten_step_does_not_spoil_the_next_iteration(end):
    w, scaler = weight(1.0), optim.DynamicLossScaler(8.0)
    optimizer, saved = optim.SGD([w], lr=1.0), scaler.state_dict()
    scaler.scale(ops.mul(w.float(), np.nan).sum())
    end(scaler, saved)
    assert iterate(scaler, optimizer, 0.5) == APPLIED
    scaler.scale(w.float().sum())
    scaled(scaler, w, 0.25)
    scaler.unscale_(optimizer)
    scaler.load_state_dict(saved)  # in the middle of an iteration
    assert iterate(scaler, optimizer, 0.25) == APPLIED and w.item() == 0.25


def test_a_bad_loss_without_gradients_does_not_skip_the_next_step():
    w, scaler = weight(1.0), optim.StaticLossScaler(8.0)
    optimizer = optim.SGD([w], lr=1.0)
    scaler.scale(ops.mul(w.float(), np.nan).sum())
    assert scaler.step(optimizer) == NO_GRADIENTS
    scaler.update()
    assert iterate(scaler, optimizer, 0.5) == APPLIED


# --------------------------------------------------------------------------------------------------------- S over time


def test_dynamic_scale_over_time():
    w = weight(1.0)
    optimizer = optim.SGD([w], lr=0.0)
    scaler = optim.DynamicLossScaler(16.0, growth_interval=3, min_scale=2.0, max_scale=32.0)
    ok, over = 0.5, np.inf
    scales = []
    for grad in [ok, ok, over, ok, ok, ok, ok, ok, ok, ok, ok, ok, over, over, over, over, over]:
        iterate(scaler, optimizer, grad)
        scales.append(scaler.get_scale())
    assert scales == [16, 16, 8, 8, 8, 16, 16, 16, 32, 32, 32, 32, 16, 8, 4, 2, 2]
    assert scaler.history[:2] == [(2, 8.0, "overflow in `w` (1,)"), (5, 16.0, "3 iterations without overflow")]
    assert [entry[:2] for entry in scaler.history[2:]] == [(8, 32), (12, 16), (13, 8), (14, 4), (15, 2)]


def test_an_iteration_without_gradients_counts_neither_way():
    w = weight(1.0)
    optimizer, scaler = optim.SGD([w], lr=0.0), optim.DynamicLossScaler(16.0, growth_interval=2)
    iterate(scaler, optimizer, 0.5)
    optimizer.zero_grad()
    assert scaler.step(optimizer) == NO_GRADIENTS
    scaler.update()
    assert scaler.get_scale() == 16
    iterate(scaler, optimizer, 0.5)
    assert scaler.get_scale() == 32


def test_dynamic_scale_finds_its_way_down_from_the_start():
    w = weight(1.0, 1.0, 1.0)
    optimizer, scaler = optim.SGD([w], lr=1e-3), optim.DynamicLossScaler()
    results = [trace(scaler, optimizer, w, [100.0] * 3) for _ in range(8)]  # the gradient is 100 S / 3 < 65520
    assert results == [SKIPPED] * 6 + [APPLIED] * 2 and scaler.get_scale() == 1024


@pytest.mark.parametrize("make", [optim.NoLossScaler, lambda: optim.StaticLossScaler(8)])
def test_constant_scales_stay(make):
    scaler = make()
    start = scaler.get_scale()
    for grad in (1.0, np.inf, 1.0):
        iterate(scaler, optim.SGD([weight(1.0)]), grad)
    assert scaler.get_scale() == start and not scaler.history and scaler.iteration == 3


def test_default_limit_lets_the_scale_reach_its_floor():
    assert optim.DynamicLossScaler().max_consecutive_skips == 40  # 38 halvings from 2^24 to 2^-14, and two more
    assert optim.DynamicLossScaler(1.0, backoff_factor=0.25, min_scale=0.25, max_scale=4.0).max_consecutive_skips == 4


# ---------------------------------------------------------------------------------- bad data, and overflow without end


def failure(scaler, optimizer, forward, times=99, audited=True):
    """Run iterations until update() raises; returns the message and in which iteration."""
    model = nn.Module()
    model.forward = forward  # weights are read as their copies
    with Listener([Scales()]) if audited else contextlib.nullcontext():
        for k in range(times):
            optimizer.zero_grad()
            scaler.scale(model()).backward()
            assert scaler.step(optimizer) == SKIPPED
            try:
                scaler.update()
            except FloatingPointError as error:
                return str(error), k
    raise AssertionError("no iteration raised")


def this_line(text):
    """Where in this file `text` first stands."""
    lines = inspect.getsource(inspect.getmodule(this_line)).splitlines()
    return f"test_scaler.py:{1 + next(i for i, line in enumerate(lines) if text in line)}"


# On a GPU limits are noticed some steps late: see test_cuda_scaler.py
@pytest.mark.cpu
def test_one_bad_batch_is_only_skipped():
    w = weight(1.0, 1.0)
    optimizer, scaler = optim.SGD([w], lr=0.0), optim.DynamicLossScaler(8.0, growth_interval=3)
    for x in ([1.0, 1.0], [1.0, np.nan], [1.0, np.inf], [1.0, 1.0], [np.nan, 1.0], [np.nan, 1.0], [1.0, 1.0]):
        bad = not np.isfinite(x).all()
        assert trace(scaler, optimizer, w, x) == (SKIPPED if bad else APPLIED)
        assert not here.observers
    assert scaler.get_scale() == 16 and len(scaler.history) == 1  # skipped for the data: S is not reduced


MASK = mp.tensor(np.array([0.0, -np.inf], "float16"))
NAN = mp.tensor(np.array([1.0, np.nan], "float16"))


@pytest.mark.cpu
@pytest.mark.parametrize(
    ("values", "forward", "message"),
    [
        (
            (1.0, -1.0),
            lambda w: ops.log(w).float().sum(),  # log of a negative
            lambda: rf"arose: .* in log \(model, {this_line('log of a negative')}, .*\): a NaN from finite arguments",
        ),
        (
            (300.0, 300.0),
            lambda w: ops.log_softmax(w * w * w, 0).float().sum(),  # FP16 overflow
            lambda: rf"arose: forward overflow in mul \(model, {this_line('FP16 overflow')}, .* 90,000 became infinite",
        ),
        (
            (1.0, -1.0),  # masks hold infinities on purpose: they are not where the NaN comes from
            lambda w: ops.mul(ops.softmax(w + MASK, 0), ops.log(w)).float().sum(),
            lambda: r"arose: .* in log \(",
        ),
        (
            (1.0, 1.0),
            lambda w: ops.mul(NAN, w.reshape(2)).reshape(1, 2).float().mean(),
            lambda: r"arose: input not finite in mul \(.*\): argument `(input|x)` holds infinities or NaNs already",
        ),
        (
            (1.0, np.nan),
            lambda w: ops.mul(w, 2.0).float().mean(),
            lambda: r"arose: input not finite in mul \(.*: parameter w holds",
        ),
    ],
    ids=["log", "overflow", "mask", "data", "parameter"],
)
def test_bad_losses_end_with_the_op_that_made_them(values, forward, message):
    w = weight(*values)
    optimizer, scaler = optim.SGD([w], lr=1.0, momentum=0.9), optim.DynamicLossScaler(8.0)
    text, k = failure(scaler, optimizer, lambda: forward(w))
    assert k == 2 and text.startswith("the loss is nan in 3 iterations in a row; a smaller loss scale does not help")
    assert re.search(message(), text)
    np.testing.assert_array_equal(host(w.master), np.array(values, "float32"))
    assert scaler.get_scale() == 8 and not scaler.history and not optimizer.state and not here.observers


@pytest.mark.cpu
@pytest.mark.parametrize(
    ("make", "last"),
    [
        (optim.NoLossScaler, (9, "1")),
        (lambda: optim.StaticLossScaler(1024.0), (9, "1024")),
        (lambda: optim.DynamicLossScaler(4.0, min_scale=1.0, max_scale=4.0), (3, "1")),
        (lambda: optim.DynamicLossScaler(4.0, max_consecutive_skips=1), (0, "4")),
    ],
)
def test_overflow_without_end_names_the_parameter_and_the_op(make, last):
    w, v = weight(2.0**-16, name="conv1.weight"), weight(1.0, name="v")
    optimizer = optim.SGD([v, w], lr=1.0, momentum=0.9)

    def forward():
        y = ops.mul(ops.mul(ops.mul(w, 6e4), 6e4), v)  # finite forward, but dw = 3.6e9
        return ops.mul(y.float(), 1e-3).sum()

    for audited in (True, False):
        scaler = make()
        text, k = failure(scaler, optimizer, forward, audited=audited)
        assert k == last[0] and f"in {k + 1} iterations in a row, at last with the loss scale {last[1]}," in text
        assert "The first parameter: `conv1.weight` (1,)." in text
        seen = rf"Where it arose: .*the backward of mul \(model, {this_line('finite forward, but')}, "
        found = "The first gradient that is not finite is that of `input` of mul (test_scaler.py"
        assert re.search(seen, text) if audited else (found if k else "docs/scalers.md says how to find the op") in text
    assert w.master == 2.0**-16 and v.master == 1 and not optimizer.state and not here.observers


@pytest.mark.cpu
def test_an_overflow_of_a_sum_of_gradients_is_named_as_such():
    w = weight(1.0)
    optimizer, scaler = optim.SGD([w]), optim.StaticLossScaler(4e4, max_consecutive_skips=2)
    text, _ = failure(scaler, optimizer, lambda: (w + w).float().sum())
    assert re.search(r"arose: .* in the backward of sum of gradients \(w, .*: the value 80,000 became infinite", text)
    text, _ = failure(scaler, optimizer, lambda: (lambda y: (y + y).float().sum())(ops.mul(w, 1.0)))
    assert re.search(r"arose: .* in the backward of mul \(.*test_scaler.*: the value 80,000 became infinite", text)


def test_after_an_error_training_can_go_on():
    w = weight(1.0)
    optimizer, scaler = optim.SGD([w], lr=0.5), optim.StaticLossScaler(8.0, max_consecutive_skips=2)
    before = scaler.state_dict()
    iterate(scaler, optimizer, np.inf)
    with pytest.raises(FloatingPointError):
        iterate(scaler, optimizer, np.inf)
    assert {**scaler.state_dict(), "iteration": 0} == before
    assert iterate(scaler, optimizer, 1.0) == APPLIED and w.item() == 0.5


def test_after_an_error_bad_losses_are_counted_anew():
    w = weight(1.0)
    optimizer, scaler = optim.SGD([w]), optim.StaticLossScaler(8.0, max_nonfinite_losses=2)
    trace(scaler, optimizer, w, [np.nan])
    with pytest.raises(FloatingPointError):
        trace(scaler, optimizer, w, [np.nan])
    assert trace(scaler, optimizer, w, [np.nan]) == SKIPPED and scaler.state.bad_losses == 1


# ----------------------------------------------------------------------------------------------------- saving, refusing


@pytest.mark.parametrize(
    "make",
    [optim.NoLossScaler, lambda: optim.StaticLossScaler(8), lambda: optim.DynamicLossScaler(8.0, growth_interval=3)],
)
def test_a_loaded_scaler_goes_on(make):
    optimizer = optim.SGD([weight(1.0)], lr=0.0)
    first, second = make(), make()
    for grad in (1.0, np.inf, 1.0, 1.0):
        iterate(first, optimizer, grad)
    second.load_state_dict(first.state_dict())
    for scaler in (first, second):
        iterate(scaler, optimizer, 1.0)
    assert first.state_dict() == second.state_dict()


def test_loading_another_scalers_state_is_refused():
    scaler = optim.StaticLossScaler(8)
    with pytest.raises(ValueError, match=r"has unknown \['growth_tracker'\]"):
        scaler.load_state_dict(optim.DynamicLossScaler().state_dict())
    assert scaler.get_scale() == 8


def _stepped(then):
    def call(scaler, optimizer):
        iterate(scaler, optimizer, 2.0**-10, update=False)
        then(scaler, optimizer)

    return call


def _twice(scaler, optimizer):
    optimizer.param_groups[0]["params"][0].zero_grad()
    scaler.unscale_(optimizer)
    scaler.unscale_(optimizer)


def _backward_after_unscale(scaler, optimizer):
    (w,) = optimizer.param_groups[0]["params"]
    scaler.unscale_(optimizer)
    scaler.scale(w.float().sum()).backward()
    scaler.step(optimizer)


def _unscaled_loss(scaler, optimizer):
    optimizer.param_groups[0]["params"][0].float().sum().backward()
    scaler.unscale_(optimizer)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda s, o: s.scale(mp.tensor(np.float16(1))), TypeError, "expected the loss in FP32, got float16"),
        (lambda s, o: s.scale(mp.tensor(1)), TypeError, "expected the loss in FP32, got int64"),
        (lambda s, o: s.scale(1.0), TypeError, "expected a Tensor for `loss`, got float"),
        (lambda s, o: s.scale(mp.tensor([1.0, 2.0])), ValueError, r"expected a scalar loss, got shape \(2,\)"),
        (lambda s, o: s.step([o]), TypeError, "step: expected `optimizer` to be an Optimizer, got list"),
        (lambda s, o: s.unscale_(None), TypeError, "unscale_: expected `optimizer` to be an Optimizer, got NoneType"),
        (lambda s, o: s.update(), RuntimeError, r"expected step\(optimizer\) before it"),
        (lambda s, o: s.update(2.0), TypeError, "takes 1 positional argument but 2 were given"),
        (_twice, RuntimeError, "unscale_: this optimizer has unscaled already"),
        (_stepped(lambda s, o: s.step(o)), RuntimeError, r"step: this optimizer has stepped already; call update\(\)"),
        (_stepped(lambda s, o: s.unscale_(o)), RuntimeError, "unscale_: this optimizer has stepped already"),
        (_backward_after_unscale, RuntimeError, "was computed after unscale_"),
        (_unscaled_loss, RuntimeError, "its loss was not passed through scaler.scale"),
    ],
)
def test_misuse(call, error, message):
    with pytest.raises(error, match=message):
        call(optim.DynamicLossScaler(), optim.SGD([weight(1.0)]))


@pytest.mark.cpu
def test_a_module_in_the_package_is_not_the_users_line():
    model = mp.MIXED.cast(nn.Linear(2, 1))
    optimizer, scaler = optim.SGD(model.parameters()), optim.StaticLossScaler(8.0)
    x = mp.tensor(np.full((4, 2), np.inf, "float16"))
    text, _ = failure(scaler, optimizer, lambda: model(x).float().sum())  # through a layer
    assert f"input not finite in linear (Linear, {this_line('through a layer')}, " in text


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"scale": 2.0**40}, ValueError, r"expected `scale` to be in \[6.10352e-05, 1.67772e\+07\]"),
        ({"scale": 2.0**-40}, ValueError, r"expected `scale` to be in \[6.10352e-05"),
        ({"growth_tracker": "x"}, TypeError, "expected `growth_tracker` to be an integer, got 'x'"),
        ({"growth_tracker": -1}, ValueError, "expected `growth_tracker` to be at least 0"),
        ({"iteration": 2**40}, ValueError, "expected `iteration` to be at"),
        ({"scale": float("nan")}, ValueError, "expected `scale` to be"),
        ({"history": None}, TypeError, "expected `history` to be a list, got NoneType"),
        ({"history": [(1, 2.0)]}, ValueError, "not enough values to unpack"),
    ],
)
def test_a_bad_state_changes_nothing(change, error, message):
    scaler = optim.DynamicLossScaler()
    before = scaler.state_dict()
    with pytest.raises(error, match=message):
        scaler.load_state_dict({**before, "scale": 8.0, **change})
    assert scaler.state_dict() == before
