"""Loss scalers: the scaled loss, unscaling, skipping, S over time, and errors that name a parameter.

Where a value arose, an audit says: tests/audit/test_scales.py.
"""

import numpy as np
import pytest

import tinymp as mp
from oracle import device_array, host
from tinymp import ops, optim
from tinymp.events import here
from tinymp.optim import StepResult
from tinymp.parameter import Parameter

APPLIED, SKIPPED, NO_GRADIENTS = StepResult
INF, NAN = np.inf, np.nan
SCALERS = {
    "none": optim.NoLossScaler,
    "static": lambda: optim.StaticLossScaler(8),
    "dynamic": lambda: optim.DynamicLossScaler(8.0, growth_interval=3),
}


@pytest.fixture(autouse=True)
def _nobody_watches_afterwards():
    yield
    assert not here.observers


def weight(*values, name="w", policy=mp.MIXED):
    p = policy.cast(Parameter(np.array(values, "float32")))
    p.name = name
    return p


def scaled(scaler, w, grad):
    """w gets this gradient, maybe infinite, as a backward pass leaves it."""
    w.grad = device_array(np.full(w.shape, grad * scaler.get_scale()).astype(w.dtype))
    w.grad_scale = scaler.get_scale()


def iterate(scaler, optimizer, grad, unscale=False, step=True, update=True):
    """One iteration whose backward pass left the gradient `grad`; None: nothing."""
    for p in optimizer.param_groups[0]["params"]:
        if grad is None:
            p.grad = None
        else:
            scaled(scaler, p, grad)
    if unscale:
        scaler.unscale_(optimizer)
    result = scaler.step(optimizer) if step else None
    if update:
        scaler.update()
    return result


def trace(scaler, optimizer, w, x):
    """One iteration with loss = mean(x w)."""
    optimizer.zero_grad()
    scaler.scale(ops.mul(mp.tensor(np.array(x, "float16")), w).float().mean()).backward()
    result = scaler.step(optimizer)
    scaler.update()
    return result


def test_scales_of_two_scalers_multiply_and_go_with_the_gradient():
    w = weight(1.0, 2.0)
    optim.StaticLossScaler(64).scale(optim.StaticLossScaler(8).scale(w.float().sum())).backward()
    assert (w.grad.tolist(), w.grad_scale) == ([512, 512], 512)
    w.zero_grad()
    w.grad = np.float32([1, 2])  # the user's own, without a scale
    optim.SGD([w], lr=1.0).step()
    assert w.master.tolist() == [0, 0]


def test_gradients_of_different_scales_do_not_meet():
    w, v = weight(1.0), weight(1.0, name="v")
    loss, scaler = w.float().sum(), optim.StaticLossScaler(8)
    with pytest.raises(RuntimeError, match=r"loss scales [18] and [18] meet"):
        (scaler.scale(loss) + loss).backward()
    w.zero_grad()
    scaler.scale(w.float().sum()).backward()
    with pytest.raises(RuntimeError, match="loss scales 8 and 4 meet"):
        optim.StaticLossScaler(4).scale(w.float().sum()).backward()
    v.grad = np.ones(1, "float32")
    with pytest.raises(RuntimeError, match=r"parameter `v` \(1,\) carries no loss scale"):
        scaler.step(optim.SGD([w, v]))
    assert w.master == 1


@pytest.mark.parametrize("rule", [optim.SGD, optim.Adam])
def test_step_alone_does_what_unscale_and_step_do_and_weight_decay_sees_no_scale(rule):
    weights = []
    for scale, separately in ((2.0**10, True), (2.0**10, False), (1.0, False)):
        w, scaler = weight(*np.linspace(-1, 1, 9), policy=mp.FP32), optim.StaticLossScaler(scale)
        optimizer = rule([w], lr=0.1, weight_decay=0.5)
        scaler.scale(ops.mul(w, w).float().mean()).backward()
        if separately:
            scaler.unscale_(optimizer)
        assert scaler.step(optimizer)
        weights.append(host(w.master).tolist())
    assert weights[0] == weights[1] == weights[2]


@pytest.mark.parametrize("unscale", [True, False])
@pytest.mark.parametrize("bad", [INF, -INF, NAN])
@pytest.mark.parametrize("policy", [mp.MIXED, mp.FP32], ids=str)
@pytest.mark.parametrize("name", SCALERS)
def test_one_bad_element_skips_the_step(name, policy, bad, unscale):
    w, v, scaler = weight(*np.ones(99), policy=policy), weight(1.0, policy=policy), SCALERS[name]()
    optimizer = optim.SGD([w, v], lr=1.0, momentum=0.9)
    for p in (w, v):
        scaled(scaler, p, 1)
    w.grad[70] = bad
    if unscale:
        scaler.unscale_(optimizer)
    assert scaler.step(optimizer) == SKIPPED
    assert (w.master == 1).all() and (v.master == 1).all() and not optimizer.state


