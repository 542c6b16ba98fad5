"""The lost-update meter finds planted numbers of lost updates exactly."""

import numpy as np
import pytest

import tinymp as mp
from tinymp import nn, optim
from tinymp.audit.updates import LostUpdates
from tinymp.sparse import SparseRows

# w, dw, fp16(w + dw) == w, |w / dw| > 2048
PLANTED = [
    (1.0, -(2.0**-12), True, True),  # a tie of 1 and 1 - 2^-11: even is 1
    (1.0, 2.0**-11, True, False),  # a tie of 1 and 1 + 2^-10; the ratio is 2048 exactly
    (1.0, 2.0**-11 - 2.0**-23, True, True),  # just above that ratio
    (1.0, 2.0**-10, False, False),
    (1.0, -(2.0**-11), False, False),  # numbers below 1 are closer together
    (2048.0, 1.0, True, False),
    (2047 / 1024, 2047 / 1024 / 2050, False, True),  # above the ratio and yet not lost
    (0.0, 2.0**-26, True, False),
    (0.0, 2.0**-24, False, False),
    (-0.0, -(2.0**-26), True, False),
    (2.0**-24, 2.0**-26, True, False),
    (0.5, 0.0, None, None),
    (0.0, 0.0, None, None),
]


def give(p, g):
    """Set p's gradient, where p lies."""
    p.grad = mp.backend.of(p.array).asarray(np.asarray(g))


def host(x):
    """A copy on the CPU."""
    return np.array(mp.backend.to_cpu(x))


def planted(policy, values=None):
    """A parameter with these weights, and an optimizer whose next step adds exactly dw."""
    w, dw = (np.array([row[i] for row in PLANTED], np.float32) for i in (0, 1))
    p = nn.Parameter(mp.tensor(w if values is None else values))
    p = policy.cast(p)
    p.name = "w"
    if values is None:
        give(p, -dw)
    return p, optim.SGD([("w", p)], lr=1.0)


def only(meter):
    (row,) = meter.as_dict()
    return row


@pytest.mark.parametrize("policy", [mp.MIXED, mp.NO_MASTER, mp.FP32, mp.STOCHASTIC_ROUNDING])
def test_planted_updates(policy):
    _, sgd = planted(policy)
    meter = LostUpdates()
    with mp.audit(meter):
        sgd.step()
    n = len(PLANTED)
    row = only(meter)
    assert row["name"] == "w" and row["updates"] == 1 and row["elements"] == n
    assert (row["lost"], row["unchanged_by_zero"], row["above_2048"]) == (7 / n, 2 / n, 3 / n)
    assert [sum(row[i] is True for row in PLANTED) for i in (2, 3)] == [7, 3]
    assert row["fp32"] is (policy is mp.FP32)


def test_the_copy_counts_not_the_master():
    """The master is 2^-12 above the copy. Half an ulp more moves the sum, but not fp16(w) = 1."""
    p, sgd = planted(mp.MIXED, np.array([1.0], np.float32))
    with mp.no_grad():
        p.copy_(np.array([1 + 2.0**-12], np.float32))
    give(p, np.array([-(2.0**-11)], np.float32))
    meter = LostUpdates()
    with mp.audit(meter):
        sgd.step()
    assert p.master[0] == 1 + 2.0**-12 + 2.0**-11 and p.array[0] == 1 + 2.0**-10
    assert only(meter)["lost"] == 1


def lost_by_hand(before, after, copy):
    step = after - before
    with np.errstate(over="ignore"):
        alone = (copy.astype(np.float32) + step).astype(np.float16)
    return int(((alone == copy) & (step != 0)).sum()), int((step == 0).sum())


@pytest.mark.parametrize("rule", [optim.SGD, optim.Adagrad, optim.Adam])
def test_every_optimizer_against_numpy(rule):
    rng = np.random.default_rng(0)
    p = mp.MIXED.cast(nn.Parameter(rng.standard_normal((7, 30)).astype(np.float32)))
    optimizer, meter = rule([p], lr=1e-3), LostUpdates()
    lost = zero = 0
    with mp.audit(meter):
        for _ in range(4):
            g = rng.standard_normal(p.shape).astype(np.float16)
            g[0] = 0
            give(p, g)
            before, copy = host(p.master), host(p.array)
            optimizer.step()
            found = lost_by_hand(before, host(p.master), copy)
            lost, zero = lost + found[0], zero + found[1]
    (u,) = meter.rows
    assert (u.lost, u.zero, u.elements, u.updates) == (lost, zero, 4 * 210, 4)
    assert 0 < lost < 4 * 210


def test_sparse_rows():
    rng = np.random.default_rng(0)
    p = mp.MIXED.cast(nn.Parameter(rng.standard_normal((20, 30)).astype(np.float32)))
    to, rows = mp.backend.of(p.array), np.array([2, 5, 11])
    p.grad = SparseRows(to.asarray(rows), to.asarray(rng.standard_normal((3, 30)).astype(np.float16)), p.shape)
    before, copy, meter = host(p.master), host(p.array), LostUpdates()
    with mp.audit(meter):
        optim.Adam([p], lr=2e-4).step()
    (u,) = meter.rows
    assert (u.lost, u.zero) == lost_by_hand(before[rows], host(p.master)[rows], copy[rows])
    assert u.elements == 90 and u.lost > 0


def test_skipped_steps_and_what_users_write_are_not_updates():
    p, sgd = planted(mp.MIXED)
    p.grad, p.grad_scale = mp.backend.of(p.array).xp.full_like(p.array, np.inf), 8.0
    scaler, meter = optim.StaticLossScaler(8.0), LostUpdates()
    with mp.audit(meter):
        scaler.step(sgd)
        scaler.update()
        with mp.no_grad():
            p.zero_()
    assert meter.as_dict() == [] and str(meter) == "no updates were seen" and meter.total.elements == 0
