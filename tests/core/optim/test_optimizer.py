"""Optimizers: the four rules against float64 oracles, masters and copies, groups, state, and what is refused."""

from dataclasses import replace

import numpy as np
import pytest

import tinymp as mp
from oracle import device_array, host, randn
from tinymp import nn, optim
from tinymp.optim import StepResult
from tinymp.parameter import Parameter

STEPS = 20


def sgd(w, grads, lr=1e-3, momentum=0, dampening=0, weight_decay=0, nesterov=False):
    m = None
    for g in grads:
        g = g + weight_decay * w
        m = g if m is None else momentum * m + (1 - dampening) * g
        w = w - lr * (g + momentum * m if nesterov else m)
    return w


def adam(w, grads, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0, amsgrad=False, decoupled=False):
    m = v = largest = 0.0
    for t, g in enumerate(grads, 1):
        w = w - lr * weight_decay * w * decoupled
        g = g + weight_decay * w * (not decoupled)
        m = betas[0] * m + (1 - betas[0]) * g
        v = betas[1] * v + (1 - betas[1]) * g**2
        largest = np.maximum(largest, v) if amsgrad else v
        w = w - lr * (m / (1 - betas[0] ** t)) / (np.sqrt(largest / (1 - betas[1] ** t)) + eps)
    return w


def adamw(w, grads, weight_decay=1e-2, **options):
    return adam(w, grads, weight_decay=weight_decay, decoupled=True, **options)


def found(rule):
    """A rule, also one of optim/more, by its name."""
    return getattr(optim, rule) if isinstance(rule, str) else rule


RULES = [
    (optim.SGD, sgd, {}),
    (optim.SGD, sgd, {"lr": 0.1, "weight_decay": 0.1}),
    (optim.SGD, sgd, {"lr": 0.1, "momentum": 0.9}),
    (optim.SGD, sgd, {"lr": 0.1, "momentum": 0.9, "dampening": 0.3, "weight_decay": 0.01}),
    (optim.SGD, sgd, {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.01}),
    (optim.Adam, adam, {}),
    (optim.Adam, adam, {"lr": 0.05, "betas": (0.5, 0.9), "eps": 1e-3, "weight_decay": 0.1}),
    (optim.Adam, adam, {"lr": 0.05, "amsgrad": True, "betas": (0.5, 0.5)}),
    ("AdamW", adamw, {}),
    ("AdamW", adamw, {"lr": 0.05, "weight_decay": 0.2, "amsgrad": True, "betas": (0.5, 0.5)}),
]


