"""A training of everything at once, for tests of steps: captured, interrupted, in any order of the streams."""

from __future__ import annotations

import numpy as np

import tinymp as mp
from oracle import rng
from tinymp import backend, nn, ops, optim


class Job:
    """A small CNN with everything in it, its optimizer and its scaler, on a device."""

    def __init__(self, device="gpu", rule="Adam", scale=2.0**16, policy=mp.MIXED, clip=False, dropout=0.0, **scaler):
        mp.manual_seed(0)
        layers = [nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()]
        self.model = policy.cast(nn.Sequential(*layers, nn.Dropout(dropout), nn.Linear(128, 10))).to(device)
        options = {"momentum": 0.9} if rule == "SGD" else {}
        self.optimizer = getattr(optim, rule)(self.model.parameters(), lr=0.01, **options)
        self.scaler = optim.DynamicLossScaler(scale, growth_interval=3, **scaler)
        self.policy, self.device, self.clip = policy, device, clip

    def batch(self, seed=0, size=8):
        x = self.policy.cast(mp.Tensor(rng(seed).standard_normal((size, 1, 8, 8)).astype("float32")))
        return x.to(self.device), mp.Tensor(rng(seed).integers(0, 10, size)).to(self.device)

    def step(self, x, labels, factor=1.0):
        loss = ops.cross_entropy(self.model(x), labels) * factor
        self.scaler.scale(loss).backward()
        if self.clip:
            self.scaler.unscale_(self.optimizer)
            optim.clip_grad_norm_(self.model.parameters(), 0.5)
        result = self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad()
        return loss, result

    def state(self):
        optimizer = self.optimizer.state_dict()["state"]
        arrays = {f"{i}.{name}": np.asarray(v) for i, s in optimizer.items() for name, v in s.items()}
        return self.model.state_dict() | arrays


def same(a, b):
    assert a.keys() == b.keys()
    for name in a:
        np.testing.assert_array_equal(backend.to_cpu(a[name]), backend.to_cpu(b[name]), err_msg=name)
