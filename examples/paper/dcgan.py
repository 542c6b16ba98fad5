"""The DCGAN of MPT section 4.6, for colour pictures of 128 x 128."""

from __future__ import annotations

import itertools

from tinymp import nn

from ..dcgan import LATENT, initialised

WIDTHS = (
    1024,
    512,
    256,
    128,
    64,
    32,
)  # the paper gives none: Radford's at the smallest pictures, halved with each doubling


def networks() -> tuple[nn.Sequential, nn.Sequential]:
    """Generator, (N, LATENT, 1, 1) -> (N, 3, 128, 128), and discriminator, from there to logits (N, 1).

    7 fractionally-strided convolutions, 6 with leaky ReLU and the last with tanh; 6 convolutions and 2 fully connected
    layers; batch norm everywhere but in the discriminator's last layer.
    """
    generator: list[nn.Module] = []
    for before, width in itertools.pairwise([LATENT, *WIDTHS, 3]):
        kernel, stride, padding = (2, 1, 0) if before == LATENT else (4, 2, 1)
        convolution = nn.ConvTranspose2d(before, width, kernel, stride, padding, bias=False)
        generator += [convolution, nn.BatchNorm2d(width), nn.Tanh() if width == 3 else nn.LeakyReLU(0.2)]
    discriminator: list[nn.Module] = []
    for before, width in itertools.pairwise([3, *reversed(WIDTHS)]):
        discriminator += [nn.Conv2d(before, width, 4, 2, 1, bias=False), nn.BatchNorm2d(width), nn.LeakyReLU(0.2)]
    discriminator += [nn.Flatten(), nn.Linear(4 * WIDTHS[0], 1024, bias=False), nn.BatchNorm1d(1024), nn.LeakyReLU(0.2)]
    return initialised(generator), initialised([*discriminator, nn.Linear(1024, 1)])
