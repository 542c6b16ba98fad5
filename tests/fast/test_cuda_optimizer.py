"""The optimizer's work on the device, in one launch, against the definitions on the CPU over several steps.

Both compute in FP32; a GPU may fuse a product and a sum. After n steps masters differ by a few roundings of each step:
|difference| <= 8 n u (|w| + the size of the updates) with u = 2^-24; working copies by one more rounding to FP16.
"""

import numpy as np
import pytest

import tinymp as mp
from fast.both_ways import launches, on_device
from tinymp import optim
from tinymp.fast.cuda import optimizer as multi_tensor
from tinymp.fast.cuda import tables
from tinymp.fast.cuda.recording import record

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
    assert multi_tensor.norm([]).get().tolist() == [0, 1]


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


def test_multiply_makes_new_arrays():
    g = on_device(random((3, 5), 0))
    (a, b) = multi_tensor.multiply([g, g], number(0.3))
    for y in (a, b):
        np.testing.assert_array_equal(y.get(), random((3, 5), 0) * np.float32(0.3))
    np.testing.assert_array_equal(g.get(), random((3, 5), 0))


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
    expected = np.sqrt(sum((g.astype(np.float64) ** 2).sum() for g in host))
    np.testing.assert_allclose(multi_tensor.norm(grads).get()[0], expected, rtol=1e-5)
    found = number(multi_tensor.NONE, "int32")
    multi_tensor.check(grads, found)
    assert found.get() == multi_tensor.NONE


@pytest.mark.parametrize("p", [1.0, 2.0, 2.5, float("inf")])
def test_norm_and_factor(p):
    grads = [random(s, i, "float16" if i % 2 else "float32") for i, s in enumerate(SHAPES)]
    every = np.concatenate([g.astype(np.float64).ravel() for g in grads])
    expected = np.linalg.norm(every, p)
    device = [on_device(g) for g in grads]
    for max_norm in (1.0, 1e6):
        norm, factor = multi_tensor.norm(device, p, max_norm).get()
        np.testing.assert_allclose(norm, expected, rtol=1e-5)
        np.testing.assert_allclose(factor, min(max_norm / (expected + 1e-6), 1), rtol=1e-5)


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("p", [2.0, float("inf")])
def test_norm_of_what_is_not_finite(value, p):
    g = random(100, 0)
    g[50] = value
    norm, factor = multi_tensor.norm([on_device(g)], p, 1.0).get()
    np.testing.assert_array_equal(norm, value)
    np.testing.assert_array_equal(factor, np.nan if np.isnan(value) else 0)


# --------------------------------------------------------------------------------------------------- the update rules


class Device:
    """The parameters of a CPU optimizer, once more on the device, updated by multi_tensor."""

    def __init__(self, rule, optimizer, params):
        self.rule, self.optimizer = rule, optimizer
        self.masters = [on_device(p.master) if p.master.dtype == np.float32 else None for p in params]
        self.copies = [on_device(p.array) if p.dtype == np.float16 else None for p in params]
        self.steps = [number(0, "int32") for _ in params]
        initial = optimizer.initial(optimizer.param_groups[0])
        self.names = list(initial)
        self.states = [[on_device(np.full(p.shape, v, np.float32)) for p in params] for v in initial.values()]

    def step(self, grads, **how):
        group = self.optimizer.param_groups[0]
        options = on_device(multi_tensor.options(multi_tensor.RULES[type(self.optimizer).update][1], group))
        lists = [grads, self.masters, self.copies, self.steps]
        how["maximize"] = group["maximize"]
        if self.rule == "sgd":
            buffers = self.states[0] if self.states else [None] * len(grads)
            multi_tensor.sgd(*lists, buffers, options, nesterov=group["nesterov"], **how)
        elif self.rule == "adagrad":
            multi_tensor.adagrad(*lists, *self.states, options, **how)
        else:
            largest = self.states[2] if group["amsgrad"] else None
            decoupled = self.optimizer.decoupled
            multi_tensor.adam(*lists, *self.states[:2], largest, options, decoupled=decoupled, **how)

    def arrays(self):
        return [x.get() for xs in (self.masters, self.copies, self.steps, *self.states) for x in xs if x is not None]


