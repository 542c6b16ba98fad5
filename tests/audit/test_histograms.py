"""Exponent histograms: planted values are found in their bins, at the scale that they carry, and what FP16 loses."""

import numpy as np
import pytest

import tinymp as mp
from tinymp import nn, optim
from tinymp.audit.histograms import Exponents
from tinymp.dtypes import FP16_MAX

GRADIENTS = np.array([0, 0, 2.0**-20, 1.5 * 2.0**-20, 2.0**-12, 3.0], np.float32)


def weight(policy=mp.MIXED, n=6, name="w", **options):
    p = policy.cast(nn.Parameter(np.ones(n, np.float32), **options))
    p.name = name
    return p


def backward(p, gradients=GRADIENTS, scaler=None):
    """Give p these gradients, times the scale: they must fit its dtype."""
    c = mp.tensor(gradients.astype(p.dtype))
    loss = (p * c).float().sum() if p.dtype == np.float16 else (p * c).sum()
    (loss if scaler is None else scaler.scale(loss)).backward()


def tensor(histograms, name, role):
    (found,) = [t for t in histograms.as_dict()["tensors"] if (t["name"], t["role"]) == (name, role)]
    return found


def by_exponent(t):
    return {t["lowest"] + i: n for i, n in enumerate(t["counts"]) if n}


def test_planted_gradients_as_they_are_stored():
    p, histograms = weight(), Exponents()
    with mp.audit(histograms):
        backward(p, scaler=optim.StaticLossScaler(8.0))
    t = tensor(histograms, "w", "weight gradient")
    assert by_exponent(t) == {-17: 2, -9: 1, 4: 1}
    assert (t["zeros"], t["infinite"], t["nan"], t["scale"], t["dtype"]) == (2, 0, 0, 8.0, "float16")
    assert t["largest"] == 3
    from matplotlib.figure import Figure

    histograms.draw(axes := Figure().add_subplot(), "weight gradient")
    heights = {round(b.get_x() + b.get_width() / 2 - 0.5): b.get_height() for b in axes.patches if b.get_height() != 1}
    assert {e: h for e, h in heights.items() if h} == pytest.approx({-17: 100 / 3, -9: 100 / 6, 4: 100 / 6})


def test_infinite_values_and_nan():
    p, histograms = weight(), Exponents()
    with mp.audit(histograms):
        backward(p, np.array([np.inf, -np.inf, np.nan, 1, 60000, 0], np.float32))
        p.zero_grad()
        backward(p, np.array([-1000, 0, 0, 0, 0, 1]), optim.StaticLossScaler(16.0))
        p.zero_grad()
        backward(p, np.array([1, 1, 0, 0, 0, np.inf]), optim.StaticLossScaler(16.0))
    t = tensor(histograms, "w", "weight gradient")
    assert (t["infinite"], t["nan"], t["zeros"], t["largest"], t["scale"]) == (3, 1, 8, 60000, 16.0)
    assert histograms.share_lost("weight gradient", 16).overflow == 4 / 9  # and 60 000 at 16
    assert histograms.share_lost("weight gradient", 8).overflow == 3 / 8  # one of them was infinite only at 16
    assert histograms.best_scale() == 1.0  # no loss scale made these infinite


def scaled(c, scale):
    with np.errstate(over="ignore"):
        return (c.astype(np.float64) * scale).astype(np.float32).astype(np.float16)


@pytest.mark.parametrize("policy", [mp.FP32, mp.MIXED])
def test_shares_lost_at_every_scale_against_rounding(policy):
    """Values off the edges of the bins, so that exponents alone decide."""
    spread = (-14, 4) if policy is mp.MIXED else (-60, 20)  # a stored FP16 gradient says nothing of what it lost
    c = np.ldexp(1.25, np.arange(*spread)).astype(np.float32)
    p, histograms = weight(policy, c.size), Exponents()
    with mp.audit(histograms):
        backward(p, c)
    table = {r["scale"]: r for r in histograms.as_dict()["lost"] if r["role"] == "weight gradient"}
    assert [*table] == [2.0**k for k in range(25)]
    for scale, row in table.items():
        y = np.abs(scaled(c, scale))
        expected = (y == 0), (y > 0) & (y < 2.0**-14), np.isinf(y)
        assert histograms.share_lost("weight gradient", scale) == pytest.approx([e.mean() for e in expected])
        assert row["zero"] == histograms.share_lost("weight gradient", scale).zero


