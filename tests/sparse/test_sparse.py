"""Sparse gradients: the rows that a step touched, and what every consumer of gradients makes of them.

Each test compares with the dense gradient of the same lookups; the sums are the same, so the bits are too.
"""

import copy

import numpy as np
import pytest

import tinymp as mp
from oracle import device_array, host, randn, rng
from tinymp import SparseRows, nn, ops, optim
from tinymp.autograd import added, put
from tinymp.optim import StepResult
from tinymp.parameter import replace

V, D = 9, 4
INDEX = np.array([[2, 7, 2], [5, 2, 7]])
TOUCHED = [2, 5, 7]
RULES = [
    (optim.SGD, {}),
    (optim.SGD, {"momentum": 0.9}),
    (optim.SGD, {"momentum": 0.9, "nesterov": True, "maximize": True}),
    (optim.SGD, {"momentum": 0.9, "dampening": 0.5}),
    (optim.Adagrad, {"lr_decay": 0.1, "initial_accumulator_value": 0.1}),
    (optim.Adam, {}),
    (optim.Adam, {"amsgrad": True}),
    (optim.AdamW, {"weight_decay": 0.0}),
]
POLICIES = [mp.FP32, mp.MIXED, mp.NO_MASTER, mp.PURE_FP16]


def table(policy=mp.FP32, seed=0, shape=(V, D)):
    return policy.cast(nn.Parameter(randn(*shape, seed=seed).astype("float32")))


def look_up(p, index, sparse, seed=3, padding=None):
    """Backward through a lookup with random gradients."""
    y = ops.embedding(mp.tensor(index), p, padding, sparse=sparse)
    y.backward(device_array(randn(*y.shape, seed=seed).astype(p.dtype)))


def same(sparse, dense):
    assert isinstance(sparse, SparseRows)
    assert (sparse.shape, sparse.dtype, sparse.ndim) == (dense.shape, dense.dtype, dense.ndim)
    np.testing.assert_array_equal(host(sparse.dense()), host(dense))


def rows(g):
    """The rows that a gradient names, each once."""
    return sorted(set(host(g.indices).tolist()))


# --------------------------------------------------------------------------------------------------------- SparseRows


def test_what_it_is():
    g = SparseRows(device_array(np.array([1, 4])), device_array(np.ones((2, 3), "float16")), (5, 3))
    assert g.nbytes == 2 * 8 + 6 * 2
    assert repr(g) == f"SparseRows(2 rows of (5, 3), dtype=float16, device={g.device})"
    assert host(g.dense()).sum(1).tolist() == [0, 3, 0, 0, 3]
    copied = g.copy()
    copied.values[...] = 2
    assert host(g.values).max() == 1


@pytest.mark.parametrize(("index", "values"), [((2,), (3, 3)), ((2,), (2, 4)), ((2, 1), (2, 1, 3))])
def test_what_does_not_belong_together_is_refused(index, values):
    with pytest.raises(
        ValueError, match=r"SparseRows: expected indices \(n,\) and values \(n, 3\) for rows of a table"
    ):
        SparseRows(np.zeros(index, int), np.zeros(values), (5, 3))


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16"])
@pytest.mark.parametrize("index", [INDEX, np.array(3), np.empty((0, 2), int), np.full(70, 4, "uint8")], ids=str)
def test_a_lookup_gives_the_rows_of_the_dense_gradient(index, dtype):
    p, q = (mp.tensor(randn(V, D).astype(dtype), requires_grad=True) for _ in range(2))
    look_up(p, index, sparse=True)
    look_up(q, index, sparse=False)
    same(p.grad, q.grad)
    assert rows(p.grad) == sorted(set(index.reshape(-1).tolist()))


@pytest.mark.parametrize("padding", [2, -2])
def test_the_padding_row_gets_no_gradient(padding):
    p, q = table(), table()
    look_up(p, INDEX, True, padding=padding)
    look_up(q, INDEX, False, padding=padding)
    same(p.grad, q.grad)
    assert not host(p.grad.dense())[padding].any()


