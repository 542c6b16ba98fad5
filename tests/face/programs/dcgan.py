"""A DCGAN on 16 x 16 images: two networks, two optimizers, labels of ones and zeros."""

import numpy as np
import torch
import torch.nn as nn
import torch.optim as optim
from start import images, weights

nz, ngf, ndf = 8, 8, 8
device = "cuda" if torch.cuda.is_available() else "cpu"


netG = nn.Sequential(
    nn.ConvTranspose2d(nz, ngf * 2, 4, 1, 0, bias=False),
    nn.BatchNorm2d(ngf * 2),
    nn.ReLU(True),
    nn.ConvTranspose2d(ngf * 2, ngf, 4, 2, 1, bias=False),
    nn.BatchNorm2d(ngf),
    nn.ReLU(True),
    nn.ConvTranspose2d(ngf, 1, 4, 2, 1, bias=False),
    nn.Tanh(),
).to(device)
netD = nn.Sequential(
    nn.Conv2d(1, ndf, 4, 2, 1, bias=False),
    nn.LeakyReLU(0.2, inplace=True),
    nn.Conv2d(ndf, ndf * 2, 4, 2, 1, bias=False),
    nn.BatchNorm2d(ndf * 2),
    nn.LeakyReLU(0.2, inplace=True),
    nn.Conv2d(ndf * 2, 1, 4, 1, 0, bias=False),
    nn.Sigmoid(),
).to(device)
for net in (netG, netD):
    net.apply(lambda m: m.weight.data.normal_(0.0, 0.02) if m.__class__.__name__.find("Conv") != -1 else None)
netG.load_state_dict(weights(netG, torch.from_numpy, 1))
netD.load_state_dict(weights(netD, torch.from_numpy, 2))
criterion = nn.BCELoss()
optimizerD = optim.Adam(netD.parameters(), lr=0.0002, betas=(0.5, 0.999))
optimizerG = optim.Adam(netG.parameters(), lr=0.0002, betas=(0.5, 0.999))
real_images, r = torch.from_numpy(images(160)[0]), np.random.RandomState(5)
losses = []
for i in range(20):
    netD.zero_grad()
    real = real_images[i * 8 : i * 8 + 8].to(device)
    label = torch.full((real.size(0),), 1.0, device=device)
    output = netD(real).view(-1)
    errD_real = criterion(output, label)
    errD_real.backward()
    z = torch.from_numpy(r.randn(real.size(0), nz, 1, 1).astype(np.float32)).to(device)
    fake = netG(z)
    label.fill_(0.0)
    errD_fake = criterion(netD(fake.detach()).view(-1), label)
    errD_fake.backward()
    errD = errD_real + errD_fake
    optimizerD.step()
    netG.zero_grad()
    label.fill_(1.0)
    errG = criterion(netD(fake).view(-1), label)
    errG.backward()
    optimizerG.step()
    losses.append(errD.item() + errG.item())
