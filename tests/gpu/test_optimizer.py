"""The optimizer's work on the device, in one launch, against the definitions on the CPU over several steps.

Both compute in FP32; a GPU may fuse a product and a sum. After n steps masters differ by a few roundings of each step:
|difference| <= 8 n u (|w| + the size of the updates) with u = 2^-24; working copies by one more rounding to FP16.
"""

import numpy as np
import pytest

import tinymp as mp
from gpu.both_ways import launches, on_device
from tinymp import optim
from tinymp.gpu import optimizer as multi_tensor
from tinymp.gpu import tables
from tinymp.gpu.recording import record

pytestmark = [pytest.mark.usefixtures("gpu"), pytest.mark.cpu]  # the definitions run on the CPU

# Sizes around a group of 8, a block's first turn (2048) and a chunk; the last in two chunks
SHAPES = [(1,), (7, 3), (8,), (4, 0), (2049,), (2, 4100)]
U = 2.0**-24


def random(shape, seed, dtype="float32"):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def number(x, dtype="float32"):
    return on_device(np.array([x], dtype))


# ------------------------------------------------------------------------------------------- looking at the gradients


def test_the_first_gradient_that_is_not_finite_is_found():
    found = number(multi_tensor.NONE, "int32")
    grads = [random(s, i, "float16" if i % 2 else "float32") for i, s in enumerate(SHAPES)]
    multi_tensor.check([on_device(g) for g in grads], found)
    assert found.get() == multi_tensor.NONE
    for place, element, value in ((5, 8199, np.nan), (4, 2048, np.inf), (1, 20, -np.inf), (0, 0, np.nan)):
        grads[place].reshape(-1)[element] = value
        found[...] = multi_tensor.NONE
        multi_tensor.check([None, *map(on_device, grads)], found)
        assert found.get() == place + 1


def test_found_is_only_ever_lowered():
    found = number(0, "int32")
    multi_tensor.check([on_device(random(3, 0)), on_device(np.full(3, np.nan, np.float32))], found)
    assert found.get() == 0


def test_nothing_to_look_at():
    found = number(multi_tensor.NONE, "int32")
    multi_tensor.check([], found)
    multi_tensor.check([None, on_device(np.empty((0, 3), np.float16))], found)
    assert found.get() == multi_tensor.NONE


@pytest.mark.parametrize("scale", [1.0, 1024.0, 3.0, None])
def test_unscale_divides_in_fp32(scale):
    grads = [random(s, i, "float16" if i % 2 else "float32") for i, s in enumerate(SHAPES)]
    grads[4][7] = np.inf
    found = number(multi_tensor.NONE, "int32")
    device = None if scale is None else number(scale)
    results = multi_tensor.unscale([*map(on_device, grads), None], device, found)
    assert found.get() == 4
    assert results.pop() is None
    for g, y in zip(grads, results, strict=True):
        assert y.dtype == np.float32
        np.testing.assert_array_equal(y.get(), g.astype(np.float32) / np.float32(scale or 1))


def test_gradients_in_any_layout():
    import cupy

    x = random((6, 16), 0, "float16")
    unaligned = on_device(random(1 + 2100, 1, "float16"))[1:]
    every_other = on_device(x)[:, ::2]
    transposed = on_device(x).T
    spread = cupy.broadcast_to(on_device(x[:1]), (40, 16))
    grads = [unaligned, every_other, transposed, spread]
    host = [random(1 + 2100, 1, "float16")[1:], x[:, ::2], x.T, np.broadcast_to(x[:1], (40, 16))]
    for y, g in zip(multi_tensor.unscale(grads, number(2.0)), host, strict=True):
        np.testing.assert_array_equal(y.get(), g.astype(np.float32) / 2)
    found = number(multi_tensor.NONE, "int32")
    multi_tensor.check(grads, found)
    assert found.get() == multi_tensor.NONE


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
        assert multi_tensor._step(self.optimizer, self.optimizer.ready(True), skip) == []

    def state(self, p):
        return {name: x.get() for name, x in self.optimizer.state[p].items()}

    def arrays(self):
        return [x.copy() for p in self.params for x in (p.master.get(), p.array.get(), *self.state(p).values())]


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
]
POLICIES = [mp.FP32, mp.MIXED, mp.NO_MASTER]
SKIPPED, STEPS = 2, 5  # which of how many steps is skipped


