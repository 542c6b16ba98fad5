"""Shadow runs: known roundings are found with exactly their ulps, and the run stays as it is, bit for bit."""

import gc

import numpy as np
import pytest

import tinymp as mp
from job import Job, same
from tinymp import nn, ops
from tinymp.audit.listener import Listener
from tinymp.audit.shadow import Shadow, difference
from tinymp.events import Setting, in_pass

EPS = 2.0**-10  # the spacing of FP16 from 1 to 2
FP16 = np.float16


def half(values):
    return mp.MIXED.cast(mp.tensor(np.array(values, "f4")))


def shadowed(run):
    """The rows of what a function does, by op and phase; the first of each."""
    found = Shadow()
    with Listener([found]):
        run()
    rows = {}
    for row in found.rows:
        rows.setdefault((row.op, row.phase), row)
    return rows


def errors(row):
    return row.local.mean, row.local.max, row.inherited.mean, row.inherited.max


def ulps_in_fp64(y, exact):
    """The definition, written with FP64 and frexp."""
    exact = np.asarray(exact, "f8")
    spacing = 2.0 ** (np.maximum(np.frexp(exact)[1] - 1, -14) - 10)
    return np.abs(np.asarray(y, "f8") - exact) / spacing


def test_the_ulps_are_those_of_the_definition():
    rng = np.random.default_rng(0)
    exact = (rng.standard_normal(100_000) * 2.0 ** rng.integers(-30, 16, 100_000)).astype("f4")
    exact[:7] = 0, 2.0**-24, -(2.0**-14), 1, 2 - 2**-20, 65504, 2.0**-30
    with np.errstate(over="ignore"):
        y = exact.astype(FP16)
    (found,) = difference(y, exact)
    finite = np.isfinite(y)
    expected = ulps_in_fp64(y[finite], exact[finite])
    assert found.elements == finite.sum() < y.size
    assert found.max == expected.max() == 0.5
    assert found.zeros == 0
    assert found.total == pytest.approx(expected.sum(), rel=1e-6)


def test_zeros_are_counted_apart():
    """Planted among the roundings of many blocks, beside infinities and NaNs."""
    rng = np.random.default_rng(0)
    exact = rng.standard_normal(100_000).astype("f4")
    y, (flipped, same, lost, infinite) = exact.astype(FP16), rng.permutation(100_000)[:400].reshape(4, 100)
    expected = ulps_in_fp64(y, exact)
    exact[flipped], y[flipped] = rng.choice([0.0, -0.0], 100), np.linspace(2.0**-24, 60000, 100)
    exact[same] = y[same] = 0  # 0 in both is measured, and so is what only the run has lost
    exact[lost], y[lost] = 1.5, 0
    exact[infinite], y[infinite] = 0, np.inf
    y[infinite[:9]] = np.nan
    expected[[flipped, same, infinite]], expected[lost] = 0, 1.5 * 2**10
    for found in difference(y, exact, exact.copy()):
        assert (found.elements, found.zeros, found.max) == (99_900, 100, 1536)
        assert found.mean == pytest.approx(expected.sum() / 99_800, rel=1e-6)


def cancellation():
    a = half([1 + EPS])
    return a * a - half([1 + 2 * EPS])  # 2^-20 is left, 16 ulps of the smallest subnormals; FP16 has 0


@pytest.mark.parametrize(
    ("run", "op", "expected"),
    [
        (lambda: ops.matmul(half(np.arange(16).reshape(4, 4)), half(np.eye(4))).sum(0), "matmul", (0, 0, 0, 0)),
        # 2049 is halfway; 1 + 2^-12 a quarter of an ulp off
        (lambda: half([2048, 1024, 1, 1]) + half([1, 1, 2.0**-12, 0]), "add", (0.1875, 0.5, 0.1875, 0.5)),
        # 2^-25 became 0; 0.75 * 2^-24 became 2^-24
        (lambda: half([2.0**-14, 3 * 2.0**-14]) * half([2.0**-11, 2.0**-12]), "mul", (0.375, 0.5, 0.375, 0.5)),
        (cancellation, "mul", (EPS, EPS, EPS, EPS)),
        (cancellation, "sub", (0, 0, 16, 16)),  # it inherits far more than it adds
    ],
)
def test_known_errors(run, op, expected):
    assert errors(shadowed(run)[op, "forward"]) == expected


def test_gradients_have_both_errors_too():
    def run():
        x, g = half([1.0]).requires_grad_(), half([1 + EPS])
        (x * g * g).backward(g)

    backward = shadowed(run)["mul", "backward"]
    first = EPS  # (1 + e)^2 lost e^2
    second, inherited = 2 * EPS, 3 * EPS  # (1 + 2 e)(1 + e) lost 2 e^2, (1 + e)^3 lost 3 e^2 (and e^3 in FP32, too)
    assert errors(backward) == pytest.approx(((first + second) / 2, second, (first + inherited) / 2, inherited))