def gradients(shape, dtype="float64", steps=STEPS):
    """Gradients of falling size, so that amsgrad's maximum lies in the past."""
    return [randn(*shape, seed=k).astype(dtype) * np.asarray(2.0 ** (-k // 4), dtype) for k in range(steps)]


def run(optimizer, p, grads):
    for g in grads:
        p.grad = device_array(g)
        assert optimizer.step() is StepResult.APPLIED
        np.testing.assert_array_equal(host(p.grad), g)  # a step never writes into gradients


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize(("shape", "maximize"), [((4, 3), False), ((), True)])
@pytest.mark.parametrize(("rule", "oracle", "options"), RULES)
def test_rule_against_its_oracle(rule, oracle, options, dtype, maximize, shape):
    w, grads = np.asarray(randn(*shape, seed=99)).astype(dtype), gradients(shape, dtype)
    p = Parameter(w.copy())
    run(found(rule)([p], maximize=maximize, **options), p, grads)
    exact = [(-g if maximize else g).astype("float64") for g in grads]
    expected = oracle(w.astype("float64"), exact, **options)
    # each of the steps adds a dozen roundings of terms no larger than w + the sum of all updates
    size = np.abs(w) + np.abs(expected - w) + options.get("lr", 1e-2) * sum(np.abs(exact)) * 10
    assert p.dtype == dtype
    assert (np.abs(p.numpy() - expected) <= STEPS * 12 * np.finfo(dtype).eps * size).all()


@pytest.mark.parametrize("saved", [False, True])
def test_momentum_that_is_switched_on_begins_with_the_gradient(saved):
    """As in PyTorch: the first buffer is the gradient itself, without dampening, also in the fourth step."""
    w, grads = randn(5, seed=9).astype("float32"), gradients((5,), "float32", 9)
    p = Parameter(w.copy())
    optimizer = optim.SGD([p], lr=0.1)

    def go_on(*steps, **options):
        nonlocal optimizer
        optimizer.param_groups[0].update(options)
        if saved:
            state = optimizer.state_dict()
            optimizer = optim.SGD([p], lr=0.1)
            optimizer.load_state_dict(state)
        run(optimizer, p, [grads[i] for i in steps])

    go_on(0, 1, 2)
    go_on(3, 4, 5, momentum=0.9, dampening=0.5)
    go_on(6, momentum=0.0)
    go_on(7, 8, momentum=0.9)  # with the buffer of step 5
    w = sgd(w.astype("float64"), grads[:3], 0.1)
    m = grads[3]
    for k in (3, 4, 5, 6, 7, 8):
        m = m if k in (3, 6) else 0.9 * m + 0.5 * grads[k]
        w = w - 0.1 * (grads[k] if k == 6 else m)
    np.testing.assert_allclose(p.numpy(), w, rtol=0, atol=1e-5)


@pytest.mark.parametrize("policy", [mp.MIXED, mp.NO_MASTER], ids=str)
def test_small_updates_reach_the_master_and_at_last_the_copy(policy):
    p = policy.cast(Parameter(np.ones(3, "float32")))
    optimizer = optim.SGD([p], lr=1.0)
    for k in range(1, 9):  # 2^-13: an eighth of the FP16 spacing at 1, a quarter of that below it
        p.grad = device_array(np.full(3, 2.0**-13, "float16"))
        optimizer.step()
        assert (p.master == np.float32(1 if policy is mp.NO_MASTER else 1 - k * 2.0**-13)).all()
        assert (p.array == p.master.astype("float16")).all()
    assert (p.array == (1 if policy is mp.NO_MASTER else 1 - 2.0**-10)).all() and p.dtype == "float16"


def test_write_back_rounds_as_the_parameters_policy_says():
    p = mp.STOCHASTIC_ROUNDING.cast(Parameter(np.ones(4096, "float32")))
    mp.manual_seed(0)
    p.grad = device_array(np.full(4096, 2.0**-12, "float16"))  # half way between two FP16 values below 1
    optim.SGD([p], lr=1.0).step()
    assert 0.4 < (p.array == 1).mean() < 0.6 and (p.master == np.float32(1 - 2.0**-12)).all()
    assert mp.current_policy() is mp.MIXED


@pytest.mark.parametrize("policy", [mp.FP32, mp.MIXED, mp.NO_MASTER, replace(mp.MIXED, state="float16")], ids=str)
@pytest.mark.parametrize(("rule", "options"), [(optim.SGD, {"momentum": 0.9}), (optim.Adam, {"amsgrad": True})])
def test_state_has_the_dtype_of_the_policy(rule, options, policy):
    p = policy.cast(Parameter(randn(5, 4).astype("float32")))
    optimizer = rule([p], lr=0.1, **options)
    run(optimizer, p, gradients((5, 4), p.dtype, 3))
    arrays = {k: v for k, v in optimizer.state[p].items() if k != "step"}
    assert {a.dtype for a in arrays.values()} == {policy.state} and all(a.shape == (5, 4) for a in arrays.values())


def test_frozen_parameters_are_skipped_and_no_gradients_is_a_result_of_its_own():
    p, frozen = Parameter(np.ones(2, "float32")), Parameter(np.ones(2, "float32"), requires_grad=False)
    optimizer = optim.SGD([p, frozen], lr=1.0)
    result = optimizer.step()
    assert result is StepResult.NO_GRADIENTS and not result.applied and not result and not optimizer.state
    p.grad = device_array(np.ones(2, "float32"))
    assert optimizer.step().applied and (p.array == 0).all() and (frozen.array == 1).all()
    optimizer.zero_grad()
    assert p.grad is None and optimizer.step() is StepResult.NO_GRADIENTS


def test_a_missing_gradient_is_named_and_nothing_is_updated():
    p, q = Parameter(np.ones(2, "float32")), Parameter(np.ones((3, 1), "float32"))
    optimizer = optim.SGD([p, q], lr=1.0)
    p.grad = device_array(np.ones(2, "float32"))
    with pytest.raises(RuntimeError, match=r"parameter 1 \(3, 1\) has no gradient while 1 of 2 .*allow_missing=True"):
        optimizer.step()
    q.name = "fc.weight"
    with pytest.raises(RuntimeError, match=r"parameter `fc.weight` \(3, 1\).*requires_grad_\(False\).*separate"):
        optimizer.step()
    assert (p.array == 1).all() and not optimizer.state
    assert optimizer.step(allow_missing=True).applied and (p.array == 0).all() and (q.array == 1).all()


def test_a_rule_of_ones_own_must_return_the_new_weights():
    class Mine(optim.SGD):
        def update(self, w, g, state, group):
            pass

    p = Parameter(np.ones(2, "float32"))
    p.grad = device_array(np.ones(2, "float32"))
    with pytest.raises(TypeError, match=r"Mine\.update: expected new weights of shape \(2,\), got NoneType"):
        Mine([p]).step()
    assert (p.array == 1).all()


def test_scaled_gradients_are_refused():
    p = Parameter(np.ones(2, "float32"))
    p.grad, p.grad_scale = device_array(np.ones(2, "float32")), 1024.0
    with pytest.raises(RuntimeError, match=r"still carry the loss scale 1024: call scaler\.step"):
        optim.SGD([p]).step()
    assert (p.array == 1).all()


def test_statistics_follow_the_step():
    layer, p = nn.BatchNorm1d(2), Parameter(np.ones(1, "float32"))
    layer(mp.tensor(randn(4, 2).astype("float32")))
    p.grad = device_array(np.ones(1, "float32"))
    assert optim.SGD([p]).step()
    p.grad = device_array(np.full(1, np.inf, "float32"))
    assert not optim.NoLossScaler().step(optim.SGD([p, *layer.parameters()]), allow_missing=True)
    assert layer.num_batches_tracked.item() == 1  # nothing was left to undo


@pytest.mark.parametrize(("rule", "options"), [(r, o) for r, _, o in RULES])
def test_a_loaded_optimizer_goes_on_bit_for_bit(rule, options):
    def make():
        params = [mp.MIXED.cast(Parameter(randn(*s).astype("float32"))) for s in ((3, 2), (4,))]
        return params, found(rule)([{"params": params[:1], "lr": 0.5}, {"params": params[1:]}], **options)

    def go(params, optimizer, seeds):
        for k in seeds:
            for p in params:
                p.grad = device_array(randn(*p.shape, seed=k).astype("float16"))
            optimizer.step()

    (params, optimizer), (others, other) = make(), make()
    go(params, optimizer, range(3))
    saved = optimizer.state_dict()
    for p, q in zip(params, others, strict=True):
        q.write(p.master)
    go(params, optimizer, range(3, 6))  # does not reach into what was saved
    other.load_state_dict(saved)
    go(others, other, range(3, 6))
    for p, q in zip(params, others, strict=True):
        np.testing.assert_array_equal(host(p.master), host(q.master))
    assert [g["params"] for g in saved["param_groups"]] == [[0], [1]]


def _with(d, **entries):
    """The state_dict with other entries in the state of its first parameter."""
    return {**d, "state": {**d["state"], 0: {**d["state"][0], **entries}}}


def _without(d, key):
    return {k: v for k, v in d.items() if k != key}


LR = {"lr": float("nan")}
WRONG = [
    (lambda d: _without(d, "state"), r"it lacks \['state'\]"),
    (lambda d: {**d, "param_groups": [{**d["param_groups"][0], "params": [0]}]}, r"got \[1\]"),
    (lambda d: {**d, "param_groups": [{**d["param_groups"][0], **LR}]}, "`lr` to be at least 0"),
    (lambda d: {**d, "state": {0: _without(d["state"][0], "exp_avg")}}, r"it lacks \['exp_avg'\]"),
    (lambda d: _with(d, exp_avg=np.zeros(9)), r"`exp_avg` of parameter 0 \(2,\)"),
    (lambda d: _with(d, exp_avg=np.array([1, np.nan])), "to be finite"),
    (lambda d: _with(d, exp_avg_sq=np.array([1, -1e-9])), "at least 0"),
    (lambda d: _with(d, step=-1), "expected `step` to be at least 0"),
]


@pytest.mark.parametrize(("change", "message"), WRONG)
def test_loading_what_does_not_fit_raises_and_changes_nothing(change, message):
    params = [Parameter(np.ones(n, "float32")) for n in (2, 3)]
    optimizer = optim.Adam(params)
    for p in params:
        p.grad = device_array(np.ones(p.shape, "float32"))
    optimizer.step()
    before = optimizer.state_dict()
    with pytest.raises((ValueError, TypeError), match=message):
        optimizer.load_state_dict(change(before))
    np.testing.assert_equal(optimizer.state_dict(), before)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_loaded_state_is_copied_and_takes_the_optimizers_dtype(dtype):
    p = Parameter(np.ones(2, "float32"))
    optimizer = optim.SGD([p], momentum=0.9)
    saved = {**optimizer.state_dict(), "state": {0: {"step": 3, "momentum_buffer": np.ones(2, dtype)}}}
    optimizer.load_state_dict(saved)
    assert optimizer.state[p]["momentum_buffer"].dtype == "float32"
    run(optimizer, p, [np.zeros(2, "float32")])
    assert (saved["state"][0]["momentum_buffer"] == 1).all()
