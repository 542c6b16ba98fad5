"""Sparse gradients: the rows that a step touched, and what every consumer of gradients makes of them.

Each test compares with the dense gradient of the same lookups; the sums are the same, so the bits are too.
"""

import numpy as np
import pytest

import tinymp as mp
from oracle import device_array, host, randn
from tinymp import SparseRows, nn, ops, optim
from tinymp.optim import StepResult

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
POLICIES = [mp.FP32, mp.MIXED, mp.PURE_FP16]


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


# ---- SparseRows ----


@pytest.mark.parametrize("dtype", ["float64", "float16"])
@pytest.mark.parametrize("padding", [None, 2, -2])
@pytest.mark.parametrize("index", [INDEX, np.array(3), np.empty((0, 2), int), np.full(70, 4, "uint8")], ids=str)
def test_a_lookup_gives_the_rows_of_the_dense_gradient(index, padding, dtype):
    p, q = (mp.tensor(randn(V, D).astype(dtype), requires_grad=True) for _ in range(2))
    look_up(p, index, sparse=True, padding=padding)
    look_up(q, index, sparse=False, padding=padding)
    same(p.grad, q.grad)
    if padding is None:
        assert rows(p.grad) == sorted(set(index.reshape(-1).tolist()))
    else:
        assert not host(p.grad.dense())[padding].any()


# ---- accumulation ----


@pytest.mark.parametrize("dense_first", [False, True])
def test_tied_weights_have_a_dense_gradient(dense_first):
    """The input embedding is sparse, the output layer is not: together they are not."""
    grads = []
    for sparse in (True, False):
        p = table(mp.MIXED)
        parts = [
            ops.embedding(mp.tensor(INDEX), p, sparse=sparse).float().square().sum(),
            ops.linear(mp.tensor(randn(2, D, seed=5).astype("float16")), p).float().square().sum(),
        ]
        for part in parts[::-1] if dense_first else [parts[0] + parts[1]]:
            part.backward()
        grads.append(host(p.grad))
    np.testing.assert_array_equal(*grads)


# ---- optimizers ----


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


def test_a_weight_decay_is_refused_and_nothing_is_updated():
    p, q = table(), table(seed=1)
    optimizer = optim.AdamW([("bias", q), ("embedding.weight", p)])
    look_up(p, INDEX, True)
    look_up(q, INDEX, False)
    with pytest.raises(RuntimeError, match=r"weight_decay is for all rows of parameter `embedding.weight`"):
        optimizer.step()
    assert not optimizer.state
    np.testing.assert_array_equal(host(q.array), randn(V, D, seed=1).astype("float32"))


# ---- scalers, clipping ----


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


@pytest.mark.parametrize("norm_type", [1, 2.0, float("inf")])
def test_clipping_by_norm(norm_type):
    p, q, other = table(mp.MIXED), table(mp.MIXED), table(mp.MIXED, seed=1)
    look_up(p, INDEX, True)
    look_up(q, INDEX, False)
    norms = []
    for w in (p, q):
        other.grad = device_array(randn(V, D, seed=8).astype("float16"))
        norms.append(optim.clip_grad_norm_([w, other], 0.25, norm_type).item())
    assert norms[0] == pytest.approx(norms[1], rel=1e-6)
    assert isinstance(p.grad, SparseRows) and p.grad.dtype == "float32"
    np.testing.assert_allclose(host(p.grad.dense()), host(q.grad), rtol=1e-6)


# ---- a GPU ----


@pytest.fixture
def on_gpu(gpu):
    with mp.device("gpu"):
        yield


@pytest.mark.usefixtures("on_gpu")
@pytest.mark.parametrize("policy", [mp.MIXED, mp.PURE_FP16], ids=lambda policy: policy.name)
@pytest.mark.parametrize(("rule", "options"), [RULES[i] for i in (2, 4, 6)])
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
