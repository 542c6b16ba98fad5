"""Train a DCGAN twice, in FP32 and in mixed precision, from the same weights on the same 400 faces.

    python -m examples.dcgan

Two networks, two optimizers, one loss scaler: `step` is one iteration (MPT sections 3 and 4.6; Radford et al., 2015).
"""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np

import tinymp as mp
from tinymp import nn, ops, optim

from . import datasets, measure
from .paper.frechet import FrechetDistance

BATCH, LATENT, DRAWN, REAL = 32, 100, 1000, 0.9  # REAL, a label: 1 would teach too little (Salimans et al., 2016)


def networks(size: int = 64, width: int = 24) -> list[nn.Sequential]:
    """Generator, (N, LATENT, 1, 1) -> 4 x 4 -> ... -> (N, 1, size, size); discriminator, the way back to (N, 1)."""
    widths = [width * 2**i for i in range(int(math.log2(size)) - 2)]
    generator = [nn.ConvTranspose2d(LATENT, widths[-1], 4, bias=False), nn.BatchNorm2d(widths[-1]), nn.LeakyReLU(0.2)]
    discriminator = [nn.Conv2d(1, width, 4, 2, 1), nn.LeakyReLU(0.2)]
    for wide, thin in itertools.pairwise(reversed(widths)):
        generator += [nn.ConvTranspose2d(wide, thin, 4, 2, 1, bias=False), nn.BatchNorm2d(thin), nn.LeakyReLU(0.2)]
    for thin, wide in itertools.pairwise(widths):
        discriminator += [nn.Conv2d(thin, wide, 4, 2, 1, bias=False), nn.BatchNorm2d(wide), nn.LeakyReLU(0.2)]
    generator += [nn.ConvTranspose2d(width, 1, 4, 2, 1), nn.Tanh()]
    discriminator += [nn.Flatten(), nn.Linear(16 * widths[-1], 1)]  # the sigmoid is part of the loss
    return [initialised(generator), initialised(discriminator)]


def initialised(layers: list[nn.Module]) -> nn.Sequential:
    """Weights from N(0, 0.02), the factors of batch norms from N(1, 0.02), biases 0."""
    for layer in layers:
        if getattr(layer, "weight", None) is not None:
            nn.init.normal_(layer.weight, 1.0 if layer.normalisation else 0.0, 0.02)
        if getattr(layer, "bias", None) is not None:
            nn.init.zeros_(layer.bias)
    return nn.Sequential(*layers)


def loss_of(logits: mp.Tensor, label: float) -> mp.Tensor:
    """The mean cross-entropy between sigmoid(logits) and one label for all, in FP32 (NVG section 2.3.1)."""
    return ops.binary_cross_entropy_with_logits(logits, ops.full_like(logits, label))


def step(models: Any, optimizers: Any, scaler: optim.LossScaler, real: mp.Tensor, noise: mp.Tensor) -> tuple:
    """One iteration: the losses of discriminator and generator, and what their optimizers did."""
    (generator, discriminator), (g_optimizer, d_optimizer) = models, optimizers
    # The discriminator learns to tell real pictures from the generator's; detach() keeps its loss from the generator.
    fake = generator(noise)
    d_loss = loss_of(discriminator(real), REAL) + loss_of(discriminator(fake.detach()), 0.0)
    scaler.scale(d_loss).backward()  # FP16 gradients, S times as large
    # Unscales in FP32, updates the masters and rounds the copies; after an overflow it skips this optimizer alone.
    d_result = scaler.step(d_optimizer)

    # The generator learns to be taken for real. Its gradient passes through the discriminator, whose weights are
    # constants now: nothing is added to their gradients, where it would meet the next iteration's under another S.
    discriminator.requires_grad_(False)
    g_loss = loss_of(discriminator(fake), 1.0)
    scaler.scale(g_loss).backward()
    discriminator.requires_grad_(True)
    g_result = scaler.step(g_optimizer)

    scaler.update()  # once per iteration: S falls if either overflowed, and counts towards growing if neither did
    return d_loss, g_loss, d_result, g_result


def train(
    policy: mp.Policy,
    scaler: optim.LossScaler,
    *,
    seed: int = 0,
    steps: int = 2000,
    device: str = "cpu",
    lr: float = 4e-4,
    size: int = 64,
    width: int = 24,
) -> dict[str, Any]:
    """One training; the seed fixes weights, pictures and noise, whatever the policy. size, width: of the networks."""
    faces, random = datasets.faces(size + size // 16), np.random.default_rng(seed)
    mp.manual_seed(seed)
    models = [policy.cast(model).to(device) for model in networks(size, width)]  # FP16 copies, FP32 masters
    optimizers = [optim.Adam(model.parameters(), lr=lr, betas=(0.5, 0.999)) for model in models]
    loader = mp.data.DataLoader(mp.data.TensorDataset(faces), BATCH, shuffle=True, drop_last=True, seed=seed)
    run = measure.Run(policy.name)
    graph = mp.capture(lambda *batch: step(models, optimizers, scaler, *batch))  # on a CPU it only calls

    with mp.use(policy), run:
        for (some,) in run.steps(steps, itertools.chain.from_iterable(itertools.repeat(loader))):
            noise = random.standard_normal((BATCH, LATENT, 1, 1), np.float32)
            arrays = datasets.crops(some.numpy(), size, random), noise
            d_loss, _, *results = graph(*(policy.cast(mp.from_numpy(x)).to(device) for x in arrays))
            for model in models:
                model.zero_grad()
            run.note(d_loss, *results)

    latent = np.random.default_rng(seed + 1).standard_normal((DRAWN // 50, 50, LATENT, 1, 1), np.float32)
    generator = models[0].eval()  # with the running statistics of its batch norms
    with mp.no_grad(), mp.use(policy):
        drawn = np.concatenate([generator(policy.cast(mp.tensor(z)).to(device)).float().numpy() for z in latent])
    distance = FrechetDistance(datasets.crops(faces.repeat(5, 0), size, np.random.default_rng(0)))(drawn)
    scores = {"frechet_distance": distance, "picture": datasets.sheet(drawn[:64], 8)}
    return run.found(scaler, BATCH, higher_is_better=False, **scores)


def main(arguments: list[str] | None = None) -> dict[str, Any]:
    """Both trainings, a table and a picture."""
    return measure.main(train, __doc__, {"Fréchet distance": "{frechet_distance:.3f}"}, "pictures", arguments)


if __name__ == "__main__":
    main()
