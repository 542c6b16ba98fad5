"""An optimizer's step on the device, in one launch, has the bits of its definition, operation by operation there."""

from contextlib import nullcontext
from dataclasses import replace

import numpy as np
import pytest

import tinymp as mp
from gpu.both_ways import launches, on_device, without
from tinymp import optim
from tinymp.gpu import many as many_arrays
from tinymp.gpu.scaler import NONE, DeviceScale, _checking

pytestmark = [pytest.mark.usefixtures("gpu"), pytest.mark.cpu]  # the definitions run on the CPU

# Sizes around a group of 8, a block's first turn (2048) and a chunk; the last in two chunks
SHAPES = [(1,), (7, 3), (8,), (4, 0), (2049,), (2, 4100)]


def random(shape, seed, dtype="float32"):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def number(x, dtype="float32"):
    return on_device(np.array([x], dtype))


# ------------------------------------------------------------------------------------------- looking at the gradients


def check(grads, found, scale=None, unscale=False):
    """The gradients without their scale, as `DeviceSide.check` and `unscale` find them."""
    import cupy

    from tinymp.gpu.layout import contiguous

    grads = [None if g is None else contiguous(cupy, g) for g in grads]
    results = [None if g is None else cupy.empty(g.shape, np.result_type(g.dtype, np.float32)) for g in grads]
    for dtype in {g.dtype for g in grads if g is not None}:
        both = [[g, y] if unscale else [g] for g, y in zip(grads, results)]
        rows = [row if g is not None and g.dtype == dtype else None for g, row in zip(grads, both)]
        many = _checking(dtype, "" if scale is None else "const float*", unscale)
        many.launch(cupy, rows, found, np.int32(0), *([] if scale is None else [scale]))
    return results


def test_the_first_gradient_that_is_not_finite_is_found():
    found = number(NONE, "int32")
    grads = [random(s, i, ("float16", "float32", "float64")[i % 3]) for i, s in enumerate(SHAPES)]
    check([on_device(g) for g in grads], found)
    assert found.get() == NONE
    for place, element, value in ((5, 8199, np.nan), (4, 2048, np.inf), (1, 20, -np.inf), (0, 0, np.nan)):
        grads[place].reshape(-1)[element] = value
        found[...] = NONE
        check([None, *map(on_device, grads)], found)
        assert found.get() == place + 1
    check([on_device(random(3, 0)), on_device(random(3, 0) * np.inf)], found)
    assert found.get() == 1  # only ever lowered


@pytest.mark.parametrize("scale", [3.0, None])
def test_unscale_divides_in_fp32(scale):
    """Gradients in any layout: unaligned, every second, transposed, repeated, none, nothing."""
    host = [random(s, i, "float16" if i % 2 else "float32") for i, s in enumerate(SHAPES)]
    host[4][7] = np.inf
    x, repeated = random((6, 16), 0, "float16"), on_device(random((1, 16), 1))
    host += [random(1 + 2100, 1, "float16")[1:], x[:, ::2], x.T, np.broadcast_to(repeated.get(), (40, 16))]
    grads = [*map(on_device, host[:-4]), on_device(random(1 + 2100, 1, "float16"))[1:], on_device(x)[:, ::2]]
    grads += [on_device(x).T, mp.backend.gpu.xp.broadcast_to(repeated, (40, 16)), None]
    found = number(NONE, "int32")
    results = check(grads, found, None if scale is None else number(scale), unscale=True)
    assert found.get() == 4 and results.pop() is None
    for g, y in zip(host, results, strict=True):
        assert y.dtype == np.float32
        np.testing.assert_array_equal(y.get(), g.astype(np.float32) / np.float32(scale or 1))


# --------------------------------------------------------------------------------------------------- the update rules


class Device:
    """The parameters of an optimizer on the CPU, once more on the device, with an optimizer of the same options."""

    def __init__(self, twin, params):
        self.params = [p.policy.cast(mp.nn.Parameter(mp.Tensor(on_device(p.master)))) for p in params]
        options = {name: v for name, v in twin.param_groups[0].items() if name != "params"}
        self.twin, self.optimizer = twin, type(twin)(self.params, **options)

    def step(self, grads, scale=1, skip=False):
        self.optimizer.param_groups[0]["lr"] = self.twin.param_groups[0]["lr"]
        for p, g in zip(self.params, grads, strict=True):
            p.grad_array, p.grad_scale = g, scale
        self.optimizer.finish(self.optimizer.ready(True), skip)

    def state(self, p):
        return {name: x.get() if hasattr(x, "get") else x for name, x in self.optimizer.state[p].items()}

    def arrays(self):
        return [
            x.copy()
            for p in self.params
            for x in (p.master.get(), p.array.get(), *map(np.asarray, self.state(p).values()))
        ]


