"""The DCGAN: one iteration with two optimizers, and the distance between pictures."""

import numpy as np
import pytest

import tinymp as mp
from examples import dcgan
from examples.paper.frechet import FrechetDistance
from tinymp import nn, optim

pytestmark = pytest.mark.cpu


def networks(policy=mp.MIXED):
    """The generator and the discriminator, and their optimizers."""
    mp.manual_seed(0)
    models = [policy.cast(model) for model in dcgan.networks(16, 4)]
    return models, [optim.Adam(m.parameters(), lr=1e-3, betas=(0.5, 0.999)) for m in models]


def batch(policy=mp.MIXED, seed=0):
    random = np.random.default_rng(seed)
    real, noise = random.uniform(-1, 1, (4, 1, 16, 16)), random.standard_normal((4, dcgan.LATENT, 1, 1))
    return [policy.cast(mp.tensor(x.astype(np.float32))) for x in (real, noise)]


def test_gradients_of_an_iteration():
    """Each network's gradient is that of its own loss alone, by another way through the same networks."""
    (models, optimizers), (real, noise) = networks(mp.FP32), batch(mp.FP32)
    dcgan.step(models, optimizers, optim.NoLossScaler(), real, noise)
    got = [p.grad for m in models for p in m.parameters()]

    (g, d), optimizers = networks(mp.FP32)
    fake, loss = g(noise), nn.BCEWithLogitsLoss()
    real_loss = loss(d(real), dcgan.ops.full_like(d(real), 0.9))
    (real_loss + loss(d(fake.detach()), mp.tensor(np.zeros((4, 1), "f4")))).backward()
    expected = [p.grad for p in d.parameters()]
    optimizers[1].step()
    d.zero_grad()
    loss(d(fake), mp.tensor(np.ones((4, 1), "f4"))).backward()
    for a, b in zip(got, [*(p.grad for p in g.parameters()), *expected], strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("victims", [(), (1,), (0, 1)])
def test_an_overflow_skips_one_optimizer_and_moves_the_scale_once(victims, monkeypatch):
    """One scaler, two optimizers: whichever overflows is left as it was, the other steps, S is halved once."""
    (models, optimizers), scaler = networks(), optim.DynamicLossScaler(1024.0, growth_interval=2)

    def state(i):
        """Copies of what a skipped step must leave alone; batch norm's statistics move in any case."""
        moments = [np.array(v) for entry in optimizers[i].state_dict()["state"].values() for v in entry.values()]
        return [x.tobytes() for x in [*(p.master for p in models[i].parameters()), *moments]]

    def poisoned(optimizer, honest=scaler.step):
        if optimizers.index(optimizer) in victims:
            optimizer.param_groups[0]["params"][0].grad[...] = np.inf
        return honest(optimizer)

    with mp.use(mp.MIXED):
        dcgan.step(models, optimizers, scaler, *batch())  # Adam has its state
        for optimizer in optimizers:
            optimizer.zero_grad()
        before = [state(i) for i in (0, 1)]
        monkeypatch.setattr(scaler, "step", poisoned)
        dcgan.step(models, optimizers, scaler, *batch(seed=1))
    assert [state(i) == before[i] for i in (0, 1)] == [i in victims for i in (0, 1)]
    assert scaler.iteration == 2 and scaler.get_scale() == (512 if victims else 2048) and len(scaler.history) == 1


def test_frechet_distance_against_its_definition():
    """The formula with a matrix square root, on the features by themselves."""
    random = np.random.default_rng(0)
    known = random.standard_normal((300, 1, 16, 16))
    others = 0.8 * random.standard_normal((200, 1, 16, 16)) + 0.1
    distance = FrechetDistance(known, components=8)
    a, b = ((distance._features(x) - distance.mean) @ distance.to_unit for x in (known, others))
    np.testing.assert_allclose(np.cov(a, rowvar=False), np.eye(8), atol=1e-8)
    c1, c2 = np.cov(a, rowvar=False), np.cov(b, rowvar=False)
    roots = np.sqrt(np.linalg.eigvals(c1 @ c2).real)  # tr (C1 C2)^(1/2)
    expected = np.sum((a.mean(0) - b.mean(0)) ** 2) + np.trace(c1) + np.trace(c2) - 2 * roots.sum()
    assert distance(others) == pytest.approx(expected / 8) and distance(known) < 1e-6
    assert np.isnan(distance(np.full_like(known[:5], np.nan)))
