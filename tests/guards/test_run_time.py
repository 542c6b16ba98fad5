"""Every op, layer, loss and optimizer runs once on arrays that know whether a primitive runs: see tests/guarded.py."""

import numpy as np
import pytest

import calls
import tinymp as mp
from guarded import guarded, on_meta
from tinymp import nn, ops, optim
from tinymp.autograd import Op
from tinymp.precision import POINTWISE, store, widen

pytestmark = pytest.mark.cpu
EVERY = {**calls.CALLS, **calls.OTHERS, **calls.LAYERS}
CLASSES = [x for x in (getattr(optim, name) for name in optim.__all__) if isinstance(x, type)]
RULES = [x for x in CLASSES if issubclass(x, optim.Optimizer) and x is not optim.Optimizer]


def leaves(x):
    return [y for item in x for y in leaves(item)] if isinstance(x, (list, tuple)) else [x]


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize("policy", [mp.MIXED, mp.STOCHASTIC_ROUNDING], ids=str)
def test_nothing_changes_precision_outside_of_the_primitives(name, policy, monkeypatch):
    monkeypatch.setattr(calls, "tensor", on_meta)
    with mp.device("meta"), mp.use(policy), guarded() as found:
        for y in leaves(EVERY[name]()):
            if isinstance(y, mp.Tensor) and y.requires_grad:
                y.backward(mp.Tensor(mp.backend.of(y.array).xp.ones_like(y.array)), retain_graph=True)
    assert not found


@pytest.mark.parametrize("kind", RULES)
def test_no_optimizer_does(kind):
    for options in ({}, {"momentum": 0.9, "nesterov": True}, {"amsgrad": True}, {"weight_decay": 0.1}):
        with mp.device("meta"), mp.use(mp.MIXED), guarded() as found:
            model = mp.MIXED.cast(nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Linear(5, 2)))
            try:
                optimizer = kind(model.parameters(), **options)
            except TypeError:  # the rule has no such option
                continue
            for _ in range(3):
                loss = ops.cross_entropy(model(on_meta(np.ones((4, 6), np.float16))), on_meta(np.zeros(4, int)))
                optim.StaticLossScaler(8.0).scale(loss).backward()
                for p in model.parameters():
                    p.grad_scale = 1.0
                optim.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
        assert not found


PLANTED = {
    "a ufunc with a dtype": lambda xp, x, z, like: xp.add(widen(x), widen(z), dtype=mp.MIXED.storage),
    "the dtype of another array": lambda xp, x, z, like: xp.multiply(widen(x), widen(z), dtype=like.dtype),
    "rows that are written": lambda xp, x, z, like: like.__setitem__(np.array([0, 2]), widen(x)[:2]),
    "concatenate with a dtype": lambda xp, x, z, like: xp.concatenate([widen(x), widen(z)], dtype=like.dtype),
    "arithmetic in FP16": lambda xp, x, z, like: x + z,
    "astype": lambda xp, x, z, like: widen(x).astype("float16"),
    "the device's own cast": lambda xp, x, z, like: mp.backend.of(x).cast(widen(x), np.dtype("float16")),
}


@pytest.mark.parametrize("way", PLANTED)
def test_a_way_around_the_primitives_is_found(way):
    class Planted(Op):
        kind = POINTWISE

        def forward(self, x, z):
            PLANTED[way](self.xp, x, z, self.xp.zeros(x.shape, x.dtype))
            return store(widen(x) + widen(z), like=x)

    with guarded() as found:
        Planted.apply(*[on_meta(np.ones((3, 2), np.float16)) for _ in range(2)])
    assert len(found) == 1 and found[0].startswith("test_run_time.py:")