RULES = [
    (optim.SGD, {"lr": 0.1}),
    (optim.SGD, {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01}),
    (optim.SGD, {"lr": 0.1, "momentum": 0.9, "dampening": 0.3, "maximize": True}),
    (optim.SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.01}),
    (optim.Adagrad, {"lr": 0.1, "initial_accumulator_value": 0.1}),
    (optim.Adagrad, {"lr": 0.1, "lr_decay": 0.1, "weight_decay": 0.01, "maximize": True}),
    (optim.Adam, {"lr": 0.01}),
    (optim.Adam, {"lr": 0.01, "weight_decay": 0.1, "amsgrad": True}),
    (optim.AdamW, {"lr": 0.01, "betas": (0.8, 0.99), "weight_decay": 0.1, "maximize": True}),
    (optim.RMSprop, {"lr": 0.01}),
    (optim.RMSprop, {"lr": 0.01, "momentum": 0.9, "centered": True, "weight_decay": 0.1}),
    (optim.Adadelta, {"lr": 1.0, "weight_decay": 0.1}),
    (optim.Adamax, {"lr": 0.01, "weight_decay": 0.1}),
    (optim.NAdam, {"lr": 0.01, "weight_decay": 0.1, "decoupled_weight_decay": True}),
    (optim.RAdam, {"lr": 0.01, "weight_decay": 0.1}),
    (optim.RAdam, {"lr": 0.01, "betas": (0.9, 0.5)}),
]
NOT_TRACED = {optim.NAdam}  # its product over all steps so far is a loop
STATE = replace(mp.MIXED, name="FP16_STATE", state="float16")
SKIPPED, STEPS = 2, 5  # which of how many steps is skipped


class Written(mp.Observer):
    """The parameters that are about to be set, and their masters before."""

    def __init__(self):
        self.heard = []

    def written(self, parameter, value):
        self.heard.append((parameter, parameter.master.get()))


ALL = [mp.FP32, mp.MIXED, mp.NO_MASTER, STATE, mp.STOCHASTIC_ROUNDING]
ROWS = [(*rule, ALL[i % 5]) for i, rule in enumerate(RULES)] + [(*RULES[i], policy) for i in (3, 7) for policy in ALL]


@pytest.mark.parametrize(("kind", "options", "policy"), ROWS)
def test_a_rule_has_the_bits_of_its_definition(kind, options, policy):
    """Also before an observer, which hears each update; with a step that is skipped, loss scales, an lr that was 0."""
    params = [policy.cast(mp.nn.Parameter(random(s, i))) for i, s in enumerate(SHAPES) if 0 not in s]
    found, scale = [], DeviceScale(on_device(np.array(64.0, "float32")))
    drawn = policy.rounding == "stochastic"  # then a skipped step of a kernel draws its working copies anew
    for way in (nullcontext, lambda: without("apply"), lambda: mp.observe(Written()))[: 2 if drawn else 3]:
        device = Device(kind(params, **options), params)
        mp.manual_seed(0)
        before = len(launches() or ())
        for t in range(STEPS):
            device.twin.param_groups[0]["lr"] = options["lr"] * t
            grads = [on_device((random(p.shape, 10 * t + i) * 64).astype(p.dtype)) for i, p in enumerate(params)]
            masters = [p.master.get() for p in device.params]
            arrays = device.arrays() if t == SKIPPED and not drawn else []
            with way() as observer:
                device.step(grads, (scale, 1, 64.0)[t % 3], on_device(np.array([t == SKIPPED])))
            if t == SKIPPED:
                for was, x in zip(arrays, device.arrays()):
                    np.testing.assert_array_equal(x, was)
            elif observer:
                assert [id(p) for p, _ in observer.heard] == [id(p) for p in device.params]
                for (_, heard), was in zip(observer.heard, masters):
                    np.testing.assert_array_equal(heard, was)
        if launches() is not None:
            ours = [name for name in launches()[before:] if name.startswith(kind.__name__.lower())]
            assert way is not nullcontext or len(ours) == (0 if kind in NOT_TRACED else STEPS)
        found.append(device.arrays())
    for a, *others in zip(*found, strict=True):
        for b in others:
            np.testing.assert_array_equal(a, b)


