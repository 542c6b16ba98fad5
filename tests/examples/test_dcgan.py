"""The DCGANs: their networks, one iteration with two optimizers, and the distance between pictures."""

from typing import NamedTuple

import numpy as np
import pytest

import tinymp as mp
from examples import datasets, dcgan
from examples.paper.frechet import FrechetDistance
from tinymp import nn, optim

pytestmark = pytest.mark.cpu


class Networks(NamedTuple):
    generator: nn.Module
    discriminator: nn.Module
    generator_optimizer: optim.Optimizer
    discriminator_optimizer: optim.Optimizer


class Step(NamedTuple):
    discriminator_loss: mp.Tensor
    generator_loss: mp.Tensor
    discriminator_result: optim.StepResult
    generator_result: optim.StepResult


def step(nets, *others):
    return Step(*dcgan.step(nets[:2], nets[2:], *others))


def networks(policy=mp.MIXED, seed=0):
    mp.manual_seed(seed)
    models = [policy.cast(model) for model in dcgan.networks(16, 4)]
    return Networks(*models, *[optim.Adam(m.parameters(), lr=1e-3, betas=(0.5, 0.999)) for m in models])


def batch(policy=mp.MIXED, n=4, size=16, colours=1, seed=0):
    random = np.random.default_rng(seed)
    real = random.uniform(-1, 1, (n, colours, size, size))
    noise = random.standard_normal((n, dcgan.LATENT, 1, 1))
    return [policy.cast(mp.tensor(x.astype(np.float32))) for x in (real, noise)]


def state(model, optimizer):
    """Copies of everything that a skipped step must leave alone."""
    moments = [np.array(v) for entry in optimizer.state_dict()["state"].values() for v in entry.values()]
    return [*model.state_dict().values(), *moments]


def same(a, b):
    return len(a) == len(b) and all(np.array_equal(x, y) for x, y in zip(a, b))


# --------------------------------------------------------------------------------------------------------- the networks


def kinds(model):
    return [type(layer).__name__ for layer in model]


@pytest.mark.parametrize("size", [16, 32, 64])
def test_small_networks_fit_together(size):
    g, d = dcgan.networks(size, 2)
    fake = g(mp.tensor(np.zeros((2, dcgan.LATENT, 1, 1), np.float32)))
    assert fake.shape == (2, 1, size, size)
    assert d(fake).shape == (2, 1)
    doublings = int(np.log2(size)) - 2
    assert kinds(g) == doublings * ["ConvTranspose2d", "BatchNorm2d", "LeakyReLU"] + ["ConvTranspose2d", "Tanh"]
    block = ["Conv2d", "BatchNorm2d", "LeakyReLU"]
    assert kinds(d) == ["Conv2d", "LeakyReLU"] + (doublings - 1) * block + ["Flatten", "Linear"]


def test_initialised():
    mp.manual_seed(0)
    for model in dcgan.networks(32, 32):
        for layer in model:
            if isinstance(layer, (nn.Conv2d, nn.ConvTranspose2d)):
                assert layer.weight.array.mean() == pytest.approx(0, abs=0.003)
                assert layer.weight.array.std() == pytest.approx(0.02, rel=0.2)
            if isinstance(layer, nn.BatchNorm2d):
                assert layer.weight.array.mean() == pytest.approx(1, abs=0.02)
            if getattr(layer, "bias", None) is not None:
                assert not layer.bias.array.any()


# -------------------------------------------------------------------------------------------------------- the iteration