def test_what_became_0_in_fp16_is_lost():
    """p's gradient is c times a gradient of 2^-14: it is rounded from FP32. One zero is a true one."""
    c = np.array([0, 2.0**-12, 2.0**-11, 1.25 * 2.0**-11, 2.0**-10, 1], np.float32)  # the second of them is a tie
    p, histograms = weight(), Exponents()
    with mp.audit(histograms) as a:
        ((p * mp.tensor(c.astype("f2"))).float().sum() * 2.0**-14).backward()
    t = tensor(histograms, "w", "weight gradient")
    assert by_exponent(t) == {-26: 2, -24: 2, -14: 1} and t["zeros"] == 1
    assert histograms.share_lost("weight gradient") == (2 / 5, 2 / 5, 0)
    assert histograms.share_lost("weight gradient", 2.0) == (0, 4 / 5, 0)
    assert sum(row.zero for row in a.ledger) == 2


@pytest.mark.parametrize(
    ("largest", "scale"), [(3.0, 2**14), (FP16_MAX / 1024, 2**9), (FP16_MAX / 1024 - 0.0625, 2**10), (2.0**-20, 2**24),
                           (40000.0, 1)]
)  # fmt: skip
def test_the_best_scale_and_its_margin(largest, scale):
    p, histograms = weight(mp.FP32, 3), Exponents()
    with mp.audit(histograms):
        backward(p, np.array([0, -largest, 2.0**-30], np.float32))
    # the gradient of p * c is that of the loss, 1, which is an activation's
    top = max(largest, 1.0)
    best = min(scale, 2**15)
    assert histograms.best_scale() == best
    assert histograms.margin() == pytest.approx(FP16_MAX / (top * best))
    assert histograms.margin() > 1
    assert histograms.share_lost("weight gradient", best).zero == (0.5 if best < 2**5 else 0)


def test_counts_of_several_loss_scales_are_brought_to_the_last():
    p, histograms = weight(), Exponents()
    sgd = optim.SGD([p], lr=1.0)
    with mp.audit(histograms):
        for scale in (8.0, 2.0, 32.0):
            scaler = optim.StaticLossScaler(scale)
            backward(p, scaler=scaler)
            scaler.step(sgd)
            scaler.update()
            sgd.zero_grad()
    t = tensor(histograms, "w", "weight gradient")
    assert t["scale"] == 32 and by_exponent(t) == {-15: 6, -7: 3, 6: 3} and t["zeros"] == 6
    activation = tensor(histograms, "backward() mul", "activation gradient")
    ceiling = histograms.ceiling()
    assert (ceiling["name"], ceiling["largest"], ceiling["infinite"]) == ("w", 3.0, None)
    assert activation["scale"] == 32 and by_exponent(activation) == {5: 18} and activation["largest"] == 1


def test_the_scale_belongs_to_the_backward_that_carries_it():
    """Two losses of one forward, the second without a scaler."""
    a, b, histograms = weight(name="a"), weight(name="b"), Exponents()
    c, here = mp.tensor(np.ones(6, np.float16)), "test_the_scale_belongs_to_the_backward_that_carries_it()"
    with mp.audit(histograms):
        first, second = (a * c).float().sum(), (b + c).float().sum()
        optim.StaticLossScaler(64.0).scale(first).backward()
        second.backward()
    assert by_exponent(tensor(histograms, f"{here} mul", "activation gradient")) == {6: 6}
    assert tensor(histograms, f"{here} mul", "activation gradient")["scale"] == 64
    assert by_exponent(tensor(histograms, f"{here} add", "activation gradient")) == {0: 6}
    assert tensor(histograms, f"{here} add", "activation gradient")["scale"] == 1
    assert tensor(histograms, "b", "weight gradient")["scale"] == 1


def test_sparse_gradients_and_updates():
    table, histograms = nn.Embedding(10, 4, sparse=True), Exponents()
    mp.MIXED.cast(table)
    sgd = optim.SGD(table.parameters(), lr=1.0)
    with mp.no_grad():
        table.weight.copy_(np.ones((10, 4), np.float32))
    with mp.audit(histograms):
        table(mp.tensor(np.array([7, 2, 7]))).float().sum().backward()
        sgd.step()
    assert by_exponent(tensor(histograms, "table.weight", "weight gradient")) == {0: 4, 1: 4}
    w = tensor(histograms, "table.weight", "weight")
    assert by_exponent(w) == {0: 40 + 4} and w["zeros"] == 4  # at first, and the rows written: 1 - 1 and 1 - 2