@pytest.mark.parametrize("unscale", [True, False])
def test_a_gradient_that_a_scale_below_1_keeps_finite_is_infinite(unscale):
    w, scaler = weight(1.0, policy=mp.FP32), optim.StaticLossScaler(2.0**-14)
    optimizer = optim.SGD([w], lr=1.0)
    assert iterate(scaler, optimizer, 1e36 * 2.0**14, unscale) == SKIPPED and w.item() == 1  # 1.6e40 without the scale
    assert iterate(scaler, optimizer, 0.5) == APPLIED and w.item() == 0.5


def test_several_optimizers_on_one_scaler():
    for first, second in ((INF, 0.5), (0.5, INF)):
        w, v, scaler = weight(1.0), weight(1.0), optim.DynamicLossScaler(8.0)
        for p, grad in ((w, first), (v, second)):
            result = iterate(scaler, optim.SGD([p], lr=1.0), grad, update=False)
            assert result == (APPLIED if grad == 0.5 else SKIPPED)
        scaler.update()
        assert {w.item(), v.item()} == {1, 0.5} and scaler.get_scale() == 4


@pytest.mark.parametrize("load", [True, False])
def test_a_forgotten_step_does_not_spoil_the_next_iteration(load):
    w, scaler = weight(1.0), optim.DynamicLossScaler(8.0)
    optimizer, saved = optim.SGD([w], lr=1.0), scaler.state_dict()
    scaler.scale(ops.mul(w.float(), NAN).sum())
    if load:
        scaler.load_state_dict(saved)
    else:
        with pytest.raises(RuntimeError, match=r"expected step\(optimizer\) before it"):
            scaler.update()
    assert iterate(scaler, optimizer, 0.5) == APPLIED
    scaler.scale(w.float().sum())
    scaled(scaler, w, 0.25)
    scaler.unscale_(optimizer)
    scaler.load_state_dict(saved)  # in the middle of an iteration
    assert iterate(scaler, optimizer, 0.25) == APPLIED and w.item() == 0.25
    scaler.scale(ops.mul(w.float(), NAN).sum())  # a bad loss without gradients does not skip the next step
    assert iterate(scaler, optimizer, None) == NO_GRADIENTS and iterate(scaler, optimizer, 0.25) == APPLIED


OVER_TIME = {  # gradients (None: none; in brackets: the step is left out), and S after each
    "dynamic": ([1, 1, INF, 1, 1, 1, 1, 1, 1, 1, 1, 1, INF, INF, INF, INF, INF],
                [16, 16, 8, 8, 8, 16, 16, 16, 32, 32, 32, 32, 16, 8, 4, 2, 2]),
    "no gradients count neither way": ([1, None, 1, 1], [16, 16, 16, 32]),
    "steps left out": ([[1], [1], [1], [INF], [1]], [16, 16, 32, 16, 16]),
}  # fmt: skip


@pytest.mark.parametrize("case", OVER_TIME)
def test_dynamic_scale_over_time(case):
    grads, expected = OVER_TIME[case]
    optimizer = optim.SGD([weight(1.0)], lr=0.0)
    scaler = optim.DynamicLossScaler(16.0, growth_interval=3, min_scale=2.0, max_scale=32.0)
    scales = []
    for grad in grads:
        left_out = isinstance(grad, list)
        iterate(scaler, optimizer, grad[0] if left_out else grad, unscale=left_out, step=not left_out)
        scales.append(scaler.get_scale())
    assert scales == expected and scaler.iteration == len(grads)
    if case == "dynamic":
        assert scaler.history[:2] == [(2, 8.0, "overflow in `w` (1,)"), (5, 16.0, "3 iterations without overflow")]
        assert [entry[:2] for entry in scaler.history[2:]] == [(8, 32), (12, 16), (13, 8), (14, 4), (15, 2)]