def test_the_policy_decides_about_the_sums():
    """5 000 ones: an FP16 accumulator stalls at 2 048."""
    for policy, expected in ((mp.MIXED, 5000), (mp.FP16_REDUCTIONS, 2048)):
        p = mp.tensor(np.zeros((2, 1), "float16"), requires_grad=True)
        with mp.use(policy):
            y = ops.embedding(mp.tensor(np.ones(5000, int)), p, sparse=True)
            y.backward(device_array(np.ones((5000, 1), "float16")))
        assert host(p.grad.dense()).tolist() == [[0], [expected]]


# ------------------------------------------------------------------------------------------------------ accumulation


@pytest.mark.parametrize("policy", [mp.FP32, mp.MIXED], ids=str)
def test_backward_calls_accumulate_in_fp32(policy):
    p, q = table(policy), table(policy)
    for w, sparse in ((p, True), (q, False)):
        look_up(w, INDEX, sparse, seed=1)
        look_up(w, np.array([7, 0, 0]), sparse, seed=2)
    same(p.grad, q.grad)
    assert p.grad.dtype == "float32" and rows(p.grad) == [0, 2, 5, 7]


@pytest.mark.parametrize("policy", [mp.FP32, mp.MIXED], ids=str)
def test_several_uses_in_one_graph(policy):
    p, q = table(policy), table(policy)
    dy = device_array(randn(3, D).astype(p.dtype))
    for w, sparse in ((p, True), (q, False)):
        a, b = (ops.embedding(mp.tensor(i), w, sparse=sparse) for i in ([1, 2, 1], [2, 8, 8]))
        (a + b).backward(dy)
    same(p.grad, q.grad)
    assert p.grad.dtype == policy.storage


@pytest.mark.parametrize("dense_first", [False, True])
@pytest.mark.parametrize("backwards", [1, 2])
def test_tied_weights_have_a_dense_gradient(dense_first, backwards):
    """The input embedding is sparse, the output layer is not: together they are not."""
    grads = []
    for sparse in (True, False):
        p = table(mp.MIXED)
        parts = [
            ops.embedding(mp.tensor(INDEX), p, sparse=sparse).float().square().sum(),
            ops.linear(mp.tensor(randn(2, D, seed=5).astype("float16")), p).float().square().sum(),
        ]
        parts = parts[::-1] if dense_first else parts
        if backwards == 1:
            (parts[0] + parts[1]).backward()
        else:
            for part in parts:
                part.backward()
        grads.append(host(p.grad))
    np.testing.assert_array_equal(*grads)


def test_what_is_no_leaf_gets_a_dense_gradient():
    p, q = table(), table()
    look_up(p * 2, INDEX, True)
    look_up(q * 2, INDEX, False)
    np.testing.assert_array_equal(host(p.grad), host(q.grad))


def test_two_loss_scales_do_not_meet():
    p = table()
    look_up(p, INDEX, True)
    p.grad_scale = 8.0
    with pytest.raises(RuntimeError, match="loss scales 8 and 1 meet"):
        look_up(p, INDEX, True)


# --------------------------------------------------------------------------------------------------------- optimizers


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: policy.name)
@pytest.mark.parametrize(("rule", "options"), RULES)
def test_touched_rows_are_updated_as_by_a_dense_gradient_and_the_others_stay(rule, options, policy):
    p, q = table(policy), table(policy)
    sparse, dense = (rule([w], lr=0.1, **options) for w in (p, q))
    before = p.master.copy()
    version = p.version
    for k in range(4):
        look_up(p, INDEX, True, seed=k)
        look_up(q, INDEX, False, seed=k)
        assert isinstance(p.grad, SparseRows)
        assert sparse.step() == dense.step() == StepResult.APPLIED
        sparse.zero_grad(), dense.zero_grad()
    assert p.version == version + 4
    rest = [i for i in range(V) if i not in TOUCHED]
    np.testing.assert_array_equal(host(p.master)[TOUCHED], host(q.master)[TOUCHED])
    np.testing.assert_array_equal(host(p.master)[rest], host(before)[rest])
    np.testing.assert_array_equal(host(p.array), host(p.master).astype(p.dtype))
    saved = sparse.state_dict()["state"][0], dense.state_dict()["state"][0]
    assert saved[0].keys() == saved[1].keys() and saved[0]["step"] == 4
    for name in saved[0].keys() - {"step"}:
        assert saved[0][name].dtype == saved[1][name].dtype == policy.state
        np.testing.assert_array_equal(saved[0][name][TOUCHED], saved[1][name][TOUCHED])
        assert (saved[0][name][rest] == options.get("initial_accumulator_value", 0)).all()