@pytest.mark.parametrize("policy", POLICIES, ids=lambda p: p.name)
@pytest.mark.parametrize(("kind", "options"), RULES)
def test_a_rule_against_its_definition(kind, options, policy):
    params = [policy.cast(mp.nn.Parameter(random(s, i))) for i, s in enumerate(SHAPES)]
    optimizer = kind(params, **options)
    device = Device(optimizer, params)
    skip = on_device(np.zeros(1, bool))
    for t in range(STEPS):
        optimizer.param_groups[0]["lr"] *= 0.9  # as a schedule
        grads = [(random(p.shape, 10 * t + i) * 64).astype(p.dtype) for i, p in enumerate(params)]
        skip[...] = t == SKIPPED
        before = device.arrays() if t == SKIPPED else []
        device.step([on_device(g) for g in grads], 64.0, skip)
        if t == SKIPPED:
            for a, b in zip(before, device.arrays(), strict=True):
                np.testing.assert_array_equal(a, b)
            continue
        for p, g in zip(params, grads, strict=True):
            p.grad = g.astype(np.float32) / 64
        optimizer.step()
    rounding = 2.0**-11 if policy.name == "NO_MASTER" else 0  # in every step
    for p, twin in zip(params, device.params, strict=True):
        tolerance = STEPS * (8 * U + 2 * rounding) * (np.abs(p.master).astype(np.float64) + STEPS * 0.1)
        tolerance += np.spacing(np.abs(p.master)).astype(np.float64) if rounding else 0
        assert (np.abs(twin.master.get().astype(np.float64) - p.master) <= tolerance).all()
        if policy is mp.MIXED:  # nearest-even, exactly
            np.testing.assert_array_equal(twin.array.get(), twin.master.get().astype(np.float16))
        state = device.state(twin)
        assert state.pop("step") == STEPS - 1
        for name, x in state.items():
            e = optimizer.state[p][name]
            bound = STEPS * (16 * U + rounding) * (np.abs(e) + np.abs(e).max(initial=1))
            assert (np.abs(x - e) <= bound).all(), name


class Written(mp.Observer):
    """The parameters that are about to be set, and their masters before."""

    def __init__(self):
        self.parameters, self.masters = [], []

    def written(self, parameter, value):
        self.parameters.append(parameter)
        self.masters.append(parameter.master.get())


@pytest.mark.parametrize("policy", POLICIES, ids=lambda p: p.name)
@pytest.mark.parametrize(("kind", "options"), RULES)
def test_an_observer_hears_each_update_and_changes_no_bit(kind, options, policy):
    params = [policy.cast(mp.nn.Parameter(random(s, i))) for i, s in enumerate(SHAPES)]
    alone, heard = (Device(kind(params, **options), params) for _ in range(2))
    for t in range(2):
        grads = [(random(p.shape, 10 * t + i) * 64).astype(p.dtype) for i, p in enumerate(params)]
        before = [p.master.get() for p in heard.params]
        alone.step([on_device(g) for g in grads], 64.0)
        with mp.observe(Written()) as seen:
            heard.step([on_device(g) for g in grads], 64.0)
        assert [id(p) for p in seen.parameters] == [id(p) for p in heard.params]
        for one, other in zip(before, seen.masters, strict=True):
            np.testing.assert_array_equal(one, other)
        for one, other in zip(alone.arrays(), heard.arrays(), strict=True):
            np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(("kind", "option"), [(optim.SGD, "momentum"), (optim.Adam, "amsgrad"), (optim.Adagrad, "eps")])
