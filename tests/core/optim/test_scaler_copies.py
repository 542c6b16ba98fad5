"""Scalers can be copied and pickled at any time: the copy knows S, history and counts, and begins a new iteration."""

import copy
import pickle

import numpy as np
import pytest

import tinymp as mp
from tinymp import nn, ops, optim

WAYS = {"copy": copy.copy, "deepcopy": copy.deepcopy, "pickle": lambda x: pickle.loads(pickle.dumps(x))}
SCALERS = {
    "none": optim.NoLossScaler,
    "static": lambda: optim.StaticLossScaler(8),
    "dynamic": lambda: optim.DynamicLossScaler(init_scale=2.0**24, growth_interval=2),
}


@pytest.mark.parametrize("scaler", SCALERS)
@pytest.mark.parametrize("way", WAYS)
def test_at_any_time(way, scaler):
    mp.manual_seed(0)
    scaler, model = SCALERS[scaler](), mp.MIXED.cast(nn.Linear(3, 2))
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    x, target = mp.tensor(np.ones((4, 3), np.float16)), mp.tensor(np.zeros(4, int))

    def step(scaler, after=lambda: None):
        with mp.use(mp.MIXED):
            loss = scaler.scale(ops.cross_entropy(model(x), target))
            after()
            loss.backward()
            after()
            scaler.unscale_(optimizer)
            after()
            scaler.step(optimizer)
            after()
            scaler.update()
            optimizer.zero_grad()

    def check():
        other = WAYS[way](scaler)
        assert type(other) is type(scaler)
        assert other.state_dict() == scaler.state_dict()
        assert other.history is not scaler.history
        others.append(other)

    others = []
    for _ in range(4):
        check()
        step(scaler, check)
    for other in others:  # each begins an iteration, and leaves the first alone
        before = scaler.state_dict()
        step(other)
        assert scaler.state_dict() == before


OLD = {"_name": "", "_scale": 8.0, "_iteration": 3, "_history": [(1, 8.0, "why")], "_skips": 1, "_bad_losses": 2}


def test_a_pickle_from_before_there_was_a_state():
    new = optim.DynamicLossScaler(16.0)
    options = {name: value for name, value in new.__getstate__().items() if name not in ("_side", "_now")}
    old = object.__new__(type(new))
    old.__setstate__({**options, **OLD, "growth_tracker": 4, "_stuck": 0, "_said": 0, "_least": 0.0, "_most": 1e9})
    assert old.state == (8.0, 4, 1, 2) and (old.iteration, old.history) == (3, [(1, 8.0, "why")])
    assert old.rule == new.rule and old.state_dict().keys() == new.state_dict().keys()


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("cycle", "OneCycleLR"),
        ("cycle", "ReduceLROnPlateau"),
        ("schedule", "LinearLR"),
    ],
)
def test_old_pickles_find_what_has_moved(module, name):
    now = getattr(optim, name)  # of optim/more: not there on the core alone
    assert pickle.loads(f"ctinymp.optim.{module}\n{name}\n.".encode()) is now