def test_state_of_a_row_waits_for_its_next_gradient():
    p = table()
    optimizer = optim.SGD([p], lr=1.0, momentum=0.5)
    start = host(p.array).copy()
    for index in ([1], [3], [1]):
        y = ops.embedding(mp.tensor(index), p, sparse=True)
        y.backward(device_array(np.ones((1, D), "float32")))
        optimizer.step()
        optimizer.zero_grad()
    np.testing.assert_allclose(start[1] - host(p.array)[1], 1 + 1.5, rtol=1e-6)  # not 1 + 0.5 + 1.25
    np.testing.assert_allclose(start[3] - host(p.array)[3], 1, rtol=1e-6)


@pytest.mark.parametrize("rule", [optim.SGD, optim.Adagrad])
def test_these_two_do_the_same_with_a_dense_gradient(rule):
    p, q = table(mp.MIXED), table(mp.MIXED)
    optimizers = [rule([w], lr=0.1) for w in (p, q)]
    for k, index in enumerate(([1, 1, 8], [0, 2], [8])):
        look_up(p, np.array(index), True, seed=k)
        look_up(q, np.array(index), False, seed=k)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    np.testing.assert_array_equal(host(p.master), host(q.master))
    np.testing.assert_array_equal(host(p.array), host(q.array))


def test_small_updates_reach_the_master_of_their_rows_alone():
    p = mp.MIXED.cast(nn.Parameter(np.ones((3, 2), "float32")))
    optimizer = optim.SGD([p], lr=1.0)
    for _ in range(4):
        ops.embedding(mp.tensor([1]), p, sparse=True).backward(device_array(np.full((1, 2), 2.0**-13, "float16")))
        optimizer.step()
        optimizer.zero_grad()
    assert host(p.master)[:, 0].tolist() == [1, 1 - 2.0**-11, 1] and host(p.array)[:, 0].tolist() == [
        1,
        1 - 2.0**-11,
        1,
    ]


def test_a_weight_decay_is_refused_and_nothing_is_updated():
    p, q = table(), table(seed=1)
    optimizer = optim.AdamW([("bias", q), ("embedding.weight", p)])
    look_up(p, INDEX, True)
    look_up(q, INDEX, False)
    with pytest.raises(
        RuntimeError,
        match=r"AdamW.step: a weight_decay is for all rows of parameter `embedding.weight` \(9, 4\), ",
    ):
        optimizer.step()
    assert not optimizer.state
    np.testing.assert_array_equal(host(q.array), randn(V, D, seed=1).astype("float32"))


def test_a_gradient_of_another_shape_is_refused():
    rows = SparseRows(device_array(np.array([0])), device_array(np.ones((1, D), "float32")), (V + 1, D))
    with pytest.raises(ValueError, match=r"^grad: expected floating numbers of shape \(9, 4\), got float32 \(10, 4\)"):
        table().grad = rows


def test_a_rule_of_ones_own_gets_the_rows():
    class Sign(optim.Optimizer):
        def update(self, w, g, state, group):
            assert w.shape == g.shape
            return w - group["lr"] * mp.backend.of(g).xp.sign(g)

    p = table()
    before = host(p.array).copy()
    look_up(p, INDEX, True)
    Sign([p], {"lr": 0.5}).step()
    moved = abs(host(p.array) - before)
    np.testing.assert_allclose(moved[TOUCHED], 0.5, rtol=1e-6)
    assert np.count_nonzero(moved.any(1)) == len(TOUCHED)


def test_moving_a_parameter_keeps_its_gradient():
    p, q = table(), table()
    look_up(p, INDEX, True)
    look_up(q, INDEX, False)
    replace([(p, p.moved_to(p.device))])
    np.testing.assert_array_equal(host(p.grad), host(q.grad))