def test_an_option_that_is_renamed_is_an_error(kind, option, monkeypatch):
    """The kernel takes options by their names: under another one none takes its place."""
    p = mp.nn.Parameter(mp.Tensor(on_device(random(3, 0))))
    optimizer = kind([p])
    group = optimizer.param_groups[0]
    group["renamed"] = group.pop(option)
    monkeypatch.setattr(kind, "check_options", lambda *_: None)
    monkeypatch.setattr(kind, "initial", lambda *_: {})
    p.grad = mp.Tensor(on_device(random(3, 1)))
    with pytest.raises(TypeError, match=rf"{kind.__name__} and the kernel \w+ differ in the names \['{option}'\]"):
        optimizer.step()


def test_a_state_that_is_renamed_is_an_error(monkeypatch):
    p = mp.nn.Parameter(mp.Tensor(on_device(random(3, 0))))
    monkeypatch.setattr(optim.Adam, "initial", lambda *_: {"first": 0.0, "exp_avg_sq": 0.0})
    p.grad = mp.Tensor(on_device(random(3, 1)))
    with pytest.raises(TypeError, match=r"Adam and the kernel adam differ in the names \['first'\]"):
        optim.Adam([p]).step()


def test_one_launch_per_dtype_of_gradients():
    params = [mp.MIXED.cast(mp.nn.Parameter(random(s, i))) for i, s in enumerate(SHAPES)]
    optimizer = optim.Adam(params)
    device = Device(optimizer, params)
    before = len(launches() or ())
    grads = [on_device(random(p.shape, i, "float16" if i % 2 else "float32")) for i, p in enumerate(params)]
    device.step(grads)
    if launches() is not None:
        assert launches()[before:] == ["adam_begin", "adam"] * 2
    for p, g in zip(params, grads, strict=True):
        p.grad = g.get()
    optimizer.step()
    for p, twin in zip(params, device.params, strict=True):
        np.testing.assert_allclose(twin.master.get(), p.master, rtol=1e-6, atol=1e-8)


def test_bias_corrections_late_in_training():
    p = mp.nn.Parameter(random(50, 0))
    optimizer = optim.Adam([p], betas=(0.9, 0.9999))
    device = Device(optimizer, [p])
    g = random(50, 1)
    for late in (False, True):
        if late:
            optimizer.state[p]["step"] = 12344
            device.optimizer.state[device.params[0]]["step"][...] = 12344
        p.grad = g
        optimizer.step()
        device.step([on_device(g)])
    np.testing.assert_allclose(device.params[0].master.get(), p.master, rtol=4 * U)


@pytest.mark.parametrize("n", [1, 8, 2051])
def test_stochastic_rounding_of_the_working_copies(n):
    mp.manual_seed(3)
    w = np.full(n, 1 + 2.0**-12, np.float32)  # a quarter of the way from 1 to its neighbour 1 + 2^-10
    params = [mp.STOCHASTIC_ROUNDING.cast(mp.nn.Parameter(w.copy())) for _ in range(2)]
    device = Device(optim.SGD(params, lr=0.0), params)
    zero = [on_device(np.zeros(n, np.float16)) for _ in params]
    draws = []
    for _ in range(2):
        device.step(zero)
        draws += [p.array.get().copy() for p in device.params]
        for p in device.params:
            np.testing.assert_array_equal(p.master.get(), w)
    drawn = np.concatenate(draws).astype(np.float64)
    assert set(drawn) <= {1.0, 1 + 2.0**-10}
    if n > 100:
        share = (drawn > 1).mean()
        assert abs(share - 0.25) < 5 * np.sqrt(0.25 * 0.75 / drawn.size)
        for i in range(4):
            for j in range(i):
                assert not np.array_equal(draws[i], draws[j])


# -------------------------------------------------------------------------------------------------- tables and refusals


