"""Sizes along the depth of a model, against what they are by hand."""

import json
import math

import numpy as np
import pytest

import tinymp as mp
from tinymp import nn, ops, optim
from tinymp.audit.depth import Depth, Size

pytestmark = pytest.mark.cpu


class Twice(nn.Module):
    def forward(self, x):
        return ops.mul(x, 2.0)


def test_sizes_forward_and_back():
    """Five modules that double: activations grow by 2 on each, and gradients on their way back."""
    model = nn.Sequential(*(Twice() for _ in range(5)))
    x = mp.tensor(np.full((4, 3), 0.5, np.float16), requires_grad=True)
    scaler = optim.StaticLossScaler(64.0)
    with mp.audit() as a:
        scaler.scale(ops.sum(model(x).float())).backward()
    rows = [row for row in a.depth.rows if row.op == "mul"]
    assert [row.module for row in rows] == [f"model.{i}" for i in range(5)]
    assert [row.forward.rms for row in rows] == [1, 2, 4, 8, 16] == [row.forward.largest for row in rows]
    assert [row.backward.rms for row in rows] == [16, 8, 4, 2, 1]  # without the loss scale
    assert all(row.forward.outlier == 1 for row in rows)
    text = str(a.depth)
    assert len(text.splitlines()) == 2 + len(a.depth.rows) and "model.4" in text
    json.dumps(a.as_dict()["depth"])


def test_a_channel_with_outliers():
    x = np.ones((8, 4, 3, 3), np.float16)
    x[3, 2, 1, 1] = -50
    with mp.audit() as a:
        ops.relu(ops.mul(mp.tensor(x), -1.0))
        ops.relu(mp.tensor(x[:, :, 0, 0].copy()))
    assert [row.forward.outlier for row in a.depth.rows] == [50, 1, 1]
    assert [row.forward.largest for row in a.depth.rows] == [50, 50, 1]


def test_of_several_calls():
    size = Size()
    for values in ([3, 3], [1, -1]):
        size.add(np.array(values, np.float16), 1.0)
    assert (size.calls, size.largest, size.rms) == (2, 3, math.sqrt(5))
    size.add(np.array([np.nan, 1], np.float16), 1.0)
    assert math.isnan(size.largest)


def test_what_is_left_out():
    x = mp.tensor(np.ones((2, 3), np.float16), requires_grad=True)
    with mp.audit() as a:
        ops.cross_entropy(ops.reshape(x, (3, 2)), mp.tensor([0, 1, 1]))
        ops.sum(x)
    assert not a.depth.rows


def test_recent_steps_are_bounded():
    model = nn.Linear(2, 2)
    optimizer, x = optim.SGD(model.parameters(), lr=0.1), mp.ones(3, 2)
    depth = Depth()
    with mp.audit(depth):
        for _ in range(40):
            ops.sum(model(x)).backward()
            optimizer.step()
            optimizer.zero_grad()
    assert [i for i, _ in depth.recent] == list(range(24, 40))