# -------------------------------------------------------------------------------------------------- scalers, clipping


@pytest.mark.parametrize("unscale", [False, True])
def test_scaling(unscale):
    p, q = table(mp.MIXED), table(mp.MIXED)
    for w, sparse in ((p, True), (q, False)):
        scaler, optimizer = optim.StaticLossScaler(1024.0), optim.SGD([w], lr=0.5)
        scaler.scale(ops.embedding(mp.tensor(INDEX), w, sparse=sparse).float().square().sum()).backward()
        assert w.grad_scale == 1024 and w.grad.dtype == "float16"
        if unscale:
            scaler.unscale_(optimizer)
            assert w.grad_scale == 1 and w.grad.dtype == "float32"
        assert scaler.step(optimizer) == StepResult.APPLIED
        scaler.update()
    assert isinstance(p.grad, SparseRows)
    np.testing.assert_array_equal(host(p.master), host(q.master))


@pytest.mark.parametrize("unscale", [False, True])
def test_an_overflow_is_skipped(unscale):
    p = table(mp.MIXED)
    p.name = "embedding.weight"
    before = copy.deepcopy(host(p.master))
    scaler, optimizer = optim.DynamicLossScaler(2.0**16), optim.Adam([p])
    scaler.scale(ops.embedding(mp.tensor(INDEX), p, sparse=True).float().square().sum() * 100.0).backward()
    if unscale:
        scaler.unscale_(optimizer)
    assert scaler.step(optimizer) == StepResult.SKIPPED
    scaler.update()
    np.testing.assert_array_equal(host(p.master), before)
    assert scaler.history == [(0, 2.0**15, "overflow in `embedding.weight` (9, 4)")]


@pytest.mark.cpu  # a GPU tells some steps later: tests/gpu/test_scaler.py
def test_the_op_whose_sum_overflows_is_named():
    p = table(mp.MIXED)
    scaler, optimizer = optim.StaticLossScaler(2.0**8, max_consecutive_skips=1), optim.SGD([p])

    def step(n):
        optimizer.zero_grad()
        scaler.scale(ops.embedding(mp.tensor([0] * n), p, sparse=True).float().sum()).backward()
        scaler.step(optimizer)
        scaler.update()

    step(1)
    where = r"parameter: 0 \(9, 4\)\. Where it arose: .* in the backward of embedding \(test_sparse"
    with mp.audit(), pytest.raises(FloatingPointError, match=where):
        step(4000)  # 4 000 times 2^8 is beyond FP16


@pytest.mark.parametrize("norm_type", [1, 2.0, 3.0, float("inf")])
@pytest.mark.parametrize("policy", [mp.FP32, mp.MIXED], ids=str)
def test_clipping_by_norm(policy, norm_type):
    p, q, other = table(policy), table(policy), table(policy, seed=1)
    look_up(p, INDEX, True)
    look_up(q, INDEX, False)
    other.grad = device_array(randn(V, D, seed=8).astype(policy.storage))
    g = other.grad
    norm = optim.clip_grad_norm_([p, other], 0.25, norm_type).item()
    other.grad = g
    assert norm == pytest.approx(optim.clip_grad_norm_([q, other], 0.25, norm_type).item(), rel=1e-6)
    assert isinstance(p.grad, SparseRows) and p.grad.dtype == "float32"
    np.testing.assert_allclose(host(p.grad.dense()), host(q.grad), rtol=1e-6)


def test_clipping_by_value():
    p, q = table(mp.MIXED), table(mp.MIXED)
    for w, sparse in ((p, True), (q, False)):
        look_up(w, INDEX, sparse)
        optim.clip_grad_value_([w], 0.5)
    same(p.grad, q.grad)
    assert abs(host(q.grad)).max() == 0.5


def test_scaled_gradients_are_not_clipped():
    p = table()
    look_up(p, INDEX, True)
    p.grad_scale = 4.0
    with pytest.raises(RuntimeError, match="still carry the loss scale 4"):
        optim.clip_grad_norm_([p], 1.0)


# -------------------------------------------------------------------------------------------------------------- a GPU


@pytest.fixture
def on_gpu(gpu):
    with mp.device("gpu"):
        yield