def test_gradients_of_an_iteration():
    """Each network's gradient is that of its own loss alone, by another way through the same networks."""
    policy, scaler = mp.FP32, optim.NoLossScaler()
    nets, (real, noise) = networks(policy), batch(policy)
    step(nets, scaler, real, noise)
    got = [[p.grad for p in m.parameters()] for m in nets[:2]]

    nets = networks(policy)
    g, d = nets[:2]
    fake = g(noise)
    loss = nn.BCEWithLogitsLoss()
    (
        loss(d(real), dcgan.ops.full_like(d(real), 0.9)) + loss(d(fake.detach()), mp.tensor(np.zeros((4, 1), "f4")))
    ).backward()
    expected_d = [p.grad for p in d.parameters()]
    nets.discriminator_optimizer.step()
    d.zero_grad()
    loss(d(fake), mp.tensor(np.ones((4, 1), "f4"))).backward()
    for mine, theirs in zip(got, ([p.grad for p in g.parameters()], expected_d)):
        assert len(mine) == len(theirs) > 0
        for a, b in zip(mine, theirs):
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("victims", [(), ("discriminator",), ("generator",), ("discriminator", "generator")])
def test_an_overflow_skips_one_optimizer_and_moves_the_scale_once(victims, monkeypatch):
    """One scaler, two optimizers: whichever overflows is left as it was, the other steps, S is halved once."""
    nets, scaler = networks(), optim.DynamicLossScaler(1024.0, growth_interval=2)
    with mp.use(mp.MIXED):
        step(nets, scaler, *batch())  # Adam has its state, and batch norms have theirs
        assert (scaler.get_scale(), scaler.growth_tracker) == (1024, 1)
        for optimizer in nets[2:]:
            optimizer.zero_grad()
        before = [state(nets[i], nets[i + 2]) for i in (0, 1)]
        honest = scaler.step

        def poisoned(optimizer):
            for name in victims:
                if optimizer is getattr(nets, f"{name}_optimizer"):
                    optimizer.param_groups[0]["params"][0].grad[...] = np.inf
            return honest(optimizer)

        monkeypatch.setattr(scaler, "step", poisoned)
        result = step(nets, scaler, *batch(seed=1))
    for i, name in enumerate(("generator", "discriminator")):
        skipped = name in victims
        assert getattr(result, f"{name}_result") is (optim.StepResult.SKIPPED if skipped else optim.StepResult.APPLIED)
        changed = not same(state(nets[i], nets[i + 2]), before[i])
        if name == "generator" or not skipped:
            assert changed is not skipped
        else:  # the pass for the generator's loss, after the skip, moves the statistics; the weights and moments stay
            weights = [p.master for p in nets.discriminator.parameters()]
            assert all(any(np.array_equal(w, old) for old in before[i]) for w in weights)
    assert scaler.iteration == 2
    assert scaler.get_scale() == (512 if victims else 2048)
    assert len(scaler.history) == 1


def test_nothing_of_the_generators_loss_stays_in_the_discriminator():
    """Under another scale, it would meet the next iteration's gradients and be refused."""
    nets, scaler = networks(), optim.DynamicLossScaler(1024.0, growth_interval=1)
    with mp.use(mp.MIXED):
        for i in range(3):
            result = step(nets, scaler, *batch(seed=i))
            assert result.discriminator_result.applied
            assert {p.grad_scale for p in nets.discriminator.parameters()} == {1024.0 * 2**i}
            assert all(p.requires_grad for p in nets.discriminator.parameters())
            for optimizer in nets[2:]:
                optimizer.zero_grad()
    assert scaler.get_scale() == 8192


# --------------------------------------------------------------------------------------------------------- the distance


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
    assert distance(others) == pytest.approx(expected / 8)


def test_frechet_distance_sees_what_is_wrong_with_pictures():
    faces = datasets.faces(36)
    random = np.random.default_rng(0)
    known, others = (datasets.crops(faces[random.integers(0, 400, 600)], 32, random) for _ in range(2))
    distance = FrechetDistance(known)
    same_kind = distance(others)
    assert distance(known) < 1e-6
    assert same_kind < 0.1
    assert distance(datasets.crops(faces[random.integers(0, 40, 600)], 32, random)) > 3 * same_kind  # 4 people
    blurred = (others + np.roll(others, 1, 2) + np.roll(others, 1, 3) + np.roll(others, (1, 1), (2, 3))) / 4
    assert distance(blurred) > 2 * same_kind
    assert distance(others + random.normal(0, 0.2, others.shape)) > 2 * same_kind
    assert distance(np.repeat(known[:1], 50, 0)) > 1
    assert np.isnan(distance(np.full_like(known[:5], np.nan)))
    with pytest.raises(ValueError, match="expected pictures that differ, got 5 equal ones"):
        FrechetDistance(np.zeros((5, 1, 16, 16)))


def test_crops():
    """Every place and both ways come up, and none else."""
    images, random = np.arange(2 * 3 * 4, dtype=np.uint8).reshape(2, 1, 3, 4), np.random.default_rng(0)
    seen = {datasets.crops(images, 2, random)[0].tobytes() for _ in range(300)}
    windows = [images[0, 0, i : i + 2, j : j + 2] for i in range(2) for j in range(3)]
    assert seen == {(w[:, ::way].astype(np.float32) / 127.5 - 1).tobytes() for w in windows for way in (1, -1)}


def test_sheet():
    """Rows of pictures; what is missing is black, what is no number grey, what is out of range cut off."""
    pictures = np.array([-1, 1, np.nan, 7, 0.5], np.float32).reshape(5, 1, 1, 1)
    assert datasets.sheet(pictures, 3).tolist() == [[0, 255, 128], [255, 191, 0]]