RULES = [
    ("sgd", optim.SGD, {"lr": 0.1}),
    ("sgd", optim.SGD, {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01}),
    ("sgd", optim.SGD, {"lr": 0.1, "momentum": 0.9, "dampening": 0.3, "maximize": True}),
    ("sgd", optim.SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.01}),
    ("adagrad", optim.Adagrad, {"lr": 0.1, "initial_accumulator_value": 0.1}),
    ("adagrad", optim.Adagrad, {"lr": 0.1, "lr_decay": 0.1, "weight_decay": 0.01, "maximize": True}),
    ("adam", optim.Adam, {"lr": 0.01}),
    ("adam", optim.Adam, {"lr": 0.01, "weight_decay": 0.1, "amsgrad": True}),
    ("adam", optim.AdamW, {"lr": 0.01, "betas": (0.8, 0.99), "weight_decay": 0.1, "maximize": True}),
]
POLICIES = [mp.FP32, mp.MIXED, mp.NO_MASTER]
SKIPPED, STEPS = 2, 5  # which of how many steps is skipped


@pytest.mark.parametrize("policy", POLICIES, ids=lambda p: p.name)
@pytest.mark.parametrize(("rule", "kind", "options"), RULES)
def test_a_rule_against_its_definition(rule, kind, options, policy):
    params = [policy.cast(mp.nn.Parameter(random(s, i))) for i, s in enumerate(SHAPES)]
    optimizer = kind(params, **options)
    device = Device(rule, optimizer, params)
    scale, skip = number(64.0), on_device(np.zeros(1, bool))
    for t in range(STEPS):
        optimizer.param_groups[0]["lr"] *= 0.9  # as a schedule
        grads = [(random(p.shape, 10 * t + i) * 64).astype(p.dtype) for i, p in enumerate(params)]
        before = device.arrays()
        skip[...] = t == SKIPPED
        device.step([on_device(g) for g in grads], scale=scale, skip=skip)
        if t == SKIPPED:
            for a, b in zip(before, device.arrays(), strict=True):
                np.testing.assert_array_equal(a, b)
            continue
        for p, g in zip(params, grads, strict=True):
            p.grad = g.astype(np.float32) / 64
        optimizer.step()
    assert [int(s.get().item()) for s in device.steps] == [STEPS - 1] * len(params)
    rounding = 2.0**-11 if policy.name == "NO_MASTER" else 0  # in every step
    for i, p in enumerate(params):
        tolerance = STEPS * (8 * U + 2 * rounding) * (np.abs(p.master).astype(np.float64) + STEPS * 0.1)
        if device.masters[i] is not None:
            assert (np.abs(device.masters[i].get() - p.master) <= tolerance).all()
        if device.copies[i] is not None:
            error = np.abs(device.copies[i].get().astype(np.float64) - p.array)
            assert (error <= tolerance + np.spacing(np.abs(p.array)).astype(np.float64)).all()
            if device.masters[i] is not None:  # nearest-even, exactly
                np.testing.assert_array_equal(device.copies[i].get(), device.masters[i].get().astype(np.float16))
        for name, state in zip(device.names, device.states, strict=True):
            e = optimizer.state[p][name]
            bound = STEPS * (16 * U + rounding) * (np.abs(e) + np.abs(e).max(initial=1))
            assert (np.abs(state[i].get() - e) <= bound).all(), name


def test_one_launch_per_dtype_of_gradients():
    params = [mp.MIXED.cast(mp.nn.Parameter(random(s, i))) for i, s in enumerate(SHAPES)]
    optimizer = optim.Adam(params)
    device = Device("adam", optimizer, params)
    before = len(launches() or ())
    grads = [on_device(random(p.shape, i, "float16" if i % 2 else "float32")) for i, p in enumerate(params)]
    device.step(grads)
    if launches() is not None:
        assert launches()[before:] == ["adam_begin", "adam"] * 2
    for p, g in zip(params, grads, strict=True):
        p.grad = g.get()
    optimizer.step()
    for p, master in zip(params, device.masters, strict=True):
        np.testing.assert_allclose(master.get(), p.master, rtol=1e-6, atol=1e-8)


def test_a_parameter_without_gradient_is_left_alone():
    params = [mp.MIXED.cast(mp.nn.Parameter(random(20, i))) for i in range(3)]
    optimizer = optim.Adam(params)
    device = Device("adam", optimizer, params)
    before = device.arrays()
    device.step([None, on_device(random(20, 9, "float16")), None])
    assert [s.get().item() for s in device.steps] == [0, 1, 0]
    changed = [not np.array_equal(a, b) for a, b in zip(before, device.arrays(), strict=True)]
    assert changed == [False, True, False] * 5  # masters, copies, steps, exp_avg, exp_avg_sq