@pytest.mark.usefixtures("on_gpu")
def test_repeated_rows_on_a_gpu_have_the_whole_sum_each():
    p = table(mp.MIXED)
    look_up(p, INDEX, True)
    g = p.grad
    assert host(g.indices).tolist() == [2, 2, 2, 5, 7, 7]
    values = host(g.values)
    assert (values[0] == values[1]).all() and (values[4] == values[5]).all()
    single = host(g.summable())
    assert (single[[0, 3, 4]] == values[[0, 3, 4]]).all() and not single[[1, 2, 5]].any()
    twice = added(g, g)
    np.testing.assert_array_equal(host(twice.dense()), 2 * host(g.dense()).astype("float32"))
    changed = ops.zeros(V, D).array  # of values that differ, as stochastic rounding makes them, the first count
    put(changed, SparseRows(g.indices, device_array(np.arange(6 * D, dtype="float32").reshape(6, D)), g.shape))
    assert host(changed)[TOUCHED, 0].tolist() == [0, 3 * D, 4 * D]


@pytest.mark.usefixtures("on_gpu")
@pytest.mark.parametrize("policy", [mp.FP32, mp.MIXED, mp.NO_MASTER, mp.PURE_FP16], ids=lambda policy: policy.name)
@pytest.mark.parametrize(("rule", "options"), RULES)
def test_a_step_on_a_gpu_is_that_of_the_cpu(rule, options, policy):
    """Beside a parameter with a dense gradient; the kernels may fuse a product and a sum."""
    results = []
    for device in ("cpu", "gpu"):
        with mp.device(device):
            w, other = table(policy), table(policy, seed=1, shape=(3, 5))
            optimizer = rule([w, other], lr=0.1, **options)
            scaler = optim.StaticLossScaler(8.0)
            for k in range(3):
                y = ops.embedding(mp.tensor(INDEX), w, sparse=True).float()
                dy = mp.tensor(randn(*y.shape, seed=k).astype("float32"))
                scaler.scale((y * dy).sum() + other.float().square().sum()).backward()
                if k == 1:
                    scaler.unscale_(optimizer)
                    optim.clip_grad_norm_([w, other], 1.0)
                assert scaler.step(optimizer) == StepResult.APPLIED
                scaler.update()
                optimizer.zero_grad()
            state = optimizer.state_dict()["state"][0]
            results.append([w.numpy(), other.numpy(), *[state[k] for k in sorted(state)]])
    roundings = 2.0**-9 if policy.storage == "float16" else 2.0**-20
    for expected, got in zip(*results, strict=True):
        np.testing.assert_allclose(got, expected, rtol=roundings, atol=roundings)


@pytest.mark.usefixtures("on_gpu")
@pytest.mark.parametrize("rule", [optim.SGD, optim.Adagrad, optim.Adam])
def test_a_gpu_skips_a_step_of_rows_that_overflowed(rule):
    """The update of rows is the definition's: it waits for the GPU's verdict, and cannot be captured."""
    w = table(mp.MIXED)
    optimizer, scaler = rule([w], lr=0.1), optim.DynamicLossScaler(2.0**10, growth_interval=2)
    results, before = [], None
    for k, factor in enumerate([1, 1, 1e9, 1]):
        before = host(w.master).copy()
        index = mp.tensor(rng(k).integers(0, V, 6))
        loss = (ops.embedding(index, w, 5, sparse=True).float().square() * factor).mean()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        optim.clip_grad_norm_([w], 1.0)
        results.append(scaler.step(optimizer).name)
        scaler.update()
        optimizer.zero_grad()
        assert (host(w.master) == before).all() == (results[-1] == "SKIPPED")
    assert results == ["APPLIED", "APPLIED", "SKIPPED", "APPLIED"]


@pytest.mark.usefixtures("on_gpu")
def test_stochastic_rounding_on_a_gpu_repeats():
    results = []
    for _ in range(2):
        mp.manual_seed(0)
        p = table(mp.STOCHASTIC_ROUNDING)
        look_up(p, INDEX, True)
        optim.SGD([p], lr=0.1).step()
        results.append(p.numpy())
    np.testing.assert_array_equal(*results)
