"""A run that was stopped goes on as if it had never been, bit for bit: under every policy, with every optimizer, scaler
and loader, in the middle of an epoch.
"""

from functools import partial

import numpy as np
import pytest

import tinymp as mp
from examples.paper.buckets import BucketBatchSampler
from tinymp import data, nn, ops, optim

pytest.importorskip("safetensors")
pytestmark = pytest.mark.cpu

OPTIMIZERS = {
    "Nesterov": lambda p: optim.SGD(p, lr=0.05, momentum=0.9, nesterov=True, weight_decay=1e-3),
    "Adagrad": lambda p: optim.Adagrad(p, lr=0.05),
    "Adam": lambda p: optim.Adam(p, lr=0.01, eps=1e-3, amsgrad=True),
    "AdamW": lambda p: optim.AdamW(p, lr=0.01, eps=1e-3),
    "RMSprop": lambda p: optim.RMSprop(p, lr=0.01, momentum=0.5, centered=True),
}
SCALERS = {
    "none": optim.NoLossScaler,
    "static": lambda: optim.StaticLossScaler(64),
    "dynamic": lambda: optim.DynamicLossScaler(init_scale=2.0**17, growth_interval=2),  # skips some, grows at times
}
LOADERS = {
    "in order": {},
    "shuffled": {"shuffle": True},
    "seeded": {"shuffle": True, "seed": 1, "prefetch": 0},
    "generator": {"shuffle": True, "generator": 2, "drop_last": True},
    "workers": {"shuffle": True, "num_workers": 2},
    "buckets": {"batch_sampler": 3},
}
STEPS, STOP = 11, 6  # an epoch has 4 or 5 batches


class Run:
    """Everything that a run consists of."""

    def __init__(self, policy, optimizer, scaler, loader, **other):
        self.policy = policy
        options = {**LOADERS[loader], **other}
        x = np.random.default_rng(0).standard_normal((14, 6)).astype("f")
        if "generator" in options:
            options["generator"] = np.random.default_rng(options["generator"])
        if "batch_sampler" in options:
            generator = np.random.default_rng(options["batch_sampler"])
            options["batch_sampler"] = BucketBatchSampler(np.arange(14) % 4, 3, generator)
        else:
            options["batch_size"] = 3
        self.loader = data.DataLoader(data.TensorDataset(x, np.arange(14) % 3), **options)
        self.model = policy.cast(
            nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, 3))
        )
        self.optimizer = OPTIMIZERS[optimizer](self.model.parameters())
        self.scaler = SCALERS[scaler]()
        self.schedule = optim.CosineAnnealingLR(self.optimizer, T_max=STEPS)
        self.losses = []

    @property
    def parts(self):
        return {name: x for name, x in vars(self).items() if name not in ("policy", "losses")}

    def train(self, after=lambda step: None):
        """Up to STEPS steps."""
        while len(self.losses) < STEPS:
            for x, y in self.loader:
                with mp.use(self.policy):
                    loss = ops.cross_entropy(self.model(self.policy.cast(x)), y)
                    self.scaler.scale(loss).backward()
                    self.schedule.step(self.scaler.step(self.optimizer))
                    self.scaler.update()
                    self.optimizer.zero_grad()
                self.losses.append(loss.item())
                if after(len(self.losses)) or len(self.losses) == STEPS:
                    return

    def result(self):
        return [self.losses, self.parts["model"].state_dict(), self.optimizer.state_dict(), self.scaler.state_dict()]


def save_at(stop, path, run, step):
    if step == stop:
        mp.save(path, **run.parts, losses=run.losses)


def same(a, b):
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    return np.array_equal(a, b, equal_nan=isinstance(a, (float, np.ndarray)))


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize(("i", "policy"), [*enumerate(mp.POLICIES)])
def test_every_policy_optimizer_scaler_and_loader(i, policy, tmp_path):
    """Each with some of the others."""
    optimizer, scaler, loader = (list(kinds)[(i + i // 3) % len(kinds)] for kinds in (OPTIMIZERS, SCALERS, LOADERS))
    case = mp.POLICIES[policy], optimizer, scaler, loader
    mp.manual_seed(0)
    whole = Run(*case)
    whole.train(partial(save_at, STOP, tmp_path / "run", whole))
    mp.manual_seed(1)
    other = Run(*case)
    other.train(lambda step: step == 2)  # whatever it did before
    other.losses = mp.load(tmp_path / "run", **other.parts)["losses"]
    assert len(other.losses) == STOP
    other.train()
    assert same(whole.result(), other.result()), (optimizer, scaler, loader)
