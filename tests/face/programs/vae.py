"""A variational autoencoder with Gaussian codes; its noise comes from NumPy."""

import numpy as np
import torch
from start import images, weights
from torch import nn, optim
from torch.autograd import Variable
from torch.nn import functional as F

noise = np.random.RandomState(3)


class VAE(nn.Module):
    def __init__(self, size=256, hidden=32, code=4):
        super().__init__()
        self.fc1 = nn.Linear(size, hidden)
        self.fc21 = nn.Linear(hidden, code)
        self.fc22 = nn.Linear(hidden, code)
        self.fc3 = nn.Linear(code, hidden)
        self.fc4 = nn.Linear(hidden, size)
        self.relu = nn.ReLU(inplace=True)

    def encode(self, x):
        h = self.relu(self.fc1(x))
        return self.fc21(h), self.fc22(h)

    def reparameterize(self, mu, logvar):
        std = logvar.mul(0.5).exp()
        eps = torch.from_numpy(noise.randn(*mu.size()).astype("float32")).type_as(std)
        return eps.mul(std).add(mu)

    def decode(self, z):
        return torch.sigmoid(self.fc4(self.relu(self.fc3(z))))

    def forward(self, x):
        mu, logvar = self.encode(x.view(-1, 256))
        return self.decode(self.reparameterize(mu, logvar)), mu, logvar


def loss_function(recon, x, mu, logvar):
    bce = F.binary_cross_entropy(recon, x.view(-1, 256), reduction="sum")
    kld = -0.5 * torch.sum(1 + logvar - mu.pow(2) - logvar.exp())
    return bce + kld


device = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
model = VAE().to(device)
model.load_state_dict(weights(model, torch.from_numpy))
optimizer = optim.Adam(model.parameters(), lr=1e-3)
x, _ = images(320)
data = torch.FloatTensor(x).clamp_(0, 1)
losses = []
for step in range(20):
    batch = Variable(data[step * 16 : (step + 1) * 16]).to(device)
    optimizer.zero_grad()
    recon, mu, logvar = model(batch)
    loss = loss_function(recon, batch, mu, logvar)
    loss.backward()
    optimizer.step()
    losses.append(loss.data.item() / len(batch))
