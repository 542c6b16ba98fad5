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
