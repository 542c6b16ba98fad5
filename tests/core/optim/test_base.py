"""The base of optimizers (optim/base.py): many parameters at once, with the bits of one by one."""

import numpy as np
import pytest

import tinymp as mp
from fast.both_ways import launches
from oracle import randn
from tinymp import nn, optim
from tinymp.optim import base

pytestmark = pytest.mark.usefixtures("gpu", "once")
RULES = [
    lambda p: optim.SGD(p, lr=0.1),
    lambda p: optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.01, maximize=True),
    lambda p: optim.Adam(p, lr=0.01, amsgrad=True),
    lambda p: optim.AdamW(p, lr=0.01),
    lambda p: optim.Adagrad(p),
    lambda p: optim.RMSprop(p, momentum=0.5, centered=True),
    lambda p: optim.Adadelta(p),
    lambda p: optim.Adamax(p),
    lambda p: optim.NAdam(p, weight_decay=0.01, decoupled_weight_decay=True),
    lambda p: optim.RAdam(p),
]


def trained(make, policy, steps=3):
    """Weights and state after some steps of parameters of several kinds, two of them without a second step."""
    with mp.device("gpu"):
        shapes = (5,), (3, 4), (2, 3, 2, 2), (1,), (0,), (70,)
        params = [policy.cast(nn.Parameter(randn(*shape, seed=i))) for i, shape in enumerate(shapes)]
        params += [mp.FP32.cast(nn.Parameter(randn(6, seed=7))), mp.FP32.cast(nn.Parameter(randn(3, 2, seed=8)))]
        params += [nn.Parameter(randn(4, seed=9).astype("float64"))]
        rows = policy.cast(nn.Parameter(randn(8, 3, seed=10).T.copy().T))
        optimizer, scaler = make([*params, rows]), optim.StaticLossScaler(64.0)
        for step in range(steps):
            for i, p in enumerate([*params, rows]):
                grad = 64 * randn(*p.shape, seed=20 + 10 * step + i).astype(str(p.dtype))
                p.grad, p.grad_scale = None if step == 1 and i in (1, 6) else mp.tensor(grad).array, 64.0
            scaler.step(optimizer, allow_missing=True)
            scaler.update()
    states = [array.get() for s in optimizer.state.values() for array in s.values() if hasattr(array, "get")]
    return [p.array.get() for p in optimizer.parameters()] + [p.master.get() for p in optimizer.parameters()] + states


@pytest.mark.parametrize(
    ("make", "policy"),
    [(make, mp.MIXED) for make in RULES]
    + [(make, policy) for make in RULES[1:3] for policy in (mp.FP32, mp.NO_MASTER)],
)
def test_together_and_one_by_one_have_the_same_bits(make, policy, monkeypatch):
    before = len(launches() or ())
    together = trained(make, policy)
    assert launches() is None or {"gather", "scatter"} <= set(launches()[before:])
    with mp.audit():  # one by one
        before = len(launches() or ())
        heard = trained(make, policy)
        assert launches() is None or "gather" not in launches()[before:]
    monkeypatch.setattr(base, "MOST", 8)
    for others in (heard, trained(make, policy)):
        for one, other in zip(together, others, strict=True):
            np.testing.assert_array_equal(one, other)


def test_rules_of_others_see_one_parameter_at_a_time():
    """A rule may need all of a parameter, its norm for one."""

    class Normed(optim.SGD):
        def update(self, w, g, state, group):
            return w - group["lr"] * g / float((g * g).sum()) ** 0.5

    with mp.device("gpu"):
        params = [nn.Parameter(np.zeros(n, "float32")) for n in (1, 4)]
    for p in params:
        p.grad = mp.ones_like(p).array
    Normed(params, lr=1.0).step()
    assert [p.numpy()[0] for p in params] == [-1, -0.5]


def test_stochastic_rounding_is_that_of_the_definition():
    make = RULES[0]
    mp.manual_seed(1)
    one = trained(make, mp.STOCHASTIC_ROUNDING)
    mp.manual_seed(1)
    with mp.audit():
        other = trained(make, mp.STOCHASTIC_ROUNDING)
    for x, y in zip(one, other, strict=True):
        np.testing.assert_array_equal(x, y)


def test_launches_do_not_grow_with_the_number_of_parameters(gpu):
    if not hasattr(gpu.xp, "foreign"):
        pytest.skip("a GPU keeps no list")

    def count(n):
        with mp.device("gpu"):
            params = [mp.MIXED.cast(nn.Parameter(np.ones(3, "float32"))) for _ in range(n)]
        for p in params:
            p.grad = mp.ones_like(p).array
        optimizer = optim.SGD(params, lr=0.1)
        before = len(gpu.xp.foreign) + len(gpu.xp.launched)
        optimizer.step()
        return len(gpu.xp.foreign) + len(gpu.xp.launched) - before

    assert count(20) == count(2)


def test_a_loss_scale_that_stays_on_the_gpu_is_divided_out(gpu):
    from tinymp.fast.cuda.scaler import DeviceScale

    with mp.device("gpu"):
        params = [nn.Parameter(np.zeros(3, "float32")) for _ in range(2)]
        scale = DeviceScale(gpu.xp.asarray(8.0, dtype="float32"))
        for p in params:
            p.grad, p.grad_scale = mp.full((3,), 8.0).array, scale
    optimizer = optim.SGD(params, lr=1.0)
    base.apply(optimizer, optimizer.ready(False), False)
    assert [p.numpy().tolist() for p in params] == [[-1.0] * 3] * 2