def test_a_table_is_uploaded_once(monkeypatch):
    uploads = []
    original = tables._upload
    monkeypatch.setattr(tables, "_upload", lambda *args: (uploads.append(args), original(*args)))
    grads = [on_device(random(20, i)) for i in range(3)]
    found = number(multi_tensor.NONE, "int32")
    multi_tensor.check(grads, found)
    first = len(uploads)
    multi_tensor.check(grads, found)
    assert len(uploads) == first
    multi_tensor.check([on_device(random(20, 9)), *grads[1:]], found)
    assert len(uploads) == first + 1  # the addresses; sizes and chunks are as before


def test_old_tables_are_given_back(monkeypatch):
    monkeypatch.setattr(tables, "_MOST_RECENT", 4)
    grads = [on_device(random(20, i)) for i in range(10)]
    found = number(multi_tensor.NONE, "int32")
    for _ in range(2):
        for g in grads:
            multi_tensor.check([g], found)
    assert len(tables._recent) == 4 and found.get() == multi_tensor.NONE


def test_while_a_graph_is_captured_tables_arrive_afterwards():
    data = np.arange(2**40, 2**40 + 6)
    with record() as recording:
        table = tables.on_device(data.tobytes(), "int64", 3)
    assert any(kept is table for kept in recording.kept)
    assert tables.on_device(data.tobytes(), "int64", 3) is not table  # if the capture fails, it never arrives
    for work in recording.after:
        work()
    np.testing.assert_array_equal(table.get(), data.reshape(2, 3))
    assert tables.on_device(data.tobytes(), "int64", 3) is table


def test_nothing_waits_for_the_device():
    if launches() is None:
        pytest.skip("a real GPU does not tell what waits for it")
    from cuda_on_cpu import device

    params = [mp.STOCHASTIC_ROUNDING.cast(mp.nn.Parameter(random(s, i))) for i, s in enumerate(SHAPES)]
    adam = Device(optim.Adam(params), params)
    grads = [on_device(random(s, i, "float16")) for i, s in enumerate(SHAPES)]
    found, scale, skip = number(multi_tensor.NONE, "int32"), number(8.0), on_device(np.zeros(1, bool))
    adam.step(grads, skip=skip)
    with device.no_synchronisation():
        multi_tensor.check(grads, found)
        adam.step(multi_tensor.unscale(grads, scale), skip=skip)


def test_uploads_do_not_wait_for_the_device():
    if launches() is None:
        pytest.skip("a real GPU does not tell what waits for it")
    from cuda_on_cpu import device

    data = [np.arange(2**41 + i, 2**41 + i + 6) for i in range(3)]
    model = mp.MIXED.cast(mp.nn.Linear(3, 2)).to("gpu")
    optimizer = optim.SGD(model.parameters(), lr=0.5)
    with device.no_synchronisation():
        made = [
            tables.on_device(x.tobytes(), "int64", 3) for x in data
        ]  # each one is under way when the next one starts
        for p in model.parameters():
            p.grad = p.array * 0 + 1
        before = [p.master.copy() for p in model.parameters()]
        optimizer.step()
        optimizer.param_groups[0]["lr"] = 0.25
        optimizer.step()
    for table, x in zip(made, data):
        np.testing.assert_array_equal(table.get(), x.reshape(2, 3))
    for p, was in zip(model.parameters(), before):
        np.testing.assert_allclose(p.master.get(), was.get() - 0.75, rtol=1e-6)


def test_arrays_that_kernels_cannot_walk():
    one, params = number(0, "int32"), [mp.nn.Parameter(random((4, 6), 0))]
    with pytest.raises(TypeError, match="expected gradients in FP16 or FP32, got float64"):
        multi_tensor.check([on_device(np.zeros(3))], one)
    device = Device(optim.SGD(params, momentum=0.5), params)
    device.step([on_device(random((4, 6), 1))])
    for wrong in (random((4, 6), 0, "float16"), random(6, 0), random((6, 4), 0).T):
        device.optimizer.state[device.params[0]]["momentum_buffer"] = on_device(wrong)
        with pytest.raises(TypeError, match=r"sgd: expected a C-contiguous float32 of size 24 in list 4, got"):
            device.step([on_device(random((4, 6), 1))])