def test_one_launch_per_dtype_of_gradients():
    params = [mp.MIXED.cast(mp.nn.Parameter(random(s, i))) for i, s in enumerate(SHAPES)]
    optimizer = optim.Adam(params)
    device = Device(optimizer, params)
    before = len(launches() or ())
    grads = [on_device(random(p.shape, i, "float16" if i % 2 else "float32")) for i, p in enumerate(params)]
    device.step(grads)
    if launches() is not None:
        assert [name.partition("_")[0] for name in launches()[before:]] == ["adam"] * 2
    for p, g in zip(params, grads, strict=True):
        p.grad = g.get()
    optimizer.step()
    for p, twin in zip(params, device.params, strict=True):
        np.testing.assert_allclose(twin.master.get(), p.master, rtol=1e-6, atol=1e-8)


# ---------------------------------------------------------------------------------------------- what is left, refusals


class Branching(optim.SGD):
    """No function of single elements, nor of these alone; it keeps a number of its own."""

    seen = 0

    def update(self, w, g, state, group):
        self.seen += 1
        if state["step"] % 2:
            g = g / (g * g).sum() ** 0.5
        return w - group["lr"] * g


def test_a_rule_that_cannot_be_traced_runs_as_it_is():
    params = [mp.MIXED.cast(mp.nn.Parameter(random(s, i))) for i, s in enumerate([(7, 3), (8,)])]
    optimizer = Branching(params, lr=0.1)
    device = Device(optimizer, params)
    for t in range(3):
        grads = [random(p.shape, 10 * t + i).astype(p.dtype) for i, p in enumerate(params)]
        for p, g in zip(params, grads):
            p.grad = g
        optimizer.step()
        device.step([on_device(g) for g in grads], skip=on_device(np.array([False])))
    for p, twin in zip(params, device.params):
        np.testing.assert_allclose(twin.master.get(), p.master, rtol=1e-6)
    assert device.optimizer.seen == 6


def test_options_that_change_and_late_steps():
    """A rule computes something else where there is no weight decay."""
    p, q = mp.nn.Parameter(random((5, 10), 0)), mp.nn.Parameter(random(50, 0))
    sgd, adam = optim.SGD([p], lr=0.1), optim.Adam([q], betas=(0.9, 0.9999))
    devices = [Device(sgd, [p]), Device(adam, [q])]
    for decay, momentum in ((0.0, 0.0), (0.5, 0.0), (0.5, 0.9), (0.5, 0.9), (0.0, 0.9)):
        for one in (sgd, devices[0].optimizer):
            one.param_groups[0].update(weight_decay=decay, momentum=momentum, dampening=0.25)
        if decay == 0 and momentum:  # bias corrections late in training
            adam.state[q]["step"] = 12344
            devices[1].optimizer.state[devices[1].params[0]]["step"][...] = 12344
        p.grad, q.grad = random((5, 10), 1), random(50, 1)
        for optimizer, device, one in ((sgd, devices[0], p), (adam, devices[1], q)):
            g = on_device(one.grad.numpy())
            optimizer.step()
            device.step([g])
            np.testing.assert_allclose(device.params[0].master.get(), one.master, rtol=1e-5, atol=1e-6)


def test_more_parameters_than_a_launch_has_room_for(monkeypatch):
    import cupy

    for version in ("runtimeGetVersion", "driverGetVersion"):
        monkeypatch.setattr(cupy.cuda.runtime, version, lambda: 12_000)
    many_arrays._most.cache_clear()
    try:
        most = many_arrays._most(cupy, 5)  # gradient, weight, two states, step
        assert most * 56 < 4096 - 64
        params = [mp.nn.Parameter(random(3, i)) for i in range(2 * most + 1)]
        device = Device(optim.Adam(params), params)
        before, start = [p.master.get() for p in device.params], len(launches() or ())
        device.step([on_device(np.ones(3, "float32")) for _ in params])
        if launches() is not None:
            assert len(launches()[start:]) == 3
        for p, was in zip(device.params, before, strict=True):
            np.testing.assert_allclose(p.master.get(), was - 1e-3, atol=1e-6)
            assert device.state(p)["step"] == 1
    finally:
        many_arrays._most.cache_clear()