# On a GPU limits are noticed some steps late
@pytest.mark.cpu
def test_bad_batches_are_only_skipped_until_there_are_three_in_a_row():
    w = weight(1.0, 1.0)
    optimizer, scaler = optim.SGD([w], lr=0.0, momentum=0.9), optim.DynamicLossScaler(8.0, growth_interval=3)
    for x in ([1.0, 1.0], [1.0, NAN], [1.0, INF], [1.0, 1.0], [NAN, 1.0], [NAN, 1.0], [1.0, 1.0]):
        assert trace(scaler, optimizer, w, x) == (APPLIED if np.isfinite(x).all() else SKIPPED)
    assert scaler.get_scale() == 16 and len(scaler.history) == 1  # skipped for the data: S is not reduced
    for _ in range(2):
        trace(scaler, optimizer, w, [NAN, 1.0])
    with pytest.raises(FloatingPointError, match="the loss is nan in 3 iterations in a row"):
        trace(scaler, optimizer, w, [NAN, 1.0])
    assert trace(scaler, optimizer, w, [NAN, 1.0]) == SKIPPED  # counted anew
    assert trace(scaler, optimizer, w, [NAN, 1.0]) == SKIPPED and host(w.master).tolist() == [1, 1]


@pytest.mark.cpu
@pytest.mark.parametrize("bad_loss", [False, True])
def test_a_loss_that_is_not_finite_skips_the_step_though_all_gradients_are_finite(bad_loss):
    w, scaler = weight(1.0), optim.StaticLossScaler(8.0)
    optimizer = optim.SGD([w], lr=1.0)
    scaler.scale(ops.mul(w.float(), NAN if bad_loss else 1.0).sum())
    assert iterate(scaler, optimizer, 0.5) == (SKIPPED if bad_loss else APPLIED) and w.item() == (
        1 if bad_loss else 0.5
    )


@pytest.mark.cpu
@pytest.mark.parametrize(
    ("make", "times", "scale"),
    [
        (optim.NoLossScaler, 10, 1),
        (lambda: optim.StaticLossScaler(1024.0), 10, 1024),
        (lambda: optim.DynamicLossScaler(4.0, min_scale=1.0, max_scale=4.0), 4, 1),
        (lambda: optim.DynamicLossScaler(4.0, max_consecutive_skips=1), 1, 4),
    ],
)
def test_overflow_without_end_names_the_parameter(make, times, scale):
    w, v, scaler = weight(1.0, name="conv1.weight"), weight(1.0, name="v"), make()
    optimizer, before = optim.SGD([v, w], lr=1.0, momentum=0.9), scaler.state_dict()

    def step():
        scaled(scaler, v, 1.0)
        scaled(scaler, w, INF)
        assert scaler.step(optimizer) == SKIPPED
        scaler.update()

    for _ in range(times - 1):
        step()
    said = rf"in {times} iterations? in a row, .* loss scale {scale},.*The first parameter: `conv1.weight` \(1,\)\."
    with pytest.raises(FloatingPointError, match=f"(?s){said}"):
        step()
    assert w.master == v.master == 1 and not optimizer.state
    assert iterate(scaler, optimizer, 1.0) == APPLIED and w.item() == 0  # training can go on
    assert scaler.state_dict().keys() == before.keys()


@pytest.mark.parametrize("name", SCALERS)
def test_a_loaded_scaler_goes_on(name):
    optimizer = optim.SGD([weight(1.0)], lr=0.0)
    first, second = SCALERS[name](), SCALERS[name]()
    for grad in (1.0, INF, 1.0, 1.0):
        iterate(first, optimizer, grad)
    second.load_state_dict(first.state_dict())
    for scaler in (first, second):
        iterate(scaler, optimizer, 1.0)
    assert first.state_dict() == second.state_dict()


def _twice(scaler, optimizer):
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


def _stepped(scaler, optimizer):
    iterate(scaler, optimizer, 2.0**-10, update=False)
    scaler.unscale_(optimizer)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda s, o: s.scale(mp.tensor(np.float16(1))), TypeError, "expected the loss in FP32, got float16"),
        (lambda s, o: s.scale(mp.tensor([1.0, 2.0])), ValueError, r"expected a scalar loss, got shape \(2,\)"),
        (_twice, RuntimeError, "unscale_: this optimizer has unscaled already"),
        (_stepped, RuntimeError, "unscale_: this optimizer has stepped already"),
        (_backward_after_unscale, RuntimeError, "was computed after unscale_"),
        (_unscaled_loss, RuntimeError, r"its loss was not passed through scaler\.scale"),
    ],
)
def test_misuse(call, error, message):
    with pytest.raises(error, match=message):
        call(optim.DynamicLossScaler(), optim.SGD([weight(1.0)]))