def test_bias_corrections_late_in_training():
    p = mp.nn.Parameter(random(50, 0))
    optimizer = optim.Adam([p], betas=(0.9, 0.9999))
    device = Device("adam", optimizer, [p])
    g = random(50, 1)
    p.grad = g
    optimizer.step()
    optimizer.state[p]["step"] = 12344
    device.step([on_device(g)])
    device.steps[0][...] = 12344
    optimizer.step()
    device.step([on_device(g)])
    np.testing.assert_allclose(device.masters[0].get(), p.master, rtol=4 * U)


@pytest.mark.parametrize("n", [1, 8, 2051])
def test_stochastic_rounding_of_the_working_copies(n):
    mp.manual_seed(3)
    w = np.full(n, 1 + 2.0**-12, np.float32)  # a quarter of the way from 1 to its neighbour 1 + 2^-10
    params = [mp.STOCHASTIC_ROUNDING.cast(mp.nn.Parameter(w.copy())) for _ in range(2)]
    device = Device("sgd", optim.SGD(params, lr=0.0), params)
    zero = [on_device(np.zeros(n, np.float16)) for _ in params]
    draws = []
    for _ in range(2):
        device.step(zero, rounding="stochastic")
        draws += [c.get() for c in device.copies]
        for master in device.masters:
            np.testing.assert_array_equal(master.get(), w)
    drawn = np.concatenate(draws).astype(np.float64)
    assert set(drawn) <= {1.0, 1 + 2.0**-10}
    if n > 100:
        share = (drawn > 1).mean()
        assert abs(share - 0.25) < 5 * np.sqrt(0.25 * 0.75 / drawn.size)
        for i in range(4):
            for j in range(i):
                assert not np.array_equal(draws[i], draws[j])


def sgd_options(lr):
    group = {"lr": lr, "momentum": 0, "dampening": 0, "weight_decay": 0}
    return on_device(multi_tensor.options(multi_tensor.RULES[optim.SGD.update][1], group))


def test_unaligned_parameters():
    base = on_device(random(1 + 2060, 0))
    w, copy = base[1:], on_device(np.zeros(2061, np.float16))[1:]
    before, g = w.get(), random(2060, 1, "float16")
    options = sgd_options(0.5)
    multi_tensor.sgd([on_device(g)], [w], [copy], [number(0, "int32")], [None], options)
    expected = before - np.float32(0.5) * g.astype(np.float32)
    np.testing.assert_allclose(w.get(), expected, rtol=4 * U, atol=4 * U)
    np.testing.assert_array_equal(copy.get(), w.get().astype(np.float16))
    assert base.get()[0] == random(1 + 2060, 0)[0]


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
    first = [multi_tensor.norm([g]).get()[0] for g in grads]
    assert len(tables._recent) == 4
    assert [multi_tensor.norm([g]).get()[0] for g in grads] == first


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
    adam = Device("adam", optim.Adam(params), params)
    grads = [on_device(random(s, i, "float16")) for i, s in enumerate(SHAPES)]
    found, scale, skip = number(multi_tensor.NONE, "int32"), number(8.0), on_device(np.zeros(1, bool))
    with device.no_synchronisation():
        multi_tensor.check(grads, found)
        unscaled = multi_tensor.unscale(grads, scale)
        clipped = multi_tensor.multiply(unscaled, multi_tensor.norm(unscaled, 2.0, 1.0)[1:])
        adam.step(clipped, skip=skip, rounding="stochastic")


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
    w, g, one = on_device(random((4, 6), 0)), on_device(random((4, 6), 1)), number(0, "int32")
    options = sgd_options(1)
    with pytest.raises(TypeError, match="expected gradients in FP16 or FP32, got float64"):
        multi_tensor.check([on_device(np.zeros(3))], one)
    with pytest.raises(TypeError, match=r"optimizer.sgd: list 1 has an array float16\[4, 6\]"):
        multi_tensor.sgd([g], [on_device(random((4, 6), 0, "float16"))], [None], [one], [None], options)
    with pytest.raises(TypeError, match=r"list 4 has an array float32\[6\]"):
        multi_tensor.sgd([g], [w], [None], [one], [on_device(random(6, 0))], options)
    with pytest.raises(ValueError, match="expected C-contiguous arrays in list 1"):
        multi_tensor.sgd([g], [on_device(random((6, 4), 0)).T], [None], [one], [None], options)
    assert one.get() == 0