@Setting(in_pass, True)  # weights are read as their copies
def test_weights_inherit_the_difference_to_their_masters():
    w = nn.Parameter(np.array([[1 + 2.0**-12]], "f4"))
    mp.MIXED.cast(w)
    row = shadowed(lambda: ops.linear(half([[1.0]]), w))["linear", "forward"]
    assert errors(row) == (0, 0, 0.25, 0.25)
    mp.NO_MASTER.cast(w)
    row = shadowed(lambda: ops.linear(half([[1.0]]), w))["linear", "forward"]
    assert errors(row) == (0, 0, 0, 0)


@pytest.mark.parametrize(("change", "inherited"), [(False, EPS), (True, 0)])
def test_the_copy_goes_on_in_state_and_ends_where_data_is_set(change, inherited):
    def run():
        with mp.no_grad():
            state = half([1 + EPS]) * half([1 + EPS])
            state = state.detach()
            if change:
                state[0] = 1.5
            ops.neg(state)

    assert shadowed(run)["neg", "forward"].inherited.max == inherited


def test_the_first_infinity_is_named():
    with Listener([found := Shadow()]):
        for value in (1.0, 300.0):
            x = half([value])
            x * x  # infinite in the second round
            if value == 1:
                ops.log(x - x)
    assert [(row.op, row.nonfinite) for row in found.rows] == [("mul", 1), ("sub", 0), ("log", 1)]
    last = str(found).splitlines()[-1]
    where = f"test_the_first_infinity_is_named() log forward ({found.rows[2].caller})"
    assert last == f"2 infinities and NaNs are left out, the first in {where}"
    assert "infinities" not in str(Shadow())


ONCE = {  # ops that round each result once
    "batch_norm": (lambda x: ops.batch_norm(x, None, None, training=True), (4, 3, 5, 5)),
    "conv2d": (lambda x, w: ops.conv2d(x, w, stride=2, padding=1), (2, 3, 7, 7), (4, 3, 3, 3)),
    "dropout": (lambda x: ops.dropout(x, 0.4), (50, 60)),
    "cumsum": (lambda x: ops.cumsum(x, 1), (4, 6)),
    "cross_entropy": (lambda x: ops.cross_entropy(x, mp.tensor([0, 3, 1, 1])), (4, 6)),
    "lstm": (lambda x: mp.MIXED.cast(nn.LSTM(4, 6, num_layers=2, proj_size=3))(x)[0], (5, 3, 4)),
}


@pytest.mark.parametrize("name", ONCE)
def test_one_rounding_costs_at_most_half_an_ulp(name):
    mp.manual_seed(0)
    op, *shapes = ONCE[name]
    rng = np.random.default_rng(0)

    def run():
        y = op(*(half(rng.standard_normal(s)).requires_grad_() for s in shapes))
        y.backward(mp.tensor(rng.standard_normal(y.shape).astype(y.dtype)))

    rows = shadowed(run)
    assert {phase for _, phase in rows} == {"forward", "backward"}
    for (op, phase), row in rows.items():
        assert row.local.max <= 0.5 + 2e-3 or op == "lstm", (op, phase)
        assert row.local.mean < 10 and row.local.elements > 0 and row.nonfinite == 0


def trained(policy, *instruments):
    """Whatever is random, or changes state, in one training."""
    job = Job("cpu", policy=policy, scale=2.0**18, dropout=0.3)
    with mp.use(policy), Listener(list(instruments)):
        losses = [job.step(*job.batch(i))[0].item() for i in range(5)]
    return losses, job.state(), mp.backend.get_rng_state()


@pytest.mark.parametrize("policy", [mp.MIXED, mp.STOCHASTIC_ROUNDING], ids=lambda p: p.name)
def test_the_run_is_the_same_with_and_without(policy):
    (losses, state, random), found = trained(policy), trained(policy, shadow := Shadow())
    assert (losses, random) == (found[0], found[2])
    same(state, found[1])
    dropout = next(row for row in shadow.rows if row.op == "dropout")
    assert dropout.local.max <= (1 if policy is mp.STOCHASTIC_ROUNDING else 0.5)  # with another mask: thousands


def test_shadows_die_with_their_tensors():
    found = Shadow()
    w = mp.MIXED.cast(nn.Parameter(np.ones((4, 4), "f4")))
    with Listener([found]):
        x = ops.relu(ops.matmul(half(np.ones((4, 4))), w))
        gc.collect()
        assert len(found._kept._arrays) == 1  # the product is gone: relu saves its own result
        loss = x.float().sum()
        assert found._ops
        loss.backward()
        assert not found._ops
        assert not found._gradients
        del x, loss
        gc.collect()
    assert not found._kept._arrays
